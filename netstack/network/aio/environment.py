"""A network environment for asyncio: partitions and gates; trio runs in a thread of its own.

Takes: the arguments of `netstack.open_network`. Gives: handles of `netstack.blocking`, for writers and readers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, final

from ...base.config import NetworkConfig
from ...base.errors import LocalProtocolError
from ...base.ids import ChannelDescriptor, ResultPartitionType
from .. import handles
from ..blocking import environment as blocking
from ..blocking.portal import Portal
from ..connection.authentication import Secret
from ..connection.statistics import NetworkStatistics


@final
class NetworkEnvironment:
    """A TaskManager's network, created by `open_network`.

    Attributes:
        address: the URL that consumers dial.
        metrics_address: `host:port` of the metrics for Prometheus; None if they are not served.
        config: its settings.
    """

    def __init__(self, inner: blocking.NetworkEnvironment) -> None:
        """Called by `open_network`."""
        self._inner = inner
        self.address = inner.address
        self.metrics_address = inner.metrics_address
        self.config = inner.config

    def create_partition(
        self,
        name: str,
        *,
        subpartitions: int,
        kind: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED,
    ) -> blocking.ResultPartition:
        """Creates the output of one task; arguments and errors as for `netstack.NetworkEnvironment.create_partition`.

        A plain call, like `release_partition` and `statistics`: it blocks for 100 to 200 us.
        """
        return self._inner.create_partition(name, subpartitions=subpartitions, kind=kind)

    async def open_gate(self, descriptors: Sequence[ChannelDescriptor]) -> blocking.InputGate:
        """Opens one input gate; arguments and errors as for `netstack.NetworkEnvironment.open_gate`.

        Cancellation: nothing stays open; subpartitions that were already requested count as consumed.
        """
        portal = self._inner.portal
        manager = portal.inside
        opened: list[handles.InputGate] = []

        async def open_inside() -> None:
            opened.append(await manager.open_gate(descriptors))

        try:
            await through(portal, open_inside, "opening a gate")
        except asyncio.CancelledError:
            with contextlib.suppress(LocalProtocolError):  # the network was closed
                for gate in opened:  # it had opened just before the cancellation
                    portal.post(gate.abandon)
            raise
        return blocking.InputGate(portal, opened[0])

    def release_partition(self, name: str) -> None:
        """Drops a partition and all its data; unknown names are ignored."""
        self._inner.release_partition(name)

    def statistics(self) -> NetworkStatistics:
        """A snapshot."""
        return self._inner.statistics()


@asynccontextmanager
async def open_network(
    address: str,
    config: NetworkConfig | None = None,
    *,
    secret: Secret | None = None,
    metrics_address: str | None = None,
    detailed_metrics: bool = False,
) -> AsyncIterator[NetworkEnvironment]:
    """Opens a network environment: `async with aio.open_network("tcp://0.0.0.0:6121") as network: ...`.

    Arguments and errors are those of `netstack.open_network`. Leaving the block says goodbye to peers within a second;
    leaving it by an error does not, so that they see a broken connection.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError as error:
        raise LocalProtocolError(
            "aio.open_network was called outside asyncio: call it inside asyncio.run(main()), or use netstack under"
            " trio, or netstack.blocking in a program without an event loop"
        ) from error

    def open_blocking() -> blocking.NetworkEnvironment:
        return blocking.open_network(
            address, config, secret=secret, metrics_address=metrics_address, detailed_metrics=detailed_metrics
        )

    # Opening and closing block, so they run in a thread; shielded, because they cannot be cancelled half-way.
    opening = asyncio.ensure_future(asyncio.to_thread(open_blocking))
    try:
        inner = await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_unwanted)
        raise
    clean = False
    try:
        yield NetworkEnvironment(inner)
        clean = True
    finally:
        await asyncio.shield(asyncio.to_thread(inner.portal.close, clean=clean))


def _close_unwanted(opening: asyncio.Future[blocking.NetworkEnvironment]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().portal.close(clean=False)


R = TypeVar("R")


async def through(portal: Portal[Any], action: Callable[[], Awaitable[R]], what: str) -> R:
    """Runs an async function in the portal's thread.

    Raises:
        LocalProtocolError: the thread has ended, or ends meanwhile.
        BaseException: the error raised by the function.

    Cancellation: cancels the function and waits for its end; its result is dropped.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def notify() -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(ended.set)

    started = portal.start(action, what=what, on_end=notify)
    try:
        await ended.wait()
    except asyncio.CancelledError:
        started.cancel()
        await _in_any_case(ended)
        with contextlib.suppress(BaseException):
            started.outcome()
        raise
    return started.outcome()


async def _in_any_case(ended: asyncio.Event) -> None:
    """Waits for the end of the function, however often the waiting task is cancelled."""
    while not ended.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await ended.wait()
