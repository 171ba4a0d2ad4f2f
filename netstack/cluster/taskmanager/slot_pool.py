"""The slot processes of a TaskManager: their ports and their supervision.

Takes: settings, a fork server. Gives: slots.

The TaskManager's own process is the *supervisor*: it registers, sends heartbeats and routes messages, and never runs
user code. Each slot serves data at its own port, which stays the same when its process is replaced.
"""

from __future__ import annotations

import errno
import logging
import socket
import tempfile
from functools import partial
from typing import Final, final

import trio

from ...base.errors import ConfigError
from ...base.transport import full_url, transport_for, url_parts
from ...exchange.stored.files import remove_files
from ...network.waiting.threads import in_thread
from ..control.codec import Plain
from ..control.messages import AskDetails, AskStacks, AskStatistics
from .fork_server import ForkServer
from .samples import sampled_slots
from .slot import Slot
from .slot_settings import SlotSettings
from .stacks import stack_row

LOGGER: Final = logging.getLogger("netstack.taskmanager")

WATCH_S: Final = 0.5
"""Interval at which the supervisor checks its slots."""

_LAST_PORT: Final = 65_535


@final
class SlotProcesses:
    """All slots of a TaskManager; `run` supervises them.

    Attributes:
        slots: slots by index.
    """

    def __init__(self, settings: SlotSettings, server: ForkServer, metrics: str | None) -> None:
        """Reserves the ports of the slots.

        Args:
            settings: settings of the slots.
            server: forks the processes; closed by `close`.
            metrics: metrics address of slot 0; the next slots use the next ports; None: no metrics.

        Raises:
            ConfigError: there are not enough ports.
            OSError: a port cannot be bound.
        """
        config = settings.config
        self.settings = settings
        self._ends: list[tuple[str, frozenset[str]]] = []
        self._ended = trio.Event()
        self._server = server
        self._reserved: list[socket.socket] = []
        urls = [self._reserve(slot, counted_up(config.listen, 1 + slot)) for slot in range(config.slots)]
        self.slots = [
            Slot(
                number,
                url,
                settings.memory_bytes,
                None if metrics is None else counted_up(metrics, number),
                server,
                self._on_end,
                self._another_port,
            )
            for number, url in enumerate(urls)
        ]

    async def run(self) -> None:
        """Runs and checks all slots until cancelled; then kills them."""
        try:
            async with trio.open_nursery() as nursery:
                problem = transport_for("shm://").unsupported()
                if self.settings.config.shared_memory and problem:
                    LOGGER.warning("slots exchange data over the network, not shared memory: %s", problem)
                nursery.start_soon(self._server.run)
                nursery.start_soon(self._clean_up)
                for slot in self.slots:
                    nursery.start_soon(slot.run)
                while True:
                    await trio.sleep(WATCH_S)
                    for slot in self.slots:
                        await slot.look(self.settings.config.cancellation_timeout_s)
        finally:
            self.close()

    async def ask_all(self, make: type[AskStatistics] | type[AskDetails]) -> list[Plain]:
        """Sends a request to all slots; returns the answers that arrive in time, by slot."""
        answers: list[tuple[int, Plain]] = []

        async def ask(slot: Slot) -> None:
            answer = await slot.ask(make)
            if answer is not None:
                answers.append((slot.number, answer))

        async with trio.open_nursery() as nursery:
            for slot in self.slots:
                nursery.start_soon(ask, slot)
        return [answer for _, answer in sorted(answers, key=lambda answer: answer[0])]

    async def stacks(self, job_id: str, sampled_s: float) -> list[Plain]:
        """Returns the stacks of a job's tasks (`TaskManager.stacks`)."""
        slots = [slot for slot in self.slots if job_id in slot.jobs]
        if sampled_s > 0:
            return await sampled_slots(slots, sampled_s)
        rows: list[Plain] = []
        for slot in slots:
            answer = await slot.ask(partial(AskStacks, job_id=job_id))
            if answer is not None:
                rows += answer.get("tasks", [])
                continue
            frames, where = await slot.stack()
            attempt = (0, int(where.get("subtask", -1)), 0)
            rows.append(stack_row(attempt, where.get("task", ""), slot.number, frames, is_blocked=True))
        return rows

    def _on_end(self, prefix: str, sealed: frozenset[str]) -> None:
        self._ends.append((prefix, sealed))
        self._ended.set()

    async def _clean_up(self) -> None:
        """Removes unsealed files of processes that have ended."""
        parent = self.settings.config.network.shuffle_directory or tempfile.gettempdir()
        while True:
            await self._ended.wait()
            self._ended = trio.Event()
            ends, self._ends = self._ends, []
            for prefix, sealed in ends:
                await in_thread(partial(remove_files, parent, self.settings.folder, prefix, sealed))

    async def wait_ready(self) -> None:
        """Waits until every slot has a running process."""
        for slot in self.slots:
            await slot.ready.wait()

    def close(self) -> None:
        """Kills all slots and releases their ports. Idempotent."""
        self._server.close()
        for reserved in self._reserved:
            reserved.close()

    def _reserve(self, slot: int, url: str) -> str:
        """Reserves a port: bound here and listened to in the slot process, which SO_REUSEADDR allows."""
        parts = url_parts(url)
        if parts.port is None or parts.hostname is None:
            return f"{url}.slot{slot}"  # a path
        family = socket.AF_INET6 if ":" in parts.hostname else socket.AF_INET
        reserved = socket.socket(family, socket.SOCK_STREAM)
        self._reserved.append(reserved)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            reserved.bind((parts.hostname, parts.port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE and parts.port:
                return self._another_port(slot, url)
            raise OSError(
                error.errno,
                f"cannot listen at {url}, the data port of slot {slot}:"
                f" {error.strerror or error}; slots use the ports after that of --listen",
            ) from error
        host = parts.netloc.rpartition(":")[0]
        return parts._replace(netloc=f"{host}:{reserved.getsockname()[1]}").geturl()

    def _another_port(self, slot: int, url: str) -> str:
        """Reserves a free port, because another process uses the slot's port."""
        parts = url_parts(url)
        port = self._reserve(slot, parts._replace(netloc=f"{parts.netloc.rpartition(':')[0]}:0").geturl())
        LOGGER.warning("slot %d serves data at %s, because the port of %s is in use", slot, port, url)
        return port


def counted_up(address: str, count: int) -> str:
    """Returns an address with an increased port; port 0 stays 0. Raises ConfigError if the port would be too large."""
    full = full_url(address)
    parts = url_parts(full)
    if not parts.port:
        return address
    if parts.port + count > _LAST_PORT:
        raise ConfigError(f"{address}: slots use the ports after {parts.port}, and the last port is {_LAST_PORT}")
    host = parts.netloc.rpartition(":")[0]
    counted = parts._replace(netloc=f"{host}:{parts.port + count}").geturl()
    return counted if "://" in address else counted.removeprefix("tcp://")
