"""Opens input gates: takes their buffers, finds local channels, and requests remote ones from the producers.

Takes: `ChannelDescriptor`s. Gives: `SingleInputGate`s, with the connections that each one reads.

Taking and returning a name is O(log gates with this description).
"""

from __future__ import annotations

import heapq
import logging
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Final, final

import trio

from ..base.config import NetworkConfig
from ..base.errors import ChannelFailed, ConfigError, NetstackError, ProducerUnreachable
from ..base.ids import ChannelDescriptor, PartitionId, partition_id
from ..base.text.safe_text import safe_repr
from ..base.transport import url_parts
from ..exchange.buffer.pools import NetworkBufferPool
from ..exchange.buffer.requirements import gate_buffers
from ..exchange.buffer.statistics import NetworkBufferPoolStatistics
from ..exchange.inbound.channel import RemoteInputChannel
from ..exchange.inbound.gate import InputChannel, SingleInputGate
from ..exchange.inbound.local_channel import LocalInputChannel
from ..exchange.inbound.receiver import ChannelReceiver
from ..exchange.outbound.views import ViewProvider
from .connection.buffers import wait_unpooled
from .connection.dialling import may_come_back
from .connection.endpoint import NetworkEndpoint
from .connection.pump import Pump
from .connection.readiness import Producers
from .debloating import GateDebloating
from .partitions import PartitionRegistry

LOGGER: Final = logging.getLogger("netstack")


@final
class MemoryWatch:
    """Warns when the tasks of a TaskManager request more network memory than it has, and for every further tenth."""

    __slots__ = ("_warned_percent",)

    def __init__(self) -> None:
        self._warned_percent = 0.0  # in the last warning; 0 if memory suffices

    def check(self, memory: NetworkBufferPoolStatistics) -> None:
        """Checks the requested segments; logs at most one line."""
        total = memory.total_segments
        if memory.requested_segments <= total:
            if self._warned_percent:
                self._warned_percent = 0.0
                LOGGER.info("network memory suffices again: %.0f %% of it is requested", memory.requested_percent)
        elif memory.requested_percent >= self._warned_percent + 10 or not self._warned_percent:
            self._warned_percent = memory.requested_percent
            missing = memory.requested_segments - total
            LOGGER.warning(
                "network memory is short: %.0f %% of it is requested (%d of %d segments, %d are missing); throughput is"
                " reduced; raise memory_bytes by %d, or configure fewer buffers per gate or partition",
                memory.requested_percent,
                memory.requested_segments,
                total,
                missing,
                missing * memory.segment_size_bytes,
            )


_NAMED_PARTITIONS: Final = 3
_CHANNELS_A_TURN: Final = 32  # about 1 ms: hundreds of gates may open at once, and handshakes wait for them


@final
class GateOpener:
    """Opens the gates of one NetworkEnvironment."""

    def __init__(
        self,
        config: NetworkConfig,
        addresses: set[str],
        pool: NetworkBufferPool,
        registry: PartitionRegistry,
        endpoint: NetworkEndpoint,
        memory_watch: MemoryWatch,
        *,
        now: Callable[[], float],
        call_at: Callable[[float, Callable[[], None]], None],
    ) -> None:
        """Starts without gates; `addresses`, which the environment may extend, are its own."""
        self.gates: dict[SingleInputGate, Producers] = {}
        self._config = config
        self._addresses = addresses
        self._now = now
        self._call_at = call_at
        self._pool = pool
        self._registry = registry
        self._endpoint = endpoint
        self._memory_watch = memory_watch
        self._names = GateNames()

    async def open(self, descriptors: Sequence[ChannelDescriptor]) -> SingleInputGate:
        """Opens a gate, as `NetworkEnvironment.open_gate` documents."""
        descriptors = _checked_descriptors(descriptors)
        addresses = {descriptor.address for descriptor in descriptors}
        local = {address for address in addresses if any(is_same_address(mine, address) for mine in self._addresses)}
        is_local = [each.address in local or self._is_sealed_here(each) for each in descriptors]
        remote = is_local.count(False)
        config = self._config
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
        producers = Producers()
        dialled: dict[tuple[str, bool], tuple[Pump, ChannelReceiver]] = {}

        base = _what_is_read(descriptors)
        name = self._names.take(base)

        def forget() -> None:
            if gate in self.gates:
                del self.gates[gate]
                self._names.give_back(base, name)

        gate = SingleInputGate(
            pool, read_connections=producers.read_connections, on_closed=forget, now=self._now, name=name
        )
        gate.config = config
        if config.spare_floating_buffers_per_gate:
            gate.allow_spare(config.spare_floating_buffers_per_gate, producers.round_trip_s)
        self.gates[gate] = producers
        self._memory_watch.check(self._pool.statistics())
        try:
            for index, descriptor in enumerate(descriptors):
                if is_local[index]:
                    open_local_channel(gate, index, descriptor, self._registry)
                    self._announce_start_size(gate.channels[index])
                    continue
                wanted = PartitionId(descriptor.partition_id)
                route = descriptor.address, descriptor.is_prompt and not config.as_flink
                pump, receiver = dialled.get(route, (None, None))
                if pump is None or receiver is None or pump.is_closed:
                    try:
                        pump, receiver = dialled[route] = await self._endpoint.dial(*route)
                    except NetstackError as error:
                        if may_come_back(error):
                            raise ProducerUnreachable(str(error), wanted) from error
                        raise
                    pump.readers += 1
                    pump.leave_to_thread(False)
                    producers.add(pump, receiver)
                assert pool is not None
                mine = [exclusive.pop() for _ in range(buffers.exclusive_each)]
                channel = RemoteInputChannel(
                    gate,
                    index,
                    descriptor,
                    exclusive=mine,
                    pool=pool,
                    network=self._pool,
                    credit_based=config.credit_based,
                )
                gate.add_channel(channel)
                receiver.open(channel)
                self._announce_start_size(channel)
                if index % _CHANNELS_A_TURN == _CHANNELS_A_TURN - 1:
                    await trio.lowlevel.checkpoint()  # requests are sent meanwhile
            gate.spin_s = config.spin_s if producers.may_spin else 0.0
            if config.debloat_target_s is not None:
                GateDebloating(gate, config, config.debloat_target_s, call_at=self._call_at)
            await trio.lowlevel.checkpoint()
        except BaseException:
            gate.abandon()
            raise
        finally:
            if exclusive:
                self._pool.recycle_unpooled(exclusive)
        return gate

    def _is_sealed_here(self, descriptor: ChannelDescriptor) -> bool:
        """Whether this process wrote a partition that another process of the TaskManager serves now."""
        partition = self._registry.find(descriptor.partition_id)
        return partition is not None and partition.store is not None and partition.store.is_sealed

    def _announce_start_size(self, channel: InputChannel) -> None:
        start_bytes = self._config.debloat_start_buffer_bytes
        if self._config.debloat_target_s is not None and start_bytes is not None:
            channel.announce_buffer_size(start_bytes)


def _checked_descriptors(descriptors: Iterable[ChannelDescriptor]) -> tuple[ChannelDescriptor, ...]:
    """The descriptors of a gate. Raises ConfigError if there are none, or one is not of a channel that could exist."""
    if not isinstance(descriptors, Iterable):
        raise ConfigError(
            f"a gate takes a sequence of ChannelDescriptors; {safe_repr(descriptors)} is none: put them in a list"
        )
    checked = tuple(descriptors)
    if not checked:
        raise ConfigError("a gate needs at least one ChannelDescriptor")
    for descriptor in checked:
        _check(descriptor)
    return checked


def _check(descriptor: ChannelDescriptor) -> None:
    """Raises ConfigError if it is no descriptor of a channel that could exist."""
    if not isinstance(descriptor, ChannelDescriptor):
        raise ConfigError(f"a gate takes a sequence of ChannelDescriptors; {descriptor!r} is none")
    partition_id(descriptor.partition_id)
    if not isinstance(descriptor.address, str):
        raise ConfigError(f"{descriptor}: the address has to be text; write it like tcp://127.0.0.1:6121")
    try:
        first, count = operator.index(descriptor.subpartition), operator.index(descriptor.subpartitions)
    except TypeError as error:
        raise ConfigError(f"{descriptor}: subpartition and subpartitions have to be whole numbers") from error
    if not 0 <= first < 1 << 32 or not 1 <= count < 1 << 32:
        raise ConfigError(
            f"partition {descriptor.partition_id!r} cannot have {count} subpartitions from {first} on;"
            " give subpartitions >= 1 and subpartition >= 0"
        )


def _what_is_read(descriptors: Sequence[ChannelDescriptor]) -> str:
    """A short description of the partitions that a gate reads."""
    partitions = list(dict.fromkeys(descriptor.partition_id for descriptor in descriptors))
    more = len(partitions) - _NAMED_PARTITIONS
    return ",".join(partitions[:_NAMED_PARTITIONS]) + (f"+{more}" if more > 0 else "")


@final
class GateNames:
    """The names in use."""

    __slots__ = ("_bases",)

    def __init__(self) -> None:
        self._bases: dict[str, _Numbers] = {}

    def take(self, base: str) -> str:
        """Returns the first free name with this base."""
        numbers = self._bases.get(base)
        if numbers is None:
            numbers = self._bases[base] = _Numbers()
        numbers.used += 1
        if numbers.free:
            number = heapq.heappop(numbers.free)
        else:
            numbers.highest += 1
            number = numbers.highest
        return base if number == 1 else f"{base}#{number}"

    def give_back(self, base: str, name: str) -> None:
        """Makes a name available again."""
        numbers = self._bases[base]
        numbers.used -= 1
        if not numbers.used:
            del self._bases[base]
        else:
            heapq.heappush(numbers.free, 1 if name == base else int(name.rpartition("#")[2]))


@final
class _Numbers:
    __slots__ = ("free", "highest", "used")

    def __init__(self) -> None:
        self.highest = 0
        self.used = 0
        self.free: list[int] = []


_ANY: Final = ("0.0.0.0", "::")
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


def is_same_address(mine: str, theirs: str) -> bool:
    """Whether dialling `theirs` reaches the TaskManager that listens at `mine`, judged by the text alone."""
    if mine == theirs:
        return True
    here, there = url_parts(mine), url_parts(theirs)
    if here.scheme != there.scheme or here.port is None or here.port != there.port:
        return False
    # We listen at all addresses, so every loopback name with our port reaches us.
    return here.hostname in _ANY and there.hostname in (*_ANY, *_LOOPBACK)


def open_local_channel(gate: SingleInputGate, index: int, descriptor: ChannelDescriptor, views: ViewProvider) -> None:
    """Adds a local channel to a gate.

    Raises:
        ChannelFailed: the subpartition is released or already consumed. A partition that is not created in time fails
            the channel later.
    """
    channel = LocalInputChannel(gate, index, descriptor)
    gate.add_channel(channel)
    failed: list[ChannelFailed] = []
    at_once = True

    def on_failed(error: ChannelFailed) -> None:
        if at_once:
            error.partition = descriptor.partition_id
            failed.append(error)
        else:
            channel.fail(error)

    channel.withdraw = views.open_view(
        descriptor.partition_id,
        descriptor.subpartition,
        channel.on_data_available,
        channel.on_view,
        on_failed,
        descriptor.subpartitions,
    )
    at_once = False
    if failed:
        raise failed[0]
