"""Spark's data source "netstack": partitions as DataFrames, a published stream as a streaming one, and both ways out.

Takes: options. Gives: `NetstackDataSource`, to be registered in a session.

    netstack.spark.register(spark)
    spark.read.format("netstack").schema("id bigint, user string").options(address="tcp://10.0.0.7:6121", partition="p")
    spark.readStream.format("netstack").schema(...).options(address="tcp://10.0.0.7:6121", partition="events")

    df.write.format("netstack").mode("append").options(address="tcp://10.0.0.9:6130", partition="clicks").save()
    events.writeStream.format("netstack").options(address="tcp://10.0.0.9:6130", partition="clicks")

| option of reading | is |
|---|---|
| `address` | of the producing TaskManager; several, with commas between, are several producers |
| `partition` | its name; of a stream that of its `Publisher` |
| `subpartitions` | how many it has: tasks that read at once; 1 |
| `format` | of its records: arrow (batches), msgpack (lists in the order of the schema, or maps), or one of a single column: str, bytes, int64, float64, flink-long, flink-string, flink-bytes |
| `dialect`, `segmentSizeBytes`, `secretFile` | as the producer has them |
| `retrySeconds` | how long a lost connection is tried again; 60 |
| `consumer` | the name under which a stream's epochs are processed: one that the Publisher knows (`consumers=`), and another one for each query; spark |
| `startingEpoch` | of a new query: `oldest` that is kept, `latest` (only what comes), or a number; oldest |
| `failOnDataLoss` | whether epochs that are gone end the query with an error, or are passed over with a warning; true |
| `maxEpochs`, `maxRows`, `maxBytes` | of a micro-batch at most; 16 epochs. An epoch is never split, so a batch has one at least. Bytes are those on the publishers' disks |

| option of writing | is |
|---|---|
| `address` | of a `Subscriber` |
| `partition` | the name of its stream |
| `secretFile`, `segmentSizeBytes` | as it has them |
| `retrySeconds` | how long a Subscriber that is not there is tried; 60 |
| `ports` | `7100-7110`: what tasks may listen on, where the Subscriber reads from them |

A stream's offsets are epochs of the publishers, by address: a micro-batch ends where checkpoints of the stream workers do. An
epoch stays with its publisher until Spark has committed what it made of it, so a batch that is made again reads the same rows.
`Trigger.AvailableNow` reads what waited at its start, in as many micro-batches as the limits want, and ends. The next look
at what there is asks all publishers at once and waits 50 ms at most, however many they are.

What Spark's Python API (4.2, 4.3) does not allow: a streaming reader is told neither filters nor wanted columns, and asked for
no metrics. So all columns of `.schema(...)` go to Spark (leave out what you do not need: it is dropped in the task), and how
far a query is behind is `latestOffset` less `endOffset` in its progress. A batch reader that takes filters is refused by every
session without `spark.sql.python.filterPushdown.enabled`, so ours takes none.

What is written is one epoch for a `save`, and one for each micro-batch: `sink` tells how it is there once.
"""  # noqa: E501 - a table's rows

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from ..config import NATIVE_DIALECT
from ..errors import ConfigError
from .consumer import read_subpartition
from .driver import driver_of
from .ship import ship
from .sink import MicroBatchWriter, TableWriter
from .source_options import FORMAT, Settings, sink_settings
from .stream_reader import EpochReader, Slice, rows_of


@final
class NetstackDataSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return FORMAT

    def schema(self) -> str:
        """Refuses: a partition does not tell."""
        raise ConfigError(f"the data source {FORMAT} needs the schema of the rows: .schema('id bigint, user string')")

    def reader(self, schema: Any) -> DataSourceReader:
        """Reads a partition that ends."""
        return PartitionReader(Settings.of(self.options), schema)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - pyspark's name
        """Reads a published stream.

        Raises:
            ConfigError: an option is wrong.
        """
        settings = Settings.of(self.options)
        if settings.endpoints[0].dialect != NATIVE_DIALECT:
            raise ConfigError(f"a stream is published by netstack: give it the dialect {NATIVE_DIALECT}, or none")
        return EpochReader(settings, schema)

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        """Writes an epoch to a Subscriber."""
        return TableWriter(sink_settings(self.options, overwrite=overwrite))

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Writes an epoch for each micro-batch."""
        return MicroBatchWriter(sink_settings(self.options, overwrite=overwrite))


@final
class PartitionReader(DataSourceReader):
    """A partition that ends: each subpartition is read by one task.

    A pipelined partition is consumed once, so an action on the DataFrame is too: a second one fails.
    """

    def __init__(self, settings: Settings, schema: Any) -> None:
        self._settings = settings
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """One for each subpartition of each producer."""
        settings = self._settings
        return [
            Slice(endpoint, subpartition)
            for endpoint in range(len(settings.endpoints))
            for subpartition in range(settings.subpartitions)
        ]

    def read(self, partition: Any) -> Iterator[Any]:
        """The rows of one, in a task."""
        endpoint = self._settings.endpoints[partition.endpoint]
        records = read_subpartition(endpoint, self._settings.partition, partition.subpartition)
        return rows_of(records, self._schema)


def register(spark: Any) -> None:
    """Makes the format "netstack" known to a session, and sends the package to its executors.

    Args:
        spark: the session; from here on also that of this thread, where Spark looks for the formats of `write`.

    Raises:
        ConfigError: the package is not there as files.
    """
    if not (driver_of(spark).setting("spark.master") or "").startswith("local["):
        ship(spark)
    spark.dataSource.register(NetstackDataSource)
    spark.createDataFrame([], "it int")  # what makes it this thread's: it may have been opened in another
