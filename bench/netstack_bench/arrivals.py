"""Arrival counts of a run: throughput in the steady window, and the latency of sampled records.

Throughput is counted at the consumer, between two moments at least one warm-up after the start and not after the
producer stopped; start-up and draining are excluded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .histogram import Histogram

_LATE_NS: Final = 1_000_000_000  # records that arrive this long after the last was sent: the receiver is too slow

_MARK_NS = 10_000_000  # a (time, count) mark each 10 ms makes windows precise
_LOG_AT_MOST = 1 << 22  # logged segments, 100 MB; later ones are not sampled
_LANE_BITS = 40  # a lane holds fewer than 2**40 records

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a run and the records that arrived in it.

    `steady` is False when the run was too short to exclude the warm-up.
    """

    records: int
    seconds: float
    steady: bool

    @property
    def records_per_s(self) -> float:
        """Throughput in the window."""
        return self.records / self.seconds if self.seconds > 0 else 0.0


class Arrivals:
    """Counts records as they arrive; `first_ns` and `last_ns` are 0 before the first record."""

    __slots__ = ("_log_entries", "_logs", "_marks", "_next_mark_ns", "first_ns", "last_ns", "records")

    def __init__(self) -> None:
        self.records = 0
        self.first_ns = 0
        self.last_ns = 0
        self._marks: list[tuple[int, int]] = []
        self._next_mark_ns = 0
        self._logs: list[tuple[Int64s, Int64s, Int64s]] = []
        self._log_entries = 0

    def add(self, records: int, now_ns: int) -> None:
        """Counts records that arrived at `now_ns`; times must not decrease."""
        self.records += records
        self.last_ns = now_ns
        if now_ns >= self._next_mark_ns:
            self._next_mark_ns = now_ns + _MARK_NS
            self._marks.append((now_ns, self.records))
            if not self.first_ns:
                self.first_ns = now_ns

    def window(self, start_ns: int, stop_ns: int, warmup_s: float) -> Window:
        """The steady window of a run that started at `start_ns` and whose producer stopped at `stop_ns`.

        If less than 50 ms remain after the warm-up, the window is the whole run from its start to the last arrival, and
        `steady` is False.
        """
        from_ns = warm_ns(start_ns, stop_ns, warmup_s)
        inside = [mark for mark in self._marks if from_ns <= mark[0] <= stop_ns]
        if len(inside) >= 2 and inside[-1][0] - inside[0][0] >= 50_000_000:
            return Window(inside[-1][1] - inside[0][1], (inside[-1][0] - inside[0][0]) / 1e9, True)
        return Window(self.records, max(0, self.last_ns - start_ns) / 1e9, False)

    def log(self, keys: Int64s, counts: Int64s, times_ns: Int64s) -> None:
        """Stores segments of records that arrived together, for `sampled_latency`.

        `keys` are `lane_keys` of the first record of each segment, whose records are consecutive in their lane.
        """
        if self._log_entries < _LOG_AT_MOST:
            self._logs.append((keys, counts, times_ns))
            self._log_entries += len(keys)

    def sampled_latency(self, keys: Int64s, emitted_ns: Int64s, from_ns: int) -> Histogram:
        """Latency of the producer's sampled records (`lane_keys`) whose arrival was logged.

        Samples emitted before `from_ns` (warm-up) are ignored, unless a run was so short that it has no others.
        """
        latency = Histogram()
        if self._logs and len(keys):
            firsts, counts, times = (np.concatenate(column) for column in zip(*self._logs, strict=True))
            by_key = np.argsort(firsts, kind="stable")
            firsts, counts, times = firsts[by_key], counts[by_key], times[by_key]
            at = np.searchsorted(firsts, keys, side="right") - 1
            logged = (at >= 0) & (keys < firsts[at] + counts[at])
            warm = logged & (emitted_ns >= from_ns)
            hit = warm if warm.any() else logged
            latency.record_many(times[at[hit]] - emitted_ns[hit])
        return latency


def warm_ns(start_ns: int, stop_ns: int, warmup_s: float) -> int:
    """The end of the warm-up: `warmup_s`, or a third of the run if that is less, after the start."""
    return start_ns + int(min(warmup_s * 1e9, max(0, stop_ns - start_ns) / 3))


def lane_keys(lanes: Int64s | int, positions: Int64s) -> Int64s:
    """One sortable number for (lane, position in the lane); records of one channel share a lane."""
    keys: Int64s = (np.asarray(lanes, dtype=np.int64) << _LANE_BITS) + positions
    return keys


def round_robin_keys(indexes: Int64s, channels: int) -> Int64s:
    """`lane_keys` of record indexes with round-robin selection."""
    return lane_keys(indexes % channels, indexes // channels)


def column(values: Sequence[int]) -> Int64s:
    """Values as an int64 array."""
    return np.array(values, dtype=np.int64)


def paced_window(rate_per_s: float, records: int, start_ns: int, stopped_ns: int, last_ns: int) -> dict[str, Any]:
    """The window of a run at a rate: the whole run.

    Records flushed by a timer arrive in bursts, and one burst more or less would change the rate by many per cent.
    """
    ended_ns = last_ns if last_ns - stopped_ns > _LATE_NS else stopped_ns
    # The last record is due one interval before the end of its time.
    return {"records": records, "seconds": max((ended_ns - start_ns) / 1e9, records / rate_per_s), "steady": True}
