"""LentBuffer: a finished queue element over memory that its lender owns until it is sent.

Takes: pieces of memory, and a segment that is reserved for them. Gives: one `Buffer` over the pieces. The memory
returns to its lender when the buffer was sent, or as soon as `detach` has copied it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from ...base.events import DataType
from .buffer import Buffer
from .pools import LocalBufferPool
from .segment import Segment

_DATA: Final = DataType.DATA
_GONE: Final = memoryview(b"")


@final
class LentBuffer(Buffer):
    """A finished buffer over memory that its lender owns until it is sent; queue element and `Buffer` in one.

    Copying a large record into a segment costs as much as sending it. So a large record is queued without a copy, cut
    into parts of the size of a network buffer. Each part *reserves* a segment and does not write to it, so the pool's
    bounds, the quota and back-pressure are those of copied buffers. If the lender needs its memory back early
    (cancellation, a snapshot), `detach` copies the bytes into the reserved segment.
    """

    __slots__ = ("_built", "_pool", "_subpartition", "is_returned", "on_returned")
    is_data = True
    is_finished = True

    def __init__(
        self,
        pieces: tuple[memoryview, ...],
        length: int,
        segment: Segment,
        pool: LocalBufferPool,
        subpartition: int,
    ) -> None:
        """Queues `length` bytes without copying them.

        Args:
            pieces: the bytes.
            length: number of bytes in all pieces.
            segment: reserved for `detach`.
            pool: to which the segment returns.
            subpartition: to which the segment is charged.
        """
        super().__init__(pieces[0], length, _DATA, None, segment)
        if len(pieces) > 1:
            self.pieces = pieces
        self._pool = pool
        self._subpartition = subpartition
        self.is_returned = False
        """Whether the memory has returned to the lender."""
        self.on_returned: Callable[[], None] | None = None
        """Called when the memory returns to the lender because the buffer was sent or dropped. A lender sets it when it
        begins to wait: most buffers return while nobody waits for them."""
        self._built = False

    @property
    def unread_bytes(self) -> int:
        """All its bytes until it is built, then 0."""
        return 0 if self._built else self.length

    def has_data(self) -> bool:
        """True until it is built."""
        return not self._built

    def build(self) -> Buffer | None:
        """Itself at the first call, with the queue's reference; then None."""
        if self._built:
            return None
        self._built = True
        return self

    def snapshot(self) -> bytes:
        """A copy of the bytes not yet built."""
        return b"" if self._built else bytes(self.contiguous())

    def detach(self) -> bool:
        """Copies the bytes into the reserved segment, unless it was taken for sending or returned.

        Returns:
            Whether the buffer was taken for sending. The connection must then copy the bytes that it has not sent.
        """
        if self.is_returned:
            return False
        if self._built:
            return True
        assert self.segment is not None
        memory = self.segment.memory
        position = 0
        for piece in self.pieces or (self.memory,):
            memory[position : position + len(piece)] = piece
            position += len(piece)
        self.memory = memory[:position]
        self.pieces = None
        self.is_returned = True
        return False

    def close(self) -> None:
        """Drops the buffer from the queue. After `build` the reader owns the reference, and nothing happens."""
        if not self._built:
            self._built = True
            self.recycle()

    def _reclaim(self) -> None:
        assert self.segment is not None
        was_back, self.is_returned = self.is_returned, True
        self.pieces = None
        self.memory = _GONE
        self._pool.recycle(self.segment, self._subpartition)
        if not was_back and self.on_returned is not None:
            self.on_returned()


def last_on_loan(buffers: list[LentBuffer]) -> LentBuffer | None:
    """The last of these buffers whose memory has not returned; those in front of it usually return before it."""
    for buffer in reversed(buffers):
        if not buffer.is_returned:
            return buffer
    return None


def take_back(buffers: list[LentBuffer]) -> bool:
    """Detaches all; returns whether one was taken for sending, so that the connection must copy its unsent bytes."""
    on_the_way = False
    for buffer in buffers:
        on_the_way = buffer.detach() or on_the_way
    return on_the_way
