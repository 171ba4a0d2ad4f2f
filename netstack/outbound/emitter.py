"""One record into the open buffer of its subpartition: the per-record path of `PartitionWriter`.

Takes: single records. Gives: runs and committed bytes in BufferBuilders; what does not fit there goes to the
writer's slow path, `try_emit_slowly`.

Classes of their own because the methods of a compiled class are called sooner than closures, and because what the path
always needs is looked up once, when they are made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, final

from ..record.framing import PREFIX_BYTES, packer
from .emission import Payload
from .staging import Staging

if TYPE_CHECKING:
    from .writer import PartitionWriter

RUN_LIMIT_BYTES: Final = 1024
"""Records up to this are joined a run at a time; longer ones would keep much alive, and copying is what they cost."""

LOOK_S: Final = 10e-6
QUICK_LOOKS: Final = 16
"""With a timeout of 0: so many looks at the clock in a row, less than `LOOK_S` apart, find a producer in a hurry."""

GRANTED: Final = 32
"""It writes so many records of a run from look to look; if it stops being in a hurry, as many may be late, once."""

ALL: Final = 1 << 30
"""With any other timeout: all that the buffer holds."""


@final
class Emitter:
    """Writes single records of one writer."""

    __slots__ = (
        "_buffers",
        "_builders",
        "_counters",
        "_encode",
        "_fixed_slot",
        "_flush_always",
        "_granted",
        "_is_fixed",
        "_is_raw",
        "_looked_at",
        "_quick_looks",
        "_refuse",
        "_select",
        "_ticks",
        "_writer",
    )

    def __init__(
        self,
        writer: PartitionWriter,
        *,
        encode: Callable[[Any], Payload],
        is_raw: bool,
        slot: int | None,
        select: Callable[[Any], int],
        flush_always: bool,
        refuse: type[Exception] | None,
    ) -> None:
        """Emits for a writer.

        Args:
            writer: whose records they are.
            encode: makes bytes of a record.
            is_raw: whether a record of type bytes is its own payload.
            slot: where all of them go; None asks `select`.
            select: the slot of a record.
            flush_always: whether the buffer timeout is 0.
            refuse: raised when there is no buffer for a record; None returns False.
        """
        self._writer = writer
        self._refuse = refuse
        self._buffers = writer.buffers
        self._builders = writer.buffers.builders
        self._counters = writer.partition.counters
        self._encode = encode
        self._is_raw = is_raw
        self._is_fixed = slot is not None
        self._fixed_slot = -1 if slot is None else slot
        self._select = select
        self._flush_always = flush_always
        self._ticks = writer.partition.host.ticks
        self._granted = 1 if flush_always else ALL
        self._quick_looks = 0
        self._looked_at = 0.0

    def emit(self, record: Any, /) -> bool:
        """See `PartitionWriter.try_emit`."""
        payload = record
        if not self._is_raw or type(record) is not bytes:
            payload = self._encode(record)
            if type(payload) is not bytes and len(payload) <= RUN_LIMIT_BYTES:
                payload = bytes(payload)  # what is that small may join a run
        if self._is_fixed:
            slot = self._fixed_slot
        else:
            slot = self._select(record) if self._writer.refused is None else self._writer.slot_again(record)
        builder = self._builders[slot]
        size = len(payload)
        if size == builder.run_bytes:
            run = builder.run
            if len(run) < builder.run_limit:
                run.append(payload)
                return True
            if builder.extend_run(payload, self._granted):
                if self._flush_always:
                    self._look()
                return True
        if builder.run:
            builder.settle()
        start = builder.position
        end = start + size + PREFIX_BYTES
        if end < builder.limit:
            packer(size).pack_into(builder.memory, start, size, payload)
            builder.run_bytes = size if size <= RUN_LIMIT_BYTES else -1
            builder.position = end
            self._counters.counted += 1
            if self._flush_always:
                self._look()
            return True
        if self._writer.try_emit_slowly(slot, payload, size):
            return True
        self._writer.refused = (record, slot)
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
            self._buffers.kick()


@final
class PlainEmitter:
    """The same, for records that are bytes and all go to slot 0: nearly all join a run, and nothing else is asked.

    That is a fifth less for each in Python (8 B: 137 ns instead of 178, with the caller's loop), and a few ns compiled.
    """

    __slots__ = ("_apart", "_builders")

    def __init__(self, apart: Emitter) -> None:
        """Adds to the run of the open buffer in slot 0 what it may hold, and hands the others to `apart`."""
        self._apart = apart
        self._builders = apart._builders

    def emit(self, record: Any, /) -> bool:
        """See `PartitionWriter.try_emit`."""
        if isinstance(record, bytes):
            builder = self._builders[0]
            if len(record) == builder.run_bytes:
                run = builder.run
                if len(run) < builder.run_limit:
                    run.append(record)
                    return True
        return self._apart.emit(record)


@final
class StagingEmitter:
    """The same, for a writer that stages what it can (`staging`)."""

    __slots__ = ("_apart", "_encode", "_is_raw", "_records", "_staging", "_writer")

    def __init__(self, writer: PartitionWriter, staging: Staging, apart: Emitter) -> None:
        """Puts into `staging` what it takes, and hands the others to `apart`."""
        self._writer = writer
        self._staging = staging
        self._records = staging.records
        self._apart = apart
        self._encode = apart._encode
        self._is_raw = apart._is_raw

    def emit(self, record: Any, /) -> bool:
        """See `PartitionWriter.try_emit`."""
        staging = self._staging
        if staging.size < 0:
            staging.pause -= 1
            if staging.pause >= 0 or not self._writer.can_stage():
                return self._apart.emit(record)
        payload = record
        if not self._is_raw or type(record) is not bytes:
            payload = self._encode(record)
            if type(payload) is not bytes and len(payload) <= RUN_LIMIT_BYTES:
                payload = bytes(payload)  # what is that small may join a run
        size = len(payload)
        if size != staging.size:
            staging.close()
            if size > RUN_LIMIT_BYTES or not staging.open(size):
                return self._apart.emit(record)
        self._records.append(payload)
        staging.left -= 1
        if not staging.left:
            staging.on_full()
        return True
