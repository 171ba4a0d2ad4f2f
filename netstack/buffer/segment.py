"""Fixed-size memory with one owner.

Takes: a size and a count. Gives: `Segment`s to the pools.

A segment carries the same bytes twice, as a memoryview (scatter, gather, slices) and as a numpy array (strided stores),
because making either costs more than keeping both.
"""

from __future__ import annotations

from typing import final

import numpy as np
import numpy.typing as npt

Bytes1D = npt.NDArray[np.uint8]


@final
class Segment:
    """One block of memory; whoever holds it may write to it.

    Attributes:
        memory: all of its bytes.
        array: the same bytes as a one-dimensional uint8 array.
    """

    __slots__ = ("array", "memory")

    def __init__(self, array: Bytes1D) -> None:
        self.array = array
        self.memory: memoryview = array.data

    @property
    def size_bytes(self) -> int:
        """Its length."""
        return len(self.memory)


def allocate_segments(count: int, size_bytes: int) -> list[Segment]:
    """`count` segments cut from one reservation.

    The reservation is address space; the operating system provides each page when it is first written, so segments that
    are never used cost nothing.
    """
    region = np.empty(count * size_bytes, dtype=np.uint8)
    return [Segment(region[start : start + size_bytes]) for start in range(0, count * size_bytes, size_bytes)]
