"""Makes the runs that a recommendation needs, on two processes or on TaskManagers of the user's hosts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from netstack.base.units import format_count, format_latency

from ..figure import Figure
from ..grid import Grid, PlannedRun
from ..interval import ENOUGH_REPEATS, Interval
from ..labels import setting_text
from ..places.local.processes import MeasurementFailed
from ..report.highest_rate import HighestRate
from ..report.points import row_latency
from ..spec import RunOnce, RunSpec, constants_of
from ..store import Row, flatten
from ..sweep import utc_text

LADDER_S: Final[tuple[float, ...]] = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""The timeouts of a recommendation; the last is the reference."""

PAYS: Final = 1.02
"""The whole interval of the throughput with more buffers must be above this multiple."""

_ROOM: Final = 1.25  # times the product of bandwidth and delay: credit comes back a little late


_RUNS_A_RATE: Final = 3
_CLOSE: Final = 1.15  # the highest rate is known to this factor
_FAR: Final = 100.0  # below the rate of the latency runs no lower rate is tried


class Measurer:
    """Makes the runs of an experiment, and keeps their rows.

    `spec` are the settings with the chosen buffers; the timeout and the rate are set for each run. `report` receives a
    line for each throughput run.
    """

    def __init__(self, run: RunOnce, spec: RunSpec, reference_s: float, report: Callable[[str], None]) -> None:
        self._run = run
        self.spec = spec
        self._reference_s = reference_s
        self._report = report
        self.rows: list[Row] = []

    def grid(self, timeouts_s: Sequence[float], rate_per_s: float) -> Grid:
        """The runs of a pass: throughput and latency at each timeout."""
        points = [replace(self.spec, buffer_timeout_s=timeout_s) for timeout_s in timeouts_s]
        return Grid(points=(*points, *(replace(point, rate_per_s=rate_per_s) for point in points)))

    def __call__(self, runs: Sequence[PlannedRun]) -> None:
        """Makes runs of an experiment."""
        for run in runs:
            row = {**self._measured(run.spec), "repeat": run.repeat}
            if run.kind == "latency" and not row_latency(row, "p99"):
                raise MeasurementFailed("a paced run has no latency: it was too short; give a longer --seconds")
            self.rows.append(row)
            figure = (
                f"{row['payload_mb_per_s']:.3g} MB/s"
                if run.kind == "throughput"
                else (f"p99 {format_latency(float(row_latency(row, 'p99') or 0.0))}")
            )
            self._report(f"timeout {setting_text('buffer_timeout_s', run.spec.buffer_timeout_s)}: {figure}")

    def highest_rate(
        self, timeout_s: float | None, rate_per_s: float, bound_us: float, has_time: Callable[[], bool]
    ) -> HighestRate | None:
        """Bisects between the rate of the latency runs and the throughput at this timeout; a rate has up to three runs.

        Lower rates follow where that of the latency runs does not keep the bound. None where the timeout has no runs.
        """
        spec = replace(self.spec, buffer_timeout_s=timeout_s)
        at_timeout = [row for row in self.rows if row.get("settings_buffer_timeout_s") == timeout_s]
        free = Figure.of(row["records_per_s"] for row in at_timeout if row["settings_rate_per_s"] is None)
        by_rate: dict[float, list[Row]] = {
            rate_per_s: [row for row in at_timeout if row["settings_rate_per_s"] is not None]
        }
        if free is None or not by_rate[rate_per_s]:
            return None

        def keeps(rate: float) -> bool:
            rows = by_rate.setdefault(rate, [])
            while len(rows) < _RUNS_A_RATE and (not rows or has_time()):
                rows.append(self._measured(replace(spec, rate_per_s=rate)))
                alone = [HighestRate.of({rate: [each]}, bound_us) for each in rows]
                passed = [each is not None and each.rate_per_s is not None for each in alone]
                if len(passed) > 1 and len(set(passed)) == 1:
                    break
            all_runs = HighestRate.of({rate: rows}, bound_us)
            is_kept = all_runs is not None and all_runs.rate_per_s is not None
            p99 = Figure.of(row_latency(row, "p99") for row in rows)
            latency = "no latency" if p99 is None else f"p99 {format_latency(p99.median)}"
            self._report(f"{format_count(rate)} records/s: {latency}{'' if is_kept else ', too much'}")
            return is_kept

        first = HighestRate.of(by_rate, bound_us)
        low, high = rate_per_s, max(free.median, rate_per_s * _CLOSE)
        if first is None or first.rate_per_s is None:
            low, high = rate_per_s / _FAR, rate_per_s
        while high > low * _CLOSE and has_time():
            rate = _two_digits(math.sqrt(low * high))
            if not low < rate < high:
                break
            low, high = (rate, high) if keeps(rate) else (low, rate)
        return HighestRate.of(by_rate, bound_us)

    def size_buffers(self, has_time: Callable[[], bool]) -> None:
        """Sets as many floating buffers as the line holds, if the profile allows it and runs by turns show a gain."""
        plain = replace(self.spec, buffer_timeout_s=self._reference_s)
        if not plain.round_trip_s or "floating_buffers" in constants_of(plain.acts_as):
            return
        first = self._measured(plain)
        per_s = plain.link_bytes_per_s or 1e6 * float(first.get("wire_mb_per_s") or first["payload_mb_per_s"])
        under_way = math.ceil(_ROOM * per_s * plain.round_trip_s / plain.segment_size_bytes)
        missing = under_way - plain.channels * plain.exclusive_buffers
        if missing <= plain.floating_buffers + plain.spare_buffers:
            return
        wide = replace(plain, floating_buffers=missing)
        pairs: list[tuple[float, float]] = []
        while len(pairs) < ENOUGH_REPEATS and has_time():
            one, other = (float(self._measured(spec)["payload_mb_per_s"]) for spec in (plain, wide))
            pairs.append((one, other))
        result = Interval.of_pairs(pairs)
        if result is not None:
            self._report(
                f"{missing:,} floating buffers instead of {plain.floating_buffers}: {result.percent()} of the rate"
            )
            if result.low > PAYS:
                self.spec = replace(self.spec, floating_buffers=missing)

    def _measured(self, spec: RunSpec) -> Row:
        started_at = utc_text()
        row = flatten({**self._run(spec), "settings": spec.as_dict(), "started_at": started_at})
        if row.get("delivered") is not True:
            raise MeasurementFailed("a run did not deliver every record; its figures do not count")
        return row


def _two_digits(rate: float) -> float:
    return float(f"{rate:.2g}")
