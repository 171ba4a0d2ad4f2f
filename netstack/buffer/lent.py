"""LentBuffer: a finished queue element over memory that belongs to somebody else until it is sent.

Takes: pieces of memory, and a segment that is reserved for them. Gives: a `Buffer` over the pieces, once; the memory
back to its lender when it was sent, or as soon as `detach` has copied it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from ..events import DataType
from .buffer import Buffer
from .local_pool import LocalBufferPool
from .segment import Segment

_DATA: Final = DataType.DATA
_GONE: Final = memoryview(b"")


@final
class LentBuffer(Buffer):
    """A finished buffer over memory that belongs to somebody else until it is sent; queue element and `Buffer` in one.

    Copying a large record into a segment costs as much as sending it. So a large record is queued where it lies, cut to
    the size of network buffers, and each cut *reserves* a segment without touching it: the pool's bounds, the quota and
    back-pressure are those of copied buffers. If the lender needs its memory back early (cancellation, a snapshot),
    `detach` copies the bytes into the reserved segment.
    """

    __slots__ = ("_built", "_is_back", "_on_back", "_pool", "_subpartition")
    is_data = True
    is_finished = True

    def __init__(
        self,
        pieces: tuple[memoryview, ...],
        length: int,
        segment: Segment,
        pool: LocalBufferPool,
        subpartition: int,
        on_back: Callable[[], None] | None = None,
    ) -> None:
        """Queues `length` bytes where they lie.

        Args:
            pieces: the bytes.
            length: how many, over all pieces.
            segment: reserved for `detach`.
            pool: where the segment returns.
            subpartition: who it is charged to.
            on_back: told when the memory is the lender's again because it was sent or dropped.
        """
        super().__init__(pieces[0], length, _DATA, None, segment)
        if len(pieces) > 1:
            self.pieces = pieces
        self._pool = pool
        self._subpartition = subpartition
        self._is_back = False
        self._on_back = on_back
        self._built = False

    @property
    def unread_bytes(self) -> int:
        """All of it, until it is built."""
        return 0 if self._built else self.length

    def has_data(self) -> bool:
        """Until it is built."""
        return not self._built

    def build(self) -> Buffer | None:
        """Itself, once; the queue's reference goes to the caller."""
        if self._built:
            return None
        self._built = True
        return self

    def snapshot(self) -> bytes:
        """A copy of the bytes not yet built."""
        return b"" if self._built else bytes(self.contiguous())

    @property
    def is_back(self) -> bool:
        """Whether the lent memory is the lender's again."""
        return self._is_back

    def detach(self) -> bool:
        """Moves the bytes into the reserved segment, unless they are on their way or back already.

        Returns:
            Whether they are on their way: then whoever sends them must copy the rest.
        """
        if self._is_back:
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
        self._is_back = True
        return False

    def close(self) -> None:
        """Dropped from the queue; once it was built, its reference is the reader's."""
        if not self._built:
            self._built = True
            self.recycle()

    def _reclaim(self) -> None:
        assert self.segment is not None
        was_back, self._is_back = self._is_back, True
        self.pieces = None
        self.memory = _GONE
        self._pool.recycle(self.segment, self._subpartition)
        if not was_back and self._on_back is not None:
            self._on_back()
