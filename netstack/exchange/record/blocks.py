"""BlockCache: reuses the memory of decoded records that are no longer referenced.

Takes: sizes. Gives: blocks to `rows` and `deserializer`.

Fresh memory costs a page fault every 4 KiB, a fifth of the time of reading bulk data. Every array or view that a reader
returns refers to its block, so a block that only the cache refers to is free. The reference count of a free block
depends on the interpreter, and is measured once. Without reference counting, blocks are never reused.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

KEPT_BLOCKS: Final = 4
"""Enough for a consumer that uses a few arrays at a time."""

GRAIN_BYTES: Final = 64 * 1024
"""Sizes are rounded up to this, so that records of similar length share blocks."""


def _count_of_unshared() -> int:
    """The reference count of a block in a list without other references; -1 if other references do not raise it."""
    blocks = [np.empty(1, np.uint8)]
    alone = sys.getrefcount(blocks[0])
    view = blocks[0][:1]
    return alone if sys.getrefcount(blocks[0]) == alone + view.size else -1


_UNSHARED: Final = _count_of_unshared()


@final
class BlockCache:
    """A few blocks of memory; one cache for each channel."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: list[npt.NDArray[np.uint8]] = []

    def take(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        """Returns `size_bytes` bytes of undefined content; the caller owns them as long as it refers to them."""
        blocks = self._blocks
        most_bytes = 2 * size_bytes + GRAIN_BYTES
        for index in range(len(blocks)):  # no variable for the block: some interpreters would count it
            if size_bytes <= len(blocks[index]) <= most_bytes and sys.getrefcount(blocks[index]) == _UNSHARED:
                return blocks[index][:size_bytes]
        block = np.empty(-(-size_bytes // GRAIN_BYTES) * GRAIN_BYTES, np.uint8)
        self._blocks.append(block)
        if len(self._blocks) > KEPT_BLOCKS:
            del self._blocks[0]
        return block[:size_bytes]

    def clear(self) -> None:
        """Drops all blocks."""
        self._blocks.clear()
