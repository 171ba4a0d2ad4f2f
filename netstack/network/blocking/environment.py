"""A TaskManager in a thread of its own: partitions and gates for blocking programs.

Takes: the arguments of `netstack.open_network`. Gives: handles, whose methods run in that thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar, final

from ...base.config import NetworkConfig
from ...base.errors import LocalProtocolError
from ...base.ids import ChannelDescriptor, PartitionId, ResultPartitionType
from ...exchange.inbound.closing import ClosingContext
from ...exchange.inbound.gate import SingleInputGate
from ...exchange.inbound.statistics import GateStatistics
from ...exchange.outbound.statistics import ResultPartitionStatistics
from .. import environment as runtime, handles
from ..connection.authentication import Secret
from ..connection.statistics import NetworkStatistics
from ..waiting.interrupts import INTERRUPTS
from ..waiting.parking import ThreadParking
from .portal import Portal

R = TypeVar("R")
Manager = Portal[runtime.NetworkEnvironment]


@final
class ResultPartition:
    """One task's output, for a `RecordWriter`.

    Attributes:
        partition_id: its name.
        subpartitions: the number of subpartitions.
    """

    def __init__(self, portal: Manager, inner: handles.ResultPartition) -> None:
        """Called by `NetworkEnvironment.create_partition`."""
        self.portal = portal
        self.inner = inner
        self.partition_id: PartitionId = inner.partition_id
        self.subpartitions = inner.subpartition_count

    def statistics(self) -> ResultPartitionStatistics:
        """A snapshot; records that a `RecordWriter` has taken but not written are not included."""
        return _do(self.portal, self.inner.statistics)

    def park_writer(self) -> ThreadParking:
        """Returns where a writer waits: `runtime.NetworkEnvironment.park_writer`."""
        return _visiting(self.portal, lambda: self.portal.inside.park_writer(self.inner))

    def fail(self, cause: str) -> None:
        """Fails the partition: consumers receive the cause; a waiting writer raises an error. Idempotent."""
        self.portal.end(lambda: self.inner.fail(cause), what="failing a partition")


@final
class InputGate(ClosingContext):
    """All channels of one input, for a `RecordReader` or an `ArrayReader`.

    `with gate:` closes it, and warns if a channel has not ended.

    Attributes:
        channel_count: number of channels.
    """

    def __init__(self, portal: Manager, inner: handles.InputGate) -> None:
        """Called by `NetworkEnvironment.open_gate`."""
        self.portal = portal
        self.inner = inner
        self.channel_count = inner.channel_count

    def statistics(self) -> GateStatistics:
        """A snapshot."""
        return _do(self.portal, self.inner.statistics)

    def park_reader(self, *, most_sockets: int) -> ThreadParking:
        """Returns where a reader waits: `runtime.NetworkEnvironment.park_reader`."""
        return _visiting(self.portal, lambda: self.portal.inside.park_reader(self.inner, most_sockets=most_sockets))

    def close(self) -> None:
        """Closes all channels; a waiting reader raises an error. Idempotent.

        The producers of channels that have not ended learn that no more records are needed.
        """
        self.portal.end(self.inner.close, what="closing a gate")

    def abandon(self) -> None:
        """Closes like `close`, but these producers count this consumer as lost (`ConsumerLost`)."""
        self.portal.end(self.inner.abandon, what="closing a gate")

    def describe_unread(self, held: str = "") -> str:
        """Describes what is unread, for a warning: `held` by its reader, or on its way; empty after `close`."""
        engine = self.inner._engine

        def ask() -> str:
            if isinstance(engine, SingleInputGate) and engine.is_closed:
                return ""
            return f"{held} that were not read" if held else engine._describe_unread()

        try:
            return _do(self.portal, ask)
        except LocalProtocolError:
            return ""  # the network was closed meanwhile

    def _describe_unread(self) -> str:
        return self.describe_unread()


@final
class NetworkEnvironment:
    """A TaskManager's network, created by `open_network`. Its methods may be called from any thread, concurrently.

    Attributes:
        address: the URL that consumers dial.
        metrics_address: `host:port` of the metrics for Prometheus; None if they are not served.
        config: its settings.
        portal: runs functions in its thread.
    """

    def __init__(self, portal: Manager) -> None:
        """Called by `open_network`."""
        self.portal = portal
        self.address = portal.inside.address
        self.metrics_address = portal.inside.metrics_address
        self.config = portal.inside.config

    def __enter__(self) -> NetworkEnvironment:
        """Returns itself; it is open already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes it; after an error without goodbyes, so that peers see a broken connection."""
        self.portal.close(clean=kind is None)

    def close(self) -> None:
        """Closes gates, releases partitions, says goodbye to peers (within a second), ends the thread. Idempotent.

        Data that was not consumed is lost: call `RecordWriter.wait_consumed` first. Waiting calls in other threads
        raise LocalProtocolError.
        """
        self.portal.close(clean=True)

    def create_partition(
        self,
        name: str,
        *,
        subpartitions: int,
        kind: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED,
    ) -> ResultPartition:
        """Creates the output of a task; arguments and errors as for `netstack.NetworkEnvironment.create_partition`."""
        manager = self.portal.inside
        inner = _do(self.portal, lambda: manager.create_partition(name, subpartitions=subpartitions, kind=kind))
        return ResultPartition(self.portal, inner)

    def open_gate(self, descriptors: Sequence[ChannelDescriptor], *, timeout_s: float | None = None) -> InputGate:
        """Opens one input gate; arguments and errors as for `netstack.NetworkEnvironment.open_gate`.

        Raises:
            TimeoutError: it did not open within `timeout_s`; subpartitions that were already requested count as
                consumed.
        """
        manager = self.portal.inside
        opened: list[handles.InputGate] = []

        async def open_inside() -> None:
            opened.append(await manager.open_gate(descriptors))

        try:
            self.portal.call(open_inside, timeout_s=timeout_s, what="opening a gate")
        except BaseException:
            with contextlib.suppress(LocalProtocolError):  # the network was closed
                for gate in opened:  # it had opened just before the exception of a signal handler
                    self.portal.post(gate.close)
            raise
        return InputGate(self.portal, opened[0])

    def release_partition(self, name: str) -> None:
        """Drops a partition and all its data; unknown names are ignored."""
        self.portal.end(lambda: self.portal.inside.release_partition(name), what="releasing a partition")

    def statistics(self) -> NetworkStatistics:
        """A snapshot; costs as much as `netstack.NetworkEnvironment.statistics`, plus a call into the thread."""
        return _do(self.portal, self.portal.inside.statistics)


def open_network(
    address: str,
    config: NetworkConfig | None = None,
    *,
    secret: Secret | None = None,
    metrics_address: str | None = None,
    detailed_metrics: bool = False,
) -> NetworkEnvironment:
    """Opens a TaskManager in a thread of its own: `with open_network("tcp://0.0.0.0:6121") as network: ...`.

    Arguments and errors are those of `netstack.open_network`. It is open when the call returns; without `with`, call
    `close()`. If a program ends without either, its peers see a broken connection.

    Ctrl-C, or an exception of another signal handler, ends any waiting call; no record is lost.
    """

    def open_inside() -> Any:
        return runtime.open_network(
            address,
            config,
            secret=secret,
            metrics_address=metrics_address,
            detailed_metrics=detailed_metrics,
        )

    return NetworkEnvironment(Portal(open_inside, f"netstack {address}"))


def _visiting(portal: Manager, ask: Callable[[], ThreadParking]) -> ThreadParking:
    """Returns a place to wait, and prepares the thread to visit the event loop."""
    parking = _do(portal, ask)
    portal.loop_lock = portal.inside.loop_lock
    INTERRUPTS.protect()
    return parking


def _do(portal: Manager, action: Callable[[], R]) -> R:
    """Runs a function that does not wait in the thread."""

    async def inside() -> R:
        return action()

    return portal.call(inside, timeout_s=None, what="a call")
