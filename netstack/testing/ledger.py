"""Ledger: checks the conservation laws of a `Link`, exactly, and cheaply enough for every step.

Takes: both pools, both directions of the pipe, the sender; partitions and gates as they are created. Gives: an
`AssertionError` with the law, the object and the numbers if a law is violated.

Segments:
- lent by a network pool = requested by its local pools + exclusive ones of open channels + exclusive ones of released
  channels that the application still holds + landing segments;
- requested by a gate's pool = at hand + free in its channels + floating ones in their queues + floating ones that the
  application holds; likewise the exclusive ones of each channel (`audit`).

Credit, for each channel (Flink's law, split so that data in flight is counted twice):
- at the receiver: announced + unannounced - used = free buffers;
- at the sender: granted - available = data buffers sent;
- in flight, as the pipe counts it from the bytes: credits = announced - granted, data buffers = sent - used.

Wake-ups and order (`audit`): every channel with work is queued for it, and every waiting channel is registered where it
is woken; priority events are first in every queue, and only its last element is unfinished.

It reads private attributes (`_requested`, `_channels`, ...), because a snapshot of 200 channels costs more than a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, final

from ..base.events import DataType
from ..exchange.buffer.buffer import Buffer
from ..exchange.buffer.pools import LocalBufferPool, NetworkBufferPool
from ..exchange.credit.sending import MAX_CREDIT
from ..exchange.inbound.channel import RemoteInputChannel
from ..exchange.inbound.gate import SingleInputGate
from ..exchange.outbound.partition import ResultPartition
from ..exchange.outbound.sender import ChannelSender
from ..exchange.outbound.sending_channel import SendingChannel
from ..exchange.outbound.subpartition import ResultSubpartition
from ..network.environment import NetworkEnvironment
from .scripted import Pipe

_DATA: Final = DataType.DATA


@final
class Ledger:
    """Checks one link."""

    def __init__(
        self,
        *,
        producer_pool: NetworkBufferPool,
        consumer_pool: NetworkBufferPool,
        to_consumer: Pipe,
        to_producer: Pipe,
        sender: ChannelSender,
        is_connected: Callable[[], bool],
    ) -> None:
        self.landing = 0
        """Landing segments lent to the connection."""
        self.held: dict[Buffer, RemoteInputChannel] = {}
        """Data buffers the application has taken and not given back."""
        self._producer_pool = producer_pool
        self._consumer_pool = consumer_pool
        self._to_consumer = to_consumer
        self._to_producer = to_producer
        self._sender = sender
        self._is_connected = is_connected
        self._partitions: list[ResultPartition] = []
        self._gates: dict[SingleInputGate, list[RemoteInputChannel]] = {}  # channels that are not released
        self._exclusive = 0  # of these

    def add_partition(self, partition: ResultPartition) -> None:
        """Adds a partition, until its last segment is returned."""
        self._partitions.append(partition)

    def add_gate(self, gate: SingleInputGate, channels: Iterable[RemoteInputChannel]) -> None:
        """Adds a gate and its channels, until they are released and the last segment is returned."""
        self._gates[gate] = list(channels)
        self._exclusive += sum(channel.manager.initial_credit for channel in self._gates[gate])

    # After a step.

    def check(self) -> None:
        """Checks all sums, all pools and, while connected, the credit of every channel."""
        for gate in list(self._gates):
            self._check_gate(gate)
        is_over = False
        for partition in self._partitions:
            _check_pool(partition.pool, self._producer_pool)
            is_over = is_over or (partition.is_released and not partition.pool._requested)
        if is_over:
            self._partitions = [one for one in self._partitions if not one.is_released or one.pool._requested]
        self.check_sums()

    def check_gate(self, gate: SingleInputGate) -> None:
        """Checks what a turn of a gate's reader changes: its pool, its channels, and the sums."""
        if gate in self._gates:
            self._check_gate(gate)
        self.check_sums()

    def check_partition(self, partition: ResultPartition) -> None:
        """Checks what a turn of a partition's writer changes: its pool, and the sums."""
        _check_pool(partition.pool, self._producer_pool)
        self.check_sums()

    def check_sums(self) -> None:
        """Checks the segments of each side, and the guarantees for them."""
        lent = self._producer_pool._total - self._producer_pool.free_segments
        requested = 0
        for partition in self._partitions:
            requested += partition.pool._requested
        assert lent == requested, f"producer: {lent} segments lent, {requested} known to its partitions"
        lent = self._consumer_pool._total - self._consumer_pool.free_segments
        floating = promised = 0
        for gate in self._gates:
            pool = gate.pool
            if pool is not None:
                floating += pool._requested
                if not pool.is_destroyed:
                    promised += pool.required
        orphans = 0
        for buffer, channel in self.held.items():
            if channel.is_released and not buffer.is_floating:
                orphans += 1
        known = floating + self._exclusive + orphans + self.landing
        assert lent == known, (
            f"consumer: {lent} segments lent, but {floating} requested by gates, {self._exclusive} exclusive, {orphans}"
            f" held of released channels, {self.landing} landing"
        )
        promised = self._consumer_pool._required - promised
        assert promised == known - floating, f"consumer: {promised} unpooled segments promised, {known - floating} out"

    def audit(self) -> None:
        """Checks every segment of every gate, and every wake-up; O(channels + queued buffers)."""
        held = dict.fromkeys(self._gates, 0)
        exclusive = {channel: 0 for channels in self._gates.values() for channel in channels}
        for buffer, channel in self.held.items():
            if buffer.is_floating:
                held[channel._gate] += 1
            elif channel in exclusive:
                exclusive[channel] += 1
        for gate, channels in self._gates.items():
            floating = held[gate]
            for channel in channels:
                floating += len(channel.manager.floating)
                own = exclusive[channel] + len(channel.manager.exclusive)
                for buffer in channel.manager.queue:
                    if buffer.data_type is _DATA:
                        floating += buffer.is_floating
                        own += not buffer.is_floating
                assert channel.is_released or own == channel.manager.initial_credit, (
                    f"{channel}: {own} of its {channel.manager.initial_credit} exclusive buffers are somewhere"
                )
                if not channel.is_released:
                    _check_wake_ups(channel)
            pool = gate.pool
            if pool is not None:
                floating += len(pool._available)
                assert floating == pool._requested, f"{floating} of {pool._requested} floating buffers are somewhere"
        for sending in self._sender._channels.values():
            _check_line(sending)
        for partition in self._partitions:
            for subpartition in partition.subpartitions:
                _check_queue(subpartition)

    # The laws.

    def _check_gate(self, gate: SingleInputGate) -> None:
        find = self._sender._channels.get
        data_under_way, credit_under_way = self._to_consumer.data.get, self._to_producer.credits.get
        is_connected = self._is_connected()
        released = 0
        for channel in self._gates[gate]:
            if channel.is_released:
                released += 1
                continue
            receive = channel.manager.credit
            used = receive.used
            manager = channel.manager
            if receive.announced + receive.unannounced - used != len(manager.exclusive) + len(manager.floating):
                self._explain(channel, None)
            number = channel.number
            sending = find(number)
            if sending is not None and is_connected:
                send = sending.credit
                if (
                    send.available < 0
                    or receive.announced - send.granted != credit_under_way(number, 0)
                    or send.spent - used != data_under_way(number, 0)
                ):
                    self._explain(channel, sending)
        if gate.pool is not None:
            _check_pool(gate.pool, self._consumer_pool)
        if released or gate._closed:
            self._forget(gate)

    def _forget(self, gate: SingleInputGate) -> None:
        """Removes released channels, and their gate after the last channel and segment."""
        channels = self._gates[gate]
        self._exclusive -= sum(channel.manager.initial_credit for channel in channels if channel.is_released)
        self._gates[gate] = left = [channel for channel in channels if not channel.is_released]
        if not left and gate.is_closed and (gate.pool is None or not gate.pool._requested):
            del self._gates[gate]

    def _explain(self, channel: RemoteInputChannel, sending: SendingChannel | None) -> None:
        """Raises for the violated law.

        No law is violated if a channel without exclusive buffers is blocked: its receiver has returned its buffers, and
        the sender will reset its credit on resume.
        """
        receive = channel.manager.credit
        assert receive.announced + receive.unannounced - receive.used == channel.manager.free_buffers, (
            f"{channel}: announced {receive.announced} + unannounced {receive.unannounced} - used {receive.used} is not"
            f" the {channel.manager.free_buffers} free buffers"
        )
        if sending is None:
            return
        send = sending.credit
        assert send.available >= 0, f"{channel}: credit {send.available}"
        view = sending.view
        if not channel.manager.initial_credit and isinstance(view, ResultSubpartition) and view.is_blocked:
            return
        for what, known, seen in (
            ("credits", receive.announced - send.granted, self._to_producer.credits.get(channel.number, 0)),
            ("data buffers", send.spent - receive.used, self._to_consumer.data.get(channel.number, 0)),
        ):
            assert seen == known, (
                f"{channel}: {known - seen} {what} were lost on the way ({known} set out and did not arrive, {seen} are"
                " under way)"
            )


def check_environment(environment: NetworkEnvironment) -> None:
    """Checks what one network knows by itself: its pools, its channels, its senders' queues.

    Each segment counts once: the lent segments are at least those requested by local pools plus those lent outside
    pools. The rest belongs to released partitions and gates and will be returned.
    """
    network = environment._pool
    lent = network._total - network.free_segments
    known = network._unpooled - sum(request.missing for request in network._requests)
    for pool in network._pools:
        _check_pool(pool, network)
        known += pool._requested
    assert lent >= known, f"{lent} segments lent, but {known} known to pools and channels"
    assert network._required <= network._total, f"{network._required} of {network._total} segments promised"
    for gate in environment._gates:
        for channel in gate.channels:
            if isinstance(channel, RemoteInputChannel) and not channel.is_released:
                receive = channel.manager.credit
                assert (
                    receive.announced >= MAX_CREDIT  # without credit-based flow control
                    or receive.announced + receive.unannounced - receive.used == channel.manager.free_buffers
                ), (
                    f"{channel}: announced {receive.announced} + unannounced {receive.unannounced} - used"
                    f" {receive.used} is not the {channel.manager.free_buffers} free buffers"
                )
                _check_wake_ups(channel)
    for sender in environment._endpoint._accepted.values():
        for sending in sender._channels.values():
            send = sending.credit
            assert send.available >= 0, f"channel {sending.number}: credit {send.available}"
            _check_line(sending)


def _check_pool(pool: LocalBufferPool, network: NetworkBufferPool) -> None:
    """Checks the invariants of a local pool."""
    available, requested, size = len(pool._available), pool._requested, pool.present_size
    assert available <= requested, f"a pool has {pool.statistics()}"
    if pool.maximum is not None and pool.largest_maximum is not None:
        assert requested <= pool.largest_maximum + pool._max_overdraft, f"a pool has {pool.statistics()}"
        is_over = requested > pool.maximum + pool._max_overdraft
        assert not is_over or not available, f"a pool that gives back keeps what nobody uses: {pool.statistics()}"
    if pool.is_destroyed:
        return
    assert pool.required <= size, f"a pool shrank below its guarantee: {pool.statistics()}"
    assert pool.maximum is None or size <= pool.maximum, f"a pool grew too large: {pool.statistics()}"
    if available:
        assert not pool._listeners, f"a channel waits beside a segment: {pool.statistics()}"
        assert requested <= size, f"a segment at hand beyond its size: {pool.statistics()}"
    else:
        assert not pool._is_available, f"available without a segment at hand: {pool.statistics()}"
        assert requested >= size or not network.free_segments, (
            f"no segment at hand, below its size, and {network.free_segments} are free: {pool.statistics()}"
        )


def _check_queue(subpartition: ResultSubpartition) -> None:
    """Checks that priority events form a prefix, only the last element is unfinished, and the counts are correct."""
    queue = subpartition._queue
    first = subpartition._priority_count
    data = events = 0
    for index, element in enumerate(queue):
        assert element.data_type.has_priority == (index < first), f"subpartition {subpartition.index}: element {index}"
        assert element.is_finished or index == len(queue) - 1, f"subpartition {subpartition.index}: unfinished {index}"
        if element.is_data:
            data += element.buffers
        else:
            events += 1
    assert data == subpartition._data_buffers, f"subpartition {subpartition.index}: {data} data buffers"
    assert events == subpartition._events, f"subpartition {subpartition.index}: {events} events"


def _check_line(sending: SendingChannel) -> None:
    """Checks that a channel with data is queued, and with a priority event in the priority queue."""
    view = sending.view
    if view is None:
        return
    name = f"channel {sending.number} ({sending.partition_id!r} subpartition {sending.subpartition})"
    if not sending.is_registered:
        assert not view.is_available(has_credit=sending.credit.available > 0), (
            f"{name} has something to send, {sending.credit.available} credits, and is not in line"
        )
    elif not sending.is_first and view.has_priority:
        assert not view.is_available(has_credit=False), f"{name} has a priority event and stands in the ordinary line"


def _check_wake_ups(channel: RemoteInputChannel) -> None:
    """Checks that the gate will poll the channel, and that the pool will offer it the buffers it needs."""
    gate = channel._gate
    for index, buffer in enumerate(channel.manager.queue):
        assert buffer.data_type.has_priority == (index < channel._priority_count), f"{channel}: element {index}"
    if channel.manager.queue or channel._error is not None:
        assert channel.is_enqueued, f"{channel} has something to read and is not in line"
    pool = gate.pool
    if pool is not None and channel.manager.free_buffers < channel.manager.required and channel._error is None:
        assert channel.manager._is_waiting, (
            f"{channel} wants {channel.manager.required} buffers, has {channel.manager.free_buffers}, waits for none"
        )
        assert channel.manager in pool._listeners, f"{channel} waits for a buffer that nobody will offer"
