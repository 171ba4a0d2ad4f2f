"""Reads LZO1X blocks, which Flink writes when it is told to compress with LZO; there is no library of it to rely on.

Takes: a block and the length of what is in it. Gives: that.

A block is a row of instructions, each a byte and what belongs to it: copy so many bytes from the block (literals), or
so many of those that were written a certain distance ago (a match). Rules: nothing beyond the promised length is ever
written, and nothing that is not there is read, whatever the block says. About 10 MB/s: LZO is read, not recommended.
"""

from __future__ import annotations

from typing import Final

_AFTER_LITERALS: Final = 4
"""The state after a run of literals; otherwise it is the number of literals that followed the last match."""


def decompress(block: bytes, size: int) -> bytes:
    """What is in a block.

    Args:
        block: all of it, with its end mark.
        size: how many bytes that are.

    Raises:
        ValueError: it is no such block.
    """
    try:
        return _Reader(block, size).read()
    except IndexError:
        raise ValueError(f"it ends early, after {len(block)} bytes") from None


class _Reader:
    def __init__(self, block: bytes, size: int) -> None:
        self._block = block
        self._size = size
        self._at = 0
        self._out = bytearray()

    def read(self) -> bytes:
        state = self._first()
        while True:
            code = self._byte()
            if code >= 64:
                length = (code >> 5) + 1
                distance = (self._byte() << 3) + (code >> 2 & 7) + 1
            elif code >= 32:
                length = self._length(code & 31, 31) + 2
                code = self._pair()
                distance = (code >> 2) + 1
            elif code >= 16:
                length = self._length(code & 7, 7) + 2
                high = (code & 8) << 11
                code = self._pair()
                distance = 16384 + high + (code >> 2)
                if distance == 16384:
                    return self._end(length)
            elif not state:
                self._literals(self._length(code, 15) + 3)
                state = _AFTER_LITERALS
                continue
            else:
                is_far = state == _AFTER_LITERALS
                length = 3 if is_far else 2
                distance = (self._byte() << 2) + (code >> 2) + (2049 if is_far else 1)
            self._match(distance, length)
            state = code & 3
            self._literals(state)

    def _first(self) -> int:
        """The first byte may tell of literals in another way."""
        if self._block[0] <= 17:
            return 0
        count = self._byte() - 17
        self._literals(count)
        return min(count, _AFTER_LITERALS)

    def _byte(self) -> int:
        value = self._block[self._at]
        self._at += 1
        return value

    def _pair(self) -> int:
        return self._byte() | self._byte() << 8

    def _length(self, told: int, most: int) -> int:
        """A length that has its own bytes if it does not fit the instruction."""
        if told:
            return told
        length = most
        while not (value := self._byte()):
            length += 255
        return length + value

    def _literals(self, count: int) -> None:
        end = self._at + count
        if end > len(self._block):
            raise IndexError
        self._room_for(count)
        self._out += self._block[self._at : end]
        self._at = end

    def _match(self, distance: int, length: int) -> None:
        out = self._out
        if distance > len(out):
            raise ValueError(f"it repeats what is {distance} bytes before, after {len(out)}")
        self._room_for(length)
        start = len(out) - distance
        piece = out[start : start + length]
        if length > distance:  # what is repeated overlaps what is written: a pattern, again and again
            piece = (piece * (length // distance + 1))[:length]
        out += piece

    def _room_for(self, count: int) -> None:
        if len(self._out) + count > self._size:
            raise ValueError(f"more than {self._size} bytes are in it")

    def _end(self, length: int) -> bytes:
        if length != 3 or self._at != len(self._block) or len(self._out) != self._size:
            raise ValueError(
                f"its end comes {len(self._block) - self._at} bytes early, with {len(self._out)} of {self._size} bytes"
                " written"
            )
        return bytes(self._out)
