"""The data source "netstack" in a real session: partitions and streams, and what survives deaths of either side."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from spark.workers import free_address

pytest.importorskip("pyspark")

from netstack import blocking
from netstack.base.errors import ConfigError
from netstack.spark.consumer import StreamLocation
from netstack.spark.publisher import Publisher
from netstack.spark.source import NetstackDataSource
from netstack.spark.source_options import Settings, sink_settings

pytestmark = [pytest.mark.java, pytest.mark.whole, pytest.mark.xdist_group("spark")]

WORKER = Path(__file__).with_name("stream_worker.py")


def start_worker(folder: Path, address: str, rows: int, rows_of_an_epoch: int) -> subprocess.Popen[bytes]:
    arguments = [str(folder), address, str(rows), str(rows_of_an_epoch)]
    return subprocess.Popen([sys.executable, str(WORKER), *arguments], env={**os.environ, "PYTHONPATH": os.getcwd()})


def test_partitions_are_a_data_frame(spark: Any) -> None:
    spark.dataSource.register(NetstackDataSource)
    with blocking.open_network("tcp://127.0.0.1:0") as network:
        for name, format in (("columns", "arrow"), ("rows", "msgpack")):
            partition = network.create_partition(name, subpartitions=2)
            writer = blocking.RecordWriter(partition, format=format)
            for at in range(100):
                row: Any = {"id": at, "name": f"n{at}", "more": 1.5}
                writer.emit(pa.RecordBatch.from_pylist([row]) if format == "arrow" else row)
            writer.finish()
        for name, format in (("columns", "arrow"), ("rows", "msgpack")):
            options = {"address": network.address, "partition": name, "subpartitions": "2", "format": format}
            df = spark.read.format("netstack").schema("name string, id int").options(**options).load()
            assert sorted(map(tuple, df.collect())) == sorted((f"n{at}", at) for at in range(100))


@pytest.mark.long
def test_a_stream_whose_both_ends_are_killed_arrives_exactly_once(spark: Any, tmp_path: Path) -> None:
    spark.dataSource.register(NetstackDataSource)
    rows, address, rng = 1500, free_address(), random.Random(7)
    worker = start_worker(tmp_path, address, rows, 100)
    stream = spark.readStream.format("netstack").schema("id bigint")
    stream = stream.options(address=address, partition="numbers", subpartitions="2", retrySeconds="20", maxEpochs="3")

    def start_query() -> Any:
        writer = stream.load().writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.trigger(processingTime="50 milliseconds").start(str(tmp_path / "table"))

    query = start_query()
    kills, until_s = ["worker", "query", "worker"], time.monotonic() + 180
    while worker.poll() != 0:  # all of it was processed, and the worker was told
        assert time.monotonic() < until_s, query.lastProgress
        if worker.poll() is not None:
            assert worker.returncode == -signal.SIGKILL
            worker = start_worker(tmp_path, address, rows, 100)
        if not query.isActive:
            query = start_query()
        if kills and query.lastProgress and query.lastProgress["batchId"] > 3 - len(kills):
            time.sleep(rng.uniform(0, 0.5))
            if kills.pop() == "worker":
                worker.kill()
                worker.wait()
            else:
                query.stop()
        time.sleep(0.1)
    query.stop()
    assert not kills
    ids = [row["id"] for row in spark.read.parquet(str(tmp_path / "table")).collect()]
    assert len(ids) == rows
    assert sorted(ids) == list(range(rows))


def test_available_now_reads_all_that_waits_and_two_queries_do_not_take_from_each_other(
    spark: Any, tmp_path: Path
) -> None:
    spark.dataSource.register(NetstackDataSource)
    with blocking.open_network("tcp://127.0.0.1:0") as network:
        publisher = Publisher(network, "events", tmp_path / "epochs", consumers=("first", "second"))
        for epoch in range(12):
            publisher.write(pa.RecordBatch.from_pydict({"id": range(epoch * 10, epoch * 10 + 10)}))
            publisher.cut()
        publisher.offer()

        def read(consumer: str, **more: str) -> Any:
            """A query that ends; its last progress."""
            where = {"address": network.address, "partition": "events", "consumer": consumer, **more}
            stream = spark.readStream.format("netstack").schema("id bigint").options(**where).load()
            writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / f"{consumer}.c"))
            query = writer.trigger(availableNow=True).start(str(tmp_path / consumer))
            assert query.awaitTermination(90)
            rows = [row["id"] for row in spark.read.parquet(str(tmp_path / consumer)).collect()]
            assert sorted(rows) == list(range(120))
            return query.recentProgress

        (source,) = read("first", maxRows="45")[-1]["sources"]
        assert json.loads(source["latestOffset"]) == json.loads(source["endOffset"]) == {network.address: 12}
        assert publisher.acknowledged == 0
        assert len(read("second", maxEpochs="5")) >= 3
        publisher.wait_acknowledged(timeout_s=120)
        read("first")  # again, from its checkpoint: nothing is there twice


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"address": "tcp://h:1", "partition": "p", "startingEpoch": "newest"},
            "startingEpoch='newest': give oldest, latest or",
        ),
        ({"address": "tcp://h:1", "partition": "p", "failOnDataLoss": "no"}, "give true or false"),
        ({"address": "tcp://h:1", "partition": "p", "consumer": "a?b"}, "consumer 'a.b': give 1 to 64"),
        ({"address": "tcp://h:1"}, "needs the options address and partition"),
        (
            {"address": "tcp://h:1", "partition": "p", "adress": "x"},
            "no option 'adress' to read; .* retrySeconds, subp",
        ),
        ({"address": "tcp://h:1", "partition": "p", "format": "pickle"}, "option format='pickle': .*give one of bytes"),
        ({"address": "tcp://h:1", "partition": "p", "subpartitions": "none"}, "subpartitions='none'"),
    ],
)
def test_options_are_checked(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Settings.of(options, ())
    reader = NetstackDataSource(options).streamReader(None)  # pyspark loses an error of this call
    for call in (reader.initialOffset, partial(reader.partitions, {}, {})):
        with pytest.raises(ConfigError, match=says):
            call()


@pytest.mark.parametrize(
    ("options", "overwrite", "says"),
    [
        ({"partition": "p"}, False, "needs the options address and partition"),
        ({"format": "msgpack"}, False, "no option 'format' to write"),
        ({"ports": "7100-x"}, False, "'x' is no port"),
        ({"ports": "7110-7100"}, False, "the lower one first"),
        ({"address": "tcp://a:1,tcp://b:1", "partition": "p"}, False, "rows go to one Subscriber"),
        ({"address": "tcp://a:1", "partition": "p"}, True, "cannot be overwritten: give mode"),
    ],
)
def test_options_of_writing_are_checked(options: dict[str, str], overwrite: bool, says: str) -> None:
    where = {} if "partition" in options else {"address": "tcp://a:1", "partition": "p"}
    with pytest.raises(ConfigError, match=says):
        sink_settings({**where, **options}, overwrite=overwrite)


def test_several_addresses_are_several_producers() -> None:
    settings = Settings.of({"address": "tcp://a:1, tcp://b:2", "partition": "p", "format": "flink-long"}, ())
    assert [each.address for each in settings.endpoints] == ["tcp://a:1", "tcp://b:2"]
    assert isinstance(settings.endpoints[0], StreamLocation)
