"""Records for many subpartitions in turn, kept in one place and shared out together.

Takes: single records of one length, of a writer that goes round many subpartitions. Gives: their framed bytes in the
open buffers, before anybody looks at one.

Writing each record into a buffer of its own touches memory that was last touched a round ago: with 10,000 channels the
processor waits longer for it than it works (measured: 190 ns a record compiled and 780 in Python, against 90 and 220
with one channel). Here a record is appended to one list; the whole is joined, turned and framed by array operations,
and each buffer gets its part at once.

Nobody can tell. Records are staged only while every subpartition has an open buffer with bytes that wait for their
flush (so no deadline is to be armed, and nothing becomes available by one more record), and only as many as have room
in those buffers. Whoever takes bytes out of a buffer, or does anything else with the writer, has the records shared out
first (`close`); while buffers are flushed in rounds (`flush_rounds`), only whoever does anything else.
"""

from __future__ import annotations

from typing import Final, final

import numpy as np

from ..record.framing import PREFIX_BYTES, framed_whole
from .open_buffers import OpenBuffers
from .selector import ChannelSelector

FROM_CHANNELS: Final = 16
"""Among fewer, the open buffers stay in the processor's cache."""

ROUNDS: Final = 32
"""Records staged for one subpartition at most: what is done once a subpartition then costs less than the records."""

STAGED_RECORDS: Final = 128 * 1024
"""In all: sharing them out takes some milliseconds."""

STAGED_BYTES: Final = 4 * 1024 * 1024

LONGEST_PAUSE_ROUNDS: Final = 16
"""Looking whether every buffer is ready costs as much as half a round; it is done less often when it was in vain."""


@final
class Staging:
    """What one writer keeps.

    Attributes:
        records: staged, in the order of writing.
        size: the length of each; -1 while none are taken.
        left: how many more may be staged.
        pause: records to be written otherwise before it is worth asking for `open`.
    """

    __slots__ = ("_buffers", "_channels", "_pause_rounds", "_selector", "_taken", "left", "pause", "records", "size")

    def __init__(self, buffers: OpenBuffers, selector: ChannelSelector) -> None:
        """Takes no records yet.

        Args:
            buffers: where they go; it has no broadcast buffer open while `size` is not -1.
            selector: goes round; it is asked when the records are shared out.
        """
        self._buffers = buffers
        self._selector = selector
        self._channels = selector.channels
        self._pause_rounds = 1
        self._taken = 0
        self.records: list[bytes] = []
        self.size = -1
        self.left = 0
        self.pause = self._channels

    def open(self, size: int) -> bool:
        """Takes records of this length from now on, if every buffer is ready. Returns whether it does."""
        self._taken = 0
        if size and self._measure(size):
            self.size = size
            return True
        self._pause()
        return False

    def close(self) -> None:
        """Shares out what there is, and takes no more."""
        if self.size >= 0:
            self._share_out()
            self.size = -1
            if self._taken >= 4 * self._channels:
                self._pause_rounds = 1
                self.pause = self._channels
            else:
                self._pause()

    def on_full(self) -> None:
        """None are left to be taken: shares out, and goes on if there is room."""
        self._share_out()
        if not self._measure(self.size):
            self.size = -1
            self._pause_rounds = 1
            self.pause = self._channels

    def drop(self) -> None:
        """The partition is gone, and with it what was staged."""
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
            # Below 0 without a buffer, and where the next record arms the flush. A record that ends where its buffer
            # does finishes it, which is not for here.
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
