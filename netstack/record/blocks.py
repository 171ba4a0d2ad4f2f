"""Memory for what readers hand out, used again when nobody looks at it any more.

Takes: sizes. Gives: blocks to `rows` and `deserializer`.

Fresh memory costs a page fault every 4 KiB: a fifth of the time of reading bulk data. Every array or view handed out
refers to its block, so a block to which only the cache refers is free. How many references that makes depends on the
interpreter, and is measured once. Where references are not counted, blocks are merely never reused.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

KEPT_BLOCKS: Final = 4
"""Enough for a consumer that looks at a few arrays at once."""

GRAIN_BYTES: Final = 64 * 1024
"""Sizes are rounded up to this, so that records of similar length share blocks."""


def _count_of_unshared() -> int:
    """What is counted for a block in a list at which nobody looks; -1 where it is no less than when somebody does."""
    blocks = [np.empty(1, np.uint8)]
    alone = sys.getrefcount(blocks[0])
    view = blocks[0][:1]
    return alone if sys.getrefcount(blocks[0]) == alone + view.size else -1


_UNSHARED: Final = _count_of_unshared()


@final
class BlockCache:
    """A few blocks of memory; one cache a channel."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: list[npt.NDArray[np.uint8]] = []

    def take(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        """`size_bytes` bytes of undefined content; they are the caller's as long as it refers to them."""
        blocks = self._blocks
        most_bytes = 2 * size_bytes + GRAIN_BYTES
        for index in range(len(blocks)):  # without a name for the block, which would count or not, by the interpreter
            if size_bytes <= len(blocks[index]) <= most_bytes and sys.getrefcount(blocks[index]) == _UNSHARED:
                return blocks[index][:size_bytes]
        block = np.empty(-(-size_bytes // GRAIN_BYTES) * GRAIN_BYTES, np.uint8)
        self._blocks.append(block)
        if len(self._blocks) > KEPT_BLOCKS:
            del self._blocks[0]
        return block[:size_bytes]

    def clear(self) -> None:
        """Keeps nothing any longer."""
        self._blocks.clear()
