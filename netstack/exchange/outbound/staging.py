"""Collects records for many subpartitions in one list, and distributes them together.

Takes: single records of equal length, of a writer that goes round many subpartitions. Gives: their framed bytes in the
open buffers, before a buffer is read.

Writing each record into its own buffer touches memory that was last used one round ago. With 10,000 channels the
processor waits for memory most of the time (measured: 190 ns a record compiled and 780 in Python, against 90 and 220
with one channel). Here a record is appended to one list. Array operations then join, reorder and frame all of them,
and each buffer gets its part in one copy.

This is not observable. Records are staged only while every subpartition has an open buffer with bytes that wait for
their flush (so no deadline must be armed, and another record makes nothing available), and only as many as fit in
those buffers. Every read of a buffer, and every other use of the writer, distributes the records first (`close`).
Flush rounds (`flush_rounds`) relax this: then reads leave staged records alone.
"""

from __future__ import annotations

from typing import Final, final

import numpy as np

from ..record.framing import PREFIX_BYTES, framed_whole
from .open_buffers import OpenBuffers
from .selector import ChannelSelector
from .subpartition import StagedRecords

FROM_CHANNELS: Final = 16
"""With fewer channels, the open buffers stay in the processor's cache."""

ROUNDS: Final = 32
"""Maximum staged records per subpartition: the work per subpartition then costs less than the records."""

STAGED_RECORDS: Final = 128 * 1024
"""Maximum staged records in total: distributing them takes some milliseconds."""

STAGED_BYTES: Final = 4 * 1024 * 1024

LONGEST_PAUSE_ROUNDS: Final = 16
"""Checking whether every buffer is ready costs half a round; after a failed check, the next one waits longer."""


@final
class Staging(StagedRecords):
    """The staged records of one writer.

    Attributes:
        records: staged records, in the order of writing.
        left: how many more records may be staged.
        pause: records to write without staging before `open` is tried again.
    """

    __slots__ = ("_buffers", "_channels", "_pause_rounds", "_selector", "_taken", "left", "pause", "records")

    def __init__(self, buffers: OpenBuffers, selector: ChannelSelector) -> None:
        """Starts inactive.

        Args:
            buffers: the buffers to fill; no broadcast buffer is open while staging is active.
            selector: a round robin; advanced when the records are distributed.
        """
        super().__init__()
        self._buffers = buffers
        self._selector = selector
        self._channels = selector.channels
        self._pause_rounds = 1
        self._taken = 0
        self.records: list[bytes] = []
        self.left = 0
        self.pause = self._channels

    def open(self, size: int) -> bool:
        """Activates staging for records of this length, if every buffer is ready. Returns whether it is active."""
        self._taken = 0
        if size and self._measure(size):
            self.size = size
            return True
        self._pause()
        return False

    def close(self) -> None:
        """Distributes the staged records and deactivates staging."""
        if self.size >= 0:
            self._share_out()
            self.size = -1
            if self._taken >= 4 * self._channels:
                self._pause_rounds = 1
                self.pause = self._channels
            else:
                self._pause()

    def on_full(self) -> None:
        """Distributes the staged records when `left` is 0; stays active if the buffers have room."""
        self._share_out()
        if not self._measure(self.size):
            self.size = -1
            self._pause_rounds = 1
            self.pause = self._channels

    def drop(self) -> None:
        """Drops the staged records with their partition."""
        self.records.clear()
        self.size = -1

    def _pause(self) -> None:
        self.pause = self._pause_rounds * self._channels
        self._pause_rounds = min(2 * self._pause_rounds, LONGEST_PAUSE_ROUNDS)

    def _measure(self, size: int) -> bool:
        """Whether every subpartition has an armed buffer with room; sets how many records may be staged."""
        cell = PREFIX_BYTES + size
        most = min(STAGED_RECORDS, STAGED_BYTES // cell) // self._channels
        room = min(max(most, 1), ROUNDS) * cell
        builders = self._buffers.builders
        for slot in range(self._channels):
            builder = builders[slot]
            # The room is below 0 without a buffer, and where the next record arms the flush. A record that ends at the
            # end of its buffer finishes it, which staging must not do.
            here = builder.limit - 1 - builder.written_bytes
            if here < room:
                if here < cell:
                    return False
                room = here
        self.left = room // cell * self._channels
        return True

    def _share_out(self) -> None:
        records = self.records
        count = len(records)
        if not count:
            return
        channels = self._channels
        size = self.size
        cell = PREFIX_BYTES + size
        self._taken += count
        self._buffers.partition.counters.counted += count
        rows = np.frombuffer(b"".join(records), np.uint8).reshape(count, size)
        records.clear()
        slot = self._selector.advance(count)
        whole = count // channels
        builders = self._buffers.builders
        if whole:
            turned = rows[: whole * channels].reshape(whole, channels, size).swapaxes(0, 1)
            framed = framed_whole(np.ascontiguousarray(turned).reshape(whole * channels, size))
            length = whole * cell
            for start in range(0, channels * length, length):
                builders[slot].write(framed[start : start + length])
                slot += 1
                if slot == channels:
                    slot = 0
        rest = framed_whole(rows[whole * channels :])
        for start in range(0, len(rest), cell):
            builders[slot].write(rest[start : start + cell])
            slot += 1
            if slot == channels:
                slot = 0
