"""Reads the user's rows from a CSV, JSON lines or Parquet file into memory.

- A row of a text file is its bytes without the line end; a row of a Parquet file is a msgpack map. With `--emit arrow`
  pyarrow reads any of the formats, and a row is part of a columnar batch.
- Every row is checked before the measurement: a malformed line is an error with its line number.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np
import numpy.typing as npt

from netstack.base.errors import NetstackError
from netstack.base.text.safe_text import safe_error, type_text

from .generator import import_arrow

if TYPE_CHECKING:
    import pyarrow as pa

MOST_BYTES = 1 << 30
"""Limit of the rows, which are held in memory so that reading and parsing are not measured."""
_KINDS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_FORMATS = "CSV (.csv, .tsv), JSON lines (.jsonl, .ndjson, .json) or Parquet (.parquet, .pq)"


class InputError(NetstackError):
    """An input file that cannot be used; the message names the file, the problem and the next step."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one file."""

    records: list[bytes]  # empty when there are batches
    keys: list[Any] | None  # of each row, with a key column
    batches: list[pa.RecordBatch] | None  # for `--emit arrow`
    hashes: npt.NDArray[np.int32] | None = (
        None  # of the keys (`keygroups.stable_hash`), in packed files (`arrow_input`)
    )

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.records) if self.batches is None else sum(batch.num_rows for batch in self.batches)

    @property
    def payload_bytes(self) -> int:
        """Payload of all rows."""
        if self.batches is None:
            return sum(map(len, self.records))
        return sum(batch.serialize().size for batch in self.batches)

    @property
    def record_bytes(self) -> int:
        """Mean payload of a row."""
        return max(1, round(self.payload_bytes / self.count))


def read_rows(path: str, *, key_column: str | None = None, arrow_batch_records: int | None = None) -> Rows:
    """All rows of a file, whose format is that of its suffix, else of its first bytes.

    Each row has the value of `key_column`. With `arrow_batch_records` the result is columnar batches of at most this
    many rows instead of single records.

    Raises:
        InputError: missing, unreadable, empty or too large; no such column; a malformed line; a combination that the
            format does not support.
        MissingExtra: Parquet, or columnar batches, without pyarrow.
    """
    file = Path(path)
    try:
        size = file.stat().st_size
        if not file.is_file():
            raise InputError(f"{path} is not a file; give one with rows: {_FORMATS}")
        kind = _KINDS.get(file.suffix.lower()) or _sniff(file)
        data = b"" if kind == "parquet" or size > MOST_BYTES else file.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}; check the path and its permissions"
        ) from error
    if size > MOST_BYTES:
        raise InputError(f"{path} has {size} bytes; the limit in memory is {MOST_BYTES}: give a part of it")
    if not size:
        raise InputError(f"{path} is empty; give a file with at least one row")
    if kind == "parquet":
        return table_rows(_parquet_table(path), path, key_column=key_column, arrow_batch_records=arrow_batch_records)
    if arrow_batch_records is not None:
        return table_rows(_text_table(path, kind), path, key_column=key_column, arrow_batch_records=arrow_batch_records)
    if kind == "jsonl":
        rows = _json_rows(path, data, key_column)
    else:
        rows = _csv_rows(path, data, "," if kind == "csv" else "\t", key_column)
    if not rows.records:
        raise InputError(f"{path} has no rows; give a file with at least one")
    return rows


def table_rows(
    table: pa.Table, name: str, *, key_column: str | None = None, arrow_batch_records: int | None = None
) -> Rows:
    """The rows of an Arrow table with this name, in the form of a Parquet file's rows; arguments as in `read_rows`.

    Raises:
        InputError: it has no rows, no such column, or is too large.
    """
    if table.nbytes > MOST_BYTES:
        raise InputError(f"{name} has {table.nbytes} bytes; the limit in memory is {MOST_BYTES}: give a part")
    if not table.num_rows:
        raise InputError(f"{name} has no rows; give one with at least one")
    if arrow_batch_records is None:
        return _rows_of(table, name, key_column)
    if key_column is not None:
        raise InputError(f"--key {key_column} selects a channel for each row, but a batch has one; use --emit record")
    return Rows([], None, _batches_of(table, arrow_batch_records))


def is_file_name(text: str) -> bool:
    """Whether `--input` names a file, not a Spark table."""
    path = Path(text)
    return path.is_file() or ("://" not in text and path.suffix.lower() in _KINDS and not path.is_dir())


def _sniff(file: Path) -> str:
    with file.open("rb") as opened:
        start = opened.read(4096)
    if start[:4] == b"PAR1":
        return "parquet"
    if start.lstrip()[:1] in (b"{", b"["):
        return "jsonl"
    if not start:
        return "csv"  # the caller reports that it is empty
    raise InputError(f"{file} has an unknown suffix {file.suffix!r}; rename it by its format: {_FORMATS}")


def _csv_rows(path: str, data: bytes, delimiter: str, key_column: str | None) -> Rows:
    # latin-1 maps every byte to a character and back, so a row's bytes are unchanged in any encoding.
    text = data.removeprefix(b"\xef\xbb\xbf").decode("latin-1")
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    parsed = _fast_csv(lines, delimiter) if '"' not in text else _quoted_csv(path, lines, delimiter)
    names: list[str] = []
    key_at: int | None = None
    records: list[bytes] = []
    keys: list[Any] = []
    for number, raw, fields in parsed:
        if not names:
            names = [_utf8(name) for name in fields]
            key_at = None if key_column is None else column_at(path, names, key_column)
            continue
        if len(fields) != len(names):
            raise InputError(
                f"{path}, line {number}: {len(fields)} fields where the first line names {len(names)} columns;"
                " correct the line"
            )
        records.append(raw.encode("latin-1"))
        if key_at is not None:
            keys.append(_utf8(fields[key_at]))
    return Rows(records, None if key_at is None else keys, None)


def _fast_csv(lines: list[str], delimiter: str) -> Iterator[tuple[int, str, list[str]]]:
    """(line number, raw row, fields) of a file without quotes, where a line is a row."""
    for number, line in enumerate(lines, 1):
        raw = line.removesuffix("\r")
        if raw:
            yield number, raw, raw.split(delimiter)


def _quoted_csv(path: str, lines: list[str], delimiter: str) -> Iterator[tuple[int, str, list[str]]]:
    """Like `_fast_csv` for a file with quotes: a quoted field may contain delimiters and line ends."""
    reader = csv.reader((line + "\n" for line in lines), delimiter=delimiter, strict=True)
    done = 0
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise InputError(f"{path}, line {done + 1}: {error}; correct the line") from error
        if fields is None:
            return
        raw = "\n".join(lines[done : reader.line_num]).removesuffix("\r")
        if raw:
            yield done + 1, raw, fields
        done = reader.line_num


def _json_rows(path: str, data: bytes, key_column: str | None) -> Rows:
    records: list[bytes] = []
    keys: list[Any] = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        raw = line.strip()
        if not raw:
            continue
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: not a JSON document ({error}); correct the line") from error
        records.append(raw)
        if key_column is not None:
            if not isinstance(value, dict):
                raise InputError(f"{path}, line {number}: not an object, so it has no column {key_column!r}")
            column_at(f"{path}, line {number}", list(value), key_column)
            key = value[key_column]
            if isinstance(key, dict | list):
                raise InputError(f"{path}, line {number}: {key_column!r} is {type_text(key)}, which cannot be a key")
            keys.append(key)
    return Rows(records, None if key_column is None else keys, None)


def _rows_of(table: pa.Table, path: str, key_column: str | None) -> Rows:
    at = None if key_column is None else column_at(path, table.column_names, key_column)
    pack: Callable[[Any], bytes] = msgpack.Packer(default=str, datetime=False).pack
    records: list[bytes] = []
    keys: list[Any] = []
    try:
        for batch in table.to_batches(max_chunksize=16_384):
            records.extend(map(pack, batch.to_pylist()))
            if at is not None:
                column = batch.column(at).to_pylist()
                keys.extend(key if isinstance(key, int | float | str | bytes | None) else str(key) for key in column)
    except (ValueError, OverflowError, OSError) as error:  # values that the file's types do not allow
        raise InputError(f"{path} holds rows that cannot be read: {safe_error(error)}") from error
    return Rows(records, None if at is None else keys, None)


def _batches_of(table: pa.Table, batch_records: int) -> list[pa.RecordBatch]:
    arrow = import_arrow()
    for at, field in enumerate(table.schema):
        if arrow.types.is_dictionary(field.type):
            # A dictionary may differ from batch to batch; plain values make every batch independent.
            table = table.set_column(at, field.name, table.column(at).cast(field.type.value_type))
    return [batch for batch in table.to_batches(max_chunksize=batch_records) if batch.num_rows]


def _text_table(path: str, kind: str) -> Any:
    arrow = import_arrow()
    from pyarrow import csv as arrow_csv, json as arrow_json

    try:
        if kind == "jsonl":
            return arrow_json.read_json(path)
        delimiter = "," if kind == "csv" else "\t"
        return arrow_csv.read_csv(
            path, parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        )
    except (OSError, arrow.ArrowException) as error:
        raise InputError(f"{path} cannot be read as {kind}: {error}; correct it, or give --emit record") from error


def _parquet_table(path: str) -> Any:
    arrow = import_arrow()
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
        groups = (file.metadata.row_group(at) for at in range(file.metadata.num_row_groups))
        size = sum(group.total_byte_size for group in groups)
        if size > MOST_BYTES:
            raise InputError(f"{path} holds {size} bytes; the limit in memory is {MOST_BYTES}: give a part")
        return file.read()
    except (OSError, ValueError, OverflowError, MemoryError, arrow.ArrowException) as error:
        raise InputError(f"{path} is not a readable Parquet file: {safe_error(error)}") from error


def column_at(where: str, names: list[str], name: str) -> int:
    """The position of a column. Raises InputError if there is no such column, or more than one."""
    if name not in names:
        raise InputError(f"{where} has no column {name!r}; it has {', '.join(map(repr, names))}: name one of these")
    if names.count(name) > 1:
        raise InputError(f"{where} has {names.count(name)} columns {name!r}: rename them, or name another one")
    return names.index(name)


def _utf8(latin: str) -> str:
    """Text of a field; invalid UTF-8 bytes become one character each, so that different keys stay different."""
    return latin.encode("latin-1").decode("utf-8", "surrogateescape")
