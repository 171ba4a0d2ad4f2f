"""Compares netstack's figures with those of a real Flink, cell by cell.

- Times, records per buffer, bytes in flight or persisted and kept throughput are compared as log2 of ours / Flink's; ms
  per second and usages as ours - Flink's. Within 15 % is a ratio up to 1.15 either way, 150 ms/s, or 0.15 of a pool.
- A figure is blank, and counts as within 15 %, if the ranges of its repeats overlap or it cannot be compared.
- Without a rate the speed of the two languages decides where records wait. Such a run is compared by the part of its
  throughput at the longest timeout that each side keeps, and by the records of full buffers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .figure import Figure
from .labels import setting
from .spec import RunSpec, constants_of
from .store import Row

FLINK: Final = "flink"
"""The `engine_kind` of rows measured on Flink."""

WITHIN: Final = 0.15
_FULL: Final = 0.9  # fill of a buffer that counts as full
_ENOUGH: Final = 2  # repeats that have a range
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
_LEAST: Final = {"checkpoint_ms": 20.0, "alignment_ms": 20.0, "channel_state": 32.0 * 1024}
"""Figures are not compared where both are below this: Flink counts in whole milliseconds, and its RPC takes some."""
_FREE: Final = ("records_per_buffer", "kept_throughput")
"""The compared figures of a run without a rate."""


@dataclass(frozen=True, slots=True)
class Error:
    """One figure (of `RATIOS` or `DIFFERENCES`) of a cell on both sides.

    `error` is log2 of the ratio, or the difference; None where the ranges overlap.
    """

    name: str
    flink: Figure
    ours: Figure
    error: float | None

    @property
    def is_within(self) -> bool:
        """Whether the error is within 15 % or unknown."""
        if self.error is None:
            return True
        most = math.log2(1 + WITHIN) if self.name in RATIOS else WITHIN * (1000 if self.name.endswith("per_s") else 1)
        return abs(self.error) <= most


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
    def is_within(self) -> bool:
        """Whether no figure is known to differ by more than 15 %."""
        return all(error.is_within for error in self.errors)

    def as_dict(self) -> dict[str, Any]:
        """The cell as JSON values."""
        errors = {
            error.name: {
                "flink": error.flink.median,
                "netstack": error.ours.median,
                "error": error.error,
                "within": error.is_within,
            }
            for error in self.errors
        }
        return {"as": self.acts_as, "settings": dict(self.settings), "within": self.is_within, "errors": errors}


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
    """A sentence for each profile: how many of its cells and figures are within 15 %."""
    lines = []
    for acts_as in dict.fromkeys(cell.acts_as for cell in cells):
        entries = [cell for cell in cells if cell.acts_as == acts_as]
        errors = [error for cell in entries for error in cell.errors]
        lines.append(
            f"{sum(cell.is_within for cell in entries)} of {len(entries)} cells within {WITHIN:.0%} of Flink with --as"
            f" {acts_as} ({sum(error.is_within for error in errors)} of {len(errors)} figures)"
        )
    return lines


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
    longest: dict[_Work, tuple[float, float]] = {}
    for work, rows in groups.items():
        timeout, line, rate = _timeout_of(work), _line_of(work), Figure.of(row.get("records_per_s") for row in rows)
        if rate is not None and _is_free(dict(work)) and timeout > longest.get(line, (-1.0, 0.0))[0]:
            longest[line] = timeout, rate.median
    for work, rows in groups.items():
        timeout, (at, median) = _timeout_of(work), longest.get(_line_of(work), (-1.0, 0.0))
        for row in rows:
            if _is_free(dict(work)) and timeout < at and median and row.get("records_per_s"):
                row["kept_throughput"] = row["records_per_s"] / median


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
        one, other = (Figure.of(row.get(column) for row in rows) for rows in (flinks, ours))
        if one is None or other is None or (is_free and name not in _FREE):
            continue
        if is_free and name == "records_per_buffer" and min(fills) < _FULL:
            continue
        least = settings["record_bytes"] if name == "bytes_in_flight" else _LEAST.get(name, 0.0)
        if max(one.median, other.median) < least:
            continue
        yield Error(name, one, other, _error(name, one, other))


def _error(name: str, flink: Figure, ours: Figure) -> float | None:
    overlap = flink.low <= ours.high and ours.low <= flink.high
    if overlap and min(flink.count, ours.count) >= _ENOUGH:
        return None
    if name in DIFFERENCES:
        return ours.median - flink.median
    if not (flink.median > 0 and ours.median > 0):
        return 0.0 if flink.median == ours.median else math.copysign(math.inf, ours.median - flink.median)
    return math.log2(ours.median / flink.median)
