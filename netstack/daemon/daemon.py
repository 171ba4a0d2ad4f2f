"""A TaskManager as a daemon: a port for control and data, slots and memory for runs, nothing left of those that ended.

Takes: addresses, a secret, bounds. Gives: `open_taskmanager_daemon`, which serves until it is cancelled.

One port serves everything: after the proof of the secret, if there is one, a connection says what it is for
(`routing`). Each run has a TaskManager of its own (`run`), so runs may differ in every setting of the network, and end
without a trace.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import platform
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, final
from urllib.parse import urlsplit

import trio

from ..config import MIB
from ..errors import (
    AuthenticationFailed,
    ConfigError,
    ConnectionLost,
    RemoteProtocolError,
    RequestRefused,
)
from ..runtime.admission import Admission
from ..runtime.authentication import Secret
from ..runtime.background import background_tasks
from ..runtime.statistics import NetworkStatistics
from ..transport import ByteStream, Listener, transport_for
from ..version import __version__
from .build import own_build
from .invokables import AllowList
from .link import DaemonLink
from .messages import VERSION, OpenRun, Plain, config_of
from .routing import check_run_id, read_route
from .run import DaemonRun
from .session import Session
from .slots import SlotPool
from .statistics import merged, run_document

LOGGER: Final = logging.getLogger("netstack.daemon")

RUNS_AT_MOST: Final = 1024
"""Open, or waiting for their slots."""

_NAME_CHARACTERS: Final = 200


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """How a daemon serves.

    Attributes:
        listen: URL of the port for data and, unless `control` is given, for control: `tcp://0.0.0.0:6121`.
        control: URL of a port of its own for control; None has none.
        name: of this TaskManager in reports; the host's if empty.
        slots: how many runs' subtasks it holds at once; a slot holds one subtask of every task of a run.
        memory_bytes: network buffers of all runs together.
        secret: shared with everybody who may come in; None lets everybody in, and needs a loopback address.
        allow: prefixes of invokables that may run beside the benchmark's.
        max_connections: at once, control and data together.
        max_unproven: connections that have not proven the secret yet.
        handshake_timeout_s: for the proof, and for saying what the connection is for.
        heartbeat_timeout_s: a coordinator that is silent for so long is gone, and its runs are closed.

    Raises:
        ConfigError: a number that cannot be, or an address that others reach and no secret.
    """

    listen: str = "tcp://127.0.0.1:6121"
    name: str = ""
    control: str | None = None
    slots: int = field(default_factory=lambda: max(1, os.cpu_count() or 1))
    memory_bytes: int = 256 * MIB
    secret: Secret | None = None
    allow: tuple[str, ...] = ()
    max_connections: int = 1024
    max_unproven: int = 64
    handshake_timeout_s: float = 10.0
    heartbeat_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        """Refuses what cannot work or would be open to everybody."""
        if self.slots < 1:
            raise ConfigError(f"--slots {self.slots}: the least is 1")
        if self.memory_bytes < MIB:
            raise ConfigError(f"--memory {self.memory_bytes}: the least is 1MiB")
        for name in ("handshake_timeout_s", "heartbeat_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)}: give a number of seconds above 0")
        for url in filter(None, (self.listen, self.control)):
            if self.secret is None and not is_private(url):
                raise ConfigError(
                    f"{url} can be reached from other hosts, and there is no secret: give --secret-file FILE"
                    " (make one with: head -c 32 /dev/urandom | base64 > FILE; chmod 600 FILE), or listen on 127.0.0.1"
                )


def is_private(url: str) -> bool:
    """Whether only this host reaches an address."""
    parts = urlsplit(url)
    if parts.scheme.rpartition("+")[2] in ("unix", "memory") or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False  # a name: whoever answers for it decides where it leads


@final
class TaskManagerDaemon:
    """See `open_taskmanager_daemon`, which makes one (it is the `RunHost` of its sessions).

    Attributes:
        config: its settings.
        address: URL that was really bound, for data and control.
        control_address: URL of the port for control.
        slots: what is free.
    """

    def __init__(self, config: DaemonConfig, listener: Listener, control: Listener | None) -> None:
        self.config = config
        self.address = listener.address
        self.control_address = self.address if control is None else control.address
        self.metrics_address: str | None = None
        """`host:port` at which Prometheus finds the metrics; None if they are not served."""
        self._has_control = control is not None
        self._build = own_build()  # now: files may be replaced while the old code runs
        self.slots = SlotPool(config.slots, config.memory_bytes)
        self._allowed = AllowList(config.allow)
        self._admission = Admission(
            config.secret,
            max_connections=config.max_connections,
            max_unproven=config.max_unproven,
            timeout_s=config.handshake_timeout_s,
        )
        self._runs: dict[str, DaemonRun] = {}
        self._coordinators: dict[DaemonLink, None] = {}
        self._began_s = trio.current_time()
        self._runs_ended = 0
        self._served = trio.Event()

    async def serve(self, listener: Listener, *, takes_data: bool) -> None:
        """Accepts until cancelled.

        Args:
            listener: one of its ports.
            takes_data: whether data connections may come there.
        """
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._handle, await listener.accept(), takes_data)

    async def wait_served(self) -> None:
        """Waits until, for the first time, a coordinator has come and none is left. Cancellation: nothing changed."""
        await self._served.wait()

    # For sessions.

    def make_run(self, message: OpenRun, link: DaemonLink) -> DaemonRun:
        """A run that waits for its slots; its id is taken.

        Raises:
            RequestRefused: its id is taken, or there are too many.
            ConfigError: its settings cannot work.
            TypeError: one of its settings is unknown here.
        """
        if check_run_id(message.run_id) in self._runs:
            raise RequestRefused(f"run {message.run_id} exists already; choose another id")
        if len(self._runs) >= RUNS_AT_MOST:
            raise RequestRefused(f"{RUNS_AT_MOST} runs are open or wait here; try later")
        run = DaemonRun(
            message.run_id,
            message.name[:_NAME_CHARACTERS],
            message.slots,
            config_of(message.config),
            message.data_address,
            secret=self.config.secret,
            allowed=self._allowed,
            send=link.send,
            on_stream_end=self._admission.left,
        )
        self._runs[run.run_id] = run
        LOGGER.info("run %s (%s) wants %d slots", run.run_id, run.name, run.slots)
        return run

    def remove_run(self, run: DaemonRun) -> None:
        """It is over."""
        del self._runs[run.run_id]
        self._runs_ended += 1
        LOGGER.info("run %s (%s) closed: %s", run.run_id, run.name, run.reason or "over")

    def statistics(self) -> Plain:
        """Everything, as plain data.

        Returns:
            The facts of the greeting, and `uptime_s`, `cpu_s`, `runs_ended`, `coordinators`, `connections`, `unproven`,
            `refused` (by reason), `runs` (see `statistics.run_document`; see `statistics.shortened` too).
        """
        now_s = trio.current_time()
        admission = self._admission.statistics()
        return {
            **self.facts(),
            "uptime_s": now_s - self._began_s,
            "cpu_s": time.process_time(),
            "runs_ended": self._runs_ended,
            "coordinators": [link.peer for link in self._coordinators],
            "connections": admission.connections,
            "unproven": admission.unproven,
            "refused": {reason.value: count for reason, count in admission.refused.items()},
            "runs": [run_document(run, now_s) for run in self._runs.values()],
        }

    def merged_statistics(self) -> NetworkStatistics:
        """All runs as one TaskManager, for Prometheus."""
        return merged(self._runs.values(), self.config.memory_bytes, self._admission.statistics())

    def facts(self) -> Plain:
        """What a coordinator is told first."""
        return {
            "version": __version__,
            "build": self._build,
            "data": self.address if self._has_control else "",
            "slots": self.slots.slots,
            "free_slots": self.slots.free_slots,
            "memory_bytes": self.slots.memory_bytes,
            "free_memory_bytes": self.slots.free_memory_bytes,
            "hostname": socket.gethostname(),
            "name": self.config.name or socket.gethostname(),
            "pid": os.getpid(),
            "python": platform.python_version(),
            "kernel": platform.release(),
            "cpus": os.cpu_count() or 1,
            "allow": list(self._allowed.prefixes),
            "heartbeat_timeout_s": self.config.heartbeat_timeout_s,
            "platform": sys.platform,
        }

    # Connections.

    async def _handle(self, stream: ByteStream, takes_data: bool) -> None:
        try:
            await self._admission.admit(stream)
        except AuthenticationFailed as error:
            LOGGER.warning("%s was refused: %s", stream.peer, error)
            return
        is_handed_over = False
        try:
            with trio.fail_after(self.config.handshake_timeout_s):
                run_id = await read_route(stream)
            if run_id is None:
                await self._serve_coordinator(stream)
            else:
                run = self._runs.get(run_id) if takes_data else None
                if run is not None:
                    is_handed_over = True
                    run.accept(stream)
        except trio.TooSlowError:
            LOGGER.warning("%s did not say what it wants within %g s", stream.peer, self.config.handshake_timeout_s)
        except (ConnectionLost, RemoteProtocolError) as error:
            LOGGER.warning("%s", error)
        finally:
            if not is_handed_over:
                stream.close()
                self._admission.left()

    async def _serve_coordinator(self, stream: ByteStream) -> None:
        link = DaemonLink(stream, heartbeat_timeout_s=self.config.heartbeat_timeout_s)
        build = f"{__version__}+{self._build}"
        with trio.fail_after(self.config.handshake_timeout_s):
            greeting = await link.greet(build, socket.gethostname(), self.facts())
        if (greeting.version, greeting.build) != (VERSION, build):
            text = (
                f"this daemon runs netstack {build} with control protocol {VERSION}, and {link.peer} runs"
                f" {greeting.build} with {greeting.version}: install one release on every host, and restart the daemon"
            )
            LOGGER.warning("%s", text)
            await link.refuse(text)
            return
        self._coordinators[link] = None
        LOGGER.info("%s is connected", link.peer)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.run)
                reason = await Session(link, self).serve()
                LOGGER.info("%s has gone: %s", link.peer, reason)
                nursery.cancel_scope.cancel()
        finally:
            del self._coordinators[link]
            if not self._coordinators:
                self._served.set()


@asynccontextmanager
async def open_taskmanager_daemon(
    config: DaemonConfig, *, metrics_address: str | None = None
) -> AsyncIterator[TaskManagerDaemon]:
    """Opens a daemon that serves while the block runs.

    Args:
        config: how it serves.
        metrics_address: `host:port` at which Prometheus may read `/metrics`; None serves none.

    Raises:
        OSError: an address cannot be bound; the text names it.
        ConfigError: a setting cannot work.

    Cancellation, and the end of the block: every run is closed, every connection ended.
    """
    listener = await transport_for(config.listen).listen(config.listen)
    control: Listener | None = None
    try:
        if config.control is not None:
            control = await transport_for(config.control).listen(config.control)
        daemon = TaskManagerDaemon(config, listener, control)
        async with background_tasks() as nursery:
            if metrics_address is not None:
                await _serve_metrics(daemon, metrics_address, nursery)
            nursery.start_soon(partial(daemon.serve, listener, takes_data=True))
            if control is not None:
                nursery.start_soon(partial(daemon.serve, control, takes_data=False))
            yield daemon
    finally:
        listener.close()
        if control is not None:
            control.close()


async def _serve_metrics(daemon: TaskManagerDaemon, address: str, nursery: trio.Nursery) -> None:
    from ..runtime.prometheus import bind_metrics  # only who asks for it needs prometheus_client

    server = await bind_metrics(address, detailed=True)
    daemon.metrics_address = server.address

    async def serve() -> None:
        try:
            await server.serve(daemon.merged_statistics)
        finally:
            server.close()

    nursery.start_soon(serve)
