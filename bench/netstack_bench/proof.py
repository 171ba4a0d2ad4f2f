"""The proof of delivery: what each receiver counted of each sender's records, compared with what was sent.

Single records and arrays: record i of a source goes to lane i mod (number of lanes), so each channel carries an exact
arithmetic sequence, and `problems` compares where each begins and ends. Columnar batches go to the lanes in turn: on
each channel indexes grow strictly, and their number and the sums of their squares and cubes prove that together they
are each index exactly once. The bytes are summed.

The user's rows carry no index: each lane is proven by its count and rolling hash (`netstack_bench.rows`), which the
source has for every lane; all records of a lane go to one sink.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import numpy.typing as npt

from .arrivals import Arrivals, Int64s
from .generator import MASK
from .histogram import Histogram
from .spec import RunSpec

if TYPE_CHECKING:
    import pyarrow as pa

PROBLEMS_IN_WORDS: Final = 5


class Order(enum.Enum):
    """How the producer distributes records over the channels."""

    ROUND_ROBIN = "round-robin"
    """Record i goes to channel (i + s) mod C: a channel carries exactly c, c + C, c + 2C, ..."""
    BLOCKS = "blocks"
    """Any record to any channel: indexes grow strictly on each channel, and all channels together have each index
    exactly once. Cheap if records come in blocks (columnar batches do).
    """


def order_of(spec: RunSpec) -> Order:
    """The order in which a source distributes its records over its lanes."""
    return Order.BLOCKS if spec.emit == "arrow" else Order.ROUND_ROBIN


@final
@dataclass(frozen=True, slots=True)
class Delivery:
    """The records that one sink received from one source; sums are modulo 2**64."""

    records: int
    checksum: int | None  # sum of their bytes as words; None if it was compared on arrival
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


class Taker(Protocol):
    """Takes what arrives on the channels of a gate."""

    @property
    def received_records(self) -> int:
        """Records received so far."""

    def feed(self, channel: int, records: Sequence[bytes | memoryview], now_ns: int | None = None) -> None:
        """Takes records that arrived together; the list may be reused, the records must not change. None is now."""

    def feed_array(self, channel: int, array: npt.NDArray[Any], now_ns: int | None = None) -> None:
        """Takes an array; its memory may be reused after the call.

        Args:
            channel: the channel it arrived on.
            array: shape (n,) of any dtype as wide as a record, or uint8 of shape (n, record_bytes). Any strides, if
                each record is contiguous.
            now_ns: arrival time; None is now.
        """

    def feed_arrow(self, channel: int, batch: pa.RecordBatch, now_ns: int | None = None) -> None:
        """Takes a columnar batch."""

    def finish(self) -> None:
        """Checks what is staged; no records may follow."""


class Verifier(Taker, Protocol):
    """Verifies what one receiver gets from one sender, while it arrives.

    Attributes:
        order: how the sender distributes its records over its `lanes`.
        verified: how much of the arriving data is checked.
        latency: of records against their due times; empty where these are unknown.
    """

    order: Order
    lanes: int
    verified: str
    arrivals: Arrivals
    latency: Histogram

    def begin(self, start_ns: int, latency_from_ns: int = 0) -> None:
        """Sets when record 0 is due, and from which due time on latencies count (after the warm-up)."""

    @property
    def received_records(self) -> int:
        """Implements `Taker.received_records`."""
        return self.arrivals.records

    @property
    def payload_bytes(self) -> int:
        """Payload received so far; complete after `finish`."""

    def sample_keys(self, indexes: Int64s) -> Int64s:
        """The keys of sampled records in `arrivals`."""

    def latencies(self, indexes: Int64s, times: Int64s, from_ns: int) -> Histogram:
        """The latencies of the run: `latency`, or if it is empty those of sampled records, emitted from then on."""
        if self.latency.count:
            return self.latency
        return self.arrivals.sampled_latency(self.sample_keys(indexes), times, from_ns)

    def delivery(self) -> Delivery:
        """What arrived, after `finish`."""

    def problems(self, expected: Mapping[str, Any]) -> list[str]:
        """The errors in a delivery that is the only one of its sender, after `finish`; empty if it is proven."""
        return problems("producer", expected, {"consumer": self.delivery()}, order=self.order, lanes=self.lanes)


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
    sums = [each.checksum for each in deliveries.values() if each.checksum is not None]
    if len(sums) == len(deliveries) and (checksum := sum(sums) & MASK) != expected["checksum"]:
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
    return texts[:PROBLEMS_IN_WORDS]


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
    more = len(texts) - PROBLEMS_IN_WORDS
    return texts[:PROBLEMS_IN_WORDS] + ([f"and {more} more of this kind"] if more > 0 else [])


def _sums(sent: int, deliveries: Mapping[str, Delivery], lanes: int) -> list[str]:
    squares = sum(each.squares for each in deliveries.values())
    cubes = sum(each.cubes for each in deliveries.values())
    if (squares - squares_below(sent)) & MASK or (cubes - cubes_below(sent)) & MASK:
        return [f"not each of records 0 to {sent - 1} arrived exactly once"]
    return []


def squares_below(count: int) -> int:
    """The sum of the squares of 0 to count - 1."""
    return (count - 1) * count * (2 * count - 1) // 6


def cubes_below(count: int) -> int:
    """The sum of their cubes."""
    return ((count - 1) * count // 2) ** 2
