"""Buffers that share a segment because they arrived in one frame, and buffers that are still compressed.

Takes: the buffer that owns the segment, and sizes. Gives: a buffer for each part; the last one returns the segment.
"""

from __future__ import annotations

from typing import Final, final

from ...base.events import DataType
from ..buffer.buffer import Buffer, PartOwner
from ..wire.codec import Inflate

_DATA: Final = DataType.DATA


@final
class CompressedBuffer(Buffer):
    """A buffer that its channel decompresses in `poll`."""

    __slots__ = ("_inflate",)

    def __init__(self, memory: memoryview, owner: PartOwner, inflate: Inflate) -> None:
        super().__init__(memory, len(memory), _DATA, owner)
        self._inflate = inflate

    def inflated(self) -> Buffer:
        """Decompresses it to a buffer that takes over its reference, so the credit returns after reading.

        Raises:
            RemoteProtocolError: decompression failed; this buffer is unchanged.
        """
        data = self._inflate(self.memory)
        buffer = Buffer(memoryview(data), len(data), _DATA, self._owner)
        buffer.sequence = self.sequence
        return buffer


def buffers_of(whole: Buffer, sequence: int, sizes: tuple[int, ...], inflate: Inflate | None) -> list[Buffer]:
    """Creates a buffer for each part with bytes, in order.

    Args:
        whole: all parts together; each part retains it, the caller keeps its own reference.
        sequence: sequence number of the first part.
        sizes: bytes of each part.
        inflate: decompresses a part; None: the parts are not compressed.
    """
    owner = PartOwner(whole)
    buffers: list[Buffer] = []
    start = 0
    for index, size in enumerate(sizes):
        memory = whole.memory[start : start + size]
        start += size
        if not size and inflate is None:
            continue
        whole.retain()
        buffer = Buffer(memory, size, _DATA, owner) if inflate is None else CompressedBuffer(memory, owner, inflate)
        buffer.sequence = (sequence + index) & 0xFFFFFFFF  # 32 bits on the wire
        buffers.append(buffer)
    return buffers
