"""The connection of a JobManager at a TaskManager: the jobs that it opened, and their end when it ends.

Takes: messages of a JobManager. Gives: jobs, and what they say.

A job is here either itself (`JobScope`), or it is passed on to slots that are processes (`RelayedJob`); a session does
not care which. Rules: a job belongs to the connection that opened it. When that ends, for whatever reason, its jobs are
closed: a JobManager that dies leaves nothing behind. What the other end says can end its own connection, nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, final

import trio

from ..control.codec import Message, Plain
from ..control.link import MessageLink
from ..control.messages import AskDetails, AskStacks, AskStatistics, BlobPart, CloseJob, DropDataset, OpenJob, Refused
from ..control.reports import JobClosed, JobRefused, Stacks, Statistics
from ..errors import ConfigError, ConnectionLost, ErrorCode, NetstackError, RemoteProtocolError, RequestRefused
from ..runtime.causes import root_cause
from ..shown import shown_error, shown_text
from .blobs import BlobFetcher, BlobPlaces
from .statistics import shortened

LOGGER: Final = logging.getLogger("netstack.taskmanager")

JOBS_AT_MOST: Final = 256
"""Of one connection, open or waiting for memory."""

_STOPPING: Final = "the TaskManager is stopping"


class SessionJob(Protocol):
    """One job of a session."""

    job_id: str
    name: str
    reason: str
    """Why it was closed."""
    refusal: str
    """Why it cannot be, or cannot go on; empty for one that was merely closed."""

    async def live(self) -> None:
        """All of it, until nothing of it is left. Raises `NetstackError`: it cannot be."""

    def carry_out(self, message: Message) -> None:
        """Does what the JobManager wants of it. Raises `RemoteProtocolError`: that makes no sense."""

    def close(self, reason: str) -> None:
        """Ends it; idempotent."""

    def refuse(self, why: str) -> None:
        """Ends it because it cannot be, or cannot go on; the first reason counts."""


class SessionHost(Protocol):
    """What a session needs of its TaskManager."""

    blob_places: BlobPlaces

    def make_job(self, message: OpenJob, link: MessageLink, blobs: BlobFetcher) -> SessionJob:
        """A job that `SessionJob.live` runs; its id is reserved. Raises `NetstackError` for one that cannot be."""

    def remove_job(self, job: SessionJob) -> None:
        """It is over."""

    def drop_dataset(self, message: DropDataset) -> None:
        """Nobody needs a dataset any more."""

    async def statistics(self) -> Plain:
        """Implements `TaskManager.statistics`."""

    async def stacks(self, job_id: str, sampled_s: float) -> Plain:
        """Implements `TaskManager.stacks`."""

    async def details(self) -> Plain:
        """Implements `TaskManager.details`."""


@final
class ControlSession:
    """A control connection whose greetings are exchanged."""

    def __init__(self, link: MessageLink, host: SessionHost) -> None:
        self._link = link
        self._host = host
        self._jobs: dict[str, SessionJob] = {}
        self._blobs = BlobFetcher(link.send, host.blob_places.read)
        self._is_told = False

    async def serve(self) -> None:
        """Carries out what comes, until the connection ends and no job of it is left.

        Cancellation: every job of the session is closed.
        """
        reason = _STOPPING
        async with trio.open_nursery() as nursery:
            try:
                while True:
                    self._carry_out(await self._link.receive(), nursery)
            except NetstackError as error:
                reason = shown_error(error)
            finally:
                self._blobs.lost(f"{self._link.peer} is gone")
                for job in list(self._jobs.values()):
                    job.close(reason)
        LOGGER.log(
            logging.INFO if self._is_told else logging.DEBUG, "%s has gone: %s", shown_text(self._link.peer), reason
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
                self._host.drop_dataset(message)
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
                if job is not None:  # else it is over
                    job.carry_out(message)

    def _open(self, message: OpenJob, nursery: trio.Nursery) -> None:
        try:
            if len(self._jobs) >= JOBS_AT_MOST:
                raise RequestRefused(f"{JOBS_AT_MOST} jobs of this connection are open or wait here; close some first")
            job = self._host.make_job(message, self._link, self._blobs)
        except (NetstackError, TypeError) as error:
            self._link.send(JobRefused(message.job_id, explained(error)))
            return
        self._jobs[job.job_id] = job
        if not self._is_told:
            self._is_told = True
            LOGGER.info("%s sends jobs here", shown_text(self._link.peer))
        nursery.start_soon(self._live, job)

    async def _live(self, job: SessionJob) -> None:
        """All of a job's life; says how it ended when nothing of it is left."""
        try:
            await job.live()
        except BaseException as error:
            root = root_cause(error)
            if not isinstance(root, Exception):
                job.close(_STOPPING)
                raise
            if not isinstance(root, NetstackError):
                LOGGER.exception("job %s (%s) broke", job.job_id, job.name)
            job.refuse(explained(root))
        finally:
            del self._jobs[job.job_id]
            self._host.remove_job(job)
        self._link.send(JobRefused(job.job_id, job.refusal) if job.refusal else JobClosed(job.job_id, job.reason))

    async def _tell_stacks(self, message: AskStacks) -> None:
        self._link.send(Stacks(message.token, await self._host.stacks(message.job_id, message.sampled_s)))


async def tell_statistics(link: MessageLink, token: int, ask: Callable[[], Awaitable[Plain]]) -> None:
    """Answers a question for statistics."""
    document = await ask()
    try:
        link.send(Statistics(token, document))
    except ConfigError:  # thousands of partitions: more than a frame holds
        link.send(Statistics(token, shortened(document)))


def job_of(message: Message, peer: str) -> str:
    """The id of the job that a message is about.

    Raises:
        ConnectionLost: the message refuses this TaskManager.
        RemoteProtocolError: it is about no job, and nothing that is sent to a TaskManager.
    """
    if isinstance(message, Refused):
        raise ConnectionLost(f"{peer} refused this TaskManager: {shown_text(message.text, 800)}")
    job_id: str | None = getattr(message, "job_id", None)
    if job_id is None:
        raise RemoteProtocolError(
            ErrorCode.UNEXPECTED_FRAME, f"{peer} sent what nobody says to a TaskManager: {type(message).__name__}"
        )
    return job_id


def explained(error: BaseException) -> str:
    """The text of an error for the JobManager; those written for it need no class."""
    return str(error) if isinstance(error, RequestRefused | ConfigError) else shown_error(error)
