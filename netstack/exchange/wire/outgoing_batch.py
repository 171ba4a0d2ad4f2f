"""OutgoingBatch: the control frames and buffers of one gathering write, in pieces for the socket.

Takes: frames from `connection` and its endpoint, and how many bytes the socket took. Gives: pieces. Buffers are
recycled as soon as the socket has taken them.
"""

from __future__ import annotations

import bisect
from typing import Final, final

from ..buffer.buffer import Buffer
from ..buffer.lent import LentPart, PieceCursor

GATHER_BYTES: Final = 512 * 1024
GATHER_FRAMES: Final = 64
"""Limits of one write: 16 buffers of 32 KiB reach the rate of a bare socket; small frames are limited by number."""


@final
class OutgoingBatch:
    """The pieces of one gathering write, and how much of it the socket has taken.

    Attributes:
        pieces: for the socket, in order.
        has_room: whether another frame may be added.
        frames_left: how many more frames of data may be added.
    """

    __slots__ = ("_buffers", "_ends", "_taken", "frames_left", "has_room", "pieces", "total_bytes")

    def __init__(self) -> None:
        self.pieces: list[bytes | memoryview] = []
        self.total_bytes = 0
        self.has_room = True
        self.frames_left = GATHER_FRAMES
        self._buffers: list[Buffer] = []
        self._ends: list[int] = []
        self._taken = 0

    def add_control(self, frame: bytes) -> None:
        """Adds a control frame."""
        self.pieces.append(frame)
        total = self.total_bytes = self.total_bytes + len(frame)
        if total >= GATHER_BYTES:
            self.has_room = False

    def add_buffer(self, header: bytes, buffer: Buffer) -> bool:
        """Adds a buffer and takes over its reference. Returns whether there is room for another."""
        pieces = self.pieces
        pieces.append(header)
        if buffer.pieces is None:
            pieces.append(buffer.memory)
        else:
            pieces.extend(buffer.pieces)
        return self._count(self.total_bytes + len(header) + buffer.length, buffer)

    def add_run(self, headers: list[bytes], part: LentPart) -> bool:
        """Adds the buffers of a part, and takes over the part. Returns as `add_buffer`.

        Args:
            headers: one for each buffer, all of the same length.
            part: buffers that are not framed yet.
        """
        pieces = self.pieces
        size = part.length // part.buffers
        part.frame_bytes = len(headers[0]) + size
        if part.pieces is None:
            memory, at = part.memory, 0
            for header in headers:
                pieces.append(header)
                pieces.append(memory[at : at + size])
                at += size
        else:
            cursor = PieceCursor(part.pieces)
            for header in headers:
                pieces.append(header)
                pieces.extend(cursor.take(size))
        return self._count(self.total_bytes + part.buffers * part.frame_bytes, part)

    def _count(self, total: int, buffer: Buffer) -> bool:
        self.total_bytes = total
        self._buffers.append(buffer)
        self._ends.append(total)
        self.frames_left -= buffer.buffers
        self.has_room = total < GATHER_BYTES and self.frames_left > 0
        return self.has_room

    def add_pieces(self, pieces: list[bytes | memoryview], buffer: Buffer) -> bool:
        """Adds a frame in pieces, and takes over the reference of its buffer. Returns as `add_buffer`."""
        self.pieces += pieces
        return self._count(self.total_bytes + sum(map(len, pieces)), buffer)

    def take(self, count: int) -> bool:
        """Counts `count` more bytes that the socket took, and recycles sent buffers. Returns whether all is sent."""
        self._taken += count
        if self._taken == self.total_bytes:
            self.release()
            return True
        through = bisect.bisect_right(self._ends, self._taken)
        done, self._buffers = self._buffers[:through], self._buffers[through:]
        del self._ends[:through]
        whole = 0
        for piece in self.pieces:
            if len(piece) > count:
                break
            count -= len(piece)
            whole += 1
        del self.pieces[:whole]
        if count:
            self.pieces[0] = memoryview(self.pieces[0])[count:]
        for buffer in done:
            buffer.recycle()
        if self._buffers:
            first = self._buffers[0]
            if isinstance(first, LentPart) and first.frame_bytes:
                left = -(-(self._ends[0] - self._taken) // first.frame_bytes)
                if left < first.buffers:
                    first.give_back(first.buffers - left)
        return False

    def settle(self) -> None:
        """Copies the unsent bytes and recycles every buffer, so that lent memory may change."""
        self.pieces = [b"".join(self.pieces)]
        self.release()

    def release(self) -> None:
        """Recycles every buffer. Idempotent."""
        buffers, self._buffers = self._buffers, []
        self._ends = []
        for buffer in buffers:
            buffer.recycle()
