"""The user's rows as records of a run, and the proof that all arrived in order.

- A row of a text file is its bytes without the line end; a row of a Parquet file is a msgpack map. With `--emit arrow`
  pyarrow reads any of the formats, and a row is part of a columnar batch. Every row is checked before the measurement:
  a malformed line is an error with its line number.
- Nothing is added to a row. A channel is proven by its count and a rolling hash, on both sides: `h = h * P + crc32(row)
  + 1 (mod 2**64)`, which depends on every byte and on the order.
- Rows repeat from the start of the file if the run needs more. The producer's hashes are computed after the run, from
  one pass over the file: `m` rows with hash `a`, followed by `n` rows with hash `b`, have `a * P**n + b`.
- Without a key, record i goes to channel i mod C; with one, to the owner of its key group.
- A columnar batch is one element of a channel, with as many records as it has rows.
"""

from __future__ import annotations

import bisect
import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, final
from zlib import crc32

import msgpack
import numpy as np
import numpy.typing as npt

from netstack.base.errors import NetstackError
from netstack.base.text.safe_text import safe_error, type_text
from netstack.exchange.keygroups import default_max_parallelism, group_owners, owner_array, stable_hash

from .arrivals import Arrivals, Int64s, column, lane_keys
from .generator import MASK, import_arrow
from .histogram import Histogram
from .pacing import clock_ns
from .spec import RunSpec
from .verifier import Delivery, Order, Verifier

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


_P = 0x9E3779B97F4A7C15  # odd, so that multiplication is invertible; bits of the golden ratio
_STAGE = 4096
_FEW = 16  # elements that plain integers hash faster than numpy
_CUTS_AT_MOST = 1 << 16  # batches whose hash is cached

Hashed = tuple[int, int]  # how many elements, their rolling hash


def rolling(before: Hashed, elements: Sequence[int] | npt.NDArray[np.uint64]) -> Hashed:
    """The count and hash after further elements, given the CRC-32 of each."""
    count, value = before
    if len(elements) < _FEW:
        for crc in elements:
            value = (value * _P + int(crc) + 1) & MASK
        return count + len(elements), value
    for at in range(0, len(elements), _STAGE):
        part = np.asarray(elements[at : at + _STAGE], dtype=np.uint64) + np.uint64(1)
        value = (value * pow(_P, len(part), 1 << 64) + int(np.add.reduce(part * _POWERS[-len(part) :]))) & MASK
        count += len(part)
    return count, value


def joined(first: Hashed, second: Hashed) -> Hashed:
    """The count and hash of one sequence followed by another."""
    return first[0] + second[0], (first[1] * pow(_P, second[0], 1 << 64) + second[1]) & MASK


def repeated(once: Hashed, times: int) -> Hashed:
    """The count and hash of a sequence repeated `times` times."""
    total: Hashed = (0, 0)
    while times:
        if times & 1:
            total = joined(total, once)
        once, times = joined(once, once), times >> 1
    return total


def hashes_of(rows: Rows) -> npt.NDArray[np.int32] | None:
    """Hash of the key of each row; None without keys."""
    if rows.hashes is None and rows.keys is not None:
        return np.array([stable_hash(key) for key in rows.keys], dtype=np.int32)
    return rows.hashes


class RowSource:
    """Rows of a file, repeated endlessly; `lanes` has the channel of each row with a key (None: round robin)."""

    def __init__(self, rows: Rows, channels: int) -> None:
        self.rows = rows.count
        self._records = rows.records
        self._batches = rows.batches
        self._channels = channels
        self._batch_starts = [0, *accumulate(batch.num_rows for batch in rows.batches or ())]
        self._emitted: list[tuple[int, int]] = []  # (crc, bytes) of batches, whose sizes depend on pacing
        self._emitted_rows: list[int] = []
        self._hashed: dict[tuple[int, int], tuple[int, int]] = {}  # by (first row, rows)
        self.lanes: Int64s | None = None
        hashes = hashes_of(rows)
        if hashes is not None:
            owners = group_owners(channels, default_max_parallelism(channels))
            self.lanes = owner_array(hashes, owners).astype(np.int64)

    @classmethod
    def of(cls, spec: RunSpec) -> RowSource:
        """The source for `--input`; errors are those of `read_rows`."""
        arrow = spec.effective_batch_records if spec.emit == "arrow" else None
        rows = read_rows(spec.input_path or "", key_column=spec.key_column, arrow_batch_records=arrow)
        return cls(rows, spec.channels)

    @property
    def arrow_schema(self) -> Any:
        """The schema of every batch."""
        return self._batches[0].schema if self._batches else None

    def records(self, first: int, count: int) -> list[bytes]:
        """Records `first` to `first + count - 1` of the endless repetition."""
        at = first % self.rows
        result = self._records[at : at + count]
        while len(result) < count:
            result += self._records[: count - len(result)]
        return result

    def arrow(self, first: int, count: int) -> list[pa.RecordBatch]:
        """The same rows as batches, split where the file's batches end; each call is part of the proof."""
        batches = []
        while count:
            at = first % self.rows
            place = bisect.bisect_right(self._batch_starts, at) - 1
            batch = (self._batches or [])[place].slice(at - self._batch_starts[place], count)
            cut = (first % self.rows, batch.num_rows)
            hashed = self._hashed.get(cut)
            if hashed is None:
                body = batch.serialize()
                hashed = crc32(body), body.size
                if len(self._hashed) < _CUTS_AT_MOST:
                    self._hashed[cut] = hashed
            self._emitted.append(hashed)
            self._emitted_rows.append(batch.num_rows)
            batches.append(batch)
            first, count = first + batch.num_rows, count - batch.num_rows
        return batches

    def expected(self, records: int) -> dict[str, Any]:
        """The counts and hashes that a consumer must have after `records` records."""
        if self._batches is not None:
            crcs = np.array([crc for crc, _ in self._emitted], dtype=np.uint64)
            lanes = [rolling((0, 0), crcs[lane :: self._channels]) for lane in range(self._channels)]
            return {"records": records, "payload_bytes": sum(size for _, size in self._emitted), "lanes": lanes}
        crcs = np.array([crc32(record) for record in self._records], dtype=np.uint64)
        rounds, rest = divmod(records, self.rows)
        payload_bytes = self.payload_bytes(records)
        if self.lanes is None:
            lanes = [self._round_robin(crcs, lane, records) for lane in range(self._channels)]
        else:
            lanes = []
            for lane in range(self._channels):
                whole, part = crcs[self.lanes == lane], crcs[:rest][self.lanes[:rest] == lane]
                lanes.append(rolling(repeated(rolling((0, 0), whole), rounds), part))
        return {"records": records, "payload_bytes": payload_bytes, "lanes": lanes}

    @property
    def sizes(self) -> list[int]:
        """The bytes of each row."""
        return [len(record) for record in self._records]

    def payload_bytes(self, records: int) -> int:
        """The bytes of the first records; not for batches."""
        rounds, rest = divmod(records, self.rows)
        sizes = self.sizes
        return rounds * sum(sizes) + sum(sizes[:rest])

    def sample_keys(self, indexes: Int64s) -> Int64s:
        """`lane_keys` of records, for the latency of samples."""
        if self._batches is not None:
            starts = np.concatenate(([0], np.cumsum(column(self._emitted_rows))))
            batch: Int64s = np.searchsorted(starts, indexes, side="right") - 1
            lanes: Int64s = batch % self._channels
            before: Int64s = np.zeros(len(starts), dtype=np.int64)  # rows of earlier batches in the same lane
            for place in range(self._channels, len(starts)):
                before[place] = before[place - self._channels] + self._emitted_rows[place - self._channels]
            positions: Int64s = before[batch] + indexes - starts[batch]
            return lane_keys(lanes, positions)
        if self.lanes is None:
            return lane_keys(indexes % self._channels, indexes // self._channels)
        rounds, at = indexes // self.rows, indexes % self.rows
        by_lane = np.argsort(self.lanes, kind="stable")
        per_lane = np.bincount(self.lanes, minlength=self._channels)
        rank = np.empty(self.rows, dtype=np.int64)
        rank[by_lane] = np.arange(self.rows) - (np.cumsum(per_lane) - per_lane)[self.lanes[by_lane]]
        return lane_keys(self.lanes[at], rounds * per_lane[self.lanes[at]] + rank[at])

    def _round_robin(self, crcs: npt.NDArray[np.uint64], lane: int, records: int) -> Hashed:
        total = len(range(lane, records, self._channels))
        period = self.rows // int(np.gcd(self.rows, self._channels))
        at = (lane + self._channels * np.arange(min(period, total))) % self.rows
        rounds, rest = divmod(total, period)
        once = rolling((0, 0), crcs[at]) if rounds else (0, 0)
        return rolling(repeated(once, rounds), crcs[at[:rest]])


@final
class RowVerifier(Verifier):
    """Checks rows of a file: bytes, and count and rolling hash of every channel; `latency` is always empty."""

    def __init__(self, channels: int) -> None:
        self.order, self.lanes, self.verified = Order.ROUND_ROBIN, channels, "all"
        self._hashed: list[Hashed] = [(0, 0)] * channels
        self._position = [0] * channels  # in records; a batch is one element of several records
        self._staged: list[bytes | memoryview] = []
        self._segments: list[tuple[int, int]] = []
        self._payload_bytes = 0
        self.arrivals = Arrivals()
        self.latency = Histogram()

    def begin(self, start_ns: int, latency_from_ns: int = 0) -> None:
        """Implements `Verifier.begin`: no latencies are computed from due times."""

    @property
    def payload_bytes(self) -> int:
        """Implements `Verifier.payload_bytes`."""
        return self._payload_bytes

    def feed(self, channel: int, records: Sequence[bytes | memoryview], now_ns: int | None = None) -> None:
        """Implements `Verifier.feed`."""
        self._arrived(channel, len(records), clock_ns() if now_ns is None else now_ns)
        self._staged.extend(records)
        self._segments.append((channel, len(records)))
        if len(self._staged) >= _STAGE:
            self._flush()

    def feed_array(self, channel: int, array: npt.NDArray[Any], now_ns: int | None = None) -> None:
        """Implements `Verifier.feed_array` for rows of equal width."""
        self.feed(channel, [row.tobytes() for row in array], now_ns)

    def feed_arrow(self, channel: int, batch: pa.RecordBatch, now_ns: int | None = None) -> None:
        """Implements `Verifier.feed_arrow`."""
        self._arrived(channel, batch.num_rows, clock_ns() if now_ns is None else now_ns)
        body = batch.serialize()
        self._payload_bytes += body.size
        self._hashed[channel] = rolling(self._hashed[channel], [crc32(body)])

    def finish(self) -> None:
        """Implements `Verifier.finish`."""
        self._flush()

    def sample_keys(self, indexes: Int64s) -> Int64s:
        """Implements `Verifier.sample_keys` for what `RowSource.sample_keys` returned: these are the keys."""
        return indexes

    def delivery(self) -> Delivery:
        """Implements `Verifier.delivery`."""
        return Delivery(
            records=self.received_records,
            checksum=None,
            hashes=tuple((lane, count, value) for lane, (count, value) in enumerate(self._hashed) if count),
            payload_bytes=self.payload_bytes,
        )

    def _flush(self) -> None:
        crcs = list(map(crc32, self._staged))
        self._payload_bytes += sum(map(len, self._staged))
        self._staged.clear()
        at = 0
        for channel, count in self._segments:
            self._hashed[channel] = rolling(self._hashed[channel], crcs[at : at + count])
            at += count
        self._segments.clear()

    def _arrived(self, channel: int, count: int, now: int) -> None:
        self.arrivals.add(count, now)
        position = self._position[channel]
        self._position[channel] = position + count
        self.arrivals.log(lane_keys(channel, column([position])), column([count]), column([now]))


def _powers() -> npt.NDArray[np.uint64]:
    powers = list(accumulate(range(_STAGE - 1), lambda power, _: power * _P & MASK, initial=1))
    return np.array(powers[::-1], dtype=np.uint64)


_POWERS = _powers()
