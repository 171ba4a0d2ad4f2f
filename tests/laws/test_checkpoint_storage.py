"""Checkpoints on the disk: damage is noticed, and no kill or power failure loses a complete one."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from netstack.base.errors import CheckpointStorageError
from netstack.schedule.checkpoint.files import CheckpointFiles
from netstack.schedule.checkpoint.snapshot import Manifest, TaskSnapshot, decode_snapshot, encode_snapshot
from netstack.schedule.checkpoint.storage import CheckpointStorage

CREATED = datetime(2026, 11, 21, tzinfo=UTC)

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
    actual = decode_snapshot(b"".join(pieces), 3)
    assert repr(actual) == repr(snapshot)


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
@settings(max_examples=2 * settings.default.max_examples)
def test_any_damage_is_noticed_and_the_older_one_is_used(sound: Path, data: st.DataObject) -> None:
    storage = CheckpointStorage(sound)
    name = data.draw(st.sampled_from(["manifest.json", "sink-0.*.state", "sink-1.*.state"]))
    (path,) = (sound / "chk-00000002").glob(name)
    (other,) = (sound / "chk-00000001").glob(name)
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
            damaged = other.read_bytes()
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
        actual = self.root
        for name in path.strip("/").split("/"):
            inner = actual.names.get(name)
            if name and inner is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            if name:
                assert isinstance(inner, Folder)
                actual = inner
        return actual

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

    def publish(self, old: str, new: str) -> None:
        parent, name = self.place(new)
        if name in parent.names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        self.rename(old, new)

    def lock(self, path: str) -> int:
        return 0

    def unlock(self, number: int) -> None:
        pass

    def is_locked_by_another(self, path: str) -> bool:
        return False  # whoever was killed holds none

    def is_folder(self, path: str) -> bool:
        try:
            self.folder(path)
        except FileNotFoundError:
            return False
        return True

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
@settings(max_examples=2 * settings.default.max_examples)
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
        actual = 0
    else:
        actual = newest.checkpoint_id
        assert (complete or 0) <= actual <= begun
        assert storage.read(actual) == parts(actual)
    next_id = storage.next_id()
    assert actual < next_id <= begun + 1
    # The next run cleans up and goes on as if nothing had happened.
    storage.prune(incomplete=True)
    assert storage.next_id() == next_id
    take(storage, next_id)
    storage.prune()
    assert storage.read(next_id) == parts(next_id)
    newest = storage.newest()
    assert newest is not None
    assert (newest.checkpoint_id, storage.refused) == (next_id, ())
    (epoch,) = disk.folder("/jobs/one").names.keys() - {f"chk-{next_id:08d}"}
    assert epoch == f"epoch-{storage._fence.epoch:08d}"
    assert sorted(name.split(".")[0] for name in disk.folder(newest.path).names) == ["manifest", "sink-0", "sink-1"]


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
        seen.append((names, contents, storage.next_id()))
    model, real = seen
    assert model == real
    assert model[0] == [("chk-00000003", True), ("epoch-00000002", False)]
    assert model[2] == 5
