"""The highest rate of records that keeps a bound of the p99.

Takes: the rows of open-loop runs by rate. Gives: that rate, and the next higher one, which does not keep the bound.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from netstack.base.units import format_count

from ..document import RATE_KEPT
from ..figure import Figure
from ..store import Row
from .points import micro, row_latency


def keeps_rate(rows: Sequence[Row]) -> bool:
    """Whether these runs, in the median, carried the rate that was asked."""
    parts = [float(row["records_per_s"]) / float(row["settings_rate_per_s"]) for row in rows]
    return statistics.median(parts) >= RATE_KEPT


@final
@dataclass(frozen=True, slots=True)
class HighestRate:
    """The highest rate that keeps a bound of the p99, and the next one that does not.

    `rate_per_s` is None where no rate keeps it; `next_per_s` is None where all do. Latencies are medians of the runs in
    microseconds.
    """

    rate_per_s: float | None
    p99_us: float | None
    next_per_s: float | None = None
    next_p99_us: float | None = None

    @classmethod
    def of(cls, by_rate: Mapping[float, Sequence[Row]], bound_us: float) -> HighestRate | None:
        """That of measured rates: all lower ones keep it too. None where nothing was measured."""
        kept: tuple[float | None, float | None] = (None, None)
        for rate, rows in sorted(by_rate.items()):
            p99 = Figure.of(row_latency(row, "p99") for row in rows)
            if p99 is None or p99.median > bound_us or not keeps_rate(rows):
                return cls(*kept, rate, None if p99 is None else p99.median)
            kept = rate, p99.median
        return None if kept[0] is None else cls(*kept)

    def sentence(self, bound: str) -> str:
        """In words; `bound` is the goal as text."""
        more = ""
        if self.next_per_s is not None:
            why = "it recorded no latency" if self.next_p99_us is None else f"its p99 is {micro(self.next_p99_us)}"
            more = f"{format_count(self.next_per_s)} records/s does not: {why}"
        if self.rate_per_s is None or self.p99_us is None:
            return f"no rate measured keeps {bound}: {more}"
        text = f"{format_count(self.rate_per_s)} records/s keeps {bound}: its p99 is {micro(self.p99_us)}"
        return f"{text}; {more or 'no higher rate was measured'}"

    def as_dict(self) -> dict[str, Any]:
        """The JSON values."""
        return {
            "records_per_s": self.rate_per_s,
            "p99_us": self.p99_us,
            "next_records_per_s": self.next_per_s,
            "next_p99_us": self.next_p99_us,
        }
