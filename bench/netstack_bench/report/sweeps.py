"""Several sweeps in one page: their letters, their facts, and the significant differences.

Takes: a `Sweep` for each results folder. Gives: their rows together, and the sections that compare them.

Rules: sweeps have letters in the order of the folders. The letter is the column `sweep` of their rows, which splits
lines and choices like a setting. Differences are those of `netstack_bench.compare`, each sweep against the first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final

from netstack.base.errors import ConfigError
from netstack.base.units import format_count, three_digits

from ..charts.page import heads, table
from ..charts.svg import facets_attribute
from ..compare import Comparison, Difference, compare
from ..labels import setting_name, setting_text
from ..store import Row
from .filters import Filters
from .points import facet, micro, settings_of_sweeps

_OPEN_UP_TO: Final = 40  # rows of a table
_SECOND: Final = re.compile(r"\bB\b")  # the name of the second side in the texts of `compare`
_SWATCH: Final = (
    '<svg class="swatch d{dash}" viewBox="0 0 34 16" aria-hidden="true"><path class="line" d="M1 8H33"/></svg>'
)
_VERDICTS: Final = {"better": "better", "worse": "worse", "same": "within the noise"}
_GUESSES: Final = {"better": "maybe better", "worse": "maybe worse", "same": "noise unknown"}
"""The label of a verdict with too few repeats to estimate noise."""
_WIDEST: Final = 8.0  # times more or less, at which a bar has its full length: one wild figure hides no other
_METRICS: Final = {
    "records_per_s": "records/s",
    "cpu_s_per_gb_producer": "CPU s/GB, producer",
    "cpu_s_per_gb_consumer": "CPU s/GB, consumer",
    "latency_us_p50": "latency p50",
    "latency_us_p99": "latency p99",
}


@dataclass(frozen=True, slots=True)
class Sweep:
    """The flat rows of one results folder, and the content of its `sweep.json` (`facts`, may be empty)."""

    name: str
    rows: Sequence[Row]
    facts: Mapping[str, Any] = field(default_factory=dict)


def letter(number: int) -> str:
    """A, B ... Z, AA, AB ..."""
    return (letter(number // 26 - 1) if number >= 26 else "") + chr(ord("A") + number % 26)


def together(sweeps: Sequence[Sweep]) -> list[Row]:
    """All rows; with several sweeps each has the letter of its own."""
    if len(sweeps) == 1:
        return list(sweeps[0].rows)
    return [{**row, "sweep": letter(number)} for number, sweep in enumerate(sweeps) for row in sweep.rows]


def sweeps_table(sweeps: Sequence[Sweep], filters: Filters) -> str:
    """The letter of each folder; empty for a single sweep."""
    if len(sweeps) == 1:
        return ""
    body = []
    own = settings_of_sweeps(together(sweeps))
    for number, sweep in enumerate(sweeps):
        dash = _SWATCH.format(dash=number % 4)
        times = sorted(str(row["started_at"]) for row in sweep.rows if row.get("started_at"))
        failed = sum(bool(row.get("error")) or row.get("delivered") is False for row in sweep.rows)
        cells = (
            sweep.name,
            times[0][:16].replace("T", " ") if times else "\u2013",
            _values(sweep.rows, "version"),
            _values(sweep.rows, "host_name"),
            _own_settings(sweep, own),
            f"{len(sweep.rows)}{f', {failed} failed' if failed else ''}",
        )
        rest = "".join(
            f'<td class="{"name" if place == 0 else "l"}">{escape(cell)}</td>' for place, cell in enumerate(cells)
        )
        facets = facets_attribute(filters.of({"sweep": letter(number)}))
        body.append(f'<tr{facets}><th scope="row" class="l">{dash}{letter(number)}</th>{rest}</tr>')
    head = heads("", "folder", "started", "version", "host", "settings", "runs", left=7)
    return f'<section class="card" id="sweeps"><h2>Sweeps</h2>{table(head, body, "sweeps")}</section>'


def compared_section(sweeps: Sequence[Sweep], filters: Filters) -> str:
    """Each sweep against the first, point by point; empty for a single sweep."""
    parts = [_against(sweeps[0], sweep, letter(number), filters) for number, sweep in enumerate(sweeps) if number]
    if not parts:
        return ""
    return f'<section class="card" id="compared"><h2>Compared</h2>{"".join(parts)}</section>'


def _own_settings(sweep: Sweep, names: Sequence[str]) -> str:
    return (
        ", ".join(f"{setting_name(name)} {setting_text(name, facet(sweep.rows[0], name))}" for name in names)
        or "\u2013"
    )


def _values(rows: Sequence[Row], name: str) -> str:
    return ", ".join(sorted({str(row[name]) for row in rows if row.get(name)})) or "\u2013"


def _against(first: Sweep, other: Sweep, name: str, filters: Filters) -> str:
    head = f'<div class="against"{facets_attribute(filters.of({"sweep": name}))}><h3>{name} against A</h3>'
    own = settings_of_sweeps(together([first, other]))
    # A setting in which the sweeps differ as a whole is the one to compare: points with different values of it match.
    alike = {f"settings_{name}": first.rows[0].get(f"settings_{name}") for name in own}
    try:
        comparison = compare(first.rows, [{**row, **alike} for row in other.rows])
    except ConfigError as error:
        return f'{head}<p class="note">{escape(_SECOND.sub(name, str(error)))}</p></div>'
    summary = "".join(f"<li>{escape(_SECOND.sub(name, _spelt(line)))}</li>" for line in comparison.summary())
    remarks = "".join(f"<li>{escape(_SECOND.sub(name, remark))}</li>" for remark in comparison.remarks)
    settings = f"{_own_settings(other, own)} against {_own_settings(first, own)}"
    note = f'<p class="note">{escape(settings)}</p>' if own else ""
    return (
        f'{head}{note}<ul class="plain">{summary}</ul>{_table(comparison, name, filters)}'
        f'<details><summary>How it was judged</summary><ul class="plain">{remarks}</ul></details></div>'
    )


def _spelt(line: str) -> str:
    metric, _, rest = line.partition(":")
    return f"{_METRICS.get(metric, metric)}:{rest}".replace(" x A", " \u00d7 A")


def _table(comparison: Comparison, name: str, filters: Filters) -> str:
    most = max(map(_times, comparison.differences), default=0.0) or 1.0
    rows = (_row(each, min(most, math.log(_WIDEST)), filters) for each in comparison.differences)
    count = len(comparison.differences)
    head = heads("setting", "figure", "A", name, "change", "which is", left=2) + heads("verdict")
    opened = " open" if count <= _OPEN_UP_TO else ""
    every = table(head, rows, "sortable compared")
    return f"<details{opened}><summary>Every figure ({count})</summary>{every}</details>"


def _times(each: Difference) -> float:
    """The factor of a change as a logarithm, so that half and twice are equally far from no change."""
    return abs(math.log(max(1 + each.change, 1e-3)))


def _row(each: Difference, most: float, filters: Filters) -> str:
    write = format_count if each.metric == "records_per_s" else micro if "latency" in each.metric else three_digits
    facets = facets_attribute(filters.settings(each.settings))
    part = min(1.0, _times(each) / most)
    verdict = (_VERDICTS if each.noise_known else _GUESSES)[each.verdict]
    known = "" if each.noise_known else " guess"
    interval = "\u2013" if each.low is None or each.high is None else f"{each.low:+.0%} to {each.high:+.0%}"
    bar = f'<span class="bar {"up" if each.change > 0 else "down"}" style="--v:{part:.3f}" aria-hidden="true"></span>'
    return (
        f'<tr{facets} class="{each.verdict}{known}"><td class="l">{escape(each.point)}</td>'
        f'<td class="l">{_METRICS.get(each.metric, each.metric)}</td>'
        f'<td data-v="{each.a.median:g}">{escape(write(each.a.median))}</td>'
        f'<td data-v="{each.b.median:g}">{escape(write(each.b.median))}</td>'
        f'<td class="change" data-v="{each.change:.6f}">{bar}{each.change:+.1%}</td>'
        f'<td data-v="{each.change if each.low is None else each.low:.6f}">{interval}</td>'
        f'<td class="l">{verdict}</td></tr>'
    )
