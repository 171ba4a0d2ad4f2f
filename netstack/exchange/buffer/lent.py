"""LentBuffers: finished buffers over memory that its lender owns until they are sent.

Takes: pieces of memory, and a segment for each buffer that is reserved for it. Gives: `LentPart`s, each with one or
several of the buffers. The memory returns to its lender when all were sent, or as soon as `detach` has copied the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, final

from ...base.events import DataType
from .buffer import Buffer
from .pools import LocalBufferPool
from .segment import Segment

_DATA: Final = DataType.DATA
_EMPTY: Final = memoryview(b"")


@final
class LentBuffers:
    """A run of finished buffers of one size over memory that its lender owns until they are sent; one queue element.

    Copying a large record into segments costs as much as sending it. So a large record is queued without a copy, cut
    into parts of the size of a network buffer. Each part *reserves* a segment and does not write to it, so the pool's
    bounds, the quota and back-pressure are those of copied buffers. If the lender needs its memory back early
    (cancellation, a snapshot), `detach` copies the bytes into the reserved segments.

    Attributes:
        buffers: how many are in the queue.
        is_returned: whether the memory has returned to the lender.
        on_returned: called when the memory returns to the lender because the buffers were sent or dropped. A lender
            sets it when it begins to wait: most buffers return while nobody waits for them.
    """

    __slots__ = (
        "_cursor",
        "_is_copied",
        "_on_the_way",
        "_pool",
        "_segments",
        "_size_bytes",
        "_subpartition",
        "buffers",
        "is_returned",
        "on_returned",
    )
    data_type = _DATA
    is_data = True
    is_finished = True

    def __init__(
        self,
        pieces: tuple[memoryview, ...],
        size_bytes: int,
        segments: list[Segment],
        pool: LocalBufferPool,
        subpartition: int,
    ) -> None:
        """Queues a buffer of `size_bytes` for each segment without copying the bytes.

        Args:
            pieces: the bytes of all buffers.
            size_bytes: bytes of each buffer.
            segments: reserved for `detach`; owned by the run.
            pool: to which the segments return.
            subpartition: to which the segments are charged.
        """
        self.buffers = len(segments)
        self.is_returned = False
        self.on_returned: Callable[[], None] | None = None
        self._cursor = PieceCursor(pieces)
        self._size_bytes = size_bytes
        self._segments = segments
        self._pool = pool
        self._subpartition = subpartition
        self._on_the_way = 0
        self._is_copied = False

    @property
    def unread_bytes(self) -> int:
        """The bytes in the queue."""
        return self.buffers * self._size_bytes

    def has_data(self) -> bool:
        """Whether any of its buffers is in the queue."""
        return self.buffers > 0

    def build(self) -> Buffer | None:
        """The next buffer; None after the last."""
        return self.take(1, 0) if self.buffers else None

    def take(self, most: int, room_bytes: int) -> LentPart:
        """Takes the next buffers, of which there must be one: at most `most`, and as many as begin in `room_bytes`."""
        size = self._size_bytes
        count = min(most, self.buffers, max(1, -(-room_bytes // size)))
        self.buffers -= count
        self._on_the_way += count
        segments = self._segments
        if self.buffers:
            segments, self._segments = segments[:count], segments[count:]
        return LentPart(self, self._cursor.take(count * size), count * size, segments)

    def snapshot(self) -> bytes:
        """A copy of the bytes in the queue."""
        return b"".join(self._cursor.rest()) if self.buffers else b""

    def detach(self) -> bool:
        """Copies the bytes in the queue into the reserved segments.

        Returns:
            Whether buffers are on the way. The connection must then copy the bytes that it has not sent.
        """
        if self.is_returned:
            return False
        if self.buffers and not self._is_copied:
            self._is_copied = True
            size = self._size_bytes
            copies = []
            for segment in self._segments:
                position = 0
                for piece in self._cursor.take(size):
                    segment.memory[position : position + len(piece)] = piece
                    position += len(piece)
                copies.append(segment.memory[:size])
            self._cursor = PieceCursor(copies)
        self.is_returned = not self._on_the_way
        return not self.is_returned

    def close(self) -> None:
        """Drops what is left from the queue; what was taken belongs to its reader."""
        count, self.buffers = self.buffers, 0
        if count:
            self._on_the_way += count
            self.give_back(self._segments)

    def give_back(self, segments: list[Segment]) -> None:
        """Returns segments, whose buffers were sent or dropped, to the pool."""
        pool, subpartition = self._pool, self._subpartition
        self._on_the_way -= len(segments)
        for segment in segments:
            pool.recycle(segment, subpartition)
        if not self._on_the_way and (self._is_copied or not self.buffers) and not self.is_returned:
            self.is_returned = True
            if self.on_returned is not None:
                self.on_returned()


@final
class LentPart(Buffer):
    """Buffers of a run (`LentBuffers`) that were taken together: `buffers` of the same size.

    Attributes:
        frame_bytes: bytes of the frame of each buffer; 0 until an `OutgoingBatch` has framed several.
    """

    __slots__ = ("_run", "_segments", "frame_bytes")

    def __init__(self, run: LentBuffers, pieces: tuple[memoryview, ...], length: int, segments: list[Segment]) -> None:
        super().__init__(pieces[0], length, _DATA, None, segments[0])
        if len(pieces) > 1:
            self.pieces = pieces
        self.buffers = len(segments)
        self.frame_bytes = 0
        self._run = run
        self._segments = segments

    def give_back(self, count: int) -> None:
        """Returns the segments of its first `count` buffers, which were sent, unless they are back already."""
        back = count - (self.buffers - len(self._segments))
        if back > 0:
            segments = self._segments
            self._segments = segments[back:]
            self._run.give_back(segments[:back])

    def _reclaim(self) -> None:
        segments, self._segments = self._segments, []
        self.pieces = None
        self.memory = _EMPTY
        self._run.give_back(segments)


@final
class PieceCursor:
    """Cuts a stream of pieces at arbitrary lengths without copying."""

    __slots__ = ("_left", "_pieces")

    def __init__(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        self._pieces = iter(pieces)
        self._left = _EMPTY

    def take(self, count: int) -> tuple[memoryview, ...]:
        """The next `count` bytes, which must exist, as views."""
        taken: list[memoryview] = []
        left = self._left
        while count:
            if not left:
                left = memoryview(next(self._pieces))
                continue
            if len(left) <= count:
                taken.append(left)
                count -= len(left)
                left = _EMPTY
            else:
                taken.append(left[:count])
                left = left[count:]
                count = 0
        self._left = left
        return tuple(taken)

    def rest(self) -> list[memoryview]:
        """All remaining bytes; they are not taken."""
        pieces = [self._left, *(memoryview(piece) for piece in self._pieces)]
        self._left = _EMPTY
        self._pieces = iter(pieces)
        return pieces


def last_on_loan(runs: list[LentBuffers]) -> LentBuffers | None:
    """The last of these runs whose memory has not returned; those in front of it usually return before it."""
    for run in reversed(runs):
        if not run.is_returned:
            return run
    return None


def take_back(runs: list[LentBuffers]) -> bool:
    """Detaches all; returns whether some buffers are on the way, so that the connection must copy its unsent bytes."""
    on_the_way = False
    for run in runs:
        on_the_way = run.detach() or on_the_way
    return on_the_way
