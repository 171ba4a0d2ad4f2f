"""Single records that no pen takes: the per-record path of `PartitionWriter` behind `record/cells`.

Takes: single records, encoded. Gives: bytes to the pens of open buffers, opened here; what does not fit there goes to
the writer's slow path, `try_emit_slowly`.

Classes of their own because the methods of a compiled class are called sooner than closures, and because what the path
always needs is looked up once, when they are made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, final

from ..record.cells import RUN_LIMIT_BYTES
from ..record.formats import kind_of
from ..record.framing import PREFIX_BYTES
from .emission import Payload
from .staging import Staging

if TYPE_CHECKING:
    from .writer import PartitionWriter

LOOK_S: Final = 10e-6
QUICK_LOOKS: Final = 16
"""With a timeout of 0: so many looks at the clock in a row, less than `LOOK_S` separate, find a producer in a hurry."""

GRANTED: Final = 32
"""It writes so many records with a pen from look to look; if it stops being in a hurry, as many may be late, once."""

ALL: Final = 1 << 30
"""With any other timeout: all that the buffer holds."""


@final
class SlowEmitter:
    """Writes single records of one writer that no pen took."""

    __slots__ = (
        "_buffers",
        "_builders",
        "_flush_always",
        "_granted",
        "_looked_at",
        "_quick_looks",
        "_refuse",
        "_ticks",
        "_writer",
    )

    def __init__(self, writer: PartitionWriter, refuse: type[Exception] | None) -> None:
        """Emits for a writer.

        Args:
            writer: whose records they are.
            refuse: raised when there is no buffer for a record; None returns False.
        """
        self._writer = writer
        self._refuse = refuse
        self._buffers = writer.buffers
        self._builders = writer.buffers.builders
        self._flush_always = writer.flush_always
        self._ticks = writer.partition.host.ticks
        self._granted = 1 if writer.flush_always else ALL
        self._quick_looks = 0
        self._looked_at = 0.0

    def emit(self, record: Any, payload: Payload, slot: int, /) -> bool:
        """Writes a record, whole or not at all; `PartitionWriter.try_emit` says what it raises."""
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
                self._look()
            return True
        if self._writer.try_emit_slowly(slot, payload, size):
            return True
        self._writer.refused[:] = [(record, slot)]
        if self._refuse is not None:
            raise self._refuse
        return False

    def _look(self) -> None:
        """With a timeout of 0: has the connections send when it is time, and says when to look at the clock again.

        That is at the next record, unless `QUICK_LOOKS` found a producer in a hurry: a look costs as much as a record.
        """
        now = self._ticks()
        self._quick_looks = self._quick_looks + 1 if now - self._looked_at < LOOK_S else 0
        self._looked_at = now
        self._granted = GRANTED if self._quick_looks >= QUICK_LOOKS else 1
        if now >= self._buffers.next_kick:
            self._buffers.flush_connections()


@final
class StagingEmitter:
    """The same, for a writer that stages what it can (`staging`)."""

    __slots__ = ("_encode", "_is_raw", "_records", "_separate", "_staging", "_writer")

    def __init__(self, writer: PartitionWriter, staging: Staging, separate: Callable[[Any], bool]) -> None:
        """Puts into `staging` what it takes, and hands the others to `separate`."""
        self._writer = writer
        self._staging = staging
        self._records = staging.records
        self._separate = separate
        self._encode = writer.format.encode
        self._is_raw = kind_of(writer.format) == "bytes"

    def emit(self, record: Any, /) -> bool:
        """Writes a record, whole or not at all; `PartitionWriter.try_emit` says what it raises."""
        staging = self._staging
        if staging.size < 0:
            staging.pause -= 1
            if staging.pause >= 0 or not self._writer.can_stage():
                return self._separate(record)
        payload = record
        if not self._is_raw or type(record) is not bytes:
            payload = self._encode(record)
            if type(payload) is not bytes and len(payload) <= RUN_LIMIT_BYTES:
                payload = bytes(payload)  # what is that small may join a run
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
