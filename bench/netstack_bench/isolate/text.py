"""Texts of `isolate`: mode names and figures in words; on a terminal a table and a plot over time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from netstack.base.units import format_size, three_digits

from .. import console
from ..labels import buffers_of
from .spec import PHASES, PRODUCERS, SIBLING, STALLED, SUBTASKS, IsolateSpec

MODES: Final = {"credit_on": "credit on", "credit_off": "credit off"}
"""Keys of the modes in the result, and their names."""

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_ASCII: Final = " .:-=+*#@"
_MOST_COLUMNS: Final = 72
_BURST: Final = 1.5  # times the steady rate


def settings_line(spec: IsolateSpec) -> str:
    """The settings in a line."""
    rate = "full speed" if spec.rate_per_s is None else f"{three_digits(spec.rate_per_s)} records/s"
    parts = [
        f"{' and '.join(PRODUCERS.values())} each {rate}",
        f"{format_size(spec.record_bytes, space=' ')} records",
        buffers_of(spec),
        spec.transport,
        f"phases of {three_digits(spec.seconds)} s",
    ]
    return ", ".join(parts)


def middle_phase(spec: IsolateSpec) -> str:
    """The middle phase in words: `B.4 stalls`."""
    if spec.slow_rate_per_s:
        return f"{STALLED} takes {three_digits(spec.slow_rate_per_s)}/s"
    return f"{STALLED} stalls"


def verdict(spec: IsolateSpec, mode: Mapping[str, Any]) -> str:
    """The finding: `B.3 kept 99 % of its rate while B.4 stalled`."""
    kept = mode["sibling_kept"]
    what = f"took {three_digits(spec.slow_rate_per_s)} records/s" if spec.slow_rate_per_s else "stalled"
    if kept is None:
        return f"{SIBLING} received nothing even before {STALLED} {what}"
    return f"{SIBLING} kept {kept:.0%} of its rate while {STALLED} {what}".replace("%", " %")


def percent(ms_per_s: float) -> str:
    """`42 %` of the time."""
    return f"{ms_per_s / 10:.0f} %"


def top_rate(modes: Collection[Mapping[str, Any]]) -> float:
    """The top of plots: above every rate except bursts of blocked records, which would flatten the rest."""
    bins = [rate for mode in modes for each in SUBTASKS for rate in mode["series"]["records_per_s"][each]]
    steady = [rate for mode in modes for each in SUBTASKS for rate in mode["records_per_s"][each].values()]
    return min(max(bins), _BURST * max(steady)) or 1.0


def print_modes(spec: IsolateSpec, modes: Mapping[str, Mapping[str, Any]], out: Console) -> None:
    """Prints the settings and each mode's table, plot and verdict."""
    out.print(escape(settings_line(spec)), soft_wrap=True)
    for key, mode in modes.items():
        print_mode(MODES[key], spec, mode, out)


def print_mode(name: str, spec: IsolateSpec, mode: Mapping[str, Any], out: Console) -> None:
    """Prints the table, plot and verdict of one mode."""
    heads = [f"{unit}\n{phase}" for unit in ("records/s", "backpressured") for phase in PHASES]
    table = console.table((f"\n{name}",), heads)
    for subtask in SUBTASKS:
        rates, waits = mode["records_per_s"][subtask], mode["backpressured_ms_per_s"][subtask]
        table.add_row(
            f"{PRODUCERS[subtask]} > {subtask}",
            *(f"{rates[phase]:,.0f}" for phase in PHASES),
            *(percent(waits[phase]) for phase in PHASES),
        )
    out.print(table)
    out.print()
    for line in plot(spec, mode, plain=out.options.ascii_only):
        out.print(line, soft_wrap=True, markup=False)
    out.print()
    out.print(f"[bold]{escape(name)}: {escape(verdict(spec, mode))}[/]", soft_wrap=True)


def plot(spec: IsolateSpec, mode: Mapping[str, Any], *, plain: bool = False) -> list[str]:
    """Records per second of each subtask over time, a line each, below a ruler of the phases; blank is zero.

    `plain` is for terminals that have only ASCII.
    """
    series = mode["series"]["records_per_s"]
    rows = {subtask: _fit(series[subtask]) for subtask in SUBTASKS}
    top = top_rate([mode])
    width = len(rows[SIBLING])
    marks = [round(width * number / len(PHASES)) for number in range(len(PHASES) + 1)]
    ruler = "".join(
        f"|{name}"[: end - start].ljust(end - start)
        for name, start, end in zip(("before", middle_phase(spec), "after"), marks, marks[1:], strict=False)
    )
    levels = _ASCII if plain else _BLOCKS
    return [
        f"     {ruler}",
        *(f"{subtask}  {''.join(_level(levels, value, top) for value in rows[subtask])}" for subtask in SUBTASKS),
    ]


def _fit(values: Sequence[float]) -> list[float]:
    if len(values) <= _MOST_COLUMNS:
        times = max(1, _MOST_COLUMNS // len(values))
        return [value for value in values for _ in range(times)]
    merged = -(-len(values) // _MOST_COLUMNS)
    parts = [values[first : first + merged] for first in range(0, len(values), merged)]
    return [sum(part) / len(part) for part in parts]


def _level(levels: str, value: float, top: float) -> str:
    steps = len(levels) - 1
    return levels[0] if value <= 0 else levels[max(1, min(steps, round(value / top * steps)))]
