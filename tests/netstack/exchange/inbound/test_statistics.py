"""Usages and queues of a gate over local and remote channels: one definition each, whatever the channel."""

from __future__ import annotations

import itertools

import pytest

from netstack.base.events import CheckpointBarrier, DataType, Event, UserEvent, data_type_of, encode_event
from netstack.base.ids import ChannelDescriptor
from netstack.exchange.buffer.buffer import Buffer
from netstack.exchange.buffer.builder import BufferBuilder
from netstack.exchange.buffer.elements import EventBuffer
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.inbound.channel import RemoteInputChannel
from netstack.exchange.inbound.gate import SingleInputGate
from netstack.exchange.inbound.local_channel import LocalInputChannel
from netstack.exchange.inbound.statistics import GateStatistics
from netstack.exchange.inbound.union import UnionInputGate
from netstack.exchange.outbound.subpartition import ResultSubpartition

SIZE = 16


def nothing(*arguments: object) -> None:
    pass


class Stage:
    """A gate of remote channels, each with its own buffers, followed by local ones."""

    def __init__(self, *, remote: int, local: int, exclusive: int = 2, floating: int = 4) -> None:
        self.network = NetworkBufferPool(64, SIZE)
        pool = self.network.create_pool(1, floating) if remote else None
        self.gate = SingleInputGate(pool, read_connections=nothing, on_closed=nothing, name="g")
        self.landing = self.network.take_unpooled(1)[0]
        self.output = self.network.create_pool(8, 8)
        self.sequence = [0] * remote
        self.remote: list[RemoteInputChannel] = []
        self.local: list[ResultSubpartition] = []
        for index in range(remote):
            assert pool is not None
            channel = RemoteInputChannel(
                self.gate,
                index,
                ChannelDescriptor("there", "p", index),
                exclusive=self.network.take_unpooled(exclusive),
                pool=pool,
                network=self.network,
            )
            self.gate.add_channel(channel)
            self.remote.append(channel)
        for index in range(local):
            subpartition = ResultSubpartition(index, nothing, nothing)
            reader = LocalInputChannel(self.gate, remote + index, ChannelDescriptor("", "q", index))
            self.gate.add_channel(reader)
            reader.on_view(subpartition.create_view(reader.on_data_available))
            self.local.append(subpartition)

    def arrive(self, index: int, data: bytes = b"x", backlog: int = 0) -> None:
        """A data buffer at a remote channel."""
        self.landing = self.remote[index].on_buffer(self._next(index), backlog, self.landing, len(data))

    def arrive_event(self, index: int, event: Event) -> None:
        self.remote[index].on_event(self._next(index), 0, data_type_of(event), encode_event(event))

    def write(self, index: int, data: bytes = b"x", *, finish: bool = True) -> None:
        """A data buffer in the queue of a local channel."""
        segment = self.output.try_acquire()
        assert segment is not None
        builder = BufferBuilder(segment, self.output, 0)
        self.local[index].add(builder.create_consumer())
        builder.append(data)
        if finish:
            builder.finish()
            builder.close()
            self.local[index].on_buffer_finished()

    def write_event(self, index: int, event: Event) -> None:
        self.local[index].add(EventBuffer(encode_event(event), data_type_of(event)))

    def poll(self) -> Buffer:
        buffer = self.gate.poll()
        assert buffer is not None
        return buffer

    def statistics(self) -> GateStatistics:
        return self.gate.statistics()

    def usages(self) -> tuple[float, float, float]:
        statistics = self.statistics()
        return statistics.exclusive_usage, statistics.floating_usage, statistics.in_pool_usage

    def _next(self, index: int) -> int:
        self.sequence[index] += 1
        return self.sequence[index] - 1


# Usages.


def test_an_untouched_gate_uses_nothing() -> None:
    stage = Stage(remote=2, local=1)
    assert stage.usages() == (0, 0, 0)
    statistics = stage.statistics()
    assert (statistics.exclusive_buffers, statistics.floating_buffers) == (4, 4)


def test_local_channels_do_not_count() -> None:
    stage = Stage(remote=0, local=2)
    stage.write(0)
    stage.write(1)
    held = stage.poll()
    assert stage.usages() == (0, 0, 0)
    held.recycle()
    mixed, alone = Stage(remote=2, local=3), Stage(remote=2, local=0)
    mixed.write(2)
    for each in (mixed, alone):
        each.arrive(1)
    assert mixed.usages() == alone.usages() == (1 / 4, 0, 1 / 8)


def test_a_buffer_is_used_from_its_arrival_until_it_is_recycled() -> None:
    stage = Stage(remote=2, local=1)
    stage.arrive(0)
    stage.arrive(0)  # in a floating buffer: the channel has made up for its exclusive one
    stage.arrive(1)
    assert stage.usages() == (2 / 4, 1 / 4, 3 / 8)
    held = stage.poll()
    assert stage.usages() == (2 / 4, 1 / 4, 3 / 8)
    held.recycle()
    assert stage.usages() == (1 / 4, 1 / 4, 2 / 8)


def test_floating_buffers_are_used_when_they_hold_data_not_when_they_are_reserved() -> None:
    stage = Stage(remote=2, local=1)
    stage.arrive(0, backlog=4)  # takes an exclusive buffer, and reserves up to 4 floating ones
    statistics = stage.statistics()
    assert (statistics.channels[0].free_exclusive, statistics.channels[0].free_floating) == (1, 4)
    assert stage.usages() == (1 / 4, 0, 1 / 8)
    for _ in range(3):
        stage.arrive(0, backlog=0)  # floating ones first
    assert stage.usages() == (1 / 4, 3 / 4, 4 / 8)
    for _ in range(4):
        stage.poll().recycle()
    assert stage.usages() == (0, 0, 0)


def test_exclusive_buffers_of_channels_that_are_gone_do_not_count() -> None:
    stage = Stage(remote=2, local=0)
    stage.arrive(0)
    stage.arrive(1)
    stage.remote[0].release()
    statistics = stage.statistics()
    assert (statistics.exclusive_buffers, statistics.used_exclusive_buffers) == (2, 1)
    assert stage.usages()[0] == 1 / 2
    stage.gate.close()
    assert stage.usages()[0] == 0


def test_without_exclusive_buffers_everything_floats() -> None:
    stage = Stage(remote=1, local=1, exclusive=0)
    stage.remote[0].manager.on_backlog(3)
    for _ in range(3):
        stage.arrive(0)
    assert stage.usages() == (0, 3 / 4, 3 / 4)


def test_a_pool_that_shrinks_is_used_beyond_its_size() -> None:
    stage = Stage(remote=1, local=0, exclusive=0)
    stage.remote[0].manager.on_backlog(4)
    for _ in range(4):
        stage.arrive(0)
    assert stage.gate.pool is not None
    stage.gate.pool.set_size(2)
    assert stage.usages() == (0, 2, 2)


# Queues: the same words for what came over the wire and for what a local producer wrote.


@pytest.mark.parametrize("is_remote", [True, False])
def test_queues_hold_what_can_be_polled_now(is_remote: bool) -> None:
    stage = Stage(remote=int(is_remote), local=int(not is_remote))
    put = stage.arrive if is_remote else stage.write
    put_event = stage.arrive_event if is_remote else stage.write_event
    event = encode_event(UserEvent("x"))
    put(0, b"abc")
    put_event(0, UserEvent("x"))
    put(0, b"de")
    expected = [(3, 5 + len(event), 0, 0), (2, 2 + len(event), 1, 3), (1, 2, 1, 3), (0, 0, 2, 5)]
    for queued_buffers, queued_bytes, polled_buffers, polled_bytes in expected:
        statistics = stage.statistics()
        channel = statistics.channels[0]
        assert (statistics.queued_buffers, statistics.queued_bytes) == (queued_buffers, queued_bytes)
        assert (channel.queued_buffers, channel.queued_bytes) == (queued_buffers, queued_bytes)
        assert (channel.polled_buffers, channel.polled_bytes) == (polled_buffers, polled_bytes)
        over_the_wire = (statistics.remote_buffers, statistics.remote_bytes)
        in_here = (statistics.local_buffers, statistics.local_bytes)
        polled = (polled_buffers, polled_bytes)
        assert (over_the_wire, in_here) == ((polled, (0, 0)) if is_remote else ((0, 0), polled))
        if queued_buffers:
            stage.poll().recycle()


def test_an_open_buffer_of_a_local_producer_is_queued_when_it_is_flushed() -> None:
    stage = Stage(remote=0, local=1)
    stage.write(0, b"abc")
    stage.write(0, b"de", finish=False)
    assert (stage.statistics().queued_buffers, stage.statistics().queued_bytes) == (1, 3)
    stage.local[0].flush()
    assert (stage.statistics().queued_buffers, stage.statistics().queued_bytes) == (2, 5)
    stage.poll().recycle()
    stage.poll().recycle()
    assert (stage.statistics().queued_buffers, stage.statistics().queued_bytes) == (0, 0)


def test_what_a_barrier_holds_back_is_not_queued() -> None:
    stage = Stage(remote=0, local=1)
    stage.write_event(0, CheckpointBarrier(1))
    stage.write(0, b"abc")
    assert stage.statistics().queued_buffers == 1
    assert stage.poll().data_type is DataType.ALIGNED_BARRIER
    assert stage.statistics().queued_buffers == 0
    stage.gate.resume(0)
    assert (stage.statistics().queued_buffers, stage.statistics().queued_bytes) == (1, 3)


def test_in_use_is_queued_here_or_waiting_at_a_producer() -> None:
    stage = Stage(remote=2, local=1)
    stage.arrive(0, backlog=3)
    stage.arrive(1, backlog=2)
    stage.arrive(1, backlog=1)
    stage.write(0)
    stage.write(0, finish=False)
    statistics = stage.statistics()
    assert [channel.sender_backlog for channel in statistics.channels] == [3, 1, 1]
    assert (statistics.queued_buffers, statistics.sender_backlog, statistics.buffers_in_use) == (4, 5, 9)
    assert stage.gate.measure()[1] == 9
    stage.gate.close()
    statistics = stage.statistics()
    assert (statistics.queued_buffers, statistics.buffers_in_use, stage.gate.measure()[1]) == (0, 0, 0)


def test_the_shortest_the_longest_and_the_average_queue() -> None:
    stage = Stage(remote=2, local=1)
    for index, count in enumerate((2, 1)):
        for _ in range(count):
            stage.arrive(index)
    statistics = stage.statistics()
    queues = (statistics.shortest_queue_buffers, statistics.longest_queue_buffers, statistics.average_queue_buffers)
    assert queues == (0, 2, 1)


def test_a_gate_that_is_being_opened_has_no_channels_yet() -> None:
    statistics = Stage(remote=0, local=0).statistics()
    assert statistics.name == "g"
    numbers = (
        statistics.queued_buffers,
        statistics.shortest_queue_buffers,
        statistics.longest_queue_buffers,
        statistics.average_queue_buffers,
        statistics.in_pool_usage,
    )
    assert numbers == (0, 0, 0, 0, 0)


def test_announcements_are_summed() -> None:
    stage = Stage(remote=2, local=1)
    for channel, count in zip(stage.remote, itertools.count(2)):
        channel.manager.announcements = count
        channel.backlog_announcements = 10 * count
    assert (stage.statistics().announcements, stage.statistics().backlog_announcements) == (5, 50)


def test_a_union_is_the_sum_of_its_gates() -> None:
    stages = [Stage(remote=1, local=1), Stage(remote=0, local=1), Stage(remote=2, local=0)]
    union = UnionInputGate([stage.gate for stage in stages])
    stages[0].arrive(0, backlog=2)
    stages[0].arrive(0)
    stages[1].write(0)
    stages[2].arrive(1)
    statistics = union.statistics()
    assert statistics.name == "g and g and g"
    assert (statistics.exclusive_buffers, statistics.floating_buffers) == (6, 8)
    assert (statistics.used_exclusive_buffers, statistics.used_floating_buffers) == (2, 1)
    assert statistics.in_pool_usage == 3 / 14
    assert statistics.queued_buffers == 4
    assert statistics.pool is not None
    assert statistics.pool.maximum == 8
