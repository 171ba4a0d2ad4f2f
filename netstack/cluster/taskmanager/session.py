"""The session of a JobManager at a TaskManager: the jobs that it opened, closed with the connection.

Takes: messages of a JobManager. Gives: jobs and their reports.

A job either runs in this process (`JobInProcess`) or in slot processes (`JobInSlots`); the session treats both alike.
Rules: a job belongs to the connection that opened it and is closed with it, so a dead JobManager leaves nothing behind.
A faulty peer can end only its own connection.
"""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol, final

import trio

from ...base.causes import root_cause
from ...base.errors import ConfigError, ErrorCode, NetstackError, RemoteProtocolError, RequestRefused
from ...base.text.limited_log import LimitedLog
from ...base.text.safe_text import safe_error, safe_text
from ...network.connection.authentication import prove_dialler
from ..control.codec import Message, Plain
from ..control.link import JOBMANAGER, TASKMANAGER, MessageLink, dial
from ..control.messages import AskDetails, AskStacks, AskStatistics, BlobPart, CloseJob, DropDataset, OpenJob, Refused
from ..control.reports import JobClosed, JobRefused, Stacks, Statistics
from ..control.threaded import open_threaded
from .blobs import BlobFetcher, BlobPlaces
from .config import TaskManagerConfig
from .datasets import KeptDatasets
from .slot_pool import SlotProcesses
from .statistics import shortened

LOGGER: Final = logging.getLogger("netstack.taskmanager")

JOBS_AT_MOST: Final = 256
"""Maximum number of jobs of one connection that are open or wait for memory."""

_STOPPING: Final = "the TaskManager is stopping"


class SessionJob(Protocol):
    """One job of a session."""

    job_id: str
    name: str
    reason: str
    """Why the job was closed."""
    refusal: str
    """Why the job was rejected or stopped; empty if it was only closed."""

    async def live(self) -> None:
        """Runs the job until all of its resources are released. Raises `NetstackError` if it cannot be opened."""

    def carry_out(self, message: Message) -> None:
        """Carries out a command. Raises `RemoteProtocolError` for an invalid one."""

    def close(self, reason: str) -> None:
        """Closes the job. Idempotent."""

    def refuse(self, why: str) -> None:
        """Closes the job because it was rejected or cannot continue; the first reason counts."""


class SessionHost(Protocol):
    """The TaskManager's interface for sessions."""

    blob_places: BlobPlaces
    datasets: KeptDatasets

    def make_job(self, message: OpenJob, link: MessageLink, blobs: BlobFetcher) -> SessionJob:
        """Creates a job for `SessionJob.live` and reserves its id. Raises `NetstackError` if it is rejected."""

    def remove_job(self, job: SessionJob) -> None:
        """Removes an ended job."""

    async def statistics(self) -> Plain:
        """Returns the statistics of the TaskManager."""

    async def stacks(self, job_id: str, sampled_s: float) -> Plain:
        """Returns the stacks of a job's tasks."""

    async def details(self) -> Plain:
        """Returns the details of all jobs."""


@final
class ControlSession:
    """A control connection of a JobManager after its greeting."""

    def __init__(self, link: MessageLink, host: SessionHost) -> None:
        self._link = link
        self._host = host
        self._jobs: dict[str, SessionJob] = {}
        self._blobs = BlobFetcher(link.send, host.blob_places.read)
        self._has_opened_jobs = False

    async def serve(self) -> None:
        """Serves the JobManager until the connection ends and all of its jobs are closed.

        Cancellation: closes every job of the session.
        """
        reason, level = _STOPPING, logging.DEBUG
        async with trio.open_nursery() as nursery:
            try:
                while True:
                    self._carry_out(await self._link.receive(), nursery)
            except NetstackError as error:
                reason = safe_error(error)
                level = logging.WARNING if isinstance(error, RequestRefused) else logging.DEBUG
            finally:
                self._blobs.lost(f"the connection to {self._link.peer} is lost")
                for job in list(self._jobs.values()):
                    job.close(reason)
        LOGGER.log(
            max(level, logging.INFO if self._has_opened_jobs else logging.DEBUG),
            "%s disconnected: %s",
            safe_text(self._link.peer),
            reason,
        )

    def _carry_out(self, message: Message, nursery: trio.Nursery) -> None:
        match message:
            case OpenJob():
                self._open(message, nursery)
            case CloseJob():
                job = self._jobs.get(message.job_id)
                if job is not None:
                    job.close("")
            case DropDataset():
                self._host.datasets.drop(message.key)
            case BlobPart():
                self._blobs.part(message)
            case AskStatistics():
                nursery.start_soon(tell_statistics, self._link, message.token, self._host.statistics)
            case AskDetails():
                nursery.start_soon(tell_statistics, self._link, message.token, self._host.details)
            case AskStacks():
                nursery.start_soon(self._tell_stacks, message)
            case _:
                job = self._jobs.get(job_of(message, self._link.peer))
                if job is not None:  # otherwise the job has ended
                    job.carry_out(message)

    def _open(self, message: OpenJob, nursery: trio.Nursery) -> None:
        try:
            if len(self._jobs) >= JOBS_AT_MOST:
                raise RequestRefused(
                    f"{JOBS_AT_MOST} jobs of this connection are open or wait here, the maximum; close some first"
                )
            job = self._host.make_job(message, self._link, self._blobs)
        except (NetstackError, TypeError) as error:
            self._link.send(JobRefused(message.job_id, explained(error)))
            return
        self._jobs[job.job_id] = job
        if not self._has_opened_jobs:
            self._has_opened_jobs = True
            LOGGER.info("%s opened its first job here", safe_text(self._link.peer))
        nursery.start_soon(self._live, job)

    async def _live(self, job: SessionJob) -> None:
        try:
            await job.live()
        except BaseException as error:
            root = root_cause(error)
            if not isinstance(root, Exception):
                job.close(_STOPPING)
                raise
            if not isinstance(root, NetstackError):
                LOGGER.exception("job %s (%s) failed with an internal error", job.job_id, job.name)
            job.refuse(explained(root))
        finally:
            del self._jobs[job.job_id]
            self._host.remove_job(job)
        self._link.send(JobRefused(job.job_id, job.refusal) if job.refusal else JobClosed(job.job_id, job.reason))

    async def _tell_stacks(self, message: AskStacks) -> None:
        self._link.send(Stacks(message.token, await self._host.stacks(message.job_id, message.sampled_s)))


async def tell_statistics(link: MessageLink, token: int, ask: Callable[[], Awaitable[Plain]]) -> None:
    """Answers a request for statistics."""
    document = await ask()
    try:
        link.send(Statistics(token, document))
    except ConfigError:  # with thousands of partitions it exceeds a frame
        link.send(Statistics(token, shortened(document)))


def job_of(message: Message, peer: str) -> str:
    """Returns the id of the job that a message concerns.

    Raises:
        RequestRefused: the message rejects this TaskManager.
        RemoteProtocolError: the message has no job id.
    """
    if isinstance(message, Refused):
        raise RequestRefused(f"{peer} rejected this TaskManager: {safe_text(message.text, 800)}")
    job_id: str | None = getattr(message, "job_id", None)
    if job_id is None:
        raise RemoteProtocolError(
            ErrorCode.UNEXPECTED_FRAME,
            f"{peer} sent {type(message).__name__}, which is not a message for a TaskManager",
        )
    return job_id


def explained(error: BaseException) -> str:
    """Returns the text of an error for the JobManager, without the class for errors written for users."""
    return str(error) if isinstance(error, RequestRefused | ConfigError) else safe_error(error)


_LEAST_BACKOFF_S: Final = 0.1
_MOST_BACKOFF_S: Final = 5.0


@final
class Registration:
    """The registration of a TaskManager at one JobManager; `run` maintains it, and repeats it after each loss.

    The link runs in its own thread, so that blocking user code does not delay heartbeats.

    Args:
        serve_driver: serves the JobManager at the other end of a link until the link is lost.
        processes: the slot processes, which must be ready first; None: tasks run in this process.
    """

    def __init__(
        self,
        config: TaskManagerConfig,
        facts: Callable[[], Plain],
        serve_driver: Callable[[MessageLink], Awaitable[None]],
        processes: SlotProcesses | None,
    ) -> None:
        self.count = 0
        self._config = config
        self._facts = facts
        self._serve_driver = serve_driver
        self._processes = processes
        self._log = LimitedLog(LOGGER, trio.current_time)

    async def run(self, address: str) -> None:
        """Registers at a JobManager and serves it, again after every loss, until cancelled."""
        backoff_s = _LEAST_BACKOFF_S
        while True:
            began_s = trio.current_time()
            try:
                await self._work_for(address)
            except BaseException as error:
                root = root_cause(error)
                if not isinstance(root, Exception):
                    raise
                if not isinstance(root, NetstackError | OSError):
                    self._log.log(
                        logging.ERROR,
                        "jobmanager broke",
                        f"JobManager {address}: internal error of this TaskManager",
                        error=root,
                    )
                self._log.log(
                    logging.WARNING, "jobmanager", f"JobManager {address}: {safe_error(root)}; connecting again"
                )
            if trio.current_time() - began_s > _MOST_BACKOFF_S:
                backoff_s = _LEAST_BACKOFF_S
            await trio.sleep(backoff_s * random.uniform(0.8, 1.2))  # spreads the connections of many TaskManagers
            backoff_s = min(2 * backoff_s, _MOST_BACKOFF_S)

    async def _work_for(self, address: str) -> None:
        """Runs one registration, from connecting to the loss of the JobManager."""
        if self._processes is not None:
            await self._processes.wait_ready()  # before the facts, which have their addresses: a taken port changes one
        secret = self._config.secret
        connect = partial(
            dial,
            address,
            role=TASKMANAGER,
            name=self._config.name or socket.gethostname(),
            facts=self._facts(),
            prove=None if secret is None else partial(prove_dialler, secret=secret),
            heartbeat_timeout_s=self._config.heartbeat_timeout_s,
            connect_timeout_s=self._config.handshake_timeout_s,
        )
        if self._processes is None and self._config.link_in_thread:
            async with open_threaded(connect) as threaded:
                await self._registered_at(threaded, threaded.greeting.role)
            return
        link, greeting = await connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            await self._registered_at(link, greeting.role)
            nursery.cancel_scope.cancel()

    async def _registered_at(self, link: MessageLink, role: str) -> None:
        if role != JOBMANAGER:
            raise RequestRefused(
                f"{link.peer} is a {safe_text(role)}, not a JobManager; give --jobmanager the address of a JobManager"
            )
        self.count += 1
        LOGGER.info("registered at JobManager %s", safe_text(link.peer))
        await self._serve_driver(link)
