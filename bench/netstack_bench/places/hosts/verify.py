"""Proof of delivery among many tasks: each sink verifies each source's part, the coordinator that nothing is missing.

Single records and arrays: record i of a source goes to lane i mod (number of lanes), so each channel carries an exact
arithmetic sequence, and the coordinator compares where each begins and ends. Columnar batches go to the lanes in turn:
on each channel indexes grow strictly, and their number and the sums of their squares and cubes prove that together they
are each index exactly once. The bytes are summed as in `netstack_bench.verifier`.

The user's rows carry no index: each lane is proven by its count and rolling hash (`netstack_bench.rows`), which the
source has for every lane; all records of a lane go to one sink.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import numpy.typing as npt

from ...generator import MASK
from ...rows import RowVerifier
from ...spec import RunSpec
from ...verifier import Order, Verifier

if TYPE_CHECKING:
    import pyarrow as pa

_PROBLEMS_IN_WORDS: Final = 5

_Feeds: TypeAlias = list[tuple[Callable[..., None], int]]


@final
@dataclass(frozen=True, slots=True)
class Delivery:
    """The records that one sink received from one source; sums are modulo 2**64."""

    records: int
    checksum: int  # sum of their bytes as words
    lanes: tuple[tuple[int, int], ...] = ()  # round robin: (first index, next expected index) of each lane with records
    squares: int = 0  # blocks: sum of the squares of their indexes
    cubes: int = 0  # blocks: sum of the cubes
    problems: tuple[str, ...] = ()  # of the sink, in words
    hashes: tuple[tuple[int, int, int], ...] = ()  # rows: (lane, elements, rolling hash) of each lane with records
    payload_bytes: int = 0  # of rows

    def as_dict(self) -> dict[str, Any]:
        """The delivery as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Delivery:
        """The inverse of `as_dict`; its tuples may have become lists."""
        pairs = {name: tuple(map(tuple, values[name])) for name in ("lanes", "hashes")}
        return cls(**{**values, **pairs, "problems": tuple(values["problems"])})


@final
class GroupVerifier(Verifier):
    """Checks the records of one source that arrive at one sink."""

    def __init__(self, spec: RunSpec, lanes: int) -> None:
        self._order = order_of(spec)
        super().__init__(record_bytes=spec.record_bytes, channels=lanes, order=self._order, rate_per_s=spec.rate_per_s)
        self._squares = self._cubes = 0

    def delivery(self) -> Delivery:
        """The verified delivery, after `finish`."""
        hidden = self._problem_count - len(self._problems)
        more = [f"and {hidden} more of this kind"] if hidden else []
        return Delivery(
            records=self.received_records,
            checksum=self._checksum & MASK,
            lanes=tuple(sorted((start, self._next[channel]) for start, channel in self._starts.items())),
            squares=self._squares & MASK,
            cubes=self._cubes & MASK,
            problems=(*self._problems, *more),
        )

    def _melt(self, first: int, end: int) -> None:
        self._squares += _squares(end) - _squares(first)
        self._cubes += _cubes(end) - _cubes(first)


@final
class RowGroupVerifier(RowVerifier):
    """Hashes the rows of one source that arrive at one sink."""

    def delivery(self) -> Delivery:
        """The delivery, after `finish`."""
        return Delivery(
            records=self.received_records,
            checksum=0,
            hashes=tuple((lane, count, value) for lane, (count, value) in enumerate(self.hashed) if count),
            payload_bytes=self.payload_bytes,
        )


@final
class SinkVerifier:
    """Verifies all channels of a sink: one verifier in `groups` for each source's group of channels."""

    def __init__(self, spec: RunSpec, lanes: int, lane_bases: Sequence[int]) -> None:
        """Creates the verifiers of a sink.

        Each source has this many `lanes`; `lane_bases` has for each group of channels the first of its source's lanes.
        """
        self.groups: tuple[GroupVerifier | RowGroupVerifier, ...] = tuple(
            RowGroupVerifier(lanes) if spec.input_path is not None else GroupVerifier(spec, lanes) for _ in lane_bases
        )
        channels = range(spec.channels)
        lanes_of = [
            (group, base + channel) for group, base in zip(self.groups, lane_bases, strict=True) for channel in channels
        ]
        # Bound once, because stamped records pass one by one.
        self._feed: _Feeds = [(group.feed, lane) for group, lane in lanes_of]
        self._feed_array: _Feeds = [(group.feed_array, lane) for group, lane in lanes_of]
        self._feed_arrow: _Feeds = [(group.feed_arrow, lane) for group, lane in lanes_of]

    @property
    def received_records(self) -> int:
        """Records received so far."""
        return sum(group.received_records for group in self.groups)

    def feed(self, channel: int, records: Sequence[bytes | memoryview], now_ns: int | None = None) -> None:
        """Takes records of one channel of the gate; see `Verifier.feed`."""
        feed, lane = self._feed[channel]
        feed(lane, records, now_ns)

    def feed_array(self, channel: int, array: npt.NDArray[Any], now_ns: int | None = None) -> None:
        """Takes an array of one channel of the gate; see `Verifier.feed_array`."""
        feed, lane = self._feed_array[channel]
        feed(lane, array, now_ns)

    def feed_arrow(self, channel: int, batch: pa.RecordBatch, now_ns: int | None = None) -> None:
        """Takes a columnar batch of one channel of the gate; see `Verifier.feed_arrow`."""
        feed, lane = self._feed_arrow[channel]
        feed(lane, batch, now_ns)

    def finish(self) -> None:
        """Checks the staged records; no records may follow."""
        for group in self.groups:
            group.finish()


def order_of(spec: RunSpec) -> Order:
    """The order in which a source distributes its records over its lanes."""
    return Order.BLOCKS if spec.emit == "arrow" else Order.ROUND_ROBIN


def problems(
    source: str, expected: Mapping[str, Any], deliveries: Mapping[str, Delivery], *, order: Order, lanes: int
) -> list[str]:
    """The errors in the delivery of one source's records; empty if each arrived exactly once, complete and in order.

    `expected` is its `Source.expected`, `deliveries` are all of its deliveries by the name of the sink (and relay).
    """
    texts = [f"{source} to {sink}: {text}" for sink, each in deliveries.items() for text in each.problems]
    sent, arrived = int(expected["records"]), sum(each.records for each in deliveries.values())
    if sent != arrived:
        texts.append(f"{source} sent {sent} records, {arrived} arrived")
    if "lanes" in expected:
        return [*texts, *(f"{source}: {text}" for text in _hashes(expected, deliveries))]
    checksum = sum(each.checksum for each in deliveries.values()) & MASK
    if checksum != expected["checksum"]:
        texts.append(f"checksum of what {source} sent is {expected['checksum']:016x}, of what arrived {checksum:016x}")
    texts.extend(
        f"{source}: {text}" for text in (_lanes if order is Order.ROUND_ROBIN else _sums)(sent, deliveries, lanes)
    )
    return texts


def _hashes(expected: Mapping[str, Any], deliveries: Mapping[str, Delivery]) -> list[str]:
    texts = []
    payload_bytes = sum(each.payload_bytes for each in deliveries.values())
    if payload_bytes != expected["payload_bytes"]:
        texts.append(f"{expected['payload_bytes']} bytes were sent, {payload_bytes} arrived")
    by_lane: dict[int, tuple[int, int]] = {}
    for sink, each in deliveries.items():
        for lane, count, value in each.hashes:
            if lane in by_lane:
                texts.append(f"rows of lane {lane} arrived at {sink} and at another sink")
            by_lane[lane] = count, value
    for lane, (count, value) in enumerate(expected["lanes"]):
        arrived, hashed = by_lane.get(lane, (0, 0))
        if arrived != count:
            texts.append(f"lane {lane}: {count} elements were sent, {arrived} arrived")
        elif hashed != value:
            texts.append(f"lane {lane}: its {count} elements arrived changed or in another order")
    return texts[:_PROBLEMS_IN_WORDS]


def _lanes(sent: int, deliveries: Mapping[str, Delivery], lanes: int) -> list[str]:
    texts = []
    starts: dict[int, tuple[str, int]] = {}
    for sink, each in deliveries.items():
        for first, end in each.lanes:
            if first in starts:
                texts.append(f"record {first} arrived at {starts[first][0]} and at {sink}")
            starts[first] = sink, end
    for first in range(min(lanes, sent)):
        sink, end = starts.pop(first, ("", -1))
        due = first + math.ceil((sent - first) / lanes) * lanes
        if end < 0:
            texts.append(f"record {first} and those after it on its channel never arrived")
        elif end != due:
            texts.append(f"record {due - lanes} was the last sent on a channel to {sink}, {end - lanes} the last there")
    texts.extend(f"record {first} arrived at {sink}, but was never sent" for first, (sink, _) in sorted(starts.items()))
    more = len(texts) - _PROBLEMS_IN_WORDS
    return texts[:_PROBLEMS_IN_WORDS] + ([f"and {more} more of this kind"] if more > 0 else [])


def _sums(sent: int, deliveries: Mapping[str, Delivery], lanes: int) -> list[str]:
    squares = sum(each.squares for each in deliveries.values())
    cubes = sum(each.cubes for each in deliveries.values())
    if (squares - _squares(sent)) & MASK or (cubes - _cubes(sent)) & MASK:
        return [f"not each of records 0 to {sent - 1} arrived exactly once"]
    return []


def _squares(count: int) -> int:
    return (count - 1) * count * (2 * count - 1) // 6


def _cubes(count: int) -> int:
    return ((count - 1) * count // 2) ** 2
