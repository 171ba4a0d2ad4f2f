"""Partitions that are kept in files, as a TaskManager has them: with threads for the disk, and a folder of its own.

Takes: settings, the network's memory. Gives: a `KeptPartitionFactory`; no file is left at the end.

Rules: what touches the disk runs in its threads, never in the event loop; results come back in the loop.
"""

from __future__ import annotations

import os
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, final

import trio

from ..buffer.network_pool import NetworkBufferPool
from ..config import NetworkConfig
from ..errors import NetstackError, ShuffleStorageError
from ..ids import PartitionId
from ..shuffle.files import FOLDER_PREFIX, SealedFiles, ShuffleFolder
from ..shuffle.partition import KeptPartitionFactory
from .threads import in_thread
from .visits import Visits

THREADS: Final = 8
"""At most this many at once: two reads, and writes of several partitions, whose compression takes a processor each."""

_CLOSED: Final = "the network environment has closed"
_T = TypeVar("_T")


@final
class DiskDriver:
    """Runs jobs in threads (a `shuffle.reading.Disk`). Idle, it has neither a thread nor a task."""

    def __init__(self, nursery: trio.Nursery, prepare: Callable[[], None], visits: Visits) -> None:
        """Args: where its tasks live; what runs once before every job (it makes the folder); of the nursery's loop."""
        self._nursery = nursery
        self._visits = visits
        self._prepare = prepare
        self._is_prepared = False
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any, NetstackError | None], None]]] = deque()
        self._workers = 0
        self._is_closed = False

    async def run(self, work: Callable[[], _T]) -> _T:
        """Runs one job and waits for it, whatever else is under way; cancellation waits for its end."""
        result: _T = await in_thread(work)
        return result

    def prepare(self) -> None:
        """Has the preparation run now, if there was no job yet."""
        self.submit(_nothing, _ignore)

    def submit(self, work: Callable[[], _T], done: Callable[[_T | None, NetstackError | None], None]) -> None:
        """Runs a job, as `Disk` says; after the end of its nursery nothing runs any more, and `done` gets an error."""
        if self._is_closed:
            done(None, ShuffleStorageError(_CLOSED))
            return
        self._jobs.append((work, done))
        if self._workers < (THREADS if self._is_prepared else 1):
            self._workers += 1
            self._visits.soon(lambda: self._nursery.start_soon(self._work))

    async def _work(self) -> None:
        jobs = self._jobs
        error: NetstackError | None = None
        try:
            if not self._is_prepared:
                try:
                    await in_thread(self._prepare)
                except NetstackError as refused:
                    error = refused  # told to whoever has a job now; the next one tries again
                else:
                    self._is_prepared = True
                    for _ in range(min(THREADS, len(jobs)) - 1):
                        self._workers += 1
                        self._nursery.start_soon(self._work)
            while jobs:
                work, done = jobs.popleft()
                result: Any = None
                failed = error
                if failed is None:
                    try:
                        result = await in_thread(work)
                    except NetstackError as refused:
                        failed = refused
                    except trio.Cancelled:
                        done(None, ShuffleStorageError(_CLOSED))
                        raise
                done(result, failed)
        except trio.Cancelled:
            self._close()
            raise
        finally:
            self._workers -= 1

    def _close(self) -> None:
        """Fails what waits for a job that will not run: what it holds comes home."""
        self._is_closed = True
        while self._jobs:
            _, done = self._jobs.popleft()
            done(None, ShuffleStorageError(_CLOSED))


def _nothing() -> None:
    """The job of who only wants to be prepared."""


def _ignore(result: object, error: NetstackError | None) -> None:
    """Whoever has a real job will hear the same."""


@final
@dataclass(frozen=True, slots=True)
class KeptTogether:
    """How several processes of a TaskManager keep their partitions in one folder.

    Attributes:
        folder: its name; see `folder_name`.
        prefix: of the files of this process.
        hand_over: see `KeptPartitionFactory`.
    """

    folder: str
    prefix: str
    hand_over: Callable[[PartitionId, SealedFiles], None] | None


def folder_name() -> str:
    """A name for a folder that nobody else has."""
    return f"{FOLDER_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"


@final
class KeptPartitions:
    """Of one process.

    Attributes:
        factory: makes the partitions.
    """

    def __init__(
        self,
        config: NetworkConfig,
        network: NetworkBufferPool,
        nursery: trio.Nursery,
        visits: Visits,
        together: KeptTogether | None = None,
    ) -> None:
        """Touches no file yet; but what a dead process left in a folder that was set goes now, not when it is short."""
        together = together or KeptTogether(folder_name(), "", None)
        self._folder = ShuffleFolder(config.shuffle_directory, together.folder, together.prefix)
        self._disk = DiskDriver(nursery, self._folder.make, visits)
        self.factory = KeptPartitionFactory(config, network, self._disk, self._folder, together.hand_over)
        if config.shuffle_directory is not None:
            self._disk.prepare()

    @property
    def folder(self) -> str:
        """Where its files are; it exists as soon as there are some."""
        return self._folder.path

    async def close(self) -> None:
        """Removes every file of this process, also when cancelled; for the end, when no thread uses them any more."""
        if self._folder.is_made:
            with trio.CancelScope(shield=True):
                await self._disk.run(self._folder.remove)
