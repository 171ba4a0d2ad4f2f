"""Turns rows into points and lines: medians over repeats with their spread.

Takes: the flat rows of a store. Gives: an `Analysis`: lines (one per record size and channel count), their figures per
buffer timeout, the throughput kept against 100 ms, the rows that failed, and remarks on the limits of the rows.

Rules: throughput figures come from runs without a rate, latency figures from runs with one; the two are never mixed.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from netstack.base.units import counted, format_count, format_duration, format_latency, format_size

from ..grid import Kind, run_kind
from ..labels import Figure, plain, setting, setting_name, setting_text
from ..spec import constants_of
from ..store import Row

REFERENCE_TIMEOUT_S: Final = 0.1  # the field's default
PREFIX_BYTES: Final = 4  # length prefix of a record on the wire

_WIDE_SPREAD: Final = 0.25  # repeats disagree if their range exceeds this fraction of the median
_EFFORT: Final = frozenset({"records", "seconds", "warmup_s", "rate_per_s"})  # length and load, not the workload
_AXES: Final = frozenset({"record_bytes", "channels", "buffer_timeout_s"})
_TAGS: Final = {"sweep": "", "engine_kind": "local"}  # names beside settings in which rows may differ, with defaults


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: all settings but the buffer timeout.

    `extras` are the settings besides record size and channels in which the rows differ, as (name, text).
    """

    record_bytes: int
    channels: int
    extras: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        """For legends and tables."""
        more = "".join(f" · {setting_name(name)} {text}" for name, text in self.extras)
        return f"{format_size(self.record_bytes, space=' ')} · {self.channels:,} ch{more}"

    @property
    def sweep(self) -> str:
        """The letter of its sweep; empty with a single sweep."""
        return dict(self.extras).get("sweep", "")

    @property
    def work(self) -> Line:
        """The same settings without the letter of the sweep."""
        return Line(self.record_bytes, self.channels, tuple(each for each in self.extras if each[0] != "sweep"))

    @property
    def words(self) -> str:
        """For sentences."""
        more = "".join(f", {setting_name(name)} {text}" for name, text in self.extras)
        return f"{format_size(self.record_bytes, space=' ')} records, {counted(self.channels, 'channel')}{more}"


class Analysis:
    """The evaluated rows of a report: flat rows of one store, failed ones included."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = list(rows)
        self.failed = [row for row in rows if row.get("error") or row.get("delivered") is False]
        self.good = [row for row in rows if not row.get("error") and row.get("delivered") is not False]
        self.varying = varying_settings(rows)
        self._groups: dict[tuple[Kind, Line, float | None], list[Row]] = {}
        for row in self.good:
            line = Line(
                row["settings_record_bytes"],
                row["settings_channels"],
                tuple((name, setting_text(name, facet(row, name))) for name in self.varying),
            )
            self._groups.setdefault((row_kind(row), line, row.get("settings_buffer_timeout_s")), []).append(row)
        self._rates: dict[tuple[Line, float | None], dict[float, list[Row]]] = {}
        for (kind, line, timeout), entries in self._groups.items():
            if kind == "latency":
                by_rate = self._rates.setdefault((line, timeout), {})
                for row in sorted(entries, key=lambda row: float(row["settings_rate_per_s"])):
                    by_rate.setdefault(float(row["settings_rate_per_s"]), []).append(row)
                entries[:] = by_rate[min(by_rate)]
        self.lines = sorted({line for _, line, _ in self._groups}, key=_line_order)
        self.own_lines = [line for line in self.lines if ("engine_kind", "flink") not in line.extras]
        """The lines without those of a real Flink, which the findings ignore."""
        self.timeouts = sorted({timeout for _, _, timeout in self._groups}, key=timeout_order)
        self.points = list(itertools.product(self.lines, self.timeouts))

    @property
    def repeats(self) -> int:
        """The largest number of repeats of a point."""
        return max((len(rows) for rows in self._groups.values()), default=0)

    @property
    def has_round_trips(self) -> bool:
        """Whether some latencies are round trips."""
        return any(row.get("round_trip_latency_us_p50") is not None for row in self.good)

    @property
    def reference(self) -> float | None:
        """The reference timeout: 100 ms, else the longest measured one."""
        finite = [timeout for timeout in self.timeouts if timeout is not None]
        return REFERENCE_TIMEOUT_S if REFERENCE_TIMEOUT_S in finite else max(finite, default=None)

    @property
    def latency_rates(self) -> list[float]:
        """The rates of the latency runs, in records per second; of several at one point the lowest."""
        return sorted({min(by_rate) for by_rate in self._rates.values()})

    def by_rate(self, line: Line, timeout_s: float | None) -> Mapping[float, Sequence[Row]]:
        """The latency runs of one point at each rate, from the lowest; `runs` has those at the lowest only."""
        return self._rates.get((line, timeout_s), {})

    def throughput(self, line: Line, timeout_s: float | None, name: str = "records_per_s") -> Figure | None:
        """A figure of the throughput runs of one point."""
        return Figure.of(row.get(name) for row in self.runs("throughput", line, timeout_s))

    def latency(
        self, line: Line, timeout_s: float | None, name: str = "p50", *, kind: Kind = "latency"
    ) -> Figure | None:
        """A percentile, in microseconds, of the latency runs of one point, or of those of another kind."""
        return Figure.of(row_latency(row, name) for row in self.runs(kind, line, timeout_s))

    def runs(self, kind: Kind, line: Line, timeout_s: float | None) -> Sequence[Row]:
        """The rows of one point, a repeat each."""
        return self._groups.get((kind, line, timeout_s), ())

    def kept(self, line: Line, timeout_s: float | None) -> float | None:
        """Throughput at this timeout as a fraction of that at the reference timeout."""
        here, there = self.throughput(line, timeout_s), self.throughput(line, self.reference)
        return here.median / there.median if here and there and there.median else None

    def cut_short(self, line: Line, timeout_s: float | None) -> bool:
        """Whether the latency run was too short to see one buffer leave by itself, so its figures are a lower bound."""
        return any(_ended_first(row) for row in self.runs("latency", line, timeout_s))

    def findings(self) -> list[tuple[str, str, str]]:
        """The main findings, each as (topic, figure, sentence); fewer when rows are missing."""
        return [finding for finding in (self._fastest(), self._promptest()) if finding is not None]

    def remarks(self) -> list[str]:
        """Remarks on the limits of the figures."""
        remarks = []
        if self.good and self.repeats < 3:
            times = "once" if self.repeats == 1 else "twice"
            remarks.append(f"Each point was measured {times}, so its noise is unknown; --repeats 5 shows the spread.")
        if any(itertools.starmap(self.cut_short, self.points)):
            remarks.append(
                "Hollow marks: the run ended before a buffer timeout expired, so the latency is a lower bound and would"
                " be higher in a longer run."
            )
        if self.has_round_trips:
            remarks.append("Where records are relayed back, latency is the round trip by one clock.")
        for words, names in (
            ("versions of netstack", ("version",)),
            ("builds of netstack", ("host_netstack_build",)),
            ("machines", ("host_name", "host_cpu", "host_cores", "host_kernel", "host_python")),
        ):
            if any(len(_distinct(self.rows, name)) > 1 for name in names):
                remarks.append(f"These rows come from different {words}; compare them with care.")
        if any(len(by_rate) > 1 for by_rate in self._rates.values()):
            remarks.append(
                "Where a point has latency runs at several rates, its latency is that at the lowest; the others are in"
                " latency against rate."
            )
        for kind in ("throughput", "latency"):
            rows = [row for (each, _, _), entries in self._groups.items() if each == kind for row in entries]
            for name in ("rate_per_s", "seconds"):
                values = _distinct(rows, f"settings_{name}")
                if len(values) > 1:
                    remarks.append(f"The {kind} runs differ in {name} ({', '.join(values)}); their points are pooled.")
        return remarks

    def _fastest(self) -> tuple[str, str, str] | None:
        points = self._own(self.throughput)
        if not points:
            return None
        line, timeout, figure = max(points, key=lambda point: point[2].median)
        sentence = f"at best: {line.words}, buffer timeout {format_duration(timeout, space=' ')}"
        bulk = self._own(lambda line, timeout: self.throughput(line, timeout, "payload_mb_per_s"))
        if bulk:
            at, when, payload = max(bulk, key=lambda point: point[2].median)
            where = f": {at.words}, timeout {format_duration(when, space=' ')}" if (at, when) != (line, timeout) else ""
            sentence += f"; {payload.median:,.0f} MB/s of payload{where}"
        return "Throughput", f"{format_count(figure.median)} records/s", sentence

    def _promptest(self) -> tuple[str, str, str] | None:
        points = self._own(self.latency)
        if not points:
            return None
        line, timeout, figure = min(points, key=lambda point: point[2].median)
        sentence = f"median at best: {line.words}, buffer timeout {format_duration(timeout, space=' ')}"
        tail = self.latency(line, timeout, "p99")
        if tail is not None:
            sentence += f"; p99 {micro(tail.median)}"
        longest = self.latency(line, self.reference)
        if longest is not None and timeout != self.reference:
            sentence += f"; median at {format_duration(self.reference, space=' ')}: {micro(longest.median)}"
        rates = self.latency_rates
        return "Latency", micro(figure.median), f"{sentence}; at {rates[0]:,.0f} records/s" if rates else sentence

    def _own(self, read: Callable[[Line, float | None], Figure | None]) -> list[tuple[Line, float | None, Figure]]:
        points = itertools.product(self.own_lines, self.timeouts)
        return [(*point, figure) for point in points if (figure := read(*point)) is not None]


def noise_warnings(analysis: Analysis) -> list[str]:
    """The points at which repeats disagree, by kind of figure."""
    warnings = []
    for what, read in (("throughput", analysis.throughput), ("median latency", analysis.latency)):
        spreads = [
            ((figure.high - figure.low) / figure.median, f"{line.words}, timeout {format_duration(timeout, space=' ')}")
            for line, timeout in analysis.points
            if (figure := read(line, timeout)) is not None and figure.count > 1 and figure.median
        ]
        wide = [each for each in spreads if each[0] > _WIDE_SPREAD]
        if wide:
            worst, where = max(wide)
            middle = statistics.median(spread for spread, _ in wide)
            warnings.append(
                f"Repeats disagree about {what} at {len(wide)} of {len(spreads)} points: their range is {middle:.0%}"
                f" of the median there, {worst:.0%} at worst ({where}). Smaller differences are not significant."
            )
    return warnings


def row_kind(row: Mapping[str, Any]) -> Kind:
    """The kind of a row: throughput or latency."""
    return run_kind(row.get("settings_rate_per_s"))


def row_latency(row: Mapping[str, Any], name: str, channels: str = "") -> float | None:
    """A percentile in microseconds: one way, or the round trip of a run whose records came back.

    `channels` is `local_` for the channels within a host, of a run that has others too.
    """
    one_way = row.get(f"{channels}latency_us_{name}")
    return row.get(f"{channels}round_trip_latency_us_{name}") if one_way is None else one_way


def timeout_order(timeout_s: float | None) -> float:
    """A sort key: 0 first, `none` last."""
    return math.inf if timeout_s is None else timeout_s


def micro(microseconds: float) -> str:
    """A latency as the report writes it: `52.1 µs`."""
    return format_latency(microseconds).replace("us", "µs")


def facet(row: Mapping[str, Any], name: str) -> Any:
    """The value of a setting in a row, or of another name that splits lines: the sweep, the kind of engine."""
    value = row.get(name) or _TAGS[name] if name in _TAGS else setting(row, name)
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def varying_settings(rows: Sequence[Row]) -> list[str]:
    """The settings besides the axes in which the rows differ: they split lines and are part of their labels.

    Settings that differ only from sweep to sweep are left out: the letter of the sweep stands for them.
    """
    sweeps = _by_sweep(rows)
    return [name for name in _differing(rows) if name == "sweep" or not _decided(sweeps, name)]


def settings_of_sweeps(rows: Sequence[Row]) -> list[str]:
    """The settings in which several sweeps differ, but not the rows of one sweep."""
    sweeps = _by_sweep(rows)
    return [name for name in _differing(rows) if name != "sweep" and _decided(sweeps, name)]


def _differing(rows: Sequence[Row]) -> list[str]:
    names = sorted({name.removeprefix("settings_") for row in rows for name in row if name.startswith("settings_")})
    further = [name for name in names if name not in _AXES | _EFFORT]
    if len({facet(row, "acts_as") for row in rows}) > 1:
        further = [name for name in further if name not in constants_of("flink")]  # which acts_as implies
    return [name for name in [*_TAGS, *further] if len({facet(row, name) for row in rows}) > 1]


def _by_sweep(rows: Sequence[Row]) -> list[list[Row]]:
    sweeps: dict[str, list[Row]] = {}
    for row in rows:
        sweeps.setdefault(facet(row, "sweep"), []).append(row)
    return list(sweeps.values())


def _decided(sweeps: Sequence[Sequence[Row]], name: str) -> bool:
    return len(sweeps) > 1 and all(len({facet(row, name) for row in rows}) == 1 for rows in sweeps)


def _line_order(line: Line) -> tuple[Any, ...]:
    parts = [(int(part) if part.isdigit() else 0, part) for _, text in line.extras for part in re.split(r"(\d+)", text)]
    return line.record_bytes, line.channels, parts


def _distinct(rows: Iterable[Row], name: str) -> list[str]:
    return list(dict.fromkeys("none" if row[name] is None else plain(row[name]) for row in rows if name in row))


def _ended_first(row: Mapping[str, Any]) -> bool:
    """Whether the run was shorter than the timeout, or than the time that fills a buffer."""
    seconds, rate = row.get("settings_seconds"), row.get("settings_rate_per_s")
    if seconds is None or rate is None:
        return False
    timeout = row.get("settings_buffer_timeout_s")
    if timeout is not None:
        return bool(timeout > seconds)
    a_channel = rate * seconds / row["settings_channels"] * (row["settings_record_bytes"] + PREFIX_BYTES)
    return bool(a_channel < row.get("settings_segment_size_bytes", 32 * 1024))
