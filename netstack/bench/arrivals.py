"""When records arrived: throughput over a steady window, and the latency of sampled records.

Takes: counts and times from a verifier; emit times of sampled records from the producer. Gives: records per second, a
latency histogram.

Throughput is counted where records arrive, between two moments at least one warm-up after the start and not after the
producer stopped; start-up and draining are never part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .histogram import Histogram

_MARK_NS = 10_000_000  # one (time, count) mark each 10 ms: precise windows, 100 marks a second
_LOG_AT_MOST = 1 << 22  # segments remembered for sampled latencies: 100 MB; later ones are not sampled
_LANE_BITS = 40  # a lane holds fewer than 2**40 records

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a run and what arrived in it.

    Attributes:
        records: that arrived in it.
        seconds: its length.
        steady: False when the run was too short to leave out the warm-up.
    """

    records: int
    seconds: float
    steady: bool

    @property
    def records_per_s(self) -> float:
        """Throughput in the window."""
        return self.records / self.seconds if self.seconds > 0 else 0.0


class Arrivals:
    """Counts records as they arrive.

    Attributes:
        records: arrived so far.
        first_ns: time of the first; 0 before.
        last_ns: time of the latest.
    """

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
        """Counts records that arrived at `now_ns`; times never go back."""
        self.records += records
        self.last_ns = now_ns
        if now_ns >= self._next_mark_ns:
            self._next_mark_ns = now_ns + _MARK_NS
            self._marks.append((now_ns, self.records))
            if not self.first_ns:
                self.first_ns = now_ns

    def window(self, start_ns: int, stop_ns: int, warmup_s: float) -> Window:
        """The steady window of a run that was started at `start_ns` and whose producer stopped at `stop_ns`.

        When less than 50 ms remain after the warm-up, the window is the whole run from its start to the last arrival,
        and not called steady.
        """
        from_ns = warm_ns(start_ns, stop_ns, warmup_s)
        inside = [mark for mark in self._marks if from_ns <= mark[0] <= stop_ns]
        if len(inside) >= 2 and inside[-1][0] - inside[0][0] >= 50_000_000:
            return Window(inside[-1][1] - inside[0][1], (inside[-1][0] - inside[0][0]) / 1e9, True)
        return Window(self.records, max(0, self.last_ns - start_ns) / 1e9, False)

    def log(self, keys: Int64s, counts: Int64s, times_ns: Int64s) -> None:
        """Remembers segments of records that arrived together, for `sampled_latency`.

        Args:
            keys: `lane_keys` of the first record of each segment.
            counts: records in each; they follow each other in their lane.
            times_ns: when each arrived.
        """
        if self._log_entries < _LOG_AT_MOST:
            self._logs.append((keys, counts, times_ns))
            self._log_entries += len(keys)

    def sampled_latency(self, keys: Int64s, emitted_ns: Int64s, from_ns: int) -> Histogram:
        """Latency of the producer's sampled records, as far as their arrival was logged.

        Args:
            keys: `lane_keys` of the samples.
            emitted_ns: when each was emitted.
            from_ns: samples emitted earlier are left out (warm-up).
        """
        latency = Histogram()
        if self._logs and len(keys):
            firsts, counts, times = (np.concatenate(column) for column in zip(*self._logs, strict=True))
            by_key = np.argsort(firsts, kind="stable")
            firsts, counts, times = firsts[by_key], counts[by_key], times[by_key]
            at = np.searchsorted(firsts, keys, side="right") - 1
            hit = (at >= 0) & (keys < firsts[at] + counts[at]) & (emitted_ns >= from_ns)
            latency.record_many(times[at[hit]] - emitted_ns[hit])
        return latency


def warm_ns(start_ns: int, stop_ns: int, warmup_s: float) -> int:
    """When the warm-up of a run is over: after `warmup_s`, or a third of the run if that is less."""
    return start_ns + int(min(warmup_s * 1e9, max(0, stop_ns - start_ns) / 3))


def lane_keys(lanes: Int64s | int, positions: Int64s) -> Int64s:
    """One sortable number for (lane, position in the lane): records that share a channel share a lane."""
    keys: Int64s = (np.asarray(lanes, dtype=np.int64) << _LANE_BITS) + positions
    return keys


def round_robin_keys(indexes: Int64s, channels: int) -> Int64s:
    """`lane_keys` of record indexes under round robin."""
    return lane_keys(indexes % channels, indexes // channels)


def column(values: Sequence[int]) -> Int64s:
    """An int64 array."""
    return np.array(values, dtype=np.int64)
