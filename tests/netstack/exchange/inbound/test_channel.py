"""Remote input channels: credit, and the golden scenario of floating buffers."""

from __future__ import annotations

import pytest

from netstack.base.errors import ChannelFailed, ErrorCode, LocalProtocolError, ProducerFailed, RemoteProtocolError
from netstack.base.events import (
    Alignment,
    CheckpointBarrier,
    DataType,
    EndOfData,
    EndOfPartition,
    UserEvent,
    encode_event,
)
from netstack.base.ids import ChannelDescriptor
from netstack.exchange.buffer.buffer import Buffer
from netstack.exchange.buffer.pools import LocalBufferPool, NetworkBufferPool
from netstack.exchange.buffer.segment import Segment
from netstack.exchange.credit.receiving import TRICKLE_BYTES, BufferManager
from netstack.exchange.credit.spare import REVIEW_BUFFERS
from netstack.exchange.inbound.channel import RemoteInputChannel
from netstack.exchange.inbound.gate import SingleInputGate

SIZE = 16
FIRST_NUMBER = 10


def nothing() -> None:
    pass


class Stage:
    """A gate of remote channels, and the connection they think they have."""

    def __init__(
        self,
        *,
        channels: int = 1,
        exclusive: int = 2,
        floating: tuple[int, int] = (1, 14),
        segments: int = 64,
        segment_bytes: int = SIZE,
    ) -> None:
        self.network = NetworkBufferPool(segments, segment_bytes)
        self.pool: LocalBufferPool = self.network.create_pool(*floating)
        self.landing = self.network.take_unpooled(1)[0]
        self.told = 0
        self.log: list[str] = []
        self.held: list[BufferManager] = []
        self.urgent = 0
        self.gate = SingleInputGate(self.pool, read_connections=nothing, on_closed=lambda: self.log.append("closed"))
        self.gate.on_available = self.on_available
        for index in range(channels):
            channel = RemoteInputChannel(
                self.gate,
                index,
                ChannelDescriptor("memory://producer", "p", index),
                exclusive=self.network.take_unpooled(exclusive),
                pool=self.pool,
                network=self.network,
            )
            channel.attach(self, FIRST_NUMBER + index)
            self.gate.add_channel(channel)
        self.channel = self.remote(0)

    def on_available(self) -> None:
        self.told += 1

    def remote(self, index: int) -> RemoteInputChannel:
        channel = self.gate.channels[index]
        assert isinstance(channel, RemoteInputChannel)
        return channel

    # ChannelLink.

    def schedule_announcement(self, manager: BufferManager) -> None:
        self.log.append(f"announce {manager.number - FIRST_NUMBER}")

    def announce_now(self) -> None:
        self.urgent += 1

    def defer_announcement(self, manager: BufferManager) -> None:
        self.held.append(manager)

    def send_resume(self, number: int) -> None:
        self.log.append(f"resume {number - FIRST_NUMBER}")

    def request_buffer_size(self, number: int, size_bytes: int) -> None:
        self.log.append(f"size {number - FIRST_NUMBER} {size_bytes}")

    def acknowledge(self, number: int) -> None:
        self.log.append(f"acknowledge {number - FIRST_NUMBER}")

    def remove(self, channel: RemoteInputChannel) -> None:
        self.log.append(f"leave {channel.index}")

    # What arrives.

    def arrive(self, sequence: int, data: bytes = b"x", backlog: int = 0, index: int = 0) -> None:
        if sequence % 2:
            self.remote(index).on_small_buffer(sequence, backlog, data)
            return
        self.landing.memory[: len(data)] = data
        self.landing = self.remote(index).on_buffer(sequence, backlog, self.landing, len(data))

    def free(self, index: int = 0) -> tuple[int, int]:
        statistics = self.remote(index).statistics()
        return statistics.free_exclusive, statistics.free_floating

    def required(self) -> int:
        return self.channel.statistics().sender_backlog + self.channel.manager.initial_credit

    def pool_free(self) -> int:
        """Floating buffers the gate could still hand out."""
        statistics = self.pool.statistics()
        return statistics.available + statistics.size - statistics.requested

    def waiting(self) -> bool:
        return self.pool.statistics().waiting_listeners > 0

    def poll(self, index: int = 0) -> Buffer:
        buffer = self.remote(index).poll()
        assert buffer is not None
        return buffer

    def assert_all_home(self) -> None:
        self.gate.close()
        self.network.recycle_unpooled([self.landing])
        assert self.network.statistics().lent_segments == 0


@pytest.fixture
def stage() -> Stage:
    return Stage()


# The golden scenario (8.4): 2 exclusive, 14 floating.


def golden_stage() -> tuple[Stage, Segment, Segment, Buffer]:
    """One exclusive and two floating buffers are in somebody's hands."""
    stage = Stage(floating=(1, 14))
    floats = [stage.pool.try_acquire(), stage.pool.try_acquire()]
    stage.arrive(0)
    taken = stage.poll()
    assert not taken.is_floating
    assert floats[0] is not None
    assert floats[1] is not None
    return stage, floats[0], floats[1], taken


def test_fewer_buffers_than_required() -> None:
    stage, first, second, exclusive = golden_stage()

    def state() -> tuple[int, int, int, bool]:
        return stage.channel.manager.free_buffers, stage.required(), stage.pool_free(), stage.waiting()

    stage.channel.manager.on_backlog(14)
    assert state() == (13, 16, 0, True)
    stage.channel.manager.on_backlog(16)
    assert state() == (13, 18, 0, True)
    assert stage.pool.statistics().waiting_listeners == 1  # not twice
    exclusive.recycle()
    assert state() == (14, 18, 0, True)
    stage.pool.recycle(first)
    assert state() == (15, 18, 0, True)
    stage.channel.manager.on_backlog(13)
    assert state() == (15, 15, 0, True)
    stage.pool.recycle(second)
    assert state() == (15, 15, 1, False)  # refused
    stage.channel.manager.on_backlog(15)
    assert state() == (16, 17, 0, True)
    stage.assert_all_home()


def test_as_many_buffers_as_required() -> None:
    stage, first, second, exclusive = golden_stage()
    stage.pool.recycle(first)
    stage.channel.manager.on_backlog(12)
    assert (stage.channel.manager.free_buffers, stage.required(), stage.pool_free()) == (14, 14, 0)
    unannounced = stage.channel.manager.credit.unannounced
    exclusive.recycle()  # one in, one out, no credit
    assert (stage.channel.manager.free_buffers, stage.pool_free()) == (14, 1)
    assert stage.channel.manager.credit.unannounced == unannounced
    stage.pool.recycle(second)
    stage.assert_all_home()


def test_more_buffers_than_required() -> None:
    stage, first, second, exclusive = golden_stage()
    stage.channel.manager.on_backlog(12)
    assert stage.channel.manager.free_buffers == 13
    stage.channel.manager.on_backlog(2)
    assert (stage.channel.manager.free_buffers, stage.required(), stage.pool_free()) == (
        13,
        4,
        0,
    )  # not taken away at once
    exclusive.recycle()
    assert (stage.channel.manager.free_buffers, stage.pool_free()) == (13, 1)
    stage.pool.recycle(first)
    stage.pool.recycle(second)
    assert stage.pool_free() == 3
    stage.assert_all_home()


# Credit.


@pytest.fixture
def poor() -> Stage:
    """No floating buffer is to be had."""
    stage = Stage(floating=(1, 1))
    assert stage.pool.try_acquire() is not None
    return stage


def test_data_takes_a_floating_buffer_first(stage: Stage) -> None:
    stage.channel.manager.on_backlog(1)
    assert stage.free() == (2, 1)
    stage.arrive(0)
    assert stage.free() == (2, 0)
    assert stage.poll().is_floating
    stage.arrive(1)
    assert stage.free() == (1, 1)  # a floating one for the exclusive one that is in use
    assert not stage.poll().is_floating


def test_credit_is_announced_once_when_more_is_due_than_the_producer_has_left(stage: Stage) -> None:
    stage.channel.manager.on_backlog(2)  # it has its initial 2
    assert stage.log == []
    stage.channel.manager.on_backlog(3)
    stage.channel.manager.on_backlog(5)
    assert stage.log == ["announce 0"]
    assert stage.channel.manager.credit.take() == 5
    stage.channel.manager.on_backlog(6)  # 7 left, 1 due
    assert stage.log == ["announce 0"]
    for sequence in range(6):
        stage.arrive(sequence)
    assert stage.log == ["announce 0"]
    stage.arrive(6)  # its last
    assert stage.log == ["announce 0"] * 2


def test_a_producer_without_credit_is_told_of_the_first_buffer(poor: Stage) -> None:
    poor.arrive(0)
    poor.arrive(1)
    assert poor.log == []
    poor.poll().recycle()
    assert poor.log == ["announce 0"]
    poor.poll().recycle()
    assert poor.log == ["announce 0"]
    assert poor.channel.manager.credit.take() == 2


def test_it_is_urgent_when_half_of_what_came_was_consumed() -> None:
    stage = Stage(exclusive=4, floating=(1, 1))
    for sequence in range(4):
        stage.arrive(sequence)
    urgent = []
    for _ in range(4):
        stage.poll().recycle()
        urgent.append(stage.urgent)
    assert urgent == [0, 1, 2, 2]  # the last one gives a floating buffer back instead
    assert stage.log == ["announce 0"]
    stage.assert_all_home()


@pytest.mark.parametrize(
    ("size", "backlog", "urgent"), [(1, 0, 0), (TRICKLE_BYTES, 0, 0), (TRICKLE_BYTES + 1, 0, 1), (1, 1, 1)]
)
def test_credit_for_little_waits_until_its_reader_comes_again(size: int, backlog: int, urgent: int) -> None:
    stage = Stage(floating=(1, 1), segment_bytes=2 * TRICKLE_BYTES)
    assert stage.pool.try_acquire() is not None
    stage.arrive(0)
    stage.poll().recycle()
    stage.arrive(1, b"x" * size, backlog)
    stage.poll().recycle()
    assert stage.log == ["announce 0"], "scheduled in any case"
    assert min(stage.urgent, 1) == urgent


def test_what_was_reserved_for_more_than_comes_is_given_up_unless_it_was_announced(stage: Stage) -> None:
    stage.channel.manager.on_backlog(3)
    assert stage.channel.manager.credit.take() == 3
    stage.channel.manager.on_backlog(5)
    free = stage.pool_free()
    stage.channel.manager.release_unannounced()
    assert (stage.free(), stage.pool_free()) == ((2, 5), free)  # all of it is still expected
    stage.channel.manager.on_backlog(1)
    stage.channel.manager.release_unannounced()
    assert (stage.free(), stage.channel.manager.credit.unannounced) == ((2, 3), 0)
    assert stage.pool_free() == free + 2
    stage.assert_all_home()


def test_a_recycled_exclusive_buffer_is_a_credit_again(poor: Stage) -> None:
    poor.arrive(0)
    buffer = poor.poll()
    assert poor.channel.manager.credit.unannounced == 0
    buffer.recycle()
    assert (poor.free(), poor.channel.manager.credit.unannounced) == ((2, 0), 1)


def test_a_recycled_floating_buffer_goes_to_the_gate(stage: Stage) -> None:
    stage.channel.manager.on_backlog(1)
    stage.arrive(0)
    assert stage.channel.manager.credit.take() == 1
    free = stage.pool_free()
    stage.poll().recycle()
    assert stage.pool_free() == free + 1
    assert stage.channel.manager.credit.unannounced == 0


def test_an_empty_buffer_gives_its_credit_back_at_once(stage: Stage) -> None:
    stage.arrive(0, b"")
    assert stage.channel.poll() is None
    assert stage.free() == (2, 0)
    assert stage.channel.manager.credit.unannounced == 1
    stage.arrive(1, b"a")
    assert bytes(stage.poll().memory) == b"a"


def test_a_hungry_channel_does_not_keep_the_floating_buffers_from_the_others() -> None:
    """It takes them all, and then lives on those it gives back itself: they go round among all that wait."""
    stage = Stage(channels=2, exclusive=1, floating=(1, 4))
    stage.remote(0).manager.on_backlog(100)
    stage.remote(1).manager.on_backlog(100)
    assert (stage.free(0), stage.free(1)) == ((1, 4), (1, 0))
    for sequence in range(8):
        stage.arrive(sequence, backlog=100, index=0)
        stage.poll(0).recycle()
    assert stage.free(1)[1] >= 2


def test_floating_buffers_are_shared_fairly_one_a_turn() -> None:
    stage = Stage(channels=3, floating=(1, 3))
    held = [stage.pool.try_acquire() for _ in range(3)]
    for index in range(3):
        stage.remote(index).manager.on_backlog(5)
    assert stage.pool.statistics().waiting_listeners == 3
    for segment in held:
        assert segment is not None
        stage.pool.recycle(segment)
    assert [stage.free(index) for index in range(3)] == [(2, 1)] * 3
    assert stage.pool.statistics().waiting_listeners == 3
    stage.assert_all_home()


def test_a_producer_without_credit_breaks_its_channel_only(poor: Stage) -> None:
    poor.arrive(0)
    poor.arrive(1)
    with pytest.raises(
        ChannelFailed, match=r"channel 10 \('p' subpartition 0 at memory://producer\).*CREDIT_VIOLATION"
    ):
        poor.arrive(2)
    assert poor.free() == (0, 0)


@pytest.mark.parametrize("sequence", [1, 2, 2**32 - 2, 2**32 - 1])
def test_a_lost_or_repeated_buffer_is_noticed(stage: Stage, sequence: int) -> None:
    with pytest.raises(ChannelFailed, match=f"expected buffer 0, got {sequence}") as caught:
        stage.arrive(sequence)
    assert caught.value.code is ErrorCode.SEQUENCE_GAP
    with pytest.raises(ChannelFailed, match="expected buffer 0"):
        stage.channel.on_event(sequence, 0, DataType.EVENT, encode_event(UserEvent("x")))
    assert stage.free() == (2, 0)


@pytest.mark.parametrize(
    ("data_type", "payload"),
    [
        (DataType.EVENT, b""),
        (DataType.EVENT, b"\xff"),
        (DataType.END_OF_DATA, encode_event(EndOfPartition())),
        (DataType.END_OF_PARTITION, encode_event(UserEvent("x"))),
        (DataType.EVENT, encode_event(EndOfPartition())),
        (DataType.PRIORITY_EVENT, encode_event(EndOfData())),
    ],
)
def test_what_is_no_event_fails_the_channel_and_not_the_reader(
    stage: Stage, data_type: DataType, payload: bytes
) -> None:
    with pytest.raises(ChannelFailed, match="MALFORMED_FRAME") as caught:
        stage.channel.on_event(0, 0, data_type, payload)
    assert caught.value.channel == str(stage.channel)
    assert stage.channel.poll() is None


def test_the_backlog_of_an_event_counts_too(stage: Stage) -> None:
    stage.channel.on_event(0, 3, DataType.EVENT, encode_event(UserEvent("x")))
    assert stage.free() == (2, 3)


# Order.


def test_a_channel_without_exclusive_buffers_borrows_for_what_waits() -> None:
    stage = Stage(exclusive=0, floating=(1, 3))
    assert stage.free() == (0, 0)
    stage.channel.manager.on_backlog(2)
    assert stage.free() == (0, 2)
    assert stage.log == ["announce 0"]
    assert stage.channel.manager.credit.take() == 2
    stage.arrive(0, backlog=1)
    stage.arrive(1, backlog=0)
    assert stage.free() == (0, 0)
    for _ in range(2):
        stage.poll().recycle()
    assert stage.free() == (0, 0)  # to the gate, since nothing waits
    assert stage.pool_free() == 3
    stage.assert_all_home()


def test_a_blocked_channel_without_exclusive_buffers_keeps_none() -> None:
    stage = Stage(channels=2, exclusive=0, floating=(1, 3))
    stage.channel.manager.on_backlog(4)
    assert stage.free() == (0, 3)
    assert stage.waiting()
    stage.remote(1).manager.on_backlog(1)
    assert stage.free(1) == (0, 0)
    assert stage.channel.manager.credit.take() == 3
    stage.channel.on_event(0, 0, DataType.ALIGNED_BARRIER, encode_event(CheckpointBarrier(1)))
    assert stage.free() == (0, 0)
    assert stage.free(1) == (0, 1)  # it had waited for one
    assert stage.pool_free() == 2
    stage.channel.resume()
    assert stage.log[-1] == "resume 0"
    assert stage.channel.manager.credit.take() == 0
    stage.channel.manager.on_backlog(1)
    assert stage.channel.manager.credit.take() == 1
    stage.assert_all_home()


def test_a_blocking_event_promises_nothing_behind_it(stage: Stage) -> None:
    with pytest.raises(ChannelFailed, match=r"ALIGNED_BARRIER .* backlog 3"):
        stage.channel.on_event(0, 3, DataType.ALIGNED_BARRIER, encode_event(CheckpointBarrier(1)))


def test_buffers_and_events_come_out_in_order(stage: Stage) -> None:
    stage.arrive(0, b"a")
    stage.channel.on_event(1, 0, DataType.EVENT, encode_event(UserEvent("x")))
    stage.arrive(2, b"b")
    first, event, second = stage.poll(), stage.poll(), stage.poll()
    assert (bytes(first.memory), first.more_available, first.next_is_event) == (b"a", True, True)
    assert (event.data_type, event.sequence, event.more_available, event.next_is_event) == (
        DataType.EVENT,
        1,
        True,
        False,
    )
    assert (bytes(second.memory), second.more_available) == (b"b", False)
    assert stage.channel.poll() is None


def test_priority_events_overtake_what_has_arrived(stage: Stage) -> None:
    payload = encode_event(UserEvent("x"))
    stage.arrive(0, b"a")
    stage.channel.on_event(1, 0, DataType.PRIORITY_EVENT, payload)
    stage.channel.on_event(2, 0, DataType.PRIORITY_EVENT, payload)
    assert [stage.poll().sequence for _ in range(2)] == [1, 2]
    stage.channel.on_event(3, 0, DataType.PRIORITY_EVENT, payload)
    assert stage.poll().sequence == 3
    assert bytes(stage.poll().memory) == b"a"


# Failure and release.


def test_what_arrived_before_a_failure_is_still_delivered_and_only_the_first_error_counts(stage: Stage) -> None:
    stage.arrive(0, b"a")
    stage.channel.fail(ProducerFailed(ErrorCode.PRODUCER_FAILED, "disk full"))
    stage.channel.fail(LocalProtocolError("later"))
    buffer = stage.gate.poll()
    assert buffer is not None
    assert bytes(buffer.memory) == b"a"
    with pytest.raises(ProducerFailed, match="disk full"):
        stage.gate.poll()


def test_a_failure_behind_the_end_is_no_failure(stage: Stage) -> None:
    stage.channel.on_event(0, 0, DataType.END_OF_PARTITION, encode_event(EndOfPartition()))
    stage.channel.fail(LocalProtocolError("the connection was closed"))
    buffer = stage.gate.poll()
    assert buffer is not None
    assert buffer.data_type is DataType.END_OF_PARTITION
    assert stage.gate.poll() is None
    assert stage.gate.is_finished


def test_release_gives_everything_back_once(stage: Stage) -> None:
    stage.channel.manager.on_backlog(3)
    for sequence in range(3):
        stage.arrive(sequence)
    held = stage.poll()
    stage.channel.release()
    stage.channel.release()
    assert stage.log == ["announce 0", "leave 0"]
    stage.channel.manager.on_backlog(5)
    stage.channel.fail(LocalProtocolError("late"))
    assert stage.free() == (0, 0)
    held.recycle()
    stage.assert_all_home()


@pytest.mark.parametrize("sequence", [1, 2**32 - 1])
def test_the_sequence_number_wraps_around(poor: Stage, sequence: int) -> None:
    poor.channel._expected_sequence = sequence  # 140 TB later
    poor.arrive(sequence)
    poor.arrive((sequence + 1) % 2**32)
    assert poor.channel.statistics().buffers == 2


def test_an_exclusive_buffer_that_outlives_its_channel_returns_to_the_network_pool(stage: Stage) -> None:
    stage.arrive(0)
    held = stage.poll()
    assert not held.is_floating
    stage.gate.close()
    lent = stage.network.statistics().lent_segments
    held.recycle()
    assert stage.network.statistics().lent_segments == lent - 1 == 1


def test_a_released_channel_says_nothing_more(stage: Stage) -> None:
    stage.channel.release()
    stage.log.clear()
    stage.channel.resume()
    stage.channel.acknowledge_end_of_data()
    assert stage.log == []


def test_resume_and_acknowledge_go_to_the_producer(stage: Stage) -> None:
    stage.channel.resume()
    stage.channel.acknowledge_end_of_data()
    assert stage.log == ["resume 0", "acknowledge 0"]


# Debloating.


def test_what_was_polled_and_what_is_in_use() -> None:
    stage = Stage()
    assert stage.channel.measure() == (0, 0)
    stage.arrive(0, b"abc", backlog=1)
    stage.arrive(1, b"de", backlog=5)
    stage.channel.on_event(2, 5, DataType.EVENT, encode_event(UserEvent("x")))
    assert stage.channel.measure() == (0, 3 + 5)
    stage.poll().recycle()
    assert stage.channel.measure() == (3, 2 + 5)
    stage.poll()  # what its reader holds is polled
    stage.poll()
    assert stage.channel.measure() == (5, 5)
    stage.channel.manager.on_backlog(0)
    assert stage.channel.measure() == (5, 0)
    stage.channel.manager.on_backlog(5)
    stage.channel.release()
    assert stage.channel.measure() == (5, 0)


def test_a_size_goes_to_the_connection_until_the_channel_is_released() -> None:
    stage = Stage()
    stage.channel.announce_buffer_size(100)
    stage.channel.release()
    stage.log.clear()
    stage.channel.announce_buffer_size(200)
    assert stage.log == []


# Barriers.


def barrier_of(checkpoint_id: int, alignment: Alignment = Alignment.UNALIGNED, timeout_ns: int = 0) -> bytes:
    return encode_event(CheckpointBarrier(checkpoint_id, alignment=alignment, aligned_timeout_ns=timeout_ns))


def test_what_is_in_front_of_an_unaligned_barrier_is_captured(stage: Stage) -> None:
    stage.arrive(0, b"read")
    stage.poll().recycle()
    stage.arrive(1, b"waits")
    stage.channel.start_capture(5, b"torn")
    stage.arrive(2, b"comes")
    stage.channel.on_event(3, 0, DataType.PRIORITY_EVENT, barrier_of(5))
    stage.arrive(4, b"behind")
    assert stage.channel.take_capture(5) == b"torn" + b"waits" + b"comes"
    assert [stage.poll().data_type for _ in range(4)] == [DataType.PRIORITY_EVENT, *[DataType.DATA] * 3]


def test_a_barrier_that_arrived_first_bounds_the_capture(stage: Stage) -> None:
    stage.arrive(0, b"in front")
    stage.channel.on_event(1, 0, DataType.PRIORITY_EVENT, barrier_of(5))
    stage.arrive(2, b"behind")
    stage.channel.start_capture(5, b"")
    stage.arrive(3, b"far behind")
    assert stage.channel.take_capture(5) == b"in front"


def test_without_a_checkpoint_nothing_is_captured(stage: Stage) -> None:
    stage.arrive(0, b"x")
    assert stage.channel.take_capture(5) == b""
    assert stage.channel.statistics().queued_buffers == 1


def test_a_barrier_with_a_timeout_is_announced_and_can_be_moved_to_the_front(stage: Stage) -> None:
    stage.arrive(0, b"in front")
    payload = barrier_of(5, Alignment.ALIGNED, 1_000_000)
    stage.channel.on_event(1, 0, DataType.TIMEOUTABLE_ALIGNED_BARRIER, payload)
    assert stage.gate.has_priority
    announcement = stage.gate.poll()
    assert announcement is not None
    assert (announcement.data_type, announcement.sequence) == (DataType.ANNOUNCEMENT, 1)
    assert bytes(announcement.memory) == payload
    assert not stage.gate.has_priority
    stage.channel.prioritize(1)
    assert stage.gate.has_priority
    barrier = stage.gate.poll()
    assert barrier is not None
    assert (barrier.data_type, barrier.sequence) == (DataType.PRIORITY_EVENT, 1)
    assert stage.poll().data_type is DataType.DATA
    stage.channel.prioritize(1)  # too late: it was read
    assert stage.gate.poll() is None


# Several buffers in one frame.


def unpack(data: memoryview) -> bytes:
    """A stand-in for a compression: the first byte says how often to repeat the others."""
    if not data[0]:
        raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, "damaged")
    return bytes(data[1:]) * data[0]


def test_a_landed_run_is_one_element_and_has_the_credit_of_its_buffers(stage: Stage) -> None:
    stage.channel.on_landed(0, [5, 4], memoryview(bytes(range(2 * SIZE))))
    manager = stage.channel.manager
    assert (manager.credit.used, manager.backlog) == (2, 4)
    assert manager.free_buffers == 4 + 2, "the backlog and the exclusive buffers"
    assert stage.told == 1
    statistics = stage.channel.statistics()
    assert (statistics.queued_buffers, statistics.queued_bytes, statistics.buffers) == (2, 2 * SIZE, 2)
    assert (statistics.polled_buffers, stage.channel.measure()) == (0, (0, 2 + 4))
    run = stage.poll()
    assert (bytes(run.memory), run.length, run.buffers, run.sequence) == (bytes(range(2 * SIZE)), 2 * SIZE, 2, 0)
    assert stage.channel.statistics().polled_buffers == 2
    before = manager.credit.announced + manager.credit.unannounced
    run.recycle()
    assert manager.credit.announced + manager.credit.unannounced - manager.credit.used == manager.free_buffers
    assert manager.credit.announced + manager.credit.unannounced in (before, before + 1, before + 2)
    stage.arrive(2)
    stage.assert_all_home()


def test_a_consumed_run_is_announced_at_once_only_when_half_of_the_buffers_was_consumed() -> None:
    size = 2 * TRICKLE_BYTES
    stage = Stage(exclusive=10, floating=(1, 1), segment_bytes=size)
    stage.channel.on_landed(0, [0] * 3, memoryview(bytes(3 * size)))
    stage.channel.on_landed(3, [0] * 5, memoryview(bytes(5 * size)))
    stage.poll().recycle()
    assert stage.channel.manager.credit.is_scheduled
    assert stage.urgent == 0, "3 of 8 buffers, though 1 of 2 runs"
    stage.poll().recycle()
    assert stage.urgent == 1
    stage.assert_all_home()


def test_spare_buffers_are_reviewed_by_buffers_not_by_runs() -> None:
    stage = Stage(exclusive=20, floating=(1, 1))
    reviews = 0

    def now() -> float:
        nonlocal reviews
        reviews += 1
        return float(reviews)

    stage.gate.now = now
    stage.gate.allow_spare(0, lambda: 0.0)
    reviews = 0
    for run in range(500):
        stage.channel.on_landed(15 * run, [0] * 15, memoryview(bytes(15 * SIZE)))
        buffer = stage.gate.poll()
        assert buffer is not None
        buffer.recycle()
    assert reviews == pytest.approx(500 * 15 / REVIEW_BUFFERS, abs=2)
    stage.assert_all_home()


def test_of_a_landed_run_only_what_has_credit_is_queued(poor: Stage) -> None:
    free = poor.channel.manager.free_buffers
    with pytest.raises(ChannelFailed, match=rf"sequence {free}\)") as caught:
        poor.channel.on_landed(0, [0] * (free + 2), memoryview(bytes((free + 2) * SIZE)))
    assert caught.value.code is ErrorCode.CREDIT_VIOLATION
    assert poor.channel.statistics().queued_buffers == free
    assert poor.poll().length == free * SIZE
    with pytest.raises(ChannelFailed) as caught:
        poor.channel.on_landed(free, [0, 0], memoryview(bytes(2 * SIZE)))
    assert caught.value.code is ErrorCode.CREDIT_VIOLATION
    with pytest.raises(ChannelFailed) as caught:
        poor.channel.on_landed(free + 1, [0, 0], memoryview(bytes(2 * SIZE)))
    assert caught.value.code is ErrorCode.SEQUENCE_GAP
    assert poor.channel.poll() is None


@pytest.mark.parametrize("backlog", [0, 6])
def test_a_landed_run_that_outlives_its_channel_returns_to_its_pools(stage: Stage, backlog: int) -> None:
    stage.channel.manager.on_backlog(backlog)
    count = stage.channel.manager.free_buffers
    stage.channel.on_landed(0, [0] * count, memoryview(bytes(count * SIZE)))
    run = stage.poll()
    stage.channel.release()
    run.recycle()
    stage.assert_all_home()


def test_the_sequence_number_wraps_inside_a_landed_run(stage: Stage) -> None:
    stage.channel._expected_sequence = 0xFFFFFFFF
    stage.channel.on_landed(0xFFFFFFFF, [0, 0], memoryview(bytes(2 * SIZE)))
    stage.poll().recycle()
    stage.arrive(1)


def test_a_landed_run_belongs_to_the_checkpoint_whose_barrier_comes_behind_it(stage: Stage) -> None:
    assert stage.channel.start_capture(1, b"rest")
    stage.channel.on_landed(0, [0, 0], memoryview(bytes(range(2 * SIZE))))
    assert stage.channel.take_capture(1) == b"rest" + bytes(range(2 * SIZE))
    assert stage.channel.start_capture(2, b"")
    assert stage.channel.take_capture(2) == bytes(range(2 * SIZE)), "it was not read"


def test_parts_take_a_number_each_and_one_credit(stage: Stage) -> None:
    stage.channel.on_parts(0, 0, memoryview(b"abcdef"), (3, 0, 1, 2), None)
    assert stage.free() == (1, 1)  # one of its own is taken, and replaced
    parts = [stage.poll(), stage.poll(), stage.poll()]
    assert [(bytes(part.memory), part.sequence) for part in parts] == [(b"abc", 0), (b"d", 2), (b"ef", 3)]
    assert [part.more_available for part in parts] == [True, True, False]
    for part in parts:
        assert stage.free() == (1, 1)  # the segment is theirs together
        part.recycle()
    assert stage.free() == (2, 0)
    stage.arrive(4)
    statistics = stage.channel.statistics()
    assert (statistics.buffers, statistics.bytes) == (5, 7)
    stage.assert_all_home()


def test_parts_without_bytes_set_their_buffer_free_at_once(stage: Stage) -> None:
    stage.channel.on_parts(0, 0, memoryview(b""), (0, 0), None)
    assert stage.channel.poll() is None
    assert sum(stage.free()) == 2
    stage.arrive(2)
    stage.assert_all_home()


def test_parts_reserve_for_their_backlog_and_take_credit(stage: Stage) -> None:
    stage.channel.on_parts(0, 5, memoryview(b"ab"), (1, 1), None)
    assert stage.required() == 7
    assert sum(stage.free()) == 7
    assert stage.channel.manager.credit.used == 1
    stage.assert_all_home()


def test_parts_out_of_sequence_or_without_credit() -> None:
    stage = Stage(exclusive=1, floating=(1, 1))
    borrowed = stage.pool.try_acquire()
    assert borrowed is not None
    with pytest.raises(ChannelFailed, match="expected buffer 0, got 1"):
        stage.channel.on_parts(1, 0, memoryview(b"a"), (1,), None)
    stage.channel.on_parts(0, 0, memoryview(b"a"), (1,), None)
    with pytest.raises(ChannelFailed, match="no credit left") as caught:
        stage.channel.on_parts(1, 0, memoryview(b"a"), (1,), None)
    assert caught.value.code is ErrorCode.CREDIT_VIOLATION
    stage.pool.recycle(borrowed)
    stage.assert_all_home()


def test_compressed_parts_are_unpacked_when_they_are_polled(stage: Stage) -> None:
    unpacked: list[bytes] = []

    def noted(data: memoryview) -> bytes:
        unpacked.append(bytes(data))
        return unpack(data)

    stage.channel.on_parts(0, 0, memoryview(b"\4ab\2c"), (3, 2), noted)
    assert unpacked == []
    first = stage.poll()
    assert (bytes(first.memory), first.length, first.sequence, first.more_available) == (b"abababab", 8, 0, True)
    assert unpacked == [b"\4ab"]
    first.recycle()
    assert stage.free() == (1, 1)
    second = stage.poll()
    assert (bytes(second.memory), second.sequence) == (b"cc", 1)
    second.recycle()
    assert stage.free() == (2, 0)
    stage.assert_all_home()


def test_a_damaged_part_fails_its_channel_and_no_buffer_is_lost(stage: Stage) -> None:
    stage.channel.on_parts(0, 0, memoryview(b"\1a\0\1b"), (2, 1, 2), unpack)
    assert bytes(stage.poll().memory) == b"a"
    with pytest.raises(ChannelFailed, match="damaged") as caught:
        stage.channel.poll()
    assert caught.value.code is ErrorCode.MALFORMED_FRAME
    stage = Stage()
    stage.channel.on_parts(0, 0, memoryview(b"\0\1b"), (1, 2), unpack)
    with pytest.raises(ChannelFailed, match="damaged"):
        stage.gate.poll()
    assert stage.channel.is_finished
    stage.assert_all_home()


def test_parts_belong_to_a_checkpoint_but_compressed_ones_cannot() -> None:
    stage = Stage()
    assert stage.channel.start_capture(5, b"")
    stage.channel.on_parts(0, 0, memoryview(b"abc"), (1, 2), None)
    with pytest.raises(ChannelFailed, match="switch compression off"):
        stage.channel.on_parts(2, 0, memoryview(b"\1a"), (2,), unpack)
    stage.channel.on_event(2, 0, DataType.PRIORITY_EVENT, barrier_of(5))
    assert stage.channel.take_capture(5) == b"abc"
    stage.assert_all_home()
    stage = Stage()
    stage.channel.on_parts(0, 0, memoryview(b"\1a"), (2,), unpack)
    with pytest.raises(ChannelFailed, match="switch compression off"):
        stage.channel.on_event(1, 0, DataType.PRIORITY_EVENT, barrier_of(5))
    stage.assert_all_home()


def test_an_event_that_is_no_barrier_may_block_too() -> None:
    stage = Stage(exclusive=0)
    stage.channel.manager.on_backlog(3)
    stage.channel.on_event(0, 0, DataType.BLOCKING_EVENT, encode_event(UserEvent("EndOfOutputChannelStateEvent")))
    assert sum(stage.free()) == 0
    assert stage.poll().data_type.blocks_upstream
    with pytest.raises(ChannelFailed, match="only a resume may be followed by data"):
        stage.channel.on_event(1, 3, DataType.BLOCKING_EVENT, encode_event(UserEvent("x")))
    stage.assert_all_home()
