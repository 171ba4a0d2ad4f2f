"""Deterministic records for a run, cheap enough that the source is not what is measured.

Payload of record i: i as 8 bytes, little-endian, then a filler that is the same in every record (pseudo-random, so that
one record is not compressible). Arrays reuse one preallocated block whose filler is written once; only the index column
is rewritten. The checksum is the sum of all payloads read as little-endian u64 words (the tail padded with zeros)
modulo 2**64; the producer computes it from the count, without reading the data.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from netstack.base.errors import NetstackError
from netstack.exchange.record.blocks import BlockCache

from .spec import RunSpec

if TYPE_CHECKING:
    import pyarrow as pa

INDEX_BYTES = 8
MASK = (1 << 64) - 1
# A span of single records is built at once and then emitted one by one: large enough that numpy and a task switch
# (30 us) cost a few ns per record; small enough for the level-2 cache.
_SPAN_RECORDS = 16 * 1024
_SPAN_BYTES = 256 * 1024
_HELD_BACK_SPAN_S = 0.02  # of what a held-back consumer takes
_RAMP_RECORDS = 16 * 1024


class MissingExtra(NetstackError):
    """A package that only some measurements need is not installed; the message names the extra."""


def filler(record_bytes: int) -> bytes:
    """The bytes after the index in every record of this size."""
    return hashlib.shake_256(b"netstack-bench").digest(record_bytes - INDEX_BYTES)


def word_sum(data: bytes) -> int:
    """Sum of `data` as little-endian u64 words, padded with zeros, modulo 2**64."""
    padded = data + bytes(-len(data) % 8)
    return int(np.add.reduce(np.frombuffer(padded, dtype="<u8"), dtype=np.uint64)) if padded else 0


def span_records(spec: RunSpec) -> int:
    """Maximum records of one span of a producer under `spec`; a latency under load is that of a span's record."""
    if spec.emit == "record":
        most = min(_SPAN_RECORDS, _SPAN_BYTES // spec.record_bytes)
        if spec.consume_rate_per_s is not None:
            most = min(most, int(spec.consume_rate_per_s * _HELD_BACK_SPAN_S))
        return max(1, most)
    return spec.effective_batch_records


class Source:
    """Generated records of one size; no call may request more than `records_at_most` at once."""

    __slots__ = (
        "_block",
        "_columns",
        "_filler_sum",
        "_index",
        "_payload_column",
        "_prepared",
        "_ramp",
        "_rows",
        "record_bytes",
        "records_at_most",
    )

    def __init__(self, record_bytes: int, records_at_most: int) -> None:
        self.record_bytes = record_bytes
        self.records_at_most = records_at_most
        tail = filler(record_bytes)
        self._filler_sum = word_sum(tail)
        self._block = np.empty((records_at_most, record_bytes), dtype=np.uint8)
        self._block[:, INDEX_BYTES:] = np.frombuffer(tail, dtype=np.uint8)
        self._index = self._block[:, :INDEX_BYTES].view("<u8")[:, 0]
        self._rows = self._block.view(f"V{record_bytes}")[:, 0]
        self._ramp = np.arange(max(1, min(records_at_most, _RAMP_RECORDS)), dtype=np.uint64)
        self._payload_column: Any = None
        self._columns = BlockCache()
        self._prepared: tuple[int, list[bytes]] = (-1, [])

    def prepare(self, index: int) -> None:
        """Makes a record before it is due, so that making it delays nothing."""
        if self._prepared[0] != index:
            self._prepared = (index, self.records(index, 1))

    def records(self, first: int, count: int) -> list[bytes]:
        """Records `first` to `first + count - 1`, each as a bytes object."""
        if count == 1 and self._prepared[0] == first:
            return self._prepared[1]
        self._write_indexes(first, count)
        made: list[bytes] = self._rows[:count].tolist()
        return made

    def array(self, first: int, count: int) -> npt.NDArray[np.uint8]:
        """The same records as one array of fixed-width rows.

        Returns:
            uint8, shape (count, record_bytes). It is a view of the source's own block: valid until the next call.
        """
        self._write_indexes(first, count)
        return self._block[:count]

    @property
    def arrow_schema(self) -> Any:
        """The schema of every columnar batch."""
        return self.arrow(0, 1)[0].schema

    def arrow(self, first: int, count: int) -> list[pa.RecordBatch]:
        """The same values as a columnar batch: int64 `index`, and a fixed-size list of int64 for the filler, if any.

        The batch owns its index column, because Arrow may read it long after this call. Memory that nothing references
        any more is reused (fresh memory costs a page fault every 4 KiB).
        """
        pa = import_arrow()
        index = self._columns.take(INDEX_BYTES * count).view(np.uint64)
        self._count_up(index, first)
        columns = {"index": _int64s(pa, index.view(np.int64))}
        words = self.record_bytes // 8 - 1
        if words:
            if self._payload_column is None:
                values = np.ascontiguousarray(self._block[:, INDEX_BYTES:]).view("<i8").reshape(-1)
                self._payload_column = pa.FixedSizeListArray.from_arrays(_int64s(pa, values), words)
            columns["payload"] = self._payload_column[:count]
        return [pa.RecordBatch.from_pydict(columns)]

    def expected(self, records: int) -> dict[str, Any]:
        """What a consumer of records 0 to `records - 1` must have received."""
        indexes = records * (records - 1) // 2
        return {
            "records": records,
            "payload_bytes": records * self.record_bytes,
            "checksum": (indexes + records * self._filler_sum) & MASK,
        }

    def _write_indexes(self, first: int, count: int) -> None:
        if count > self.records_at_most:
            raise ValueError(f"{count} records asked of a source of at most {self.records_at_most}; ask for fewer")
        self._count_up(self._index[:count], first)

    def _count_up(self, index: npt.NDArray[np.uint64], first: int) -> None:
        ramp = self._ramp
        for at in range(0, len(index), len(ramp)):
            part = index[at : at + len(ramp)]
            np.add(ramp[: len(part)], first + at, out=part)


def _int64s(pa: Any, values: npt.NDArray[np.int64]) -> pa.Int64Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def import_arrow() -> Any:
    """The pyarrow module. Raises MissingExtra if it is not installed."""
    try:
        import pyarrow
    except ImportError as error:
        raise MissingExtra(
            f"columnar batches and Parquet need pyarrow ({error}); install it: pip install 'pyarrow>=16'"
        ) from error
    return pyarrow
