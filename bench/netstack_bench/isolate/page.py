"""The page of `isolate`: both modes side by side, each with its chart over time. External text is escaped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any, Final, TypeAlias

from netstack.base.units import format_count, three_digits

from ..charts.page import alert, both_sizes, callout, figure, findings, heads, legend, swatch, table
from ..charts.svg import UNIT_PX, Plot, axes, nice_ticks
from ..experiment import Page
from .spec import PHASES, PRODUCERS, SIBLING, STALLED, SUBTASKS, TICK_S, IsolateSpec, Subtask
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


LOOKS: Final[dict[Subtask, tuple[int, int, None]]] = {"B.3": (0, 0, None), "B.4": (1, 1, None)}
"""Colour and stroke of each subtask's line; steps have no marks."""

STYLE: Final = """
svg .shade { fill: var(--soft); fill-opacity: 0.11; }
svg .phase { font-size: 12px; font-weight: 600; }
svg .area { fill: var(--c); fill-opacity: 0.45; stroke: none; }
svg .pt .bin, svg .pt:hover .bin { fill: var(--ink); fill-opacity: 0; stroke: none; }
svg .pt:hover .bin { fill-opacity: 0.08; }
td .swatch { width: 34px; height: 16px; vertical-align: -3px; margin-right: 6px; }
"""
"""CSS beyond the common style sheet."""

_Edges: TypeAlias = Sequence[tuple[float, float]]
"""Left and right end of each bin, in pixels."""

_STRIP_PX: Final = 26.0
_STRIP_GAP_PX: Final = 9.0
_TOP_PX: Final = 26.0
_AXIS_PX: Final = 46.0
_CAPTION_PX: Final = 24.0


def draw(
    name: str, spec: IsolateSpec, mode: Mapping[str, Any], top: float, *, width: int, height: int, direct_labels: bool
) -> str:
    """The chart as one SVG element of this size in CSS pixels; it scales with its container.

    Rates above `top`, the greatest of all compared charts, are cut. Lines are named in the legend, not directly.
    """
    ticks = nice_ticks("linear", 0, top)
    strips = len(SUBTASKS) * (_STRIP_PX + _STRIP_GAP_PX) + _CAPTION_PX
    plot = Plot(
        left=14 + 7.2 * max(len(format_count(tick)) for tick in ticks),
        right=width - 10,
        top=_TOP_PX + UNIT_PX,
        bottom=height - _AXIS_PX - strips,
        scale="linear",
        low=0.0,
        high=ticks[-1],
    )
    seconds = spec.ticks * TICK_S

    def x(second: float) -> float:
        return plot.left + (plot.right - plot.left) * second / seconds

    below = [(x(tick), three_digits(tick)) for tick in nice_ticks("linear", 0, seconds) if tick <= seconds * 1.001]
    title = f"{name}: records a second of both subtasks over time, and when their producers were backpressured"
    series = mode["series"]
    spans_s = [(first * TICK_S, end * TICK_S) for first, end in spec.bins()]
    edges = [(x(start), x(end)) for start, end in spans_s]
    floor = height - _AXIS_PX
    parts = [
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}"'
        f' xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title>',
        *_phases(plot, spec, floor),
        *axes(plot, ticks, format_count, below, "seconds", unit="records/s", floor=floor),
        f'<text class="axis" x="{plot.left:.1f}" y="{plot.bottom + _CAPTION_PX - 6:.1f}">'
        "producer backpressured, 0 to 100 %</text>",
        *(_line(plot, *each, series["records_per_s"][each[1]], edges) for each in enumerate(SUBTASKS)),
        *(_strip(plot, *each, series["backpressured_ms_per_s"][each[1]], edges) for each in enumerate(SUBTASKS)),
        *(_bin(plot, floor, number, spans_s[number], edge, series) for number, edge in enumerate(edges)),
        "</svg>",
    ]
    return "".join(parts)


def _phases(plot: Plot, spec: IsolateSpec, floor: float) -> list[str]:
    parts = []
    width = (plot.right - plot.left) / len(PHASES)
    for number, (phase, name) in enumerate(zip(PHASES, ("before", middle_phase(spec), "after"), strict=True)):
        start = plot.left + number * width
        if phase == "during":
            parts.append(
                f'<rect class="shade" x="{start:.1f}" y="{plot.top:.1f}" width="{width:.1f}"'
                f' height="{floor - plot.top:.1f}"/>'
            )
        parts.append(
            f'<text class="phase" x="{start + width / 2:.1f}" y="{plot.top - 9:.1f}" text-anchor="middle">'
            f"{escape(name)}</text>"
        )
    return parts


def _line(plot: Plot, number: int, subtask: Subtask, rates: Sequence[float], edges: _Edges) -> str:
    path = _steps(rates, edges, lambda rate: plot.y(min(rate, plot.high)))
    hue, dash, _ = LOOKS[subtask]
    return f'<g class="series h{hue} d{dash}" data-series="{number}"><path class="line" d="M{path}"/></g>'


def _strip(plot: Plot, number: int, subtask: Subtask, waits: Sequence[float], edges: _Edges) -> str:
    bottom = plot.bottom + _CAPTION_PX + number * (_STRIP_PX + _STRIP_GAP_PX) + _STRIP_PX
    path = _steps(waits, edges, lambda ms: bottom - _STRIP_PX * ms / 1000)
    hue, _, _ = LOOKS[subtask]
    return (
        f'<text class="tick" x="{plot.left - 7:.1f}" y="{bottom - _STRIP_PX / 2 + 4:.1f}" text-anchor="end">'
        f"{PRODUCERS[subtask]}</text>"
        f'<g class="series h{hue}" data-series="{number}">'
        f'<path class="area" d="M{plot.left:.1f} {bottom:.1f}L{path}L{plot.right:.1f} {bottom:.1f}Z"/></g>'
        f'<line class="base" x1="{plot.left:.1f}" x2="{plot.right:.1f}" y1="{bottom:.1f}" y2="{bottom:.1f}"/>'
    )


def _steps(values: Sequence[float], edges: _Edges, y: Callable[[float], float]) -> str:
    return "L".join(
        f"{start:.1f} {y(value):.1f}L{end:.1f} {y(value):.1f}"
        for value, (start, end) in zip(values, edges, strict=True)
    )


def _bin(
    plot: Plot,
    floor: float,
    number: int,
    span_s: tuple[float, float],
    edge: tuple[float, float],
    series: Mapping[str, Any],
) -> str:
    start, end = edge
    parts = [f"{three_digits(round(span_s[0], 2))} to {three_digits(round(span_s[1], 2))} s"]
    for subtask in SUBTASKS:
        waits = percent(series["backpressured_ms_per_s"][subtask][number])
        rate = f"{series['records_per_s'][subtask][number]:,.0f}"
        parts.append(f"{subtask}: {rate} records/s; {PRODUCERS[subtask]} backpressured {waits}")
    text = escape("\n".join(parts))
    return (
        f'<g class="pt" data-tooltip="{text}"><title>{text}</title>'
        f'<rect class="m bin" x="{start:.1f}" y="{plot.top:.1f}" width="{end - start:.1f}"'
        f' height="{floor - plot.top:.1f}"/></g>'
    )
