"""A mergeable latency histogram with three significant digits and a fixed size.

Log-linear buckets, as in HdrHistogram: values below 2,048 ns have a bucket each; every further power of two is divided
into 1,024 equal buckets, so a bucket is never wider than 0.1 % of its values. A percentile is the upper edge of its
bucket, the maximum is exact.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from netstack.base.errors import NetstackError

_TICKS = 5  # lines of an .hgrm file for each half of the remaining distance to 100 %
_HALF = 1024  # buckets in each power of two: 3 significant digits
_LINEAR = 2 * _HALF
_TOP_BIT = 46  # values are limited to 2**46 ns, about 19 hours
_MOST_NS = (1 << _TOP_BIT) - 1
_BUCKETS = (_TOP_BIT - 10) * _HALF + _HALF

PERCENTILES = {"p50": 0.50, "p75": 0.75, "p90": 0.90, "p95": 0.95, "p99": 0.99, "p999": 0.999, "p9999": 0.9999}


class Histogram:
    """Counts of durations in log-linear buckets."""

    __slots__ = ("_counts", "count", "max_ns", "min_ns")

    def __init__(self) -> None:
        self._counts = np.zeros(_BUCKETS, dtype=np.int64)
        self.count = 0
        self.min_ns = 0
        self.max_ns = 0

    def record(self, value_ns: int) -> None:
        """Adds one duration; a negative one counts as 0."""
        value = min(max(int(value_ns), 0), _MOST_NS)
        shift = max(value.bit_length() - 11, 0)
        self._counts[shift * _HALF + (value >> shift)] += 1
        self._extend(1, value, value)

    def record_many(self, values_ns: npt.NDArray[np.int64]) -> None:
        """Adds every duration of an array, which is not modified."""
        if not len(values_ns):
            return
        values = np.clip(values_ns, 0, _MOST_NS)
        buckets = _buckets_of(values)
        low = int(buckets.min())
        counts = np.bincount(buckets - low)
        self._counts[low : low + len(counts)] += counts
        self._extend(len(values), int(values.min()), int(values.max()))

    def merge(self, other: Histogram) -> None:
        """Adds all counts of `other`; merging is associative and commutative."""
        if other.count:
            self._counts += other._counts
            self._extend(other.count, other.min_ns, other.max_ns)

    def shifted(self, by_ns: int) -> Histogram:
        """A copy with this duration added to every value, none below 0; exact to the width of a bucket."""
        made = Histogram()
        made.merge(self)
        if not by_ns or not self.count:
            return made
        used = np.flatnonzero(self._counts)
        edges = np.array([min(_upper_edge(int(bucket)), self.max_ns) for bucket in used], dtype=np.int64)
        made._counts[:] = 0
        np.add.at(made._counts, _buckets_of(np.clip(edges + by_ns, 0, _MOST_NS)), self._counts[used])
        made.min_ns, made.max_ns = (min(max(each + by_ns, 0), _MOST_NS) for each in (self.min_ns, self.max_ns))
        return made

    def percentile_ns(self, fraction: float) -> int | None:
        """The smallest duration that at least `fraction` of all durations do not exceed; None when empty."""
        if not self.count:
            return None
        rank = max(1, math.ceil(fraction * self.count - 1e-9))
        bucket = int(np.searchsorted(np.cumsum(self._counts), rank))
        return min(_upper_edge(bucket), self.max_ns)

    def summary_us(self) -> dict[str, float | None]:
        """Every one of `PERCENTILES`, and `max`, in microseconds; None when empty."""
        summary = {name: self.percentile_ns(fraction) for name, fraction in PERCENTILES.items()}
        summary["max"] = self.max_ns if self.count else None
        return {name: None if value is None else value / 1000 for name, value in summary.items()}

    def hgrm(self) -> str:
        """The distribution in microseconds in the format of HdrHistogram's plotters (`.hgrm`)."""
        lines = [f"{'Value':>12} {'Percentile':>14} {'TotalCount':>10} {'1/(1-Percentile)':>14}", ""]
        used = np.flatnonzero(self._counts)
        sums = np.cumsum(self._counts[used])
        part, whole = 0.0, False
        while self.count and not whole:
            rank = max(1, math.ceil(part * self.count - 1e-9))
            place = int(np.searchsorted(sums, rank))
            value, upto = min(_upper_edge(int(used[place])), self.max_ns) / 1000, int(sums[place])
            whole = upto == self.count
            quantile = 1.0 if whole else part
            beyond = "" if whole else f" {1 / (1 - quantile):14.2f}"
            lines.append(f"{value:12.3f} {quantile:2.12f} {upto:10d}{beyond}")
            part += 1 / (_TICKS * 2 ** (math.floor(math.log2(1 / (1 - part))) + 1))
        edges = np.array([min(_upper_edge(int(bucket)), self.max_ns) for bucket in used]) / 1000
        counts = self._counts[used]
        mean = float(np.average(edges, weights=counts)) if self.count else 0.0
        deviation = math.sqrt(float(np.average((edges - mean) ** 2, weights=counts))) if self.count else 0.0
        return "\n".join(
            (
                *lines,
                f"#[Mean    = {mean:12.3f}, StdDeviation   = {deviation:12.3f}]",
                f"#[Max     = {self.max_ns / 1000:12.3f}, Total count    = {self.count:12d}]",
                f"#[Buckets = {_TOP_BIT - 10:12d}, SubBuckets     = {_LINEAR:12d}]",
                "",
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """The used buckets as JSON values."""
        used = np.flatnonzero(self._counts)
        return {
            "buckets": used.tolist(),
            "counts": self._counts[used].tolist(),
            "min_ns": self.min_ns,
            "max_ns": self.max_ns,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Histogram:
        """The inverse of `to_dict`.

        Raises:
            NetstackError: invalid buckets or counts.
        """
        made = cls()
        used = np.asarray(values["buckets"], dtype=np.int64)
        counts = np.asarray(values["counts"], dtype=np.int64)
        if len(used) != len(counts) or (len(used) and (used.min() < 0 or used.max() >= _BUCKETS or counts.min() < 1)):
            raise NetstackError(f"histogram of {len(used)} buckets, {len(counts)} counts does not fit; measure again")
        made._counts[used] = counts
        made.count = int(counts.sum())
        made.min_ns, made.max_ns = int(values["min_ns"]), int(values["max_ns"])
        return made

    def _extend(self, count: int, low: int, high: int) -> None:
        self.min_ns = min(self.min_ns, low) if self.count else low
        self.max_ns = max(self.max_ns, high)
        self.count += count


def _buckets_of(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    # The exponent of a float64, exact below 2**53, is the bit length of the value.
    shift = np.maximum(np.frexp(values.astype(np.float64))[1].astype(np.int64) - 11, 0)
    buckets: npt.NDArray[np.int64] = shift * _HALF + (values >> shift)
    return buckets


def _upper_edge(bucket: int) -> int:
    shift = max(bucket // _HALF - 1, 0)
    return ((bucket - shift * _HALF + 1) << shift) - 1
