"""Jobs to be cut, restarted and broken: numbers by key into sinks that keep them, in virtual time."""

from __future__ import annotations

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

import netstack.job.worker
from netstack.checkpoint.coordinator import CheckpointSettings
from netstack.checkpoint.files import CheckpointFiles
from netstack.checkpoint.recovery import split_records
from netstack.checkpoint.storage import CheckpointStorage
from netstack.config import NetworkConfig
from netstack.job.master import JobRun, open_job
from netstack.job.operators import Output, TaskContext
from netstack.job.spec import InputSpec, Job, TaskSpec
from netstack.runtime.network_environment import NetworkEnvironment

SMALL = NetworkConfig(segment_size_bytes=256, memory_bytes=256 * 400)
"""Buffers of about 30 records, so that records are torn and queues are short."""
COUNT = 400
"""Records of a source's subtask."""
ALIGNED = CheckpointSettings(interval_s=0.05)
UNALIGNED = CheckpointSettings(interval_s=0.05, unaligned=True)
TIMED = CheckpointSettings(interval_s=0.05, unaligned=True, aligned_timeout_s=0.02)
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
    managers: list[NetworkEnvironment] = []
    original = netstack.job.worker.open_task_manager

    @asynccontextmanager
    async def opened(address: str, config: NetworkConfig) -> AsyncIterator[NetworkEnvironment]:
        async with original(address, config) as manager:
            managers.append(manager)
            yield manager

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(netstack.job.worker, "open_task_manager", opened)
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
