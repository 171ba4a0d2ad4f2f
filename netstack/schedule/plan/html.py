"""A plan as one HTML page without scripts or network access: the graph as SVG, everything else in tables.

Rules: dashed lines are blocking results. Everything in the graph has a tooltip.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from importlib import resources
from typing import Final

from ...base.units import counted
from ..graph.chaining import ChainingExplanation
from ..graph.job_graph import JobVertex
from .labels import (
    buffers_problem,
    channels_text,
    cluster_text,
    edge_text,
    group_text,
    letter,
    network_text,
    parallelism_text,
    region_text,
    shortened,
    summary,
    unknown_text,
)
from .picture import BOX_WIDTH, Box, lay_out
from .plan import Plan
from .text import taskmanager_rows

HUES: Final = 8
_MOST_OPERATORS: Final = 8
_HEAD: Final = 26
_ROW: Final = 24
_FOOT: Final = 24
_TIP: Final = 7
_MOST_NAME: Final = 30


def plan_svg(plan: Plan) -> str:
    """The graph as SVG."""
    rows = [_rows(vertex) for vertex in plan.job.vertices]
    layout = lay_out(plan.job, [_HEAD + _ROW * len(names) + _FOOT + 6 for names in rows])
    width, height = round(layout.width), round(layout.height)
    parts = [
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img"'
        f' aria-label="{escape(plan.job.name)}">'
    ]
    for index, (points, label) in enumerate(zip(layout.lines, layout.labels, strict=True)):
        parts += _edge(plan, index, points, label)
    for vertex, box in enumerate(layout.boxes):
        parts += _box(plan, vertex, box, rows[vertex])
    return "\n".join([*parts, "</svg>"])


def _rows(vertex: JobVertex) -> list[str]:
    names = list(vertex.operators or (vertex.name,))
    if len(names) > _MOST_OPERATORS:
        left = len(names) - _MOST_OPERATORS + 1
        names = [*names[: _MOST_OPERATORS - 2], f"… {counted(left, 'operator')} more", names[-1]]
    return names


def _box(plan: Plan, vertex: int, box: Box, names: Sequence[str]) -> Iterator[str]:
    of = plan.job.vertices[vertex]
    x, y = box.x, box.y
    yield f'<g class="c{vertex % HUES}"><title>{escape(shortened(of.name, 400))}</title>'
    yield f'<rect class="box" x="{x:.1f}" y="{y:.1f}" width="{BOX_WIDTH}" height="{box.height}" rx="8"/>'
    yield (
        f'<path class="head" d="M{x:.1f} {y + _HEAD:.1f} v-{_HEAD - 8} a8 8 0 0 1 8 -8 h{BOX_WIDTH - 16}'
        f' a8 8 0 0 1 8 8 v{_HEAD - 8} z"/>'
    )
    yield f'<text class="letter" x="{x + 10:.1f}" y="{y + 18:.1f}">{letter(vertex)}</text>'
    yield (
        f'<text class="count" x="{x + BOX_WIDTH - 10:.1f}" y="{y + 18:.1f}" text-anchor="end">'
        f"{parallelism_text(of.parallelism)}</text>"
    )
    middle = y + _HEAD + 3 + _ROW / 2
    if len(names) > 1:
        yield f'<path class="link" d="M{x + 16:.1f} {middle:.1f} v{_ROW * (len(names) - 1)}"/>'
    for number, name in enumerate(names):
        at = middle + _ROW * number
        yield f'<circle class="head" cx="{x + 16:.1f}" cy="{at:.1f}" r="5"/>'
        yield f'<text x="{x + 30:.1f}" y="{at + 4.5:.1f}">{escape(shortened(name, _MOST_NAME))}</text>'
    foot = escape(shortened(group_text(plan, vertex), 40))
    yield f'<text class="small" x="{x + 10:.1f}" y="{y + box.height - 9:.1f}">{foot}</text></g>'


def _edge(plan: Plan, index: int, points: Sequence[tuple[float, float]], label: tuple[float, float]) -> Iterator[str]:
    edge = plan.job.edges[index]
    dataset = plan.job.datasets[edge.dataset]
    later = "" if dataset.type.must_be_pipelined else " later"
    x, y = points[0]
    path = [f"M{x:.1f} {y:.1f}"]
    for number, (next_x, next_y) in enumerate(points[1:]):
        end_y = next_y - _TIP if number == len(points) - 2 else next_y
        if next_x == x:
            path.append(f"V{end_y:.1f}")
        else:
            half = (y + end_y) / 2
            path.append(f"C{x:.1f} {half:.1f} {next_x:.1f} {half:.1f} {next_x:.1f} {end_y:.1f}")
        x, y = next_x, end_y
    yield f'<path class="edge{later}" d="{" ".join(path)}"/>'
    yield f'<path class="tip" d="M{x - 5:.1f} {y:.1f} h10 l-5 {_TIP} z"/>'
    channels = channels_text(plan, index)
    title = escape(f"{dataset.name}: {edge_text(plan, edge)}, {dataset.type.value}. {channels}")
    yield f'<g><title>{title}</title><text class="halo" x="{label[0]:.1f}" y="{label[1]:.1f}" text-anchor="middle">'
    yield f"{escape(edge.partitioner.replace('_', ' '))}"
    yield f'<tspan class="small" x="{label[0]:.1f}" dy="15">{escape(_counts(plan, index))}</tspan></text></g>'


def _counts(plan: Plan, index: int) -> str:
    if plan.channels is None:
        return plan.job.datasets[plan.job.edges[index].dataset].type.value
    counts = plan.channels.edges[index]
    return f"{counted(counts.channels, 'channel')}, {counts.remote:,} remote"


_MOST_BOXES: Final = 120
_MOST_ROWS: Final = 300


def plan_html(plan: Plan) -> str:
    """The whole page."""
    name = escape(plan.job.name)
    about = summary(plan) if plan.is_undecided else f"{summary(plan)}; {cluster_text(plan)}"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{name}: plan</title><style>{_style()}</style></head><body><main>",
            f'<h1>{name}</h1><p class="sub">{escape(about)}</p>',
            *_problems(plan),
            *_numbers(plan),
            *_graph(plan),
            *_taskmanagers(plan),
            *_reasons(plan),
            *_regions(plan),
            "</main></body></html>\n",
        ]
    )


@cache
def _style() -> str:
    return resources.files(__package__).joinpath("plan.css").read_text("utf-8")


def _problems(plan: Plan) -> Iterator[str]:
    for problem in filter(None, (plan.problem, buffers_problem(plan))):
        yield f'<section class="bad"><strong>Does not fit.</strong> {escape(problem)}</section>'
    if plan.turns:
        yield f'<p class="note">{escape(plan.turns)}</p>'


def _numbers(plan: Plan) -> Iterator[str]:
    cells = [("chains", f"{len(plan.job.vertices):,}")]
    if not plan.is_undecided:
        cells.append(("tasks", f"{sum(vertex.parallelism for vertex in plan.job.vertices):,}"))
        cells.append(("slots", f"{sum(plan.slots_by_group):,}"))
    if plan.channels is not None and plan.buffers is not None:
        cells.append(("local channels", f"{sum(edge.local for edge in plan.channels.edges):,}"))
        cells.append(("remote channels", f"{sum(edge.remote for edge in plan.channels.edges):,}"))
        cells.append(("TCP connections", f"{plan.channels.tcp_connections:,}"))
        where = "in one slot" if plan.processes > 1 else "on one TM"
        cells.append((f"buffers {where}", f"{int(plan.buffers.required.max()):,}"))
    regions = sum(region.count for region in plan.regions)
    cells.append(("regions" if regions else "logical regions", f"{regions or len(plan.regions):,}"))
    yield "<dl>" + "".join(f"<div><dt>{what}</dt><dd>{value}</dd></div>" for what, value in cells) + "</dl>"


def _graph(plan: Plan) -> Iterator[str]:
    yield "<section><h2>Chains</h2>"
    if len(plan.job.vertices) > _MOST_BOXES:
        yield f'<p class="note">{counted(len(plan.job.vertices), "chain")} are too many to draw.</p></section>'
        return
    yield f'<div class="wide">{plan_svg(plan)}</div>'
    yield '<p class="note">Operators in one box run in one thread. Dashed: results that are read when complete.</p>'
    yield "</section>"


def _taskmanagers(plan: Plan) -> Iterator[str]:
    if plan.placement is None or plan.channels is None or plan.buffers is None:
        return
    yield "<section><h2>TaskManagers</h2>"
    where = "in each slot, which is a process; the table has those of the slot that needs most."
    memory = f"memory for {plan.buffers.available:,} network buffers {where if plan.processes > 1 else 'each.'}"
    yield f'<p class="note">{escape(network_text(plan))}; {memory}'
    if len(plan.placement.stages) > 1:
        yield f"{len(plan.placement.stages)} stages run one after the other, each with all slots."
    yield escape(unknown_text(plan))
    yield '</p><div class="wide"><table><tr><th class="n">TM</th><th class="n">tasks</th><th class="n">dials</th>'
    yield '<th class="n">buffers<br>required</th><th class="n">at most</th><th>slots and subtasks</th></tr>'
    dialled, _, required, maximum = plan.taskmanager_rows()
    for number, slots in enumerate(taskmanager_rows(plan, plan.placement, _MOST_ROWS)):
        most = int(maximum[number])
        cells = (
            f"{number}",
            f"{int(plan.placement.tasks[number]):,}",
            f"{int(dialled[number]):,}",
            f"{int(required[number]):,}",
            "no bound" if most < 0 else f"{most:,}",
        )
        boxes = "".join(f'<span class="slot">{"".join(map(_chip, slot))}</span>' for slot in slots)
        yield "<tr>" + "".join(f'<td class="n">{cell}</td>' for cell in cells) + f"<td>{boxes}</td></tr>"
    yield f"</table></div>{_more(plan.taskmanagers - _MOST_ROWS, 'TaskManager')}</section>"


def _chip(task: str) -> str:
    name = task.rstrip("0123456789-,")
    vertex = 0
    for character in name:
        vertex = vertex * 26 + ord(character) - ord("A") + 1
    return f'<span class="task c{(vertex - 1) % HUES}">{task}</span>'


def _reasons(plan: Plan) -> Iterator[str]:
    if plan.chaining is None or not plan.chaining.graph.edges:
        return
    edges = plan.chaining.graph.edges
    yield "<section><h2>Chaining</h2>"
    yield '<div class="wide"><table class="why"><tr><th>from</th><th>to</th><th>why</th></tr>'
    for edge in edges[:_MOST_ROWS]:
        reason = plan.chaining.explain(edge)
        yield f"<tr><td>{_name(reason.source)}</td><td>{_name(reason.target)}</td><td>{_why(reason)}</td></tr>"
    yield f"</table></div>{_more(len(edges) - _MOST_ROWS, 'edge')}</section>"


def _name(text: str) -> str:
    return escape(shortened(text, 40))


def _why(explanation: ChainingExplanation) -> str:
    conditions = "".join(
        f'<li><span class="{"yes" if one.holds else "no"}">'
        f"{'holds' if one.holds else 'waived' if one.is_waived else 'forbids'}</span>"
        f" {one.number}: {escape(one.text)}</li>"
        for one in explanation.conditions
    )
    sign = ' class="yes"' if explanation.is_chained else ""
    return f"<details><summary{sign}>{escape(explanation.reason)}</summary><ul>{conditions}</ul></details>"


def _regions(plan: Plan) -> Iterator[str]:
    yield "<section><h2>Pipelined regions</h2>"
    yield '<p class="note">Tasks of a region are scheduled and restarted together.</p>'
    yield '<div class="wide"><table><tr><th>chains</th><th>regions</th></tr>'
    for region in plan.regions[:_MOST_ROWS]:
        chips = "".join(_chip(letter(vertex)) for vertex in region.vertices)
        text = region_text(plan, region).partition(": ")[2]
        yield f'<tr><td><span class="slot">{chips}</span></td><td>{escape(text)}</td></tr>'
    yield f"</table></div>{_more(len(plan.regions) - _MOST_ROWS, 'logical region')}</section>"


def _more(count: int, what: str) -> str:
    return f'<p class="note">… and {counted(count, what)} more; --format json has all of it.</p>' if count > 0 else ""
