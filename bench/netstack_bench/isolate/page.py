"""The page of `isolate`: both modes side by side. External text is escaped."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from html import escape
from typing import Any, Final

from netstack.base.units import format_count

from ..charts.look import legend, swatch
from ..charts.page import alert, both_sizes, callout, figure, findings, heads, table
from ..charts.svg import nice_ticks
from ..experiment import Page
from .chart import LOOKS, STYLE, draw
from .spec import PHASES, PRODUCERS, SIBLING, STALLED, SUBTASKS, TICK_S, IsolateSpec
from .text import MODES, middle_phase, percent, settings_line, top_rate, verdict

_WIDE_PX: Final = (580, 400)
_NARROW_PX: Final = (340, 360)


def build_page(spec: IsolateSpec, result: Mapping[str, Any]) -> Page:
    """The page of the command's document."""
    modes = {name: result[key] for key, name in MODES.items() if key in result}
    return Page(
        heading="A consumer stalls: what happens to its sibling on the same connection?",
        about=settings_line(spec),
        parts=[
            findings((_titled(name), _kept(mode), f"{escape(verdict(spec, mode))}.") for name, mode in modes.items()),
            _warnings(modes),
            _charts(spec, modes),
            _table(modes),
        ],
        remarks=_notes(spec),
        style=STYLE,
    )


def _kept(mode: Mapping[str, Any]) -> str:
    return "none" if mode["sibling_kept"] is None else f"{100 * mode['sibling_kept']:.0f} %"


def _warnings(modes: Mapping[str, Any]) -> str:
    items = [f"{_titled(name)}: {text}" for name, mode in modes.items() for text in mode["warnings"]]
    lost = escape(" and ".join(name for name, mode in modes.items() if not mode["delivered"]))
    wrong = alert("Not everything was delivered", f"with {lost}: the figures are invalid.") if lost else ""
    return wrong + callout("Warnings", items)


def _charts(spec: IsolateSpec, modes: Mapping[str, Any]) -> str:
    top = nice_ticks("linear", 0, top_rate(modes.values()))[-1]
    label = legend(
        (number, LOOKS[subtask], f"{PRODUCERS[subtask]} to {subtask}", "") for number, subtask in enumerate(SUBTASKS)
    )
    figures = []
    for name, mode in modes.items():
        most = max(rate for each in SUBTASKS for rate in mode["series"]["records_per_s"][each])
        note = "Records per second, counted at the subtask."
        if most > top:
            note += f" Cut off: blocked records arrive at once, at up to {format_count(most)}."
        drawn = both_sizes(partial(draw, name, spec, mode, top), _WIDE_PX, _NARROW_PX)
        figures.append(figure(_titled(name), drawn, note))
    return f'<section aria-label="Course">{label}<div class="charts">{"".join(figures)}</div></section>'


def _table(modes: Mapping[str, Any]) -> str:
    rows = []
    for name, mode in modes.items():
        for subtask in SUBTASKS:
            rates, waits = mode["records_per_s"][subtask], mode["backpressured_ms_per_s"][subtask]
            cells = [f"{rates[phase]:,.0f}" for phase in PHASES] + [percent(waits[phase]) for phase in PHASES]
            rows.append(
                f'<tr><th scope="row" class="l">{_titled(name)}</th><td class="l">'
                f"{swatch(*LOOKS[subtask])} {PRODUCERS[subtask]} to {subtask}</td>"
                f"{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
            )
    groups = (
        '<th></th><th></th><th colspan="3" scope="colgroup">records/s of the consumer</th>'
        '<th colspan="3" scope="colgroup">backpressure of the producer</th></tr><tr>'
    )
    head = heads("mode", "channel", *PHASES, *PHASES, left=2)
    return f'<section class="card"><h2>By phase</h2>{table(groups + head, rows)}</section>'


def _notes(spec: IsolateSpec) -> list[str]:
    edge_s = spec.window("before")[0] * TICK_S
    but_open = "" if spec.slow_rate_per_s else ": it does not read, but its channel stays open"
    return [
        "A.1 and A.2 are tasks of one process, B.3 and B.4 of another; both logical channels share one connection."
        f" In the middle phase {middle_phase(spec)}{but_open}.",
        f"With credit, a sent record always has a buffer, so {STALLED}'s records wait at A.2. Without, they fill the"
        f" buffers of {STALLED}'s gate; then the connection is not read any more, and {SIBLING} gets no more than"
        f" {STALLED}.",
        f"Rates leave out the first and last {edge_s:g} s of each phase, where buffers fill and drain.",
        "Producers do not catch up: records due while they were blocked are skipped, so that after compares with"
        " before.",
        "The position of every record in its channel, the count and a checksum were verified.",
    ]


def _titled(name: str) -> str:
    return escape(name[:1].upper() + name[1:])
