"""Proof of delivery among many: a sink proves what it got of every source, the coordinator that nothing is missing.

Takes: what arrives at a sink, channel by channel; what every source has sent. Gives: a `Delivery` of each source to
each sink, and problems in words; none is the proof.

One by one and in arrays, record i of a source goes to lane i mod (number of its lanes): each channel carries an exact
arithmetic sequence, and what is left to compare at the end is where each sequence begins and ends. Columnar batches
go to the lanes in turn: on each channel indexes grow strictly, and that all of them together are each index exactly
once is proven by their number and the sums of their squares and cubes, a few words however many batches there are. The
bytes themselves are summed as `bench.sink` does.

The user's rows carry no index: each lane is proven by its count and rolling hash (`bench.rows`), which the source knows
for every lane; all records of a lane come to one sink.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import numpy.typing as npt

from ..rows import RowVerifier
from ..sink import Order, Verifier
from ..source import MASK
from ..spec import RunSpec

if TYPE_CHECKING:
    import pyarrow as pa

_PROBLEMS_IN_WORDS: Final = 5


@final
@dataclass(frozen=True, slots=True)
class Delivery:
    """What one sink got of one source.

    Attributes:
        records: how many.
        checksum: sum of their bytes as words, modulo 2**64.
        lanes: round robin: (first index, index that would have come next) of each lane on which something came.
        squares: blocks: sum of the squares of their indexes, modulo 2**64.
        cubes: blocks: likewise of the cubes.
        problems: what was wrong at the sink, in words.
        hashes: of rows: (lane, elements, their rolling hash) of each lane on which something came.
        payload_bytes: of rows.
    """

    records: int
    checksum: int
    lanes: tuple[tuple[int, int], ...] = ()
    squares: int = 0
    cubes: int = 0
    problems: tuple[str, ...] = ()
    hashes: tuple[tuple[int, int, int], ...] = ()
    payload_bytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Returns plain data."""
        return {
            "records": self.records,
            "checksum": self.checksum,
            "lanes": [list(lane) for lane in self.lanes],
            "squares": self.squares,
            "cubes": self.cubes,
            "problems": list(self.problems),
            "hashes": [list(lane) for lane in self.hashes],
            "payload_bytes": self.payload_bytes,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Delivery:
        """The inverse of `as_dict`."""
        return cls(
            records=values["records"],
            checksum=values["checksum"],
            lanes=tuple((first, end) for first, end in values["lanes"]),
            squares=values["squares"],
            cubes=values["cubes"],
            problems=tuple(values["problems"]),
            hashes=tuple((lane, count, value) for lane, count, value in values["hashes"]),
            payload_bytes=values["payload_bytes"],
        )


@final
class GroupVerifier(Verifier):
    """Checks the records of one source, as far as they come to one sink."""

    def __init__(self, spec: RunSpec, lanes: int) -> None:
        """Args: the settings; over how many lanes the source spreads its records, here and elsewhere."""
        self._order = order_of(spec)
        super().__init__(record_bytes=spec.record_bytes, channels=lanes, order=self._order, rate_per_s=spec.rate_per_s)
        self._squares = self._cubes = 0

    def delivery(self) -> Delivery:
        """What has been proven, after `finish`."""
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
        """Blocks next to each other went to different sinks: there is nothing to melt, only sums."""
        self._squares += _squares(end) - _squares(first)
        self._cubes += _cubes(end) - _cubes(first)


@final
class RowGroupVerifier(RowVerifier):
    """Hashes the rows of one source, as far as they come to one sink."""

    def delivery(self) -> Delivery:
        """What came, after `finish`."""
        return Delivery(
            records=self.received_records,
            checksum=0,
            hashes=tuple((lane, count, value) for lane, (count, value) in enumerate(self.hashed) if count),
            payload_bytes=self.payload_bytes,
        )


@final
class SinkVerifier:
    """What a sink feeds: one verifier for each group of channels, which all carry one source's records.

    Attributes:
        groups: the verifiers.
    """

    def __init__(self, spec: RunSpec, lanes: int, lane_bases: Sequence[int]) -> None:
        """Nothing has come.

        Args:
            spec: the settings.
            lanes: over which each source spreads its records.
            lane_bases: for each group of `spec.channels` channels of the gate, which of its source's lanes comes first.
        """
        self.groups: tuple[GroupVerifier | RowGroupVerifier, ...] = tuple(
            RowGroupVerifier(lanes) if spec.input_path is not None else GroupVerifier(spec, lanes) for _ in lane_bases
        )
        channels = range(spec.channels)
        whose = [
            (group, base + channel) for group, base in zip(self.groups, lane_bases, strict=True) for channel in channels
        ]
        # Bound once: single records that are stamped one by one come through here.
        self._feed: list[tuple[Callable[..., None], int]] = [(group.feed, lane) for group, lane in whose]
        self._feed_array: list[tuple[Callable[..., None], int]] = [(group.feed_array, lane) for group, lane in whose]
        self._feed_arrow: list[tuple[Callable[..., None], int]] = [(group.feed_arrow, lane) for group, lane in whose]

    @property
    def received_records(self) -> int:
        """Records fed so far."""
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
        """Checks what is still staged; nothing may be fed afterwards."""
        for group in self.groups:
            group.finish()


def order_of(spec: RunSpec) -> Order:
    """How a source spreads its records over its lanes."""
    return Order.BLOCKS if spec.emit == "arrow" else Order.ROUND_ROBIN


def problems(
    source: str, expected: Mapping[str, Any], deliveries: Mapping[str, Delivery], *, order: Order, lanes: int
) -> list[str]:
    """Everything wrong with what one source sent; empty when each record arrived exactly once, whole and in order.

    Args:
        source: its name, for the texts.
        expected: `Source.expected` of it.
        deliveries: by the name of the sink (and relay) that got them; all there are.
        order: how it spread its records.
        lanes: over how many lanes.
    """
    texts = [f"{source} to {sink}: {text}" for sink, each in deliveries.items() for text in each.problems]
    sent, came = int(expected["records"]), sum(each.records for each in deliveries.values())
    if sent != came:
        texts.append(f"{source} sent {sent} records, {came} arrived")
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
    """Every lane's rows have to be there, in their order, at one sink."""
    texts = []
    payload_bytes = sum(each.payload_bytes for each in deliveries.values())
    if payload_bytes != expected["payload_bytes"]:
        texts.append(f"{expected['payload_bytes']} bytes were sent, {payload_bytes} arrived")
    came: dict[int, tuple[int, int]] = {}
    for sink, each in deliveries.items():
        for lane, count, value in each.hashes:
            if lane in came:
                texts.append(f"rows of lane {lane} came to {sink} and to another")
            came[lane] = count, value
    for lane, (count, value) in enumerate(expected["lanes"]):
        arrived, hashed = came.get(lane, (0, 0))
        if arrived != count:
            texts.append(f"lane {lane}: {count} elements were sent, {arrived} arrived")
        elif hashed != value:
            texts.append(f"lane {lane}: its {count} elements arrived changed or in another order")
    return texts[:_PROBLEMS_IN_WORDS]


def _lanes(sent: int, deliveries: Mapping[str, Delivery], lanes: int) -> list[str]:
    """Every lane's sequence has to be there once, up to its last record."""
    texts = []
    came: dict[int, tuple[str, int]] = {}
    for sink, each in deliveries.items():
        for first, end in each.lanes:
            if first in came:
                texts.append(f"record {first} came to {came[first][0]} and to {sink}")
            came[first] = sink, end
    for first in range(min(lanes, sent)):
        sink, end = came.pop(first, ("", -1))
        due = first + math.ceil((sent - first) / lanes) * lanes
        if end < 0:
            texts.append(f"record {first} and those after it on its channel never arrived")
        elif end != due:
            texts.append(f"record {due - lanes} was the last sent on a channel to {sink}, {end - lanes} the last there")
    texts.extend(f"record {first} came to {sink}, and was never sent" for first, (sink, _) in sorted(came.items()))
    more = len(texts) - _PROBLEMS_IN_WORDS
    return texts[:_PROBLEMS_IN_WORDS] + ([f"and {more} more of this kind"] if more > 0 else [])


def _sums(sent: int, deliveries: Mapping[str, Delivery], lanes: int) -> list[str]:
    """The power sums of all indexes have to be those of 0 to `sent` - 1."""
    squares = sum(each.squares for each in deliveries.values())
    cubes = sum(each.cubes for each in deliveries.values())
    if (squares - _squares(sent)) & MASK or (cubes - _cubes(sent)) & MASK:
        return [f"not each of records 0 to {sent - 1} arrived exactly once"]
    return []


def _squares(count: int) -> int:
    """Sum of i**2 for i from 0 to count - 1."""
    return (count - 1) * count * (2 * count - 1) // 6


def _cubes(count: int) -> int:
    """Sum of i**3 for i from 0 to count - 1."""
    return ((count - 1) * count // 2) ** 2
