"""The graph of a plan as one SVG element: a box for each chain with its operators, a line for each edge.

Takes: a `Plan`. Gives: text. Colours come from the page's style sheet, by class.

Rules: dashed lines are results that are read when complete. Everything has a title for the pointer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from ..graph.job_graph import JobVertex
from .layout import BOX_WIDTH, Box, lay_out
from .plan import Plan
from .words import channels_text, counted, edge_text, group_text, letter, parallelism_text, shortened

HUES: Final = 8
_MOST_OPERATORS: Final = 8
_HEAD: Final = 26
_ROW: Final = 24
_FOOT: Final = 24
_TIP: Final = 7
_MOST_NAME: Final = 30


def plan_svg(plan: Plan) -> str:
    """The picture."""
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
