"""A daemon from the outside: connect, open runs, deploy tasks, hear what they say.

Takes: `host:port` of a daemon. Gives: `DaemonClient`, and `RemoteRun`s on it.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeAlias, TypeVar, final
from urllib.parse import urlsplit

import trio

from .. import __version__
from ..config import NetworkConfig
from ..errors import ConnectionLost, DaemonRefused, NetstackError, RemoteProtocolError
from ..runtime.authentication import Secret, prove_dialler
from ..runtime.background import background_tasks
from ..transport import ByteStream, transport_for
from .build import build_of, own_build
from .clock import ClockSample, best_sample
from .invokables import root_package
from .link import DaemonLink
from .messages import (
    VERSION,
    AskStatistics,
    CloseRun,
    Deploy,
    Deployed,
    Message,
    OpenRun,
    Plain,
    Refused,
    RunClosed,
    RunOpened,
    RunRefused,
    Statistics,
    TaskDescriptor,
    TaskEnded,
    TaskFailed,
    TaskSaid,
    ToTask,
    config_document,
)
from .routing import check_run_id, write_route

CLOCK_SAMPLES: Final = 20
HEARTBEAT_TIMEOUT_S: Final = 10.0

_ANY: Final = ("0.0.0.0", "::")

RunEvent: TypeAlias = TaskSaid | TaskEnded | TaskFailed
_Kind = TypeVar("_Kind")


@final
class RemoteRun:
    """A run on one daemon; see `DaemonClient.open_run`.

    Attributes:
        run_id: 16 hex digits.
        host: `host:port` of the daemon, for messages.
        data_address: what `ChannelDescriptor`s name.
    """

    def __init__(self, link: DaemonLink, run_id: str, host: str, data_address: str) -> None:
        self.run_id = run_id
        self.host = host
        self.data_address = data_address
        self._link = link
        self._inbox, self._messages = trio.open_memory_channel[Message](float("inf"))
        self._events, self._pending = trio.open_memory_channel[RunEvent](float("inf"))
        self._error: NetstackError | None = None
        self._is_closed = False

    async def deploy(self, tasks: Sequence[TaskDescriptor]) -> None:
        """Creates and starts all tasks of this daemon; returns when they have started.

        Raises:
            DaemonRefused: one of them cannot be; the run is closed there.
            ConfigError: parameters that are no plain data, or a package that is not here.
            ConnectionLost: the daemon is gone.

        Cancellation: what the daemon makes of it is undone by `close`.
        """
        packages = sorted({root_package(task.invokable) for task in tasks})
        builds = {package: await trio.to_thread.run_sync(build_of, package) for package in packages}
        self._link.send(Deploy(self.run_id, builds, tuple(tasks)))
        await self._answer(Deployed)

    def tell(self, task: str, subtask: int, message: Plain) -> None:
        """Says something to a task, for its `receive`; one that has ended hears nothing."""
        self._link.send(ToTask(self.run_id, task, subtask, message))

    async def next_event(self) -> RunEvent:
        """What a task said, or how it ended, in order.

        Raises:
            ConnectionLost: the daemon is gone, or silent for the heartbeat timeout.
            DaemonRefused: the run was closed there.

        Cancellation: nothing is lost; ask again.
        """
        try:
            return await self._pending.receive()
        except trio.EndOfChannel:
            raise self._why() from None

    async def close(self) -> None:
        """Cancels what runs there and waits until everything of the run is released. Idempotent.

        Does not raise when the daemon is gone: then it released the run itself, or will when it notices.

        Cancellation: the daemon closes the run all the same.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._link.send(CloseRun(self.run_id))
        try:
            await self._answer(RunClosed)
        except (ConnectionLost, DaemonRefused, RemoteProtocolError):
            return

    # For the client.

    async def opened(self) -> None:
        """Waits for the daemon's answer to `OpenRun`."""
        await self._answer(RunOpened)

    def heard(self, message: Message) -> None:
        """The daemon said something about this run."""
        if isinstance(message, TaskSaid | TaskEnded | TaskFailed):
            self._events.send_nowait(message)
            return
        if isinstance(message, RunClosed):
            self.lost(DaemonRefused(f"{self.host} closed the run: {message.reason or 'it is over'}"))
        self._inbox.send_nowait(message)

    def lost(self, error: NetstackError) -> None:
        """No event will come any more."""
        if self._error is None:
            self._error = error
            self._events.close()

    def gone(self, error: NetstackError) -> None:
        """The connection is gone: nothing at all will come any more."""
        self.lost(error)
        self._inbox.close()

    async def _answer(self, kind: type[_Kind]) -> _Kind:
        while True:
            try:
                message = await self._messages.receive()
            except trio.EndOfChannel:
                raise self._why() from None
            if isinstance(message, kind):
                return message
            if isinstance(message, RunRefused):
                self.lost(DaemonRefused(f"{self.host}: {message.text}"))
                raise self._why()
            if isinstance(message, RunClosed):
                raise self._why()

    def _why(self) -> NetstackError:
        error = self._error or ConnectionLost(f"{self.host}: the connection is closed")
        return type(error)(*error.args)


@final
class DaemonClient:
    """A control connection; see `open_daemon`.

    Attributes:
        address: `host:port` as it was dialled.
        facts: what the daemon said of itself: build, version, slots, free_slots, memory_bytes, hostname, pid, python,
            cpus, kernel, allow.
    """

    def __init__(self, address: str, link: DaemonLink, facts: Plain) -> None:
        self.address = address
        self.facts = facts
        self._link = link
        self._runs: dict[str, RemoteRun] = {}
        self._tokens = itertools.count(1)
        self._statistics: dict[int, trio.MemorySendChannel[Plain]] = {}
        self._error: NetstackError | None = None

    async def measure_clock(self, samples: int = CLOCK_SAMPLES) -> ClockSample:
        """The daemon's CLOCK_MONOTONIC against ours; best while nothing else is on the wire.

        Raises:
            ConnectionLost: the daemon is gone.

        Cancellation: nothing is left behind.
        """
        exchanges = []
        for _ in range(samples):
            with trio.move_on_after(self._link.heartbeat_timeout_s) as silence:
                exchanges.append(await self._link.ping())
            self._check()
            if silence.cancelled_caught:
                raise ConnectionLost(f"{self.address} did not answer within {self._link.heartbeat_timeout_s:g} s")
        return best_sample(exchanges)

    async def open_run(
        self,
        run_id: str,
        *,
        name: str,
        slots: int,
        config: NetworkConfig,
        slot_timeout_s: float = 2 * HEARTBEAT_TIMEOUT_S,
    ) -> RemoteRun:
        """Reserves slots and memory and opens a TaskManager for a run.

        Args:
            run_id: 16 hex digits, the same on every daemon of the run.
            name: for people.
            slots: one holds a subtask of every task.
            config: of the run's TaskManager; `memory_bytes` is reserved.
            slot_timeout_s: how long to wait for what other runs hold; a run whose coordinator died holds it until the
                daemon has noticed.

        Raises:
            DaemonRefused: not enough slots or memory, or settings that cannot work there.
            ConnectionLost: the daemon is gone.

        Cancellation: the run is closed.
        """
        self._check()
        data = self._data_address()
        run = RemoteRun(self._link, check_run_id(run_id), self.address, data)
        self._runs[run_id] = run
        self._link.send(OpenRun(run_id, name, slots, slot_timeout_s, data, config_document(config)))
        try:
            await run.opened()
        except BaseException:
            self._link.send(CloseRun(run_id))
            raise
        return run

    async def statistics(self) -> Plain:
        """What the daemon says of itself and its runs; see `TaskManagerDaemon.statistics`.

        Raises:
            ConnectionLost: the daemon is gone.

        Cancellation: the answer is ignored when it comes.
        """
        self._check()
        token = next(self._tokens)
        send, receive = trio.open_memory_channel[Plain](1)
        self._statistics[token] = send
        self._link.send(AskStatistics(token))
        try:
            return await receive.receive()
        except trio.EndOfChannel:
            self._check()
            raise ConnectionLost(f"{self.address}: the connection is closed") from None
        finally:
            self._statistics.pop(token, None)

    async def listen(self) -> None:
        """Takes what the daemon says, until it is gone. Called by `open_daemon`."""
        try:
            while True:
                self._heard(await self._link.receive())
        except (ConnectionLost, RemoteProtocolError, DaemonRefused) as error:
            self._error = ConnectionLost(f"{self.address}: {error}")
            for run in self._runs.values():
                run.gone(self._error)
            for waiting in self._statistics.values():
                waiting.close()

    def _heard(self, message: Message) -> None:
        if isinstance(message, Refused):
            raise DaemonRefused(message.text)
        if isinstance(message, Statistics):
            waiting = self._statistics.pop(message.token, None)
            if waiting is not None:
                waiting.send_nowait(message.document)
        elif isinstance(message, RunOpened | RunRefused | RunClosed | Deployed | TaskSaid | TaskEnded | TaskFailed):
            run = self._runs.get(message.run_id)
            if run is not None:
                run.heard(message)
                if isinstance(message, RunClosed | RunRefused):
                    del self._runs[message.run_id]

    def _data_address(self) -> str:
        """Where its data port is, as seen from where it was reached."""
        data = urlsplit(str(self.facts.get("data") or ""))
        if not data.port:  # it has one port for everything
            return f"tcp://{self.address}"
        host = self.address.rpartition(":")[0] if data.hostname in _ANY else data.netloc.rpartition(":")[0]
        return f"tcp://{host}:{data.port}"

    def _check(self) -> None:
        if self._error is not None:
            raise ConnectionLost(str(self._error))


@asynccontextmanager
async def open_daemon(
    address: str,
    *,
    secret: Secret | None = None,
    name: str = "",
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    connect_timeout_s: float = 10.0,
) -> AsyncIterator[DaemonClient]:
    """Connects to a daemon's control or only port.

    Args:
        address: `host:port`, or a URL.
        secret: shared with the daemon.
        name: of this coordinator, for the daemon's log; the host's name if not given.
        heartbeat_timeout_s: a daemon that is silent for so long is lost; less if the daemon is less patient.
        connect_timeout_s: dialling, proof and greetings together.

    Raises:
        ConnectionLost: nobody answers.
        AuthenticationFailed: the secrets differ, or one end has none.
        DaemonRefused: it is another release.
        RemoteProtocolError: it is no daemon.

    Cancellation, and the end of the block: the connection ends, and with it every run that was opened over it.
    """
    url = address if "://" in address else f"tcp://{address}"
    place = url.partition("://")[2]
    stream: ByteStream | None = None
    try:
        try:
            with trio.fail_after(connect_timeout_s):
                stream = await transport_for(url).connect(url)
                link, facts = await _enter(stream, place, secret, name, heartbeat_timeout_s)
        except trio.TooSlowError:
            raise ConnectionLost(f"{place} did not answer within {connect_timeout_s:g} s") from None
        async with background_tasks() as nursery:
            client = DaemonClient(place, link, facts)
            nursery.start_soon(link.run)
            nursery.start_soon(client.listen)
            yield client
    finally:
        if stream is not None:
            stream.close()


async def _enter(
    stream: ByteStream, place: str, secret: Secret | None, name: str, heartbeat_timeout_s: float
) -> tuple[DaemonLink, Plain]:
    if secret is not None:
        await prove_dialler(stream, secret)
    await write_route(stream, None)
    link = DaemonLink(stream, heartbeat_timeout_s=heartbeat_timeout_s)
    build = f"{__version__}+{own_build()}"
    greeting = await link.greet(build, name or socket.gethostname(), {})
    if (greeting.version, greeting.build) != (VERSION, build):
        raise DaemonRefused(
            f"{place} runs netstack {greeting.build} with control protocol {greeting.version}, and this is {build} with"
            f" {VERSION}: install one release on every host, and restart the daemon"
        )
    told_s = greeting.facts.get("heartbeat_timeout_s")
    if isinstance(told_s, int | float) and told_s > 0:
        link.heartbeat_timeout_s = min(heartbeat_timeout_s, told_s)  # it wants to hear from us as often as that
    return link, greeting.facts
