"""FlinkRows: reads rows of Flink's SQL (written by `RowDataSerializer`) into Arrow columns.

Takes: the records of a Flink edge, the Arrow schema of their columns (`flink_types.schema_of` reads Flink's own names).
Gives: RecordBatches.

A row is its length (4 bytes, big-endian), then, little-endian, a fixed and a variable part:

| bytes | content |
|---|---|
| 1 | kind: 0 insert, 1 update before, 2 update after, 3 delete |
| (8 + columns + 63) / 64 * 8, with the kind | a bit for each column, from the ninth on: null |
| 8 each | columns: the value, or its position |
| the rest | values longer than 8 bytes, in whole words |

An array is the number of its elements (4 bytes), null bits in groups of 4 bytes, its elements (1, 2, 4 or 8 bytes
each), and a variable part. A map is the length of its keys (4), the array of keys, and the array of values. A nested
row has no length in front. Text and bytes of up to 7 bytes are in the column itself, with 0x80 + length in its last
byte. For any other variable value the column has offset << 32 | length, counted from the start of the row, array or
map. Decimals of more than 18 digits are big-endian in the variable part. Timestamps finer than a millisecond are
milliseconds there, with the nanoseconds in place of the length.

Rules: nothing is read outside its record, and no more bytes are read than all records have, although the values of a
damaged record may overlap. The parts of a row must add up to its length, so another schema is detected.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import numpy as np

from ...base.errors import ConfigError, RecordError
from .flink import LongFormat, StreamElementFormat, Watermark

if TYPE_CHECKING:
    from numpy.typing import NDArray

RecordBatch: TypeAlias = Any  # pyarrow has no annotations, and may be missing
Integers: TypeAlias = "NDArray[np.int64]"
Mask: TypeAlias = "NDArray[np.bool_]"

KINDS: Final = ("+I", "-U", "+U", "-D")
"""Kinds of rows, in Flink's notation."""

_COMPACT_DIGITS: Final = 18
_INLINE_BYTES: Final = 7
_GATHERED_BYTES: Final = 32  # longer values, on average, are sliced one by one
_MOST_BYTES: Final = (1 << 31) - 1
_DAY_MS: Final = 86_400_000
_PER_MS: Final = {"us": 1_000, "ns": 1_000_000}


class _Damaged(Exception):
    """The bytes are not a row of the schema."""


@dataclass(frozen=True, slots=True)
class _Slots:
    """The positions of several values of one column.

    Attributes:
        base: start of the row or array of each value.
        size: its size in bytes.
        at: position of the value, or of its reference.
        valid: whether it is not null.
        used: for columns of rows: bytes used in the variable part of each row so far, and bytes that nulls may use.
    """

    base: Integers
    size: Integers
    at: Integers
    valid: Mask
    used: tuple[Integers, Integers] | None = None


_Read: TypeAlias = Callable[["NDArray[np.uint8]", _Slots], Any]


@dataclass(frozen=True, slots=True)
class _Column:
    """How values of a type are read; `width` is the size of an array element."""

    read: _Read
    width: int


@final
class FlinkRows:
    """Reads the rows of one schema.

    Args:
        schema: a `pyarrow.Schema`. Types are bool, int8 to int64, float32, float64, string, binary, decimal128, date32,
            time32("ms"), timestamp ("s" and "ms" are Flink's precision 0 to 3, "us" 4 to 6, "ns" 7 to 9; with a zone
            TIMESTAMP_LTZ), and list, map and struct of these.
        kind: name of an additional first column, with the kind of each row as in `KINDS`; None refuses rows other than
        inserts.
        elements: whether records are stream elements, as between the tasks of a job, or plain rows.

    Attributes:
        watermark: the last one among the records, in milliseconds; None before the first.

    Raises:
        ConfigError: a type that Flink's rows do not have, or pyarrow is missing.
    """

    def __init__(self, schema: Any, *, kind: str | None = None, elements: bool = True) -> None:
        try:
            pa = self._pa = importlib.import_module("pyarrow")
        except ImportError as error:
            raise ConfigError(f"rows of Flink need pyarrow ({error}); install it: pip install 'pyarrow>=16'") from error
        self._names = list(schema.names)
        self._columns = [_column_of(pa, field.name, field.type) for field in schema]
        self._kind = kind
        self._elements = StreamElementFormat(LongFormat()) if elements else None
        self.schema = schema if kind is None else pa.schema([pa.field(kind, pa.string(), nullable=False), *schema])
        self.watermark: int | None = None

    def batch(self, records: Sequence[bytes]) -> RecordBatch:
        """Reads the rows among some records, in order; watermarks and other elements are skipped.

        Args:
            records: as read with `RecordReader(gate, format="bytes")`, less than 2 GiB together; they are copied.

        Raises:
            RecordError: a record is not a row of the schema; nothing is returned.
        """
        data = b"".join(records)
        if len(data) > _MOST_BYTES:
            raise RecordError(f"{len(data)} bytes of records in one call; pass fewer, less than 2 GiB together")
        flat = np.frombuffer(data, np.uint8)
        ends = np.cumsum(np.fromiter(map(len, records), np.int64, len(records)), dtype=np.int64)
        starts = np.concatenate((np.zeros(1, np.int64), ends))[:-1]
        if self._elements is not None:
            starts, ends = self._without_heads(self._elements, records, flat, starts, ends)
        sizes = ends - starts - 4
        if (sizes < 0).any() or (_values(flat, starts, ">i4") != sizes).any():
            raise RecordError("a record's length differs from that of its row: are these rows of Flink's SQL?")
        base, pa = starts + 4, self._pa
        try:
            arrays = _row(flat, base, sizes, self._columns, self._names)
            kinds = self._kinds(flat, base)
            batch = pa.RecordBatch.from_arrays(kinds + arrays, schema=self.schema)
            batch.validate(full=True)
        except _Damaged as error:
            raise RecordError(f"{error}: the row is damaged, or its producer uses another schema") from None
        except (pa.ArrowException, ValueError) as error:
            raise RecordError(f"a row does not fit the schema: {error}") from error
        return batch

    def _without_heads(
        self,
        elements: StreamElementFormat,
        records: Sequence[bytes],
        flat: NDArray[np.uint8],
        starts: Integers,
        ends: Integers,
    ) -> tuple[Integers, Integers]:
        """Locates the values of records, behind tags and timestamps."""
        if (starts == ends).any():
            raise RecordError("a record is empty: a stream element has a tag")
        tags = flat[starts] if len(starts) else flat
        for index in np.flatnonzero(tags > 1).tolist():
            element = elements.decode(memoryview(records[index]))
            if isinstance(element, Watermark):
                self.watermark = element.timestamp
        starts = starts + np.where(tags == 0, 9, 1)
        return starts[tags <= 1], ends[tags <= 1]

    def _kinds(self, flat: NDArray[np.uint8], base: Integers) -> list[Any]:
        kinds = flat[base]
        if (kinds >= len(KINDS)).any():
            raise _Damaged(f"there is no kind {kinds.max()} of row")
        if self._kind is None:
            if kinds.any():
                first = KINDS[kinds[kinds > 0][0]]
                raise RecordError(
                    f"a row of kind {first} is not an insert: pass FlinkRows(kind=...), the name of a column for it"
                )
            return []
        pa = self._pa
        return [pa.DictionaryArray.from_arrays(kinds.astype(np.int32), pa.array(KINDS)).cast(pa.string())]


def row_payloads(records: Sequence[bytes]) -> list[bytes]:
    """Extracts the rows of stream elements that `batch` accepted, without tag, timestamp and length."""
    return [record[13 if record[0] == 0 else 5 :] for record in records if record[0] <= 1]


def _values(flat: NDArray[np.uint8], at: Integers, dtype: str) -> NDArray[Any]:
    """Reads values at some positions, which need not be aligned."""
    kind = np.dtype(dtype)
    values: NDArray[Any] = flat[at[:, None] + np.arange(kind.itemsize)].reshape(-1).view(kind)
    return values


def _row(
    flat: NDArray[np.uint8], base: Integers, size: Integers, columns: Sequence[_Column], names: Sequence[str]
) -> list[Any]:
    """Reads the columns of rows."""
    null_bytes = (8 + len(columns) + 63) // 64 * 8
    fixed = null_bytes + 8 * len(columns)
    if (size < fixed).any():
        raise _Damaged(f"a row of {size.min()} bytes, where {len(columns)} columns need at least {fixed}")
    used, slack = np.full(len(base), fixed, np.int64), np.zeros(len(base), np.int64)
    arrays = []
    for index, (name, column) in enumerate(zip(names, columns, strict=True)):
        byte, bit = divmod(8 + index, 8)
        valid = flat[base + byte] >> bit & 1 == 0
        slots = _Slots(base, size, base + null_bytes + 8 * index, valid, (used, slack))
        try:
            arrays.append(column.read(flat, slots))
        except _Damaged as error:
            raise _Damaged(f"column {name!r}: {error}") from None
    if ((size < used) | (size > used + slack)).any():
        raise _Damaged("a row's columns do not add up to its length")
    return arrays


def _spans(
    flat: NDArray[np.uint8], slots: _Slots, *, inline: bool = False, width: int = 0
) -> tuple[Integers, Integers]:
    """Reads references into variable parts: where values begin, and the second half (for most, their bytes).

    Args:
        flat: all records.
        slots: positions of the references; those of nulls give no bytes.
        inline: whether short values are in the slots themselves.
        width: the fixed size of values in the variable part, which nulls may use too; 0: variable.
    """
    word = np.where(slots.valid, _values(flat, slots.at, "<u8"), 0)
    offset, length = (word >> np.uint64(32)).astype(np.int64), (word & np.uint64(0xFFFFFFFF)).astype(np.int64)
    taken = np.full(len(word), width) if width else length
    if inline:
        is_inline = word >> np.uint64(63) == 1
        short = (word >> np.uint64(56) & np.uint64(0x7F)).astype(np.int64)
        if (short[is_inline] > _INLINE_BYTES).any():
            raise _Damaged(f"a short value of {short[is_inline].max()} bytes")
        offset, length = np.where(is_inline, slots.at - slots.base, offset), np.where(is_inline, short, length)
        taken = np.where(is_inline, 0, length)
    taken = np.where(slots.valid, taken, 0)
    if (offset + np.maximum(taken, 0 if width else length) > slots.size).any():
        raise _Damaged("a value is outside its row")
    if not width and int(length.sum()) > len(flat):
        raise _Damaged("values overlap")
    if slots.used is not None:
        used, slack = slots.used
        used += (taken + 7) // 8 * 8
        slack += np.where(slots.valid, 0, width)
    return slots.base + offset, length


def _validity(pa: Any, valid: Mask) -> Any:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _array(pa: Any, type_: Any, valid: Mask, *buffers: NDArray[Any], children: Sequence[Any] = ()) -> Any:
    """Creates an Arrow array of values that have its layout."""
    made = [_validity(pa, valid), *(pa.py_buffer(np.ascontiguousarray(each)) for each in buffers)]
    return pa.Array.from_buffers(type_, len(valid), made, children=list(children))


def _offsets(lengths: Integers) -> Integers:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))


# ------------------------------------------------------------------------------------------------------------ by type


def _read_numbers(pa: Any, type_: Any, dtype: str, flat: NDArray[np.uint8], slots: _Slots) -> Any:
    return _array(pa, type_, slots.valid, _values(flat, slots.at, dtype))


def _read_times(pa: Any, type_: Any, flat: NDArray[np.uint8], slots: _Slots) -> Any:
    values = np.where(slots.valid, _values(flat, slots.at, "<i4"), 0)
    if ((values < 0) | (values >= _DAY_MS)).any():
        raise _Damaged("a time outside the day")
    return _array(pa, type_, slots.valid, values.astype("<i4"))


def _read_bools(pa: Any, type_: Any, flat: NDArray[np.uint8], slots: _Slots) -> Any:
    return _array(pa, type_, slots.valid, np.packbits(flat[slots.at] != 0, bitorder="little"))


def _read_bytes(pa: Any, type_: Any, flat: NDArray[np.uint8], slots: _Slots) -> Any:
    starts, lengths = _spans(flat, slots, inline=True)
    offsets = _offsets(lengths)
    total = int(offsets[-1])
    if total > _GATHERED_BYTES * len(lengths):
        memory = flat.data
        ends = (starts + lengths).tolist()
        data = np.frombuffer(b"".join([memory[a:b] for a, b in zip(starts.tolist(), ends, strict=True)]), np.uint8)
    else:
        data = flat[np.repeat(starts - offsets[:-1], lengths) + np.arange(total)]
    return _array(pa, type_, slots.valid, offsets.astype("<i4"), data)


def _read_decimals(pa: Any, type_: Any, flat: NDArray[np.uint8], slots: _Slots) -> Any:
    halves = np.zeros((len(slots.at), 2), "<i8")
    halves[:, 0] = np.where(slots.valid, _values(flat, slots.at, "<i8"), 0)
    halves[:, 1] = halves[:, 0] >> 63
    return _array(pa, type_, slots.valid, halves)


def _read_long_decimals(pa: Any, type_: Any, flat: NDArray[np.uint8], slots: _Slots) -> Any:
    starts, lengths = _spans(flat, slots, width=16)
    if ((lengths > 16) | (lengths < 1) & slots.valid).any():
        raise _Damaged("a decimal of more than 16 bytes, or of none")
    first = np.where(slots.valid, starts, 0)
    digits = np.empty((len(starts), 16), np.uint8)
    sign = np.where(slots.valid & (flat[first] >= 0x80), 0xFF, 0) if len(starts) else digits[:, 0]
    for byte in range(16):  # lowest first
        is_there = byte < lengths
        digits[:, byte] = np.where(is_there, flat[np.where(is_there, starts + lengths - 1 - byte, 0)], sign)
    return _array(pa, type_, slots.valid, digits)


def _read_timestamps(pa: Any, type_: Any, flat: NDArray[np.uint8], slots: _Slots) -> Any:
    values = np.where(slots.valid, _values(flat, slots.at, "<i8"), 0)
    if type_.unit == "s":
        if (values % 1000).any():
            raise _Damaged("a timestamp with a fraction of a second")
        values //= 1000
    return _array(pa, type_, slots.valid, values)


def _read_fine_timestamps(pa: Any, type_: Any, flat: NDArray[np.uint8], slots: _Slots) -> Any:
    starts, nanoseconds = _spans(flat, slots, width=8)
    factor = _PER_MS[type_.unit]
    step = 1_000_000 // factor
    if ((nanoseconds >= 1_000_000) | (nanoseconds % step != 0)).any():
        raise _Damaged(f"a timestamp with a fraction of a {type_.unit}")
    milliseconds = np.zeros(len(starts), np.int64)
    milliseconds[slots.valid] = _values(flat, starts[slots.valid], "<i8")
    most = (1 << 63) // factor - 1
    if ((milliseconds > most) | (milliseconds < -most)).any():
        raise _Damaged(f"a timestamp out of range for 64 bits of {type_.unit}")
    return _array(pa, type_, slots.valid, milliseconds * factor + nanoseconds // step)


def _elements(
    flat: NDArray[np.uint8], starts: Integers, lengths: Integers, valid: Mask, column: _Column
) -> tuple[Integers, Any]:
    """Reads the number of elements of arrays, and all elements; null arrays have none."""
    if (lengths[valid] < 4).any():
        raise _Damaged("an array without its number of elements")
    counts = np.zeros(len(starts), np.int64)
    counts[valid] = _values(flat, starts[valid], "<i4")
    heads = 4 + (counts + 31) // 32 * 4
    if (counts < 0).any() or (valid & (heads + counts * column.width > lengths)).any():
        raise _Damaged("an array with more elements than its bytes hold")
    base = np.repeat(starts, counts)
    at = np.arange(len(base)) - np.repeat(_offsets(counts)[:-1], counts)
    is_valid = flat[base + 4 + at // 8] >> (at % 8).astype(np.uint8) & 1 == 0
    places = base + np.repeat(heads, counts) + at * column.width
    return counts, column.read(flat, _Slots(base, np.repeat(lengths, counts), places, is_valid))


def _read_lists(pa: Any, type_: Any, element: _Column, flat: NDArray[np.uint8], slots: _Slots) -> Any:
    counts, values = _elements(flat, *_spans(flat, slots), slots.valid, element)
    return _array(pa, type_, slots.valid, _offsets(counts).astype("<i4"), children=[values])


def _read_maps(pa: Any, type_: Any, key: _Column, item: _Column, flat: NDArray[np.uint8], slots: _Slots) -> Any:
    starts, lengths = _spans(flat, slots)
    valid = slots.valid
    if (lengths[valid] < 4).any():
        raise _Damaged("a map without the length of its keys")
    key_bytes = np.zeros(len(starts), np.int64)
    key_bytes[valid] = _values(flat, starts[valid], "<i4")
    if (key_bytes < 0).any() or (valid & (key_bytes > lengths - 4)).any():
        raise _Damaged("a map whose keys exceed its length")
    counts, keys = _elements(flat, starts + 4, key_bytes, valid, key)
    item_counts, items = _elements(flat, starts + 4 + key_bytes, np.maximum(lengths - 4 - key_bytes, 0), valid, item)
    if (counts != item_counts).any():
        raise _Damaged("a map with different numbers of keys and values")
    if keys.null_count:
        raise _Damaged("a map with a null key, which Arrow does not support")
    entries = pa.StructArray.from_arrays([keys, items], fields=[type_.key_field, type_.item_field])
    return _array(pa, type_, valid, _offsets(counts).astype("<i4"), children=[entries])


def _read_structs(
    pa: Any, type_: Any, names: Sequence[str], columns: Sequence[_Column], flat: NDArray[np.uint8], slots: _Slots
) -> Any:
    starts, lengths = _spans(flat, slots)
    valid = slots.valid
    arrays = _row(flat, starts[valid], lengths[valid], columns, names)
    rows = pa.StructArray.from_buffers(type_, int(valid.sum()), [None], children=arrays)
    if valid.all():
        return rows
    places = np.cumsum(valid) - 1
    return rows.take(pa.array(np.where(valid, places, 0), mask=~valid))


_FIXED: Final[Mapping[str, tuple[Callable[..., Any], int]]] = {
    "bool": (_read_bools, 1),
    "int8": (partial(_read_numbers, dtype="<i1"), 1),
    "int16": (partial(_read_numbers, dtype="<i2"), 2),
    "int32": (partial(_read_numbers, dtype="<i4"), 4),
    "int64": (partial(_read_numbers, dtype="<i8"), 8),
    "float": (partial(_read_numbers, dtype="<f4"), 4),
    "double": (partial(_read_numbers, dtype="<f8"), 8),
    "date32[day]": (partial(_read_numbers, dtype="<i4"), 4),
    "time32[ms]": (_read_times, 4),
    "string": (_read_bytes, 8),
    "binary": (_read_bytes, 8),
}


def _column_of(pa: Any, name: str, type_: Any) -> _Column:
    """Selects how a column of an Arrow type is read. Raises ConfigError if Flink's rows have no such type."""
    types = pa.types
    read: Callable[..., Any]
    if (entry := _FIXED.get(str(type_))) is not None:
        read, width = entry
        return _Column(_bound(read, pa, type_), width)
    if types.is_decimal128(type_) and type_.scale >= 0:
        read = _read_decimals if type_.precision <= _COMPACT_DIGITS else _read_long_decimals
    elif types.is_timestamp(type_):
        read = _read_timestamps if type_.unit in ("s", "ms") else _read_fine_timestamps
    elif types.is_map(type_):
        key, item = (_column_of(pa, name, each) for each in (type_.key_type, type_.item_type))
        read = partial(_read_maps, key=key, item=item)
    elif types.is_list(type_):
        read = partial(_read_lists, element=_column_of(pa, name, type_.value_type))
    elif types.is_struct(type_):
        columns = [_column_of(pa, f"{name}.{field.name}", field.type) for field in type_]
        read = partial(_read_structs, names=[field.name for field in type_], columns=columns)
    else:
        raise ConfigError(
            f"column {name!r}: rows of Flink have no {type_}; give bool, int8 to int64, float32, float64, string,"
            ' binary, decimal128, date32, time32("ms"), timestamp, list, map or struct'
        )
    return _Column(_bound(read, pa, type_), 8)


def _bound(read: Callable[..., Any], pa: Any, type_: Any) -> _Read:
    def bound(flat: NDArray[np.uint8], slots: _Slots) -> Any:
        return read(pa=pa, type_=type_, flat=flat, slots=slots)

    return bound
