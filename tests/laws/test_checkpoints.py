"""Laws of checkpoints: what the coordinator counts, what the disk keeps, what a recovery hands out."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netstack.checkpoint.coordinator import CheckpointCoordinator
from netstack.checkpoint.files import CheckpointFiles
from netstack.checkpoint.instructions import (
    Abort,
    CheckpointSettings,
    Complete,
    FailJob,
    Instruction,
    JobTask,
    StoreFinal,
    Subtask,
    Trigger,
)
from netstack.checkpoint.recovery import Exchange, TaskPlan, recover
from netstack.checkpoint.snapshot import Manifest, TaskFile, TaskSnapshot, decode_snapshot, encode_snapshot
from netstack.checkpoint.storage import CheckpointStorage
from netstack.errors import CheckpointStorageError
from netstack.outbound.keygroups import key_group, operator_index
from netstack.record.framing import frame

CREATED = datetime(2026, 11, 21, tzinfo=UTC)

# ---------------------------------------------------------------------------------------------------- coordinator

JOB = [JobTask("source", 2), JobTask("map", 2, ("source",)), JobTask("sink", 1, ("map",))]
SUBTASKS = [(task.name, subtask) for task in JOB for subtask in range(task.parallelism)]
INPUTS = {task.name: task.inputs for task in JOB}

steps = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *["wait", "tick"] * 2,
                *["acknowledge", "acknowledge all", "stored"] * 3,
                *["decline", "not stored", "request", "savepoint", "end", "fail", "stop"],
            ]
        ),
        st.integers(0, 1 << 16),
    ),
    max_size=80,
)


class Job:
    """Plays the job, and checks each instruction against a model as simple as can be."""

    def __init__(self, made: CheckpointSettings) -> None:
        self.settings = made
        self.now_s = 0.0
        self.coordinator = CheckpointCoordinator(JOB, made, first_id=5, now_s=0.0)
        self.missing: dict[int, set[Subtask]] = {}  # pending: who has not acknowledged
        self.storing: set[int] = set()
        self.triggered_s: dict[int, float] = {}
        self.completed: list[int] = []
        self.aborted: list[int] = []
        self.ended: list[Subtask] = []
        self.late = 0
        self.is_over = False

    def carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Trigger(barrier, subtasks, _):
                    self.on_trigger(barrier.checkpoint_id, set(subtasks))
                case StoreFinal(checkpoint_id, snapshots):
                    stored = {(snapshot.task, snapshot.subtask) for snapshot in snapshots}
                    assert stored <= set(self.ended) & self.missing[checkpoint_id]
                case Complete(checkpoint_id, _, files, _):
                    assert not self.missing.pop(checkpoint_id)
                    self.storing.add(checkpoint_id)
                    assert [(file.task, file.subtask) for file in files] == sorted(SUBTASKS)
                case Abort(checkpoint_id, _, _, subtasks):
                    assert self.missing.pop(checkpoint_id, None) or checkpoint_id in self.storing
                    self.storing.discard(checkpoint_id)
                    self.aborted.append(checkpoint_id)
                    assert set(subtasks) == set(SUBTASKS) - set(self.ended)
                case FailJob():
                    assert not self.is_over
                    self.is_over = True

    def on_trigger(self, checkpoint_id: int, subtasks: set[Subtask]) -> None:
        running = set(SUBTASKS) - set(self.ended)
        reachable = {task for task, _ in running}
        without_producers = {subtask for subtask in running if not reachable & set(INPUTS[subtask[0]])}
        if checkpoint_id in self.missing:  # its producers have ended since
            assert subtasks <= without_producers & self.missing[checkpoint_id]
            return
        assert subtasks == without_producers
        assert not self.is_over
        assert checkpoint_id == 5 + len(self.triggered_s)
        self.missing[checkpoint_id] = set(SUBTASKS)
        self.triggered_s[checkpoint_id] = self.now_s
        assert len(self.missing) + len(self.storing) <= self.settings.max_concurrent

    def known(self, number: int) -> int:
        """Any id that was ever used, or the next one; rather a pending one."""
        pending = [*self.missing] * 4
        choices = [*pending, *self.triggered_s, 5 + len(self.triggered_s)]
        return choices[number % len(choices)]

    def acknowledge(self, checkpoint_id: int, subtask: Subtask) -> None:
        if subtask in self.missing.get(checkpoint_id, ()):
            self.missing[checkpoint_id].remove(subtask)
        else:
            self.late += 1
        self.carry_out(self.coordinator.acknowledged(checkpoint_id, TaskFile(*subtask, 1, 2), self.now_s))

    def step(self, name: str, number: int) -> None:
        made, subtask = self.coordinator, SUBTASKS[number % len(SUBTASKS)]
        match name:
            case "wait":
                self.now_s += number % 40 / 4
            case "tick":
                self.tick()
            case "acknowledge":
                self.acknowledge(self.known(number // 8), subtask)
            case "acknowledge all":
                if self.missing:
                    checkpoint_id = [*self.missing][number % len(self.missing)]
                    for waiting in sorted(self.missing[checkpoint_id]):
                        self.acknowledge(checkpoint_id, waiting)
            case "decline":
                self.carry_out(made.declined(self.known(number // 8), *subtask, "why", self.now_s))
            case "stored" if self.storing:
                checkpoint_id = sorted(self.storing)[number % len(self.storing)]
                self.storing.remove(checkpoint_id)
                self.completed.append(checkpoint_id)
                newer = [other for other in self.missing if other > checkpoint_id]
                self.carry_out(made.completed(checkpoint_id, self.now_s))
                assert [*self.missing] == newer
            case "not stored" if self.storing:
                checkpoint_id = sorted(self.storing)[number % len(self.storing)]
                self.carry_out(made.not_stored(checkpoint_id, "why", self.now_s))
            case "request" | "savepoint" if not self.is_over:
                self.carry_out(made.request(self.now_s, savepoint=name == "savepoint"))
            case "end" if len(self.ended) < len(SUBTASKS):
                # From the sources on, as tasks do.
                first = next(
                    task for task in JOB if any((task.name, i) not in self.ended for i in range(task.parallelism))
                )
                left = [(first.name, i) for i in range(first.parallelism) if (first.name, i) not in self.ended]
                self.ended.append(left[number % len(left)])
                self.carry_out(made.task_ended(TaskSnapshot(*self.ended[-1]), self.now_s))
            case "fail":
                if not number % 4:
                    self.is_over = True
                    self.carry_out(made.task_failed(*subtask, "why", self.now_s))
                    assert not self.missing
            case "stop":
                if not number % 4:
                    self.stop()

    def tick(self) -> None:
        due = self.coordinator.next_deadline()
        instructions = self.coordinator.tick(self.now_s)
        assert bool(instructions) == (due is not None and due <= self.now_s), (
            "the deadline says when a tick does something"
        )
        self.carry_out(instructions)
        late = [other for other in self.missing if self.triggered_s[other] + self.settings.timeout_s <= self.now_s]
        assert not late

    def stop(self) -> None:
        self.is_over = True
        self.carry_out(self.coordinator.stop(self.now_s))
        assert not self.missing

    def check(self) -> None:
        statistics = self.coordinator.statistics()
        assert statistics.triggered == len(self.triggered_s)
        assert statistics.completed == len(self.completed)
        assert statistics.aborted == len(self.aborted)
        assert statistics.ignored_acknowledgements == self.late
        assert {one.checkpoint_id for one in statistics.pending} == self.missing.keys() | self.storing
        deadline = self.coordinator.next_deadline()
        if self.missing:
            assert deadline is not None
        elif self.is_over:
            assert deadline is None


@given(
    steps,
    st.integers(1, 3),
    st.sampled_from([None, 2.0, 5.0]),
    st.sampled_from([0.0, 3.0]),
    st.sampled_from([None, 0, 2]),
)
def test_every_checkpoint_ends_once_and_completes_exactly_when_all_acknowledged(
    script: list[tuple[str, int]],
    max_concurrent: int,
    interval_s: float | None,
    min_pause_s: float,
    tolerable_failures: int | None,
) -> None:
    job = Job(
        CheckpointSettings(
            interval_s=interval_s,
            min_pause_s=min_pause_s,
            timeout_s=8.0,
            tolerable_failures=tolerable_failures,
            max_concurrent=max_concurrent,
            history=1000,
        )
    )
    for name, number in script:
        job.step(name, number)
        job.check()
    job.stop()
    for checkpoint_id in sorted(job.storing):
        job.step("stored", 0)
        assert checkpoint_id in job.completed
    assert sorted(job.completed + job.aborted) == [*job.triggered_s]
    ended = [one.checkpoint_id for one in job.coordinator.statistics().ended]
    assert sorted(ended) == [*job.triggered_s]


# -------------------------------------------------------------------------------------------------------- storage

scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
)
keys = st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary() | st.tuples(st.integers(0, 9), st.binary(max_size=3))
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)
channels = st.dictionaries(st.tuples(st.text(max_size=5), st.integers(0, 100)), st.binary(max_size=20), max_size=4)


@given(st.text(), st.integers(0, 1000), plain, channels, channels)
def test_a_snapshot_comes_back_with_every_type(
    task: str, subtask: int, operator: Any, inputs: dict[tuple[str, int], bytes], outputs: dict[tuple[str, int], bytes]
) -> None:
    snapshot = TaskSnapshot(task, subtask, operator, inputs, outputs)
    pieces, _ = encode_snapshot(3, snapshot)
    found = decode_snapshot(b"".join(pieces), 3)
    assert repr(found) == repr(snapshot)


def parts(checkpoint_id: int) -> list[TaskSnapshot]:
    return [
        TaskSnapshot("sink", subtask, {"at": checkpoint_id}, {("w", subtask): b"%d" % checkpoint_id}, {})
        for subtask in range(2)
    ]


def take(storage: CheckpointStorage, checkpoint_id: int) -> None:
    files = tuple(storage.write_task(checkpoint_id, part) for part in parts(checkpoint_id))
    storage.complete(Manifest(checkpoint_id, CREATED, {"sink": 2}, files))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    storage = CheckpointStorage(folder)
    take(storage, 1)
    take(storage, 2)
    return folder


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=200)
def test_any_damage_is_noticed_and_the_older_one_is_used(sound: Path, data: st.DataObject) -> None:
    storage = CheckpointStorage(sound)
    path = sound / "chk-00000002" / data.draw(st.sampled_from(["manifest.json", "sink-0.state", "sink-1.state"]))
    contents = path.read_bytes()
    position = data.draw(st.integers(0, len(contents) - 1))
    match data.draw(st.sampled_from(["flip", "cut", "insert", "swap"])):
        case "flip":
            flipped = contents[position] ^ data.draw(st.integers(1, 255))
            damaged = contents[:position] + bytes([flipped]) + contents[position + 1 :]
        case "cut":
            damaged = contents[:position]
        case "insert":
            damaged = contents[:position] + data.draw(st.binary(min_size=1, max_size=9)) + contents[position:]
        case _:
            damaged = (sound / "chk-00000001" / path.name).read_bytes()
    try:
        path.write_bytes(damaged)
        newest = storage.newest()
        assert newest is not None
        assert newest.checkpoint_id == 1
        (refused,) = storage.refused
        assert refused.name == "chk-00000002"
        assert path.name in refused.reason
        assert storage.read(1) == parts(1)
        with pytest.raises(CheckpointStorageError, match=path.name):
            storage.read(2)
    finally:
        path.write_bytes(contents)
    newest = storage.newest()
    assert newest is not None
    assert newest.checkpoint_id == 2


class Killed(BaseException):
    """The process is gone, or the power."""


@dataclass(eq=False)
class Contents:
    """A file of the model."""

    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


@dataclass(eq=False)
class Folder:
    """A folder of the model."""

    names: dict[str, Contents | Folder] = field(default_factory=dict)
    unsynced: list[list[tuple[str, Contents | Folder, bool]]] = field(default_factory=list)
    """Changes: names with what they meant, added or not; a rename is several at once."""

    def change(self, *changes: tuple[str, Contents | Folder, bool]) -> None:
        for name, node, added in changes:
            if added:
                self.names[name] = node
            else:
                del self.names[name]
        self.unsynced.append([*changes])

    def power_fails(self, chance: random.Random) -> None:
        for changes in reversed(self.unsynced):
            if chance.random() < 0.5:
                for name, node, added in reversed(changes):
                    if added:
                        self.names.pop(name, None)
                    else:
                        self.names[name] = node
        self.unsynced = []
        for node in self.names.values():
            if isinstance(node, Folder):
                node.power_fails(chance)
            elif bytes(node.data) != node.synced:
                length = chance.randint(len(node.synced), len(node.data))
                node.data = node.data[:length] + bytes(chance.choice([0, len(node.data) - length]))


class Handle(io.RawIOBase):
    """An open file of the model."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents


class Disk(CheckpointFiles):
    """A model of a disk that loses, when the power fails, any part of what was not synchronised.

    A rename is kept or lost as a whole. Of a file that was not synchronised the end is lost, or zeros.
    """

    def __init__(self, fails_at: int = 1 << 30) -> None:
        self.root = Folder()
        self.calls = 0
        self.fails_at = fails_at

    def call(self) -> None:
        self.calls += 1
        if self.calls >= self.fails_at:
            raise Killed

    def folder(self, path: str) -> Folder:
        found = self.root
        for name in path.strip("/").split("/"):
            inner = found.names.get(name)
            if name and inner is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            if name:
                assert isinstance(inner, Folder)
                found = inner
        return found

    def file(self, path: str) -> Contents:
        parent, name = self.place(path)
        node = parent.names.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        assert isinstance(node, Contents)
        return node

    def place(self, path: str) -> tuple[Folder, str]:
        parent, _, name = path.rpartition("/")
        return self.folder(parent), name

    def add(self, path: str, node: Contents | Folder) -> None:
        parent, name = self.place(path)
        if name in parent.names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        parent.change((name, node, True))

    def make_folder(self, path: str) -> None:
        self.call()
        self.add(path, Folder())

    def create(self, path: str) -> io.RawIOBase:
        self.call()
        contents = Contents()
        self.add(path, contents)
        return Handle(contents)

    def write(self, file: io.RawIOBase, data: memoryview) -> int:
        self.call()
        assert isinstance(file, Handle)
        file.contents.data += data[:64]
        return len(data[:64])

    def sync(self, file: io.RawIOBase) -> None:
        self.call()
        assert isinstance(file, Handle)
        file.contents.synced = bytes(file.contents.data)

    def sync_folder(self, path: str) -> None:
        self.call()
        self.folder(path).unsynced = []

    def rename(self, old: str, new: str) -> None:
        self.call()
        (parent, name), (same, target) = self.place(old), self.place(new)
        assert parent is same
        overwritten = [(target, parent.names[target], False)] if target in parent.names else []
        parent.change(*overwritten, (target, parent.names[name], True), (name, parent.names[name], False))

    def read(self, path: str) -> Iterator[bytes]:
        self.call()
        data = bytes(self.file(path).data)
        yield from (data[at : at + 50] for at in range(0, len(data), 50))

    def size_bytes(self, path: str) -> int:
        self.call()
        return len(self.file(path).data)

    def list_folder(self, path: str) -> list[tuple[str, bool]]:
        self.call()
        return [(name, isinstance(node, Folder)) for name, node in self.folder(path).names.items()]

    def remove(self, path: str) -> None:
        self.call()
        contents = self.file(path)
        parent, name = self.place(path)
        parent.change((name, contents, False))

    def remove_folder(self, path: str) -> None:
        self.call()
        folder = self.folder(path)
        if folder.names:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        parent, name = self.place(path)
        parent.change((name, folder, False))


def run(disk: Disk) -> Iterator[tuple[int, int | None]]:
    """Takes checkpoints, some of which are aborted; after each step: highest number begun, and the newest complete."""
    storage = CheckpointStorage("/jobs/one", keep=1, files=disk)
    complete: int | None = None
    for checkpoint_id in range(1, 5):
        yield checkpoint_id, complete
        if checkpoint_id % 2:
            take(storage, checkpoint_id)
            complete = checkpoint_id
        else:
            storage.write_task(checkpoint_id, parts(checkpoint_id)[0])
            storage.discard(checkpoint_id)
        yield checkpoint_id, complete
        storage.prune()
    yield 4, complete


def calls_of_a_run() -> int:
    disk = Disk()
    assert [*run(disk)][-1] == (4, 3)
    return disk.calls


@pytest.mark.slow
@given(st.integers(1, calls_of_a_run()), st.integers(0, 1 << 32), st.booleans())
@settings(max_examples=200)
def test_a_kill_or_a_power_failure_at_any_step_loses_no_complete_checkpoint(
    moment: int, seed: int, loses_power: bool
) -> None:
    disk = Disk(moment)
    begun: int = 0
    complete: int | None = None
    with contextlib.suppress(Killed):
        for step in run(disk):
            begun, complete = step
    disk.fails_at = 1 << 30
    if loses_power:
        disk.root.power_fails(random.Random(seed))
    storage = CheckpointStorage("/jobs/one", keep=1, files=disk)
    newest = storage.newest()
    if newest is None:
        assert complete is None
        found = 0
    else:
        found = newest.checkpoint_id
        assert (complete or 0) <= found <= begun
        assert storage.read(found) == parts(found)
    next_id = storage.next_id()
    assert found < next_id <= begun + 1
    # The next run cleans up and goes on as if nothing had happened.
    storage.prune(incomplete=True)
    assert storage.next_id() == next_id
    take(storage, next_id)
    storage.prune()
    assert storage.read(next_id) == parts(next_id)
    newest = storage.newest()
    assert newest is not None
    assert (newest.checkpoint_id, storage.refused) == (next_id, ())
    assert disk.folder("/jobs/one").names.keys() == {f"chk-{next_id:08d}"}
    assert disk.folder(newest.path).names.keys() == {"manifest.json", "sink-0.state", "sink-1.state"}


def test_the_model_of_a_disk_is_like_a_disk(tmp_path: Path) -> None:
    seen = []
    for files, folder in ((Disk(), "/jobs"), (CheckpointFiles(), str(tmp_path / "jobs"))):
        storage = CheckpointStorage(folder, keep=1, files=files)
        for checkpoint_id in (1, 2, 3):
            take(storage, checkpoint_id)
        storage.prune()
        storage.write_task(4, parts(4)[0])
        storage.discard(4)
        names = sorted(files.list_folder(folder))
        contents = [
            (name, b"".join(files.read(f"{folder}/chk-00000003/{name}")))
            for name, _ in sorted(files.list_folder(f"{folder}/chk-00000003"))
        ]
        seen.append((names, contents, files.list_folder(f"{folder}/chk-00000004")))
    model, real = seen
    assert model == real
    assert model[0] == [("chk-00000003", True), ("chk-00000004", True)]


# ------------------------------------------------------------------------------------------------------- recovery


@dataclass(frozen=True)
class Cut:
    """A checkpoint of producers and keyed or unkeyed consumers, with records in flight."""

    producers: int
    old: int
    new: int
    max_parallelism: int
    is_keyed: bool
    sent: list[tuple[int, int, int]]  # producer, key, consumer of a record that has no key
    at: list[float]


def owner(key: int, parallelism: int, max_parallelism: int) -> int:
    return operator_index(key_group(key, max_parallelism), parallelism, max_parallelism)


cuts = st.builds(
    Cut,
    producers=st.integers(1, 3),
    old=st.integers(1, 6),
    new=st.integers(1, 6),
    max_parallelism=st.sampled_from([6, 128]),
    is_keyed=st.booleans(),
    sent=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 5)), max_size=40),
    at=st.lists(st.floats(0, 1), min_size=18, max_size=18),
)


@given(cuts)
def test_every_record_and_every_key_once_at_its_owner_in_order(cut: Cut) -> None:
    # What travels: producer, number of the record, key. Who gets it now, by the rule.
    sent: dict[tuple[str, int], list[bytes]] = {}
    for number, (producer, key, consumer) in enumerate(cut.sent):
        producer %= cut.producers
        subpartition = owner(key, cut.old, cut.max_parallelism) if cut.is_keyed else consumer % cut.old
        sent.setdefault((f"w-{producer}", subpartition), []).append(b"%d %d %d" % (producer, number, key))
    inputs: list[dict[tuple[str, int], bytes]] = [{} for _ in range(cut.old)]
    outputs: list[dict[tuple[str, int], bytes]] = [{} for _ in range(cut.producers)]
    for (partition, subpartition), records in sent.items():
        whole = b"".join(map(frame, records))
        at = round(cut.at[int(partition[2:]) * 6 + subpartition] * len(whole))
        inputs[subpartition][partition, subpartition] = whole[:at]
        outputs[int(partition[2:])][partition, subpartition] = whole[at:]
    held = {key: key * 2 for key in range(50)}
    states = [
        {key: value for key, value in held.items() if owner(key, cut.old, cut.max_parallelism) == index}
        for index in range(cut.old)
    ]
    snapshots = [TaskSnapshot("source", index, index, {}, outputs[index]) for index in range(cut.producers)]
    snapshots += [TaskSnapshot("sink", index, states[index], inputs[index]) for index in range(cut.old)]
    plan = TaskPlan(
        "sink",
        cut.new,
        (
            Exchange(
                "words",
                tuple(f"w-{producer}" for producer in range(cut.producers)),
                (lambda record: int(record.split()[2])) if cut.is_keyed else None,
            ),
        ),
        keyed_state=cut.is_keyed,
        max_parallelism=cut.max_parallelism,
    )
    random.Random(len(cut.sent)).shuffle(snapshots)
    recovered = recover(snapshots, [plan, TaskPlan("source", 1)])
    assert recovered["source"][0].operator_states == [*range(cut.producers)]
    sinks = recovered["sink"]
    assert [sink.subtask for sink in sinks] == [*range(cut.new)]
    everything = Counter(record for sink in sinks for record in sink.records["words"])
    assert everything == Counter(record for records in sent.values() for record in records)
    for (partition, subpartition), records in sent.items():
        for sink in sinks:
            mine = set(records)
            got = [record for record in sink.records["words"] if record in mine]
            if cut.is_keyed:
                expected = [
                    record
                    for record in records
                    if owner(int(record.split()[2]), cut.new, cut.max_parallelism) == sink.subtask
                ]
            else:
                expected = records if subpartition % cut.new == sink.subtask else []
            assert got == expected, (partition, subpartition)
            if cut.new == cut.old:
                assert got == (records if sink.subtask == subpartition else [])
    for sink in sinks:
        if cut.is_keyed:
            mine_now = {k: v for k, v in held.items() if owner(k, cut.new, cut.max_parallelism) == sink.subtask}
            assert sink.operator_states == [mine_now]
        else:
            assert sink.operator_states == states[sink.subtask :: cut.new]
