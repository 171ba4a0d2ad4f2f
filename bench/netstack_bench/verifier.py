"""Verifies delivery while receiving: count, order on every channel, and a checksum of the received bytes.

- Verification must be cheap, or it would be what is measured: single records and small arrays are staged and checked in
  chunks by numpy; only large contiguous arrays are checked in place. Staging copies, so the caller may reuse its memory
  at once.
- The checksum is summed over the received bytes; the producer's is computed from the count
  (`netstack_bench.generator`).
- Problems are collected, the first few in words; nothing raises for a wrong delivery.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .arrivals import Arrivals, Int64s, column, round_robin_keys
from .generator import INDEX_BYTES, MASK
from .histogram import Histogram
from .pacing import clock_ns, due_ns_many

if TYPE_CHECKING:
    import pyarrow as pa

Words = npt.NDArray[np.uint64]
Segment = tuple[int, int, int]  # channel, records, arrival in ns

_STAGE_RECORDS = 4096
_PACED_RECORDS = 128  # at a rate: checking 4,096 takes a millisecond, which would show in every 200th latency
_STAGE_LIST_BYTES = 1024 * 1024
_STAGE_ARRAY_BYTES = 256 * 1024  # fits into the level-2 cache together with the scratch arrays
_DIRECT_BYTES = 128 * 1024  # a larger contiguous array is not worth a copy
_JOIN_BYTES = 32 * 1024  # above, summing each record in place is faster than joining them
_SCRATCH_RECORDS = 32 * 1024  # steps checked at once: few numpy calls, within the level-2 cache
_PROBLEMS_IN_WORDS = 5


class Order(enum.Enum):
    """How the producer distributes records over the channels."""

    ROUND_ROBIN = "round-robin"
    """Record i goes to channel (i + s) mod C: a channel carries exactly c, c + C, c + 2C, ..."""
    BLOCKS = "blocks"
    """Any record to any channel: indexes grow strictly on each channel, and all channels together have each index
    exactly once. Cheap if records come in blocks (columnar batches do).
    """


class Verifier:
    """Checks generated records (`netstack_bench.generator.Source`).

    Attributes:
        verified: how much of the arriving data is checked.
        latency: of every record against its due time (open loop only).
    """

    def __init__(
        self,
        *,
        record_bytes: int,
        channels: int = 1,
        order: Order = Order.ROUND_ROBIN,
        rate_per_s: float | None = None,
    ) -> None:
        """Creates the verifier of one run.

        Args:
            record_bytes: payload of every record.
            channels: logical channels, numbered from 0.
            order: how the producer distributes records.
            rate_per_s: open loop: measure every record against its due time.
        """
        self._record_bytes = record_bytes
        self._channels = channels
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
        self._end_of: dict[int, int] = {}  # blocks: ranges that arrived, by first index ...
        self._first_of: dict[int, int] = {}  # ... and by end
        self._problems: list[str] = []
        self._problem_count = 0
        self.verified = "all"
        self.arrivals = Arrivals()
        self.latency = Histogram()

    def begin(self, start_ns: int, latency_from_ns: int = 0) -> None:
        """Sets when record 0 is due, and from which due time on latencies count (after the warm-up)."""
        self._start_ns = start_ns
        self._latency_from_ns = latency_from_ns

    @property
    def received_records(self) -> int:
        """Records received so far."""
        return self.arrivals.records

    @property
    def payload_bytes(self) -> int:
        """Payload received so far."""
        return self.arrivals.records * self._record_bytes

    def feed(self, channel: int, records: Sequence[bytes | memoryview], now_ns: int | None = None) -> None:
        """Takes records of one channel that arrived together; the list may be reused, the records must not change."""
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
        """Takes an array of one channel; its memory may be reused after the call.

        Args:
            channel: the channel it arrived on.
            array: shape (n,) of any dtype as wide as a record, or uint8 of shape (n, record_bytes). Any strides, if
                each record is contiguous.
            now_ns: arrival time; None is now.
        """
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
        """Takes a columnar batch made by `Source.arrow`."""
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
        """Checks the staged records; no records may follow."""
        self._flush_records()
        self._flush_arrays()

    def problems(self, expected: dict[str, Any]) -> list[str]:
        """Everything wrong with the delivery, given `Source.expected` of the producer; empty if it is proven."""
        texts = list(self._problems)
        if self._problem_count > len(texts):
            texts.append(f"and {self._problem_count - len(texts)} more of this kind")
        records = int(expected["records"])
        if self.received_records != records:
            texts.append(f"{records} records were sent, {self.received_records} arrived")
        if self._checksum & MASK != expected["checksum"]:
            sums = f"{expected['checksum']:016x}, of what arrived {self._checksum & MASK:016x}"
            texts.append(f"checksum of what was sent is {sums}")
        texts.extend(self._missing_ranges(records) if self._blocks else self._missing_tails(records))
        return texts

    def sample_keys(self, indexes: Int64s) -> Int64s:
        """The keys of the records with these indexes in `arrivals`."""
        return indexes if self._blocks else round_robin_keys(indexes, self._channels)

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
        if not len(breaks) and (len(segments) == 1 or self._channels == 1):
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
            self._melt(first, end)
        elif awaited is None:
            if first >= self._channels or first in self._starts:
                self._problem(
                    f"channel {channel}: starts with record {first}, earlier records were lost or on another channel"
                )
            self._starts.setdefault(first % self._channels, channel)
        elif first != awaited:
            why = "lost or overtaken" if first > awaited else "repeated or late"
            self._problem(f"channel {channel}: record {first} came where {awaited} was due ({why})")

    def _melt(self, first: int, end: int) -> None:
        """Adds a received range, merged with its neighbours. Ranges that overlap others may replace them.

        The proof stays valid: the ranges received up to the end form a chain, so any record beyond it makes the count
        too large.
        """
        before = self._first_of.pop(first, None)
        if before is not None:
            self._end_of.pop(before, None)
            first = before
        after = self._end_of.pop(end, None)
        if after is not None:
            self._first_of.pop(after, None)
            end = after
        self._end_of[first] = end
        self._first_of[end] = first

    def _log(self, index: Words, segments: list[Segment]) -> None:
        counts = column([count for _, count, _ in segments])
        firsts = index[np.cumsum(counts) - counts].view(np.int64)
        self.arrivals.log(self.sample_keys(firsts), counts, column([now for _, _, now in segments]))

    def _measure(self, index: Words, segments: list[Segment]) -> None:
        arrived = np.repeat([now for _, _, now in segments], [count for _, count, _ in segments])
        due = due_ns_many(self._start_ns, self._rate_per_s or 1.0, index)
        self.latency.record_many((arrived - due)[due >= self._latency_from_ns])

    def _missing_ranges(self, records: int) -> list[str]:
        ranges = sorted(self._end_of.items())
        if ranges == ([(0, records)] if records else []):
            return []
        return [f"records 0 to {records - 1} were sent; these ranges arrived: {ranges[:_PROBLEMS_IN_WORDS]}"]

    def _missing_tails(self, records: int) -> list[str]:
        texts = []
        for start in range(min(self._channels, records)):
            channel = self._starts.get(start)
            end = start + -(-(records - start) // self._channels) * self._channels
            if channel is None:
                texts.append(f"record {start} and those after it on its channel never arrived")
            elif self._next[channel] != end:
                sent, came = end - self._channels, self._next[channel] - self._channels
                texts.append(f"channel {channel}: record {sent} was the last sent, {came} the last that arrived")
        return texts[:_PROBLEMS_IN_WORDS]

    def _problem(self, text: str) -> None:
        self._problem_count += 1
        if len(self._problems) < _PROBLEMS_IN_WORDS:
            self._problems.append(text)


def _words_of(values: pa.Int64Array) -> Words:
    if values.null_count:
        raise ValueError(f"{values.null_count} of {len(values)} values of a columnar batch are null; none was sent")
    return np.frombuffer(values.buffers()[1], np.uint64)[values.offset : values.offset + len(values)]
