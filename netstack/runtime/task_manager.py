"""A TaskManager: the process's share of the network: buffers, a listener, connections, partitions and gates.

Takes: an address and a `NetworkConfig`. Gives: partitions to write to, gates to read from.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final
from urllib.parse import urlsplit

import trio

from ..buffer.pool import NetworkBufferPool, NetworkBufferPoolStatistics
from ..buffer.requirements import gate_buffers, partition_buffers
from ..config import NetworkConfig
from ..errors import ChannelFailed, ConfigError, LocalProtocolError
from ..ids import ChannelDescriptor, ResultPartitionType, partition_id
from ..inbound.channel import RemoteInputChannel
from ..inbound.gate import InputChannel, SingleInputGate
from ..inbound.local_channel import LocalInputChannel
from ..inbound.receiver import ChannelReceiver
from ..inbound.statistics import GateStatistics
from ..outbound.partition import ResultPartition, ResultPartitionStatistics
from ..transport import Listener, transport_for
from .buffers import wait_unpooled
from .debloating import GateDebloating
from .endpoint import AcceptedStatistics, DialledStatistics, NetworkEndpoint
from .flusher import Flusher
from .memory_watch import MemoryWatch
from .partitions import PartitionRegistry
from .pump import Pump

if TYPE_CHECKING:
    from .prometheus import MetricsServer

GOODBYE_GRACE_S: Final = 1.0
"""How long a closing TaskManager waits for its peers' goodbyes: a loaded peer answers within milliseconds, a dead one
never."""


@dataclass(frozen=True, slots=True)
class TaskManagerStatistics:
    """A snapshot of everything a TaskManager owns.

    Attributes:
        pool: its network buffers.
        partitions: what is produced here.
        accepted: connections on which it is read from.
        dialled: connections on which it reads.
        gates: open input gates, without those that are finished and closed.
        bytes_sent: over all connections ever, headers and control frames included.
        bytes_received: likewise.
    """

    pool: NetworkBufferPoolStatistics
    partitions: tuple[ResultPartitionStatistics, ...]
    accepted: tuple[AcceptedStatistics, ...]
    dialled: tuple[DialledStatistics, ...]
    gates: tuple[GateStatistics, ...]
    bytes_sent: int
    bytes_received: int

    @property
    def connections(self) -> int:
        """Open connections, in either direction."""
        return len(self.accepted) + len(self.dialled)


@final
class TaskManager:
    """See `open_task_manager`, which makes one (and is a partition's `PartitionHost`)."""

    def __init__(self, config: NetworkConfig, listener: Listener, nursery: trio.Nursery) -> None:
        self.config = config
        self.address = listener.address
        """The URL consumers dial."""
        self.metrics_address: str | None = None
        """`host:port` at which Prometheus finds the metrics; None if they are not served."""
        self._flusher = Flusher()
        self.call_at = self._flusher.call_at
        self.now = trio.current_time
        self.ticks = time.perf_counter
        self._pool = NetworkBufferPool(config.total_segments, config.segment_size_bytes)
        self._registry = PartitionRegistry(
            timeout_s=config.partition_request_timeout_s, now=self.now, call_at=self.call_at
        )
        self._endpoint = NetworkEndpoint(config, self._pool, self._registry, nursery)
        self.kick = self._endpoint.kick
        self.settle = self._endpoint.settle
        self._memory_watch = MemoryWatch()
        self._gates: dict[SingleInputGate, None] = {}
        self._closed = False
        nursery.start_soon(self._flusher.run)
        nursery.start_soon(self._endpoint.serve, listener)

    def create_partition(
        self,
        name: str,
        *,
        subpartitions: int,
        kind: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED,
    ) -> ResultPartition:
        """Creates the output of one task, ready to be written and consumed.

        Args:
            name: its id, unique in this TaskManager; consumers ask for it by this name.
            subpartitions: how many consumers it has.
            kind: PIPELINED_BOUNDED holds at most subpartitions x exclusive + floating buffers; PIPELINED what memory
                allows.

        Raises:
            InsufficientBuffers: its guaranteed buffers (subpartitions + 1) are not free.
            LocalProtocolError: the name is taken, or the TaskManager is closed.
            ConfigError: a bad name or number.
        """
        self._check_open()
        checked = partition_id(name)
        if subpartitions < 1:
            raise ConfigError(f"partition {name!r}: subpartitions={subpartitions}; the least is 1")
        if not kind.must_be_pipelined:
            raise ConfigError(
                f"partition {name!r}: {kind.name} cannot be written yet; give PIPELINED or PIPELINED_BOUNDED"
            )
        if self._registry.find(name) is not None:
            raise LocalProtocolError(f"partition {name!r} exists already in this TaskManager; choose another name")
        config = self.config
        required, maximum = partition_buffers(kind, subpartitions, config)
        pool = self._pool.create_pool(
            required,
            maximum,
            subpartitions=subpartitions,
            max_buffers_per_channel=config.max_buffers_per_channel,
            max_overdraft=config.max_overdraft_buffers_per_partition,
            purpose=f"partition {name!r} with {subpartitions} subpartitions",
        )
        partition = ResultPartition(checked, kind, subpartitions, pool, on_released=self._registry.remove, host=self)
        self._registry.add(partition)
        self._memory_watch.check(self._pool.statistics())
        return partition

    async def open_gate(self, descriptors: Sequence[ChannelDescriptor]) -> SingleInputGate:
        """Opens one input gate over any number of channels, local and remote.

        Args:
            descriptors: one a channel; its place is the channel's index. Each remote channel gets its exclusive buffers
                now.

        Raises:
            ConnectionLost: a producer cannot be reached.
            RemoteProtocolError: whoever answers is no netstack, or not one of our version and segment size.
            InsufficientBuffers: the buffers of the gate are not free.
            ConfigError: no descriptor, or an address that is no URL.
            ChannelFailed: for a local channel whose partition is gone or consumed already.

        A remote partition that does not exist within `partition_request_timeout_s` fails its channel later, at the
        reader.
        Cancellation: nothing stays open; subpartitions that were asked for already count as consumed.
        """
        self._check_open()
        if not descriptors:
            raise ConfigError("a gate needs at least one ChannelDescriptor")
        local = {address for address in {descriptor.address for descriptor in descriptors} if self._is_local(address)}
        remote = sum(descriptor.address not in local for descriptor in descriptors)
        config = self.config
        buffers = gate_buffers(remote, config)
        pool = None
        exclusive = []
        purpose = f"a gate of {len(descriptors)} channels ({remote} remote)"
        if remote:
            pool = self._pool.create_pool(buffers.pool_required, buffers.pool_maximum, purpose=purpose)
            try:
                exclusive = await wait_unpooled(
                    self._pool,
                    remote * buffers.exclusive_each,
                    purpose,
                    timeout_s=config.buffers_request_timeout_s,
                )
            except BaseException:
                pool.destroy()
                raise
        pumps: dict[Pump, ChannelReceiver] = {}
        dialled: dict[str, tuple[Pump, ChannelReceiver]] = {}

        def poke() -> None:
            for pump, receiver in pumps.items():
                if pump.is_dirty:  # credit that is due: the producer may be waiting for it
                    pump.write_now()
                if not pump.read_now():
                    receiver.announce_held()
                    if pump.is_dirty:
                        pump.write_now()

        def forget() -> None:
            self._gates.pop(gate, None)

        name = self._gate_name(descriptors)
        gate = SingleInputGate(pool, poke=poke, on_closed=forget, now=self.now, name=name)
        self._gates[gate] = None
        self._memory_watch.check(self._pool.statistics())
        try:
            for index, descriptor in enumerate(descriptors):
                if descriptor.address in local:
                    self._open_local(gate, index, descriptor)
                    self._announce_start_size(gate.channels[index])
                    continue
                wanted = partition_id(descriptor.partition_id)
                if not 0 <= descriptor.subpartition < 1 << 32:
                    raise ConfigError(
                        f"partition {wanted!r} has no subpartition {descriptor.subpartition}; give 0 or more"
                    )
                pump, receiver = dialled.get(descriptor.address, (None, None))
                if pump is None or receiver is None or pump.is_closed:
                    pump, receiver = dialled[descriptor.address] = await self._endpoint.dial(descriptor.address)
                    pumps[pump] = receiver
                assert pool is not None
                mine = [exclusive.pop() for _ in range(buffers.exclusive_each)]
                channel = RemoteInputChannel(
                    gate,
                    index,
                    peer=descriptor.address,
                    partition_id=wanted,
                    subpartition=descriptor.subpartition,
                    exclusive=mine,
                    pool=pool,
                    network=self._pool,
                    credit_based=config.credit_based,
                )
                gate.add_channel(channel)
                receiver.open(channel)
                self._announce_start_size(channel)
            if config.debloat_target_s is not None:
                GateDebloating(gate, config, config.debloat_target_s, call_at=self.call_at)
            await trio.lowlevel.checkpoint()
        except BaseException:
            gate.close()
            raise
        finally:
            if exclusive:
                self._pool.recycle_unpooled(exclusive)
        return gate

    def release_partition(self, name: str) -> None:
        """Drops a partition and everything in it; unknown names are ignored."""
        partition = self._registry.find(name)
        if partition is not None:
            partition.release()

    def statistics(self) -> TaskManagerStatistics:
        """A snapshot; O(partitions + channels + queued buffers): about 3 ms for 1,000 channels."""
        accepted, dialled = self._endpoint.statistics()
        sent, received = self._endpoint.total_bytes()
        return TaskManagerStatistics(
            pool=self._pool.statistics(),
            partitions=tuple(partition.statistics() for partition in self._registry.all()),
            accepted=accepted,
            dialled=dialled,
            gates=tuple(gate.statistics() for gate in self._gates),
            bytes_sent=sent,
            bytes_received=received,
        )

    def tcp_facts(self) -> dict[str, str | int]:
        """What the kernel says of the first connection (congestion control, buffer sizes), for reports."""
        for pump in self._endpoint.pumps():
            return pump.stream.tcp_facts()
        return {}

    async def shut_down(self, *, graceful: bool) -> None:
        """Closes gates, partitions and connections, in that order. Called by `open_task_manager`."""
        if self._closed:
            return
        self._closed = True
        for gate in list(self._gates):
            gate.close()
        for partition in self._registry.all():
            partition.release()
        if graceful:
            await self._endpoint.close(GOODBYE_GRACE_S)
        else:
            self._endpoint.abort()
        self._pool.destroy()

    def _open_local(self, gate: SingleInputGate, index: int, descriptor: ChannelDescriptor) -> None:
        channel = LocalInputChannel(
            gate, index, partition_id=descriptor.partition_id, subpartition=descriptor.subpartition
        )
        gate.add_channel(channel)
        failed: list[ChannelFailed] = []
        at_once = True

        def on_failed(error: ChannelFailed) -> None:
            if at_once:
                failed.append(error)
            else:
                channel.fail(error)

        channel.withdraw = self._registry.open_view(
            descriptor.partition_id,
            descriptor.subpartition,
            channel.on_data_available,
            channel.on_view,
            on_failed,
        )
        at_once = False
        if failed:
            raise failed[0]

    def _announce_start_size(self, channel: InputChannel) -> None:
        start_bytes = self.config.debloat_start_buffer_bytes
        if self.config.debloat_target_s is not None and start_bytes is not None:
            channel.announce_buffer_size(start_bytes)

    def _gate_name(self, descriptors: Sequence[ChannelDescriptor]) -> str:
        """What the gate reads, short, and different from the names of the other open gates."""
        partitions = list(dict.fromkeys(descriptor.partition_id for descriptor in descriptors))
        more = len(partitions) - _NAMED_PARTITIONS
        name = ",".join(partitions[:_NAMED_PARTITIONS]) + (f"+{more}" if more > 0 else "")
        taken = {gate.name for gate in self._gates}
        names = itertools.chain([name], (f"{name}#{number}" for number in itertools.count(2)))
        return next(candidate for candidate in names if candidate not in taken)

    def _is_local(self, address: str) -> bool:
        if address == self.address:
            return True
        mine, theirs = urlsplit(self.address), urlsplit(address)
        if mine.scheme != theirs.scheme or mine.port is None or mine.port != theirs.port:
            return False
        # Bound to every address: any loopback name with our port is us.
        return mine.hostname in _ANY and theirs.hostname in (*_ANY, *_LOOPBACK)

    def _check_open(self) -> None:
        if self._closed:
            raise LocalProtocolError("the TaskManager is closed; open a new one")


_NAMED_PARTITIONS: Final = 3
_ANY: Final = ("0.0.0.0", "::")
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


@asynccontextmanager
async def open_task_manager(
    address: str,
    config: NetworkConfig | None = None,
    *,
    metrics_address: str | None = None,
    detailed_metrics: bool = False,
) -> AsyncIterator[TaskManager]:
    """Opens a TaskManager: `async with open_task_manager("tcp://0.0.0.0:6121") as tm: ...`.

    Args:
        address: where producers of this TaskManager are reached; port 0 picks a free one (see `TaskManager.address`).
        config: memory, buffers, timeouts.
        metrics_address: `host:port` at which Prometheus may read `/metrics`; port 0 picks a free one (see
            `TaskManager.metrics_address`). None serves nothing, and needs no prometheus_client.
        detailed_metrics: serves the shortest, longest and average queues, and the credit of every channel too.

    Raises:
        OSError: an address cannot be bound; the text names it.
        ConfigError: the URL, or a setting, cannot work; or prometheus_client is missing.

    Cancellation: everything is closed; peers read a broken connection. Leaving the block normally closes gates,
    releases partitions (whatever was not consumed is gone: await `RecordWriter.wait_consumed` before) and says goodbye
    to peers.
    """
    settings = config or NetworkConfig()
    listener = await transport_for(address).listen(address)
    failed: BaseException | None = None
    metrics: MetricsServer | None = None
    try:
        if metrics_address is not None:
            from .prometheus import bind_metrics  # only who asks for it needs prometheus_client

            metrics = await bind_metrics(metrics_address, detailed=detailed_metrics)
        async with trio.open_nursery() as nursery:
            manager = TaskManager(settings, listener, nursery)
            if metrics is not None:
                manager.metrics_address = metrics.address
                nursery.start_soon(metrics.serve, manager.statistics)
            clean = False
            try:
                yield manager
                clean = True
            except trio.Cancelled:
                raise
            except BaseException as error:  # the caller's own: it leaves as it is, not inside this nursery's group
                failed = error
            finally:
                listener.close()
                with trio.CancelScope(shield=True):
                    await manager.shut_down(graceful=clean)
                nursery.cancel_scope.cancel()
    finally:
        listener.close()
        if metrics is not None:
            metrics.close()
    if failed is not None:
        raise failed
