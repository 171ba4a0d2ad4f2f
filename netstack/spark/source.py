"""Spark's data source "netstack": reads partitions and published streams, and writes to a `Subscriber`.

    netstack.spark.register(spark)
    spark.read.format("netstack").schema("id bigint, user string").options(address="tcp://10.0.0.7:6121", partition="p")
    spark.readStream.format("netstack").schema(...).options(address="tcp://10.0.0.7:6121", partition="events")

    df.write.format("netstack").mode("append").options(address="tcp://10.0.0.9:6130", partition="clicks").save()
    events.writeStream.format("netstack").options(address="tcp://10.0.0.9:6130", partition="clicks")

| option of reading | meaning |
|---|---|
| `address` | URL of the producing TaskManager; several producers are separated by commas |
| `partition` | name of the partition, or of the `Publisher`'s stream |
| `subpartitions` | number of subpartitions, which is the number of tasks that read in parallel; 1 |
| `format` | format of the records: arrow (batches), msgpack (lists in the order of the schema, or maps), or for a single column: str, bytes, int64, float64, flink-long, flink-string, flink-bytes |
| `dialect`, `segmentSizeBytes`, `secretFile` | the producer's settings |
| `mode`, `columnNameOfCorruptRecord` | a record that does not fit the schema fails the task (FAILFAST, the default), or its values that do not fit are NULL and its text is in a column of the schema (PERMISSIVE); _corrupt_record |
| `retrySeconds` | how long a lost connection is retried; 60 |
| `consumer` | name under which a query acknowledges epochs: one of the Publisher's `consumers=`, another one for each query; spark |
| `startingEpoch` | where a new query starts: `oldest` epoch that is kept, `latest` (only new epochs), or a number; oldest |
| `failOnDataLoss` | whether missing epochs fail the query, or are skipped with a warning; true |
| `maxEpochs`, `maxRows`, `maxBytes` | limits of a micro-batch; 16 epochs. An epoch is never split, so a batch has at least one. Bytes are counted on the publishers' disks |

| option of writing | meaning |
|---|---|
| `address` | URL of a `Subscriber` |
| `partition` | name of its stream |
| `secretFile`, `segmentSizeBytes` | the Subscriber's settings |
| `retrySeconds` | how long an unreachable Subscriber is retried; 60 |
| `ports` | first and last port a task may listen on, `7100-7110`; the Subscriber connects to the tasks |

A schema's columns are found by name, by `spark.sql.caseSensitive`, in batches and maps. A record without a column does not fit.

A stream's offset is an epoch of each publisher, so a micro-batch ends where a checkpoint of a stream worker ends. A publisher
keeps an epoch until Spark has committed its rows, so a repeated batch reads the same rows. `Trigger.AvailableNow` reads the
epochs that are available at its start, in as many micro-batches as the limits require, and ends. A poll for new epochs asks
all publishers in parallel and waits at most 50 ms, however many there are.

Limits of Spark's Python API (4.2, 4.3): a streaming reader gets neither filters nor the selected columns, and cannot report
metrics. So a query reads all columns of `.schema(...)`: leave out those you do not need, which the task drops. The lag of a
query is `latestOffset` minus `endOffset` in its progress. A session without `spark.sql.python.filterPushdown.enabled`
refuses a batch reader that accepts filters, so this one accepts none.

A `save` writes one epoch, and a query one for each micro-batch that has rows; `sink` describes how each arrives once.
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

from ..base.config import NATIVE_DIALECT
from ..base.errors import ConfigError
from .consumer import read_subpartition
from .row_conversion import RowConverter
from .ship import ship
from .sink import MicroBatchWriter, TableWriter
from .source_options import FORMAT, Settings, sink_settings
from .stream_reader import EpochReader, RefusingReader, Slice


@final
class NetstackDataSource(DataSource):
    """The format "netstack" of `spark.read`, `readStream`, `write` and `writeStream`."""

    @classmethod
    def name(cls) -> str:
        """Returns the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Raises ConfigError: a partition does not carry its schema."""
        raise ConfigError(f"the data source {FORMAT} needs the schema of the rows: .schema('id bigint, user string')")

    def reader(self, schema: Any) -> DataSourceReader:
        """Returns the reader of a bounded partition."""
        return PartitionReader(Settings.of(self.options, schema), schema)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - pyspark's name
        """Returns the reader of a published stream, or one that refuses a wrong option at its first call."""
        try:
            settings = Settings.of(self.options, schema)
            if settings.endpoints[0].dialect != NATIVE_DIALECT:
                raise ConfigError(f"a published stream has the dialect {NATIVE_DIALECT}: leave out the option dialect")
        except ConfigError as error:
            return RefusingReader(error)
        return EpochReader(settings, schema)

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        """Returns the writer of a `save`."""
        return TableWriter(sink_settings(self.options, overwrite=overwrite))

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Returns the writer of a query."""
        return MicroBatchWriter(sink_settings(self.options, overwrite=overwrite))


@final
class PartitionReader(DataSourceReader):
    """Reads a bounded partition, each subpartition in one task.

    A pipelined partition can be consumed once, so the second action on its DataFrame fails.
    """

    def __init__(self, settings: Settings, schema: Any) -> None:
        self._settings = settings
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Returns an input for each subpartition of each producer."""
        settings = self._settings
        return [
            Slice(endpoint, subpartition)
            for endpoint in range(len(settings.endpoints))
            for subpartition in range(settings.subpartitions)
        ]

    def read(self, partition: Any) -> Iterator[Any]:
        """Reads the rows of one input, in a task."""
        endpoint = self._settings.endpoints[partition.endpoint]
        records = read_subpartition(endpoint, self._settings.partition, partition.subpartition)
        return RowConverter(self._schema, corrupt=self._settings.corrupt_column).batches(records)


def register(spark: Any) -> None:
    """Registers the format "netstack" in a session, and ships the package to its executors.

    Args:
        spark: the session; it becomes the active session of this thread. Spark looks up the formats of `write` only in
            the active session, and each Python thread has its own: call `register` in each thread that writes.

    Raises:
        ConfigError: the package is not installed as files.
    """
    spark.createDataFrame([], "it int")  # makes it the active session, where Spark also looks for an earlier format
    ship(spark)
    spark.dataSource.register(NetstackDataSource)
