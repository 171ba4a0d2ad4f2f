"""What one gathering write carries: control frames and buffers, in pieces for the socket.

Takes: frames, from `connection` and its endpoint, and how many bytes the socket took. Gives: pieces; buffers are
recycled as soon as the socket has them.
"""

from __future__ import annotations

import bisect
from typing import Final, final

from ..buffer.buffer import Buffer

GATHER_BYTES: Final = 512 * 1024
GATHER_FRAMES: Final = 64
"""One write carries what is ready, up to this: 16 buffers of 32 KiB reach the bare socket's rate; small frames are
bounded by number."""


@final
class OutgoingBatch:
    """What one gathering write carries, and how much of it the socket has taken.

    Attributes:
        pieces: for the socket, in order.
        total_bytes: over all pieces.
        has_room: whether another frame may be added.
    """

    __slots__ = ("_buffers", "_ends", "_taken", "has_room", "pieces", "total_bytes")

    def __init__(self) -> None:
        self.pieces: list[bytes | memoryview] = []
        self.total_bytes = 0
        self.has_room = True
        self._buffers: list[Buffer] = []
        self._ends: list[int] = []
        self._taken = 0

    def add_control(self, frame: bytes) -> None:
        """A control frame."""
        self.pieces.append(frame)
        total = self.total_bytes = self.total_bytes + len(frame)
        if total >= GATHER_BYTES:
            self.has_room = False

    def add_buffer(self, header: bytes, buffer: Buffer) -> bool:
        """A buffer; its reference belongs to the batch now. Returns whether there is room for another."""
        pieces = self.pieces
        pieces.append(header)
        if buffer.pieces is None:
            pieces.append(buffer.memory)
        else:
            pieces.extend(buffer.pieces)
        total = self.total_bytes = self.total_bytes + len(header) + buffer.length
        self._buffers.append(buffer)
        self._ends.append(total)
        self.has_room = total < GATHER_BYTES and len(self._ends) < GATHER_FRAMES
        return self.has_room

    def add_pieces(self, pieces: list[bytes | memoryview], buffer: Buffer) -> bool:
        """A frame in pieces, over a buffer whose reference belongs to the batch now. See `add_buffer`."""
        self.pieces += pieces
        total = self.total_bytes = self.total_bytes + sum(map(len, pieces))
        self._buffers.append(buffer)
        self._ends.append(total)
        self.has_room = total < GATHER_BYTES and len(self._ends) < GATHER_FRAMES
        return self.has_room

    def take(self, count: int) -> bool:
        """The socket took `count` more bytes: buffers that are through are recycled. Returns whether all are."""
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
        return False

    def settle(self) -> None:
        """Copies what is left and recycles every buffer: memory that was lent for it may change now."""
        self.pieces = [b"".join(self.pieces)]
        self.release()

    def release(self) -> None:
        """Recycles every buffer; idempotent."""
        buffers, self._buffers = self._buffers, []
        self._ends = []
        for buffer in buffers:
            buffer.recycle()
