"""A daemon from the outside: connect, open runs, deploy tasks, hear what they say.

Takes: `host:port` of a daemon. Gives: `DaemonClient`, and `RemoteRun`s on it.
"""

from __future__ import annotations

import itertools
import math
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeAlias, final
from urllib.parse import urlsplit

import trio

from ..config import NetworkConfig
from ..errors import ConfigError, ConnectionLost, LocalProtocolError, NetstackError, RemoteProtocolError, RequestRefused
from ..runtime.authentication import Secret, prove_dialler
from ..runtime.background import background_tasks
from ..transport import ByteStream, transport_for
from ..version import __version__
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
    check_said,
    config_document,
)
from .routing import check_run_id, write_route

CLOCK_SAMPLES: Final = 20
HEARTBEAT_TIMEOUT_S: Final = 10.0

_ANY: Final = ("0.0.0.0", "::")

EVENTS_AT_MOST: Final = 1 << 16
"""A coordinator that leaves so many untaken has forgotten the run."""

RunEvent: TypeAlias = TaskSaid | TaskEnded | TaskFailed
RunMessage: TypeAlias = RunEvent | RunOpened | RunRefused | RunClosed | Deployed


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
        self._inbox, self._messages = trio.open_memory_channel[RunOpened | Deployed](math.inf)
        self._events, self._pending = trio.open_memory_channel[RunEvent](EVENTS_AT_MOST)
        self._error: NetstackError | None = None
        self._over = trio.Event()

    async def deploy(self, tasks: Sequence[TaskDescriptor]) -> None:
        """Creates and starts all tasks of this daemon; returns when they have started.

        Raises:
            RequestRefused: one of them cannot be; the run is closed there.
            ConfigError: parameters that are no plain data or too large, or a package that is not here.
            ConnectionLost: the daemon is gone.

        Cancellation: what the daemon makes of it is undone by `close`.
        """
        packages = sorted({root_package(task.invokable) for task in tasks})
        builds = {package: await trio.to_thread.run_sync(build_of, package) for package in packages}
        self._link.send(Deploy(self.run_id, builds, tuple(tasks)))
        await self._answer()

    def tell(self, task: str, subtask: int, message: Plain) -> None:
        """Says something to a task, for its `receive`; one that has ended hears nothing.

        Raises:
            ConfigError: it is no dict of plain data, or too large.
        """
        self._link.send(ToTask(self.run_id, task, subtask, check_said(message)))

    async def next_event(self) -> RunEvent:
        """What a task said, or how it ended, in order.

        Raises:
            ConnectionLost: the daemon is gone, or silent for the heartbeat timeout.
            RequestRefused: the run was closed there.
            LocalProtocolError: events came faster than they were taken; the run is closed.

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
        if not self._over.is_set():
            self._link.send(CloseRun(self.run_id))
        await self._over.wait()

    # For the client.

    async def opened(self) -> None:
        """Waits for the daemon's answer to `OpenRun`; raises as `DaemonClient.open_run`."""
        await self._answer()

    def heard(self, message: RunMessage) -> None:
        """The daemon said something about this run."""
        match message:
            case RunClosed():
                self.gone(RequestRefused(f"{self.host} closed the run: {message.reason or 'it is over'}"))
            case RunRefused():
                self.gone(RequestRefused(f"{self.host}: {message.text}"))
            case RunOpened() | Deployed():
                self._inbox.send_nowait(message)
            case _ if self._error is None:
                self._take(message)

    def gone(self, error: NetstackError) -> None:
        """Nothing of it is left there, or the connection is gone: nothing at all will come any more."""
        self._fail(error)
        self._inbox.close()
        self._over.set()

    def _take(self, event: RunEvent) -> None:
        try:
            self._events.send_nowait(event)
        except trio.WouldBlock:
            self._fail(LocalProtocolError(f"{self.host}: {EVENTS_AT_MOST} events wait to be taken; call next_event"))
            self._link.send(CloseRun(self.run_id))

    def _fail(self, error: NetstackError) -> None:
        if self._error is None:
            self._error = error
            self._events.close()

    async def _answer(self) -> None:
        """Waits for the next one: a run is opened first, then its deployments are answered in order."""
        try:
            await self._messages.receive()
        except trio.EndOfChannel:
            raise self._why() from None

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

    def __init__(self, url: str, link: DaemonLink, facts: Plain) -> None:
        self.address = url.partition("://")[2]
        self._url = url
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
            ConfigError: not even one sample.

        Cancellation: nothing is left behind.
        """
        if samples < 1:
            raise ConfigError(f"samples={samples}; the least is 1")
        self._check()
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
            RequestRefused: not enough slots or memory, or settings that cannot work there.
            ConnectionLost: the daemon is gone.

        Cancellation: the run is closed.
        """
        self._check()
        if check_run_id(run_id) in self._runs:
            raise RequestRefused(
                f"{self.address}: run {run_id} is open over this connection already; choose another id"
            )
        data = self._data_address()
        run = RemoteRun(self._link, run_id, self.address, data)
        self._link.send(OpenRun(run_id, name, slots, slot_timeout_s, data, config_document(config)))
        self._runs[run_id] = run
        try:
            await run.opened()
        except (trio.Cancelled, KeyboardInterrupt):
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
        except (ConnectionLost, RemoteProtocolError, RequestRefused) as error:
            self._error = ConnectionLost(f"{self.address}: {error}")
            self._link.give_up()
            for run in self._runs.values():
                run.gone(self._error)
            for waiting in self._statistics.values():
                waiting.close()

    def _heard(self, message: Message) -> None:
        if isinstance(message, Refused):
            raise RequestRefused(message.text)
        if isinstance(message, Statistics):
            waiting = self._statistics.pop(message.token, None)
            if waiting is not None:
                waiting.send_nowait(message.document)
        elif isinstance(message, RunMessage):
            run = self._runs.get(message.run_id)
            if run is not None:
                run.heard(message)
                if isinstance(message, RunClosed | RunRefused):
                    del self._runs[message.run_id]

    def _data_address(self) -> str:
        """Where its data port is, as seen from where it was reached."""
        data = urlsplit(str(self.facts.get("data") or ""))
        if not data.port:  # it has one port for everything
            return self._url
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
        AuthenticationFailed: the secrets differ, or the daemon has none.
        RequestRefused: it is another release.
        RemoteProtocolError: it is no daemon, or one that wants a secret.

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
            client = DaemonClient(url, link, facts)
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
        raise RequestRefused(
            f"{place} runs netstack {greeting.build} with control protocol {greeting.version}, and this is {build} with"
            f" {VERSION}: install one release on every host, and restart the daemon"
        )
    told_s = greeting.facts.get("heartbeat_timeout_s")
    if isinstance(told_s, int | float) and told_s > 0:
        link.heartbeat_timeout_s = min(heartbeat_timeout_s, told_s)  # it wants to hear from us as often as that
    return link, greeting.facts
