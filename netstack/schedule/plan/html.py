"""A plan as one HTML page: the graph drawn, and everything else in tables; opens without a network.

Takes: a `Plan`. Gives: a complete document, without a script.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from html import escape
from importlib import resources
from typing import Final

from ..graph.chaining import ChainingExplanation
from .plan import Plan
from .rows import taskmanager_rows
from .svg import HUES, plan_svg
from .words import (
    buffers_problem,
    cluster_text,
    counted,
    letter,
    network_text,
    region_text,
    shortened,
    summary,
    unknown_text,
)

_MOST_BOXES: Final = 120
_MOST_ROWS: Final = 300


def plan_html(plan: Plan) -> str:
    """The page."""
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


def _numbers(plan: Plan) -> Iterator[str]:
    said = [("chains", f"{len(plan.job.vertices):,}")]
    if not plan.is_undecided:
        said.append(("tasks", f"{sum(vertex.parallelism for vertex in plan.job.vertices):,}"))
        said.append(("slots", f"{sum(plan.slots_by_group):,}"))
    if plan.channels is not None and plan.buffers is not None:
        said.append(("local channels", f"{sum(edge.local for edge in plan.channels.edges):,}"))
        said.append(("remote channels", f"{sum(edge.remote for edge in plan.channels.edges):,}"))
        said.append(("TCP connections", f"{plan.channels.connections:,}"))
        said.append(("buffers on one TM", f"{int(plan.buffers.required.max()):,}"))
    regions = sum(region.count for region in plan.regions)
    said.append(("regions" if regions else "logical regions", f"{regions or len(plan.regions):,}"))
    yield "<dl>" + "".join(f"<div><dt>{what}</dt><dd>{value}</dd></div>" for what, value in said) + "</dl>"


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
    yield f'<p class="note">{escape(network_text(plan))}; memory for {plan.buffers.available:,} network buffers each.'
    if len(plan.placement.stages) > 1:
        yield f"{len(plan.placement.stages)} stages, one after the other: each has all slots for itself."
    yield escape(unknown_text(plan))
    yield '</p><div class="wide"><table><tr><th class="n">TM</th><th class="n">tasks</th><th class="n">dials</th>'
    yield '<th class="n">buffers<br>required</th><th class="n">at most</th><th>slots and subtasks</th></tr>'
    for number, slots in enumerate(taskmanager_rows(plan, plan.placement, _MOST_ROWS)):
        most = int(plan.buffers.maximum[number])
        cells = (
            f"{number}",
            f"{int(plan.placement.tasks[number]):,}",
            f"{int(plan.channels.dialled[number]):,}",
            f"{int(plan.buffers.required[number]):,}",
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
    yield "<section><h2>Chained, or why not</h2>"
    yield '<div class="wide"><table class="why"><tr><th>from</th><th>to</th><th>why</th></tr>'
    for edge in edges[:_MOST_ROWS]:
        told = plan.chaining.explain(edge)
        yield f"<tr><td>{_name(told.source)}</td><td>{_name(told.target)}</td><td>{_why(told)}</td></tr>"
    yield f"</table></div>{_more(len(edges) - _MOST_ROWS, 'edge')}</section>"


def _name(text: str) -> str:
    return escape(shortened(text, 40))


def _why(told: ChainingExplanation) -> str:
    conditions = "".join(
        f'<li><span class="{"yes" if one.holds else "no"}">'
        f"{'holds' if one.holds else 'waived' if one.is_waived else 'forbids'}</span>"
        f" {one.number}: {escape(one.text)}</li>"
        for one in told.conditions
    )
    sign = ' class="yes"' if told.is_chained else ""
    return f"<details><summary{sign}>{escape(told.reason)}</summary><ul>{conditions}</ul></details>"


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
