"""Several buffers that share one segment, because they came in one frame, and buffers that are still compressed.

Takes: the buffer that owns the segment, and sizes. Gives: a buffer for each part; the segment returns with the last.
"""

from __future__ import annotations

from typing import Final, final

from ..buffer.buffer import Buffer
from ..events import DataType
from ..wire.codec import Inflate

_DATA: Final = DataType.DATA


@final
class _Share:
    """Each part holds a reference to the whole (a `BufferOwner`)."""

    __slots__ = ("_whole",)

    def __init__(self, whole: Buffer) -> None:
        self._whole = whole

    def reclaim(self, buffer: Buffer) -> None:
        """One part less."""
        self._whole.recycle()


@final
class CompressedBuffer(Buffer):
    """A buffer that its channel decompresses before anybody sees it."""

    __slots__ = ("_inflate",)

    def __init__(self, memory: memoryview, owner: _Share, inflate: Inflate) -> None:
        super().__init__(memory, len(memory), _DATA, owner)
        self._inflate = inflate

    def inflated(self) -> Buffer:
        """The buffer that takes its place, with its reference to the segment: credit returns when it was read.

        Raises:
            RemoteProtocolError: it cannot be decompressed; this one is still there.
        """
        data = self._inflate(self.memory)
        buffer = Buffer(memoryview(data), len(data), _DATA, self._owner)
        buffer.sequence = self.sequence
        return buffer


def buffers_of(whole: Buffer, sequence: int, sizes: tuple[int, ...], inflate: Inflate | None) -> list[Buffer]:
    """A buffer for each part that has bytes, in order.

    Args:
        whole: all of them; each part retains it, the caller keeps its own reference.
        sequence: of the first part.
        sizes: of the parts.
        inflate: what decompresses a part; None if they are not compressed.
    """
    share = _Share(whole)
    buffers: list[Buffer] = []
    start = 0
    for index, size in enumerate(sizes):
        memory = whole.memory[start : start + size]
        start += size
        if not size and inflate is None:
            continue
        whole.retain()
        buffer = Buffer(memory, size, _DATA, share) if inflate is None else CompressedBuffer(memory, share, inflate)
        buffer.sequence = (sequence + index) & 0xFFFFFFFF  # it travels as 32 bits
        buffers.append(buffer)
    return buffers
