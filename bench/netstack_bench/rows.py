"""The user's rows as records of a run, and the proof that all arrived in order.

- Nothing is added to a row. A channel is proven by its count and a rolling hash, on both sides: `h = h * P + crc32(row)
  + 1 (mod 2**64)`, which depends on every byte and on the order.
- Rows repeat from the start of the file if the run needs more. The producer's hashes are computed after the run, from
  one pass over the file: `m` rows with hash `a`, followed by `n` rows with hash `b`, have `a * P**n + b`.
- Without a key, record i goes to channel i mod C; with one, to the owner of its key group.
- A columnar batch is one element of a channel, with as many records as it has rows.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from netstack.exchange.keygroups import default_max_parallelism, group_owners, owner_array, stable_hash

from .arrivals import Arrivals, Int64s, column, lane_keys
from .generator import MASK
from .histogram import Histogram
from .inputs import Rows, read_rows
from .pacing import clock_ns
from .spec import RunSpec
from .verifier import Delivery, Order, Verifier

if TYPE_CHECKING:
    import pyarrow as pa

_P = 0x9E3779B97F4A7C15  # odd, so that multiplication is invertible; bits of the golden ratio
_STAGE = 4096
_FEW = 16  # elements that plain integers hash faster than numpy
_CUTS_AT_MOST = 1 << 16  # batches whose hash is cached

Hashed = tuple[int, int]  # how many elements, their rolling hash


def rolling(before: Hashed, elements: Sequence[int] | npt.NDArray[np.uint64]) -> Hashed:
    """The count and hash after further elements, given the CRC-32 of each."""
    count, value = before
    if len(elements) < _FEW:
        for crc in elements:
            value = (value * _P + int(crc) + 1) & MASK
        return count + len(elements), value
    for at in range(0, len(elements), _STAGE):
        part = np.asarray(elements[at : at + _STAGE], dtype=np.uint64) + np.uint64(1)
        value = (value * pow(_P, len(part), 1 << 64) + int(np.add.reduce(part * _POWERS[-len(part) :]))) & MASK
        count += len(part)
    return count, value


def joined(first: Hashed, second: Hashed) -> Hashed:
    """The count and hash of one sequence followed by another."""
    return first[0] + second[0], (first[1] * pow(_P, second[0], 1 << 64) + second[1]) & MASK


def repeated(once: Hashed, times: int) -> Hashed:
    """The count and hash of a sequence repeated `times` times."""
    total: Hashed = (0, 0)
    while times:
        if times & 1:
            total = joined(total, once)
        once, times = joined(once, once), times >> 1
    return total


def hashes_of(rows: Rows) -> npt.NDArray[np.int32] | None:
    """Hash of the key of each row; None without keys."""
    if rows.hashes is None and rows.keys is not None:
        return np.array([stable_hash(key) for key in rows.keys], dtype=np.int32)
    return rows.hashes


class RowSource:
    """Rows of a file, repeated endlessly; `lanes` has the channel of each row with a key (None: round robin)."""

    def __init__(self, rows: Rows, channels: int) -> None:
        self.rows = rows.count
        self._records = rows.records
        self._batches = rows.batches
        self._channels = channels
        self._batch_starts = [0, *accumulate(batch.num_rows for batch in rows.batches or ())]
        self._emitted: list[tuple[int, int]] = []  # (crc, bytes) of batches, whose sizes depend on pacing
        self._emitted_rows: list[int] = []
        self._hashed: dict[tuple[int, int], tuple[int, int]] = {}  # by (first row, rows)
        self.lanes: Int64s | None = None
        hashes = hashes_of(rows)
        if hashes is not None:
            owners = group_owners(channels, default_max_parallelism(channels))
            self.lanes = owner_array(hashes, owners).astype(np.int64)

    @classmethod
    def of(cls, spec: RunSpec) -> RowSource:
        """The source for `--input`; errors are those of `read_rows`."""
        arrow = spec.effective_batch_records if spec.emit == "arrow" else None
        rows = read_rows(spec.input_path or "", key_column=spec.key_column, arrow_batch_records=arrow)
        return cls(rows, spec.channels)

    @property
    def arrow_schema(self) -> Any:
        """The schema of every batch."""
        return self._batches[0].schema if self._batches else None

    def records(self, first: int, count: int) -> list[bytes]:
        """Records `first` to `first + count - 1` of the endless repetition."""
        at = first % self.rows
        result = self._records[at : at + count]
        while len(result) < count:
            result += self._records[: count - len(result)]
        return result

    def arrow(self, first: int, count: int) -> list[pa.RecordBatch]:
        """The same rows as batches, split where the file's batches end; each call is part of the proof."""
        batches = []
        while count:
            at = first % self.rows
            place = bisect.bisect_right(self._batch_starts, at) - 1
            batch = (self._batches or [])[place].slice(at - self._batch_starts[place], count)
            cut = (first % self.rows, batch.num_rows)
            hashed = self._hashed.get(cut)
            if hashed is None:
                body = batch.serialize()
                hashed = crc32(body), body.size
                if len(self._hashed) < _CUTS_AT_MOST:
                    self._hashed[cut] = hashed
            self._emitted.append(hashed)
            self._emitted_rows.append(batch.num_rows)
            batches.append(batch)
            first, count = first + batch.num_rows, count - batch.num_rows
        return batches

    def expected(self, records: int) -> dict[str, Any]:
        """The counts and hashes that a consumer must have after `records` records."""
        if self._batches is not None:
            crcs = np.array([crc for crc, _ in self._emitted], dtype=np.uint64)
            lanes = [rolling((0, 0), crcs[lane :: self._channels]) for lane in range(self._channels)]
            return {"records": records, "payload_bytes": sum(size for _, size in self._emitted), "lanes": lanes}
        crcs = np.array([crc32(record) for record in self._records], dtype=np.uint64)
        sizes = [len(record) for record in self._records]
        rounds, rest = divmod(records, self.rows)
        payload_bytes = rounds * sum(sizes) + sum(sizes[:rest])
        if self.lanes is None:
            lanes = [self._round_robin(crcs, lane, records) for lane in range(self._channels)]
        else:
            lanes = []
            for lane in range(self._channels):
                whole, part = crcs[self.lanes == lane], crcs[:rest][self.lanes[:rest] == lane]
                lanes.append(rolling(repeated(rolling((0, 0), whole), rounds), part))
        return {"records": records, "payload_bytes": payload_bytes, "lanes": lanes}

    def sample_keys(self, indexes: Int64s) -> Int64s:
        """`lane_keys` of records, for the latency of samples."""
        if self._batches is not None:
            starts = np.concatenate(([0], np.cumsum(column(self._emitted_rows))))
            batch: Int64s = np.searchsorted(starts, indexes, side="right") - 1
            lanes: Int64s = batch % self._channels
            before: Int64s = np.zeros(len(starts), dtype=np.int64)  # rows of earlier batches in the same lane
            for place in range(self._channels, len(starts)):
                before[place] = before[place - self._channels] + self._emitted_rows[place - self._channels]
            positions: Int64s = before[batch] + indexes - starts[batch]
            return lane_keys(lanes, positions)
        if self.lanes is None:
            return lane_keys(indexes % self._channels, indexes // self._channels)
        rounds, at = indexes // self.rows, indexes % self.rows
        by_lane = np.argsort(self.lanes, kind="stable")
        per_lane = np.bincount(self.lanes, minlength=self._channels)
        rank = np.empty(self.rows, dtype=np.int64)
        rank[by_lane] = np.arange(self.rows) - (np.cumsum(per_lane) - per_lane)[self.lanes[by_lane]]
        return lane_keys(self.lanes[at], rounds * per_lane[self.lanes[at]] + rank[at])

    def _round_robin(self, crcs: npt.NDArray[np.uint64], lane: int, records: int) -> Hashed:
        total = len(range(lane, records, self._channels))
        period = self.rows // int(np.gcd(self.rows, self._channels))
        at = (lane + self._channels * np.arange(min(period, total))) % self.rows
        rounds, rest = divmod(total, period)
        once = rolling((0, 0), crcs[at]) if rounds else (0, 0)
        return rolling(repeated(once, rounds), crcs[at[:rest]])


@final
class RowVerifier(Verifier):
    """Checks rows of a file: bytes, and count and rolling hash of every channel; `latency` is always empty."""

    def __init__(self, channels: int) -> None:
        self.order, self.lanes, self.verified = Order.ROUND_ROBIN, channels, "all"
        self._hashed: list[Hashed] = [(0, 0)] * channels
        self._position = [0] * channels  # in records; a batch is one element of several records
        self._staged: list[bytes | memoryview] = []
        self._segments: list[tuple[int, int]] = []
        self._payload_bytes = 0
        self.arrivals = Arrivals()
        self.latency = Histogram()

    def begin(self, start_ns: int, latency_from_ns: int = 0) -> None:
        """Implements `Verifier.begin`: no latencies are computed from due times."""

    @property
    def payload_bytes(self) -> int:
        """Implements `Verifier.payload_bytes`."""
        return self._payload_bytes

    def feed(self, channel: int, records: Sequence[bytes | memoryview], now_ns: int | None = None) -> None:
        """Implements `Verifier.feed`."""
        self._arrived(channel, len(records), clock_ns() if now_ns is None else now_ns)
        self._staged.extend(records)
        self._segments.append((channel, len(records)))
        if len(self._staged) >= _STAGE:
            self._flush()

    def feed_array(self, channel: int, array: npt.NDArray[Any], now_ns: int | None = None) -> None:
        """Implements `Verifier.feed_array` for rows of equal width."""
        self.feed(channel, [row.tobytes() for row in array], now_ns)

    def feed_arrow(self, channel: int, batch: pa.RecordBatch, now_ns: int | None = None) -> None:
        """Implements `Verifier.feed_arrow`."""
        self._arrived(channel, batch.num_rows, clock_ns() if now_ns is None else now_ns)
        body = batch.serialize()
        self._payload_bytes += body.size
        self._hashed[channel] = rolling(self._hashed[channel], [crc32(body)])

    def finish(self) -> None:
        """Implements `Verifier.finish`."""
        self._flush()

    def sample_keys(self, indexes: Int64s) -> Int64s:
        """Implements `Verifier.sample_keys` for what `RowSource.sample_keys` returned: these are the keys."""
        return indexes

    def delivery(self) -> Delivery:
        """Implements `Verifier.delivery`."""
        return Delivery(
            records=self.received_records,
            checksum=None,
            hashes=tuple((lane, count, value) for lane, (count, value) in enumerate(self._hashed) if count),
            payload_bytes=self.payload_bytes,
        )

    def _flush(self) -> None:
        crcs = list(map(crc32, self._staged))
        self._payload_bytes += sum(map(len, self._staged))
        self._staged.clear()
        at = 0
        for channel, count in self._segments:
            self._hashed[channel] = rolling(self._hashed[channel], crcs[at : at + count])
            at += count
        self._segments.clear()

    def _arrived(self, channel: int, count: int, now: int) -> None:
        self.arrivals.add(count, now)
        position = self._position[channel]
        self._position[channel] = position + count
        self.arrivals.log(lane_keys(channel, column([position])), column([count]), column([now]))


def _powers() -> npt.NDArray[np.uint64]:
    powers = list(accumulate(range(_STAGE - 1), lambda power, _: power * _P & MASK, initial=1))
    return np.array(powers[::-1], dtype=np.uint64)


_POWERS = _powers()
