"""Draws the graph of a plan in text, and lays it out for a page.

Rules:
- In text, chains stand below each other in topological order. A dataset's line leaves the box that writes it, runs down
  the margin and enters the boxes that read it. If more datasets are open at once than the margin has lanes, no lines
  are drawn: every box names its inputs anyway.
- On a page, a chain is one layer below its lowest input. An edge that passes a layer gets a gap there, so it crosses no
  box. The chains of a layer are ordered by the positions of their inputs. Labels of edges are in rows above the layer
  of their target, as many rows as needed to avoid overlaps.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, final

from ...base.units import counted
from ..graph.job_graph import JobGraph
from .labels import channels_text, edge_text, group_text, letter, parallelism_text, shortened
from .plan import Plan

BOX_WIDTH: Final = 244
_GAP: Final = 36
_PASSAGE: Final = 20
_MARGIN: Final = 8
_LABEL_HEIGHT: Final = 36
_LABEL_WIDTH: Final = 156
_MOST_LABELS: Final = 8

_Line: TypeAlias = "tuple[tuple[float, float], ...]"

_Item: TypeAlias = "tuple[str, int]"
"""A chain (`box`, vertex) or the gap for an edge that passes (`edge`, index)."""


@final
@dataclass(frozen=True, slots=True)
class Box:
    """The box of a chain: its upper left corner, and its height; widths are `BOX_WIDTH`."""

    x: float
    y: float
    height: float


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """A page.

    Attributes:
        boxes: by vertex.
        lines: by edge: points from the producer down to the consumer.
        labels: by edge: the centre of its label.
    """

    width: float
    height: float
    boxes: tuple[Box, ...]
    lines: tuple[_Line, ...]
    labels: tuple[tuple[float, float], ...]


def lay_out(job: JobGraph, heights: Sequence[float]) -> Layout:
    """Lays out a job graph."""
    layer_of = _layers(job)
    layers = _items(job, layer_of)
    width = max(sum(_width(item) for item in layer) + _GAP * (len(layer) - 1) for layer in layers) + 2 * _MARGIN
    rows = [0] + [1] * (len(layers) - 1)
    while True:
        page = _stack(layers, heights, rows, width)
        lines = _lines(job, layer_of, page)
        labels, wanted = _labels(job, layer_of, page, lines)
        if wanted == rows:
            break
        rows = wanted  # grows, up to _MOST_LABELS
    boxes = tuple(page.boxes[vertex] for vertex in range(len(job.vertices)))
    return Layout(width, page.height, boxes, lines, labels)


@final
@dataclass(frozen=True, slots=True)
class _Page:
    """Boxes, gaps by edge and layer (x, top, bottom), and the number of label rows above each layer."""

    height: float
    boxes: Mapping[int, Box]
    passages: Mapping[tuple[int, int], tuple[float, float, float]]
    rows: Sequence[int]


def _stack(layers: Sequence[Sequence[_Item]], heights: Sequence[float], rows: Sequence[int], width: float) -> _Page:
    """Stacks the layers, each centred, with room for label rows between them."""
    boxes: dict[int, Box] = {}
    passages: dict[tuple[int, int], tuple[float, float, float]] = {}
    y: float = _MARGIN
    for number, layer in enumerate(layers):
        y += (28 + _LABEL_HEIGHT * rows[number]) if number else 0
        height = max(heights[vertex] for kind, vertex in layer if kind == "box")
        x = (width - sum(_width(item) for item in layer) - _GAP * (len(layer) - 1)) / 2
        for kind, index in layer:
            if kind == "box":
                boxes[index] = Box(x, y, heights[index])
            else:
                passages[index, number] = (x + _PASSAGE / 2, y, y + height)
            x += _width((kind, index)) + _GAP
        y += height
    return _Page(y + _MARGIN, boxes, passages, rows)


def _width(item: _Item) -> float:
    return BOX_WIDTH if item[0] == "box" else _PASSAGE


def _layers(job: JobGraph) -> list[int]:
    layers = [0] * len(job.vertices)
    for vertex in range(len(job.vertices)):
        producers = [job.datasets[edge.dataset].producer for edge in job.inputs_of(vertex)]
        layers[vertex] = max((layers[producer] + 1 for producer in producers), default=0)
    return layers


def _items(job: JobGraph, layer_of: Sequence[int]) -> list[list[_Item]]:
    layers: list[list[_Item]] = [[] for _ in range(max(layer_of) + 1)]
    above: dict[_Item, list[_Item]] = {}
    for vertex, layer in enumerate(layer_of):
        layers[layer].append(("box", vertex))
        above["box", vertex] = []
    for index, edge in enumerate(job.edges):
        producer = job.datasets[edge.dataset].producer
        last: _Item = ("box", producer)
        for layer in range(layer_of[producer] + 1, layer_of[edge.consumer]):
            layers[layer].append(("edge", index))
            if layer == layer_of[producer] + 1:
                above["edge", index] = [last]
            last = ("edge", index)
        above["box", edge.consumer].append(last)
    position: dict[_Item, float] = {}
    for number, items in enumerate(layers):
        if number:
            items.sort(key=lambda item: _mean([position[one] for one in above[item] if one in position]))
        # Positions of a layer, from 0 to 1, so that layers of different sizes compare.
        for place, item in enumerate(items):
            position[item] = (place + 1) / (len(items) + 1)
    return layers


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.5


def _lines(job: JobGraph, layer_of: Sequence[int], page: _Page) -> tuple[_Line, ...]:
    """Each edge from its producer through its gaps to its consumer; lines arrive in the order of their origins."""
    of_vertex: list[list[int]] = [[] for _ in job.vertices]
    for index, edge in enumerate(job.edges):
        of_vertex[edge.consumer].append(index)
    entry: dict[int, float] = {}
    for vertex, edges in enumerate(of_vertex):
        edges.sort(key=lambda index: _from(job, index, layer_of, page))
        for place, index in enumerate(edges):
            entry[index] = page.boxes[vertex].x + BOX_WIDTH * (place + 1) / (len(edges) + 1)
    lines: list[_Line] = []
    for index, edge in enumerate(job.edges):
        producer = job.datasets[edge.dataset].producer
        source = page.boxes[producer]
        points = [(source.x + BOX_WIDTH / 2, source.y + source.height)]
        for layer in range(layer_of[producer] + 1, layer_of[edge.consumer]):
            x, top, bottom = page.passages[index, layer]
            points += [(x, top), (x, bottom)]
        points.append((entry[index], page.boxes[edge.consumer].y))
        lines.append(tuple(points))
    return tuple(lines)


def _labels(
    job: JobGraph, layer_of: Sequence[int], page: _Page, lines: Sequence[_Line]
) -> tuple[tuple[tuple[float, float], ...], list[int]]:
    """The place of each edge's label, in the lowest row without overlap, and the number of rows of each layer."""
    labels: list[tuple[float, float]] = [(0.0, 0.0)] * len(lines)
    wanted = list(page.rows)
    taken: dict[tuple[int, int], list[float]] = {}
    for index in sorted(range(len(lines)), key=lambda index: lines[index][-1][0]):
        start, end = lines[index][-2:]
        layer = layer_of[job.edges[index].consumer]
        for row in range(_MOST_LABELS):
            x, y = _along(start, end, end[1] - 30 - _LABEL_HEIGHT * row)
            others = taken.setdefault((layer, row), [])
            if row == _MOST_LABELS - 1 or all(abs(x - other) >= _LABEL_WIDTH for other in others):
                break
        others.append(x)
        labels[index] = (x, y)
        wanted[layer] = max(wanted[layer], row + 1)
    return tuple(labels), wanted


def _from(job: JobGraph, index: int, layer_of: Sequence[int], page: _Page) -> float:
    """The x coordinate from which an edge comes: of the last gap that it passes, or of its producer."""
    edge = job.edges[index]
    passage = page.passages.get((index, layer_of[edge.consumer] - 1))
    return page.boxes[job.datasets[edge.dataset].producer].x + BOX_WIDTH / 2 if passage is None else passage[0]


def _along(start: tuple[float, float], end: tuple[float, float], y: float) -> tuple[float, float]:
    """The x coordinate of a line's last curve at a height: it leaves and arrives upright, with handles half-way."""
    low, high = 0.0, 1.0
    height, width = end[1] - start[1], end[0] - start[0]
    for _ in range(20):
        t = (low + high) / 2
        at = start[1] + height * (1.5 * t * (1 - t) + t**3)
        low, high = (t, high) if at < y else (low, t)
    return start[0] + width * (3 * low**2 - 2 * low**3), y


_MOST_LANES: Final = 12
_NAME_LINES: Final = 4


def picture(plan: Plan, width: int, most: int) -> Iterator[str]:
    """The lines of the picture."""
    job = plan.job
    count = min(len(job.vertices), most)
    inputs: list[list[int]] = [[] for _ in job.vertices]
    for number, edge in enumerate(job.edges):
        inputs[edge.consumer].append(number)
    # The edge at which each dataset's line ends: its last drawn reader.
    ends: dict[int, int] = {}
    for numbers in inputs[:count]:
        ends.update({job.edges[number].dataset: number for number in numbers})
    margin = _Margin(_open_at_once(plan, ends))
    width -= margin.width
    for vertex in range(count):
        yield f"{margin.passing()}┌{'─' * (width - 2)}┐"
        for number in inputs[vertex]:
            first, *others = _columns(_input(plan, number), channels_text(plan, number), width)
            dataset = job.edges[number].dataset
            yield margin.entering(dataset, is_end=ends[dataset] == number) + first
            yield from (margin.passing() + line for line in others)
        if inputs[vertex]:
            yield f"{margin.passing()}├{'╌' * (width - 2)}┤"
        yield from (margin.passing() + line for line in _title(plan, vertex, width))
        for dataset in job.outputs_of(vertex):
            text = f"   writes {job.datasets[dataset].name}, {job.datasets[dataset].type.value}"
            (line,) = _columns(text, "", width)
            if dataset in ends and margin.width:
                yield f"{margin.leaving(dataset)}┤{line[1:]}"
            else:
                yield margin.passing() + line
        yield f"{margin.passing()}└{'─' * (width - 2)}┘"


@final
class _Margin:
    """The margin beside the boxes: a lane for each dataset that a lower box reads.

    Args:
        lanes: number of datasets that are open at once; too many are not drawn.
    """

    def __init__(self, lanes: int) -> None:
        self._lanes: list[int | None] = [None] * lanes if lanes <= _MOST_LANES else []

    @property
    def width(self) -> int:
        return 2 * len(self._lanes) + 1 if self._lanes else 0

    def passing(self) -> str:
        """The margin beside a line that no dataset leaves or enters."""
        return "".join("│ " if open is not None else "  " for open in self._lanes) + " " * bool(self._lanes)

    def leaving(self, dataset: int) -> str:
        """Starts a dataset's line, on the free lane that is nearest to the boxes."""
        lane = max(lane for lane, open in enumerate(self._lanes) if open is None)
        self._lanes[lane] = dataset
        return self._across(lane, "┌") + "─"

    def entering(self, dataset: int, *, is_end: bool) -> str:
        """Enters a box that reads a dataset, for the last time or not."""
        if not self._lanes:
            return ""
        lane = self._lanes.index(dataset)
        drawn = self._across(lane, "└" if is_end else "├") + "▶"
        if is_end:
            self._lanes[lane] = None
        return drawn

    def _across(self, lane: int, corner: str) -> str:
        """From a lane to the boxes, across the lanes between."""
        left = ["│ " if open is not None else "  " for open in self._lanes[:lane]]
        return "".join([*left, f"{corner}─", *("┼─" if open is not None else "──" for open in self._lanes[lane + 1 :])])


def _open_at_once(plan: Plan, ends: dict[int, int]) -> int:
    """Number of lanes needed: a box closes its inputs before it opens its outputs."""
    changes = [0] * (len(plan.job.vertices) + 1)
    for dataset, number in ends.items():
        changes[plan.job.datasets[dataset].producer] += 1
        changes[plan.job.edges[number].consumer] -= 1
    open_now = most = 0
    for change in changes:
        open_now += change
        most = max(most, open_now)
    return most


def _input(plan: Plan, number: int) -> str:
    edge = plan.job.edges[number]
    text = f"from {letter(plan.job.datasets[edge.dataset].producer)}: {edge_text(plan, edge)}"
    return f"{text}, input {edge.input_number}" if edge.input_number > 1 else text


def _title(plan: Plan, vertex: int, width: int) -> Sequence[str]:
    """The letter and name of a chain, wrapped if needed; its number of subtasks and its slots."""
    of = plan.job.vertices[vertex]
    room = width - 4
    names = textwrap.wrap(
        f"{letter(vertex)}  {shortened(of.name, _NAME_LINES * (room - 4))}", room, subsequent_indent="   "
    )
    if len(of.name) > _NAME_LINES * (room - 4):
        names.append(f"   ({counted(len(of.operators), 'operator')})")
    about = f"{parallelism_text(of.parallelism)}, {group_text(plan, vertex)}"
    lines = [line for name in names[:-1] for line in _columns(name, "", width)]
    return [*lines, *_columns(names[-1], about, width)]


def _columns(left: str, right: str, width: int) -> Sequence[str]:
    """A line of a box with a left and a right text; two lines if they do not fit into one."""
    room = width - 4
    if right and len(left) + len(right) + 2 > room:
        return [*_columns(left, "", width), *_columns("", right, width)]
    right = shortened(right, room)
    return [f"│ {shortened(left, room):<{room - len(right)}}{right} │"]
