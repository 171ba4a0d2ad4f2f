"""Verifies delivery while receiving: count, order on every channel, and a checksum of the received bytes.

- Verification must be cheap, or it would be what is measured: single records and small arrays are staged and checked in
  chunks by numpy; only large contiguous arrays are checked in place. Staging copies, so the caller may reuse its memory
  at once.
- The checksum is summed over the received bytes; the producer's is computed from the count
  (`netstack_bench.generator`).
- Problems are collected, the first few in words; nothing raises for a wrong delivery.
- Single records and arrays: record i of a source goes to lane i mod (number of lanes), so each channel carries an exact
  arithmetic sequence, and `problems` compares where each begins and ends. Columnar batches go to the lanes in turn: on
  each channel indexes grow strictly, and their number and the sums of their squares and cubes prove that together they
  are each index exactly once.
- The user's rows carry no index: each lane is proven by its count and rolling hash (`netstack_bench.rows`), which the
  source has for every lane; all records of a lane go to one sink.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import numpy as np
import numpy.typing as npt

from .arrivals import Arrivals, Int64s, column, round_robin_keys
from .generator import INDEX_BYTES, MASK
from .histogram import Histogram
from .pacing import clock_ns, due_ns_many
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


Words = npt.NDArray[np.uint64]
Segment = tuple[int, int, int]  # channel, records, arrival in ns

_STAGE_RECORDS = 4096
_PACED_RECORDS = 128  # at a rate: checking 4,096 takes a millisecond, which would show in every 200th latency
_STAGE_LIST_BYTES = 1024 * 1024
_STAGE_ARRAY_BYTES = 256 * 1024  # fits into the level-2 cache together with the scratch arrays
_DIRECT_BYTES = 128 * 1024  # a larger contiguous array is not worth a copy
_JOIN_BYTES = 32 * 1024  # above, summing each record in place is faster than joining them
_SCRATCH_RECORDS = 32 * 1024  # steps checked at once: few numpy calls, within the level-2 cache


class RecordVerifier(Verifier):
    """Checks generated records (`netstack_bench.generator.Source`); latencies are of the open loop.

    Args:
        order: how the producer distributes records.
        rate_per_s: open loop: measure every record against its due time.
    """

    def __init__(
        self,
        *,
        record_bytes: int,
        channels: int = 1,
        order: Order = Order.ROUND_ROBIN,
        rate_per_s: float | None = None,
    ) -> None:
        self._record_bytes = record_bytes
        self.order, self.lanes = order, channels
        self._blocks = order is Order.BLOCKS
        self._step = 1 if self._blocks else channels  # from record to record within a segment
        self._rate_per_s = rate_per_s
        self._start_ns = self._latency_from_ns = 0

        self._records: list[bytes | memoryview] = []
        self._record_segments: list[Segment] = []
        most = _STAGE_RECORDS if rate_per_s is None else _PACED_RECORDS
        self._records_at_most = max(1, min(most, _STAGE_LIST_BYTES // record_bytes))

        # Staged rows are padded with zeros to whole words, so that summing is one pass over aligned memory.
        self._row_words = -(-record_bytes // 8)
        self._cell = np.dtype(np.uint64) if record_bytes == INDEX_BYTES else np.dtype(f"V{record_bytes}")
        self._array_words = self._padded_rows(max(1, _STAGE_ARRAY_BYTES // record_bytes))
        self._array_cells = self._cells_of(self._array_words)
        self._array_rows = 0
        self._array_segments: list[Segment] = []
        # Temporary arrays would be fresh pages each time, which costs more than the checks.
        self._steps = np.empty(_SCRATCH_RECORDS, dtype=np.uint64)
        self._differs = np.empty(_SCRATCH_RECORDS, dtype=bool)

        self._checksum = 0
        self._next: dict[int, int] = {}  # by channel: the index after the last one that arrived, in steps
        self._starts: dict[int, int] = {}  # round robin: channel by the first index it carried
        self._squares = self._cubes = 0  # blocks: sums of the squares and cubes of the indexes
        self._problems: list[str] = []
        self._problem_count = 0
        self.verified = "all"
        self.arrivals = Arrivals()
        self.latency = Histogram()

    def begin(self, start_ns: int, latency_from_ns: int = 0) -> None:
        """Implements `Verifier.begin`."""
        self._start_ns = start_ns
        self._latency_from_ns = latency_from_ns

    @property
    def payload_bytes(self) -> int:
        """Implements `Verifier.payload_bytes`."""
        return self.arrivals.records * self._record_bytes

    def feed(self, channel: int, records: Sequence[bytes | memoryview], now_ns: int | None = None) -> None:
        """Implements `Verifier.feed`."""
        now = clock_ns() if now_ns is None else now_ns
        count = len(records)
        if not count:
            return
        self.arrivals.add(count, now)
        self._records.extend(records)
        self._record_segments.append((channel, count, now))
        if len(self._records) >= self._records_at_most:
            self._flush_records()

    def feed_array(self, channel: int, array: npt.NDArray[Any], now_ns: int | None = None) -> None:
        """Implements `Verifier.feed_array`."""
        now = clock_ns() if now_ns is None else now_ns
        count = len(array)
        if not count:
            return
        self.arrivals.add(count, now)
        size = self._record_bytes
        contiguous = array.flags.c_contiguous
        if array.nbytes != count * size or not (contiguous or array.strides[-1] == array.itemsize or array.ndim == 1):
            self._problem(f"channel {channel}: {array.dtype}{array.shape} is not an array of {size}-byte rows")
            return
        if contiguous and array.nbytes >= _DIRECT_BYTES and not size % 8:
            self._flush_arrays()
            self._check_words(array.reshape(-1).view(np.uint64).reshape(count, -1), [(channel, count, now)])
            return
        cells = array.view(self._cell)  # (n,) is unchanged, (n, bytes) becomes (n, 1)
        stage = self._array_cells[:, None] if cells.ndim == 2 else self._array_cells
        first = 0
        while first < count:
            staged = self._array_rows
            taken = min(count - first, len(stage) - staged)
            self._array_rows = staged + taken
            stage[staged : staged + taken] = cells[first : first + taken]
            self._array_segments.append((channel, taken, now))
            first += taken
            if self._array_rows == len(stage):
                self._flush_arrays()

    def feed_arrow(self, channel: int, batch: pa.RecordBatch, now_ns: int | None = None) -> None:
        """Implements `Verifier.feed_arrow` for batches made by `Source.arrow`."""
        now = clock_ns() if now_ns is None else now_ns
        count = batch.num_rows
        if not count:
            return
        self.arrivals.add(count, now)
        index = _words_of(batch.column(0))
        columns = 2 if self._row_words > 1 else 1
        if batch.num_columns != columns:
            self._problem(f"channel {channel}: columnar batch of {batch.num_columns} columns; {columns} were sent")
        self._checksum += int(np.add.reduce(index))
        for column_at in range(1, batch.num_columns):
            values = _words_of(batch.column(column_at).flatten())
            self._checksum += int(np.add.reduce(values))
        self._check_order(index, [(channel, count, now)])

    def finish(self) -> None:
        """Implements `Verifier.finish`."""
        self._flush_records()
        self._flush_arrays()

    def delivery(self) -> Delivery:
        """Implements `Verifier.delivery`."""
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

    def sample_keys(self, indexes: Int64s) -> Int64s:
        """Implements `Verifier.sample_keys` for indexes of records."""
        return indexes if self._blocks else round_robin_keys(indexes, self.lanes)

    def _padded_rows(self, count: int) -> Words:
        return np.zeros((count, self._row_words), dtype=np.uint64)

    def _cells_of(self, words: Words) -> npt.NDArray[Any]:
        cells: npt.NDArray[Any] = words.view(np.uint8)[:, : self._record_bytes].view(self._cell)[:, 0]
        return cells

    def _flush_records(self) -> None:
        records, segments = self._records, self._record_segments
        if not records:
            return
        self._records, self._record_segments = [], []
        size = self._record_bytes
        if size >= _JOIN_BYTES and not size % 8 and all(len(record) == size for record in records):
            self._checksum += sum(int(np.add.reduce(np.frombuffer(record, np.uint64))) for record in records)
            indexes = [int.from_bytes(record[:INDEX_BYTES], "little") for record in records]
            self._check_order(np.array(indexes, dtype=np.uint64), segments)
            return
        joined = b"".join(records)
        if len(joined) != len(records) * size:
            wrong = next(record for record in records if len(record) != size)
            self._problem(f"channel {segments[0][0]}: a record of {len(wrong)} bytes among records of {size}")
        elif size % 8:
            words = self._padded_rows(len(records))
            self._cells_of(words)[:] = np.frombuffer(joined, dtype=self._cell)
            self._check_words(words, segments)
        else:
            self._check_words(np.frombuffer(joined, np.uint64).reshape(len(records), -1), segments)

    def _flush_arrays(self) -> None:
        rows, segments = self._array_rows, self._array_segments
        if rows:
            self._array_rows, self._array_segments = 0, []
            self._check_words(self._array_words[:rows], segments)

    def _check_words(self, words: Words, segments: list[Segment]) -> None:
        self._checksum += int(np.add.reduce(words.reshape(-1)))
        self._check_order(words[:, 0], segments)

    def _check_order(self, index: Words, segments: list[Segment]) -> None:
        if self._rate_per_s is not None:
            self._measure(index, segments)
        breaks = self._breaks(index)
        if not len(breaks) and (len(segments) == 1 or self.lanes == 1):
            self._take_run(segments[0][0], int(index[0]), len(index))
            if self._rate_per_s is None:
                self._log(index, segments)
            return
        starts = np.cumsum(column([0, *(count for _, count, _ in segments)]))[:-1]
        runs = np.union1d(starts, breaks)
        if len(runs) > len(starts):
            owners = (np.searchsorted(starts, runs, side="right") - 1).tolist()
            counts = np.diff(runs, append=len(index)).tolist()
            segments = [(segments[at][0], count, segments[at][2]) for at, count in zip(owners, counts, strict=True)]
        awaited, step = self._next, self._step
        for (channel, count, _), first in zip(segments, index[runs].tolist(), strict=True):
            if first == awaited.get(channel) and not self._blocks:
                awaited[channel] = first + count * step
            else:
                self._take_run(channel, first, count)
        if self._rate_per_s is None:
            self._log(index, segments)

    def _breaks(self, index: Words) -> Int64s:
        texts: list[Int64s] = []
        for at in range(0, len(index) - 1, _SCRATCH_RECORDS):
            before, after = index[at : at + _SCRATCH_RECORDS], index[at + 1 : at + 1 + _SCRATCH_RECORDS]
            steps = np.subtract(after, before[: len(after)], out=self._steps[: len(after)])
            differs = np.not_equal(steps, self._step, out=self._differs[: len(after)])
            if differs.any():
                texts.append(np.flatnonzero(differs) + (at + 1))
        return np.concatenate(texts) if texts else column(())

    def _take_run(self, channel: int, first: int, count: int) -> None:
        awaited = self._next.get(channel)
        self._next[channel] = end = first + count * self._step
        if self._blocks:
            if awaited is not None and first < awaited:
                self._problem(f"channel {channel}: record {first} came after record {awaited - 1}")
            self._squares += squares_below(end) - squares_below(first)
            self._cubes += cubes_below(end) - cubes_below(first)
        elif awaited is None:
            if first >= self.lanes or first in self._starts:
                self._problem(
                    f"channel {channel}: starts with record {first}, earlier records were lost or on another channel"
                )
            self._starts.setdefault(first % self.lanes, channel)
        elif first != awaited:
            why = "lost or overtaken" if first > awaited else "repeated or late"
            self._problem(f"channel {channel}: record {first} came where {awaited} was due ({why})")

    def _log(self, index: Words, segments: list[Segment]) -> None:
        counts = column([count for _, count, _ in segments])
        firsts = index[np.cumsum(counts) - counts].view(np.int64)
        self.arrivals.log(self.sample_keys(firsts), counts, column([now for _, _, now in segments]))

    def _measure(self, index: Words, segments: list[Segment]) -> None:
        arrived = np.repeat([now for _, _, now in segments], [count for _, count, _ in segments])
        due = due_ns_many(self._start_ns, self._rate_per_s or 1.0, index)
        self.latency.record_many((arrived - due)[due >= self._latency_from_ns])

    def _problem(self, text: str) -> None:
        self._problem_count += 1
        if len(self._problems) < PROBLEMS_IN_WORDS:
            self._problems.append(text)


def _words_of(values: pa.Int64Array) -> Words:
    if values.null_count:
        raise ValueError(f"{values.null_count} of {len(values)} values of a columnar batch are null; none was sent")
    return np.frombuffer(values.buffers()[1], np.uint64)[values.offset : values.offset + len(values)]
