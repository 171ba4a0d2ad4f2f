"""BatchPlanner: splits arrays of records among the slots of a `PartitionWriter`.

Takes: arrays of records. Gives: spanning writes and shares, in the order of writing; the result equals emitting each
record alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import numpy.typing as npt

from ...base.errors import RecordError
from ..buffer.lent import LentBuffers, PieceCursor
from ..record.fast_path import write_shares
from ..record.framing import PREFIX_BYTES, FramedBatch, check_record_bytes, framed_whole, head_of, template
from ..record.runs import FramedRuns
from ..record.stream_records import with_heads
from .shares import Shares
from .spanning_write import Rows, SpanningWrite, framed_rows

if TYPE_CHECKING:
    from ..record.formats import RecordFormat
    from .open_buffers import OpenBuffers
    from .selector import ChannelSelector

LENT_BUFFERS: Final = 8
"""Small records of an array that fills so many buffers are sent from its own memory; copying fewer is faster than
waiting until they were sent."""

LENT_RUN_BUFFERS: Final = 32
"""Buffers that the longest run of small records fills if they are sent from their own memory. A writer must complete a
run that it has begun, and copies the rest of one that is cancelled."""

LEND_BYTES: Final = 8 * 1024
"""Records of at least this size are sent without being copied into a buffer first."""

SHARE: Final = 4
"""A batch with less than this fraction of a buffer for each channel is ordered as a whole."""

WHOLE_BYTES: Final = 16 * 1024 * 1024
"""A larger batch is not ordered as a whole: copying it would delay its first record."""

_SMALL_SHARE: Final = 8
"""Batches with fewer records per channel are written record by record: an array operation costs as much as that many
records."""

PORTIONS: Final = 8
"""A batch for a partition in files is written in parts of 1/8 of the pool, so that regions can be cut in between."""


@final
class BatchPlanner:
    """Splits the batches of one writer."""

    def __init__(
        self,
        buffers: OpenBuffers,
        selector: ChannelSelector,
        fixed_slot: int | None,
        format: RecordFormat,
        lend_bytes: int,
        settle: Callable[[], None],
    ) -> None:
        """Plans for a writer.

        Args:
            buffers: the writer's open buffers.
            selector: chooses the slot of each record, unless all go to `fixed_slot`.
            fixed_slot: the slot of all records; None: the selector chooses.
            format: encodes records, without the heads of Flink's records.
            lend_bytes: records of at least this size are sent from their own memory.
            settle: distributes the staged records before another write.
        """
        partition = buffers.partition
        self._buffers = buffers
        self._builders = buffers.builders
        self._partition = partition
        self._selector = selector
        self._fixed_slot = fixed_slot
        self._format = format
        self._lend_bytes = lend_bytes
        self._settle = settle
        self._has_heads = partition.as_flink
        self._count = len(partition.subpartitions)
        self._max_record_bytes = partition.max_record_bytes

    def portions(self, batch: npt.NDArray[Any]) -> Iterable[npt.NDArray[Any]]:
        """Splits a batch so that regions can be cut between the parts, if the partition is in files."""
        if self._partition.store is None:
            return (batch,)
        pool = self._partition.pool
        record_bytes = max(1, batch.nbytes // max(1, len(batch)))
        step = max(1, pool.size * pool.segment_size_bytes // PORTIONS // record_bytes)
        return (batch[start : start + step] for start in range(0, len(batch), step))

    def plan_batch(self, array: npt.NDArray[Any], lent: list[LentBuffers]) -> Iterator[tuple[int, int, SpanningWrite]]:
        """Yields (slot, records, write) in the order of writing; the result equals emitting the records one by one.

        Args:
            array: one record per element, or per row for a two-dimensional uint8 array.
            lent: receives buffers over the array's own memory; they must be returned before the array may change.
        """
        self._settle()
        rows = self.rows_of_batch(array)
        count = len(rows)
        if not count:
            return
        if self._fixed_slot is not None:
            self._buffers.switch(self._fixed_slot)
            yield from self._plan_rows(self._fixed_slot, rows, lent)
            return
        self._buffers.switch(0)
        selector = self._selector
        if selector.is_round_robin:
            first = selector.advance(count)
            channels = self._count
            for step in range(min(channels, count)):
                slot = (first + step) % channels
                if self._has_runs(rows.shape[1]):
                    runs = FramedRuns(rows, step, channels)
                    yield slot, runs.left, self._write_of_runs(slot, runs)
                    continue
                yield from self._plan_rows(slot, np.ascontiguousarray(rows[step::channels]), None)
            return
        chosen = selector.select_batch(array)
        if isinstance(chosen, int):
            yield from self._plan_rows(chosen, rows, lent)
            return
        order = np.argsort(chosen, kind="stable")
        ends = np.cumsum(np.bincount(chosen, minlength=self._count))
        start = 0
        for slot, end in enumerate(ends.tolist()):
            if end > start:
                yield from self._plan_rows(slot, rows.take(order[start:end], 0), None)
            start = end

    def is_scattered_batch(self, array: npt.NDArray[Any]) -> bool:
        """Whether a batch goes to so many channels that it is framed as a whole and then distributed (`plan_shares`).

        Array operations for each channel would cost more than copying the whole batch.
        """
        most = self._partition.pool.segment_size_bytes // SHARE * self._count
        return self._fixed_slot is None and array.nbytes < most and array.nbytes <= WHOLE_BYTES

    def plan_shares(self, array: npt.NDArray[Any]) -> Iterator[Shares]:
        """Yields the shares of all slots in the order of writing, equal to emitting one by one; copies the bytes."""
        self._settle()
        rows = self.rows_of_batch(array)
        count = len(rows)
        if not count:
            return
        self._buffers.switch(0)
        channels = self._count
        if self._selector.is_round_robin:
            first = self._selector.advance(count)
            whole = count // channels
            slots = [*range(first, channels), *range(first)]
            if whole:
                yield self._shares(slots, [whole] * channels, rows_by_channel(rows[: whole * channels], channels))
            left = count - whole * channels
            yield self._shares(slots[:left], [1] * left, rows[whole * channels :])
            return
        chosen = self._selector.select_batch(array)
        if isinstance(chosen, int):
            yield self._shares([chosen], [count], rows)
            return
        counts: list[int] = np.bincount(chosen, minlength=channels).tolist()
        yield self._shares([*range(channels)], counts, rows.take(np.argsort(chosen, kind="stable"), 0))

    def _shares(self, slots: list[int], counts: list[int], rows: Rows) -> Shares:
        has_runs = self._has_runs(rows.shape[1])
        return Shares(slots, counts, rows.shape[1], has_runs, rows.reshape(-1).data if has_runs else framed_whole(rows))

    def write_shares(self, shares: Shares) -> bool:
        """Writes shares while the open buffers have room. Returns whether all are written (`try_emit`)."""
        builders, pens = self._builders, self._buffers.pens
        slots, counts, width, has_runs = shares.slots, shares.counts, shares.width, shares.has_runs
        while True:
            shares.index, shares.offset = write_shares(
                pens, slots, counts, shares.index, shares.body, shares.offset, width, has_runs
            )
            if shares.index == len(slots):
                return True
            builder = builders[slots[shares.index]]
            builder.settle()
            if builder.position + shares.next_bytes >= builder.limit:
                return False
            builder.is_pen_open = True
            builder.pen.begin(builder.position, builder.limit)

    def write_of_share(self, shares: Shares) -> tuple[int, int, SpanningWrite]:
        """Returns (slot, records, write) of the next share; the caller writes it, with waits."""
        slot, records = shares.slots[shares.index], shares.counts[shares.index]
        framed = shares.take()
        total = len(framed)

        def write(start: int, stop: int, out: memoryview) -> None:
            out[:] = framed[start:stop]

        if shares.has_runs:
            whole = SpanningWrite(self._buffers, slot, total, total, write, None, None, unit_records=records)
            return slot, records, whole
        return slot, records, SpanningWrite(self._buffers, slot, total, total // records, write, None, None)

    def rows_of_batch(self, array: npt.NDArray[Any]) -> Rows:
        """Converts a batch to rows of bytes.

        Raises:
            RecordError: its elements are not records of the writer's format.
            LocalProtocolError: the partition is finished or released.
        """
        self._partition.check_writable()
        wanted = self._format.numpy_dtype
        # To numpy, None is another name of float64.
        if self._format.name != "bytes" and (wanted is None or array.dtype != wanted):
            raise RecordError(
                f"an array of {array.dtype} is not a batch of {self._format.name} records:"
                + (f" give {wanted}" if wanted is not None else " their width varies; emit them one by one")
            )
        rows = with_heads(rows_of(array)) if self._has_heads else rows_of(array)
        check_record_bytes(rows.shape[1], self._max_record_bytes)
        return rows

    def slots_of_batch(self, array: npt.NDArray[Any], count: int) -> list[int]:
        """The slots of `count` records, as if each had been emitted alone."""
        self._settle()
        if self._fixed_slot is not None:
            return [self._fixed_slot] * count
        if self._selector.is_round_robin:
            first = self._selector.advance(count)
            return [(first + index) % self._count for index in range(count)]
        chosen = self._selector.select_batch(array)
        return [chosen] * count if isinstance(chosen, int) else chosen.tolist()

    def is_small_batch(self, count: int) -> bool:
        """Whether a batch is faster to write record by record."""
        return self._fixed_slot is None and count < _SMALL_SHARE * self._count

    def _has_runs(self, record_bytes: int) -> bool:
        """Whether records of this length are written as runs."""
        return self._partition.has_runs and 0 < record_bytes < LEND_BYTES

    def _write_of_runs(self, slot: int, runs: FramedRuns) -> SpanningWrite:
        return SpanningWrite(self._buffers, slot, 0, 0, None, None, None, runs=runs)

    def _plan_rows(
        self, slot: int, rows: Rows, lent: list[LentBuffers] | None
    ) -> Iterator[tuple[int, int, SpanningWrite]]:
        """Yields (slot, records, write) of rows that all go to one slot.

        Rows that were copied for this call (`lent` is None) belong to it; otherwise they belong to the caller.
        """
        buffers, width = self._buffers, rows.shape[1]
        if self._has_runs(width):
            most = max(1, LENT_RUN_BUFFERS * self._partition.pool.segment_size_bytes // width)
            while self._lends_run(slot, rows):
                part, rows = rows[:most], rows[most:]
                head = head_of(len(part), width)
                total = len(head) + part.nbytes
                cursor = PieceCursor((head, part.reshape(-1).data))
                whole = SpanningWrite(buffers, slot, total, total, None, cursor, lent, unit_records=len(part))
                yield slot, len(part), whole
            if len(rows):
                yield slot, len(rows), self._write_of_runs(slot, FramedRuns(rows))
            return
        cell = width + PREFIX_BYTES
        total = len(rows) * cell
        if width >= self._lend_bytes and slot != self._count:
            write = SpanningWrite(buffers, slot, total, cell, None, PieceCursor(framed_rows(rows)), lent)
        else:
            write = SpanningWrite(buffers, slot, total, cell, FramedBatch(rows).write, None, None)
        yield slot, len(rows), write

    def _lends_run(self, slot: int, rows: Rows) -> bool:
        """Whether the next rows are sent from their own memory: many, for a consumer that wants full buffers."""
        partition = self._partition
        size = partition.pool.segment_size_bytes
        return (
            rows.nbytes >= LENT_BUFFERS * size
            and partition.store is None
            and slot != self._count
            and partition.subpartitions[slot].buffer_size >= size
        )


def rows_by_channel(rows: Rows, channels: int) -> Rows:
    """Reorders the rows of a round robin by channel; each channel has the same number of rows."""
    count, width = rows.shape
    dtype = template(width).payload_dtype
    if dtype is None:
        by_channel = rows.reshape(count // channels, channels, width).swapaxes(0, 1)
        return np.ascontiguousarray(by_channel).reshape(count, width)
    items = rows.reshape(-1).view(dtype).reshape(count // channels, channels)
    return np.ascontiguousarray(items.T).view(np.uint8).reshape(count, width)


def rows_of(array: npt.NDArray[Any]) -> Rows:
    """An array of fixed-width records as a contiguous (records, bytes) array; copied only if not contiguous.

    Raises:
        RecordError: the array has Python objects, or is neither one-dimensional nor a two-dimensional uint8 array.
    """
    if array.dtype.hasobject:
        raise RecordError(
            f"an array of {array.dtype} holds Python objects; give fixed-width elements, or emit one by one"
        )
    if array.ndim == 2 and array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if array.ndim != 1:
        raise RecordError(
            f"an array of shape {array.shape} and type {array.dtype} is not a batch of records; give one dimension"
            " (a record per element) or two dimensions of uint8 (a record per row)"
        )
    width = array.dtype.itemsize
    return np.ascontiguousarray(array).view(np.uint8).reshape(len(array), width)
