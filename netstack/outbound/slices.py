"""What a task emits, staged record by record and written a slice at a time: the list path into one partition.

Takes: records of one task. Gives: their bytes to a `PartitionWriter`; what finds no buffer stays here, in order.

Nobody can tell it from emitting each record at once, as long as everything is flushed before the task waits. A record
that may change is encoded when it is staged. Str and numbers cannot: they are encoded, and their subpartitions are
chosen, all together. Where one of them is refused, those in front of it are written before the error is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from ..buffer.builder import BufferBuilder
from ..record.framing import prefix_of
from .emission import Payload
from .writer import PartitionWriter


@final
class SliceWriter:
    """Writes what one task emits to one partition; nobody else writes there.

    Attributes:
        records: staged as they are; only where `takes_records`. They come behind `payloads`.
        payloads: staged, encoded.
        slots: the slot of each payload.
        written_bytes: the payloads written so far.
        takes_records: whether the records of the format cannot change.
    """

    __slots__ = (
        "_builders",
        "_counters",
        "_encode",
        "_encode_many",
        "_failure",
        "_fixed_slot",
        "_select",
        "_selector",
        "_writer",
        "payloads",
        "records",
        "slots",
        "takes_records",
        "written_bytes",
    )

    def __init__(self, writer: PartitionWriter) -> None:
        """Stages nothing yet."""
        self._writer = writer
        self._builders = writer.buffers.builders
        self._counters = writer.partition.counters
        self._encode_many: Callable[[list[Any]], list[bytes]] | None = getattr(writer.format, "encode_many", None)
        self._encode = writer.format.encode
        self._selector = writer.selector
        self._select = writer.selector.select
        self._fixed_slot = writer.fixed_slot
        self._failure: Exception | None = None
        self.records: list[Any] = []
        self.payloads: list[Payload] = []
        self.slots: list[int] = []
        self.written_bytes = 0
        self.takes_records = self._encode_many is not None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is staged."""
        return not self.records and not self.payloads and self._failure is None

    def stage(self, record: Any, /) -> None:
        """Stages a record that may change afterwards.

        Raises:
            RecordError: it does not fit the format; or whatever the selector raises. It is not staged then.
        """
        payload = self._encode(record)
        slot = self._fixed_slot
        self.slots.append(self._select(record) if slot is None else slot)
        self.payloads.append(payload)

    def flush(self) -> bool:
        """Writes what is staged. Returns whether that is all; False: there are no buffers for the rest.

        Raises:
            RecordError: a record does not fit; those in front of it are written.
            LocalProtocolError, PoolDestroyed: as `PartitionWriter.try_emit`.
            Exception: whatever the selector raises; those in front of the record are written.
        """
        if self.records:
            self._encode_records()
        payloads = self.payloads
        if payloads:
            written = self._write()
            if written == len(payloads):
                self.written_bytes += sum(map(len, payloads))
                payloads.clear()
                self.slots.clear()
            else:
                self.written_bytes += sum(map(len, payloads[:written]))
                del payloads[:written]
                del self.slots[:written]
                return False
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return True

    def take(self) -> tuple[int, Payload]:
        """The slot of the first payload, and the payload, which the caller writes."""
        self.written_bytes += len(self.payloads[0])
        return self.slots.pop(0), self.payloads.pop(0)

    def _encode_records(self) -> None:
        records = self.records
        slot, encode_many = self._fixed_slot, self._encode_many
        assert encode_many is not None
        try:
            payloads = encode_many(records)
            slots = [slot] * len(records) if slot is not None else self._selector.select_many(records)
        except Exception:  # the loop below finds the record, and raises for it
            slots = None
        if slots is not None:
            self.payloads += payloads
            self.slots += slots
        else:
            try:
                for record in records:
                    self.stage(record)
            except Exception as error:  # raised by `flush` when the records in front of it are written
                self._failure = error
        records.clear()

    def _write(self) -> int:
        """Writes payloads as long as there are buffers; returns how many."""
        writer = self._writer
        writer.settle()
        if not self._write_joined():
            for index, payload in enumerate(self.payloads):
                if not writer.try_write(self.slots[index], payload):
                    return index
        if writer.flush_always and writer.partition.host.ticks() >= writer.buffers.next_kick:
            writer.buffers.flush_connections()
        return len(self.payloads)

    def _write_joined(self) -> bool:
        """Writes all payloads if they end in buffers that are open; a join for each slot."""
        groups: dict[int, list[Payload]] = {}
        for slot, payload in zip(self.slots, self.payloads, strict=True):
            group = groups.get(slot)
            if group is None:
                group = groups[slot] = []
            group.append(prefix_of(payload))
            group.append(payload)
        framed: list[tuple[BufferBuilder, bytes]] = []
        for slot, pieces in groups.items():
            builder = self._builders[slot]
            data = b"".join(pieces)
            if builder.written_bytes + len(data) >= builder.limit:
                return False
            framed.append((builder, data))
        for builder, data in framed:
            builder.append(data)
        self._counters.counted += len(self.payloads)
        return True
