"""Which pages of a kept partition are compressed: all, none, or those where that takes less time than it saves.

Takes: pages; after each region what writing it took, by an injected clock. Gives: pages, compressed or not.

Rules of `auto`:
- A stored byte costs `write_s_per_byte`: time in the write calls, so also waiting for a disk, and being held up because
  too much is dirty. A byte that is compressed costs `compress_s_per_byte` and leaves `stored_share` of it to be
  written. Both are wall time of the same thread, so that both grow alike where it waits for a processor.
- What a write costs belongs to the disk, so partitions share it (`WriteCost`); the other two belong to the data.
- Where it does not pay, one page in `SAMPLE_EVERY` is compressed all the same, or fewer, so that this takes at most so
  much of the time: thus the figures stay those of today.
- Where room is scarce whatever gets smaller is compressed.
- What the writer does not see is not in it: decompressing, and what compressed pages save on their way to consumers.
  Through a network slower than the disk `lz4` is the better choice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from ..events import DataType
from .pages import Piece, encode_page

SAMPLE_EVERY: Final = 256
"""8 MiB of pages of 32 KiB. Each compressed page gives the interpreter's lock away, and may wait for it."""

MAX_PLAIN_PAGES: Final = 1 << 20

NEWEST: Final = 0.2
"""Weight of the newest region, of some MiB, in the moving averages."""

SCARCE: Final = 1 / 8
"""Less than this share left of the quota, or of the disk, is scarce."""

_DATA: Final = DataType.DATA


def pays(write_s_per_byte: float, compress_s_per_byte: float, stored_share: float) -> bool:
    """Whether compressing takes less time than writing what it saves.

    Args:
        write_s_per_byte: of a byte in the file.
        compress_s_per_byte: of a byte that is compressed.
        stored_share: bytes in the file for each of these; 1 if no page gets smaller.
    """
    return compress_s_per_byte < (1 - stored_share) * write_s_per_byte


@final
class WriteCost:
    """What a byte written costs on this disk: shared by the partitions of a TaskManager.

    Attributes:
        s_per_byte: moving average; 0 until something was written.
    """

    __slots__ = ("s_per_byte",)

    def __init__(self) -> None:
        self.s_per_byte = 0.0

    def add(self, size: int, duration_s: float) -> None:
        """So many bytes were written in so long."""
        if size:
            self.s_per_byte = _moved(self.s_per_byte, duration_s / size)


@final
class PageCompression:
    """Of one partition. `encode` runs in the thread that writes a region, `on_region` in the event loop, by turns.

    Attributes:
        data_bytes: of records, in all pages so far.
        compressed_bytes: of these, in pages that were compressed.
        is_compressing: whether all pages are compressed, as far as they get smaller.
    """

    __slots__ = (
        "_compress_s_per_byte",
        "_cost",
        "_is_auto",
        "_plain_pages",
        "_sample_after",
        "_ticks",
        "_tried_bytes",
        "_tried_s",
        "_tried_stored",
        "_tries",
        "compressed_bytes",
        "data_bytes",
        "is_compressing",
        "stored_share",
    )

    def __init__(self, choice: str, cost: WriteCost, ticks: Callable[[], float]) -> None:
        """Args: `auto`, `lz4` or `none`; of the disk; seconds, read in the thread that writes."""
        self._is_auto = choice == "auto"
        self._tries = choice != "none"
        self._cost = cost
        self._ticks = ticks
        self.is_compressing = choice == "lz4"
        self.data_bytes = 0
        self.compressed_bytes = 0
        self._sample_after = SAMPLE_EVERY - 1
        self._plain_pages = self._sample_after  # since the last sample: the first page is one
        self._tried_bytes = 0
        self._tried_stored = 0
        self._tried_s = 0.0
        self._compress_s_per_byte = 0.0
        self.stored_share = 0.0
        """Moving average of those that were tried; 0 until one was."""

    def encode(self, data_type: DataType, pieces: list[memoryview], length: int) -> list[Piece]:
        """Encodes a page, as `encode_page` does."""
        if data_type is not _DATA:
            return encode_page(data_type, pieces, length, compressed=False)
        self.data_bytes += length
        if not self._tries:
            return encode_page(data_type, pieces, length, compressed=False)
        if not self.is_compressing:
            if self._plain_pages < self._sample_after:
                self._plain_pages += 1
                return encode_page(data_type, pieces, length, compressed=False)
            self._plain_pages = 0
        began = self._ticks()
        page = encode_page(data_type, pieces, length, compressed=True)
        self._tried_s += self._ticks() - began
        stored = 0
        for piece in page:
            stored += len(piece)
        self._tried_bytes += length
        self._tried_stored += min(stored, length)
        if stored < length:
            self.compressed_bytes += length
        return page

    def on_region(self, size: int, write_s: float, *, is_scarce: bool) -> None:
        """A region was written; decides about the next.

        Args:
            size: bytes written.
            write_s: time in the write calls.
            is_scarce: whether there is little room left.
        """
        self._cost.add(size, write_s)
        if self._tried_bytes:
            self._compress_s_per_byte = _moved(self._compress_s_per_byte, self._tried_s / self._tried_bytes)
            self.stored_share = _moved(self.stored_share, self._tried_stored / self._tried_bytes)
            self._tried_bytes = self._tried_stored = 0
            self._tried_s = 0.0
        if self._cost.s_per_byte > 0:
            times = self._compress_s_per_byte / self._cost.s_per_byte
            self._sample_after = int(min(SAMPLE_EVERY * max(1.0, times), MAX_PLAIN_PAGES)) - 1
        if self._is_auto:
            self.is_compressing = is_scarce or (
                self.stored_share > 0 and pays(self._cost.s_per_byte, self._compress_s_per_byte, self.stored_share)
            )


def _moved(average: float, newest: float) -> float:
    return newest if not average else average + (newest - average) * NEWEST
