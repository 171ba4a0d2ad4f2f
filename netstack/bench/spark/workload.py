"""The user's rows as the workload of a sweep on Spark: serialised once in the driver, replayed by every source.

Takes: a DataFrame, a table's name, a URL, or a file. Gives: `Workload`: one file that Spark takes to every executor.

Rules: rows are held in memory, here and by each node: at most 1 GiB, and on a cluster what the driver's memory and
`spark.driver.maxResultSize` allow; take a part of larger ones (`df.sample`, `df.limit`). What was chosen at the start
stays for the whole sweep, whatever becomes of the table meanwhile.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from netstack.errors import ConfigError
from netstack.spark.failures import explain_storage, plain_errors, spark_errors

from ..inputs import Rows, is_file_name, read_rows, table_rows
from ..packed import PackedRows, write_packed
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


def rows_of_frame(df: Any, spec: RunSpec) -> Rows:
    """The rows of a DataFrame.

    Args:
        df: it.
        spec: any of the sweep's runs: how rows are emitted, and by which key.

    Raises:
        InputError: it has no rows, no such column, or too many rows.
        SparkFailed: it cannot be computed.
    """
    with plain_errors():
        table = df.toArrow()
    return table_rows(table, spec.input_path or name_of_frame(), **_reading(spec))


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
    folder = Path(tempfile.mkdtemp(prefix="netstack-rows-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # executors that come later fetch it too
    packed = write_packed(rows, folder)
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
