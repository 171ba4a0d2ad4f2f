"""A compressed Arrow batch is refused before it becomes large."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, strategies as st

from netstack.base.errors import RecordError
from netstack.exchange.record.arrow import ArrowFormat
from netstack.exchange.record.arrow_bounds import MAX_INFLATED_BYTES

pa = pytest.importorskip("pyarrow")


def compressed(batch: Any, codec: str | None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def zeros(size: int) -> Any:
    return pa.py_buffer(bytes(size))


def bomb(kind: str) -> Any:
    most = MAX_INFLATED_BYTES + 8
    match kind:
        case "numbers":
            column = pa.Array.from_buffers(pa.int64(), most // 8, [None, zeros(most)])
        case "many columns":
            part = most // 16
            column = pa.Array.from_buffers(pa.int8(), part, [None, zeros(part)])
            return pa.record_batch([column] * 17, names=[str(number) for number in range(17)])
        case "text":
            offsets = pa.array([0, most], pa.int64()).buffers()[1]
            column = pa.Array.from_buffers(pa.large_string(), 1, [None, offsets, zeros(most)])
        case "a list":
            values = pa.Array.from_buffers(pa.int8(), most, [None, zeros(most)])
            column = pa.LargeListArray.from_arrays(pa.array([0, most], pa.int64()), values)
        case _:
            values = pa.Array.from_buffers(
                pa.large_string(), 1, [None, pa.array([0, most], pa.int64()).buffers()[1], zeros(most)]
            )
            column = pa.DictionaryArray.from_arrays(pa.array([0]), values)
    return pa.record_batch([column], names=["c"])


@pytest.mark.parametrize("kind", ["numbers", "many columns", "text", "a list", "a dictionary"])
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_what_announces_too_much_is_refused(kind: str, codec: str) -> None:
    data = compressed(bomb(kind), codec)
    assert len(data) < 1 << 20
    before = pa.total_allocated_bytes()
    with pytest.raises(RecordError, match=r"compressed buffers announce \d+ bytes; at most 67108864"):
        ArrowFormat().decode(memoryview(data))
    assert pa.total_allocated_bytes() - before < 1 << 20


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
@pytest.mark.parametrize("size", [0, 1, 1000])
def test_what_is_small_comes_through_compressed_or_not(codec: str | None, size: int) -> None:
    batch = pa.record_batch(
        {
            "n": pa.array(range(size), pa.int64()),
            "s": pa.array([str(number) for number in range(size)]),
            "d": pa.array(["a"] * size).dictionary_encode(),
            "l": pa.array([[number] for number in range(size)], pa.list_(pa.int8() if size < 100 else pa.int16())),
        }
    )
    data = compressed(batch, codec)
    assert ArrowFormat().decode(memoryview(data)).equals(batch)


@given(st.data())
def test_damaged_ones_are_a_record_error_or_a_batch(data: st.DataObject) -> None:
    sound = bytearray(compressed(pa.record_batch({"n": pa.array(range(500))}), "lz4"))
    for _ in range(data.draw(st.integers(1, 8))):
        sound[data.draw(st.integers(0, len(sound) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(RecordError):
        ArrowFormat().decode(memoryview(bytes(sound)))
