"""The network environments of a TaskManager: one that jobs share, one of their own for jobs with settings of their own.

Takes: streams that were accepted, jobs. Gives: each job its environment, each stream to its environment.

The shared one is opened for the first job that wants it, with all memory that no other job holds then, and closed with
the last. So a TaskManager of a cluster gives all it has to its jobs, and one that only measures gives it run by run.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, final

import trio

from ..config import MIB, NetworkConfig
from ..control.routing import SHARED, RoutedListener, write_route
from ..errors import NetstackError, RequestRefused
from ..runtime.authentication import Secret
from ..runtime.causes import root_cause
from ..runtime.dialling import connect_stream
from ..runtime.kept import KeptTogether
from ..runtime.network_environment import NetworkEnvironment, network_environment_on
from ..shown import shown_error
from ..transport import ByteStream
from ..units import format_size
from .memory import TaskMemory

LOGGER: Final = logging.getLogger("netstack.taskmanager")

REPLACED_S: Final = 2.0
"""For so long a slot is dialled again: its process may just be replaced by that of the next job."""

LEAST_SHARED_BYTES: Final = 4 * MIB
"""With less than this the shared environment is not opened: it waits for others to give memory back."""


@final
class Environments:
    """What is open.

    Args:
        address: of the data port, as bound.
        network: settings of the shared environment, but for its memory.
        pool: memory is reserved there.
        secret: proven on every stream that is dialled.
        connect: makes a stream to an address, see `NetworkEndpoint`.
        on_stream_end: told when a connection that `accept` was given is over.
        together: where an environment, by its name, keeps partitions with those of other processes; None: by itself.
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
        self._shared: NetworkEnvironment | None = None
        self._users = 0
        self._changed = trio.Event()
        self._failure: BaseException | None = None

    @property
    def shared(self) -> NetworkEnvironment | None:
        """The environment that jobs share, while one uses it."""
        return self._shared

    def accept(self, environment: str, stream: ByteStream) -> bool:
        """Hands an accepted data stream to its environment; returns whether there is one."""
        listener = self._listeners.get(environment)
        if listener is None:
            return False
        listener.put(stream)
        return True

    @asynccontextmanager
    async def own(self, job_id: str, network: NetworkConfig, data_address: str) -> AsyncIterator[NetworkEnvironment]:
        """Opens an environment for one job, whose memory is reserved already.

        Args:
            job_id: of the job; names the environment.
            network: its settings.
            data_address: as channels name it.

        Raises:
            NetstackError: the settings do not work here.

        Cancellation, and the end of the block: it is closed.
        """
        async with self._open(job_id, network, data_address) as environment:
            yield environment

    @asynccontextmanager
    async def of_job(
        self, job_id: str, network: NetworkConfig | None, data_address: str, *, timeout_s: float
    ) -> AsyncIterator[NetworkEnvironment]:
        """The environment of a job: one of its own where it has settings of its own, else the shared one.

        Args, Raises: see `own` and `join`. Cancellation, and the end of the block: it is left.
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
        """The shared environment, opened if need be; `leave` when it is not needed any more.

        Args:
            data_address: as channels name it.
            timeout_s: how long to wait for memory that others hold.

        Raises:
            RequestRefused: there is no memory.
            NetstackError: it cannot be opened.

        Cancellation: not joined.
        """
        self._users += 1
        self._notify()
        try:
            with trio.move_on_after(timeout_s):
                while self._shared is None and self._failure is None:
                    await self._changed.wait()
            failure = self._failure  # forgotten when it is tried again, which may be now
            await trio.lowlevel.checkpoint()
            if failure is not None:
                raise failure
            if self._shared is None:
                raise RequestRefused(
                    f"no memory for the network of jobs was free within {timeout_s:g} s:"
                    f" {format_size(self._pool.free_memory_bytes)} of {format_size(self._pool.memory_bytes)} are; wait"
                    " for the other runs"
                )
        except BaseException:
            self.leave()
            raise
        self._shared.add_address(data_address)
        return self._shared

    def stay(self) -> None:
        """Keeps the shared environment open, which is there; `leave` when that is not needed any more."""
        self._users += 1

    def leave(self) -> None:
        """Ends a `join`, or a `stay`."""
        self._users -= 1
        self._notify()

    async def run(self) -> None:
        """Opens the shared environment when it is wanted, and closes it when it is not, until cancelled."""
        while True:
            while not self._users:
                await self._changed.wait()
            self._failure = None
            memory_bytes = await self._pool.acquire_rest(LEAST_SHARED_BYTES)
            try:
                network = dataclasses.replace(self._network, memory_bytes=memory_bytes)
                async with self._open(SHARED, network, self._address) as self._shared:
                    self._notify()
                    while self._users:
                        await self._changed.wait()
                    self._shared = None
            except BaseException as error:
                root = root_cause(error)  # it may come out of a nursery
                if not isinstance(root, NetstackError | MemoryError):
                    raise
                LOGGER.warning("the network of jobs cannot be opened: %s", shown_error(root))
                self._failure = root
                self._notify()
                while self._users:
                    await self._changed.wait()
            finally:
                self._shared = None
                self._pool.release(memory_bytes)

    @asynccontextmanager
    async def _open(self, name: str, network: NetworkConfig, address: str) -> AsyncIterator[NetworkEnvironment]:
        network = dataclasses.replace(network, connect_retry_s=max(network.connect_retry_s, REPLACED_S))
        listener = RoutedListener(address, self._on_stream_end)
        self._listeners[name] = listener
        try:
            async with network_environment_on(
                listener,
                network,
                secret=self._secret,
                greet=partial(write_route, environment=name),
                connect=self._connect,
                on_accepted_end=self._on_stream_end,
                together=self._together(name),
            ) as environment:
                yield environment
        finally:
            del self._listeners[name]
            listener.close()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
