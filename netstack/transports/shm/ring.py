"""One direction of a shared-memory stream: a ring of bytes with one writer and one reader, in two processes.

Takes: pieces to send, windows to fill. Gives: how many bytes were moved, and whether the other side has to be woken.
No system calls, no event loop.

Layout: a page of 8-byte words, each in a cache line of its own, then the bytes under way, as many as the ring's
capacity at most: a power of two.

| word | written by | is |
|---|---|---|
| written | writer | bytes ever written |
| read | reader | bytes ever read |
| reader sleeps | reader 1, either 0 | the reader waits for its eventfd |
| writer sleeps | writer 1, either 0 | the writer waits for a byte on the socket |
| ended | writer | 1: `written` is final |

Rules:
- Each side keeps its own position in its own memory and only publishes it. What the other side publishes is checked:
  a position never goes back, and `0 <= written - read <= capacity`.
- Data is stored before `written`, and taken before `read`. That order needs aligned 8-byte stores that are not split
  and a processor that keeps stores, and loads, in program order: x86-64. Python has no fence for others (`supported`).
- To sleep: set the flag, fence, look again. To publish: store the position, fence, look at the flag. The fence is
  what x86-64 needs between a store and a later load; the atomic instructions of an uncontended lock are one.
  So one of the two always sees the other. Who clears the other side's flag wakes it afterwards, always.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from threading import Lock
from typing import Final, final

from netstack.transport import Piece

HEADER_BYTES: Final = 4096

WAKE_ROOM: Final = 4
"""A writer that waits for room is woken when one part in so many of the ring is free: not for each few bytes."""

# Indices of words: 128 bytes apart, since processors fetch cache lines in pairs.
WRITTEN: Final = 0
READ: Final = 16
READER_SLEEPS: Final = 32
WRITER_SLEEPS: Final = 48
ENDED: Final = 64


class RingBroken(Exception):
    """The other side published a position that cannot be."""


@final
class RingWriter:
    """The writing side. Not usable any more once its memory was closed."""

    __slots__ = ("_capacity", "_fence", "_mapping", "_read", "_start", "_words", "_written")

    def __init__(self, mapping: mmap.mmap, words: memoryview, base: int, capacity: int) -> None:
        """Args: the memory; the ring's words; where the ring begins in the memory; the bytes it holds."""
        self._capacity = capacity
        self._mapping = mapping
        self._words = words
        self._start = base + HEADER_BYTES
        self._written = 0
        self._read = 0
        self._fence = Lock()

    def write(self, pieces: Sequence[Piece]) -> int:
        """Stores as many bytes as there is room for, in order; returns how many.

        Raises:
            RingBroken: see there.
        """
        mapping, start, capacity = self._mapping, self._start, self._capacity
        before = written = self._written
        room = self._read + capacity - written
        for piece in pieces:
            size = len(piece)
            if size > room:
                room = self._look() - written + before
                if size > room:
                    if not room:
                        break
                    piece = memoryview(piece)[:room]
                    size = room
            offset = written & (capacity - 1)
            end = offset + size
            if end <= capacity:
                mapping[start + offset : start + end] = piece
            else:
                whole = memoryview(piece)
                first = capacity - offset
                mapping[start + offset : start + capacity] = whole[:first]
                mapping[start : start + end - capacity] = whole[first:]
            written += size
            room -= size
            if not room:
                break  # a piece may have been cut: nothing may follow it
        if written != before:
            self._written = self._words[WRITTEN] = written
        return written - before

    def end(self) -> None:
        """Nothing more will be written."""
        self._words[ENDED] = 1

    def must_wake_reader(self) -> bool:
        """After `write` or `end`: whether the reader sleeps. Clears its flag: the caller wakes it."""
        with self._fence:
            pass
        if self._words[READER_SLEEPS]:
            self._words[READER_SLEEPS] = 0
            return True
        return False

    def has_room(self) -> bool:
        """Whether there is room worth waking up for; also when the reader's position cannot be."""
        try:
            return self._look() * WAKE_ROOM >= self._capacity
        except RingBroken:
            return True

    def may_sleep(self) -> bool:
        """Announces that the writer sleeps; False, and it does not, when there is room already."""
        self._words[WRITER_SLEEPS] = 1
        with self._fence:
            pass
        if self.has_room():
            self._words[WRITER_SLEEPS] = 0
            return False
        return True

    def stay_awake(self) -> None:
        """The writer does not sleep any more."""
        self._words[WRITER_SLEEPS] = 0

    def _look(self) -> int:
        """The room there is behind what was published."""
        read = self._words[READ]
        if not self._read <= read <= self._written:
            raise RingBroken(
                f"it says that it has read {read} bytes, after {self._read} of {self._written} that were written"
            )
        self._read = read
        return read + self._capacity - self._written


@final
class RingReader:
    """The reading side. Not usable any more once its memory was closed."""

    __slots__ = ("_capacity", "_fence", "_read", "_start", "_view", "_words", "_written")

    def __init__(self, view: memoryview, words: memoryview, base: int, capacity: int) -> None:
        """Args: the memory; the ring's words; where the ring begins in the memory; the bytes it holds."""
        self._capacity = capacity
        self._view = view
        self._words = words
        self._start = base + HEADER_BYTES
        self._read = 0
        self._written = 0
        self._fence = Lock()

    def read_into(self, windows: Sequence[memoryview]) -> int | None:
        """Fills windows in order; returns how many bytes, 0 at the end, None when nothing has come.

        Raises:
            RingBroken: see there.
        """
        words, capacity = self._words, self._capacity
        before = read = self._read
        written = words[WRITTEN]
        if written == read:
            if not words[ENDED]:
                return None
            written = words[WRITTEN]  # final now
            if written == read:
                return 0
        if not self._written <= written <= read + capacity:
            raise RingBroken(
                f"it says that it has written {written} bytes, after {self._written}, of which {read} were read"
            )
        self._written = written
        view, start = self._view, self._start
        for window in windows:
            size = len(window)
            if size > written - read:
                size = written - read
                if not size:
                    break
                window = window[:size]
            offset = read & (capacity - 1)
            end = offset + size
            if end <= capacity:
                window[:] = view[start + offset : start + end]
            else:
                first = capacity - offset
                window[:first] = view[start + offset : start + capacity]
                window[first:] = view[start : start + end - capacity]
            read += size
        self._read = words[READ] = read
        return read - before

    def must_wake_writer(self) -> bool:
        """After `read_into`: whether the writer sleeps and has room now. Clears its flag: the caller wakes it."""
        with self._fence:
            pass
        words = self._words
        if not words[WRITER_SLEEPS]:
            return False
        if (self._read + self._capacity - words[WRITTEN]) * WAKE_ROOM >= self._capacity:
            words[WRITER_SLEEPS] = 0
            return True
        return False

    def has_more(self) -> bool:
        """Whether there is something to read, or the end."""
        return bool(self._words[WRITTEN] != self._read or self._words[ENDED])

    def may_sleep(self) -> bool:
        """Announces that the reader sleeps; False, and it does not, when there is something already."""
        self._words[READER_SLEEPS] = 1
        with self._fence:
            pass
        if self.has_more():
            self._words[READER_SLEEPS] = 0
            return False
        return True

    def stay_awake(self) -> None:
        """The reader does not sleep any more."""
        self._words[READER_SLEEPS] = 0
