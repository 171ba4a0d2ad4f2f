"""A user of Spark Connect: functions that `ConnectServer.run_client` runs, each in a process without a JVM.

python connect_client.py FUNCTION sc://HOST:PORT FOLDER
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from spark.workers import free_address

import netstack.spark
from netstack import blocking
from netstack.base.errors import ConfigError
from netstack.exchange.keygroups import key_group, operator_index
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.spark import (
    ExchangeStatistics,
    Publisher,
    SparkFailed,
    Subscriber,
    exchange,
    plain_errors,
    run,
)
from netstack_bench.places.spark import compare, recommend, register_views, run_sweep
from netstack_bench.places.spark.tables import RUNS, SCHEMAS, run_frame

WAIT_S: Final = 120.0
PAGE: Final = Path(__file__).parents[3] / "tools/docs/pages/how-to/spark.md"


def exchanges(spark: Any, _: Path) -> None:
    """Every action on an exchange, on a server without netstack; and the sentences for what Connect cannot do."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    df = spark.range(0, 1000, 1, 2).selectExpr("id", "concat('u', id % 7) as user")
    out = exchange(df, key="user", buffer_timeout_s=None, exclusive_buffers_per_channel=1)
    assert out.schema == df.schema
    rows = out.select("id", "user", F.spark_partition_id()).collect()
    assert sorted(row[0] for row in rows) == list(range(1000))
    assert all(row[2] == operator_index(key_group(row[1], 128), 2, 128) for row in rows)
    out.show(3)
    assert out.first() is not None
    assert out.limit(60).count() == 60
    assert exchange(out.union(df).coalesce(1), key="id").count() == 2000  # one behind the other
    assert exchange(df, key="id", boundary=False).count() == 1000

    failing = df.selectExpr("id", "raise_error(concat('no number: ', id)) as x")
    dying = df.mapInArrow(_die, df.schema)
    refused(SparkFailed, "no number: ", lambda: exchange(failing, key="id").collect())
    refused(SparkFailed, "ended in the middle of the run", lambda: exchange(dying, key="id").count())
    refused(ConfigError, "Spark Connect has none", lambda: ExchangeStatistics(spark))
    refused(ConfigError, "leave out profile", lambda: exchange(df, key="id", profile=object()))
    refused(ConfigError, "a job on Spark needs a classic session", lambda: run(spark, StreamEnvironment("none")))
    refused(ConfigError, "a sweep needs a classic session", lambda: run_sweep(spark, {}))
    spark.conf.set("spark.sql.leafNodeDefaultParallelism", "8")  # more than the server has
    refused(ConfigError, "set spark.sql.leafNodeDefaultParallelism", lambda: exchange(df, key="id"))
    spark.conf.set("spark.sql.leafNodeDefaultParallelism", "1")
    assert exchange(df, key="id").select(F.spark_partition_id()).distinct().count() == 1


def batches(spark: Any, folder: Path) -> None:
    """Reads a partition and saves a DataFrame, on a server without netstack; first what the page says."""
    (block,) = (each for each in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "remote(" in each)
    exec(block.replace("sc://10.0.0.1:15002", sys.argv[2]))
    with blocking.open_network("tcp://127.0.0.1:0") as network:
        writer = blocking.RecordWriter(network.create_partition("rows", subpartitions=2), format="arrow")
        for at in range(100):
            writer.emit(pa.RecordBatch.from_pylist([{"id": at, "name": f"n{at}"}]))
        writer.finish()
        options = {"address": network.address, "partition": "rows", "subpartitions": "2"}
        reader = spark.read.format("netstack").schema("name string, id int")
        rows = reader.options(**options).load().collect()
        assert sorted(map(tuple, rows)) == sorted((f"n{at}", at) for at in range(100))
        refused(SparkFailed, "no option 'nope'", lambda: reader.options(nope="1", **options).load().collect())
    with Receiver(folder, epochs=1) as receiver:
        writer = spark.range(0, 500, 1, 2).write.format("netstack").mode("append")
        writer.options(address=receiver.address, partition="clicks").save()
        assert sorted(receiver.ids()) == list(range(500))


def streams(spark: Any, folder: Path) -> None:
    """A stream into a table, and a query into a Subscriber: they need netstack on the server."""
    netstack.spark.register(spark)  # not imported above, because it needs pyspark 4.2
    with blocking.open_network("tcp://127.0.0.1:0") as network:
        publisher = Publisher(network, "events", folder / "epochs", resume=None)
        for epoch in range(2):
            publisher.write(
                pa.RecordBatch.from_pydict({"id": pa.array(range(epoch * 50, epoch * 50 + 50), pa.int64())})
            )
            publisher.cut()
            publisher.offer()
        events = spark.readStream.format("netstack").schema("id bigint")
        events = events.options(address=network.address, partition="events").load()
        to_table = events.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
        query = to_table.trigger(availableNow=True).start(str(folder / "table"))
        assert query.awaitTermination(WAIT_S)
        assert query.exception() is None
        publisher.wait_acknowledged()
    assert sorted(pq.read_table(folder / "table").column("id").to_pylist()) == list(range(100))
    with Receiver(folder, epochs=2) as receiver:
        numbers = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=5, numPartitions=1).load()
        sink = numbers.selectExpr("value as id").writeStream.format("netstack")
        sink = sink.options(address=receiver.address, partition="clicks")
        query = sink.option("checkpointLocation", str(folder / "sink")).start()
        assert receiver.ids() == list(range(10))
        query.stop()


def tables(spark: Any, folder: Path) -> None:
    """The tables of a sweep, and the answers of all of them."""
    rows = json.loads((folder / "rows.json").read_text())
    runs = run_frame(spark, rows, sweep_id="first", command="")
    later = run_frame(spark, rows, sweep_id="second", command="")
    both = runs.unionByName(later).drop("timeline")
    both.write.partitionBy("sweep_id").parquet(str(folder / RUNS))
    for name in SCHEMAS.keys() - {RUNS}:
        (folder / name).mkdir()
    register_views(spark, str(folder))
    answers = spark.sql("select sweep_id, buffer_timeout_s from netstack_recommendations order by sweep_id").collect()
    assert [row.sweep_id for row in answers] == ["first", "second"]
    assert {row.verdict for row in compare(runs, later).collect()} == {"same"}
    (answer,) = recommend(both).collect()
    assert answer.buffer_timeout_s == answers[0].buffer_timeout_s


def refused(error: type[Exception], text: str, action: Callable[[], object]) -> None:
    with pytest.raises(error, match=text) as caught, plain_errors():
        action()
    assert "\n" not in str(caught.value)


@final
class Receiver:
    """A worker with a Subscriber, in a thread, until it has some epochs."""

    def __init__(self, folder: Path, *, epochs: int) -> None:
        self.address = free_address()
        self._folder = folder
        self._epochs = epochs
        self._ids = list[int]()
        self._thread = threading.Thread(target=self._receive, daemon=True)

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def ids(self) -> list[int]:
        """Waits for the epochs; returns their rows."""
        self._thread.join(WAIT_S)
        return self._ids

    def _receive(self) -> None:
        with Subscriber(self.address, "clicks", self._folder / "received", resume=None) as subscriber:
            for epoch in subscriber:
                for batch in epoch:
                    self._ids += batch.column("id").to_pylist()
                subscriber.forget(epoch)
                self._epochs -= 1
                if not self._epochs:
                    return


def _die(_: Any) -> Any:
    os._exit(3)


if __name__ == "__main__":
    session = SparkSession.builder.remote(sys.argv[2]).getOrCreate()
    {each.__name__: each for each in (exchanges, batches, streams, tables)}[sys.argv[1]](session, Path(sys.argv[3]))
    session.stop()
