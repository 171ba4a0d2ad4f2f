"""Local input channels: no credit, no copy, straight at the producer's queue."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from netstack.base.errors import ErrorCode, LocalProtocolError, PartitionNotFound, ProducerFailed
from netstack.base.events import Alignment, CheckpointBarrier, DataType, EndOfData, EndOfPartition, encode_event
from netstack.base.ids import ChannelDescriptor
from netstack.exchange.buffer.elements import BarrierBuffer, EventBuffer
from netstack.exchange.buffer.lent import LentBuffers
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.inbound.channel import RemoteInputChannel
from netstack.exchange.inbound.gate import SingleInputGate
from netstack.exchange.inbound.local_channel import LocalInputChannel
from netstack.exchange.outbound.subpartition import ResultSubpartition

SIZE = 16
BARRIER = CheckpointBarrier(5, alignment=Alignment.UNALIGNED)


def nothing() -> None:
    pass


class LocalStage:
    def __init__(self) -> None:
        self.network = NetworkBufferPool(8, SIZE)
        self.pool = self.network.create_pool(8, 8)
        self.log: list[str] = []
        self.held: list[RemoteInputChannel] = []
        self.gate = SingleInputGate(None, read_connections=nothing, on_closed=nothing)
        self.channel = LocalInputChannel(self.gate, 0, ChannelDescriptor("", "p", 0))
        self.gate.add_channel(self.channel)
        self.subpartition = ResultSubpartition(
            0,
            lambda index: self.log.append("consumed"),
            lambda index: self.log.append("acknowledged"),
            lambda index, checkpoint_id, data: self.log.append(f"{checkpoint_id} overtook {data.decode()}"),
        )

    def connect(self) -> None:
        self.channel.on_view(self.subpartition.create_view(self.channel.on_data_available))

    def add(self, data: bytes) -> None:
        segment = self.pool.try_acquire()
        assert segment is not None
        self.subpartition.add(LentBuffers((memoryview(data),), len(data), [segment], self.pool, 0))

    def add_event(self, payload: bytes, data_type: DataType, *, is_last: bool = False) -> None:
        self.subpartition.add(EventBuffer(payload, data_type), is_last=is_last)

    def poll(self) -> tuple[DataType, bytes] | None:
        buffer = self.gate.poll()
        if buffer is None:
            return None
        result = buffer.data_type, bytes(buffer.memory)
        buffer.recycle()
        return result


@pytest.fixture
def local() -> LocalStage:
    return LocalStage()


def test_a_local_channel_reads_the_producers_buffers_themselves(local: LocalStage) -> None:
    local.connect()
    local.add(b"abc")
    assert local.gate.is_available
    buffer = local.gate.poll()
    assert buffer is not None
    assert bytes(buffer.memory) == b"abc"
    assert local.pool.statistics().used == 1  # charged to the producer
    buffer.recycle()
    assert local.pool.statistics().used == 0
    statistics = local.channel.statistics()
    assert (statistics.is_local, statistics.buffers, statistics.bytes) == (True, 1, 3)


@pytest.mark.parametrize("early", [True, False])
def test_nothing_is_missed_whoever_comes_first(local: LocalStage, early: bool) -> None:
    if early:
        local.connect()
        assert local.poll() is None
    local.add(b"a")
    local.add(b"b")
    if not early:
        assert local.poll() is None
        local.connect()
    assert [local.poll(), local.poll(), local.poll()] == [(DataType.DATA, b"a"), (DataType.DATA, b"b"), None]


def test_a_local_channel_ends(local: LocalStage) -> None:
    local.connect()
    local.add_event(encode_event(EndOfData()), DataType.END_OF_DATA)
    local.add_event(encode_event(EndOfPartition()), DataType.END_OF_PARTITION, is_last=True)
    assert [local.poll(), local.poll(), local.poll()] == [
        (DataType.END_OF_DATA, encode_event(EndOfData())),
        (DataType.END_OF_PARTITION, encode_event(EndOfPartition())),
        None,
    ]
    assert local.gate.is_finished
    assert local.log == ["consumed"]


def test_a_local_channel_blocks_and_resumes(local: LocalStage) -> None:
    local.connect()
    barrier = encode_event(CheckpointBarrier(1))
    local.add_event(barrier, DataType.ALIGNED_BARRIER)
    local.add(b"a")
    assert local.poll() == (DataType.ALIGNED_BARRIER, barrier)
    assert local.poll() is None
    local.gate.resume(0)
    assert local.poll() == (DataType.DATA, b"a")
    with pytest.raises(LocalProtocolError, match="not blocked"):
        local.gate.resume(0)


def test_a_local_producers_failure_has_its_cause(local: LocalStage) -> None:
    local.connect()
    local.subpartition.fail("disk full")
    with pytest.raises(ProducerFailed, match=r"local channel \('p' subpartition 0\): PRODUCER_FAILED: disk full"):
        local.gate.poll()


def test_a_local_partition_that_was_released(local: LocalStage) -> None:
    local.connect()
    local.add(b"a")
    local.subpartition.discard()
    with pytest.raises(PartitionNotFound, match="was released"):
        local.gate.poll()
    assert local.pool.statistics().used == 0


def test_a_local_partition_that_never_came(local: LocalStage) -> None:
    local.channel.fail(PartitionNotFound(ErrorCode.PARTITION_NOT_FOUND, "not within 10 s"))
    with pytest.raises(PartitionNotFound, match="not within 10 s"):
        local.gate.poll()


def test_acknowledge_and_release_reach_the_producer(local: LocalStage) -> None:
    local.connect()
    local.add_event(encode_event(EndOfData()), DataType.END_OF_DATA)
    local.poll()
    local.gate.acknowledge_end_of_data(0)
    local.gate.close()
    local.gate.close()
    assert local.log == ["acknowledged", "consumed"]


def test_a_gate_that_is_closed_early_on_purpose_says_so_and_an_abandoned_one_does_not() -> None:
    for end in ("close", "abandon"):
        local = LocalStage()
        local.connect()
        getattr(local.gate, end)()
        assert (local.log, local.subpartition.is_dismissed) == (["consumed"], end == "close")


def test_a_view_that_comes_too_late_is_let_go(local: LocalStage) -> None:
    local.gate.close()
    local.connect()
    assert local.log == ["consumed"]


def test_statistics_of_an_unconnected_channel(local: LocalStage) -> None:
    statistics = local.channel.statistics()
    assert (statistics.queued_buffers, statistics.sender_backlog, statistics.is_finished) == (0, 0, False)
    steps: list[Callable[[], None]] = [local.channel.resume, local.channel.acknowledge_end_of_data]
    for step in steps:
        step()  # before there is a producer: nothing to tell


# Debloating.


def test_a_size_for_a_local_channel_waits_for_its_partition() -> None:
    gate = SingleInputGate(None, read_connections=nothing, on_closed=nothing)
    channel = LocalInputChannel(gate, 1, ChannelDescriptor("", "p", 0))
    channel.announce_buffer_size(100)
    assert channel.measure() == (0, 0)
    subpartition = ResultSubpartition(0, lambda index: None, lambda index: None)
    channel.on_view(subpartition.create_view(channel.on_data_available))
    assert subpartition.buffer_size == 100
    channel.announce_buffer_size(200)
    assert subpartition.buffer_size == 200


def test_a_local_channel_has_in_use_what_waits_at_its_producer() -> None:
    gate = SingleInputGate(None, read_connections=nothing, on_closed=nothing)
    pool = NetworkBufferPool(8, SIZE).create_pool(8, 8)
    channel = LocalInputChannel(gate, 1, ChannelDescriptor("", "p", 0))
    subpartition = ResultSubpartition(0, lambda index: None, lambda index: None)
    channel.on_view(subpartition.create_view(channel.on_data_available))
    for payload in (b"abc", b"de"):
        segment = pool.try_acquire()
        assert segment is not None
        subpartition.add(LentBuffers((memoryview(payload),), len(payload), [segment], pool, 0))
    assert channel.measure() == (0, 2)
    taken = channel.poll()
    assert taken is not None
    taken.recycle()
    assert channel.measure() == (3, 1)
    channel.release()
    assert channel.measure() == (3, 0)


# Barriers.


def test_a_local_channel_captures_what_is_read_before_its_barrier(local: LocalStage) -> None:
    local.connect()
    local.add(b"before")
    assert local.poll() == (DataType.DATA, b"before")
    local.channel.start_capture(5, b"torn")
    local.add(b"read")
    assert local.poll() == (DataType.DATA, b"read")
    local.add(b"overtaken")
    local.subpartition.add_barrier(BarrierBuffer(BARRIER, DataType.PRIORITY_EVENT, float))
    assert local.poll() == (DataType.PRIORITY_EVENT, encode_event(BARRIER))
    assert local.poll() == (DataType.DATA, b"overtaken")
    assert local.channel.take_capture(5) == b"torn" + b"read"
    assert local.log == ["5 overtook overtaken"]


def test_a_local_barrier_with_a_timeout_is_announced_and_times_out_at_the_producer(local: LocalStage) -> None:
    local.connect()
    local.add(b"in front")
    timed = CheckpointBarrier(5, alignment=Alignment.ALIGNED, aligned_timeout_ns=1)
    local.subpartition.add_barrier(BarrierBuffer(timed, DataType.TIMEOUTABLE_ALIGNED_BARRIER, float))
    local.add(b"behind")
    assert local.gate.has_priority
    assert local.poll() == (DataType.ANNOUNCEMENT, encode_event(timed))
    local.gate.prioritize(0, 0)
    assert local.poll() == (
        DataType.PRIORITY_EVENT,
        encode_event(CheckpointBarrier(5, alignment=Alignment.UNALIGNED, aligned_timeout_ns=1)),
    )
    assert local.log == ["5 overtook in front"]
    assert local.poll() == (DataType.DATA, b"in front")
    assert local.poll() == (DataType.DATA, b"behind")  # an unaligned barrier blocks nothing
