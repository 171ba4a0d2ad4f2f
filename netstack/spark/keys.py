"""Hashes the keys of a columnar batch, with the results of `keygroups.stable_hash` for each row.

A row's subpartition is that of its key as a Python value: Flink's `key_group(stable_hash(key))`. A single column is the
key itself; several columns are a tuple. NULL hashes to 0. Other types hash as in Java: a decimal as BigDecimal, a date
as its day and a timestamp as its microseconds since 1970; a time and a day-time interval as their microseconds. All
hashes are array operations; text costs a few nanoseconds a character.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from ..base.errors import RecordError
from ..exchange.keygroups import hash_array, owner_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Hashes = NDArray[np.int32]

_DECIMAL_WORDS: Final = 4  # 32 bits each


def owners_of(columns: Sequence[Any], owners: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.unsignedinteger[Any]]:
    """Returns the subpartition of every row.

    Args:
        columns: the key columns, `pyarrow.Array`s of equal length.
        owners: the result of `keygroups.group_owners`.

    Raises:
        RecordError: as for `hash_columns`.
    """
    return owner_array(hash_columns(columns), owners)


def hash_columns(columns: Sequence[Any]) -> Hashes:
    """Returns the hash of every row's key.

    Raises:
        RecordError: the type of a column cannot be a key, or text is not UTF-8.
    """
    if len(columns) == 1:
        return hash_column(columns[0])
    value = np.zeros(len(columns[0]), np.int32)
    for column in columns:
        value *= np.int32(31)
        value += hash_column(column)
    return value


def hash_column(column: Any) -> Hashes:
    """Returns the hash of every value; raises RecordError like `hash_columns`."""
    from pyarrow import types

    kind = column.type
    if column.null_count:
        hashes = np.zeros(len(column), np.int32)
        if not types.is_null(kind):
            hashes[_fixed(column.is_valid())] = hash_column(column.drop_null())
        return hashes
    if types.is_dictionary(kind):
        return hash_column(column.dictionary_decode())
    if types.is_string(kind) or types.is_large_string(kind):
        return _hash_text(column)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _hash_bytes(column)
    if types.is_decimal128(kind):
        return _hash_decimals(column, kind.scale)
    return _hash_numbers(column)


def _hash_numbers(column: Any) -> Hashes:
    import pyarrow as pa
    from pyarrow import types

    kind = column.type
    if types.is_date32(kind):
        column = column.cast(pa.int32())
    elif types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    elif types.is_time(kind):
        column = column.cast(pa.time64("us"), safe=False).cast(pa.int64())
    elif types.is_duration(kind):
        column = column.cast(pa.duration("us")).cast(pa.int64())
    elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise RecordError(f"a column of type {kind} cannot be a key: use numbers, text, bytes or dates")
    return cast("Hashes", hash_array(_fixed(column)))


def _fixed(column: Any) -> NDArray[Any]:
    """A view of values without nulls. `to_numpy` would import pandas, which takes a second."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_boolean(column.type):  # bits
        return _fixed(column.cast(pa.uint8())).view(np.bool_)
    kind: Any = "f" if types.is_floating(column.type) else str(column.type)[0]  # halffloat, float, double; int, uint
    dtype = np.dtype(f"{kind}{column.type.bit_width // 8}")
    data = column.buffers()[1]
    if data is None:
        return np.empty(0, dtype)
    return np.frombuffer(data, dtype)[column.offset : column.offset + len(column)]


def _hash_text(column: Any) -> Hashes:
    """Java's String.hashCode, over UTF-16 units."""
    starts, data = _variable(column)
    if not len(data) or int(data.max()) < 0x80:
        return _polynomials(0, data.astype(np.uint32), starts)
    try:
        text = data.tobytes().decode()
    except UnicodeDecodeError as error:
        raise RecordError(f"a key is not text in UTF-8 ({error}); make it a binary column") from error
    # A character starts at every byte that is no continuation; a four-byte character has two units.
    units_at = np.zeros(len(data) + 1, np.int64)
    np.cumsum(((data & 0xC0) != 0x80).astype(np.int64) + (data >= 0xF0), out=units_at[1:])
    units = np.frombuffer(text.encode("utf-16-le"), "<u2")
    return _polynomials(0, units.astype(np.uint32), units_at[starts])


def _hash_bytes(column: Any) -> Hashes:
    """Java's Arrays.hashCode of bytes, which are signed there."""
    starts, data = _variable(column)
    return _polynomials(1, data.view(np.int8).astype(np.int32).view(np.uint32), starts)


def _variable(column: Any) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """The offsets of the values in the data, with the end of the last one; and the data."""
    _, offsets, data = column.buffers()
    width = np.int64 if str(column.type).startswith("large") else np.int32
    starts = np.frombuffer(offsets, width)[column.offset : column.offset + len(column) + 1]
    taken = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return starts - starts[0], taken[starts[0] : starts[-1]]


def _polynomials(begin: int, units: NDArray[np.uint32], starts: NDArray[Any]) -> Hashes:
    """`31 * h + unit` over the units of every value: the sum of each unit by its power of 31, counted from the end."""
    lengths = np.diff(starts)
    longest = int(lengths.max(initial=0))
    powers = np.full(longest + 1, 31, np.uint32)
    powers[0] = 1
    np.cumprod(powers, dtype=np.uint32, out=powers)
    value = np.uint32(begin) * powers[lengths]
    if len(units):
        places = np.repeat(starts[1:], lengths) - 1 - np.arange(len(units))
        filled = lengths > 0
        value[filled] += np.add.reduceat(units * powers[places], starts[:-1][filled], dtype=np.uint32)
    return value.view(np.int32)


def _hash_decimals(column: Any, scale: int) -> Hashes:
    """Java's BigDecimal.hashCode: 31 times that of the unscaled number, plus the scale."""
    halves = np.frombuffer(column.buffers()[1], "<u8").reshape(-1, 2)[column.offset : column.offset + len(column)]
    low, high = halves[:, 0], halves[:, 1]
    negative = high >> np.uint64(63) == 1
    low = np.where(negative, ~low + np.uint64(1), low)
    high = np.where(negative, ~high + (low == 0), high)
    words = np.stack([low, high], axis=1).view(np.uint32)
    value = np.zeros(len(column), np.uint32)
    for word in range(_DECIMAL_WORDS - 1, -1, -1):
        value = value * np.uint32(31) + words[:, word]
    value = np.where(negative, ~value + np.uint32(1), value)
    return (value * np.uint32(31) + np.uint32(scale)).view(np.int32)
