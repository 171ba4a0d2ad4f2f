"""Writes single records for `PartitionWriter` when the pen in `exchange/record/fast_path` does not take them.

Takes: encoded records. Gives: bytes to the pens of open buffers; records that do not fit go to the writer's slow path,
`try_emit_slowly`.

These are classes because calling a method of a compiled class is faster than calling a closure. They look up what every
record needs when they are created.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

from ..record.fast_path import RUN_LIMIT_BYTES
from ..record.formats import RecordFormat, encoder_of, kind_of
from ..record.framing import PREFIX_BYTES
from .open_buffers import SHORTEST_PAUSE_S, OpenBuffers
from .spanning_write import Payload
from .staging import Staging

BUSY_CHECKS: Final = 16
"""With timeout 0: this many consecutive clock checks without a pause between them mark a busy producer."""

GRANTED: Final = 32
"""Records that a busy producer writes between two checks of the clock; when it slows down, so many may be late once."""

ALL: Final = 1 << 30
"""With any other timeout: all records that fit in the buffer."""


@final
class SlowEmitter:
    """Writes the records of one writer that no pen took."""

    __slots__ = (
        "_buffers",
        "_builders",
        "_flush_always",
        "_granted",
        "_quick_checks",
        "_refuse",
        "_refused",
        "_write",
    )

    def __init__(
        self,
        buffers: OpenBuffers,
        write: Callable[[int, Payload, int], bool],
        refused: list[tuple[Any, int]],
        refuse: type[Exception] | None,
        *,
        flush_always: bool,
    ) -> None:
        """Emits for a writer.

        Args:
            buffers: the writer's open buffers.
            write: `PartitionWriter.try_emit_slowly`.
            refused: receives a record that found no buffer, with its slot.
            refuse: exception raised then; None: `emit` returns False.
            flush_always: whether the buffer timeout is 0.
        """
        self._buffers = buffers
        self._write = write
        self._refused = refused
        self._refuse = refuse
        self._builders = buffers.builders
        self._flush_always = flush_always
        self._granted = 1 if flush_always else ALL
        self._quick_checks = 0

    def emit(self, record: Any, payload: Payload, slot: int, /) -> bool:
        """Writes a record, whole or not at all. `PartitionWriter.try_emit` lists what it raises."""
        builder = self._builders[slot]
        size = len(payload)
        if builder.is_pen_open:
            is_written = builder.pen.put(payload, self._granted) or builder.open_pen(payload, self._granted)
        elif builder.position + PREFIX_BYTES + size < builder.limit:
            is_written = builder.open_pen(payload, self._granted)
        else:
            is_written = False
        if is_written:
            if self._flush_always:
                self._check_clock()
            return True
        if self._write(slot, payload, size):
            return True
        self._refused[:] = [(record, slot)]
        if self._refuse is not None:
            raise self._refuse
        return False

    def _check_clock(self) -> None:
        """With timeout 0: flushes the connections when it is time, and sets how many records precede the next check.

        It is one, unless `BUSY_CHECKS` checks found a busy producer: a check costs as much as a record.
        """
        gap_s = self._buffers.flush_when_due()
        self._quick_checks = self._quick_checks + 1 if gap_s < SHORTEST_PAUSE_S else 0
        self._granted = GRANTED if self._quick_checks >= BUSY_CHECKS else 1


@final
class StagingEmitter:
    """Stages the records of one writer where possible (`staging`)."""

    __slots__ = ("_can_stage", "_encode", "_is_raw", "_records", "_separate", "_staging")

    def __init__(
        self,
        staging: Staging,
        format: RecordFormat,
        can_stage: Callable[[], bool],
        separate: Callable[[Any], bool],
    ) -> None:
        """Stages records in `staging` while `can_stage`; passes the others to `separate`."""
        self._staging = staging
        self._can_stage = can_stage
        self._records = staging.records
        self._separate = separate
        self._encode = encoder_of(format)
        self._is_raw = kind_of(format) == "bytes"

    def emit(self, record: Any, /) -> bool:
        """Writes a record, whole or not at all. `PartitionWriter.try_emit` lists what it raises."""
        staging = self._staging
        if staging.size < 0:
            staging.pause -= 1
            if staging.pause >= 0 or not self._can_stage():
                return self._separate(record)
        payload = record
        if not self._is_raw or type(record) is not bytes:
            payload = self._encode(record)
            if type(payload) is not bytes and len(payload) <= RUN_LIMIT_BYTES:
                payload = bytes(payload)  # a payload of this length may join a run
        size = len(payload)
        if size != staging.size:
            staging.close()
            if size > RUN_LIMIT_BYTES or not staging.open(size):
                return self._separate(record)
        self._records.append(payload)
        staging.left -= 1
        if not staging.left:
            staging.on_full()
        return True
