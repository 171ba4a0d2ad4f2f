"""One control connection at the daemon: the runs it opened, and their end when it ends.

Takes: messages of a coordinator. Gives: runs, and what they say.

Rules: a run belongs to the connection that opened it. When that ends, for whatever reason, its runs are closed: a
coordinator that dies leaves nothing behind.
"""

from __future__ import annotations

from typing import Protocol, final

import trio

from ..errors import ConnectionLost, DaemonRefused, NetstackError, RemoteProtocolError
from ..runtime.causes import told
from .link import DaemonLink
from .messages import (
    AskStatistics,
    CloseRun,
    Deploy,
    Deployed,
    Message,
    OpenRun,
    Plain,
    RunClosed,
    RunOpened,
    RunRefused,
    Statistics,
    ToTask,
)
from .run import DaemonRun
from .slots import SlotPool


class RunHost(Protocol):
    """What a session needs of its daemon."""

    slots: SlotPool

    def make_run(self, message: OpenRun, link: DaemonLink) -> DaemonRun:
        """A run, not working yet. Raises `NetstackError` for one that cannot be."""

    def add_run(self, run: DaemonRun) -> None:
        """It works from now on."""

    def remove_run(self, run: DaemonRun) -> None:
        """It is over."""

    def statistics(self) -> Plain:
        """See `statistics.daemon_statistics`."""


@final
class Session:
    """A control connection whose greetings are exchanged."""

    def __init__(self, link: DaemonLink, host: RunHost) -> None:
        self._link = link
        self._host = host
        self._runs: dict[str, DaemonRun] = {}
        self._opening: dict[str, trio.CancelScope] = {}

    async def serve(self) -> str:
        """Carries out what comes, until the connection ends; returns why it did.

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
                for scope in self._opening.values():
                    scope.cancel()
                for run in self._runs.values():
                    run.close(reason)
        return reason

    def _carry_out(self, message: Message, nursery: trio.Nursery) -> None:
        match message:
            case OpenRun():
                nursery.start_soon(self._run, message)
            case Deploy():
                nursery.start_soon(self._deploy, message)
            case ToTask():
                run = self._runs.get(message.run_id)
                if run is not None:
                    run.tell(message.task, message.subtask, message.message)
            case CloseRun():
                self._close(message.run_id)
            case AskStatistics():
                self._link.send(Statistics(message.token, self._host.statistics()))
            case _:
                pass  # of a later release

    async def _run(self, message: OpenRun) -> None:
        """All of a run's life."""
        run_id = message.run_id
        reason = ""
        try:
            with trio.CancelScope() as self._opening[run_id]:
                run = self._host.make_run(message, self._link)
                memory_bytes = run.config.memory_bytes
                await self._host.slots.acquire(run.slots, memory_bytes, timeout_s=message.slot_timeout_s)
                try:
                    await self._hold(run)
                finally:
                    self._host.slots.release(run.slots, memory_bytes)
                reason = run.reason
        except (NetstackError, TypeError) as error:
            self._link.send(RunRefused(run_id, told(error) if not isinstance(error, DaemonRefused) else str(error)))
            return
        finally:
            self._opening.pop(run_id, None)
        self._link.send(RunClosed(run_id, reason))

    async def _hold(self, run: DaemonRun) -> None:
        self._runs[run.run_id] = run
        self._host.add_run(run)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(run.work)
                self._opening.pop(run.run_id, None)
                self._link.send(RunOpened(run.run_id))
        finally:
            self._host.remove_run(run)
            del self._runs[run.run_id]

    async def _deploy(self, message: Deploy) -> None:
        run = self._runs.get(message.run_id)
        if run is None:
            self._link.send(RunRefused(message.run_id, "there is no such run here; open it before you deploy"))
            return
        try:
            await run.deploy(message)
        except NetstackError as error:
            self._link.send(RunRefused(message.run_id, told(error)))
            run.close(told(error))
        else:
            self._link.send(Deployed(message.run_id))

    def _close(self, run_id: str) -> None:
        if run_id in self._opening:
            self._opening[run_id].cancel()
        elif run_id in self._runs:
            self._runs[run_id].close("")
        else:
            self._link.send(RunClosed(run_id, "it was over already"))
