"""Jobs in one process and virtual time: every checkpoint is a clean cut, and a restart goes on as if nothing was."""

from __future__ import annotations

import dataclasses
import errno
import functools
import io
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio
import trio.testing

import netstack.runtime.worker
from netstack.checkpoint.coordinator import CheckpointSettings
from netstack.checkpoint.files import CheckpointFiles
from netstack.checkpoint.recovery import split_records
from netstack.checkpoint.storage import CheckpointStorage
from netstack.config import NetworkConfig
from netstack.errors import CheckpointError, CheckpointStorageError, ConfigError, LocalProtocolError
from netstack.runtime.job import JobFailed, JobRun, open_job
from netstack.runtime.job_spec import InputSpec, Job, TaskSpec
from netstack.runtime.operators import Output, TaskContext
from netstack.runtime.task_manager import TaskManager

SMALL = NetworkConfig(segment_size_bytes=256, memory_bytes=256 * 400)
"""Buffers of about 30 records, so that records are torn and queues are short."""

COUNT = 400
"""Records of a source's subtask."""

ALIGNED = CheckpointSettings(interval_s=0.05)
UNALIGNED = CheckpointSettings(interval_s=0.05, unaligned=True)
TIMED = CheckpointSettings(interval_s=0.05, unaligned=True, aligned_timeout_s=0.02)
AT_LEAST_ONCE = CheckpointSettings(interval_s=0.05, exactly_once=False, max_concurrent=3)
SEVERAL = CheckpointSettings(interval_s=0.02, max_concurrent=3)
EXACT = pytest.mark.parametrize("settings", [ALIGNED, UNALIGNED, TIMED], ids=["aligned", "unaligned", "timed"])
WORKERS = pytest.mark.parametrize("workers", [1, 2], ids=["local", "memory"])


class Numbers:
    """A source: [subtask, number], a few at a time."""

    def __init__(self, count: int = COUNT, pause_s: float = 0.001, at_once: int = 7) -> None:
        self.next = 0
        self.count = count
        self.pause_s = pause_s
        self.at_once = at_once
        self.subtask = -1

    def open(self, context: TaskContext) -> None:
        self.subtask = context.subtask

    async def read(self) -> list[Any] | None:
        await trio.sleep(self.pause_s)
        if self.next == self.count:
            return None
        first, self.next = self.next, min(self.next + self.at_once, self.count)
        return [[self.subtask, number] for number in range(first, self.next)]

    def snapshot(self, unsent: int) -> int:
        return self.next - unsent

    def restore(self, states: list[Any]) -> None:
        (self.next,) = states


class Keep:
    """A keyed sink: keeps every record, by its key, so that a checkpoint tells what it has seen."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.pause_s = pause_s
        self.seen: dict[int, list[tuple[int, int]]] = {}

    async def process(self, record: Any, out: Output) -> None:
        if self.pause_s:
            await trio.sleep(self.pause_s)
        self.seen.setdefault(key_of(record), []).append((record[0], record[1]))

    def snapshot(self) -> Any:
        return {key: list(seen) for key, seen in self.seen.items()}

    def restore(self, states: list[Any]) -> None:
        (self.seen,) = states


class KeepFast(Keep):
    """The same, a batch at a time."""

    process_batch: Any

    def __init__(self) -> None:
        super().__init__()
        self.process_batch = self._process_batch

    def _process_batch(self, records: list[Any], out: Output) -> None:
        for record in records:
            self.seen.setdefault(key_of(record), []).append((record[0], record[1]))


class Forward:
    """An ordinary operator without state."""

    def process(self, record: Any, out: Output) -> None:
        out.collect(record)


def key_of(record: Any) -> int:
    number: int = record[1]
    return number % 11


async def at_once(function: Callable[[], Any]) -> Any:
    """Stands for a thread: virtual time would run away while one works."""
    await trio.lowlevel.checkpoint()
    return function()


def virtual(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs an async test in virtual time; what would hang fails after a virtual day."""

    @functools.wraps(test)
    def run(*arguments: Any, **keywords: Any) -> None:
        async def main() -> None:
            with trio.fail_after(86_400):
                await test(*arguments, **keywords)

        with all_home():
            trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    return run


@contextmanager
def all_home() -> Iterator[None]:
    """Every segment of every TaskManager that a worker opens is back when it is closed."""
    managers: list[TaskManager] = []
    original = netstack.runtime.worker.open_task_manager

    @asynccontextmanager
    async def opened(address: str, config: NetworkConfig) -> AsyncIterator[TaskManager]:
        async with original(address, config) as manager:
            managers.append(manager)
            yield manager

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(netstack.runtime.worker, "open_task_manager", opened)
        yield
    for manager in managers:
        assert manager.statistics().pool.lent_segments == 0


class Files(CheckpointFiles):
    """Does not wait for the disk; and the disk is full when that is asked for."""

    is_full = False

    def write(self, file: io.RawIOBase, data: memoryview) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(file, data)

    def sync(self, file: io.RawIOBase) -> None:
        """Left out."""

    def sync_folder(self, path: str) -> None:
        """Left out."""


def start(job: Job, *, files: Files | None = None, **keywords: Any) -> AbstractAsyncContextManager[JobRun]:
    storage = None if job.folder is None else CheckpointStorage(job.folder, keep=job.keep, files=files or Files())
    return open_job(job, in_thread=at_once, storage=storage, **keywords)


def job_of(
    folder: Path,
    settings: CheckpointSettings | None,
    *,
    source: Any = Numbers,
    sink: Any = Keep,
    parallelism: int = 2,
    through: bool = False,
    keep: int = 1000,
) -> Job:
    """Two sources, by key to some sinks; perhaps through an operator in between."""
    between = (TaskSpec("between", Forward, parallelism=2, inputs=(InputSpec("source"),)),) if through else ()
    return Job(
        tasks=(
            TaskSpec("source", source, parallelism=2),
            *between,
            TaskSpec(
                "sink",
                sink,
                parallelism=parallelism,
                inputs=(InputSpec("between" if through else "source", key=key_of, buffer_timeout_s=0.01),),
                keyed_state=True,
            ),
        ),
        checkpoints=settings,
        folder=str(folder),
        keep=keep,
        network=SMALL,
    )


EVERYTHING = Counter((subtask, number) for subtask in range(2) for number in range(COUNT))


def seen_in(storage: CheckpointStorage, checkpoint_id: int) -> Counter[tuple[int, int]]:
    """The records in the state of the sinks."""
    return Counter(
        (subtask, number)
        for snapshot in storage.read(checkpoint_id)
        if snapshot.task == "sink"
        for seen in snapshot.operator.values()
        for subtask, number in seen
    )


def check_cut(storage: CheckpointStorage, checkpoint_id: int) -> int:
    """What sinks have seen, and what was in flight, is what the sources had sent; returns how much was in flight."""
    arrived: dict[Any, bytes] = {}
    unsent: dict[Any, bytes] = {}
    sent: Counter[tuple[int, int]] = Counter()
    for snapshot in storage.read(checkpoint_id):
        arrived.update(snapshot.inputs)
        unsent.update(snapshot.outputs)
        if snapshot.task == "source":
            sent.update((snapshot.subtask, number) for number in range(snapshot.operator))
    in_flight: Counter[tuple[int, int]] = Counter()
    for channel in arrived.keys() | unsent.keys():
        for data in split_records(arrived.get(channel, b"") + unsent.get(channel, b"")):
            subtask, number = msgpack.unpackb(data)
            in_flight[subtask, number] += 1
    assert seen_in(storage, checkpoint_id) + in_flight == sent
    return in_flight.total()


def final(storage: CheckpointStorage) -> Counter[tuple[int, int]]:
    newest = storage.newest()
    assert newest is not None
    return seen_in(storage, newest.checkpoint_id)


# Clean cuts.


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [ALIGNED, SEVERAL, UNALIGNED, TIMED], ids=["aligned", "several", "unaligned", "timed"]
)
@WORKERS
@pytest.mark.parametrize("through", [False, True], ids=["straight", "through"])
@virtual
async def test_every_checkpoint_is_a_clean_cut(
    tmp_path: Path, settings: CheckpointSettings, workers: int, through: bool
) -> None:
    job = job_of(tmp_path, settings, sink=functools.partial(Keep, 0.001), through=through)
    async with start(job, workers=workers) as run:
        await run.wait()
    storage = CheckpointStorage(tmp_path)
    complete = [report.checkpoint_id for report in run.history if report.is_complete]
    assert len(complete) >= 3
    assert {report.reason.partition(":")[0] for report in run.history} <= {"", "subsumed"}
    assert settings is SEVERAL or len(complete) == len(run.history)
    in_flight = sum(check_cut(storage, checkpoint_id) for checkpoint_id in complete)
    assert (in_flight > 0) == settings.unaligned
    assert final(storage) == EVERYTHING


@virtual
async def test_at_least_once_loses_nothing(tmp_path: Path) -> None:
    job = job_of(tmp_path, AT_LEAST_ONCE, sink=functools.partial(Keep, 0.001))
    async with start(job) as run:
        await run.wait()
    storage = CheckpointStorage(tmp_path)
    # Final states for several checkpoints are written at the same time: at the end a newer one may be complete first.
    assert all(report.is_complete or report.reason.startswith("subsumed") for report in run.history)
    complete = [report for report in run.history if report.is_complete]
    assert len(complete) >= 4
    for report in complete:
        positions = {
            snapshot.subtask: snapshot.operator
            for snapshot in storage.read(report.checkpoint_id)
            if snapshot.task == "source"
        }
        sent = {(subtask, number) for subtask, position in positions.items() for number in range(position)}
        assert sent <= set(seen_in(storage, report.checkpoint_id))
    assert final(storage) == EVERYTHING


@virtual
async def test_batches_and_arrays_are_cut_as_cleanly(tmp_path: Path) -> None:
    job = job_of(tmp_path, UNALIGNED, sink=KeepFast)
    async with start(job, workers=2) as run:
        await run.wait()
    storage = CheckpointStorage(tmp_path)
    assert all(report.is_complete for report in run.history)
    for report in run.history:
        check_cut(storage, report.checkpoint_id)
    assert final(storage) == EVERYTHING


# Restarts.


@pytest.mark.slow
@EXACT
@virtual
async def test_a_restart_from_any_checkpoint_gives_the_same_counts(
    tmp_path: Path, settings: CheckpointSettings
) -> None:
    storage = CheckpointStorage(tmp_path, keep=1000)
    job = job_of(tmp_path, settings, sink=functools.partial(Keep, 0.002))
    async with start(job, workers=2) as run:
        await run.wait()
    complete = [report.checkpoint_id for report in run.history]
    for number, checkpoint_id in enumerate(complete[::3]):
        # With another parallelism each time; in flight is then somebody else's.
        again = job_of(tmp_path, settings, source=functools.partial(Numbers, pause_s=0.003), parallelism=number % 3 + 1)
        async with start(again, workers=2, restore=checkpoint_id) as run:
            assert run.restored_from == checkpoint_id
            await run.wait()
        for report in run.history:
            check_cut(storage, report.checkpoint_id)
        assert final(storage) == EVERYTHING


@pytest.mark.slow
@virtual
async def test_a_job_that_dies_again_and_again_goes_on_from_its_newest_checkpoint(tmp_path: Path) -> None:
    job = job_of(tmp_path, UNALIGNED, sink=functools.partial(Keep, 0.002), through=True)
    restored = []
    for lifetime_s in (0.02, 0.17, 0.23, 0.31, 86_400):
        with trio.move_on_after(lifetime_s):
            async with start(job, workers=2) as run:
                restored.append(run.restored_from)
                await run.wait()
    assert restored[:2] == [None, None]
    numbers = [number for number in restored if number is not None]
    assert len(numbers) == 3
    assert numbers == sorted(set(numbers))
    assert final(CheckpointStorage(tmp_path)) == EVERYTHING


@virtual
async def test_recovered_records_that_are_not_processed_yet_are_in_the_next_checkpoint(tmp_path: Path) -> None:
    storage = CheckpointStorage(tmp_path)
    slow = functools.partial(Keep, 0.5)
    settings = CheckpointSettings(unaligned=True)
    async with start(job_of(tmp_path, settings, sink=slow), workers=2) as run:
        await trio.sleep(5)
        first = await run.checkpoint()
    async with start(job_of(tmp_path, settings, sink=slow, parallelism=3), workers=2) as run:
        assert run.restored_from == first.checkpoint_id
        await trio.sleep(3)
        second = await run.checkpoint()
    assert check_cut(storage, first.checkpoint_id) > 100
    assert check_cut(storage, second.checkpoint_id) > 100
    assert seen_in(storage, second.checkpoint_id) > seen_in(storage, first.checkpoint_id)
    async with start(job_of(tmp_path, settings, parallelism=1)) as run:
        assert run.restored_from == second.checkpoint_id
        await run.wait()
    assert final(storage) == EVERYTHING


@virtual
async def test_a_job_that_has_ended_ends_again_at_once(tmp_path: Path) -> None:
    job = job_of(tmp_path, UNALIGNED)
    async with start(job) as run:
        await run.wait()
    began = trio.current_time()
    async with start(job) as run:
        assert run.restored_from is not None
        await run.wait()
    assert trio.current_time() - began < 0.05
    assert final(CheckpointStorage(tmp_path)) == EVERYTHING


class SumUp:
    """Emits what it has at the end; then it has nothing."""

    def __init__(self) -> None:
        self.count = 0

    def process(self, record: Any, out: Output) -> None:
        self.count += 1

    def finish(self, out: Output) -> None:
        for number in range(self.count):
            out.collect([0, number])
        self.count = 0

    def snapshot(self) -> int:
        return self.count

    def restore(self, states: list[Any]) -> None:
        self.count = sum(states)


@pytest.mark.slow
@virtual
async def test_what_is_emitted_at_the_end_comes_once_whatever_checkpoint_is_restored(tmp_path: Path) -> None:
    job = Job(
        tasks=(
            TaskSpec("source", Numbers, parallelism=2),
            TaskSpec("sum", SumUp, parallelism=2, inputs=(InputSpec("source"),)),
            TaskSpec("sink", functools.partial(Keep, 0.001), inputs=(InputSpec("sum", key=key_of),), keyed_state=True),
        ),
        checkpoints=UNALIGNED,
        folder=str(tmp_path),
        keep=1000,
        network=SMALL,
    )
    storage = CheckpointStorage(tmp_path, keep=1000)
    async with start(job, workers=2) as run:
        await run.wait()
    reports = run.history
    assert {report.is_complete for report in reports} == {True}
    expected = Counter({(0, number): 2 for number in range(COUNT)})
    assert final(storage) == expected
    during_the_end = 0
    for report in reports[::3]:
        during_the_end += bool(seen_in(storage, report.checkpoint_id))
        async with start(job, restore=report.checkpoint_id) as run:
            await run.wait()
        assert final(storage) == expected
    assert during_the_end >= 2


# Under back-pressure.


@WORKERS
@virtual
async def test_unaligned_checkpoints_do_not_wait_for_the_queue(tmp_path: Path, workers: int) -> None:
    storage = CheckpointStorage(tmp_path)
    settings = CheckpointSettings(unaligned=True)
    job = job_of(tmp_path, settings, sink=functools.partial(Keep, 1.0), through=True)
    async with start(job, workers=workers) as run:
        await trio.sleep(60)
        report = await run.checkpoint()
        assert report.is_complete
        # Each sink has to finish the record in hand; everybody else waits between two records.
        assert report.duration_s <= 1.0
        assert all(part.start_delay_s == part.alignment_s == 0 for part in report.subtasks if part.task != "sink")
        before = seen_in(storage, report.checkpoint_id).total()
        assert sum(part.input_bytes + part.output_bytes for part in report.subtasks) > 4 * 256
        again = await run.checkpoint()
        assert again.duration_s <= 1.0
        assert seen_in(storage, again.checkpoint_id).total() - before <= 4
    for part in (report, again):
        assert check_cut(storage, part.checkpoint_id) > 100


@virtual
async def test_aligned_checkpoints_wait_for_the_queue_and_timed_ones_not_longer_than_told(tmp_path: Path) -> None:
    durations = {}
    for name, settings in {
        "aligned": CheckpointSettings(),
        "timed": CheckpointSettings(unaligned=True, aligned_timeout_s=5.0),
    }.items():
        job = job_of(tmp_path / name, settings, sink=functools.partial(Keep, 1.0), through=True)
        async with start(job, workers=2) as run:
            await trio.sleep(60)
            report = await run.checkpoint()
        assert report.is_complete
        in_flight = check_cut(CheckpointStorage(tmp_path / name), report.checkpoint_id)
        assert (in_flight > 0) == (name == "timed")
        durations[name] = report.duration_s
    assert durations["aligned"] > 30
    assert 5 <= durations["timed"] <= 8


# Inputs and outputs.


@pytest.mark.slow
@EXACT
@WORKERS
@virtual
async def test_two_inputs_and_two_outputs(tmp_path: Path, settings: CheckpointSettings, workers: int) -> None:
    inputs: Counter[int] = Counter()

    class Join(Keep):
        context: TaskContext

        def open(self, context: TaskContext) -> None:
            self.context = context

        async def process(self, record: Any, out: Output) -> None:
            inputs[self.context.input] += 1
            await super().process(record, out)

    job = Job(
        tasks=(
            TaskSpec("source", Numbers, parallelism=2),
            TaskSpec("between", Forward, inputs=(InputSpec("source"),)),
            TaskSpec(
                "sink",
                functools.partial(Join, 0.001),
                parallelism=2,
                inputs=(InputSpec("source", key=key_of), InputSpec("between", key=key_of)),
                keyed_state=True,
            ),
        ),
        checkpoints=settings,
        folder=str(tmp_path),
        keep=1000,
        network=SMALL,
    )
    storage = CheckpointStorage(tmp_path, keep=1000)
    async with start(job, workers=workers) as run:
        await run.wait()
    assert inputs == {0: 2 * COUNT, 1: 2 * COUNT}
    twice = EVERYTHING + EVERYTHING
    assert final(storage) == twice
    middle = run.history[len(run.history) // 2]
    assert middle.is_complete
    async with start(job, workers=workers, restore=middle.checkpoint_id) as run:
        await run.wait()
    assert final(storage) == twice


@virtual
async def test_records_larger_than_all_buffers_pass(tmp_path: Path) -> None:
    class Large(Numbers):
        async def read(self) -> list[Any] | None:
            records = await super().read()
            return None if records is None else [[*record, b"x" * 5000] for record in records]

    job = job_of(tmp_path, UNALIGNED, source=functools.partial(Large, 20), through=True)
    async with start(job, workers=2) as run:
        await run.wait()
    assert {report.is_complete for report in run.history} == {True}
    assert final(CheckpointStorage(tmp_path)).total() == 40


# What goes wrong.


@EXACT
@virtual
async def test_a_full_disk_aborts_the_checkpoint_not_the_job(tmp_path: Path, settings: CheckpointSettings) -> None:
    files = Files()
    storage = CheckpointStorage(tmp_path)
    on_request = dataclasses.replace(settings, interval_s=None)
    async with start(job_of(tmp_path, on_request, through=True), workers=2, files=files) as run:
        reports = []
        for files.is_full in (False, True, True, False):
            await trio.sleep(0.005)
            reports.append(await run.checkpoint())
        await run.wait()
    assert [report.is_complete for report in reports] == [True, False, False, True]
    assert "No space left on device" in reports[1].reason
    for report in (reports[0], reports[3]):
        check_cut(storage, report.checkpoint_id)
    assert final(storage) == EVERYTHING


@virtual
async def test_state_that_cannot_be_stored_aborts_the_checkpoint(tmp_path: Path) -> None:
    class Odd(Keep):
        def snapshot(self) -> Any:
            return {1: object()}

    async with start(job_of(tmp_path, CheckpointSettings(), sink=Odd)) as run:
        report = await run.checkpoint()
        assert not report.is_complete
        assert "cannot be stored" in report.reason
        await run.wait()


@pytest.mark.slow
@EXACT
@virtual
async def test_a_checkpoint_that_takes_too_long_is_aborted_everywhere(
    tmp_path: Path, settings: CheckpointSettings
) -> None:
    patient = CheckpointSettings(
        interval_s=0.05,
        timeout_s=0.02,
        unaligned=settings.unaligned,
        aligned_timeout_s=1.0 if settings.aligned_timeout_s else 0.0,
    )
    job = job_of(tmp_path, patient, sink=functools.partial(Keep, 0.003), through=True)
    async with start(job, workers=2) as run:
        await run.wait()
    storage = CheckpointStorage(tmp_path)
    if settings is not UNALIGNED:
        assert sum("timed out" in report.reason for report in run.history) >= 3
    for report in run.history:
        if report.is_complete:
            check_cut(storage, report.checkpoint_id)
    assert final(storage) == EVERYTHING


@virtual
async def test_too_many_failed_checkpoints_fail_the_job_if_that_is_asked_for(tmp_path: Path) -> None:
    files = Files()
    files.is_full = True
    settings = CheckpointSettings(interval_s=0.01, tolerable_failures=2)
    with pytest.raises(JobFailed, match="3 checkpoints failed in a row"):
        async with start(job_of(tmp_path, settings), files=files) as run:
            await run.wait()


@WORKERS
@virtual
async def test_a_task_that_fails_is_named_and_ends_the_job(tmp_path: Path, workers: int) -> None:
    class Fail(Keep):
        async def process(self, record: Any, out: Output) -> None:
            await super().process(record, out)
            if record == [1, 200]:
                raise ValueError("not this one")

    job = job_of(tmp_path, UNALIGNED, sink=Fail, through=True)
    with pytest.raises(JobFailed, match=r"sink-\d failed: ValueError: not this one") as caught:
        async with start(job, workers=workers) as run:
            await run.wait()
    assert caught.value.task == "sink"
    assert isinstance(caught.value.__cause__, ValueError)
    async with start(job_of(tmp_path, UNALIGNED, through=True), workers=workers) as run:
        await run.wait()
    assert final(CheckpointStorage(tmp_path)) == EVERYTHING


@virtual
async def test_a_source_that_fails_and_a_sink_that_cannot_open(tmp_path: Path) -> None:
    class NoOpen(Keep):
        def open(self, context: TaskContext) -> None:
            raise OSError("no such table")

    class NoRead(Numbers):
        async def read(self) -> list[Any] | None:
            return []

    with pytest.raises(JobFailed, match="OSError: no such table"):
        async with start(job_of(tmp_path, None, sink=NoOpen), workers=2):
            raise AssertionError("never entered")
    with pytest.raises(JobFailed, match=r"source-\d failed: RecordError: source source-\d read nothing"):
        async with start(job_of(tmp_path, None, source=NoRead)) as run:
            await run.wait()


@virtual
async def test_a_checkpoint_that_somebody_waits_for_ends_with_the_job(tmp_path: Path) -> None:
    class Stuck(Keep):
        async def process(self, record: Any, out: Output) -> None:
            await trio.sleep(10)
            raise ValueError("stuck")

    async with start(job_of(tmp_path, CheckpointSettings(), sink=Stuck)) as run:
        await trio.sleep(1)
        report = await run.checkpoint()
        assert report.reason.startswith("task failed: sink-")
        with pytest.raises(JobFailed, match="stuck"):
            await run.checkpoint()
    assert run.history == [report]


@virtual
async def test_without_checkpoints_a_job_just_runs(tmp_path: Path) -> None:
    sinks: list[Keep] = []

    def sink() -> Keep:
        sinks.append(Keep())
        return sinks[-1]

    async with start(job_of(tmp_path, None, sink=sink)) as run:
        with pytest.raises(LocalProtocolError, match="takes no checkpoint"):
            await run.checkpoint()
        await run.wait()
    assert run.history == []
    assert run.statistics() is None
    seen = Counter(record for sink in sinks for records in sink.seen.values() for record in records)
    assert seen == EVERYTHING


@virtual
async def test_leaving_the_block_cancels(tmp_path: Path) -> None:
    async with start(job_of(tmp_path, UNALIGNED), workers=2) as run:
        await trio.sleep(0.02)
    with pytest.raises(LocalProtocolError, match="cancelled"):
        await run.wait()
    with pytest.raises(LocalProtocolError, match="cancelled"):
        await run.checkpoint()
    own = KeyError("of the caller")
    with pytest.raises(KeyError) as caught:
        async with start(job_of(tmp_path, UNALIGNED), workers=2):
            raise own
    assert caught.value is own


@virtual
async def test_what_a_cancelled_run_had_begun_is_removed(tmp_path: Path) -> None:
    settings = CheckpointSettings()
    async with start(job_of(tmp_path, settings, sink=functools.partial(Keep, 1.0))) as run:
        await trio.sleep(0.5)
        with trio.move_on_after(5):
            await run.checkpoint()
        assert [path.name for path in (tmp_path / "chk-00000001").iterdir()]  # the sources have written theirs
    assert [report.reason for report in run.history] == ["stopped: the job ends"]
    assert [*(tmp_path / "chk-00000001").iterdir()] == []  # only its number is left


@virtual
async def test_savepoints_are_aligned_and_kept(tmp_path: Path) -> None:
    job = job_of(tmp_path, UNALIGNED, sink=functools.partial(Keep, 0.001), keep=1)
    async with start(job) as run:
        await trio.sleep(0.08)
        report = await run.checkpoint(savepoint=True)
        await run.wait()
    assert report.is_savepoint
    assert report.is_complete
    storage = CheckpointStorage(tmp_path, keep=1)
    assert check_cut(storage, report.checkpoint_id) == 0
    async with start(job, restore=report.checkpoint_id) as run:
        await run.wait()
    assert final(storage) == EVERYTHING


@virtual
async def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    job = job_of(tmp_path, UNALIGNED)
    with pytest.raises(ConfigError, match="nowhere to keep"):
        async with start(Job(tasks=job.tasks, checkpoints=UNALIGNED)):
            raise AssertionError("never entered")
    with pytest.raises(ConfigError, match="no folder"):
        async with start(Job(tasks=job.tasks), restore=3):
            raise AssertionError("never entered")
    with pytest.raises(JobFailed, match="CheckpointStorageError") as caught:
        async with start(job, restore=99):
            raise AssertionError("never entered")
    assert isinstance(caught.value.__cause__, CheckpointStorageError)
    assert issubclass(CheckpointStorageError, CheckpointError)
    with pytest.raises(ConfigError, match="as many addresses"):
        async with start(job, workers=2, addresses=["memory://one"]):
            raise AssertionError("never entered")
