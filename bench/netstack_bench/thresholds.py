"""Thresholds for CI (`--fail-on 'p99>20ms'`): what counts as a failure of figures that were measured.

Takes: conditions as text, and results. Gives: for each condition the worst figure it applies to, and whether it holds.

Rules: a condition names what must not be. Figures are medians of the repeats of a setting. A condition on a latency
applies to open-loop runs where there are any, else to the samples under load; one on a rate applies to the runs without
a rate where there are any. A condition without a figure counts as failed: a check that measured nothing has not passed.
"""

from __future__ import annotations

import operator
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from netstack.base.errors import ConfigError
from netstack.base.units import format_count, format_latency, parse_link_rate, three_digits
from netstack.cli.values import parse_length, parse_rate

from .report.points import row_latency
from .store import Row

EXIT_CODE: Final = 3
"""The exit code of a command whose figures cross a threshold."""

_CONDITION: Final = re.compile(r"\s*([a-z][a-z0-9./]*)\s*(<=|>=|<|>)\s*(\S.*?)\s*")
_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_LATENCIES: Final = {
    "p50": "p50",
    "p75": "p75",
    "p90": "p90",
    "p95": "p95",
    "p99": "p99",
    "p99.9": "p999",
    "p99.99": "p9999",
    "max": "max",
}
_RATES: Final = {"throughput": "payload_mb_per_s", "records/s": "records_per_s"}


@final
@dataclass(frozen=True, slots=True)
class Threshold:
    """A condition under which a command fails."""

    text: str
    name: str
    operator: str
    bound: float  # microseconds, MB a second, or records a second

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """`p99>20ms`, `throughput<200MB/s` or `records/s<1M`.

        Raises:
            ConfigError: it is none of these; the text says which part is wrong.
        """
        match = _CONDITION.fullmatch(text)
        known = (*_LATENCIES, *_RATES)
        if match is None or match[1] not in known:
            raise ConfigError(
                f"{text!r}: write FIGURE, one of < <= > >=, and a value, such as p99>20ms; figures are"
                f" {', '.join(known)}"
            )
        name, value = match[1], match[3]
        if name in _LATENCIES:
            bound = parse_length(value) * 1e6
        elif name == "throughput":
            bound = parse_link_rate(value) / 1e6
        else:
            bound = parse_rate(value)
        return cls(text.strip(), name, match[2], bound)

    @property
    def is_latency(self) -> bool:
        """Whether it is about a latency."""
        return self.name in _LATENCIES

    def is_crossed(self, value: float) -> bool:
        """Whether a figure fails."""
        return _OPERATORS[self.operator](value, self.bound)

    def figure(self, row: Row) -> float | None:
        """Its figure in a flat row; None if the row has none."""
        if not self.is_latency:
            return row.get(_RATES[self.name])
        return row_latency(row, _LATENCIES[self.name])

    def write(self, value: float) -> str:
        """A figure with its unit."""
        if self.is_latency:
            return format_latency(value)
        return f"{three_digits(value)} MB/s" if self.name == "throughput" else f"{format_count(value)} records/s"


@final
@dataclass(frozen=True, slots=True)
class ThresholdCheck:
    """A threshold and the figure nearest to failing it; `value` is None where nothing was measured."""

    threshold: Threshold
    value: float | None
    where: str
    crossed: int
    count: int

    @property
    def has_failed(self) -> bool:
        """Whether the command fails."""
        return self.value is None or self.crossed > 0

    def sentence(self) -> str:
        """In words, for one that failed."""
        if self.value is None:
            return f"{self.threshold.text}: no run has this figure, so it was not checked"
        of = f" in {self.crossed} of {self.count} settings, at worst" if self.count > 1 else ""
        return (
            f"{self.threshold.text}{of}: {self.threshold.write(self.value)}{f' ({self.where})' if self.where else ''}"
        )

    def as_dict(self) -> dict[str, Any]:
        """The JSON values; latencies in microseconds, rates in MB or records a second."""
        return {
            "condition": self.threshold.text,
            "failed": self.has_failed,
            "value": self.value,
            "where": self.where or None,
            "crossed": self.crossed,
            "of": self.count,
        }


def judge(
    thresholds: Iterable[Threshold], rows: Sequence[Row], name_of: Callable[[Row], str] = lambda row: ""
) -> list[ThresholdCheck]:
    """Checks each threshold; `name_of` names the setting of a row, whose repeats have the same name."""
    return [_judged(each, rows, name_of) for each in thresholds]


def _judged(threshold: Threshold, rows: Sequence[Row], name_of: Callable[[Row], str]) -> ThresholdCheck:
    with_figure = [row for row in rows if not row.get("error") and threshold.figure(row) is not None]
    paced = [row for row in with_figure if row.get("settings_rate_per_s") is not None]
    free = [row for row in with_figure if row.get("settings_rate_per_s") is None]
    chosen = (paced or free) if threshold.is_latency else (free or paced)
    figures: dict[str, list[float]] = {}
    for row in chosen:
        figures.setdefault(name_of(row), []).append(float(threshold.figure(row) or 0.0))
    medians: Mapping[str, float] = {name: statistics.median(values) for name, values in figures.items()}
    if not medians:
        return ThresholdCheck(threshold, None, "", 0, 0)
    worst = max if threshold.operator.startswith(">") else min
    where = worst(medians, key=lambda name: medians[name])
    crossed = sum(map(threshold.is_crossed, medians.values()))
    return ThresholdCheck(threshold, medians[where], where, crossed, len(medians))
