"""Random schemas of Flink's SQL, and the values of their rows as `RowOracle.java` tells them."""

from __future__ import annotations

import random
import struct
from typing import Any

PLAIN = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DATE", "TIME(3)", "STRING", "VARCHAR(90)"),
    *("BYTES", "VARBINARY(90)", "DECIMAL(18, 3)", "DECIMAL(5, 5)", "DECIMAL(19, 0)", "DECIMAL(38, 10)"),
    *("TIMESTAMP(0)", "TIMESTAMP(3)", "TIMESTAMP(6)", "TIMESTAMP(9)", "TIMESTAMP_LTZ(3)", "TIMESTAMP_LTZ(5)"),
)
KEYS = ("INT", "BIGINT", "STRING", "DATE", "TIMESTAMP(6)", "DECIMAL(20, 2)")


def random_columns(rng: random.Random, depth: int = 2) -> str:
    """Columns of a table, as `schema_of` takes them."""
    count = rng.choice((1, 2, 3, 5, 8, 60)) if depth == 2 else rng.randint(1, 4)
    return ", ".join(f"c{index} {random_type(rng, depth)}" for index in range(count))


def random_type(rng: random.Random, depth: int) -> str:
    kind = rng.choice(("ARRAY", "MAP", "MULTISET", "ROW")) if depth and rng.random() < 0.2 else ""
    if kind == "ARRAY":
        actual = f"ARRAY<{random_type(rng, depth - 1)}>"
    elif kind == "MAP":
        actual = f"MAP<{rng.choice(KEYS)} NOT NULL, {random_type(rng, depth - 1)}>"
    elif kind == "MULTISET":
        actual = f"MULTISET<{rng.choice(KEYS)} NOT NULL>"
    elif kind == "ROW":
        actual = f"ROW<{random_columns(rng, depth - 1)}>"
    else:
        actual = rng.choice(PLAIN)
    return actual + rng.choice(("", "", " NOT NULL"))


def plain_values(array: Any) -> list[Any]:
    """An Arrow array as the oracle tells it."""
    import pyarrow as pa

    types, type_ = pa.types, array.type
    if types.is_list(type_):
        return [None if each is None else plain_values(each) for each in _parts(array)]
    if types.is_map(type_):
        return [
            None if each is None else [list(pair) for pair in zip(*map(plain_values, each.flatten()), strict=True)]
            for each in _parts(array)
        ]
    if types.is_struct(type_):
        rows = zip(*(plain_values(array.field(index)) for index in range(type_.num_fields)), strict=True)
        return [
            list(row) if is_there else None for row, is_there in zip(rows, array.is_valid().to_pylist(), strict=True)
        ]
    if types.is_timestamp(type_):
        factor = {"ms": 1, "us": 1_000, "ns": 1_000_000}[type_.unit]
        values = array.cast(pa.int64()).to_pylist()
        return [each if each is None else [each // factor, each % factor * (1_000_000 // factor)] for each in values]
    if types.is_date32(type_) or types.is_time32(type_):
        actual: list[Any] = array.cast(pa.int32()).to_pylist()
        return actual
    return [None if each is None else _plain(type_, each) for each in array.to_pylist()]


def _parts(array: Any) -> list[Any]:
    return [array[index].values if array[index].is_valid else None for index in range(len(array))]


def _plain(type_: Any, value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, str):
        return value.encode().hex()
    if isinstance(value, float):
        float_code, int_code = ("<f", "<i") if str(type_) == "float" else ("<d", "<q")
        return struct.unpack(int_code, struct.pack(float_code, value))[0]
    if str(type_).startswith("decimal"):
        return str(int(value.scaleb(type_.scale, _EXACT)))
    return value


def _exact() -> Any:
    import decimal

    return decimal.Context(prec=50)


_EXACT = _exact()
