"""PartitionWriter, the synchronous half of `RecordWriter`: writes records and batches into a partition's buffers.

Takes: records (or arrays of records), a selector, the buffer timeout. Gives: committed bytes in BufferBuilders,
finished buffers and flushes to the subpartitions.

A record goes into the open buffer of its subpartition, which is queued from its first byte on. The buffer's pen writes
it after one comparison (`exchange/record/fast_path`), and the buffer commits it before the next read. All other cases
(no buffer open, buffer full, flush to arm, torn record to complete) fail that comparison and take the slow path, once
per buffer or per flush.

`OpenBuffers` defines slots and the buffer timeout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...base.errors import ConfigError, LocalProtocolError
from ...base.events import Event
from ...base.text.safe_text import type_text
from ..buffer.lent import PieceCursor
from ..record.fast_path import emitter
from ..record.formats import RecordFormat, encoder_of, kind_of
from ..record.framing import (
    LENGTH,
    MAX_RECORD_BYTES,
    PREFIX_BYTES,
    check_record_bytes,
    packer,
)
from ..record.stream_records import StreamRecords
from .batches import LEND_BYTES, BatchPlanner
from .emitter import SlowEmitter, StagingEmitter
from .flush_rounds import FlushRounds
from .open_buffers import OpenBuffers
from .partition import ResultPartition
from .selector import ChannelSelector
from .spanning_write import SMALL_PIECE_BYTES, Payload, SpanningWrite, is_immutable
from .staging import FROM_CHANNELS, Staging


class PartitionWriter:
    """The part of `RecordWriter` that never waits; one for each partition. Internal."""

    def __init__(
        self,
        partition: ResultPartition,
        *,
        selector: ChannelSelector,
        format: RecordFormat,
        buffer_timeout_s: float | None,
        refuse: type[Exception],
    ) -> None:
        """Takes over the partition.

        Args:
            partition: the partition to write to.
            selector: set up here for the subpartitions.
            format: encodes records.
            buffer_timeout_s: the buffer timeout in seconds (`open_buffers`).
            refuse: exception that `emit_nowait` raises when no buffer is available.
        """
        self.partition = partition
        self.buffers = OpenBuffers(partition, buffer_timeout_s)
        self._builders = self.buffers.builders  # the list itself, which saves a look-up for each record
        self._count = len(partition.subpartitions)
        selector.setup(self._count)
        selector.observe(partition.subpartitions)
        self.selector = selector
        self.format = StreamRecords(format) if partition.as_flink else format
        self._select = selector.select
        self.fixed_slot = self._count if selector.is_broadcast else 0 if self._count == 1 else None
        """The slot of all records; None: the selector chooses."""
        self.flush_always = buffer_timeout_s == 0
        self._counters = partition.counters
        self._max_record_bytes = partition.max_record_bytes
        self.lend_bytes = LEND_BYTES if partition.store is None else MAX_RECORD_BYTES + 1  # a store needs copies
        if partition.store is not None:
            partition.store.on_cut = self.buffers.finish_all
        self._torn: SpanningWrite | None = None
        self.refused: list[tuple[Any, int]] = []
        """The last refused record and its slot; empty if the last record found a buffer."""
        self.is_emitting = False
        """Whether a spanning write is incomplete: nothing else may be written before it."""
        self.overdraws = False
        """Whether the first buffer of a record may be overdraft: the task checks for room only before a group of
        records."""
        self.is_deserted = False
        """Whether it refuses every record, because all consumers have left."""
        self._staging: Staging | None = None
        if (
            selector.is_round_robin
            and self.fixed_slot is None
            and self._count >= FROM_CHANNELS
            and not self.flush_always
            and partition.store is None
        ):
            self._staging = Staging(self.buffers, selector)
            partition.stage(self._staging)
            if buffer_timeout_s is not None:
                self.buffers.begin_rounds = FlushRounds(self.buffers, self._staging, buffer_timeout_s).begin
        self.batches = BatchPlanner(self.buffers, selector, self.fixed_slot, format, self.lend_bytes, self.settle)
        self.format_name = format.name
        self.try_emit = self._emitter(None)
        """`try_emit(record)` writes a record, whole or not at all; returns False when no buffer is available for it.
        Raises RecordError: the record does not fit the format; LocalProtocolError: the partition is finished or
        released; PoolDestroyed: it failed or was released meanwhile. Nothing was written then.
        """
        self.emit_nowait = self._emitter(refuse)
        """Like `try_emit`, but raises `refuse` when no buffer is available: continue with `await emit(record)`."""

    # One record.

    def _emitter(self, refuse: type[Exception] | None) -> Callable[[Any], bool]:
        emit = emitter(
            self.buffers.pens,
            kind_of(self.format),
            -1 if self.fixed_slot is None else self.fixed_slot,
            encoder_of(self.format),
            self._select,
            self.refused,
            self.slot_of_retry,
            SlowEmitter(self.buffers, self.try_emit_slowly, self.refused, refuse, flush_always=self.flush_always).emit,
        )
        if self._staging is None:
            return emit
        return StagingEmitter(self._staging, self.format, self.can_stage, emit).emit

    def can_stage(self) -> bool:
        """Whether no record is incomplete, so that a record could be written at once."""
        return self._torn is None and not (self.refused or self.is_emitting or self.is_deserted)

    def settle(self) -> None:
        """Distributes the staged records before another write."""
        if self._staging is not None:
            self._staging.close()

    def slot_of_retry(self, record: Any) -> int:
        """The slot of a record that may have just been refused: the selector is called once for each record."""
        refused, slot = self.refused.pop()
        return slot if refused is record else self._select(record)

    def forget_refused(self) -> None:
        """Forgets the refused record, which is not retried: another record gets its turn."""
        if self.refused and self.selector.is_round_robin:
            self.selector.advance(-1)
        self.refused.clear()

    def try_emit_slowly(self, slot: int, payload: Payload, size: int) -> bool:
        """Writes an encoded record to a slot with a settled buffer; handles all cases. Returns as `try_emit`."""
        if self.is_emitting or (self._torn is not None and not self.complete_torn()):
            return False
        self.partition.check_writable()
        check_record_bytes(size, self._max_record_bytes)
        if self.is_deserted:
            return False
        buffers = self.buffers
        if buffers.waits_early and not self._can_begin(0):
            buffers.flush_connections()
            if not self._can_begin(0):
                return False
        if (slot == self._count) is not buffers.is_broadcasting:
            buffers.switch(slot)
        builder = self._builders[slot]  # settled by the caller
        start = builder.position
        end = start + size + PREFIX_BYTES
        if builder.capacity < end <= len(builder.memory):
            buffers.grow(slot, end)
        if end <= builder.capacity:
            LENGTH.pack_into(builder.memory, start, size)
            builder.memory[start + PREFIX_BYTES : end] = payload
            builder.position = end
            if end == builder.capacity:
                buffers.finish(slot)
        else:
            pool = self.partition.pool
            write = self.write_of_record(slot, [payload], size)
            wanted = -(-(end - builder.capacity) // pool.segment_size_bytes)
            if not self._can_begin(wanted):
                buffers.flush_connections()
                if not self._can_begin(wanted):
                    return False
            buffers.ends_record = True  # checked between records: this record must be written whole
            complete = write.advance()
            buffers.ends_record = False
            if not complete:
                raise LocalProtocolError(f"{wanted} buffers were taken meanwhile; use one writer for a partition")
        self._counters.counted += 1
        buffers.after_write(slot)
        return True

    def _can_begin(self, wanted: int) -> bool:
        """Whether a record that needs `wanted` more buffers can be written whole; its first is no overdraft."""
        pool = self.partition.pool
        if pool.is_over_quota or not (pool.is_available or self.overdraws):
            return False
        return pool.can_acquire(wanted)

    def write_of_record(self, slot: int, pieces: list[Payload], size: int) -> SpanningWrite:
        """Creates the spanning write of one record of any size."""
        total = size + PREFIX_BYTES
        if size >= self.lend_bytes and slot != self._count and all(map(is_immutable, pieces)):
            kept = [
                piece if isinstance(piece, bytes) or len(piece) >= SMALL_PIECE_BYTES else bytes(piece)
                for piece in pieces
            ]
            return SpanningWrite(self.buffers, slot, total, total, None, PieceCursor([LENGTH.pack(size), *kept]), None)
        cursor = PieceCursor([LENGTH.pack(size), *pieces])

        def copy(start: int, stop: int, out: memoryview) -> None:
            position = 0
            for piece in cursor.take(stop - start):
                out[position : position + len(piece)] = piece
                position += len(piece)

        return SpanningWrite(self.buffers, slot, total, total, copy, None, None)

    def plan_record(self, record: Any) -> tuple[int, SpanningWrite]:
        """Returns the slot of a record, and the spanning write that writes it with waits."""
        self.settle()
        slot = self.fixed_slot
        if slot is None:
            slot = self.slot_of_retry(record) if self.refused else self._select(record)
        pieces: list[Payload] = list(self.format.encode_pieces(record))
        size = sum(map(len, pieces))
        check_record_bytes(size, self._max_record_bytes)
        self.partition.check_writable()
        self.buffers.switch(slot)
        return slot, self.write_of_record(slot, pieces, size)

    def try_write(self, slot: int, payload: Payload) -> bool:
        """Writes an encoded record to a slot, whole or not at all. Returns as `try_emit`."""
        size = len(payload)
        builder = self._builders[slot]
        builder.settle()
        start = builder.position
        end = start + size + PREFIX_BYTES
        if end >= builder.limit:
            return self.try_emit_slowly(slot, payload, size)
        packer(size).pack_into(builder.memory, start, size, payload)
        builder.position = end
        self._counters.counted += 1
        return True

    def plan_payload(self, slot: int, payload: Payload) -> SpanningWrite:
        """Creates the spanning write that writes an encoded record with waits."""
        self.buffers.switch(slot)
        return self.write_of_record(slot, [payload], len(payload))

    # Events and the end.

    def broadcast_event(self, event: Event, *, priority: bool = False) -> None:
        """Queues an event behind (with priority: in front of) everything written so far, on every subpartition.

        A torn record (of a cancelled `emit`) must have been completed before.

        Raises:
            ConfigError: it is no event, or an attribute of it cannot be sent.
        """
        if not isinstance(event, Event):
            raise ConfigError(f"broadcast_event was given {type_text(event)}; give an event, such as UserEvent('name')")
        self.settle()
        self.buffers.finish_all(by_event=True)
        self.partition.broadcast_event(event, priority=priority)
        self.partition.host.flush_connections()

    def mark(self, subpartition: int, event: bytes) -> None:
        """Queues an event that travels as a record written now would; ignored where results are kept."""
        partition = self.partition
        if partition.store is None and not (partition.is_finished or partition.is_released):
            self.settle()
            self.buffers.mark(subpartition, event)

    def queued_events(self) -> list[tuple[bytes, int]]:
        """The events that no consumer has taken, each with the bytes of data in front of it; O(queues).

        A marker that waits for the flush of its subpartition counts without them. Empty where results are kept.
        """
        if self.partition.store is not None:
            return []
        events = [(event, 0) for event in self.buffers.waiting_marks]
        for subpartition in self.partition.subpartitions:
            events += subpartition.queued_events()
        return events

    def end(self, *, drain: bool) -> None:
        """Queues the end of data and of the partition."""
        self.settle()
        self.buffers.finish_all(by_event=True)
        self.partition.end_of_data(drain=drain)
        self.partition.finish()
        self.buffers.flush_connections()

    def flush(self) -> None:
        """Makes everything written available."""
        self.settle()
        self.buffers.flush_all()

    def abandon(self) -> None:
        """Abandons the open builders (`OpenBuffers.abandon`)."""
        if self._staging is not None:
            if self.partition.is_released:
                self._staging.drop()
            else:
                self._staging.close()
        self.buffers.abandon()

    def desert(self) -> None:
        """Refuses every further record, also those that fit into an open buffer: all consumers have left."""
        self.is_deserted = True
        self.buffers.disarm()

    # What was begun and is to be completed.

    def complete_torn(self) -> bool:
        """Writes the rest of a record whose spanning write was cancelled. Returns whether no record is torn now."""
        if self._torn is None:
            return True
        if not self._torn.advance():
            return False
        self._torn = None
        for slot in range(self._count + 1):
            self.buffers.after_write(slot)
        return True

    def advance(self, slot: int, write: SpanningWrite, records: int) -> bool:
        """Continues the spanning write of so many records to a slot, and sends. Returns whether it is complete.

        Until then `is_emitting` stays true.
        """
        host = self.partition.host
        host.hold()
        try:
            if not write.advance():
                return False
            self.is_emitting = False
            self._counters.counted += records
            self.buffers.after_write(slot)
            return True
        finally:
            host.flush_held()

    def tear(self, slot: int, write: SpanningWrite) -> None:
        """Cancels a spanning write: the record in progress is completed before the next write."""
        self._counters.counted += write.begun_records
        rest = write.cut()
        if rest:

            def copy(start: int, stop: int, out: memoryview) -> None:
                out[:] = rest[start:stop]

            self._torn = SpanningWrite(self.buffers, slot, len(rest), len(rest), copy, None, None)
