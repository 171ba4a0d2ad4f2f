"""The network environments of a TaskManager: a shared one, and one for each job with its own network settings.

Takes: accepted streams, jobs. Gives: the environment of each job; each stream to its environment.

The shared environment is opened for the first job that needs it, with all memory that no other job holds, and closed
after the last one.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, final

import trio

from ...base.causes import root_cause
from ...base.config import MIB, NetworkConfig
from ...base.errors import NetstackError, RequestRefused
from ...base.text.safe_text import safe_error
from ...base.transport import ByteStream
from ...base.units import format_size
from ...network.connection.authentication import Secret
from ...network.connection.handshake import Handshake, connect_stream
from ...network.environment import NetworkEnvironment, network_environment_on
from ...network.kept_partitions import KeptTogether
from ..control.routing import SHARED, RoutedListener, write_route
from .memory import TaskMemory

LOGGER: Final = logging.getLogger("netstack.taskmanager")

REPLACED_S: Final = 2.0
"""How long connecting to a slot is retried, since its process may just be being replaced."""

LEAST_SHARED_BYTES: Final = 4 * MIB
"""Minimum memory to open the shared environment; it waits until that much is free."""


def network_of_job(network: NetworkConfig, own: NetworkConfig) -> NetworkConfig:
    """The settings of a job's own network on a TaskManager.

    Args:
        network: what the job asks for. Without a shuffle directory it gets the TaskManager's.
        own: settings of the TaskManager. Its limit of the disk also bounds the job's.
    """
    limits = [each.shuffle_disk_bytes for each in (network, own) if each.shuffle_disk_bytes is not None]
    return dataclasses.replace(
        network,
        connect_retry_s=max(network.connect_retry_s, REPLACED_S),
        shuffle_directory=network.shuffle_directory or own.shuffle_directory,
        shuffle_disk_bytes=min(limits, default=None),
    )


@final
class Environments:
    """The open network environments of a TaskManager.

    Args:
        address: bound address of the data port.
        network: settings of the shared environment, except its memory.
        secret: secret to prove on dialled streams.
        connect: connects to an address (`NetworkEndpoint`).
        on_stream_end: called when a connection passed to `accept` has ended.
        together: returns where an environment stores partitions together with other processes; None: alone.
    """

    def __init__(
        self,
        address: str,
        network: NetworkConfig,
        pool: TaskMemory,
        *,
        secret: Secret | None,
        connect: Callable[[str], Awaitable[ByteStream]] = connect_stream,
        on_stream_end: Callable[[ByteStream], None],
        together: Callable[[str], KeptTogether | None] = lambda name: None,
    ) -> None:
        self._together = together
        self._address = address
        self._network = network
        self._pool = pool
        self._secret = secret
        self._connect = connect
        self._on_stream_end = on_stream_end
        self._listeners: dict[str, RoutedListener] = {}
        self.shared: NetworkEnvironment | None = None
        """The shared environment, while a job uses it."""
        self._users = 0
        self._changed = trio.Event()
        self._failure: BaseException | None = None

    def accept(self, environment: str, stream: ByteStream) -> bool:
        """Passes an accepted data stream to its environment; returns false if there is none."""
        listener = self._listeners.get(environment)
        if listener is None:
            return False
        listener.put(stream)
        return True

    @asynccontextmanager
    async def own(self, job_id: str, network: NetworkConfig, data_address: str) -> AsyncIterator[NetworkEnvironment]:
        """Opens an environment for one job, whose memory is already reserved.

        Raises:
            NetstackError: the settings do not work here.

        Cancellation, like the end of the block, closes it.
        """
        async with self._open(job_id, network, data_address) as environment:
            yield environment

    @asynccontextmanager
    async def of_job(
        self, job_id: str, network: NetworkConfig | None, data_address: str, *, timeout_s: float
    ) -> AsyncIterator[NetworkEnvironment]:
        """Yields the environment of a job: its own if it has network settings, else the shared one.

        Arguments and errors are those of `own` and `join`. Cancellation, like the end of the block, leaves it.
        """
        if network is not None:
            async with self.own(job_id, network, data_address) as environment:
                yield environment
            return
        environment = await self.join(data_address, timeout_s=timeout_s)
        try:
            yield environment
        finally:
            self.leave()

    async def join(self, data_address: str, *, timeout_s: float) -> NetworkEnvironment:
        """Returns the shared environment, opened if necessary; call `leave` afterwards.

        Args:
            data_address: address of this TaskManager in shuffle descriptors.
            timeout_s: how long to wait for memory that other jobs hold.

        Raises:
            RequestRefused: there is not enough free memory.
            NetstackError: it cannot be opened.

        Cancellation: leaves the environment.
        """
        self._users += 1
        self._notify()
        try:
            with trio.move_on_after(timeout_s):
                while self.shared is None and self._failure is None:
                    await self._changed.wait()
            failure = self._failure  # the next attempt resets it
            await trio.lowlevel.checkpoint()
            if failure is not None:
                raise failure
            if self.shared is None:
                raise RequestRefused(
                    f"no network memory became free within {timeout_s:g} s:"
                    f" {format_size(self._pool.free_memory_bytes)} of {format_size(self._pool.memory_bytes)} are free;"
                    " wait for the other jobs, or start the TaskManager with more --memory"
                )
        except BaseException:
            self.leave()
            raise
        self.shared.add_address(data_address)
        return self.shared

    def stay(self) -> None:
        """Keeps the open shared environment open until `leave`."""
        self._users += 1

    def leave(self) -> None:
        """Ends a `join`, or a `stay`."""
        self._users -= 1
        self._notify()

    async def run(self) -> None:
        """Opens the shared environment while it has users, until cancelled."""
        while True:
            while not self._users:
                await self._changed.wait()
            self._failure = None
            memory_bytes = await self._pool.acquire_rest(LEAST_SHARED_BYTES)
            try:
                network = dataclasses.replace(self._network, memory_bytes=memory_bytes)
                async with self._open(SHARED, network, self._address) as self.shared:
                    self._notify()
                    while self._users:
                        await self._changed.wait()
                    self.shared = None
            except BaseException as error:
                root = root_cause(error)  # a nursery may have wrapped it
                if not isinstance(root, NetstackError | MemoryError):
                    raise
                LOGGER.warning("the shared network environment cannot be opened: %s", safe_error(root))
                self._failure = root
                self._notify()
                while self._users:
                    await self._changed.wait()
            finally:
                self.shared = None
                self._pool.release(memory_bytes)

    @asynccontextmanager
    async def _open(self, name: str, network: NetworkConfig, address: str) -> AsyncIterator[NetworkEnvironment]:
        network = network_of_job(network, self._network)
        listener = RoutedListener(address, self._on_stream_end)
        self._listeners[name] = listener
        try:
            async with network_environment_on(
                listener,
                network,
                Handshake(
                    secret=self._secret,
                    greet=partial(write_route, environment=name),
                    connect=self._connect,
                    on_accepted_end=self._on_stream_end,
                ),
                together=self._together(name),
            ) as environment:
                yield environment
        finally:
            del self._listeners[name]
            listener.close()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
