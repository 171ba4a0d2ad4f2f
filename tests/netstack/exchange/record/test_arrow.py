"""A RecordBatch arrives as it left; its columns are lent, not copied; what is not a batch is refused."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from netstack.base.errors import ConfigError, RecordError
from netstack.exchange.record import arrow
from netstack.exchange.record.arrow import ArrowFormat

pa = pytest.importorskip("pyarrow")


def numbers(rows: int, columns: int = 1) -> Any:
    return pa.record_batch({f"c{at}": pa.array(np.arange(rows) + at) for at in range(columns)})


def of_every_kind(rows: int) -> Any:
    words = [None if at % 5 == 3 else f"wörd {at}" for at in range(rows)]
    plain = {
        "i": pa.array(range(rows), pa.int16()),
        "f": pa.array([at / 3 for at in range(rows)]),
        "b": pa.array([at % 2 == 0 for at in range(rows)]),
        "s": pa.array(words, pa.string()),
        "l": pa.array([list(range(at % 4)) for at in range(rows)], pa.list_(pa.int64())),
        "r": pa.array(
            [{"x": at, "y": str(at)} for at in range(rows)], pa.struct([("x", pa.int8()), ("y", pa.string())])
        ),
        "n": pa.nulls(rows),
    }
    return pa.record_batch(plain)


def with_dictionaries(rows: int, *, nested: bool = False) -> Any:
    coded = pa.array([f"k{at % 3}" for at in range(rows)]).dictionary_encode()
    if nested:
        return pa.record_batch({"outer": pa.StructArray.from_arrays([coded], names=["inner"])})
    return pa.record_batch({"k": coded, "v": pa.array(range(rows))})


BATCHES: dict[str, Callable[[], Any]] = {
    "numbers": lambda: numbers(1000, 3),
    "no rows": lambda: numbers(0),
    "no columns": lambda: pa.record_batch({}),
    "every kind": lambda: of_every_kind(50),
    "a slice": lambda: of_every_kind(50).slice(13, 21),
    "dictionaries": lambda: with_dictionaries(30),
    "nested dictionaries": lambda: with_dictionaries(30, nested=True),
    "metadata": lambda: numbers(3).replace_schema_metadata({"made": "here"}),
}


@pytest.mark.parametrize("name", BATCHES)
def test_round_trip(name: str) -> None:
    batch = BATCHES[name]()
    writer, reader = ArrowFormat(), ArrowFormat()
    for _ in range(3):  # the second and third use what was remembered of the schema
        raw = bytearray(b"".join(writer.encode_pieces(batch)))
        back = reader.decode(memoryview(raw))
        raw[:] = bytes(len(raw))  # the segment is recycled at once
        assert back.equals(batch, check_metadata=True)
        assert back.schema.equals(batch.schema, check_metadata=True)


@pytest.mark.parametrize("name", BATCHES)
def test_a_record_is_a_stream_anybody_reads(name: str) -> None:
    batch = BATCHES[name]()
    form = ArrowFormat()
    for _ in range(2):
        with pa.ipc.open_stream(form.encode(batch)) as stream:
            assert stream.read_next_batch().equals(batch)
            with pytest.raises(StopIteration):
                stream.read_next_batch()


@pytest.mark.parametrize("name", BATCHES)
def test_a_stream_anybody_wrote_is_read(name: str) -> None:
    batch = BATCHES[name]()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    assert ArrowFormat().decode_owned(sink.getvalue().to_pybytes()).equals(batch)


def test_schemas_may_alternate() -> None:
    writer, reader = ArrowFormat(), ArrowFormat()
    batches = [make() for make in BATCHES.values()] * 3 + [numbers(1, columns) for columns in range(1, 40)]
    for batch in batches:
        assert reader.decode_owned(writer.encode(batch)).equals(batch)


def test_changed_dictionaries_arrive() -> None:
    writer, reader = ArrowFormat(), ArrowFormat()
    for words in (["a", "b"], ["a", "b", "c"], ["z"]):
        batch = pa.record_batch({"k": pa.array(words).dictionary_encode()})
        assert reader.decode_owned(writer.encode(batch)).to_pylist() == [{"k": word} for word in words]


def addresses(pieces: list[bytes | memoryview]) -> list[int]:
    return [np.frombuffer(piece, np.uint8).ctypes.data for piece in pieces]


def test_columns_are_lent_not_copied() -> None:
    batch = numbers(10_000, 3)
    columns = [column.buffers()[1].address for column in batch.columns]
    form = ArrowFormat()
    for _ in range(2):
        pieces = form.encode_pieces(batch)
        assert len(pieces) == 4, "the small pieces in front are one"
        assert addresses(pieces[1:]) == columns
        assert all(isinstance(piece, memoryview) and piece.format == "B" for piece in pieces[1:])


def test_lent_columns_outlive_their_batch() -> None:
    form = ArrowFormat()
    pieces = form.encode_pieces(numbers(100_000))
    before = pa.total_allocated_bytes()
    gc.collect()
    other = numbers(100_000)  # would move into freed memory
    assert np.array_equal(np.frombuffer(pieces[1], np.int64), np.arange(100_000))
    del pieces, other
    gc.collect()
    assert pa.total_allocated_bytes() <= before


def test_the_writer_keeps_no_batch_alive() -> None:
    form = ArrowFormat()
    array = np.arange(100_000)
    references = sys.getrefcount(array)
    pieces = form.encode_pieces(pa.record_batch({"x": pa.array(array)}))
    assert sys.getrefcount(array) > references
    del pieces
    gc.collect()
    assert sys.getrefcount(array) == references


def test_small_pieces_are_merged() -> None:
    assert len(ArrowFormat().encode_pieces(numbers(10, 20))) == 1


def test_decode_copies_once_and_owned_not_at_all() -> None:
    raw = ArrowFormat().encode(numbers(10_000))
    start = np.frombuffer(raw, np.uint8).ctypes.data
    form = ArrowFormat()
    owned = form.decode_owned(raw).column(0).buffers()[1].address
    assert start < owned < start + len(raw)
    copied = form.decode(memoryview(raw)).column(0).buffers()[1].address
    assert not start <= copied < start + len(raw)


def test_many() -> None:
    writer = ArrowFormat()
    raws = [writer.encode(numbers(4)), writer.encode(numbers(4))]
    rows = np.frombuffer(b"".join(raws), np.uint8).reshape(2, -1)
    assert [batch.to_pydict() for batch in ArrowFormat().decode_many(rows)] == [numbers(4).to_pydict()] * 2


@pytest.mark.parametrize("record", [b"bytes", None, [1, 2], np.arange(3)])
def test_only_record_batches_are_written(record: object) -> None:
    with pytest.raises(RecordError, match="format arrow"):
        ArrowFormat().encode_pieces(record)


def test_a_table_is_told_the_way() -> None:
    with pytest.raises(RecordError, match="to_batches"):
        ArrowFormat().encode(pa.table({"x": [1]}))


def malformed() -> dict[str, bytes]:
    form = ArrowFormat()
    good, coded = form.encode(numbers(5)), form.encode(with_dictionaries(5))
    schema = numbers(5).schema.serialize().to_pybytes()
    batch = good[len(schema) :]
    end = b"\xff\xff\xff\xff\x00\x00\x00\x00"
    return {
        "nothing": b"",
        "a few bytes": b"\xff\xff\xff",
        "noise": b"not an arrow stream, but long enough",
        "no schema": batch,
        "no batch": schema,
        "no batch, ended": schema + end,
        "two schemas": schema + schema + batch,
        "two batches": good + batch,
        "one byte more": good + b"\x00",
        "eight bytes more": good + bytes(8),
        "cut": good[:-1],
        "cut in the metadata": good[: len(schema) + 20],
        "ended twice": good + end + end,
        "dictionaries, cut": coded[:-1],
        "dictionaries, one byte more": coded + b"\x00",
        "negative length": b"\xff\xff\xff\xff\xff\xff\xff\xff" + good[8:],
        "huge length": b"\xff\xff\xff\xff\xff\xff\xff\x7f" + good[8:],
    }


@pytest.mark.parametrize("name", malformed())
def test_malformed_bytes_are_refused(name: str) -> None:
    form = ArrowFormat()
    form.decode_owned(ArrowFormat().encode(numbers(5)))  # the schema is remembered
    for reader in (form, ArrowFormat()):
        with pytest.raises(RecordError, match="are not one Arrow schema and one RecordBatch"):
            reader.decode(memoryview(malformed()[name]))
    assert form.decode_owned(ArrowFormat().encode(numbers(5))).num_rows == 5


def test_offsets_out_of_bounds_are_refused() -> None:
    raw = bytearray(ArrowFormat().encode(pa.record_batch({"s": pa.array(["a", "b", "c"])})))
    offsets = np.array([0, 1, 2, 3], "<i4").tobytes()
    at = raw.index(offsets)
    raw[at + 4 : at + 8] = (10**9).to_bytes(4, "little")
    with pytest.raises(RecordError):
        ArrowFormat().decode(memoryview(raw))


def test_names_that_are_not_text_are_refused() -> None:
    inner = pa.struct([("inside", pa.timestamp("s", tz="Asia/Tokyo"))])
    good = ArrowFormat().encode(pa.record_batch({"outside": pa.array([None], inner)}))
    for name in (b"outside", b"inside", b"Asia/Tokyo"):
        assert name in good
        with pytest.raises(RecordError, match="decode byte 0xff"):
            ArrowFormat().decode_owned(good.replace(name, b"\xff" + name[1:]))


@given(st.data())
def test_damaged_bytes_read_as_a_batch_or_are_refused(data: st.DataObject) -> None:
    raw = bytearray(
        ArrowFormat().encode(data.draw(st.sampled_from([numbers(5), of_every_kind(7), with_dictionaries(5)])))
    )
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)) | st.just(len(raw)))]
    try:
        batch = ArrowFormat().decode(memoryview(raw))
    except RecordError:
        return
    batch.validate(full=True)
    batch.to_pylist()


def test_schemas_remembered_are_bounded() -> None:
    writer, reader = ArrowFormat(), ArrowFormat()
    for at in range(3 * arrow.MAX_CACHED_SCHEMAS):
        reader.decode_owned(writer.encode(pa.record_batch({f"column {at}": pa.array([at])})))
        assert len(reader._schemas) <= arrow.MAX_CACHED_SCHEMAS


def test_a_missing_pyarrow_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'pyarrow>=16'"):
        ArrowFormat()
