"""The user's rows as the workload of a sweep on Spark: serialised once, by the executors, replayed by every source.

Takes: a DataFrame, a table's name, a URL, or a file. Gives: `Workload`: one file that Spark takes to every executor.

Rules: the rows of a DataFrame go to the driver's disk, a part at a time; each node holds them in memory: at most 1 GiB;
take a part of larger ones (`df.sample`, `df.limit`). What was chosen at the start stays for the whole sweep, whatever
becomes of the table meanwhile.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, final

from netstack.errors import ConfigError
from netstack.spark.driver import driver_of
from netstack.spark.failures import explain_storage, plain_errors, spark_errors

from ..inputs import Rows, column_at, is_file_name, read_rows, table_rows
from ..packed import PackedRows, packed_batches, write_batches, write_packed
from ..source import import_arrow
from ..spec import RunSpec
from ..store import Store

_URL: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:/")
_FORMATS: Final = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".orc": "orc"}


@final
@dataclass(frozen=True, slots=True)
class Workload:
    """Rows that every executor can get at.

    Attributes:
        name: of the table or file, for people.
        packed: the file, which Spark ships.
    """

    name: str
    packed: PackedRows

    @property
    def record_bytes(self) -> int:
        """Payload of a row, their mean."""
        return max(1, round(self.packed.payload_bytes / self.packed.rows))

    def as_dict(self) -> dict[str, Any]:
        """For the document of a run."""
        packed = self.packed
        return {"name": self.name, "rows": packed.rows, "bytes": packed.payload_bytes, "sha256": packed.sha256}


def name_of_frame() -> str:
    """What a DataFrame is called that has no name."""
    return "a DataFrame"


def rows_of_file(spec: RunSpec) -> Rows | None:
    """The rows of `--input`, if it names a file of this machine; None for what Spark has to read.

    Raises:
        InputError: see `read_rows`.
    """
    name = spec.input_path or ""
    return read_rows(name, **_reading(spec)) if is_file_name(name) else None


def frame_of(spark: Any, name: str) -> Any:
    """What `--input` names: a URL or folder that Spark reads, or a table of its catalog.

    Raises:
        ConfigError: Spark has none of that name.
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
    """The workload, which every executor finds under its file's name, as long as the session lives."""
    return _ship(spark, name, partial(write_packed, rows))


def ship_frame(spark: Any, df: Any, spec: RunSpec) -> Workload:
    """Likewise, of the rows of a DataFrame.

    Args:
        spark: the session; the package has been shipped to its executors.
        df: it.
        spec: any of the sweep's runs: how rows are emitted, and by which key.

    Raises:
        InputError: it has no rows, no such column, or too many rows.
        SparkFailed: it cannot be computed.
    """
    name, reading = spec.input_path or name_of_frame(), _reading(spec)
    if spec.key_column is not None:
        column_at(name, df.columns, spec.key_column)
    parts = df.mapInArrow(partial(_pack, name, reading), "part binary")
    with plain_errors(), driver_of(spark).archives_first():
        return _ship(spark, name, lambda folder: write_batches(_unpacked(parts), folder, name))


def _pack(name: str, reading: Mapping[str, Any], batches: Iterable[Any]) -> Iterator[Any]:
    """In a task: rows as parts of the file, each an Arrow stream."""
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
    folder = Path(tempfile.mkdtemp(prefix="netstack-rows-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # executors that come later fetch it too
    packed = write(folder)
    context = spark.sparkContext
    if not any(str(known).endswith(f"/{packed.name}") for known in context.listFiles):
        context.addFile(str(folder / packed.name))
    return Workload(name, packed)


def check_same(store: Store, workload: Workload) -> None:
    """Whether what a results folder has was measured with these rows.

    Raises:
        ConfigError: it was not.
    """
    known = {row.get("input_sha256") for row in store.rows()} - {None}
    if known and known != {workload.packed.sha256}:
        raise ConfigError(
            f"{store.folder} was begun with other rows of {workload.name} than there are now: give another --output"
        )


def _reading(spec: RunSpec) -> dict[str, Any]:
    batch = spec.effective_batch_records if spec.emit == "arrow" else None
    return {"key_column": spec.key_column, "arrow_batch_records": batch}
