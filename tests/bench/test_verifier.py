from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from netstack_bench import verifier as sink
from netstack_bench.generator import Source
from netstack_bench.verifier import Order, RecordVerifier

Lanes = list[list[bytes]]
Feed = Callable[[RecordVerifier, int, list[bytes]], None]


def as_records(verifier: RecordVerifier, channel: int, records: list[bytes]) -> None:
    verifier.feed(channel, records)


def as_rows(verifier: RecordVerifier, channel: int, records: list[bytes]) -> None:
    if records:
        verifier.feed_array(channel, np.frombuffer(b"".join(records), np.uint8).reshape(len(records), -1))


def as_framed_column(verifier: RecordVerifier, channel: int, records: list[bytes]) -> None:
    """A strided, unaligned view, as a reader of framed records may hand out."""
    size = len(records[0]) if records else 8
    framed = np.zeros(len(records), dtype=[("length", ">u4"), ("payload", f"V{size}")])
    framed["payload"] = np.frombuffer(b"".join(records), f"V{size}")
    verifier.feed_array(channel, framed["payload"])


FEEDS = [as_records, as_rows, as_framed_column]
SIZES = [8, 13, 24, 100]


def lanes_of(size: int, records: int, channels: int) -> Lanes:
    made = Source(size, max(1, records)).records(0, records)
    return [made[channel::channels] for channel in range(channels)]


def blocks_of(size: int, records: int, channels: int) -> Lanes:
    made = Source(size, max(1, records)).records(0, records)
    lanes: Lanes = [[] for _ in range(channels)]
    for turn, at in enumerate(range(0, records, 5)):
        lanes[turn * turn % channels] += made[at : at + 5]
    return lanes


def problems(
    lanes: Lanes, feed: Feed, *, size: int, records: int, order: Order = Order.ROUND_ROBIN, cut: int = 7
) -> list[str]:
    """Feeds all lanes in turn, in pieces, and asks for the verdict."""
    verifier = RecordVerifier(record_bytes=size, channels=len(lanes), order=order)
    longest = max(map(len, lanes))
    for at in range(0, longest, cut):
        for channel, lane in enumerate(lanes):
            feed(verifier, channel, lane[at : at + cut])
    verifier.finish()
    return verifier.problems(Source(size, 1).expected(records))


def flip(record: bytes, at: int) -> bytes:
    return record[:at] + bytes((record[at] ^ 0x10,)) + record[at + 1 :]


@given(
    st.sampled_from(FEEDS),
    st.sampled_from(SIZES),
    st.integers(1, 60),
    st.integers(1, 7),
    st.integers(1, 9),
    st.sampled_from(list(Order)),
)
def test_a_whole_delivery_has_no_problems(
    feed: Feed, size: int, records: int, channels: int, cut: int, order: Order
) -> None:
    spread = blocks_of if order is Order.BLOCKS else lanes_of
    lanes = spread(size, records, channels)
    assert problems(lanes, feed, size=size, records=records, order=order, cut=cut) == []


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("feed", FEEDS)
@given(data=st.data())
def test_every_mutation_is_found(feed: Feed, order: Order, data: st.DataObject) -> None:
    size, records, channels = data.draw(st.sampled_from(SIZES)), data.draw(st.integers(20, 60)), 3
    lanes = (blocks_of if order is Order.BLOCKS else lanes_of)(size, records, channels)
    lane = lanes[data.draw(st.sampled_from([at for at in range(channels) if len(lanes[at]) > 2]))]
    at = data.draw(st.integers(0, len(lane) - 2))
    match data.draw(st.sampled_from(["lose", "lose last", "repeat", "swap", "flip", "replace", "move"])):
        case "lose":
            del lane[at]
        case "lose last":
            del lane[-1]
        case "repeat":
            lane.insert(at, lane[at])
        case "swap":
            lane[at], lane[at + 1] = lane[at + 1], lane[at]
        case "flip":
            lane[at] = flip(lane[at], data.draw(st.integers(0, size - 1)))
        case "replace":  # one lost, one repeated: the count is right
            lane[at] = lane[at + 1]
        case "move":
            other = lanes[0] if lane is not lanes[0] else lanes[1]
            other.insert(0, lane.pop(at))
            if order is Order.BLOCKS and other == sorted(other):
                return  # any channel may carry any record, as long as its own grow
    assert problems(lanes, feed, size=size, records=records, order=order, cut=data.draw(st.integers(1, 9))) != []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lane: lane.pop(5), "channel 0: record 6 came where 5 was due (lost or overtaken)"),
        (lambda lane: lane.insert(5, lane[5]), "channel 0: record 5 came where 6 was due (repeated or late)"),
        (lambda lane: lane.pop(), "record 9 was the last sent on a channel to consumer, 8 the last there"),
        (lambda lane: lane.clear(), "record 0 and those after it on its channel never arrived"),
        (lambda lane: lane.pop(0), "channel 0: starts with record 1"),
    ],
)
def test_a_problem_is_told_in_words(change: Callable[[list[bytes]], Any], words: str) -> None:
    lanes = lanes_of(8, 10, 1)
    change(lanes[0])
    actual = problems(lanes, as_records, size=8, records=10)
    assert any(words in text for text in actual), actual


def test_missing_blocks_are_counted() -> None:
    lanes = blocks_of(8, 10, 1)
    del lanes[0][3:5]
    actual = problems(lanes, as_records, size=8, records=10, order=Order.BLOCKS)
    assert actual[0] == "producer sent 10 records, 8 arrived"


def test_of_many_problems_a_few_are_told() -> None:
    lanes = lanes_of(8, 300, 3)
    for lane in lanes:
        lane.reverse()
    actual = problems(lanes, as_records, size=8, records=300)
    assert len(actual) < 12
    assert any(" more of this kind" in text for text in actual)


def test_a_record_of_another_length_is_found() -> None:
    verifier = RecordVerifier(record_bytes=8)
    verifier.feed(0, [bytes(8), bytes(9)])
    verifier.finish()
    assert any("a record of 9 bytes among records of 8" in text for text in verifier.problems(Source(8, 2).expected(2)))


def test_an_array_of_another_shape_is_found() -> None:
    verifier = RecordVerifier(record_bytes=16)
    verifier.feed_array(0, np.zeros(4, dtype=np.uint32))
    assert any("16-byte rows" in text for text in verifier.problems(Source(16, 4).expected(4)))


@pytest.mark.parametrize("size", [8, 24, 1 << 15, 1 << 18])
def test_large_arrays_are_checked_in_place(size: int) -> None:
    count = max(2, (1 << 18) // size)
    source, verifier = Source(size, count), RecordVerifier(record_bytes=size)
    verifier.feed_array(0, source.array(0, 1))  # staged, and must not be overtaken by what is checked in place
    verifier.feed_array(0, source.array(1, count))
    verifier.finish()
    assert verifier.problems(source.expected(count + 1)) == []
    wrong = source.array(count + 1, count).copy()
    wrong.reshape(-1).view(np.uint8)[-1] ^= 1
    verifier.feed_array(0, wrong)
    assert verifier.problems(source.expected(2 * count + 1)) != []


@pytest.mark.parametrize("size", [1 << 15, (1 << 15) + 5])
def test_large_records_are_summed_one_by_one(size: int) -> None:
    source = Source(size, 4)
    for change in (False, True):
        verifier, records = RecordVerifier(record_bytes=size), source.records(0, 4)
        if change:
            records[2] = flip(records[2], size - 1)
        verifier.feed(0, [memoryview(record) for record in records])
        verifier.finish()
        assert bool(verifier.problems(source.expected(4))) is change


@pytest.mark.parametrize("size", [8, 32])
def test_columnar_batches(size: int) -> None:
    pytest.importorskip("pyarrow")
    source = Source(size, 50)

    def verdict(spans: list[tuple[int, int]], records: int) -> list[str]:
        verifier = RecordVerifier(record_bytes=size, channels=3, order=Order.BLOCKS)
        for channel, (first, count) in enumerate(spans):
            for batch in source.arrow(first, count):
                verifier.feed_arrow(channel % 3, batch)
        verifier.finish()
        return verifier.problems(source.expected(records))

    assert verdict([(0, 50), (50, 1), (51, 49), (100, 20)], 120) == []
    assert verdict([(0, 50), (51, 49), (100, 20)], 120) != []
    assert verdict([(0, 50), (50, 50), (50, 50)], 150) != []
    assert verdict([(20, 10), (0, 10), (10, 10)], 30) == []
    assert verdict([(20, 10), (0, 5), (10, 10), (5, 5)], 30) != []


def test_open_loop_latency_counts_from_the_due_time() -> None:
    source, verifier = Source(8, 10), RecordVerifier(record_bytes=8, rate_per_s=1000)
    verifier.begin(5_000_000)
    records = source.records(0, 10)
    for index in (0, 1, 2):
        verifier.feed(0, [records[index]], 5_000_000 + index * 1_000_000 + 100)
    verifier.feed(0, records[3:], 5_000_000 + 9_000_000)  # stalled: all of them late
    verifier.finish()
    assert verifier.latency.count == 10
    assert verifier.latency.max_ns == 6_000_000
    assert verifier.latency.percentile_ns(0.3) == 100


def test_the_warm_up_counts_for_no_latency() -> None:
    verifier = RecordVerifier(record_bytes=8, rate_per_s=1000)
    verifier.begin(0, 5_000_000)
    verifier.feed(0, Source(8, 10).records(0, 10), 20_000_000)
    verifier.finish()
    assert verifier.latency.count == 5


@pytest.mark.parametrize("order", Order)
def test_sampled_records_find_their_arrival(order: Order) -> None:
    source, verifier = Source(8, 100), RecordVerifier(record_bytes=8, channels=2, order=order)
    records = source.records(0, 100)
    for turn, at in enumerate(range(0, 100, 20)):
        part = records[at : at + 20]
        if order is Order.BLOCKS:
            verifier.feed(turn % 2, part, 1000 * (at + 1))
        else:
            verifier.feed(0, part[::2], 1000 * (at + 1))
            verifier.feed(1, part[1::2], 1000 * (at + 1))
    verifier.finish()
    indexes = np.array([0, 19, 20, 57, 99, 100], dtype=np.int64)
    actual = verifier.arrivals.sampled_latency(verifier.sample_keys(indexes), np.zeros(6, dtype=np.int64), 0)
    assert actual.count == 5
    assert actual.min_ns == 1000
    assert actual.max_ns == 81_000


def test_feeding_a_full_stage_checks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "_STAGE_RECORDS", 10)
    source, verifier = Source(8, 100), RecordVerifier(record_bytes=8)
    kept = source.records(0, 9)
    verifier.feed(0, kept)
    verifier.feed(0, source.records(10, 5))
    assert verifier.problems(source.expected(14)) != []
    assert verifier.received_records == 14
    assert verifier.payload_bytes == 112
