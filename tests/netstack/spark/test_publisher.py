"""A stream worker's end without Spark: epochs over real connections, and what survives a worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from netstack import blocking
from netstack.errors import ConfigError
from netstack.record.arrow import PIECE_BYTES
from netstack.spark.consumer import StreamLocation, read_now, read_subpartition
from netstack.spark.publisher import EpochManifest, Publisher, done_partition, epoch_partition


def batch_of(*ids: int) -> Any:
    return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64())})


def ids_of(endpoint: StreamLocation, epoch: int, subpartition: int = 0) -> list[int]:
    records = read_subpartition(endpoint, epoch_partition("s", epoch), subpartition, again=True)
    return [value for batch in records for value in batch.column(0).to_pylist()]


def say_done(endpoint: StreamLocation, epoch: int) -> bool:
    with endpoint.open() as network:
        return read_now(network, endpoint, done_partition("s", epoch), 0, timeout_s=2) is not None


def test_an_epoch_is_read_again_and_again_until_it_is_done(tmp_path: Path) -> None:
    with blocking.open_network("tcp://127.0.0.1:0") as network:
        publisher = Publisher(network, "s", tmp_path, subpartitions=2)
        publisher.write(batch_of(1, 2))
        publisher.write(batch_of(3), 1)
        assert publisher.cut() == 1
        endpoint = StreamLocation(address=network.address)
        with endpoint.open() as reader:  # cut is not offered
            assert read_now(reader, endpoint, epoch_partition("s", 0), 0, timeout_s=0.1) is None
        publisher.offer()
        for _ in range(2):
            assert ids_of(endpoint, 0) == [1, 2]
            assert ids_of(endpoint, 0, 1) == [3]
        with endpoint.open() as reader:
            (manifest,) = read_now(reader, endpoint, epoch_partition("s", 0), 2, timeout_s=5) or []
        assert EpochManifest.from_batch(manifest) == EpochManifest(0, 3, is_last=False)
        assert publisher.acknowledged == 0
        assert say_done(endpoint, 1)
        publisher.wait_acknowledged(timeout_s=5)
        assert publisher.acknowledged == 1
        assert not list(tmp_path.glob("epoch-*"))
        assert say_done(endpoint, 1)  # a consumer that comes back
        assert publisher.acknowledged == 1


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
        with endpoint.open() as reader:
            (manifest,) = read_now(reader, endpoint, epoch_partition("s", 2), 1, timeout_s=5) or []
        assert EpochManifest.from_batch(manifest).is_last
    with (
        blocking.open_network("tcp://127.0.0.1:0") as network,
        pytest.raises(ConfigError, match="ends with epoch 2, and the worker goes on at 9"),
    ):
        Publisher(network, "s", tmp_path, resume=9)


def test_a_consumer_that_does_not_keep_up_holds_the_worker_back(tmp_path: Path) -> None:
    with blocking.open_network("tcp://127.0.0.1:0") as network:
        publisher = Publisher(network, "s", tmp_path, max_epochs=2)
        for _ in range(3):
            publisher.cut()
        with pytest.raises(TimeoutError, match="room for another epoch"):
            publisher.offer(timeout_s=0.05)
        assert say_done(StreamLocation(address=network.address), 1)
        publisher.offer(timeout_s=5)
        assert ids_of(StreamLocation(address=network.address), 2) == []


def test_a_partition_that_is_consumed_once_is_read_once() -> None:
    with blocking.open_network("tcp://127.0.0.1:0") as network:
        writer = blocking.RecordWriter(network.create_partition("p", subpartitions=1), format="msgpack")
        writer.emit([1, "a"])
        writer.finish()
        endpoint = StreamLocation(address=network.address, format="msgpack")
        assert list(read_subpartition(endpoint, "p", 0, again=False)) == [[1, "a"]]


def test_a_batch_of_many_rows_travels_in_pieces(tmp_path: Path) -> None:
    with blocking.open_network("tcp://127.0.0.1:0") as network:
        publisher = Publisher(network, "s", tmp_path)
        publisher.write(pa.record_batch({"id": np.arange(2_000_000)}))
        publisher.cut()
        publisher.offer()
        endpoint = StreamLocation(address=network.address)
        pieces = list(read_subpartition(endpoint, epoch_partition("s", 0), 0, again=True))
        assert np.array_equal(np.concatenate([piece.column(0).to_numpy() for piece in pieces]), np.arange(2_000_000))
        assert max(piece.nbytes for piece in pieces) <= PIECE_BYTES
        assert len(pieces) > 1
