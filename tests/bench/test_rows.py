from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from netstack.base.errors import LocalProtocolError
from netstack.exchange.outbound.selector import KeyGroupSelector
from netstack_bench.arrow_input import keep, kept, read_packed, write_packed
from netstack_bench.rows import Rows, RowSource, RowVerifier, joined, repeated, rolling, table_rows

LINES = [f"row {at}".encode() * (at % 4) for at in range(23)]
crcs = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def source_of(channels: int, *, keyed: bool = False, lines: Sequence[bytes] = LINES) -> RowSource:
    keys = [f"key {at % 5}" for at in range(len(lines))] if keyed else None
    return RowSource(Rows(list(lines), keys, None), channels)


def sent_lanes(source: RowSource, channels: int, records: int) -> list[list[bytes]]:
    lanes: list[list[bytes]] = [[] for _ in range(channels)]
    for at, record in enumerate(source.records(0, records)):
        lane = at % channels if source.lanes is None else int(source.lanes[at % source.rows])
        lanes[lane].append(record)
    return lanes


def problems(lanes: Sequence[Sequence[bytes]], expected: dict[str, Any], cut: int = 5) -> list[str]:
    verifier = RowVerifier(len(lanes))
    for at in range(0, max(map(len, lanes), default=0), cut):
        for channel, lane in enumerate(lanes):
            verifier.feed(channel, lane[at : at + cut])
    verifier.finish()
    return verifier.problems(expected)


@given(crcs, crcs)
def test_a_hash_goes_on_where_it_stopped(a: list[int], b: list[int]) -> None:
    whole = rolling((0, 0), a + b)
    assert rolling(rolling((0, 0), a), b) == whole
    assert joined(rolling((0, 0), a), rolling((0, 0), b)) == whole


@given(crcs, st.integers(0, 9))
def test_a_repeated_sequence(once: list[int], times: int) -> None:
    assert repeated(rolling((0, 0), once), times) == rolling((0, 0), once * times)


def test_long_and_short_sequences_hash_alike() -> None:
    many = list(range(10_000))
    one_by_one = (0, 0)
    for value in many:
        one_by_one = rolling(one_by_one, [value])
    assert rolling((0, 0), many) == rolling((0, 0), np.array(many, dtype=np.uint64)) == one_by_one


@given(st.integers(0, 1000), st.integers(0, 100))
def test_rows_start_over_at_the_end(first: int, count: int) -> None:
    assert source_of(1).records(first, count) == [LINES[at % len(LINES)] for at in range(first, first + count)]


@given(st.integers(0, 200), st.integers(1, 30), st.booleans(), st.integers(1, 9))
def test_a_whole_delivery_has_no_problems(records: int, channels: int, keyed: bool, cut: int) -> None:
    source = source_of(channels, keyed=keyed)
    assert problems(sent_lanes(source, channels, records), source.expected(records), cut) == []


@given(data=st.data())
def test_every_mutation_is_found(data: st.DataObject) -> None:
    source = source_of(2, keyed=data.draw(st.booleans()), lines=[b"%d" % at for at in range(20)])
    records = data.draw(st.integers(30, 60))
    lanes = sent_lanes(source, 2, records)
    lane = data.draw(st.sampled_from([lane for lane in lanes if len(lane) > 2]))
    at = data.draw(st.integers(0, len(lane) - 2))
    match data.draw(st.sampled_from(["lose", "repeat", "swap", "flip", "replace", "move"])):
        case "lose":
            del lane[at]
        case "repeat":
            lane.insert(at, lane[at])
        case "swap":
            lane[at], lane[at + 1] = lane[at + 1], lane[at]
        case "flip":
            lane[at] = bytes((lane[at][0] ^ 1,)) + lane[at][1:]
        case "replace":
            lane[at] = lane[at + 1]
        case "move":
            (lanes[0] if lane is lanes[1] else lanes[1]).append(lane.pop(at))
    assert problems(lanes, source.expected(records)) != []


def test_problems_in_words() -> None:
    source = source_of(2)
    lanes = sent_lanes(source, 2, 40)
    lanes[1].reverse()
    assert problems(lanes, source.expected(40)) == [
        "producer: lane 1: its 20 elements arrived changed or in another order"
    ]
    del lanes[1][0]
    assert "producer sent 40 records, 39 arrived" in problems(lanes, source.expected(40))


def test_rows_of_equal_width_may_come_as_an_array() -> None:
    source, verifier = source_of(1, lines=[b"abcd", b"efgh"]), RowVerifier(1)
    verifier.feed_array(0, np.frombuffer(b"abcdefghabcd", np.uint8).reshape(3, 4))
    verifier.finish()
    assert verifier.problems(source.expected(3)) == []


def test_a_key_takes_the_channel_of_its_key_group() -> None:
    source = source_of(4, keyed=True)
    selector = KeyGroupSelector()
    selector.setup(4)
    assert source.lanes is not None
    assert source.lanes.tolist() == [selector.select(f"key {at % 5}") for at in range(len(LINES))]
    assert len(set(source.lanes.tolist())) > 1


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("channels", [1, 3, 30])
def test_a_sample_finds_its_row(channels: int, keyed: bool) -> None:
    source, verifier = source_of(channels, keyed=keyed), RowVerifier(channels)
    seen = [0] * channels
    arrival = {}
    for at, record in enumerate(source.records(0, 70)):
        lane = at % channels if source.lanes is None else int(source.lanes[at % source.rows])
        verifier.feed(lane, [record], 1000 + at)
        arrival[at] = 1000 + at
        seen[lane] += 1
    for at in (0, 22, 23, 45, 46, 69):
        keys = source.sample_keys(np.array([at], dtype=np.int64))
        actual = verifier.arrivals.sampled_latency(verifier.sample_keys(keys), np.array([0], dtype=np.int64), 0)
        assert actual.max_ns == arrival[at]
    assert verifier.received_records == 70


def test_columnar_batches_are_cut_and_proven() -> None:
    pa = pytest.importorskip("pyarrow")
    batches = [
        pa.RecordBatch.from_pydict({"id": list(range(first, first + 10)), "text": ["ä", None] * 5})
        for first in (0, 10, 20)
    ]
    source = RowSource(Rows([], None, batches), 2)
    sent = source.arrow(0, 25) + source.arrow(25, 40)
    assert [batch.num_rows for batch in sent] == [10, 10, 5, 5, 10, 10, 10, 5]
    assert [value for batch in sent for value in batch.column(0).to_pylist()] == [at % 30 for at in range(65)]
    expected = source.expected(65)
    assert source.arrow_schema == batches[0].schema

    def verdict(order: Sequence[int]) -> list[str]:
        verifier = RowVerifier(2)
        for turn, at in enumerate(order):
            # What arrives was rebuilt from bytes.
            copy = pa.ipc.read_record_batch(sent[at].serialize(), sent[at].schema)
            verifier.feed_arrow(turn % 2, copy, 1000 * turn)
        verifier.finish()
        keys = source.sample_keys(np.array([0, 9, 10, 24, 25, 64], dtype=np.int64))
        actual = verifier.arrivals.sampled_latency(keys, np.zeros(6, dtype=np.int64), 0)
        if order == range(8):
            assert actual.count == 6
            assert actual.max_ns == 7000
        return verifier.problems(expected)

    assert verdict(range(8)) == []
    assert verdict([0, 1, 2, 3, 4, 5, 7, 6]) != []
    assert verdict([2, 1, 0, 3, 4, 5, 6, 7]) != []
    assert verdict(range(7)) != []


def test_payload_is_what_the_rows_have() -> None:
    source = source_of(3)
    assert source.expected(50)["payload_bytes"] == sum(map(len, source.records(0, 50)))
    assert source.expected(0) == {"records": 0, "payload_bytes": 0, "lanes": [(0, 0)] * 3}
    assert crc32(b"") == 0
    assert rolling((0, 0), [0]) != (1, 0), "an empty row counts"


@pytest.mark.parametrize("keyed", [False, True])
def test_packed_rows_are_the_same_rows(keyed: bool, tmp_path: Path) -> None:
    keys: list[Any] | None = [None, 1, "x", 2.5, b"y"] * 5 if keyed else None
    rows = Rows([b"%d" % at for at in range(25)], keys, None)
    packed = write_packed(rows, tmp_path)
    assert (packed.rows, packed.payload_bytes) == (25, 40)
    again = read_packed(tmp_path / packed.name)
    assert again.records == rows.records
    first, second = RowSource(rows, 7), RowSource(again, 7)
    assert first.expected(60) == second.expected(60)
    assert write_packed(again, tmp_path).name == packed.name
    keep(packed.name, tmp_path / packed.name)
    assert kept(packed.name) is kept(packed.name)
    with pytest.raises(LocalProtocolError, match="are not kept"):
        kept("others")


def test_packed_batches_are_the_same_batches(tmp_path: Path) -> None:
    rows = table_rows(pa.table({"id": range(10), "name": ["a", "b"] * 5}), "t", arrow_batch_records=4)
    again = read_packed(tmp_path / write_packed(rows, tmp_path).name)
    assert again.count == 10
    assert again.batches == rows.batches
