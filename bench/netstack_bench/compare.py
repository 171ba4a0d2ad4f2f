"""Compares two sets of results: which differences exceed the noise; and the medians of runs of the same settings.

Points match if all their settings are equal, except the length of the runs (`records`, `seconds`, `warmup_s`). Each
side is shown as its median over repeats.

With three or more repeats on both sides a difference counts if the 99 % interval of the ratio
(`netstack_bench.interval`) excludes 1: about one false alarm in a hundred figures. An outlier widens the interval, so
it hides a difference rather than creates one. A change below 1 % is never a difference. With fewer repeats the noise is
unknown: a threshold replaces it, and every verdict says so.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from netstack.base.errors import ConfigError
from netstack.base.units import counted, format_duration, format_size

from .grid import run_kind
from .histogram import Histogram
from .interval import ENOUGH_REPEATS, JUDGED, Interval
from .labels import Figure, distinct_warnings, is_duration, setting
from .spec import RunSpec
from .store import Row

Verdict = Literal["better", "worse", "same"]

LEAST_CHANGE: Final = 0.01

# Of one run against another on a shared machine; latency tails move most. A --threshold replaces them all.
DEFAULT_THRESHOLDS: Final = {
    "records_per_s": 0.15,
    "cpu_s_per_gb_producer": 0.15,
    "cpu_s_per_gb_consumer": 0.15,
    "latency_us_p50": 0.25,
    "latency_us_p99": 0.50,
}
_METRICS: Final = {
    "throughput": ("records_per_s", "cpu_s_per_gb_producer", "cpu_s_per_gb_consumer"),
    "latency": ("latency_us_p50", "latency_us_p99"),
}
_HIGHER_IS_BETTER: Final = frozenset({"records_per_s"})
_EFFORT: Final = frozenset({"records", "seconds", "warmup_s"})
_DEFAULTS: Final[dict[str, Any]] = {
    field.name: field.default for field in dataclasses.fields(RunSpec) if field.name not in _EFFORT
}
_Point = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """One metric of one point on both sides.

    `change` is (B - A) / A of the geometric means and `low` to `high` its 99 % interval. With too few repeats it is
    that of medians, the interval is None, and `threshold` is the change that counts. `verdict` is what the change means
    for B: `same` within the noise.
    """

    point: str
    metric: str
    a: Figure
    b: Figure
    change: float
    low: float | None
    high: float | None
    threshold: float
    verdict: Verdict
    settings: dict[str, Any]

    @property
    def noise_known(self) -> bool:
        """Whether there were enough repeats."""
        return self.low is not None

    def range_text(self) -> str:
        """The interval of the change; without one, the threshold."""
        if self.low is None or self.high is None:
            return f"unknown (\u00b1{self.threshold:.0%})"
        return f"{self.low:+.1%} to {self.high:+.1%}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """All differences and remarks."""

    differences: tuple[Difference, ...]
    remarks: tuple[str, ...]

    def summary(self) -> list[str]:
        """One sentence per metric over all points."""
        lines = []
        for metric in DEFAULT_THRESHOLDS:
            rows = [difference for difference in self.differences if difference.metric == metric]
            if rows:
                middle = statistics.median(1 + difference.change for difference in rows)
                counts = {name: sum(each.verdict == name for each in rows) for name in ("better", "worse", "same")}
                lines.append(
                    f"{metric}: B is {middle:.2f} x A in the median of {len(rows)} points; {counts['better']} better, "
                    f"{counts['worse']} worse, {counts['same']} within the noise{_guessed(rows)}"
                )
        return lines

    def as_dict(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        return {
            "differences": [dataclasses.asdict(difference) for difference in self.differences],
            "summary": self.summary(),
            "remarks": list(self.remarks),
        }


def compare(a: Sequence[Row], b: Sequence[Row], *, threshold: float | None = None) -> Comparison:
    """Matches the points of two results and judges every difference.

    `threshold` is the relative change that counts where the noise is unknown; None is `DEFAULT_THRESHOLDS`.

    Raises:
        ConfigError: the results have no point in common.
    """
    here, there = _points(a), _points(b)
    common = [point for point in here if point in there]
    if not common:
        raise ConfigError(_nothing_common(here, there))
    differences = tuple(
        difference
        for point in sorted(common, key=_order)
        for metric in _METRICS[run_kind(dict(point)["rate_per_s"])]
        if (difference := _judge(point, metric, here[point], there[point], threshold)) is not None
    )
    return Comparison(differences, tuple(_remarks(a, b, here, there, differences)))


def _guessed(differences: Sequence[Difference]) -> str:
    unknown = sum(not difference.noise_known for difference in differences)
    return f" (the noise of {'all' if unknown == len(differences) else unknown} is unknown)" if unknown else ""


def _judge(point: _Point, metric: str, a: list[Row], b: list[Row], threshold: float | None) -> Difference | None:
    one, other = Figure.of(row.get(metric) for row in a), Figure.of(row.get(metric) for row in b)
    if one is None or other is None or not one.median:
        return None
    here, there = ([float(row[metric]) for row in rows if row.get(metric) is not None] for rows in (a, b))
    ratio = Interval.of_ratio(here, there, JUDGED)
    limit = DEFAULT_THRESHOLDS[metric] if threshold is None else threshold
    if ratio is None:
        low = high = None
        change = other.median / one.median - 1
        differs = abs(change) > limit
    else:
        change, low, high = ratio.middle - 1, ratio.low - 1, ratio.high - 1
        differs = abs(change) > LEAST_CHANGE and not low <= 0 <= high
    verdict: Verdict = "same"
    if differs:
        verdict = "better" if (change > 0) == (metric in _HIGHER_IS_BETTER) else "worse"
    return Difference(_words(point), metric, one, other, change, low, high, limit, verdict, dict(point))


def _points(rows: Sequence[Row]) -> dict[_Point, list[Row]]:
    points: dict[_Point, list[Row]] = {}
    for row in rows:
        if not row.get("error") and row.get("delivered") is not False:
            settings = tuple((name, setting(row, name)) for name in _DEFAULTS)
            points.setdefault(settings, []).append(row)
    return points


def _nothing_common(here: Mapping[_Point, object], there: Mapping[_Point, object]) -> str:
    for name, points in (("A", here), ("B", there)):
        if not points:
            return f"nothing to compare: {name} has no successful run"
    differing = []
    for index, name in enumerate(_DEFAULTS):
        values = [{point[index][1] for point in points} for points in (here, there)]
        if not values[0] & values[1]:
            text = " against ".join("/".join(sorted(_value(name, value) for value in side)) for side in values)
            differing.append(f"{name} ({text})")
    why = f"they differ in {', '.join(differing)}" if differing else "no two points have all settings equal"
    return f"A and B have no point in common: {why}; measure both with the same settings"


def _remarks(
    a: Sequence[Row],
    b: Sequence[Row],
    here: Mapping[_Point, list[Row]],
    there: Mapping[_Point, list[Row]],
    differences: Sequence[Difference],
) -> list[str]:
    remarks = []
    if any(difference.noise_known for difference in differences):
        remarks.append(
            "A and B are medians; a change is the ratio of the geometric means, and counts when its interval of"
            f" {JUDGED:.0%} confidence leaves out no change, and it is more than {LEAST_CHANGE:.0%}"
        )
    unknown = [difference for difference in differences if not difference.noise_known]
    if unknown:
        thresholds = sorted({difference.threshold for difference in unknown})
        text = ", ".join(f"{value:.0%}" for value in thresholds)
        remarks.append(
            f"noise unknown for {len(unknown)} of {len(differences)} figures (fewer than {ENOUGH_REPEATS} repeats on a "
            f"side): a change counts above {text}; measure with --repeats 5"
        )
    for name, rows, points, others in (("A", a, here, there), ("B", b, there, here)):
        alone = sum(point not in others for point in points)
        if alone:
            remarks.append(f"{counted(alone, 'point')} only in {name}")
        failed = len(rows) - sum(len(texts) for texts in points.values())
        if failed:
            remarks.append(f"{counted(failed, 'failed run')} of {name} left out")
    lengths = [
        {_value("seconds", row.get("settings_seconds")) for rows in points.values() for row in rows}
        for points in (here, there)
    ]
    if lengths[0] != lengths[1]:
        text = " against ".join("/".join(sorted(side)) for side in lengths)
        remarks.append(f"the runs had different lengths (seconds {text})")
    return remarks


def point_words(row: Row) -> str:
    """The settings of a row that matter, in words; repeats have the same."""
    return _words(next(iter(_points([row]))))


def _words(point: _Point) -> str:
    settings = dict(point)
    words = [
        run_kind(settings["rate_per_s"]),
        f"timeout {format_duration(settings['buffer_timeout_s'])}",
        format_size(settings["record_bytes"]),
        f"{settings['channels']} ch",
    ]
    if settings["rate_per_s"] is not None:
        words.append(f"{settings['rate_per_s']:g}/s")
    axes = {"buffer_timeout_s", "record_bytes", "channels", "rate_per_s"}
    words += [
        f"{name} {_value(name, value)}"
        for name, value in settings.items()
        if name not in axes and value != _DEFAULTS[name]
    ]
    return ", ".join(words)


def _value(name: str, value: Any) -> str:
    if is_duration(name):
        return format_duration(value)
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value)


def _order(point: _Point) -> tuple[Any, ...]:
    settings = dict(point)
    timeout = settings["buffer_timeout_s"]
    return (
        run_kind(settings["rate_per_s"]) == "latency",
        math.inf if timeout is None else timeout,
        settings["record_bytes"],
        settings["channels"],
        tuple(str(value) for value in settings.values()),
    )


_SHARED: Final = frozenset({"settings", "host", "version", "latency_histogram"})  # kept once for all repeats


def median_result(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One document from runs of the same settings: medians, with `repeats`, `spread` and every run's figures.

    A single document is returned unchanged.
    """
    if len(results) == 1:
        return dict(results[0])
    merged = _medians(results)
    merged["latency_histogram"] = merged_histogram(results)
    merged["delivered"] = all(result.get("delivered") is True for result in results)
    merged["warnings"] = [text for text, _ in distinct_warnings(results)]
    merged["settings"] = results[0].get("settings")
    merged["repeats"] = len(results)
    rates = [result["records_per_s"] for result in results]
    merged["spread"] = {"records_per_s": [min(rates), max(rates)]}
    merged["runs"] = [{name: value for name, value in result.items() if name not in _SHARED} for result in results]
    return merged


def merged_histogram(results: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The latencies of all runs as one histogram; None where none recorded any."""
    histograms = [result["latency_histogram"] for result in results if result.get("latency_histogram")]
    if not histograms:
        return None
    merged = Histogram()
    for each in histograms:
        merged.merge(Histogram.from_dict(each))
    return merged.to_dict()


def _medians(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for name, first in documents[0].items():
        values = [document.get(name) for document in documents]
        if isinstance(first, Mapping):
            merged[name] = _medians([value for value in values if isinstance(value, Mapping)])
        elif isinstance(first, (int, float)) and not isinstance(first, bool):
            middle = statistics.median(value for value in values if isinstance(value, (int, float)))
            merged[name] = round(middle) if isinstance(first, int) else middle
        else:
            merged[name] = first
    return merged
