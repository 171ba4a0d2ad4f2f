"""One direction of a shared-memory stream: a ring of bytes with one writer and one reader, in two processes.

Takes: pieces to send, windows to fill. Gives: the number of bytes moved, and whether the other side has to be woken. It
uses neither system calls nor an event loop.

Layout: a page of 8-byte words, each in a cache line of its own, then the bytes in flight. The capacity is a power of
two.

| word | written by | meaning | |---|---|---| | written | writer | bytes written so far | | read | reader | bytes read
so far | | reader sleeps | reader 1, either 0 | the reader waits for its eventfd | | writer sleeps | writer 1, either 0
| the writer waits for a byte on the socket | | ended | writer | 1: `written` is final |

Rules:
- Each side keeps its position in private memory and only publishes it. It checks the other side's position, which never
  goes back, and `0 <= written - read <= capacity`.
- Data is stored before `written` is, and read before `read` is stored. That order needs aligned 8-byte stores that are
  not split and a processor that keeps stores, and loads, in program order: x86-64. Python has no fence for others
  (`supported`).
- To sleep: set the flag, fence, check again. To publish: store the position, fence, check the flag. The fence is what
  x86-64 needs between a store and a later load; the atomic instructions of an uncontended lock are one. So at least one
  side sees the other. The side that clears the other's flag always wakes it afterwards.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from threading import Lock
from typing import Final, final

from netstack.base.transport import Piece, byte_view

HEADER_BYTES: Final = 4096

WAKE_ROOM: Final = 4
"""A writer that waits for room is woken when 1/4 of the ring is free, not for every few bytes."""

# Indices of words: 128 bytes apart, because processors fetch cache lines in pairs.
WRITTEN: Final = 0
READ: Final = 16
READER_SLEEPS: Final = 32
WRITER_SLEEPS: Final = 48
ENDED: Final = 64


class RingBroken(Exception):
    """The other side published an impossible position."""


@final
class RingWriter:
    """The writing side. Not usable after its memory was closed."""

    __slots__ = ("_capacity", "_fence", "_mapping", "_read", "_start", "_words", "_written")

    def __init__(self, mapping: mmap.mmap, words: memoryview, base: int, capacity: int) -> None:
        """Args: the memory; the ring's words; the ring's offset in the memory; its capacity in bytes."""
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
        try:
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
                    break  # this piece may be incomplete, so nothing may follow it
        except (IndexError, NotImplementedError):  # the items of a piece are not bytes
            return self.write([byte_view(piece) for piece in pieces])
        if written != before:
            self._written = self._words[WRITTEN] = written
        return written - before

    def end(self) -> None:
        """Marks the end: nothing more will be written."""
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
        """Whether there is enough room to wake up; also True if the reader's position is impossible."""
        try:
            return self._look() * WAKE_ROOM >= self._capacity
        except RingBroken:
            return True

    def may_sleep(self) -> bool:
        """Announces that the writer sleeps; returns False, without announcing, if there is room already."""
        self._words[WRITER_SLEEPS] = 1
        with self._fence:
            pass
        if self.has_room():
            self._words[WRITER_SLEEPS] = 0
            return False
        return True

    def stay_awake(self) -> None:
        """Announces that the writer is awake."""
        self._words[WRITER_SLEEPS] = 0

    def _look(self) -> int:
        read = self._words[READ]
        if not self._read <= read <= self._written:
            raise RingBroken(
                f"it says that it has read {read} bytes, after {self._read} of {self._written} that were written"
            )
        self._read = read
        return read + self._capacity - self._written


@final
class RingReader:
    """The reading side. Not usable after its memory was closed."""

    __slots__ = ("_capacity", "_fence", "_read", "_start", "_view", "_words", "_written")

    def __init__(self, view: memoryview, words: memoryview, base: int, capacity: int) -> None:
        """Args: the memory; the ring's words; the ring's offset in the memory; its capacity in bytes."""
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
            written = words[WRITTEN]  # final since `ended` is set
            if written == read:
                return 0
        if not self._written <= written <= read + capacity:
            raise RingBroken(
                f"it says that it has written {written} bytes, after {self._written}, of which {read} were read"
            )
        self._written = written
        view, start = self._view, self._start
        try:
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
        except (ValueError, NotImplementedError):  # the items of a window are not bytes
            return self.read_into([byte_view(window) for window in windows])
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
        """Whether there is data, or the end."""
        return bool(self._words[WRITTEN] != self._read or self._words[ENDED])

    def may_sleep(self) -> bool:
        """Announces that the reader sleeps; returns False, without announcing, if there is data already."""
        self._words[READER_SLEEPS] = 1
        with self._fence:
            pass
        if self.has_more():
            self._words[READER_SLEEPS] = 0
            return False
        return True

    def stay_awake(self) -> None:
        """Announces that the reader is awake."""
        self._words[READER_SLEEPS] = 0
