"""Laws of framing: the cuts between buffers are invisible, and whatever is torn can be replayed."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, strategies as st
from record_streams import split_stream, streams_of

from netstack.base.errors import RecordError
from netstack.exchange.record.deserializer import RecordDeserializer
from netstack.exchange.record.formats import BytesFormat
from netstack.exchange.record.framing import LENGTH, MAX_RECORD_BYTES, RUN, RUN_FLAG, FramedBatch, frame
from netstack.exchange.record.rows import RowDeserializer
from netstack.exchange.record.spill import SpillDirectory

SPILL = SpillDirectory()
THRESHOLD_BYTES = 300

# Short ones, runs of one length, and some above the threshold of spilling.
runs = st.tuples(st.integers(0, 20), st.integers(1, 60)).map(lambda run: [bytes(range(run[0]))] * run[1])
single = st.one_of(
    st.binary(max_size=20), st.binary(min_size=290, max_size=310), st.binary(min_size=1000, max_size=1000)
)
records_lists = st.lists(st.one_of(runs, single.map(lambda record: [record])), max_size=12).map(
    lambda parts: list(itertools.chain.from_iterable(parts))
)


@st.composite
def cuts_of(draw: st.DrawFn, size: int) -> list[int]:
    """Positions of the cuts between buffers, both ends included; empty buffers may occur."""
    if draw(st.booleans()):
        step = draw(st.integers(1, max(1, size)))
        if size // step < 3000:
            return [*range(0, size, step), size]
    return [0, *sorted(draw(st.lists(st.integers(0, size), max_size=30))), size]


@st.composite
def batches(draw: st.DrawFn) -> npt.NDArray[np.uint8]:
    width = draw(st.sampled_from([0, 1, 2, 3, 4, 5, 7, 8, 12, 16, 100, 20_000]))
    count = draw(st.integers(0, 200 if width < 1000 else 4))
    seed = draw(st.integers(0, 2**32 - 1))
    return np.random.default_rng(seed).integers(0, 256, (count, width), np.uint8)


def make_deserializer() -> RecordDeserializer:
    return RecordDeserializer(BytesFormat(), spill=SPILL, spill_threshold_bytes=THRESHOLD_BYTES)


def pieces_of(stream: bytes, cuts: list[int]) -> list[memoryview]:
    """Each piece in memory of its own, so that a kept view is noticed when the caller wipes it."""
    return [memoryview(bytearray(stream[start:stop])) for start, stop in itertools.pairwise(cuts)]


def feed_and_wipe(deserializer: RecordDeserializer, piece: memoryview) -> list[Any]:
    elements = deserializer.feed(piece)
    piece[:] = b"\xee" * len(piece)
    return elements


@given(st.data(), records_lists)
def test_any_cuts_give_the_same_elements(data: st.DataObject, records: list[bytes]) -> None:
    stream = data.draw(streams_of(records))
    deserializer = make_deserializer()
    got: list[bytes] = []
    for piece in pieces_of(stream, data.draw(cuts_of(len(stream)))):
        got += feed_and_wipe(deserializer, piece)
    assert got == records
    assert deserializer.unconsumed() == b""


@given(st.data(), records_lists.filter(len))
def test_what_is_unconsumed_and_the_rest_replay_exactly(data: st.DataObject, records: list[bytes]) -> None:
    stream = data.draw(streams_of(records))
    assert split_stream(stream) == records
    stop = data.draw(st.integers(0, len(stream)))
    first, second = make_deserializer(), make_deserializer()
    got: list[bytes] = []
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(first.clear)  # it may hold a file
        cleanup.callback(second.clear)
        for piece in pieces_of(stream[:stop], data.draw(cuts_of(stop))):
            got += feed_and_wipe(first, piece)
        torn = first.unconsumed()
        assert len(torn) == first.pending_bytes
        assert split_stream(torn + stream[stop:]) == records[len(got) :]
        rest = torn + stream[stop:]
        for piece in pieces_of(rest, data.draw(cuts_of(len(rest)))):
            got += feed_and_wipe(second, piece)
    assert got == records


@given(st.data(), records_lists.filter(len))
def test_what_is_unprocessed_and_the_rest_replay_exactly(data: st.DataObject, records: list[bytes]) -> None:
    """A checkpoint between two records of a buffer."""
    stream = data.draw(streams_of(records))
    deserializer = make_deserializer()
    got = fed = 0
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(deserializer.clear)  # it may hold a file
        for piece in pieces_of(stream, data.draw(cuts_of(len(stream)))):
            elements = deserializer.feed(piece)
            fed += len(piece)
            if elements:
                done = data.draw(st.integers(1, len(elements)))
                rest = deserializer.unprocessed(piece, done) + stream[fed:]
                assert split_stream(rest) == records[got + done :]
            got += len(elements)


@given(st.data(), records_lists, st.integers(2001, 2**31 - 1))
def test_a_length_beyond_the_limit_is_refused_wherever_it_is_cut(
    data: st.DataObject, records: list[bytes], length: int
) -> None:
    head = LENGTH.pack(length)
    if data.draw(st.booleans()):
        head = RUN.pack(RUN_FLAG | data.draw(st.integers(1, MAX_RECORD_BYTES)), length)
    stream = data.draw(streams_of(records)) + head + bytes(2001)
    deserializer = RecordDeserializer(
        BytesFormat(), spill=SPILL, spill_threshold_bytes=THRESHOLD_BYTES, max_record_bytes=2000
    )

    def feed_all() -> None:
        for piece in pieces_of(stream, data.draw(cuts_of(len(stream)))):
            feed_and_wipe(deserializer, piece)

    with pytest.raises(RecordError, match=f"record {len(records)} .* declares {length} bytes"):
        feed_all()


@given(
    st.data(),
    records_lists,
    st.sampled_from([(0, 8), (0, 0), (1, 0), (5, 2**31), (MAX_RECORD_BYTES, 2**32 - 1)]),
)
def test_a_run_of_nothing_is_refused_wherever_it_is_cut(
    data: st.DataObject, records: list[bytes], head: tuple[int, int]
) -> None:
    """Or eight bytes would announce two thousand million records."""
    count, width = head
    stream = data.draw(streams_of(records)) + RUN.pack(RUN_FLAG | count, width) + bytes(20)
    first, second = make_deserializer(), RowDeserializer(8)

    def feed_all(reader: RecordDeserializer | RowDeserializer) -> None:
        for piece in pieces_of(stream, data.draw(cuts_of(len(stream)))):
            reader.feed(piece)

    with pytest.raises(RecordError, match=rf"record {len(records)} .* a run"):
        feed_all(first)
    if all(len(record) == 8 for record in records):
        with pytest.raises(RecordError, match=rf"record {len(records)} .* a run of {count} records"):
            feed_all(second)


@given(st.data(), batches())
def test_slices_of_a_framed_batch_join_to_the_framed_records(data: st.DataObject, rows: npt.NDArray[np.uint8]) -> None:
    stream = b"".join(frame(row.tobytes()) for row in rows)
    batch = FramedBatch(rows)
    assert batch.size_bytes == len(stream)
    got = bytearray()
    also = bytearray()
    for start, stop in itertools.pairwise(data.draw(cuts_of(len(stream)))):
        out = bytearray(stop - start)
        batch.write(start, stop, memoryview(out))
        got += out
        FramedBatch(rows).write(start, stop, memoryview(out))
        also += out
    assert got == stream
    assert also == stream


@given(st.data(), batches(), st.integers(1, 2000))
def test_any_cuts_give_the_array_back(data: st.DataObject, rows: npt.NDArray[np.uint8], block_bytes: int) -> None:
    stream = data.draw(streams_of([row.tobytes() for row in rows]))
    cuts = data.draw(cuts_of(len(stream)))
    stop_early = data.draw(st.integers(0, len(cuts)))
    reader = RowDeserializer(rows.shape[1], block_bytes=block_bytes)
    taken: list[npt.NDArray[np.uint8]] = []
    fed = 0
    for index, piece in enumerate(pieces_of(stream, cuts)):
        if index == stop_early:  # a checkpoint: another reader goes on with what was torn
            taken += reader.take()
            torn = reader.unconsumed()
            assert len(torn) == reader.pending_bytes
            reader = RowDeserializer(rows.shape[1], block_bytes=block_bytes)
            fed += reader.feed(memoryview(torn))
        fed += reader.feed(piece)
        piece[:] = b"\xee" * len(piece)
        if data.draw(st.booleans()):
            taken += reader.take()
    taken += reader.take()
    assert fed == len(rows)
    assert sum(map(len, taken)) == len(rows)
    assert b"".join(array.tobytes() for array in taken) == rows.tobytes()
    assert reader.pending_bytes == 0
