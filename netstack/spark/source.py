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
| `startingEpoch` | of a new query; 0 |
| `maxEpochs` | of a micro-batch at most; 16 |

| option of writing | is |
|---|---|
| `address` | of a `Subscriber` |
| `partition` | the name of its stream |
| `secretFile`, `segmentSizeBytes` | as it has them |
| `retrySeconds` | how long a Subscriber that is not there is tried; 60 |
| `ports` | `7100-7110`: what tasks may listen on, where the Subscriber reads from them |

A stream's offsets are epochs of the publishers, by address: a micro-batch ends where checkpoints of the stream workers do. An
epoch stays with its publisher until Spark has committed what it made of it, so a batch that is made again reads the same rows.
What is written is one epoch for a `save`, and one for each micro-batch: `sink` tells how it is there once.
"""  # noqa: E501 - a table's rows

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from .. import blocking
from ..config import NATIVE_DIALECT
from ..errors import ConfigError, RecordError
from .consumer import StreamLocation, read_now, read_subpartition
from .driver import driver_of
from .publisher import EpochManifest, done_partition, epoch_partition
from .ship import ship
from .sink import MicroBatchWriter, SinkSettings, TableWriter

FORMAT: Final = "netstack"
_LOOK_S: Final = 1.0
_LOOK_FURTHER_S: Final = 0.1
_SAY_S: Final = 2.0
_OPTIONS: Final = (
    "address",
    "partition",
    "subpartitions",
    "format",
    "dialect",
    "segmentSizeBytes",
    "secretFile",
    "retrySeconds",
    "startingEpoch",
    "maxEpochs",
    "path",
)
_SINK_OPTIONS: Final = (
    "address",
    "partition",
    "secretFile",
    "segmentSizeBytes",
    "retrySeconds",
    "ports",
    "path",
    "checkpointLocation",
)


@final
@dataclass(frozen=True, slots=True)
class Settings:
    """The options, checked.

    Attributes:
        endpoints: one for each producer.
        partition: its name at each.
        subpartitions: of it.
        starting_epoch: of a new query.
        max_epochs: of a micro-batch.
    """

    endpoints: tuple[StreamLocation, ...]
    partition: str
    subpartitions: int
    starting_epoch: int
    max_epochs: int

    @classmethod
    def of(cls, options: MutableMapping[str, str]) -> Settings:
        """Reads options.

        Raises:
            ConfigError: one is missing, unknown, or not what it should be.
        """
        addresses, partition = _places(options, _OPTIONS, "to read")
        return cls(
            endpoints=tuple(
                StreamLocation(
                    address=address,
                    format=options.get("format", "arrow"),
                    dialect=options.get("dialect", NATIVE_DIALECT),
                    segment_size_bytes=_number(options, "segmentSizeBytes", 32 * 1024, 256),
                    secret_file=options.get("secretFile"),
                    retry_s=_number(options, "retrySeconds", 60, 0),
                )
                for address in addresses
            ),
            partition=partition,
            subpartitions=_number(options, "subpartitions", 1, 1),
            starting_epoch=_number(options, "startingEpoch", 0, 0),
            max_epochs=_number(options, "maxEpochs", 16, 1),
        )


@final
class Slice(InputPartition):
    """What one task reads.

    Attributes:
        endpoint: index of the producer.
        subpartition: which.
        start: first epoch; -1 for a partition without epochs.
        end: the epoch behind the last.
    """

    def __init__(self, endpoint: int, subpartition: int, start: int = -1, end: int = 0) -> None:
        super().__init__((endpoint, subpartition, start, end))
        self.endpoint = endpoint
        self.subpartition = subpartition
        self.start = start
        self.end = end


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
        """Reads a published stream."""
        return EpochReader(Settings.of(self.options), schema)

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
        records = read_subpartition(endpoint, self._settings.partition, partition.subpartition, again=False)
        return rows_of(records, self._schema)


@final
class EpochReader(DataSourceStreamReader):
    """A published stream.

    An offset is `{address: epoch}`: everything before that epoch. Spark makes one in the driver, and copies in tasks.
    """

    def __init__(self, settings: Settings, schema: Any) -> None:
        self._settings = settings
        self._schema = schema
        self._network: blocking.NetworkEnvironment | None = None
        self._said: dict[str, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_settings": self._settings, "_schema": self._schema, "_network": None, "_said": {}}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - pyspark's names, here and below
        """Of a new query."""
        return {endpoint.address: self._settings.starting_epoch for endpoint in self._settings.endpoints}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
        """Behind the epochs that can be read now, at most `maxEpochs` of them."""
        # The batch that ended there is committed. Spark says so itself only when there is another, and a query that was
        # restarted may not have been heard.
        if start != self._said:
            self.commit(start)
        return {
            endpoint.address: self._latest(endpoint, start.get(endpoint.address, self._settings.starting_epoch))
            for endpoint in self._settings.endpoints
        }

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One for each subpartition of each producer that has something new."""
        found: list[InputPartition] = []
        for index, endpoint in enumerate(self._settings.endpoints):
            first = start.get(endpoint.address, self._settings.starting_epoch)
            behind = end.get(endpoint.address, first)
            if behind > first:
                found += [Slice(index, each, first, behind) for each in range(self._settings.subpartitions)]
        return found

    def read(self, partition: Any) -> Iterator[Any]:
        """The rows of one, in a task."""
        endpoint = self._settings.endpoints[partition.endpoint]

        def records() -> Iterator[Any]:
            for epoch in range(partition.start, partition.end):
                name = epoch_partition(self._settings.partition, epoch)
                yield from read_subpartition(endpoint, name, partition.subpartition, again=True)

        return rows_of(records(), self._schema)

    def commit(self, end: dict[str, int]) -> None:
        """Says that everything before is processed."""
        for endpoint in self._settings.endpoints:
            epoch = end.get(endpoint.address, 0)
            if epoch > self._said.get(endpoint.address, 0):
                name = done_partition(self._settings.partition, epoch)
                if read_now(self._open(), endpoint, name, 0, timeout_s=_SAY_S) is not None:
                    self._said[endpoint.address] = epoch

    def stop(self) -> None:
        """The query has ended."""
        if self._network is not None:
            self._network.close()
            self._network = None

    def _latest(self, endpoint: StreamLocation, start: int) -> int:
        epoch, wait_s = start, _LOOK_S
        while epoch < start + self._settings.max_epochs:
            name = epoch_partition(self._settings.partition, epoch)
            found = read_now(self._open(), endpoint, name, self._settings.subpartitions, timeout_s=wait_s)
            if not found:
                break
            epoch += 1
            wait_s = _LOOK_FURTHER_S
            if EpochManifest.from_batch(found[0]).is_last:
                break
        return epoch

    def _open(self) -> blocking.NetworkEnvironment:
        if self._network is None:
            self._network = self._settings.endpoints[0].open()
        return self._network


def sink_settings(options: MutableMapping[str, str], *, overwrite: bool) -> SinkSettings:
    """Reads the options of writing.

    Raises:
        ConfigError: one is missing, unknown, or not what it should be; or rows are to replace others.
    """
    addresses, stream = _places(options, _SINK_OPTIONS, "to write")
    if overwrite:
        raise ConfigError(f"what was sent to {stream!r} cannot be overwritten: give mode('append')")
    if len(addresses) > 1:
        raise ConfigError(f"address={options.get('address')!r}: rows go to one Subscriber; give one address")
    first, _, last = options.get("ports", "").partition("-")
    return SinkSettings(
        address=addresses[0],
        stream=stream,
        secret_file=options.get("secretFile"),
        retry_s=_number(options, "retrySeconds", 60, 0),
        ports=(_port(first), _port(last or first)) if first else None,
        segment_size_bytes=_number(options, "segmentSizeBytes", 32 * 1024, 256),
    )


def rows_of(records: Iterator[Any], schema: Any) -> Iterator[Any]:
    """Records as Spark takes them: batches of exactly its Arrow types, or tuples.

    Raises:
        RecordError: a record does not fit the schema.
    """
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    names = schema.fieldNames()
    target = to_arrow_schema(schema, timezone="UTC")
    for record in records:
        if isinstance(record, pa.RecordBatch):
            yield from _fitted(record, names, target)
        elif isinstance(record, dict):
            yield tuple(record.get(name) for name in names)
        else:
            row = tuple(record) if isinstance(record, (list, tuple)) else (record,)
            if len(row) != len(names):
                raise RecordError(f"a record has {len(row)} values and the schema {len(names)} columns")
            yield row


def _fitted(batch: Any, names: list[str], target: Any) -> Iterator[Any]:
    import pyarrow as pa

    missing = [name for name in names if name not in batch.schema.names]
    if missing:
        raise RecordError(f"batches have no column {missing[0]!r}; they have {', '.join(batch.schema.names)}")
    try:
        yield from pa.Table.from_batches([batch]).select(names).cast(target).to_batches()
    except (
        pa.ArrowInvalid,
        pa.ArrowNotImplementedError,
        ValueError,
    ) as error:  # of a cast
        raise RecordError(f"a batch does not fit the schema: {error}") from error


def _places(options: MutableMapping[str, str], known: Sequence[str], what: str) -> tuple[list[str], str]:
    """Addresses and name of a partition; no option is unknown."""
    for name in options:
        if name.lower() not in {each.lower() for each in known}:
            raise ConfigError(f"the data source {FORMAT} has no option {name!r} {what}; it has {', '.join(known)}")
    addresses = [each.strip() for each in options.get("address", "").split(",") if each.strip()]
    partition = options.get("partition", "")
    if not addresses or not partition:
        raise ConfigError(f"the data source {FORMAT} needs the options address and partition")
    return addresses, partition


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1 << 16:
        raise ConfigError(f"option ports: {text!r} is no port; give one, or the first and the last: 7100-7110")
    return int(text)


def _number(options: MutableMapping[str, str], name: str, default: int, least: int) -> int:
    text = options.get(name, str(default))
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise ConfigError(f"option {name}={text!r}: give a whole number of at least {least}")
    return value


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
