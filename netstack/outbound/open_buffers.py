"""The open buffers of a writer: opened at their first byte, finished when full, flushed when their time has come.

Takes: a result partition, the buffer timeout. Gives: BufferBuilders to fill; finished buffers and flushes to the
subpartitions, and the wish to send to the connections.

Slots: 0 .. C-1 are the subpartitions' builders, C is the broadcast builder, shared by all. Either kind may be open,
never both; switching finishes the other kind.

Buffer timeout: None: buffers leave when full. Above 0: the first unflushed byte of a slot gets a time at which the slot
is flushed (`flush_times`), which may be now; a writer in a hurry has one time for all (`flush_rounds`). 0: every record
flushes its slot at once; what is written before the connection takes the bytes rides in the same frame, and a producer
that never waits has them sent every 50 us (`SLICE_S`; 200 where sending takes long), which keeps latency low at little
cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

import numpy as np

from ..buffer.builder import BufferBuilder
from ..buffer.elements import EventBuffer
from ..buffer.segment import Segment
from ..events import DataType
from ..record.cells import Pen
from .flush_rounds import FlushRounds
from .flush_times import AT_ONCE, FlushTimes, LeadingEdge, Periodic
from .partition import ResultPartition

SLICE_S: Final = 50e-6
"""With a timeout of 0: how long bytes may wait for a producer that never waits; measured: 1.75 M records/s without, 3.3
M with."""

LONGEST_SLICE_S: Final = 200e-6
SEND_SHARE: Final = 8
"""Where sending takes longer, a slice lasts so many times what it took, up to the longest: an eighth goes into it."""

KICK_BUFFERS: Final = 16
"""Finished buffers after which the connections are asked to send: one gathering write takes 16 of 32 KiB."""


def _no_builder() -> BufferBuilder:
    """Stands where a slot has no open buffer, so that the per-record path needs no test for it: full at position 0."""
    builder = BufferBuilder(Segment(np.empty(0, np.uint8)), None, 0)
    builder.finish()
    return builder


_NONE: Final = _no_builder()

_NOTHING: Final = -1
"""The `limit` of a new buffer, of which nothing was flushed."""


@final
class OpenBuffers:
    """The open buffers of one partition, for `PartitionWriter` and its emissions.

    Attributes:
        partition: where they are queued.
        builders: of each slot; one that is full at position 0 stands for none.
        pens: of each slot's builder.
        ends_record: whether segments are taken beyond the quota, and beyond the pool's size, to end what was begun.
        waits_early: whether nothing is written while the pool has no segment at hand, as by Flink's writers; ours fill
            the open buffer.
        is_broadcasting: whether the broadcast builder is the one that may be open.
        rounds: of flushes, of a writer that stages records.
        next_kick: with a timeout of 0: from when on (in the host's ticks) a record asks the connections to send.
        on_lent_returned: told when memory lent by a batch was sent.
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
        "_open_slots",
        "_store",
        "_ticks",
        "_times",
        "_unkicked",
        "builders",
        "ends_record",
        "is_broadcasting",
        "next_kick",
        "on_lent_returned",
        "partition",
        "pens",
        "rounds",
        "waits_early",
    )

    def __init__(self, partition: ResultPartition, buffer_timeout_s: float | None) -> None:
        self.partition = partition
        self.ends_record = False
        self.rounds: FlushRounds | None = None
        self.next_kick = 0.0
        self.on_lent_returned: Callable[[], None] | None = None
        self._broadcast_slot = len(partition.subpartitions)
        slots = self._broadcast_slot + 1
        self.builders: list[BufferBuilder] = [_NONE] * slots
        self.pens: list[Pen] = [_NONE.pen] * slots
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
        self._unkicked = 0
        self._marks: dict[int, bytes] = {}  # events that follow what is written to a slot
        self._due: dict[float, list[int]] = {}  # slots to be flushed, by time
        self._due_at: list[float] = [0.0] * slots
        self._flushed_to: list[int] = [_NOTHING] * slots  # how far the open buffer was flushed last

    def targets(self, slot: int) -> tuple[Any, ...]:
        """The subpartitions behind a slot."""
        subpartitions = self.partition.subpartitions
        return subpartitions if slot == self._broadcast_slot else (subpartitions[slot],)

    def acquire(self, slot: int, overdraft: bool) -> Segment | None:
        """A segment charged to a slot; has the connections send before it gives up, or overdraws."""
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
        """Up to `count` segments charged to a subpartition; asks the connections to send before it gives up."""
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

    def open(self, slot: int, overdraft: bool) -> bool:
        """Opens a buffer for a slot and queues it at its first byte. Returns False when there is none.

        Of the overdraft it is only where a record that has taken a buffer needs another (or `ends_record`).

        Its capacity is what the consumer asked for (the least of what all consumers of a broadcast did), at most the
        segment; it does not follow when they ask for another. `Emission` makes it hold its first record.
        """
        segment = self.acquire(slot, overdraft)
        if segment is None:
            return False
        if self.waits_early and not self.partition.pool.is_available:
            for other in self.builders:
                if other is not _NONE:
                    other.settle()
                    other.limit = other.position  # its next record goes the slow way, where it has to wait
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
        builder.stays_armed = self.rounds is not None and self.rounds.is_active and slot != self._broadcast_slot
        first.add(consumer)
        return True

    def grow(self, slot: int, end: int) -> None:
        """Lets a record end, at position `end`, in the open buffer that was kept small, when there is no other for it.

        Otherwise its first part would leave and the rest wait for a buffer. Flink's rule (FLINK-33077) also adds a byte
        so that the buffer stays open, and grows it for record after record; here the buffer ends with the record,
        because a writer is held back between records: the wish stays in force under back-pressure.
        """
        builder = self.builders[slot]
        if builder is not _NONE and not self.partition.pool.is_available:
            builder.trim(end)

    def finish(self, slot: int, *, by_event: bool = False) -> None:
        """Finishes a slot's buffer, if it has one, and announces it."""
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
        self._unkicked += 1
        if self._unkicked >= KICK_BUFFERS:
            self.flush_connections()

    def count_unkicked(self, buffers: int = 1) -> None:
        """Buffers were finished: every few of them the connections are asked to send."""
        self._unkicked += buffers
        if self._unkicked >= KICK_BUFFERS:
            self.flush_connections()

    def flush_connections(self) -> None:
        """Has the connections send what is there."""
        self._unkicked = 0
        if not self._flush_always:
            self._host.flush_connections()
            return
        began = self._ticks()
        self._host.flush_connections()
        now = self._ticks()
        self.next_kick = now + min(max(SLICE_S, SEND_SHARE * (now - began)), LONGEST_SLICE_S)

    def after_write(self, slot: int) -> None:
        """Arms the flush of what was written last to a slot, and sends what has become full."""
        builder = self.builders[slot]
        taken = builder.limit
        if builder is not _NONE and taken < builder.position:  # there is something to flush
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
                if self._ticks() >= self.next_kick:
                    self.flush_connections()
        if self._unkicked:
            self.flush_connections()
            if self._store is not None:
                self._store.on_boundary()

    def switch(self, slot: int) -> None:
        """Goes over between the subpartitions' builders and the broadcast builder: finishes the other kind."""
        broadcasting = slot == self._broadcast_slot
        if broadcasting is not self.is_broadcasting:
            self.finish_all()
            self.is_broadcasting = broadcasting

    def finish_all(self, *, by_event: bool = False) -> None:
        """Finishes every open buffer."""
        if self._open_slots:
            for slot, builder in enumerate(self.builders):
                if builder is not _NONE:
                    self.finish(slot, by_event=by_event)

    def mark(self, slot: int, event: bytes) -> None:
        """Has an event travel as a record would that is written now: behind what is written, at its time.

        A mark of the same slot that still waits stays alone.
        """
        if self.is_broadcasting:
            slot = self._broadcast_slot
        if slot in self._marks:
            return
        self._marks[slot] = event
        builder = self.builders[slot]
        if self.rounds is not None and self.rounds.is_active and not self.is_broadcasting:
            return  # it leaves in the next round
        if self._due_at[slot] in self._due:
            return
        if self._times is not None and not self.targets(slot)[0].is_flushed:  # else it goes with what is taken next
            due = self._times.due(slot, builder is _NONE or builder.limit == self._flushed_to[slot])
            if due != AT_ONCE:
                self._await(slot, due)
                return
        elif self._times is None and not self._flush_always and builder is not _NONE:
            return  # it leaves when the buffer is full
        self._flush(slot)
        self.flush_connections()

    def flush_marked(self) -> None:
        """Has leave what a mark follows. What is staged was shared out."""
        for slot in list(self._marks):
            self._flush(slot)

    @property
    def has_marks(self) -> bool:
        """Whether a mark waits."""
        return bool(self._marks)

    def _follow(self, slot: int) -> None:
        """Queues the mark of a slot, if there is one: its buffer is finished."""
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
        """A time has come: flush every slot that is due."""
        if self.rounds is not None and self.rounds.should_begin:
            self._due.clear()
            self.on_flushed(self.rounds.begin())
            return
        now = self._host.now()
        flushed = 0
        for due in [due for due in self._due if due <= now]:
            for slot in self._due.pop(due):
                if self._due_at[slot] == due:  # else its buffer left before
                    self._flush(slot)
                    flushed += 1
        if flushed:
            self.on_flushed(flushed)

    def _flush(self, slot: int) -> None:
        """Has what is written to a slot sent, and the mark behind it."""
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
        """Has everything sent that is written."""
        for slot, builder in enumerate(self.builders):
            if builder is not _NONE:
                self._flush(slot)
        self.partition.flush_all()
        self.flush_connections()

    def on_flushed(self, buffers: int) -> None:
        """The time of so many had come: has the connections send what they hold."""
        self._counters.flushes_timeout += buffers
        self.flush_connections()

    def abandon(self) -> None:
        """Gives the open builders up (their bytes stay queued)."""
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
