"""ResultPartition: its life from creation to release, in every order, and what consumers are told."""

from __future__ import annotations

import itertools

import pytest
from partition_builders import open_builder

from netstack.base.errors import ChannelFailed, ErrorCode, LocalProtocolError, PartitionNotFound
from netstack.base.events import DataType, UserEvent, decode_event
from netstack.base.ids import PartitionId, ResultPartitionType
from netstack.exchange.buffer.builder import BufferBuilder
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.outbound.partition import ResultPartition
from netstack.exchange.wire.codec_native import NativeCodec
from netstack.exchange.wire.flink_producer import FlinkProducerCodec
from netstack.testing.scripted import VirtualHost


def nothing() -> None:
    pass


class Stage:
    def __init__(self, subpartitions: int = 2) -> None:
        self.network = NetworkBufferPool(16, 16)
        self.released: list[ResultPartition] = []
        self.acknowledged = 0
        self.partition = ResultPartition(
            PartitionId("p"),
            ResultPartitionType.PIPELINED_BOUNDED,
            subpartitions,
            self.network.create_pool(subpartitions + 1, 16),
            on_released=self.released.append,
            host=VirtualHost(nothing),
        )
        self.partition.on_acknowledged = self.on_acknowledged

    def on_acknowledged(self) -> None:
        self.acknowledged += 1

    def write(self, subpartition: int, data: bytes, *, finish: bool = True) -> BufferBuilder:
        builder = open_builder(self.partition, subpartition)
        self.partition.subpartitions[subpartition].add(builder.create_consumer())
        builder.append(data)
        if finish:
            builder.finish()
            builder.close()
            self.partition.subpartitions[subpartition].on_buffer_finished()
        return builder

    def read(self, subpartition: int) -> list[tuple[DataType, bytes]]:
        actual = []
        while (buffer := self.partition.subpartitions[subpartition].poll()) is not None:
            actual.append((buffer.data_type, bytes(buffer.memory)))
            buffer.recycle()
        return actual


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_an_event_reaches_every_subpartition_behind_its_data(stage: Stage) -> None:
    stage.write(0, b"a")
    stage.partition.broadcast_event(UserEvent("x"))
    kinds = [[kind for kind, _ in stage.read(index)] for index in (0, 1)]
    assert kinds == [[DataType.DATA, DataType.EVENT], [DataType.EVENT]]
    assert stage.partition.statistics().events == 1


def test_a_priority_event_is_read_first(stage: Stage) -> None:
    stage.write(0, b"a")
    stage.partition.broadcast_event(UserEvent("x"), priority=True)
    (kind, payload), (after, _) = stage.read(0)
    assert (kind, after) == (DataType.PRIORITY_EVENT, DataType.DATA)
    assert decode_event(payload) == UserEvent("x")


def test_end_of_data_is_sent_once_and_end_of_partition_last(stage: Stage) -> None:
    stage.partition.end_of_data(drain=False)
    stage.partition.end_of_data()
    stage.partition.finish()
    stage.partition.finish()
    for index in (0, 1):
        kinds = [kind for kind, _ in stage.read(index)]
        assert kinds == [DataType.END_OF_DATA, DataType.END_OF_PARTITION]


@pytest.mark.parametrize("state", ["finished", "closed", "released"])
def test_nothing_is_written_behind_the_end(stage: Stage, state: str) -> None:
    partition = stage.partition
    partition.check_writable()
    {"finished": partition.finish, "closed": partition.close, "released": partition.release}[state]()
    with pytest.raises(LocalProtocolError, match=f"partition 'p' is {state}"):
        partition.check_writable()
    with pytest.raises(LocalProtocolError, match=state):
        partition.broadcast_event(UserEvent("x"))


# Release when it is consumed: closed, and every view gone, in any order.


@pytest.mark.parametrize("order", list(itertools.permutations(["close", 0, 1])))
def test_released_when_closed_and_consumed_in_any_order(stage: Stage, order: tuple[str | int, ...]) -> None:
    partition = stage.partition
    views = [partition.create_view(index, nothing) for index in (0, 1)]
    stage.write(0, b"a")
    partition.finish()
    for step in order:
        assert not partition.is_released
        if step == "close":
            partition.close()
        else:
            views[int(step)].release()
            views[int(step)].release()
    assert partition.is_released
    assert stage.released == [partition]
    assert stage.network.statistics().lent_segments == 0
    partition.close()
    partition.release()
    partition.fail("too late")
    assert stage.released == [partition]
    assert partition.failure is None


def test_a_partition_that_is_not_closed_outlives_its_consumers(stage: Stage) -> None:
    for index in (0, 1):
        stage.partition.create_view(index, nothing).release()
    assert not stage.partition.is_released
    stage.partition.check_writable()


def test_buffers_still_out_return_after_the_release(stage: Stage) -> None:
    stage.write(0, b"abc")
    open_builder = stage.write(1, b"de", finish=False)
    buffer = stage.partition.subpartitions[0].poll()
    stage.partition.release()
    assert stage.network.statistics().lent_segments == 2
    assert buffer is not None
    buffer.recycle()
    open_builder.finish()
    open_builder.close()
    assert stage.network.statistics().lent_segments == 0


# Acknowledgement.


def test_all_acknowledged_counts_those_that_are_gone(stage: Stage) -> None:
    partition = stage.partition
    views = [partition.create_view(index, nothing) for index in (0, 1)]
    assert not partition.all_acknowledged
    partition.end_of_data()
    stage.read(0)
    views[0].acknowledge_end_of_data()
    views[0].acknowledge_end_of_data()
    assert not partition.all_acknowledged
    views[1].release()
    assert partition.all_acknowledged
    assert not partition.is_processed, "who is gone has not said so"
    assert stage.acknowledged == 3


# Views that cannot be had.


def test_an_index_out_of_range_names_the_range(stage: Stage) -> None:
    for index in (-1, 2):
        with pytest.raises(PartitionNotFound, match="subpartitions 0 to 1") as caught:
            stage.partition.create_view(index, nothing)
        assert caught.value.code is ErrorCode.SUBPARTITION_OUT_OF_RANGE


def test_a_second_consumer_is_refused(stage: Stage) -> None:
    stage.partition.create_view(0, nothing).release()
    with pytest.raises(ChannelFailed, match="'p' subpartition 0: SUBPARTITION_CONSUMED"):
        stage.partition.create_view(0, nothing)
    stage.partition.create_view(1, nothing)


def test_a_consumer_of_flink_is_refused_what_is_written_as_runs(stage: Stage) -> None:
    with pytest.raises(ChannelFailed, match="runs, which Flink cannot read") as raised:
        stage.partition.create_view(0, nothing, packaging=FlinkProducerCodec(32).packaging)
    assert raised.value.code is ErrorCode.INTERNAL
    stage.partition.create_view(0, nothing, packaging=NativeCodec().packaging)


def test_a_released_partition_is_not_found(stage: Stage) -> None:
    stage.partition.release()
    with pytest.raises(PartitionNotFound, match="was released"):
        stage.partition.create_view(0, nothing)


def test_failure_drops_everything_and_is_told_to_all(stage: Stage) -> None:
    reported: list[int] = []
    views = [stage.partition.create_view(0, lambda: reported.append(0))]
    stage.write(0, b"a")
    reported.clear()
    stage.partition.fail("disk full")
    stage.partition.fail("something else")
    assert reported == [0]
    assert stage.partition.failure == views[0].failure == "disk full"
    assert stage.partition.is_released
    assert stage.partition.pool.is_destroyed
    assert stage.network.statistics().lent_segments == 0
    with pytest.raises(ChannelFailed, match="PRODUCER_FAILED: disk full"):
        stage.partition.create_view(1, nothing)


def test_statistics_hold_every_part(stage: Stage) -> None:
    stage.write(1, b"abc")
    statistics = stage.partition.statistics()
    assert statistics.partition_id == "p"
    assert [part.queued_buffers for part in statistics.subpartitions] == [0, 1]
    assert statistics.pool.used == 1
    assert (statistics.is_finished, statistics.is_released) == (False, False)


def test_queues_and_usage_over_all_subpartitions(stage: Stage) -> None:
    stage.write(0, b"abc")
    stage.write(0, b"d", finish=False)
    statistics = stage.partition.statistics()
    assert (statistics.queued_buffers, statistics.queued_bytes) == (2, 4)
    queues = (statistics.shortest_queue_buffers, statistics.longest_queue_buffers, statistics.average_queue_buffers)
    assert queues == (0, 2, 1)
    assert statistics.out_pool_usage == 2 / 16
    stage.partition.broadcast_event(UserEvent("x"))
    assert stage.partition.statistics().queued_buffers == 4  # an event in each
