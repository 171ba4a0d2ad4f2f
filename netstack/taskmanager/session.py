"""One control connection at a TaskManager: the jobs its other end opened, and their end when it ends.

Takes: messages of whoever drives jobs here. Gives: job scopes, and what they say.

Rules: a job belongs to the connection that opened it. When that ends, for whatever reason, its jobs are closed: a
driver that dies leaves nothing behind. What the other end says can end its own connection, nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, Protocol, final

import trio

from ..control.codec import Plain
from ..control.link import MessageLink
from ..control.messages import (
    AskDetails,
    AskStacks,
    AskStatistics,
    BlobKept,
    BlobPart,
    CloseJob,
    DropDataset,
    FetchBlob,
    JobClosed,
    JobRefused,
    Message,
    OpenJob,
    Refused,
    Stacks,
    Statistics,
)
from ..errors import ConfigError, ConnectionLost, ErrorCode, NetstackError, RemoteProtocolError, RequestRefused
from ..runtime.causes import root_cause
from ..shown import shown_error, shown_text
from .blob_places import BlobPlaces
from .blobs import BlobFetcher, BlobSender
from .datasets import KeptDatasets
from .environments import Environments
from .job_scope import JobScope
from .slots import TaskSlotTable
from .statistics import shortened

LOGGER: Final = logging.getLogger("netstack.taskmanager")

JOBS_AT_MOST: Final = 256
"""Of one connection, open or waiting for their slots: one client leaves room for others."""


class SessionHost(Protocol):
    """What a session needs of its TaskManager."""

    slots: TaskSlotTable
    environments: Environments
    datasets: KeptDatasets
    blob_places: BlobPlaces

    def make_scope(self, message: OpenJob, link: MessageLink, blobs: BlobFetcher) -> JobScope:
        """A job that waits for its slots; its id is taken. Raises `NetstackError` for one that cannot be."""

    async def blob_part(self, ask: FetchBlob) -> BlobPart:
        """See `TaskManager.blob_part`."""

    def remove_scope(self, scope: JobScope) -> None:
        """It is over."""

    def statistics(self) -> Plain:
        """See `TaskManager.statistics`."""

    def stacks(self, scope: JobScope | None) -> Plain:
        """See `TaskManager.stacks`."""

    def details(self, scopes: Iterable[JobScope]) -> Plain:
        """See `TaskManager.details`."""


@final
class ControlSession:
    """A control connection whose greetings are exchanged."""

    def __init__(self, link: MessageLink, host: SessionHost) -> None:
        self._link = link
        self._host = host
        self._scopes: dict[str, JobScope] = {}
        self._blobs = BlobFetcher(link.send, host.blob_places.read)
        self._sender = BlobSender(link, host.blob_part)
        self._is_told = False

    async def serve(self) -> None:
        """Carries out what comes, until the connection ends and no job of it is left.

        Cancellation: every job of the session is closed.
        """
        reason = "the TaskManager is stopping"
        async with trio.open_nursery() as nursery:
            try:
                while True:
                    self._carry_out(await self._link.receive(), nursery)
            except NetstackError as error:
                reason = shown_error(error)
            finally:
                self._blobs.lost(f"{self._link.peer} is gone")
                for scope in self._scopes.values():
                    scope.close(reason)
        LOGGER.log(
            logging.INFO if self._is_told else logging.DEBUG, "%s has gone: %s", shown_text(self._link.peer), reason
        )

    def _carry_out(self, message: Message, nursery: trio.Nursery) -> None:
        match message:
            case OpenJob():
                self._open(message, nursery)
            case CloseJob():
                scope = self._scopes.get(message.job_id)
                if scope is not None:
                    scope.close("")
            case DropDataset():
                self._host.datasets.drop(message.key)
            case BlobPart():
                self._blobs.part(message)
            case FetchBlob():
                nursery.start_soon(self._sender.asked, message)
            case BlobKept():
                pass  # of a TaskManager that has fetched a blob here
            case AskStatistics():
                self._tell(message.token, self._host.statistics())
            case AskStacks():
                self._link.send(Stacks(message.token, self._host.stacks(self._scopes.get(message.job_id))))
            case AskDetails():
                self._tell(message.token, self._host.details(self._scopes.values()))
            case _:
                scope = self._scopes.get(job_of(message, self._link.peer))
                if scope is not None:  # else it is over
                    scope.carry_out(message)

    def _open(self, message: OpenJob, nursery: trio.Nursery) -> None:
        try:
            if len(self._scopes) >= JOBS_AT_MOST:
                raise RequestRefused(f"{JOBS_AT_MOST} jobs of this connection are open or wait here; close some first")
            scope = self._host.make_scope(message, self._link, self._blobs)
        except (NetstackError, TypeError) as error:
            self._link.send(JobRefused(message.job_id, explained(error)))
            return
        self._scopes[scope.job_id] = scope
        if not self._is_told:  # of those that only ask nobody needs a line
            self._is_told = True
            LOGGER.info("%s drives jobs here", shown_text(self._link.peer))
        nursery.start_soon(self._live, scope, message.slot_timeout_s)

    async def _live(self, scope: JobScope, slot_timeout_s: float) -> None:
        """All of a job's life; says how it ended when nothing of it is left."""
        try:
            await scope.live(self._host.slots, self._host.environments, slot_timeout_s=slot_timeout_s)
        except BaseException as error:
            root = root_cause(error)
            if not isinstance(root, Exception):
                raise
            if not isinstance(root, NetstackError):
                LOGGER.exception("job %s (%s) broke", scope.job_id, scope.name)
            scope.refuse(explained(root))
        finally:
            del self._scopes[scope.job_id]
            self._host.remove_scope(scope)
        refusal = scope.refusal
        self._link.send(JobRefused(scope.job_id, refusal) if refusal else JobClosed(scope.job_id, scope.reason))

    def _tell(self, token: int, document: Plain) -> None:
        try:
            self._link.send(Statistics(token, document))
        except ConfigError:  # thousands of partitions: more than a frame holds
            self._link.send(Statistics(token, shortened(document)))


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
    """An error as the driver is told it; those written for it need no class."""
    return str(error) if isinstance(error, RequestRefused | ConfigError) else shown_error(error)
