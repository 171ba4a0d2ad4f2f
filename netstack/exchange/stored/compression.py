"""PageCompression: decides which pages of a kept partition are compressed: all, none, or if that saves time.

Takes: pages; after each region the time that writing it took, from an injected clock. Gives: pages, compressed or not.

Rules of `auto`:
- A stored byte costs `write_s_per_byte`: the time in write calls, including waits for the disk and for dirty pages. A
  compressed byte costs `compress_s_per_byte`, and leaves `stored_share` of it to write. Both are wall time of the same
  thread, so waiting for a processor affects both alike.
- The cost of a write depends on the disk, so partitions share it (`WriteCost`); the other two depend on the data.
- Where compression does not pay, one page in `SAMPLE_EVERY` is compressed anyway, or fewer if it is slow, so that
  samples cost at most that share of the time. So the measurements stay current.
- Where disk space is scarce, every page that gets smaller is compressed.
- The writer does not measure the cost of decompression, nor what compressed pages save on the network. With a network
  slower than the disk, `lz4` is the better setting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from ...base.errors import DiskFull
from ...base.events import DataType
from .pages import Piece, encode_page

SAMPLE_EVERY: Final = 256
"""8 MiB of pages of 32 KiB. Each compressed page releases the interpreter's lock, and may wait for it."""

MAX_PLAIN_PAGES: Final = 1 << 20

NEWEST: Final = 0.2
"""Weight of the newest region, some MiB, in the moving averages."""

SCARCE: Final = 1 / 8
"""Disk space is scarce if less than this share of the quota, or of the disk, is left."""

_DATA: Final = DataType.DATA


def pays(write_s_per_byte: float, compress_s_per_byte: float, stored_share: float) -> bool:
    """Whether compressing takes less time than writing the bytes that it saves.

    Args:
        write_s_per_byte: cost of a byte in the file.
        compress_s_per_byte: cost of a byte that is compressed.
        stored_share: bytes in the file for each compressed byte; 1 if no page gets smaller.
    """
    return compress_s_per_byte < (1 - stored_share) * write_s_per_byte


@final
class WriteCost:
    """The cost of writing to this disk, shared by the partitions of a TaskManager.

    Attributes:
        s_per_byte: moving average; 0 before the first write.
    """

    __slots__ = ("s_per_byte",)

    def __init__(self) -> None:
        self.s_per_byte = 0.0

    def add(self, size: int, duration_s: float) -> None:
        """Adds a measurement."""
        if size:
            self.s_per_byte = _moved(self.s_per_byte, duration_s / size)


@final
class DiskQuota:
    """Limit and use of disk space by the partitions of a TaskManager."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int | None) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    @property
    def is_scarce(self) -> bool:
        """Whether little of it is left."""
        return self.limit_bytes is not None and self.used_bytes > (1 - SCARCE) * self.limit_bytes

    def check(self, more_bytes: int) -> None:
        """Checks that there is room. Raises DiskFull if there is not enough."""
        if self.limit_bytes is not None and self.used_bytes + more_bytes > self.limit_bytes:
            raise DiskFull(
                f"{more_bytes} more bytes on disk exceed the limit: kept partitions use {self.used_bytes} of"
                f" {self.limit_bytes}: raise shuffle_disk_bytes, or release partitions that are no longer read"
            )


@final
class PageCompression:
    """The compression of one partition. A writing thread calls `encode`, then the event loop `on_region`, in turns.

    Attributes:
        data_bytes: bytes of records in all pages so far.
        is_compressing: whether all pages are compressed, if they get smaller.
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
        """Takes `auto`, `lz4` or `none`; the cost of the disk; and a clock in seconds that the writing thread reads."""
        self._is_auto = choice == "auto"
        self._tries = choice != "none"
        self._cost = cost
        self._ticks = ticks
        self.is_compressing = choice == "lz4"
        self.data_bytes = 0
        self.compressed_bytes = 0
        self._sample_after = SAMPLE_EVERY - 1
        self._plain_pages = self._sample_after  # since the last sample; the first page is a sample
        self._tried_bytes = 0
        self._tried_stored = 0
        self._tried_s = 0.0
        self._compress_s_per_byte = 0.0
        self.stored_share = 0.0
        """Moving average of stored bytes for each compressed byte; 0 before the first."""

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
        """Takes the measurements of a written region; decides about the next one.

        Args:
            size: bytes written.
            write_s: time in the write calls.
            is_scarce: whether disk space is scarce.
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
