"""`Workload`: the user's rows as records of a sweep on Spark, from a DataFrame, a table, a URL or a file.

The executors serialise the rows once; Spark distributes them as one file, and every source replays them. The rows of a
DataFrame go to the driver's disk, one part at a time; each node has them in memory, 1 GiB at most: use a part of larger
ones (`df.sample`, `df.limit`). The rows are fixed for the whole sweep, even if the table changes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, final

from netstack.base.errors import ConfigError
from netstack.base.scratch import folder_until_exit
from netstack.spark.drivers import driver_of
from netstack.spark.failures import explain_storage, plain_errors, spark_errors

from ...arrow_input import PackedRows, packed_batches, write_batches, write_packed
from ...generator import import_arrow
from ...rows import Rows, column_at, is_file_name, read_rows, table_rows
from ...spec import RunSpec
from ...store import Store

FRAME_NAME: Final = "a DataFrame"
"""The name of a DataFrame, which has none."""

_URL: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:/")
_FORMATS: Final = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".orc": "orc"}


@final
@dataclass(frozen=True, slots=True)
class Workload:
    """Rows of a table or file that every executor can read: Spark distributes the packed file."""

    name: str
    packed: PackedRows

    @property
    def record_bytes(self) -> int:
        """The mean payload of a row."""
        return max(1, round(self.packed.payload_bytes / self.packed.rows))

    def as_dict(self) -> dict[str, Any]:
        """Returns the facts for the document of a run."""
        packed = self.packed
        return {"name": self.name, "rows": packed.rows, "bytes": packed.payload_bytes, "sha256": packed.sha256}


def rows_of_file(spec: RunSpec) -> Rows | None:
    """Reads the rows of `--input` if it is a local file; returns None for what Spark must read.

    Raises:
        InputError: as for `read_rows`.
    """
    name = spec.input_path or ""
    return read_rows(name, **_reading(spec)) if is_file_name(name) else None


def frame_of(spark: Any, name: str) -> Any:
    """Returns the DataFrame of `--input`: a URL or folder that Spark reads, or a table of its catalog.

    Raises:
        ConfigError: Spark cannot read it.
    """
    try:
        if _URL.match(name) or os.path.exists(name):
            suffix = Path(name.rstrip("/")).suffix.lower()
            reader = spark.read.format(_FORMATS.get(suffix, "parquet"))
            if _FORMATS.get(suffix) == "csv":
                reader = reader.options(header=True, inferSchema=True, sep="\t" if suffix == ".tsv" else ",")
            return reader.load(name)
        return spark.read.table(name)
    except spark_errors() as error:
        raise ConfigError(f"--input {name}: Spark cannot read it: {explain_storage(error)}") from error


def ship_rows(spark: Any, rows: Rows, name: str) -> Workload:
    """Distributes rows as a workload, until the session ends."""
    return _ship(spark, name, partial(write_packed, rows))


def ship_frame(spark: Any, df: Any, spec: RunSpec) -> Workload:
    """Distributes the rows of a DataFrame as a workload, until the session ends.

    `spec` is any of the sweep's runs: it has the format and the key of the records.

    Raises:
        InputError: the DataFrame has no rows, no such key column, or too many rows.
        SparkFailed: the DataFrame cannot be computed.
    """
    name, reading = spec.input_path or FRAME_NAME, _reading(spec)
    if spec.key_column is not None:
        column_at(name, df.columns, spec.key_column)
    parts = df.mapInArrow(partial(_pack, name, reading), "part binary")
    with plain_errors(), driver_of(spark).archives_first():
        return _ship(spark, name, lambda folder: write_batches(_unpacked(parts), folder, name))


def _pack(name: str, reading: Mapping[str, Any], batches: Iterable[Any]) -> Iterator[Any]:
    """Serialises rows as parts of the file, each an Arrow stream, in a task."""
    arrow = import_arrow()
    for batch in batches:
        if batch.num_rows:
            rows = table_rows(arrow.Table.from_batches([batch]), name, **reading)
            for packed in packed_batches(rows):
                part = arrow.BufferOutputStream()
                with arrow.ipc.new_stream(part, packed.schema) as writer:
                    writer.write_batch(packed)
                yield arrow.record_batch({"part": arrow.array([part.getvalue().to_pybytes()], arrow.binary())})


def _unpacked(parts: Any) -> Iterator[Any]:
    arrow = import_arrow()
    for row in parts.toLocalIterator(prefetchPartitions=True):
        with arrow.ipc.open_stream(bytes(row.part)) as reader:
            yield from reader


def _ship(spark: Any, name: str, write: Callable[[Path], PackedRows]) -> Workload:
    folder = Path(folder_until_exit("netstack-rows-"))  # executors that start later fetch it too
    packed = write(folder)
    context = spark.sparkContext
    if not any(str(known).endswith(f"/{packed.name}") for known in context.listFiles):
        context.addFile(str(folder / packed.name))
    return Workload(name, packed)


def check_same(store: Store, workload: Workload) -> None:
    """Checks that the runs in a results folder used the same rows. Raises ConfigError if they used others."""
    known = {row.get("input_sha256") for row in store.rows()} - {None}
    if known and known != {workload.packed.sha256}:
        raise ConfigError(
            f"the runs in {store.folder} used other rows of {workload.name}, which has changed: give another --output"
        )


def _reading(spec: RunSpec) -> dict[str, Any]:
    batch = spec.effective_batch_records if spec.emit == "arrow" else None
    return {"key_column": spec.key_column, "arrow_batch_records": batch}
