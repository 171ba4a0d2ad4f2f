"""Runs jobs: the master of one or more workers, in this process or in others, and the checkpoints of what they run.

Takes: a `Job`. Gives: its runs, each either to its end or to the error that ended it, and a report of every checkpoint.

A job is restarted by running it again: `restore` finds the newest complete checkpoint. What a failed run has left, in
this process or in others, is gone before `open_job` returns.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, final

import trio

from ..checkpoint.storage import CheckpointStorage
from ..errors import ConfigError, ConnectionLost, LocalProtocolError, RemoteProtocolError
from ..runtime.signal import Signal
from ..transport import ByteStream, Listener, transport_for
from .checkpoints import CheckpointReport
from .control import ControlLink, local_links
from .control_stream import StreamLink
from .run import JobFailed, JobRun
from .spec import Job
from .task_checkpoints import InThread
from .worker import in_thread, serve

LOGGER: Final = logging.getLogger("netstack")

GREETING_TIMEOUT_S: Final = 10.0
"""How long whoever dials a master may take to say who it is."""

_IN_MEMORY: Final = itertools.count(1)
"""Names of memory:// addresses are unique in a process."""

__all__ = ["CheckpointReport", "JobFailed", "JobMaster", "JobRun", "open_job", "open_job_master"]


@final
class JobMaster:
    """Runs jobs on the workers that have joined it, one after the other.

    Attributes:
        address: the URL workers join; empty where all are in this process.
    """

    def __init__(self, address: str, nursery: trio.Nursery, in_thread: InThread) -> None:
        """Called by `open_job_master` and `open_job`."""
        self.address = address
        self._nursery = nursery
        self._in_thread = in_thread
        self._links: dict[str, ControlLink] = {}
        self._joined = Signal()
        self._run: JobRun | None = None
        self._run_links: list[ControlLink] = []
        self._attempts = itertools.count(1)

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of the workers that are joined, sorted: a `TaskSpec`'s `workers` are places in this list."""
        return tuple(sorted(self._links))

    async def wait_workers(self, count: int) -> None:
        """Waits until so many workers are joined. Cancellation: nothing changed."""
        await trio.lowlevel.checkpoint()
        while len(self._links) < count:
            await self._joined.wait()

    @asynccontextmanager
    async def open_job(
        self, job: Job, *, restore: bool | int = True, storage: CheckpointStorage | None = None
    ) -> AsyncIterator[JobRun]:
        """Runs a job on all workers: `async with master.open_job(job) as run: await run.wait()`.

        Entered when all of its tasks run. Leaving the block cancels whatever still runs; workers stay joined.

        Args:
            job: the job.
            restore: True goes on from the newest complete checkpoint of the job's folder, from the start if there is
                none; False starts from the start; a number goes on from that checkpoint.
            storage: of the checkpoints; None is the job's folder.

        Raises:
            JobFailed: it could not be started. Later failures are raised by `run.wait()`.
            LocalProtocolError: no worker, or a job runs already.
            ConfigError: the job cannot be run here, or a checkpoint is wanted and there is no folder.
            CheckpointStorageError: the folder cannot be read.
        """
        if self._run is not None or not self._links:
            raise LocalProtocolError(
                "a master runs one job at a time, on one worker or more;"
                f" job {job.name!r} found {len(self._links)} workers" + (", and a job" if self._run is not None else "")
            )
        if storage is None and job.folder is not None:
            storage = CheckpointStorage(job.folder, keep=job.keep)
        if job.checkpoints is not None and storage is None:
            raise ConfigError(f"job {job.name!r} takes checkpoints and has nowhere to keep them; give it a folder")
        checkpoint_id = await self._choose(restore, storage)
        links = self._run_links = [self._links[name] for name in self.workers]
        async with _nursery_for_callers() as nursery:
            run = self._run = JobRun(job, next(self._attempts), links, storage, nursery, self._in_thread)
            try:
                await run.start(checkpoint_id)
                yield run
            finally:
                with trio.CancelScope(shield=True):
                    await run.stop()
                self._run = None

    async def _choose(self, restore: bool | int, storage: CheckpointStorage | None) -> int | None:
        """The checkpoint to go on from; clears away what earlier runs left half written."""
        if storage is None:
            if restore is not True and restore is not False:
                raise ConfigError(f"restore={restore}: the job has no folder to find that checkpoint in")
            return None
        found: int | None = None
        if restore is True:
            newest = await self._in_thread(storage.newest)
            found = None if newest is None else newest.checkpoint_id
        elif restore is not False:
            found = restore
        await self._in_thread(lambda: storage.prune(incomplete=True))
        return found

    # Workers come and go.

    async def attach(self, name: str, link: ControlLink) -> None:
        """A worker has joined; returns when it is gone."""
        self._links[name] = link
        self._joined.wake()
        cause = "the master is closing"
        try:
            while True:
                message = await link.receive()
                if self._run is not None and link in self._run_links:
                    self._run.on_message(self._run_links.index(link), message)
        except (ConnectionLost, RemoteProtocolError) as error:
            cause = str(error)
        finally:
            del self._links[name]
            link.close()
            if self._run is not None and link in self._run_links:
                self._run.worker_lost(self._run_links.index(link), cause)

    async def accept(self, listener: Listener) -> None:
        """Lets workers join, until cancelled."""
        while True:
            stream = await listener.accept()
            self._nursery.start_soon(self._welcome, stream)

    async def _welcome(self, stream: ByteStream) -> None:
        link = StreamLink(stream)
        try:
            with trio.fail_after(GREETING_TIMEOUT_S):
                name = await link.greet("the master")
        except (ConnectionLost, RemoteProtocolError, trio.TooSlowError, trio.ClosedResourceError) as error:
            LOGGER.warning("%s did not join: %s", link.peer, error)
            link.close()
            return
        if name in self._links:
            LOGGER.warning("%s did not join: a worker of this name is joined; give each a name of its own", link.peer)
            link.close()
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            await self.attach(name, link)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_job_master(address: str) -> AsyncIterator[JobMaster]:
    """Opens a master that workers in other processes join: `async with open_job_master("tcp://127.0.0.1:0") as master`.

    Args:
        address: where they join (`run_worker`); port 0 picks a free one, see `JobMaster.address`. Whoever can reach it
            can join: keep it inside.

    Raises:
        OSError: the address cannot be bound.

    Leaving the block ends all connections, and so the workers.
    """
    listener = await transport_for(address).listen(address)
    try:
        async with _nursery_for_callers() as nursery:
            master = JobMaster(listener.address, nursery, in_thread)
            nursery.start_soon(master.accept, listener)
            yield master
    finally:
        listener.close()


@asynccontextmanager
async def open_job(
    job: Job,
    *,
    workers: int = 1,
    addresses: Sequence[str] | None = None,
    restore: bool | int = True,
    storage: CheckpointStorage | None = None,
    in_thread: InThread = in_thread,
) -> AsyncIterator[JobRun]:
    """Runs a job in this process: `async with open_job(job) as run: await run.wait()`.

    Args:
        job: the job; its operators and keys may be objects.
        workers: how many TaskManagers it is spread over. Tasks of one exchange records in memory.
        addresses: of these, one each; None keeps within the process (`memory://`).
        restore: see `JobMaster.open_job`.
        storage: likewise.
        in_thread: runs what blocks.

    Raises:
        JobFailed, ConfigError, CheckpointStorageError: as `JobMaster.open_job`.
    """
    if addresses is None:
        number = next(_IN_MEMORY)
        addresses = [f"memory://job-{number}-{index}" for index in range(workers)]
    if workers < 1 or len(addresses) != workers:
        raise ConfigError(f"workers={workers} with {len(addresses)} addresses; give at least 1, and as many addresses")
    async with _nursery_for_callers() as nursery:
        master = JobMaster("", nursery, in_thread)
        for index, address in enumerate(addresses):
            name = f"worker-{index:05}"  # their order is that of their names
            ours, theirs = local_links(name)
            nursery.start_soon(master.attach, name, ours)
            nursery.start_soon(partial(serve, theirs, address, storage=storage, in_thread=in_thread))
        await master.wait_workers(workers)
        async with master.open_job(job, restore=restore, storage=storage) as run:
            yield run


@asynccontextmanager
async def _nursery_for_callers() -> AsyncIterator[trio.Nursery]:
    """A nursery that is cancelled at the end of the block; what the block raises leaves as it is, not in a group."""
    failed: BaseException | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except trio.Cancelled:
            raise
        except BaseException as error:
            failed = error
        finally:
            nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed
