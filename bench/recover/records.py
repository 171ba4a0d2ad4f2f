"""Keyed records that can be made again from any place on, and what a sink must have counted of them.

Takes: a seed, the number of keys, the place in a split. Gives: records, their keys and digests, one by one or as
arrays.

A split is a stream of records with numbers from 0 on. Key, length and digest of a record follow from the seed, its
split and its number, so that a source which starts again at a number gives the same records, and whoever reads one can
tell whether it is what was sent. One record in 512 is longer than several network buffers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from netstack.errors import RecordError

MASK: Final = (1 << 64) - 1
RECORD: Final = struct.Struct("<IIQ")
"""Key, split, number; filler follows."""

_STEP: Final = 0x9E3779B97F4A7C15  # splitmix64: the whole of its state is a counter
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB
_BLOCK_RECORDS: Final = 256
_MOST_FILLER_BYTES: Final = 96
_LONG_EVERY: Final = 512


@dataclass(frozen=True, slots=True)
class Records:
    """All records of one job.

    Attributes:
        seed: another one gives other keys and lengths.
        keys: how many there are.
        long_bytes: filler of the long ones.
    """

    seed: int
    keys: int
    long_bytes: int

    def stream(self, split: int, first: int, end: int) -> Iterator[bytes]:
        """Records `first` to `end - 1` of a split."""
        for at in range(first, end, _BLOCK_RECORDS):
            count = min(_BLOCK_RECORDS, end - at)
            for number, digest in enumerate(self.digests(split, at, count).tolist(), at):
                yield self._made(split, number, digest)

    def check(self, record: bytes) -> tuple[int, int, int, int]:
        """Reads a record, and sees that every byte is as it was made.

        Returns:
            Its key, its split, its number, its digest.

        Raises:
            RecordError: it is not one of these records.
        """
        if len(record) >= RECORD.size:
            key, split, number = RECORD.unpack_from(record)
            digest = self.digest(split, number)
            if record == self._made(split, number, digest):
                return key, split, number, digest
        raise RecordError(f"a record of {len(record)} bytes that begins with {record[:24]!r} was never sent")

    def digest(self, split: int, number: int) -> int:
        """64 bits that differ from record to record."""
        x = (self._start(split) + number * _STEP) & MASK
        x = ((x ^ (x >> 30)) * _FIRST) & MASK
        x = ((x ^ (x >> 27)) * _SECOND) & MASK
        return x ^ (x >> 31)

    def digests(self, split: int, first: int, count: int) -> npt.NDArray[np.uint64]:
        """`digest` of `count` records."""
        x = np.arange(first, first + count, dtype=np.uint64)
        x *= np.uint64(_STEP)
        x += np.uint64(self._start(split))
        x = (x ^ (x >> np.uint64(30))) * np.uint64(_FIRST)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(_SECOND)
        return x ^ (x >> np.uint64(31))

    def expected(self, splits: int, records: int) -> dict[int, list[int]]:
        """What an undisturbed run counts: by key the number of its records, and the sum of their digests."""
        counts = np.zeros(self.keys, dtype=np.int64)
        sums = np.zeros(self.keys, dtype=np.uint64)
        for split in range(splits):
            digests = self.digests(split, 0, split_records(split, splits, records))
            keys = (digests % np.uint64(self.keys)).astype(np.int64)
            counts += np.bincount(keys, minlength=self.keys)
            np.add.at(sums, keys, digests)
        rows: list[list[Any]] = np.stack([counts.astype(np.uint64), sums], axis=1).tolist()
        return {key: row for key, row in enumerate(rows) if row[0]}

    def _start(self, split: int) -> int:
        return (self.seed * _SECOND + split * _FIRST) & MASK

    def _made(self, split: int, number: int, digest: int) -> bytes:
        is_long = (digest >> 40) % _LONG_EVERY == 0
        filler_bytes = self.long_bytes if is_long else (digest >> 32) % _MOST_FILLER_BYTES
        return RECORD.pack(digest % self.keys, split, number) + bytes((digest >> 56,)) * filler_bytes


def key_of(record: bytes) -> int:
    """The key of a record, for who distributes it."""
    return int.from_bytes(record[:4], "little")


def split_records(split: int, splits: int, records: int) -> int:
    """How many of all `records` a split has: as many as the others, or one more."""
    return records // splits + (split < records % splits)
