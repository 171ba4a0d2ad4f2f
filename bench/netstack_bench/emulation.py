"""Compares netstack's figures with those of a real Flink, cell by cell.

- Times, records per buffer, bytes in flight or persisted and kept throughput are compared as log2 of ours / Flink's; ms
  per second and usages as ours - Flink's. The margin is a ratio of 1.15 either way, 150 ms/s, or 0.15 of a pool.
- `equivalence` says of each figure whether it is within the margin, outside, or undecided. A cell is within if all of
  its figures are, and outside if one is. `sweep` measures undecided cells again, up to a number of repeats.
- Without a rate the speed of the two languages decides where records wait. Such a run is compared by the part of its
  throughput at the longest timeout in the same pass that each side keeps, and by the records of full buffers.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from netstack.base.units import counted

from .interval import ENOUGH_REPEATS, Equivalence, Verdict, joint
from .labels import Figure, setting
from .spec import RunSpec, constants_of
from .store import Row

FLINK: Final = "flink"
"""The `engine_kind` of rows measured on Flink."""

WITHIN: Final = 0.15
_FULL: Final = 0.9  # fill of a buffer that counts as full
_NOT_THE_WORK: Final = frozenset({"acts_as", "profile", "verify", "warmup_s", *constants_of("flink")})
_WORK: Final = tuple(field.name for field in dataclasses.fields(RunSpec) if field.name not in _NOT_THE_WORK)

RATIOS: Final = {
    "p50": "latency_us_p50",
    "p99": "latency_us_p99",
    "records_per_buffer": "records_per_buffer",
    "bytes_in_flight": "bytes_in_flight",
    "kept_throughput": "kept_throughput",
    "checkpoint_ms": "checkpoints_duration_ms_p50",
    "alignment_ms": "checkpoints_alignment_ms_p50",
    "channel_state": "checkpoints_channel_state_bytes_p50",
}
DIFFERENCES: Final = {
    "backpressured_ms_per_s": "metrics_producer_netstack_output_backpressured_ms_per_second",
    "busy_ms_per_s": "busy_ms_per_s",
    "idle_ms_per_s": "idle_ms_per_s",
    "output_pool_usage": "metrics_producer_netstack_output_pool_usage_ratio",
    "input_pool_usage": "metrics_consumer_netstack_input_pool_usage_ratio",
}
_BUFFER_BYTES: Final = 32.0 * 1024
_LEAST: Final = {
    "checkpoint_ms": 20.0,
    "alignment_ms": 20.0,
    "channel_state": _BUFFER_BYTES,
    "bytes_in_flight": _BUFFER_BYTES,
}
"""Figures are not compared where both are below this: Flink counts in whole milliseconds, and its RPC takes some; most
samples of a queue with less than a buffer find it empty, and latency tells the same.
"""
_FREE: Final = ("records_per_buffer", "kept_throughput")
"""The compared figures of a run without a rate."""


@dataclass(frozen=True, slots=True)
class Error:
    """One figure (of `RATIOS` or `DIFFERENCES`) of a cell on both sides."""

    name: str
    flink: Figure
    ours: Figure
    equivalence: Equivalence

    @property
    def verdict(self) -> Verdict:
        """Whether the figure is within the margin."""
        return self.equivalence.verdict

    def as_dict(self) -> dict[str, Any]:
        """The figure as JSON values; an unknown end of the interval is None."""
        distance = self.equivalence
        ends = (distance.error, distance.low, distance.high)
        error, low, high = (each if math.isfinite(each) else None for each in ends)
        return {
            "flink": self.flink.median,
            "netstack": self.ours.median,
            "error": error,
            "low": low,
            "high": high,
            "repeats": min(self.flink.count, self.ours.count),
            "verdict": self.verdict.value,
            "within": self.verdict is Verdict.WITHIN,
        }


@dataclass(frozen=True, slots=True)
class Cell:
    """The same work on Flink and on netstack under one profile.

    `acts_as` is the profile; each figure that both sides have is an `Error`.
    """

    acts_as: str
    settings: Mapping[str, Any]
    errors: tuple[Error, ...]

    def error_of(self, name: str) -> Error | None:
        """The error of a figure; None if it was not compared."""
        return next((error for error in self.errors if error.name == name), None)

    @property
    def verdict(self) -> Verdict:
        """Whether all of its figures are within the margin."""
        return joint(error.verdict for error in self.errors)

    def as_dict(self) -> dict[str, Any]:
        """The cell as JSON values."""
        return {
            "as": self.acts_as,
            "settings": dict(self.settings),
            "verdict": self.verdict.value,
            "within": self.verdict is Verdict.WITHIN,
            "errors": {error.name: error.as_dict() for error in self.errors},
        }


def emulation_cells(rows: Iterable[Row]) -> list[Cell]:
    """Every cell that was measured on both sides, in the order of our rows."""
    flinks: dict[_Work, list[Row]] = {}
    ours: dict[tuple[str, _Work], list[Row]] = {}
    for row in rows:
        if row.get("error") or row.get("delivered") is False:
            continue
        if row.get("engine_kind") == FLINK:
            flinks.setdefault(_work(row), []).append(_prepared(row))
        else:
            ours.setdefault((setting(row, "acts_as"), _work(row)), []).append(_prepared(row))
    _keep(flinks)
    for acts_as in {acts_as for acts_as, _ in ours}:
        _keep({work: entry for (profile, work), entry in ours.items() if profile == acts_as})
    return [
        Cell(acts_as, dict(work), tuple(_errors(dict(work), flinks[work], entry)))
        for (acts_as, work), entry in ours.items()
        if work in flinks
    ]


def emulation_summary(cells: Sequence[Cell]) -> list[str]:
    """A sentence for each profile: how many of its cells and figures are within 15 %, outside, and undecided."""
    lines = []
    for acts_as in dict.fromkeys(cell.acts_as for cell in cells):
        entries = [cell for cell in cells if cell.acts_as == acts_as]
        errors = [error for cell in entries for error in cell.errors]
        lines.append(
            f"--as {acts_as} beside Flink: of {counted(len(entries), 'cell')} {_counts(entries)};"
            f" of {counted(len(errors), 'figure')} {_counts(errors)}{_advice(errors)}"
        )
    return lines


def _advice(errors: Iterable[Error]) -> str:
    too_few = any(min(error.flink.count, error.ours.count) < ENOUGH_REPEATS for error in errors)
    return f" (fewer than {ENOUGH_REPEATS} repeats decide nothing)" if too_few else ""


def _counts(judged: Iterable[Cell | Error]) -> str:
    counts = Counter(each.verdict for each in judged)
    within, outside, undecided = (counts[each] for each in Verdict)
    return f"{within} within {WITHIN:.0%}, {outside} outside, {undecided} undecided"


def undecided_points(rows: Iterable[Row], points: Iterable[RunSpec]) -> list[RunSpec]:
    """The points to measure again: those of undecided cells, and what their throughput is compared with.

    Beside cells that act as Flink, those of netstack as it is do not count.
    """
    every_cell = emulation_cells(rows)
    judged = [cell for cell in every_cell if cell.acts_as != RunSpec().acts_as] or every_cell
    cells = [_without_gates(cell.settings) for cell in judged if cell.verdict is Verdict.UNDECIDED]
    lines = [_line_of(tuple(each.items())) for each in cells if _is_free(each)]
    chosen = []
    every = [(spec, _without_gates({name: getattr(spec, name) for name in _WORK})) for spec in points]
    for spec, work in every:
        line = _line_of(tuple(work.items()))
        longest = max(_timeout_of(tuple(other.items())) for _, other in every if _line_of(tuple(other.items())) == line)
        is_reference = line in lines and _timeout_of(tuple(work.items())) == longest
        if work in cells or is_reference:
            chosen.append(spec)
    return chosen


def _without_gates(work: Mapping[str, Any]) -> dict[str, Any]:
    """The work of a point of a grid, whose runs get their gates later (`FlinkSpec.of`)."""
    return {name: value for name, value in work.items() if name != "gates"}


_Work = tuple[tuple[str, Any], ...]


def _work(row: Row) -> _Work:
    return tuple((name, setting(row, name)) for name in _WORK)


def _prepared(row: Row) -> Row:
    prepared = dict(row)
    consumer = "metrics_consumer_netstack_input_"
    buffers = sum(row.get(f"{consumer}{kind}_buffers_total") or 0 for kind in ("remote", "local"))
    if buffers and row.get("records") and row.get("engine_kind") != FLINK:
        prepared["records_per_buffer"] = row["records"] / buffers
    sent, received = row.get("metrics_producer_netstack_output_queue_bytes"), row.get(f"{consumer}queue_bytes")
    if sent is not None and received is not None:
        prepared["bytes_in_flight"] = sent + received
    idle = row.get("idle_ms_per_s")
    if idle is not None:
        prepared["busy_ms_per_s"] = row.get(f"{consumer}busy_ms_per_second", 1000.0 - idle)
    return prepared


def _keep(groups: Mapping[_Work, list[Row]]) -> None:
    longest: dict[_Work, tuple[float, dict[int, float]]] = {}
    for work, rows in groups.items():
        timeout, line = _timeout_of(work), _line_of(work)
        rates = {row.get("repeat") or 0: rate for row in rows if (rate := row.get("records_per_s"))}
        if rates and _is_free(dict(work)) and timeout > longest.get(line, (-1.0, {}))[0]:
            longest[line] = timeout, rates
    for work, rows in groups.items():
        timeout, (at, rates) = _timeout_of(work), longest.get(_line_of(work), (-1.0, {}))
        for row in rows:
            whole = rates.get(row.get("repeat") or 0)
            if _is_free(dict(work)) and timeout < at and whole and row.get("records_per_s"):
                row["kept_throughput"] = row["records_per_s"] / whole


def _line_of(work: _Work) -> _Work:
    return tuple(each for each in work if each[0] != "buffer_timeout_s")


def _timeout_of(work: _Work) -> float:
    timeout = dict(work)["buffer_timeout_s"]
    return math.inf if timeout is None else float(timeout)


def _is_free(settings: Mapping[str, Any]) -> bool:
    return settings["rate_per_s"] is None and settings["consume_rate_per_s"] is None


def _errors(settings: Mapping[str, Any], flinks: Sequence[Row], ours: Sequence[Row]) -> Iterable[Error]:
    is_free = _is_free(settings)
    fills = [row.get("average_buffer_fill") or 0.0 for row in (*flinks, *ours)]
    for name, column in {**RATIOS, **DIFFERENCES}.items():
        theirs, mine = (_values(rows, column) for rows in (flinks, ours))
        one, other = Figure.of(theirs), Figure.of(mine)
        if one is None or other is None or (is_free and name not in _FREE):
            continue
        if is_free and name == "records_per_buffer" and min(fills) < _FULL:
            continue
        if max(one.median, other.median) < _LEAST.get(name, 0.0):
            continue
        if name in RATIOS:
            distance = Equivalence.of_ratio(theirs, mine, WITHIN)
        else:
            distance = Equivalence.of_difference(theirs, mine, WITHIN * (1000 if name.endswith("per_s") else 1))
        yield Error(name, one, other, distance)


def _values(rows: Iterable[Row], column: str) -> list[float]:
    return [value for row in rows if (value := row.get(column)) is not None and math.isfinite(value)]
