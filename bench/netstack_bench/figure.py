"""One number measured several times: its median and its range."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One number measured `count` times."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Figure | None:
        """The median and range of the values that are not None; None without any."""
        present = sorted(value for value in values if value is not None and math.isfinite(value))
        if not present:
            return None
        return cls(statistics.median(present), present[0], present[-1], len(present))

    def spread(self, write: Callable[[float], str]) -> str:
        """The range of the repeats for a tooltip: `3.9 to 4.5 ms in 3 runs`; empty for a single run."""
        return f"{write(self.low)} to {write(self.high)} in {self.count} runs" if self.count > 1 else ""
