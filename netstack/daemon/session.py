"""One control connection at the daemon: the runs it opened, and their end when it ends.

Takes: messages of a coordinator. Gives: runs, and what they say.

Rules: a run belongs to the connection that opened it. When that ends, for whatever reason, its runs are closed: a
coordinator that dies leaves nothing behind.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol, final

import trio

from ..errors import ConfigError, ConnectionLost, ErrorCode, NetstackError, RemoteProtocolError, RequestRefused
from ..runtime.causes import root_cause, told
from .link import DaemonLink
from .messages import (
    AskStatistics,
    CloseRun,
    Deploy,
    Message,
    OpenRun,
    Plain,
    RunClosed,
    RunRefused,
    Statistics,
    ToTask,
)
from .run import DaemonRun
from .slots import SlotPool
from .statistics import shortened

LOGGER: Final = logging.getLogger("netstack.daemon")


class RunHost(Protocol):
    """What a session needs of its daemon."""

    slots: SlotPool

    def make_run(self, message: OpenRun, link: DaemonLink) -> DaemonRun:
        """A run that waits for its slots; its id is taken. Raises `NetstackError` for one that cannot be."""

    def remove_run(self, run: DaemonRun) -> None:
        """It is over."""

    def statistics(self) -> Plain:
        """See `TaskManagerDaemon.statistics`."""


@final
class Session:
    """A control connection whose greetings are exchanged."""

    def __init__(self, link: DaemonLink, host: RunHost) -> None:
        self._link = link
        self._host = host
        self._runs: dict[str, DaemonRun] = {}

    async def serve(self) -> str:
        """Carries out what comes, until the connection ends; returns why it did, when no run of it is left.

        Cancellation: every run of the session is closed.
        """
        reason = "the daemon is stopping"
        async with trio.open_nursery() as nursery:
            try:
                while True:
                    self._carry_out(await self._link.receive(), nursery)
            except (ConnectionLost, RemoteProtocolError) as error:
                reason = str(error)
            finally:
                for run in self._runs.values():
                    run.close(reason)
        return reason

    def _carry_out(self, message: Message, nursery: trio.Nursery) -> None:
        match message:
            case OpenRun():
                self._open(message, nursery)
            case Deploy():
                run = self._runs.get(message.run_id)
                if run is not None:
                    run.deploy(message)
            case ToTask():
                run = self._runs.get(message.run_id)
                if run is not None:
                    run.tell(message.task, message.subtask, message.message)
            case CloseRun():
                run = self._runs.get(message.run_id)
                if run is not None:
                    run.close("")
            case AskStatistics():
                self._tell_statistics(message.token)
            case _:
                raise RemoteProtocolError(
                    ErrorCode.UNEXPECTED_FRAME,
                    f"{self._link.peer} sent what only a daemon says: {type(message).__name__}",
                )

    def _open(self, message: OpenRun, nursery: trio.Nursery) -> None:
        try:
            run = self._host.make_run(message, self._link)
        except (NetstackError, TypeError) as error:
            self._link.send(RunRefused(message.run_id, explained(error)))
            return
        self._runs[run.run_id] = run
        nursery.start_soon(self._live, run, message.slot_timeout_s)

    async def _live(self, run: DaemonRun, slot_timeout_s: float) -> None:
        """All of a run's life; says how it ended when nothing of it is left."""
        try:
            await run.live(self._host.slots, slot_timeout_s=slot_timeout_s)
        except BaseException as error:
            root = root_cause(error)
            if not isinstance(root, Exception):
                raise
            if not isinstance(root, NetstackError):
                LOGGER.exception("run %s (%s) broke", run.run_id, run.name)
            run.refuse(explained(root))
        finally:
            del self._runs[run.run_id]
            self._host.remove_run(run)
        refusal = run.refusal
        self._link.send(RunRefused(run.run_id, refusal) if refusal else RunClosed(run.run_id, run.reason))

    def _tell_statistics(self, token: int) -> None:
        document = self._host.statistics()
        try:
            self._link.send(Statistics(token, document))
        except ConfigError:  # thousands of partitions: more than a frame holds
            self._link.send(Statistics(token, shortened(document)))


def explained(error: BaseException) -> str:
    """An error as the coordinator is told it; those written for it need no class."""
    return str(error) if isinstance(error, RequestRefused | ConfigError) else told(error)
