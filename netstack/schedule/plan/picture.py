"""The graph of a plan drawn in text: a box for each chain, a line in the margin for each dataset.

Takes: a `Plan`. Gives: lines.

Rules: chains stand below each other in topological order. A dataset's line leaves the box that writes it, runs down the
margin and enters the boxes that read it. Where more datasets are open at once than the margin has lanes for, none is
drawn: every box names those it reads from anyway.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final, final

from .plan import Plan
from .words import channels_text, counted, edge_text, group_text, letter, parallelism_text, shortened

_MOST_LANES: Final = 12
_NAME_LINES: Final = 4


def picture(plan: Plan, width: int, most: int) -> Iterator[str]:
    """The lines of the picture.

    Args:
        plan: what is planned.
        width: in columns.
        most: so many chains are drawn at most, the first ones.
    """
    job = plan.job
    count = min(len(job.vertices), most)
    inputs: list[list[int]] = [[] for _ in job.vertices]
    for number, edge in enumerate(job.edges):
        inputs[edge.consumer].append(number)
    # The edge at which each dataset's line ends: nobody who is drawn reads it after that.
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
            said = f"   writes {job.datasets[dataset].name}, {job.datasets[dataset].type.value}"
            (line,) = _columns(said, "", width)
            if dataset in ends and margin.width:
                yield f"{margin.leaving(dataset)}┤{line[1:]}"
            else:
                yield margin.passing() + line
        yield f"{margin.passing()}└{'─' * (width - 2)}┘"


@final
class _Margin:
    """What is left of the boxes: a lane for each dataset that is still to be read further down.

    Args:
        lanes: how many are open at once; too many are not drawn.
    """

    def __init__(self, lanes: int) -> None:
        self._lanes: list[int | None] = [None] * lanes if lanes <= _MOST_LANES else []

    @property
    def width(self) -> int:
        """In columns."""
        return 2 * len(self._lanes) + 1 if self._lanes else 0

    def passing(self) -> str:
        """Beside a line that nothing leaves or enters."""
        return "".join("│ " if open is not None else "  " for open in self._lanes) + " " * bool(self._lanes)

    def leaving(self, dataset: int) -> str:
        """Where a dataset begins, on the free lane that is nearest to the boxes."""
        lane = max(lane for lane, open in enumerate(self._lanes) if open is None)
        self._lanes[lane] = dataset
        return self._across(lane, "┌") + "─"

    def entering(self, dataset: int, *, is_end: bool) -> str:
        """Where a dataset is read, for the last time or not."""
        if not self._lanes:
            return ""
        lane = self._lanes.index(dataset)
        drawn = self._across(lane, "└" if is_end else "├") + "▶"
        if is_end:
            self._lanes[lane] = None
        return drawn

    def _across(self, lane: int, corner: str) -> str:
        """From a lane to the boxes, crossing those between."""
        left = ["│ " if open is not None else "  " for open in self._lanes[:lane]]
        return "".join([*left, f"{corner}─", *("┼─" if open is not None else "──" for open in self._lanes[lane + 1 :])])


def _open_at_once(plan: Plan, ends: dict[int, int]) -> int:
    """How many lanes it takes: a box takes its inputs before it gives its outputs."""
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
    said = f"from {letter(plan.job.datasets[edge.dataset].producer)}: {edge_text(plan, edge)}"
    return f"{said}, input {edge.input_number}" if edge.input_number > 1 else said


def _title(plan: Plan, vertex: int, width: int) -> Sequence[str]:
    """The letter and the name of a chain, on several lines if it must be; how many subtasks, in which slots."""
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
    """A line of a box with something on its left and on its right; two lines if they do not fit one."""
    room = width - 4
    if right and len(left) + len(right) + 2 > room:
        return [*_columns(left, "", width), *_columns("", right, width)]
    right = shortened(right, room)
    return [f"│ {shortened(left, room):<{room - len(right)}}{right} │"]
