"""A results folder: one flat row for each finished or failed run, and the command that made them.

    rows.jsonl     one row a line, appended and synced when a run ends: authoritative while a sweep runs
    rows.parquet   the same rows with an explicit schema, written under another name and renamed
    sweep.json     the grid, the seed and the command
    latencies/     RUN-REPEAT.hgrm: the distribution of each run's latencies, for HdrHistogram's plotters

A row is the JSON document of a run, flattened (`latency_us_p50`), plus `run_id repeat order kind started_at error`.
Lists of objects (`hosts`, `pairs`, `timeline`) stay whole: JSON in the journal, lists of structs in Parquet. A line
that a killed process cut short is dropped when the journal is opened; the last row of a run counts.

A column's type is `string int64 float64 bool`, a list of one of them, or `list<X>` of a struct in `STRUCTS`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, Final

from netstack.base.errors import ConfigError, NetstackError
from netstack.base.text.json_text import json_text
from netstack.base.text.safe_text import safe_error

from .document import KEY_COLUMNS, PERCENTILES

if sys.platform != "win32":
    import fcntl

Row = dict[str, Any]

JOURNAL: Final = "rows.jsonl"
PARQUET: Final = "rows.parquet"
SWEEP: Final = "sweep.json"
LATENCIES: Final = "latencies"

_NEED_PYARROW: Final = "results are Parquet, which needs pyarrow, netstack's extra arrow: pip install 'pyarrow>=18'"


class StoreError(NetstackError):
    """A results folder could not be read or written; the message names it."""


def require_pyarrow() -> None:
    """Fails before a sweep whose results could not be stored. Raises ConfigError if pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise ConfigError(_NEED_PYARROW) from error


def flatten(document: Mapping[str, Any], prefix: str = "") -> Row:
    """Flattens nested names: `{"latency_us": {"p50": 1}}` becomes `{"latency_us_p50": 1}`."""
    row: Row = {}
    for name, value in document.items():
        if isinstance(value, Mapping):
            row.update(flatten(value, f"{prefix}{name}_"))
        else:
            row[prefix + name] = value
    return row


class Store:
    """The results folder of one sweep, open for writing; created with its parents if it does not exist.

    Raises:
        ConfigError: the folder cannot be written, or another sweep is writing to it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._journal = (folder / JOURNAL).open("a+b", buffering=0)  # unbuffered: a row is either written or not
        except OSError as error:
            raise ConfigError(
                f"cannot write results to {folder}: {reason(error)}; give --output another folder"
            ) from None
        if sys.platform != "win32":
            try:
                fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._journal.close()
                raise ConfigError(
                    f"another sweep is writing to {folder}; wait for it or give --output another"
                ) from None
        self._drop_cut_line()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._journal.close()

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds one row and waits until it is on the disk.

        Raises:
            StoreError: the row could not be written; the journal is unchanged.
        """
        line = json.dumps(row, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        try:
            append_whole(self._journal, line)
        except OSError as error:
            raise _not_written(self.folder, JOURNAL, error) from error

    def write_histogram(self, name: str, text: str) -> Path:
        """Writes a latency distribution to `latencies/NAME.hgrm`. Raises StoreError if it could not be written."""
        folder = self.folder / LATENCIES
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise _not_written(self.folder, LATENCIES, error) from error
        return write_file(folder, f"{name}.hgrm", lambda aside: aside.write_text(text, encoding="utf-8"))

    def rows(self) -> list[Row]:
        """Every row so far, the last one of each run, in the order of measurement."""
        return _last_of_each(_journal_rows(self.folder / JOURNAL))

    def write_sweep(self, facts: Mapping[str, Any]) -> None:
        """Writes `sweep.json`."""
        text = json_text(facts, indent=2) + "\n"
        write_file(self.folder, SWEEP, lambda path: path.write_text(text, encoding="utf-8"))

    def write_parquet(self) -> Path:
        """Writes all rows to `rows.parquet`, completely or not at all.

        Raises:
            StoreError: no space, or not permitted.
        """
        table = arrow_table(self.rows())

        def write(path: Path) -> None:
            import pyarrow.parquet as parquet

            with path.open("wb") as file:  # pyarrow refuses names that are not UTF-8
                parquet.write_table(table, file)

        return write_file(self.folder, PARQUET, write)

    def _drop_cut_line(self) -> None:
        self._journal.seek(0)
        content = self._journal.read()
        if content and not content.endswith(b"\n"):
            self._journal.truncate(content.rfind(b"\n") + 1)


@contextlib.contextmanager
def only_results(*paths: Path) -> Iterator[None]:
    """Names the results folders if their rows are not those of a sweep, and the block fails for that reason.

    Raises:
        StoreError: the block met a row that it cannot use.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if isinstance(error, NetstackError):
            raise
        raise StoreError(
            f"{', '.join(map(str, paths))} holds rows that no sweep of this release has written ({safe_error(error)})"
        ) from error


def read_rows(path: Path) -> list[Row]:
    """Rows of a results folder, a Parquet file, or a JSON file with the output of one or many `run --json`.

    Raises:
        StoreError: not found, unreadable, or not results.
    """
    try:
        if path.is_dir():
            for name in (JOURNAL, PARQUET):
                if (path / name).exists():
                    return read_rows(path / name)
            if any(path.glob("part-*.parquet")):  # a sweep's partition of a Spark table
                return _last_of_each(_parquet_rows(path))
            raise StoreError(f"{path} has no {JOURNAL} and no {PARQUET}; give the folder that a sweep wrote")
        if path.suffix == ".parquet":
            rows = _parquet_rows(path)
        elif path.suffix == ".jsonl":
            rows = list(_journal_rows(path))
        else:
            rows = _json_rows(path)
    except (OSError, UnicodeDecodeError) as error:
        text = reason(error) if isinstance(error, OSError) else "it is not text"
        raise StoreError(f"cannot read results from {path}: {text}") from None
    if not rows:
        raise StoreError(f"{path} holds no results; the sweep was stopped before its first run ended")
    return _last_of_each(rows)


def read_sweep(folder: Path) -> dict[str, Any]:
    """The content of `sweep.json`; empty if it cannot be read."""
    try:
        facts = json.loads((folder / SWEEP).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def append_whole(journal: FileIO, data: bytes) -> None:
    """Appends to an unbuffered file and waits until it is on the disk.

    Raises:
        OSError: the data could not be written; the file is unchanged.
    """
    end = journal.seek(0, os.SEEK_END)
    try:
        if journal.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(journal.fileno())
    except OSError:
        journal.truncate(end)
        raise


def write_file(folder: Path, name: str, write: Callable[[Path], object]) -> Path:
    """Writes a file of a results folder, completely or not at all; `write` receives the path to write to.

    Raises:
        StoreError: no space, or not permitted.
    """
    try:
        return replace_file(folder / name, write)
    except OSError as error:
        raise _not_written(folder, name, error) from error


def replace_file(path: Path, write: Callable[[Path], object]) -> Path:
    """Writes a file under another name and renames it, so that no reader sees a partial file.

    A device, a pipe or what a link such as /dev/stdout points to is written itself.

    Raises:
        OSError: it could not be written; the old file at `path` is unchanged and no other file remains.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        write(path)
        return path
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    aside = Path(name)
    try:
        aside.chmod(0o644)  # mkstemp creates files that only the owner can read
        write(aside)
        with aside.open("rb") as written:
            os.fsync(written.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    return path


def _not_written(folder: Path, name: str, error: OSError) -> StoreError:
    text = f"cannot write {name} in {folder}: {reason(error)}"
    if (folder / JOURNAL).exists():
        text += f"; stored rows are intact, free some space and start again with --output {folder}"
    return StoreError(text)


def reason(error: OSError) -> str:
    """The system's description of an error, without the path, which our messages already contain."""
    return (error.strerror or str(error)).lower()


def arrow_table(rows: list[Row]) -> Any:
    """The rows as an Arrow table: `COLUMNS` first, then further names with the type of their values."""
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigError(_NEED_PYARROW) from error
    names = [*COLUMNS, *sorted({name for row in rows for name in row} - COLUMNS.keys())]
    columns = {name: [row.get(name) for row in rows] for name in names}
    schema = pyarrow.schema([(name, _arrow_type(values, COLUMNS.get(name))) for name, values in columns.items()])
    arrays = [
        pyarrow.array([_as_type(value, field.type) for value in columns[field.name]], type=field.type)
        for field in schema
    ]
    return pyarrow.Table.from_arrays(arrays, schema=schema)


def _arrow_type(values: Sequence[Any], kind: str | None) -> Any:
    """The type of a column or field: the declared one, else the narrowest that holds all values."""
    import pyarrow

    plain = {
        "string": pyarrow.string(),
        "int64": pyarrow.int64(),
        "float64": pyarrow.float64(),
        "double": pyarrow.float64(),
        "bool": pyarrow.bool_(),
    }
    present = [value for value in values if value is not None]
    kind = kind or _kind(present)
    if kind in plain:
        return plain[kind]
    if kind.startswith("list<"):
        return pyarrow.list_(_arrow_type([each for value in present for each in value], kind[5:-1]))
    declared = STRUCTS.get(kind, {})
    names = [*declared, *sorted({name for value in present for name in value} - declared.keys())]
    return pyarrow.struct(
        [(name, _arrow_type([value.get(name) for value in present], declared.get(name))) for name in names]
    )


def _kind(values: Sequence[Any]) -> str:
    types = {type(value) for value in values}
    for kind, members in (("bool", {bool}), ("int64", {int}), ("float64", {int, float})):
        if types and types <= members:
            return kind
    if types == {dict} and any(values):
        return "struct"
    elements = [each for value in values for each in value] if types == {list} else []
    if elements and all(isinstance(each, str) for each in elements):
        return "list<string>"
    return "list<struct>" if elements and _kind(elements) == "struct" else "string"


def _as_type(value: Any, kind: Any) -> Any:
    import pyarrow.types as types

    if value is None:
        return None
    if types.is_list(kind):
        return [_as_type(each, kind.value_type) for each in value]
    if types.is_struct(kind):
        return {field.name: _as_type(value.get(field.name), field.type) for field in kind}
    if types.is_string(kind):
        return value if isinstance(value, str) else json.dumps(value)
    return float(value) if types.is_floating(kind) else int(value) if types.is_integer(kind) else value


def _journal_rows(path: Path) -> Iterator[Row]:
    with path.open("rb") as journal:
        for number, line in enumerate(journal, 1):
            if not line.endswith(b"\n"):
                return  # cut short by a killed process: that run did not finish
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise StoreError(f"{path} line {number} is not a row; remove that line, or the file, and try again")
            try:
                yield flatten(row)
            except (TypeError, ValueError, LookupError, AttributeError) as error:
                raise StoreError(
                    f"{path} line {number} is not a row ({safe_error(error)}); remove that line, or the file, and try"
                    " again"
                ) from error


def _json_rows(path: Path) -> list[Row]:
    text = path.read_text(encoding="utf-8")
    try:
        parsed = json.loads(text)
    except RecursionError as error:
        raise StoreError(f"{path} is nested too deeply; give a results folder, a Parquet or a JSON file") from error
    except ValueError:
        try:
            parsed = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError) as error:
            raise StoreError(
                f"{path} is not JSON ({safe_error(error)}); give a results folder, a Parquet or a JSON file"
            ) from None
    documents = parsed if isinstance(parsed, list) else [parsed]
    if not all(isinstance(document, dict) and "settings" in document for document in documents):
        raise StoreError(f"{path} has no settings in it; give what netstack-bench run --json printed")
    try:
        return [
            flatten({**{name: value for name, value in each.items() if name not in ("peer", "runs", "spread")}, **run})
            for each in documents
            for run in each.get("runs") or [{}]
        ]
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise StoreError(
            f"{path} is no result ({safe_error(error)}); give what netstack-bench run --json printed"
        ) from error


def _parquet_rows(path: Path) -> list[Row]:
    require_pyarrow()
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        rows: list[Row] = parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise StoreError(f"{path} is not a Parquet file that can be read: {safe_error(error)}") from None
    return rows


def _last_of_each(rows: Iterable[Row]) -> list[Row]:
    last: dict[object, Row] = {}
    for number, row in enumerate(rows):
        run_id = row.get("run_id")
        key = (run_id, row.get("repeat")) if run_id is not None else number
        last.pop(key, None)
        last[key] = row
    return list(last.values())


COLUMNS: Final[dict[str, str]] = {
    "run_id": "string",
    "repeat": "int64",
    "order": "int64",
    "kind": "string",
    "started_at": "string",
    "error": "string",
    **KEY_COLUMNS,
    "settings_records": "int64",
    "settings_seconds": "float64",
    "settings_record_bytes": "int64",
    "settings_emit": "string",
    "settings_batch_records": "int64",
    "settings_read": "string",
    "settings_write": "string",
    "settings_channels": "int64",
    "settings_connections": "int64",
    "settings_gates": "string",
    "settings_buffer_timeout_s": "float64",
    "settings_rate_per_s": "float64",
    "settings_segment_size_bytes": "int64",
    "settings_exclusive_buffers": "int64",
    "settings_floating_buffers": "int64",
    "settings_spare_buffers": "int64",
    "settings_credit": "bool",
    "settings_debloat_s": "float64",
    "settings_consume_rate_per_s": "float64",
    "settings_transport": "string",
    "settings_round_trip_s": "float64",
    "settings_link_bytes_per_s": "int64",
    "settings_queue_bytes": "int64",
    "settings_loss": "float64",
    "settings_jitter_s": "float64",
    "settings_input_path": "string",
    "settings_key_column": "string",
    "settings_warmup_s": "float64",
    "settings_spin_s": "float64",
    "settings_verify": "string",
    "settings_profile": "bool",
    "settings_checksum": "bool",
    "settings_acts_as": "string",
    "settings_overdraft_buffers": "int64",
    "settings_memory_bytes": "int64",
    "settings_checkpoints": "string",
    "settings_checkpoint_interval_s": "float64",
    "version": "string",
    "host_name": "string",
    "host_cpu": "string",
    "host_cores": "int64",
    "host_cores_usable": "int64",
    "host_memory_bytes": "int64",
    "host_system": "string",
    "host_kernel": "string",
    "host_architecture": "string",
    "host_python": "string",
    "host_implementation": "string",
    "host_load_average": "list<double>",
    "host_congestion_control": "string",
    "host_netstack_build": "string",
}
"""The columns of every Parquet file; further columns follow in alphabetical order."""

STRUCTS: Final[dict[str, dict[str, str]]] = {
    "host": {
        "host": "string",
        "address": "string",
        "sources": "int64",
        "sinks": "int64",
        "records": "int64",
        "bytes": "int64",
        "records_per_s": "float64",
        "payload_mb_per_s": "float64",
        "local_records_per_s": "float64",
        "connections": "int64",
        "cpu_s": "float64",
        "clock_offset_us": "float64",
        "clock_uncertainty_us": "float64",
        "backpressured_ms_per_s": "float64",
        "idle_ms_per_s": "float64",
        "netstack_build": "string",
        "python": "string",
        "kernel": "string",
        "cpus": "int64",
        "congestion_control": "string",
    },
    "pair": {
        "source_host": "string",
        "sink_host": "string",
        "is_local": "bool",
        "records": "int64",
        "payload_bytes": "int64",
        "records_per_s": "float64",
        "payload_mb_per_s": "float64",
        "latency_us": "percentiles",
        "latency_uncertainty_us": "float64",
        "round_trip_latency_us": "percentiles",
    },
    "percentiles": dict.fromkeys(PERCENTILES, "float64"),
    "cost": {
        "side": "string",
        "what": "string",
        "seconds": "float64",
        "share": "float64",
        "us_per_buffer": "float64",
        "ns_per_record": "float64",
        "calls": "int64",
        "calls_per_gb": "float64",
    },
    "sample": {
        "t_s": "float64",
        "host": "string",
        "task": "string",
        "records": "int64",
        "backpressured_ms_per_s": "float64",
        "busy_ms_per_s": "float64",
        "idle_ms_per_s": "float64",
        "pool_usage": "float64",
        "queued_ms_per_s": "float64",
        "stolen_ms_per_s": "float64",
    },
}
"""Fields of the elements of nested columns; further fields follow."""
