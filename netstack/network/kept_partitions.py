"""Partitions stored in files, for one TaskManager: disk threads and a folder of its own.

Takes: settings, the network's memory. Gives: a `KeptPartitionFactory`. All files are removed at the end.

Rules: everything that touches the disk runs in threads, never in the event loop; results are delivered in the loop.
"""

from __future__ import annotations

import os
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, final

import trio

from ..base.config import NetworkConfig
from ..base.errors import NetstackError, ShuffleStorageError
from ..base.ids import PartitionId
from ..exchange.buffer.pools import NetworkBufferPool
from ..exchange.stored.files import FOLDER_PREFIX, SealedFiles, ShuffleFolder
from ..exchange.stored.partition import KeptPartitionFactory
from .waiting.loop_lock import LoopLock
from .waiting.threads import in_thread

THREADS: Final = 8
"""The most threads at once: two reads, and writes of several partitions, each of which may compress on a processor."""

_CLOSED: Final = "the network environment has closed"
_T = TypeVar("_T")


@final
class DiskDriver:
    """Runs jobs in threads (a `exchange.stored.reading.Disk`). While idle it has neither threads nor tasks.

    Args:
        prepare: runs once before the first job; it creates the folder.
    """

    def __init__(self, nursery: trio.Nursery, prepare: Callable[[], None], loop_lock: LoopLock) -> None:
        self._nursery = nursery
        self._loop_lock = loop_lock
        self._prepare = prepare
        self._is_prepared = False
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any, NetstackError | None], None]]] = deque()
        self._workers = 0
        self._is_closed = False

    async def run(self, work: Callable[[], _T]) -> _T:
        """Runs one job and waits for it, independently of other jobs; cancellation waits for its end."""
        result: _T = await in_thread(work)
        return result

    def prepare(self) -> None:
        """Runs the preparation now, unless a job ran before."""
        self.submit(_nothing, _ignore)

    def submit(self, work: Callable[[], _T], done: Callable[[_T | None, NetstackError | None], None]) -> None:
        """Runs a job, as `Disk` documents; after the nursery has ended, `done` gets an error."""
        if self._is_closed:
            done(None, ShuffleStorageError(_CLOSED))
            return
        self._jobs.append((work, done))
        if self._workers < (THREADS if self._is_prepared else 1):
            self._workers += 1
            self._loop_lock.soon(self._start)

    def _start(self) -> None:
        try:
            self._nursery.start_soon(self._work)
        except RuntimeError:  # the nursery ended while no job ran, so no worker was cancelled
            self._workers -= 1
            self._close()

    async def _work(self) -> None:
        jobs = self._jobs
        error: NetstackError | None = None
        try:
            if not self._is_prepared:
                try:
                    await in_thread(self._prepare)
                except NetstackError as refused:
                    error = refused  # fails the waiting jobs; the next job retries the preparation
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
        """Fails the waiting jobs, so that their buffers return to the pools."""
        self._is_closed = True
        while self._jobs:
            _, done = self._jobs.popleft()
            done(None, ShuffleStorageError(_CLOSED))


def _nothing() -> None:
    """A job that only causes the preparation."""


def _ignore(result: object, error: NetstackError | None) -> None:
    """Ignores a failed preparation: the next job reports it."""


@final
@dataclass(frozen=True, slots=True)
class KeptTogether:
    """The folder that several processes of a TaskManager share for their partitions.

    Attributes:
        prefix: of the file names of this process.
        hand_over: passes the files of a finished partition to the process that serves them; see `KeptPartitionFactory`.
    """

    folder: str
    prefix: str
    hand_over: Callable[[PartitionId, SealedFiles], None] | None


def folder_name() -> str:
    """Returns a unique name for a folder."""
    return f"{FOLDER_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"


@final
class KeptPartitions:
    """The stored partitions of one process."""

    def __init__(
        self,
        config: NetworkConfig,
        network: NetworkBufferPool,
        nursery: trio.Nursery,
        loop_lock: LoopLock,
        together: KeptTogether | None = None,
    ) -> None:
        """Creates no file. In a configured folder it removes files of dead processes now, before space is short."""
        together = together or KeptTogether(folder_name(), "", None)
        self._folder = ShuffleFolder(config.shuffle_directory, together.folder, together.prefix)
        self._disk = DiskDriver(nursery, self._folder.make, loop_lock)
        self.factory = KeptPartitionFactory(config, network, self._disk, self._folder, together.hand_over)
        if config.shuffle_directory is not None:
            self._disk.prepare()

    @property
    def folder(self) -> str:
        """The folder of its files, which is created with the first file."""
        return self._folder.path

    async def close(self) -> None:
        """Removes all files of this process, even if cancelled; to be called when no thread uses them."""
        if self._folder.is_made:
            with trio.CancelScope(shield=True):
                await self._disk.run(self._folder.remove)
