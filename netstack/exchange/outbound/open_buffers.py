"""The open buffers of a writer: opened at the first byte, finished when full, flushed at their deadline.

Takes: a result partition, the buffer timeout. Gives: BufferBuilders to fill; finished buffers and flushes to the
subpartitions; flushes of the connections.

Slots: 0 .. C-1 are the subpartitions' builders, C is the shared broadcast builder. Subpartition builders and the
broadcast builder are never open together; `switch` finishes the other kind.

Buffer timeout: None: only full buffers are sent. Above 0: the first unflushed byte of a slot gets a flush time
(`flush_times`), possibly now; a busy writer has one flush time for all slots (`flush_rounds`). 0: every record flushes
its slot. Records written before the connection takes the bytes share its frame; a producer that never waits has its
connections flushed every 50 us (`SLICE_S`; up to 200 us where sending takes long), which keeps latency low at little
cost. A record after a pause (`PAUSES`) is sent at once, also within a slice: its producer has time for that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, final

import numpy as np

from ...base.events import DataType
from ..buffer.builder import BufferBuilder
from ..buffer.elements import EventBuffer
from ..buffer.segment import Segment
from ..record.fast_path import RecordPen
from .flush_times import AT_ONCE, FlushTimes, LeadingEdge, Periodic
from .partition import ResultPartition

SLICE_S: Final = 50e-6
"""With timeout 0: how long bytes of a producer that never waits stay unsent. Measured: 1.75 M records/s without slices,
3.3 M with them."""

LONGEST_SLICE_S: Final = 200e-6
SEND_SHARE: Final = 8
"""Where sending is slow, a slice is this multiple of the sending time, up to the longest: an eighth goes to sending."""

SHORTEST_PAUSE_S: Final = 10e-6
PAUSES: Final = 3
"""A pause is this multiple of the sending time, and at least the shortest. Measured at 20,000 records/s: if records
after a pause were not sent at once, every second one would wait 20 us longer, for the connection's own task."""

SEND_BUFFERS: Final = 16
"""Finished buffers after which the connections are flushed: one gathering write carries 16 of 32 KiB."""


def _no_builder() -> BufferBuilder:
    """Creates the builder of slots without an open buffer: full at position 0, so the per-record path needs no test."""
    builder = BufferBuilder(Segment(np.empty(0, np.uint8)), None, 0)
    builder.finish()
    return builder


_NONE: Final = _no_builder()

_NOTHING: Final = -1
"""The `limit` of a new buffer, of which nothing is flushed."""


@final
class OpenBuffers:
    """The open buffers of one partition, for `PartitionWriter` and its spanning writes.

    Attributes:
        builders: one for each slot; a builder that is full at position 0 means that none is open.
        pens: the pen of each slot's builder.
        ends_record: whether segments may exceed the quota and the pool's size, to complete a record.
        waits_early: whether writing stops while the pool has no free segment, as in Flink; otherwise the open buffer is
        filled first.
        is_broadcasting: whether the broadcast builder may be open, instead of the others.
        begin_rounds: called instead of the flush of what is due; returns how many buffers it flushed, or None if it
            began no flush rounds (`flush_rounds`).
        in_rounds: whether a next flush round is scheduled; every open buffer is then armed.
    """

    __slots__ = (
        "_broadcast_slot",
        "_counters",
        "_due",
        "_due_at",
        "_flush_always",
        "_flushed_to",
        "_host",
        "_marks",
        "_next_flush_at",
        "_open_slots",
        "_pause_s",
        "_store",
        "_ticks",
        "_times",
        "_unsent",
        "_written_at",
        "begin_rounds",
        "builders",
        "ends_record",
        "in_rounds",
        "is_broadcasting",
        "partition",
        "pens",
        "waits_early",
    )

    def __init__(self, partition: ResultPartition, buffer_timeout_s: float | None) -> None:
        self.partition = partition
        self.ends_record = False
        self.begin_rounds: Callable[[], int | None] | None = None
        self.in_rounds = False
        self._written_at = self._next_flush_at = self._pause_s = 0.0
        self._broadcast_slot = len(partition.subpartitions)
        slots = self._broadcast_slot + 1
        self.builders: list[BufferBuilder] = [_NONE] * slots
        self.pens: list[RecordPen] = [_NONE.pen] * slots
        self.waits_early = partition.as_flink and partition.store is None
        self._open_slots = 0
        self.is_broadcasting = False
        self._times: FlushTimes | None = None
        if buffer_timeout_s:
            self._times = (
                Periodic(partition.host, buffer_timeout_s)
                if partition.as_flink
                else LeadingEdge(partition.host, buffer_timeout_s, slots)
            )
        self._flush_always = buffer_timeout_s == 0
        self._host = partition.host
        self._ticks = partition.host.ticks
        self._counters = partition.counters
        partition.counters.builders = self.builders
        self._store = partition.store
        self._unsent = 0
        self._marks: dict[int, bytes] = {}  # events to queue behind the present bytes of a slot
        self._due: dict[float, list[int]] = {}  # slots to flush, by time
        self._due_at: list[float] = [0.0] * slots
        self._flushed_to: list[int] = [_NOTHING] * slots  # position of the last flush in the open buffer

    def targets(self, slot: int) -> tuple[Any, ...]:
        """The subpartitions of a slot."""
        subpartitions = self.partition.subpartitions
        return subpartitions if slot == self._broadcast_slot else (subpartitions[slot],)

    def acquire(self, slot: int, overdraft: bool) -> Segment | None:
        """Acquires a segment charged to a slot. Flushes the connections before it fails or overdraws."""
        pool = self.partition.pool
        if pool.is_over_quota and not self.ends_record:
            self.flush_connections()
            if pool.is_over_quota:
                return None
        charged = 0 if slot == self._broadcast_slot else slot
        segment = pool.try_acquire(charged)
        if segment is None:
            self.flush_connections()
            segment = pool.try_acquire(charged, overdraft or self.ends_record)
        return segment

    def acquire_many(self, slot: int, count: int) -> list[Segment]:
        """Acquires up to `count` segments charged to a subpartition. Flushes the connections before it fails."""
        pool = self.partition.pool
        if pool.is_over_quota:
            self.flush_connections()
            if pool.is_over_quota:
                return []
        segments = pool.try_acquire_many(count, slot)
        if not segments:
            self.flush_connections()
            segments = pool.try_acquire_many(count, slot)
        return segments

    def overdraw_many(self, slot: int, count: int) -> list[Segment]:
        """Acquires up to `count` overdraft segments for a subpartition, after `acquire_many` has flushed and failed."""
        pool = self.partition.pool
        segments: list[Segment] = []
        while len(segments) < count and (self.ends_record or not pool.is_over_quota):
            segment = pool.try_acquire(slot, overdraft=True)
            if segment is None:
                break
            segments.append(segment)
        return segments

    def open(self, slot: int, overdraft: bool) -> bool:
        """Opens a buffer for a slot and queues it. Returns False when no segment is available.

        Overdraft is used only if a record that has taken a buffer needs another one (or `ends_record`).

        The capacity is what the consumer requested (in a broadcast the least of all consumers), at most the segment. A
        later request does not change it. `SpanningWrite` enlarges it to hold its first record.
        """
        segment = self.acquire(slot, overdraft)
        if segment is None:
            return False
        if self.waits_early and not self.partition.pool.is_available:
            for other in self.builders:
                if other is not _NONE:
                    other.settle()
                    other.limit = other.position  # its next record takes the slow path, which waits
        builder = BufferBuilder(segment, self.partition.pool, 0 if slot == self._broadcast_slot else slot)
        self.builders[slot] = builder
        self.pens[slot] = builder.pen
        self._open_slots += 1
        consumer = builder.create_consumer()
        first, *others = self.targets(slot)
        wanted = first.buffer_size
        for subpartition in others:
            wanted = min(wanted, subpartition.buffer_size)
            subpartition.add(consumer.copy())
        if wanted < builder.capacity:
            builder.trim(wanted)
        builder.limit = _NOTHING  # armed by `after_write`
        builder.stays_armed = self.in_rounds and slot != self._broadcast_slot
        first.add(consumer)
        return True

    def grow(self, slot: int, end: int) -> None:
        """Enlarges an open buffer of reduced capacity up to position `end` when the pool has no other buffer.

        Otherwise the first part of the record would leave while the rest waits for a buffer. Flink's rule (FLINK-33077)
        adds another byte so that the buffer stays open, and enlarges it for every further record. Here the buffer ends
        with the record, because a writer blocks between records: the requested size holds under back-pressure.
        """
        builder = self.builders[slot]
        if builder is not _NONE and not self.partition.pool.is_available:
            builder.trim(end)

    def finish(self, slot: int, *, by_event: bool = False) -> None:
        """Finishes the open buffer of a slot, if any, and announces it."""
        builder = self.builders[slot]
        if builder is _NONE:
            return
        self.builders[slot] = _NONE
        self.pens[slot] = _NONE.pen
        self._due_at[slot] = 0.0
        self._flushed_to[slot] = _NOTHING
        if self._times is not None:
            self._times.on_left(slot)
        self._open_slots -= 1
        counters = self._counters
        counters.buffers += 1
        targets = self.targets(slot)
        written = builder.finish()
        counters.counted += builder.records
        counters.bytes += written
        counters.slots[slot] += written
        if by_event:
            counters.flushes_event += 1
        else:
            counters.flushes_full += 1
        builder.close()
        if not by_event or self._store is not None:  # else the event follows at once, and notifies the reader
            for subpartition in targets:
                subpartition.on_buffer_finished()
        if self._marks:
            self._follow(slot)
        self._unsent += 1
        if self._unsent >= SEND_BUFFERS:
            self.flush_connections()

    def count_unsent(self, buffers: int = 1) -> None:
        """Counts finished buffers; flushes the connections after every `SEND_BUFFERS`."""
        self._unsent += buffers
        if self._unsent >= SEND_BUFFERS:
            self.flush_connections()

    def flush_connections(self) -> None:
        """Makes the connections send what is available."""
        self._unsent = 0
        if not self._flush_always:
            self._host.flush_connections()
            return
        began = self._ticks()
        self._host.flush_connections()
        self._written_at = now = self._ticks()
        sending_s = now - began
        self._pause_s = max(SHORTEST_PAUSE_S, PAUSES * sending_s)
        self._next_flush_at = now + min(max(SLICE_S, SEND_SHARE * sending_s), LONGEST_SLICE_S)

    def flush_when_due(self) -> float:
        """With timeout 0, after a record: makes the connections send if the slice is over, or there was a pause.

        Returns:
            Seconds since the call for the last record.
        """
        now = self._ticks()
        gap_s = now - self._written_at
        if now >= self._next_flush_at or gap_s >= self._pause_s:
            self.flush_connections()
        else:
            self._written_at = now
        return gap_s

    def after_write(self, slot: int) -> None:
        """Arms the flush of what was written last to a slot, and sends full buffers."""
        builder = self.builders[slot]
        taken = builder.limit
        if builder is not _NONE and taken < builder.position:  # there are unflushed bytes
            if not self.waits_early or self.partition.pool.is_available:
                builder.limit = builder.capacity
            if builder.stays_armed:
                pass  # the next round flushes it
            elif self._times is not None:
                due = self._times.due(slot, taken == self._flushed_to[slot])
                if due == AT_ONCE:
                    self._flush(slot)
                    self.on_flushed(1)
                else:
                    self._await(slot, due)
            elif self._flush_always:
                for subpartition in self.targets(slot):
                    subpartition.flush(is_written=True)
                self.flush_when_due()
        if self._unsent:
            self.flush_connections()
            if self._store is not None:
                self._store.on_boundary()

    def disarm(self) -> None:
        """Makes the next record of every slot take the slow path (`PartitionWriter.try_emit_slowly`)."""
        for builder in self.builders:
            if builder is not _NONE:
                builder.settle()
                builder.limit = _NOTHING

    def switch(self, slot: int) -> None:
        """Finishes the subpartitions' builders before a broadcast, or the broadcast builder before other records."""
        broadcasting = slot == self._broadcast_slot
        if broadcasting is not self.is_broadcasting:
            self.finish_all()
            self.is_broadcasting = broadcasting

    def finish_all(self, *, by_event: bool = False) -> None:
        """Finishes every open buffer, and queues the waiting events of all slots."""
        if self._open_slots:
            for slot, builder in enumerate(self.builders):
                if builder is not _NONE:
                    self.finish(slot, by_event=by_event)
        if self._marks:  # of slots without a buffer: later they might stand behind the open buffer of another slot
            for slot in list(self._marks):
                self._follow(slot)

    def mark(self, slot: int, event: bytes) -> None:
        """Queues an event behind the bytes written to a slot, when a record written now would be flushed.

        A slot holds one such event: while one waits, further ones are dropped.
        """
        if self.is_broadcasting:
            slot = self._broadcast_slot
        if slot in self._marks:
            return
        self._marks[slot] = event
        builder = self.builders[slot]
        if self.in_rounds and not self.is_broadcasting:
            return  # it leaves in the next round
        if self._due_at[slot] in self._due:
            return
        if self._times is not None and not self.targets(slot)[0].is_flushed:  # a flushed slot leaves at the next poll
            due = self._times.due(slot, builder is _NONE or builder.limit == self._flushed_to[slot])
            if due != AT_ONCE:
                self._await(slot, due)
                return
        elif self._times is None and not self._flush_always and builder is not _NONE:
            return  # it leaves with the full buffer
        self._flush(slot)
        self.flush_connections()

    def flush_marked(self) -> None:
        """Flushes the slots with a waiting event. Staged records must have been distributed."""
        for slot in list(self._marks):
            self._flush(slot)

    @property
    def has_marks(self) -> bool:
        """Whether an event waits (`mark`)."""
        return bool(self._marks)

    @property
    def waiting_marks(self) -> Collection[bytes]:
        """The events that wait for the flush of their slot (`mark`)."""
        return self._marks.values()

    def _follow(self, slot: int) -> None:
        """Queues the waiting event of a slot, if any; the slot's buffer is finished."""
        event = self._marks.pop(slot, None)
        if event is not None:
            self._counters.events += 1
            for subpartition in self.targets(slot):
                subpartition.add(EventBuffer(event, DataType.EVENT))

    def _await(self, slot: int, due: float) -> None:
        if self._due_at[slot] == due:
            return
        self._due_at[slot] = due
        slots = self._due.get(due)
        if slots is None:
            self._due[due] = [slot]
            self._host.call_at(due, self._on_due)
        else:
            slots.append(slot)

    def _on_due(self) -> None:
        """Flushes every slot that is due."""
        if self.begin_rounds is not None:
            flushed = self.begin_rounds()
            if flushed is not None:
                self._due.clear()
                self.on_flushed(flushed)
                return
        now = self._host.now()
        flushed = 0
        for due in [due for due in self._due if due <= now]:
            for slot in self._due.pop(due):
                if self._due_at[slot] == due:  # else its buffer left earlier
                    self._flush(slot)
                    flushed += 1
        if flushed:
            self.on_flushed(flushed)

    def _flush(self, slot: int) -> None:
        """Flushes a slot, and queues its waiting event."""
        if slot in self._marks and self.builders[slot] is not _NONE:
            self.finish(slot, by_event=True)
            return
        self._due_at[slot] = 0.0
        self._flushed_to[slot] = self.builders[slot].written_bytes
        if self._times is not None:
            self._times.on_left(slot)
        for subpartition in self.targets(slot):
            subpartition.flush()
        self._follow(slot)

    def flush_all(self) -> None:
        """Flushes everything that is written."""
        for slot, builder in enumerate(self.builders):
            if builder is not _NONE:
                self._flush(slot)
        self.partition.flush_all()
        self.flush_connections()

    def on_flushed(self, buffers: int) -> None:
        """Counts buffers flushed by the timeout, and flushes the connections."""
        self._counters.flushes_timeout += buffers
        self.flush_connections()

    def abandon(self) -> None:
        """Finishes the open builders (their bytes stay queued), or drops them when the partition is released."""
        if not self.partition.is_released:
            self.finish_all(by_event=True)
            for subpartition in self.partition.subpartitions:  # no event follows
                subpartition.on_buffer_finished()
            return
        for slot, builder in enumerate(self.builders):
            if builder is not _NONE:
                self.builders[slot] = _NONE
                self.pens[slot] = _NONE.pen
                builder.finish()
                self._counters.counted += builder.records
                builder.close()
        self._open_slots = 0
