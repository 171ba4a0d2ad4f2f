"""A global sort of rows of 100 bytes by an int64 key: the job that netstack runs, and the check that everyone runs.

Takes: a file of rows. Gives: a `StreamEnvironment` whose sinks return a `proof` of what they sorted.

A row is its key as 8 bytes, little-endian and not negative, and 92 bytes of payload. Sources read slices of the file,
the blocking exchange sends each row to the sink that has its range of keys, and each sink sorts what it received.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from netstack.base.config import MIB, NetworkConfig
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import GlobalExchangeMode, Partitioner, StreamSettings

ROW_BYTES: Final = 100
PAYLOAD_BYTES: Final = 92
KEY_BITS: Final = 62
_RANGE_SHIFT: Final = KEY_BITS - 16
_SLICE_ROWS: Final = 10_000
_MEMORY_BYTES: Final = 48 * MIB

Rows = npt.NDArray[np.uint8]
Keys = npt.NDArray[np.int64]


def write_rows(path: Path, count: int) -> dict[str, Any]:
    """Writes rows with random keys; half of a row is random and half of it dots, as text would be.

    Returns:
        Their proof, but for the order.
    """
    generator = np.random.default_rng(1)
    rows = np.full((count, ROW_BYTES), ord("."), np.uint8)
    rows[:, : ROW_BYTES // 2 + 2] = generator.integers(0, 256, (count, ROW_BYTES // 2 + 2), np.uint8)
    rows[:, :8] = generator.integers(0, 1 << KEY_BITS, count, np.int64).view(np.uint8).reshape(count, 8)
    np.save(path, rows)
    return proof(keys_of(rows), np.ascontiguousarray(rows[:, 8:]))


def keys_of(rows: Rows) -> Keys:
    """The keys, copied out of the rows."""
    return np.ascontiguousarray(rows[:, :8]).view("<i8").reshape(-1)


def proof(keys: Keys, payloads: Rows) -> dict[str, Any]:
    """What a sorted part holds.

    Args:
        keys: in the order of the part.
        payloads: of the same rows, 92 bytes each.

    Returns:
        `rows`; `first` and `last` key; `is_sorted`; and `sums` of all rows, which do not depend on their order: of the
        keys, of each column of payload words, and of key times first word, which a payload under another key changes.
    """
    words = payloads.view("<u4")
    with np.errstate(over="ignore"):
        pairs = int((keys.view(np.uint64) * words[:, 0]).sum(dtype=np.uint64))
    sums = [int(keys.view(np.uint64).sum(dtype=np.uint64)), pairs, *words.sum(0, dtype=np.uint64).tolist()]
    return {
        "rows": len(keys),
        "first": int(keys[0]) if len(keys) else None,
        "last": int(keys[-1]) if len(keys) else None,
        "is_sorted": bool((keys[1:] >= keys[:-1]).all()),
        "sums": sums,
    }


def is_whole(parts: list[dict[str, Any]], wanted: dict[str, Any]) -> bool:
    """Whether parts, in the order of their ranges, are the rows that were written, sorted."""
    ends = [key for part in parts if part["rows"] for key in (part["first"], part["last"])]
    sums = [sum(column) % (1 << 64) for column in zip(*(part["sums"] for part in parts), strict=True)]
    is_sorted = all(part["is_sorted"] for part in parts) and ends == sorted(ends)
    return is_sorted and sum(part["rows"] for part in parts) == wanted["rows"] and sums == wanted["sums"]


def job(path: str, parallelism: int = 2) -> StreamEnvironment:
    """The sort: as many sources as sinks, and the rows between them kept in files."""
    settings = StreamSettings(
        is_batch=True,
        exchange_mode=GlobalExchangeMode.ALL_EDGES_BLOCKING,
        network=NetworkConfig(memory_bytes=_MEMORY_BYTES),
    )
    environment = StreamEnvironment("sort", parallelism=parallelism, settings=settings)
    rows = environment.source(ReadRows, name="rows", parameters={"path": path})
    rows.partition_by(Partitioner.CUSTOM, f"{__name__}:by_range").with_format("bytes").sink(SortRows, name="sorted")
    return environment


class ReadRows:
    """A subtask's share of the rows of a file, which is mapped into memory."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._position = self._end = 0
        self._rows: Rows | None = None

    def open(self, context: Any) -> None:
        """Maps the file."""
        self._rows = np.load(self._path, mmap_mode="r")
        self._position = len(self._rows) * context.subtask // context.parallelism
        self._end = len(self._rows) * (context.subtask + 1) // context.parallelism

    def read(self) -> Rows | None:
        """The next rows; None at the end."""
        if self._rows is None or self._position == self._end:
            return None
        first, self._position = self._position, min(self._end, self._position + _SLICE_ROWS)
        return np.asarray(self._rows[first : self._position])

    def snapshot(self) -> int:
        """The position."""
        return self._position


class _ByRange:
    """The subtask that has a key's range; all ranges are equally wide."""

    def __call__(self, row: bytes, channels: int) -> int:
        return (int.from_bytes(row[:8], "little") >> _RANGE_SHIFT) * channels >> 16

    def partition_batch(self, rows: Rows, channels: int) -> npt.NDArray[np.uint32]:
        """Of many rows."""
        return ((keys_of(rows) >> _RANGE_SHIFT) * channels >> 16).astype(np.uint32)


by_range = _ByRange()


class SortRows:
    """Keeps the rows of a range, and sorts them at the end."""

    takes_arrays = True

    def __init__(self) -> None:
        self._parts: list[Rows] = []

    def process_batch(self, records: Any) -> None:
        """Some rows."""
        data = b"".join(records) if isinstance(records, list) else np.array(records).reshape(-1)
        self._parts.append(np.frombuffer(data, np.uint8).reshape(-1, ROW_BYTES))

    def finish(self, out: Any) -> dict[str, Any]:
        """Sorts, and proves it."""
        rows = np.concatenate(self._parts or [np.empty((0, ROW_BYTES), np.uint8)])
        keys = keys_of(rows)
        order = keys.argsort()
        rows = rows[order]
        return proof(keys[order], np.ascontiguousarray(rows[:, 8:]))
