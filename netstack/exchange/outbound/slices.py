"""SliceWriter: stages the records that a task emits, and writes them to one partition a slice at a time.

Takes: records of one task. Gives: their bytes to a `PartitionWriter`; records without a buffer stay staged, in order.

The result equals emitting each record at once, as long as the task flushes before it waits. A record that may change
is encoded when it is staged. Str and numbers cannot change: they are encoded, and their subpartitions are chosen, all
together. If one of them is refused, those in front of it are written before the error is raised.

A slice is framed as a whole, one run of cells for each subpartition (`record/cells.framed_cells`), and copied into
the open buffers as far as it fits. So subpartitions are written one after another, each in order. Other records (long
ones, and those that the format or the selector may refuse) are written one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from ..record.fast_path import cells_within, framed_cells
from ..record.formats import encoder_of, kind_of
from ..record.framing import LENGTH, PREFIX_BYTES
from .batches import LEND_BYTES
from .spanning_write import Payload
from .writer import PartitionWriter


@final
class SliceWriter:
    """Writes the output of one task to one partition, as its only writer.

    Attributes:
        records: staged unencoded; only if `takes_records`. They follow all other staged records.
        written_bytes: payload bytes written so far.
        takes_records: whether records of the format cannot change.
    """

    __slots__ = (
        "_at",
        "_builders",
        "_channels",
        "_counters",
        "_encode",
        "_encode_many",
        "_failure",
        "_fixed_slot",
        "_framed",
        "_kind",
        "_most_bytes",
        "_payloads",
        "_select",
        "_selector",
        "_slots",
        "_writer",
        "records",
        "takes_records",
        "written_bytes",
    )

    def __init__(self, writer: PartitionWriter) -> None:
        """Stages nothing yet."""
        self._writer = writer
        self._builders = writer.buffers.builders
        self._channels = len(writer.buffers.builders)
        self._counters = writer.partition.counters
        self._encode_many: Callable[[list[Any]], list[bytes]] | None = getattr(writer.format, "encode_many", None)
        self._encode = encoder_of(writer.format)
        self._kind = kind_of(writer.format)
        self._most_bytes = min(LEND_BYTES - 1, writer.partition.max_record_bytes)
        self._selector = writer.selector
        self._select = writer.selector.select
        self._fixed_slot = writer.fixed_slot
        self._failure: Exception | None = None
        self.records: list[Any] = []
        self._payloads: list[Payload] = []  # staged, encoded; `_slots` has the slot of each
        self._slots: list[int] = []
        self._framed: list[tuple[int, int, bytes]] = []  # written before those, last first: slot, cells, their bytes
        self._at = 0  # written bytes of the last entry of `_framed`
        self.written_bytes = 0
        self.takes_records = self._encode_many is not None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is staged."""
        return not (self.records or self._payloads or self._framed) and self._failure is None

    def stage(self, record: Any, /) -> None:
        """Stages a record that may change later.

        Raises:
            RecordError: it does not fit the format. Errors of the selector propagate too. The record is not staged
            then.
        """
        payload = self._encode(record)
        slot = self._fixed_slot
        self._slots.append(self._select(record) if slot is None else slot)
        self._payloads.append(payload)

    def flush(self) -> bool:
        """Writes the staged records. Returns whether all are written; False: no buffer for the rest.

        Raises:
            RecordError: a record does not fit the format; those in front of it are written.
            LocalProtocolError, PoolDestroyed: as `PartitionWriter.try_emit`.
            Exception: the selector raised it; records in front of that one are written.
        """
        if self._framed and not self._write_framed():
            return False
        if self.records and not self._payloads:
            self._frame_records()
        if self._payloads:
            self._frame(self._payloads, "bytes", self._slots)
            if not self._framed and not self._write_each():
                return False
            self._payloads.clear()
            self._slots.clear()
        if self._framed and not self._write_framed():
            return False
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return not self.records or self.flush()

    def take(self) -> tuple[int, Payload]:
        """Takes the first staged payload and its slot; the caller writes it."""
        if not self._framed:
            self.written_bytes += len(self._payloads[0])
            return self._slots.pop(0), self._payloads.pop(0)
        slot, _, data = self._framed[-1]
        payload = self._next_payload(data)
        self._advance(PREFIX_BYTES + len(payload), 1)
        return slot, payload

    def _frame_records(self) -> None:
        records = self.records
        slots: list[int] | int | None = self._fixed_slot
        try:
            if slots is None:
                slots = self._selector.select_many(records)
        except Exception:  # `stage` raises it again, for the right record
            slots = None
        try:
            if slots is None:
                for record in records:
                    self.stage(record)
            elif not self._frame(records, self._kind, slots):
                self._slots = [slots] * len(records) if isinstance(slots, int) else slots
                self._encode_each(records)
        except Exception as error:  # `flush` raises it after it has written the records in front
            del self._slots[len(self._payloads) :]
            self._failure = error
        records.clear()

    def _encode_each(self, records: list[Any]) -> None:
        """Encodes records until one does not fit the format."""
        try:
            assert self._encode_many is not None
            self._payloads += self._encode_many(records)
        except Exception:  # the loop raises it again, for the right record
            for record in records:
                self._payloads.append(self._encode(record))

    def _frame(self, records: list[Any], kind: str, slots: list[int] | int) -> bool:
        """Frames all records as cells, or none."""
        shares = framed_cells(records, kind, slots, self._channels, self._most_bytes)
        if shares is None:
            return False
        shares.reverse()
        self._framed = shares
        return True

    def _write_framed(self) -> bool:
        """Writes cells while buffers are available; returns whether all are written."""
        writer, builders, framed = self._writer, self._builders, self._framed
        writer.settle()
        while framed:
            slot, cells, data = framed[-1]
            builder = builders[slot]
            builder.settle()
            at = self._at
            room = builder.limit - 1 - builder.position
            left = len(data) - at
            if left <= room:
                builder.append(memoryview(data)[at:] if at else data)
                self._counters.counted += cells
                self._advance(left, cells)
                continue
            end, fitting = cells_within(data, at, at + room) if room > PREFIX_BYTES else (at, 0)
            if fitting:
                builder.append(memoryview(data)[at:end])
                self._counters.counted += fitting
                self._advance(end - at, fitting)
            payload = self._next_payload(data)
            if not writer.try_write(slot, payload):
                return False
            self._advance(PREFIX_BYTES + len(payload), 1)
        self._flush_connections()
        return True

    def _next_payload(self, data: bytes) -> bytes:
        """The first unwritten payload of the present cells."""
        start = self._at + PREFIX_BYTES
        size: int = LENGTH.unpack_from(data, self._at)[0]
        return data[start : start + size]

    def _advance(self, size: int, count: int) -> None:
        """Marks `size` bytes, which are `count` cells, of the present ones as written."""
        slot, cells, data = self._framed[-1]
        self.written_bytes += size - count * PREFIX_BYTES
        self._at += size
        if self._at == len(data):
            self._framed.pop()
            self._at = 0
        else:
            self._framed[-1] = slot, cells - count, data

    def _write_each(self) -> bool:
        """Writes payloads one by one while buffers are available; returns whether all are written."""
        writer, payloads, slots = self._writer, self._payloads, self._slots
        writer.settle()
        for index, payload in enumerate(payloads):
            if not writer.try_write(slots[index], payload):
                del payloads[:index]
                del slots[:index]
                return False
            self.written_bytes += len(payload)
        self._flush_connections()
        return True

    def _flush_connections(self) -> None:
        writer = self._writer
        if writer.flush_always:
            writer.buffers.flush_when_due()
