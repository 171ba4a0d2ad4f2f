"""Fixed-size blocks of memory, each with one owner at a time.

Takes: a size and a count. Gives: `Segment`s to the pools.

A segment has two views of the same bytes, a memoryview (scatter, gather, slices) and as a numpy array (strided stores),
because creating either costs more than keeping both.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Final, final

import numpy as np
import numpy.typing as npt

Bytes1D = npt.NDArray[np.uint8]

HUGE_BYTES: Final = 16 * 1024 * 1024
"""What is used first of a reservation may take huge pages: few segments carry bulk data, which is 4 % faster so. All of
it may not (numpy would ask for that): a few bytes in each of many segments would then take the memory of all."""


@final
class Segment:
    """One block of memory; its present owner may write to it.

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
        """Its size."""
        return len(self.memory)


@final
class SegmentReservation:
    """Address space for segments that are created on first use.

    The operating system provides each page when it is first written, and a segment's two views are made with it: what
    is never used costs nothing but its address.

    Raises:
        MemoryError: the operating system refused the address space.
    """

    __slots__ = ("_region", "_size_bytes", "left")

    def __init__(self, count: int, size_bytes: int) -> None:
        size = max(1, count * size_bytes)
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"{size} bytes of address space: {error}") from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            start = -(-max(0, size - HUGE_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
            with contextlib.suppress(OSError):  # the kernel has no huge pages
                memory.madvise(mmap.MADV_HUGEPAGE, start)
        self._region: Bytes1D = np.frombuffer(memory, np.uint8)
        self._size_bytes = size_bytes
        self.left = count
        """Segments that were not created yet."""

    def make(self) -> Segment:
        """Creates the next segment; `left` must be above 0."""
        self.left -= 1
        start = self.left * self._size_bytes
        return Segment(self._region[start : start + self._size_bytes])
