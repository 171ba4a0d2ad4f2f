"""Which epochs a micro-batch takes: limits, Trigger.AvailableNow, epochs that are gone. Real publishers, no session."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
)

from netstack import blocking
from netstack.base.errors import ConfigError, ConnectionLost, NetstackError
from netstack.spark.publisher import Publisher
from netstack.spark.source_options import Settings
from netstack.spark.stream_reader import EpochReader, Slice


@contextlib.contextmanager
def publisher_of(folder: Path, rows: list[int], **more: Any) -> Iterator[tuple[Publisher, str]]:
    """A publisher with an epoch of so many rows each."""
    with blocking.open_network("tcp://127.0.0.1:0") as network:
        publisher = Publisher(network, "s", folder, **more)
        add(publisher, rows)
        yield publisher, network.address


def add(publisher: Publisher, rows: list[int]) -> None:
    for count in rows:
        publisher.write(pa.record_batch({"id": pa.array(range(count), pa.int64())}))
        publisher.cut()
    publisher.offer()


@contextlib.contextmanager
def reader_of(*addresses: str, **options: str) -> Iterator[EpochReader]:
    where = {"address": ",".join(addresses), "partition": "s", "retrySeconds": "5", **options}
    reader = EpochReader(Settings.of(where, ()), None)
    try:
        yield reader
    finally:
        reader.stop()


@pytest.mark.parametrize(
    ("options", "limit", "taken"),
    [
        ({}, None, 6),
        ({"maxEpochs": "2"}, None, 2),
        ({"maxEpochs": "2"}, ReadAllAvailable(), 6),
        ({"maxEpochs": "2"}, ReadMaxFiles(3), 3),
        ({"maxRows": "30"}, None, 3),
        ({"maxRows": "30", "maxEpochs": "2"}, None, 2),
        ({"maxRows": "5"}, None, 1),  # an epoch is never split
        ({}, ReadMaxRows(29), 2),
        ({"maxBytes": "1"}, None, 1),
        ({}, ReadMaxBytes(1 << 20), 6),
        ({}, ReadMinRows(60), 6),
        ({}, ReadMinRows(61), 0),
    ],
)
def test_a_micro_batch_keeps_its_limits(options: dict[str, str], limit: Any, taken: int, tmp_path: Path) -> None:
    with publisher_of(tmp_path, [10] * 6) as (_, address), reader_of(address, **options) as reader:
        start = reader.initialOffset()
        assert start == {address: 0}
        assert reader.latestOffset(start, limit or reader.getDefaultReadLimit()) == {address: taken}
        assert reader.reportLatestOffset() == {address: 6}


def test_all_publishers_get_their_turn(tmp_path: Path) -> None:
    with (
        publisher_of(tmp_path / "a", [1] * 4) as (_, a),
        publisher_of(tmp_path / "b", [1] * 4) as (_, b),
        reader_of(a, b, maxEpochs="1") as reader,
    ):
        offsets = [reader.initialOffset()]
        for _ in range(9):
            offsets.append(reader.latestOffset(offsets[-1], reader.getDefaultReadLimit()))
        assert [sum(offset.values()) for offset in offsets] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 8]
        assert offsets[4] == {a: 2, b: 2}


def test_available_now_ends_behind_what_waited_at_its_start(tmp_path: Path) -> None:
    with publisher_of(tmp_path, [10] * 5) as (publisher, address), reader_of(address, maxEpochs="2") as reader:
        reader.prepareForTriggerAvailableNow()
        offset, ends = reader.initialOffset(), []
        while True:
            add(publisher, [10])  # more comes all the time
            end = reader.latestOffset(offset, reader.getDefaultReadLimit())
            if end == offset:
                break
            ends.append(end[address])
            offset = end
        assert ends == [2, 4, 5]
        assert reader.latestOffset(offset, ReadMinRows(100)) == offset
        assert publisher.acknowledged == 5  # also of the last batch


def test_a_new_query_begins_where_it_is_told(tmp_path: Path) -> None:
    with publisher_of(tmp_path, [10] * 5, consumers=("x", "y")) as (publisher, address):
        for consumer in ("x", "y"):
            with reader_of(address, consumer=consumer) as reader:
                reader.commit({address: 2})
        assert publisher.acknowledged == 2
        for starting, first in (("oldest", 2), ("latest", 5), ("3", 3)):
            with reader_of(address, consumer="x", startingEpoch=starting) as reader:
                assert reader.initialOffset() == {address: first}
        with (
            reader_of(address, consumer="z") as reader,
            pytest.raises(ConfigError, match="not 'z': correct the option"),
        ):
            reader.initialOffset()
    with reader_of(address, retrySeconds="0") as reader, pytest.raises(ConnectionLost, match="has not answered"):
        reader.initialOffset()


@pytest.mark.parametrize(("start", "says"), [(1, "epochs 1 to 2 are gone"), (9, "the stream was started anew")])
def test_epochs_that_are_gone_end_the_query_or_are_passed_over(
    start: int, says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with publisher_of(tmp_path, [10] * 5) as (publisher, address):
        with reader_of(address) as reader:
            reader.commit({address: 3})
        assert publisher.acknowledged == 3
        with reader_of(address) as reader:
            reader.initialOffset()  # the Publisher has answered
            with pytest.raises(NetstackError, match=says):
                reader.latestOffset({address: start}, ReadAllAvailable())
            if start == 1:
                with pytest.raises(NetstackError, match=says):
                    reader.partitions({address: start}, {address: 4})  # of a driver before
        with reader_of(address, failOnDataLoss="false") as reader:
            reader.initialOffset()
            assert reader.latestOffset({address: start}, ReadAllAvailable()) == {address: 5}
            if start == 1:
                (part,) = reader.partitions({address: start}, {address: 4})
                assert isinstance(part, Slice)
                assert (part.start, part.end) == (3, 4)
                assert reader.partitions({address: start}, {address: 2}) == []
        assert says in caplog.text
        add(publisher, [10])
        assert publisher.acknowledged == 3
