"""A stream worker's end without Spark: epochs over real connections, and what survives a worker."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from netstack import blocking
from netstack.base.config import NetworkConfig
from netstack.base.errors import ConfigError, ConnectionLost, RecordError
from netstack.base.ids import ChannelDescriptor
from netstack.exchange.record.arrow import PIECE_BYTES
from netstack.exchange.record.flink_rows import FlinkRows
from netstack.exchange.record.flink_types import schema_of
from netstack.spark.consumer import StreamLocation, StreamPoller, read_epoch, read_subpartition
from netstack.spark.epoch_protocol import EpochRequest, Poll, StreamState
from netstack.spark.publisher import Publisher
from netstack.spark.stream_schema import StreamSchema


def batch_of(*ids: int) -> Any:
    return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64())})


def ids_of(endpoint: StreamLocation, epoch: int, subpartition: int = 0) -> list[int]:
    return [value for batch in read_epoch(endpoint, "s", epoch, subpartition) for value in batch.column(0).to_pylist()]


def look(address: str, processed: int = 0, *, consumer: str = "spark") -> StreamState:
    """What is there, as a new reader sees it that has processed so much."""
    poller = StreamPoller("s", consumer, [StreamLocation(address=address)])
    try:
        while address not in (states := poller.poll({address: processed}, wait_s=120)):
            pass  # on a busy machine it may answer too late
        return states[address]
    finally:
        poller.close()


def test_an_epoch_is_read_again_and_again_until_it_is_done(tmp_path: Path) -> None:
    with blocking.open_network("tcp://127.0.0.1:0") as network:
        publisher = Publisher(network, "s", tmp_path, subpartitions=2)
        publisher.write(batch_of(1, 2))
        publisher.write(batch_of(3), 1)
        assert publisher.cut() == 1
        assert look(network.address) == StreamState(0, 0, 1, [], [])  # cut is not offered
        publisher._answer(EpochRequest("s", 0, 0).partition())
        assert not network.statistics().partitions
        publisher.offer()
        endpoint = StreamLocation(address=network.address)
        for _ in range(2):
            assert ids_of(endpoint, 0) == [1, 2]
            assert ids_of(endpoint, 0, 1) == [3]
        (size,) = (path.stat().st_size for path in tmp_path.glob("epoch-*"))
        assert look(network.address) == StreamState(0, 1, 1, [3], [size])
        assert publisher.acknowledged == 0
        look(network.address, 1)
        publisher.wait_acknowledged(timeout_s=120)
        assert publisher.acknowledged == 1
        assert not list(tmp_path.glob("epoch-*"))
        look(network.address, 9)  # of another stream
        assert publisher.acknowledged == 1


def test_a_flink_edge_becomes_epochs(tmp_path: Path) -> None:
    """Rows of Flink's SQL, read in its dialect, are what Spark reads as Arrow."""
    edge = "f0" * 60
    with (
        blocking.open_network("tcp://127.0.0.1:0", NetworkConfig(dialect="flink-2.3.0")) as flink,
        blocking.open_network("tcp://127.0.0.1:0") as network,
    ):
        partition = flink.create_partition(edge, subpartitions=1)
        writer = blocking.RecordWriter(partition, format="bytes", buffer_timeout_s=None)
        for number in range(500):
            row = bytes(8) + number.to_bytes(8, "little")
            writer.emit(b"\1" + len(row).to_bytes(4, "big") + row)
        writer.finish()
        publisher, rows = Publisher(network, "s", tmp_path), FlinkRows(schema_of("id BIGINT"))
        gate = flink.open_gate([ChannelDescriptor(flink.address, edge)])
        reader = blocking.RecordReader(gate, format="bytes")
        while (records := reader.next_records()) is not None:
            publisher.write(rows.batch(records))
        publisher.cut()
        publisher.offer()
        assert ids_of(StreamLocation(address=network.address), 0) == list(range(500))
        gate.close()


def test_an_epoch_is_kept_until_every_consumer_has_processed_it_and_strangers_are_refused(tmp_path: Path) -> None:
    with blocking.open_network("tcp://127.0.0.1:0") as network:
        publisher = Publisher(network, "s", tmp_path, consumers=("a", "b"))
        for epoch in range(3):
            publisher.write(batch_of(epoch))
            publisher.cut()
        publisher.offer()
        look(network.address, 3, consumer="a")
        assert publisher.acknowledged == 0
        look(network.address, 2, consumer="b")
        assert publisher.acknowledged == 2
        assert look(network.address, consumer="a").first == 2
        with pytest.raises(ConfigError, match="has the consumers a, b, and not 'c'"):
            look(network.address, 3, consumer="c")
        assert publisher.acknowledged == 2
    with blocking.open_network("tcp://127.0.0.1:0") as network:
        publisher = Publisher(network, "s", tmp_path, resume=3, consumers=("a", "b"))  # nothing is remembered here
        publisher.offer()
        look(network.address, 3, consumer="b")
        assert publisher.acknowledged == 2
        look(network.address, 3, consumer="a")  # says again what it said to the one before
        assert publisher.acknowledged == 3


def test_with_retention_the_oldest_go_and_the_worker_does_not_wait(tmp_path: Path) -> None:
    with blocking.open_network("tcp://127.0.0.1:0") as network:

        def kept(folder: str, epochs: int, **retention: Any) -> StreamState:
            publisher = Publisher(network, folder, tmp_path / folder, **retention)
            for epoch in range(epochs):
                publisher.write(batch_of(epoch))
                publisher.cut()
                publisher.offer(timeout_s=1)
                for path in (tmp_path / folder).glob("epoch-*"):
                    os.utime(path, (0, path.stat().st_mtime - 100))
            poller = StreamPoller(folder, "spark", [StreamLocation(address=network.address)])
            try:
                state = poller.wait_for_all()[network.address]
            finally:
                poller.close()
            assert len(list((tmp_path / folder).glob("epoch-*"))) == len(state.rows) == state.next - state.first
            return state

        (size,) = set(kept("all", 3).bytes)
        with pytest.raises(TimeoutError):
            kept("waits", 3, max_epochs=2)
        assert kept("count", 5, max_epochs=2, retain_s=1e6).first == 3
        assert kept("bytes", 9, retain_bytes=3 * size).first == 6
        assert kept("few bytes", 9, retain_bytes=1).first == 8, "the newest stays"
        assert kept("age", 9, retain_s=350).first == 5
        with pytest.raises(ConfigError, match="give a number above 0"):
            kept("none", 1, retain_s=0)


def test_the_columns_of_a_stream_stay(tmp_path: Path) -> None:
    other = pa.RecordBatch.from_pydict({"id": pa.array([1], pa.int32())})
    with blocking.open_network("tcp://127.0.0.1:0") as network:
        publisher = Publisher(network, "s", tmp_path)
        publisher.write(batch_of(1))
        with pytest.raises(RecordError, match=r"'id' is int32 .* int64 in"):
            publisher.write(other)
        publisher.cut()
        publisher.offer()
        look(network.address, 1)
        assert publisher.acknowledged == 1  # nothing is kept but the schema
    with blocking.open_network("tcp://127.0.0.1:0") as network:
        publisher = Publisher(network, "s", tmp_path, resume=1)
        with pytest.raises(RecordError, match="are fixed"):
            publisher.write(other)
        publisher.write(batch_of(2).replace_schema_metadata({"by": "another"}))


def test_columns_that_may_be_null_are_the_same_columns(tmp_path: Path) -> None:
    def schema(nullable: bool) -> Any:
        inner = pa.field("a", pa.int64(), nullable)
        return pa.schema(
            [pa.field("id", pa.int64(), nullable), pa.field("more", pa.list_(pa.struct([inner])), nullable)]
        )

    columns = StreamSchema(tmp_path)
    columns.keep(schema(nullable=False))
    columns.check(schema(nullable=True))
    StreamSchema(tmp_path).check(schema(nullable=True))
    with pytest.raises(RecordError):
        columns.check(schema(nullable=True).remove(0))


def test_questions_whose_answers_nobody_takes_are_few(tmp_path: Path) -> None:
    with (
        blocking.open_network("tcp://127.0.0.1:0") as network,
        blocking.open_network("tcp://127.0.0.1:0") as stranger,
    ):
        Publisher(network, "s", tmp_path)
        questions = [Poll("s", "spark", 0).partition() for _ in range(80)]
        stranger.open_gate([ChannelDescriptor(network.address, each, 0) for each in questions])
        until(lambda: len(network.statistics().partitions) == 64)
        network.create_partition("later", subpartitions=1)
        stranger.open_gate([ChannelDescriptor(network.address, "later", 0)])  # all that was asked before is decided
        until(lambda: network.statistics().partitions[-1].subpartitions[0].credit is not None)
        assert [each.partition_id for each in network.statistics().partitions[64:]] == ["later"]


def test_all_publishers_are_asked_at_once_and_none_is_waited_for_long(tmp_path: Path) -> None:
    """Seven answer; one takes connections and says nothing."""
    with contextlib.ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        locations = [StreamLocation(address=f"tcp://127.0.0.1:{silent.getsockname()[1]}", retry_s=0)]
        for each in range(7):
            network = stack.enter_context(blocking.open_network("tcp://127.0.0.1:0"))
            publisher = Publisher(network, "s", tmp_path / str(each))
            publisher.cut()
            publisher.offer()
            locations.append(StreamLocation(address=network.address, retry_s=0))
        poller = StreamPoller("s", "spark", locations)
        stack.callback(poller.close)
        states = poller.poll({})
        while len(states) < 7:  # each poll returns, though one never answers
            states = poller.poll({})
        assert [states[each.address].next for each in locations[1:]] == [1] * 7
        with pytest.raises(ConnectionLost, match=f"at {locations[0].address} has not answered"):
            poller.wait_for_all()


def test_a_stream_that_nobody_publishes_is_no_puzzle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netstack.spark.consumer._ANSWER_S", 0.05)
    with blocking.open_network("tcp://127.0.0.1:0") as network:
        poller = StreamPoller("s", "spark", [StreamLocation(address=network.address, retry_s=0)])
        with contextlib.closing(poller), pytest.raises(ConnectionLost, match="not answered: no Publisher of this name"):
            poller.wait_for_all()


def test_a_worker_that_comes_back_offers_what_was_stored_and_makes_the_rest_again(tmp_path: Path) -> None:
    with blocking.open_network("tcp://127.0.0.1:0") as network:
        publisher = Publisher(network, "s", tmp_path)
        for epoch in range(3):
            publisher.write(batch_of(epoch))
            assert publisher.cut() == epoch + 1
        publisher.write(batch_of(99))  # never cut
    with blocking.open_network("tcp://127.0.0.1:0") as network:
        publisher = Publisher(network, "s", tmp_path, resume=2)  # the state behind epoch 2 was never stored
        assert publisher.epoch == 2
        publisher.write(batch_of(7))
        publisher.cut(is_last=True)
        publisher.offer()
        endpoint = StreamLocation(address=network.address)
        assert [ids_of(endpoint, epoch) for epoch in range(3)] == [[0], [1], [7]]
        assert look(network.address).rows == [1, 1, 1]
    with (
        blocking.open_network("tcp://127.0.0.1:0") as network,
        pytest.raises(ConfigError, match=r"epoch 2, .* continues at 9"),
    ):
        Publisher(network, "s", tmp_path, resume=9)


@pytest.mark.slow
def test_rows_are_on_the_disk_once_and_readers_that_go_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("netstack.spark.publisher._MOST_READERS", 3)
    kept = tmp_path / "kept"
    kept.mkdir()
    config = NetworkConfig(memory_bytes=4 * 1024 * 1024, shuffle_directory=str(kept))
    with blocking.open_network("tcp://127.0.0.1:0", config) as network:
        publisher = Publisher(network, "s", tmp_path / "epochs")
        publisher.write(pa.record_batch({"id": np.arange(500_000)}))
        publisher.cut()
        publisher.offer()
        assert {path.name for path in kept.rglob("*") if path.is_file()} == {"lock"}
        endpoint = StreamLocation(address=network.address)
        for _ in range(4):  # more bytes than there are buffers
            assert len(next(read_epoch(endpoint, "s", 0, 0))) > 0
        wanted = EpochRequest("s", 0, 0)
        with blocking.open_network("tcp://127.0.0.1:0") as stranger:  # poller, and reads nothing
            stranger.open_gate([ChannelDescriptor(network.address, wanted.partition(), 0) for _ in range(5)])
            until(lambda: len(network.statistics().partitions) == 3)
        until(lambda: not network.statistics().partitions)
        assert sum(len(batch) for batch in read_epoch(endpoint, "s", 0, 0)) == 500_000
        until(lambda: not network.statistics().partitions)


def until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def test_a_consumer_that_does_not_keep_up_holds_the_worker_back(tmp_path: Path) -> None:
    with blocking.open_network("tcp://127.0.0.1:0") as network:
        publisher = Publisher(network, "s", tmp_path, max_epochs=2)
        for _ in range(3):
            publisher.cut()
        with pytest.raises(TimeoutError, match="room for another epoch"):
            publisher.offer(timeout_s=0.05)
        look(network.address, 1)
        publisher.offer(timeout_s=120)
        assert ids_of(StreamLocation(address=network.address), 2) == []


def test_a_partition_that_is_consumed_once_is_read_once() -> None:
    with blocking.open_network("tcp://127.0.0.1:0") as network:
        writer = blocking.RecordWriter(network.create_partition("p", subpartitions=1), format="msgpack")
        writer.emit([1, "a"])
        writer.finish()
        endpoint = StreamLocation(address=network.address, format="msgpack")
        assert list(read_subpartition(endpoint, "p", 0)) == [[1, "a"]]


def test_a_batch_of_many_rows_travels_in_pieces(tmp_path: Path) -> None:
    with blocking.open_network("tcp://127.0.0.1:0") as network:
        publisher = Publisher(network, "s", tmp_path)
        publisher.write(pa.record_batch({"id": np.arange(2_000_000)}))
        publisher.cut()
        publisher.offer()
        endpoint = StreamLocation(address=network.address)
        pieces = list(read_epoch(endpoint, "s", 0, 0))
        assert np.array_equal(np.concatenate([piece.column(0).to_numpy() for piece in pieces]), np.arange(2_000_000))
        assert max(piece.nbytes for piece in pieces) <= PIECE_BYTES
        assert len(pieces) > 1
