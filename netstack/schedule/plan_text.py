"""A plan as a picture in text: boxes for chains, arrows between them, TaskManagers with what they run.

Takes: a `Plan`. Gives: lines of at most 100 columns, but for what cannot be cut.

Rules: chains stand below each other in topological order; every dataset is a line in the margin, from the box that
writes it to the boxes that read it. What is long is cut and says so; `plan_json` has all of it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final, final

import numpy as np

from .plan import Plan
from .plan_words import (
    buffers_problem,
    channels_text,
    cluster_text,
    counted,
    edge_text,
    group_text,
    letter,
    network_text,
    parallelism_text,
    ranges,
    region_text,
    shortened,
    summary,
)

WIDTH: Final = 100
_MOST_BOXES: Final = 60
_MOST_LANES: Final = 12
_MOST_REASONS: Final = 60
_MOST_TASKMANAGERS: Final = 40
_MOST_SLOTS_SHOWN: Final = 64
_NAME_LINES: Final = 4
_ELSEWHERE: Final = "--format json has all of it"


def plan_text(plan: Plan) -> str:
    """The whole picture."""
    lines = [f"{plan.job.name}: {summary(plan)}", f"on {cluster_text(plan)}", ""]
    lines += _picture(plan)
    lines += _reasons(plan)
    lines += _slots(plan)
    lines += _taskmanagers(plan)
    lines += _regions(plan)
    for problem in filter(None, (plan.problem, buffers_problem(plan))):
        lines += ["", *textwrap.wrap(f"does not fit: {problem}", WIDTH, subsequent_indent="  ")]
    return "\n".join(line.rstrip() for line in lines) + "\n"


# ------------------------------------------------------------------------------------------------------- picture


@final
class _Margin:
    """The lines left of the boxes: one lane for each dataset that still has readers below."""

    def __init__(self, lanes: int) -> None:
        self._lanes: list[int | None] = [None] * lanes

    def put(self, dataset: int) -> int:
        """Takes the lane nearest to the boxes that is free."""
        for lane in reversed(range(len(self._lanes))):
            if self._lanes[lane] is None:
                self._lanes[lane] = dataset
                return lane
        raise AssertionError("as many lanes as datasets are open at once")

    def drop(self, lane: int) -> None:
        self._lanes[lane] = None

    def lane_of(self, dataset: int) -> int:
        return self._lanes.index(dataset)

    def passing(self) -> str:
        """The margin beside a line that nothing leaves or enters."""
        return "".join("│ " if dataset is not None else "  " for dataset in self._lanes) + " "

    def branching(self, lane: int, corner: str, end: str) -> str:
        """The margin where one lane goes to the box, across those between."""
        drawn = ["│ " if dataset is not None else "  " for dataset in self._lanes[:lane]]
        drawn.append(f"{corner}─")
        drawn += ["┼─" if dataset is not None else "──" for dataset in self._lanes[lane + 1 :]]
        return "".join(drawn) + end


def _picture(plan: Plan) -> Iterator[str]:
    job = plan.job
    shown = range(min(len(job.vertices), _MOST_BOXES))
    last_reader: dict[int, int] = {}
    for edge in job.edges:
        last_reader[edge.dataset] = edge.consumer
    readers_shown = {edge.dataset for edge in job.edges if edge.consumer in shown}
    lanes = _lanes(plan, last_reader)
    margin = _Margin(min(lanes, _MOST_LANES))
    width = WIDTH - 2 * min(lanes, _MOST_LANES) - 1
    numbers = {id(edge): number for number, edge in enumerate(job.edges)}
    for vertex in shown:
        yield margin.passing() + "┌" + "─" * (width - 2) + "┐"
        for edge in job.inputs_of(vertex):
            said = f"{edge_text(plan, edge)} from {letter(job.datasets[edge.dataset].producer)}"
            said = f"input {edge.input_number}: {said}" if edge.input_number > 1 else said
            arrow = margin.passing()
            if lanes <= _MOST_LANES:
                lane = margin.lane_of(edge.dataset)
                is_last = last_reader[edge.dataset] == vertex and _is_last_edge(
                    plan, vertex, edge.dataset, numbers[id(edge)]
                )
                arrow = margin.branching(lane, "└" if is_last else "├", "▶")
                if is_last:
                    margin.drop(lane)
            yield arrow + _boxed(said, channels_text(plan, numbers[id(edge)]), width)
        if job.inputs_of(vertex):
            yield margin.passing() + "├" + "╌" * (width - 2) + "┤"
        name = textwrap.wrap(f"{letter(vertex)}  {job.vertices[vertex].name}", width - 4, subsequent_indent="   ")
        if len(name) > _NAME_LINES:
            name = [*name[:_NAME_LINES], f"   … {counted(len(job.vertices[vertex].operators), 'operator')} in all"]
        for line in name:
            yield margin.passing() + _boxed(line, "", width)
        about = f"   {parallelism_text(job.vertices[vertex].parallelism)}, {group_text(plan, vertex)}"
        yield margin.passing() + _boxed(about, "", width)
        for dataset in job.outputs_of(vertex):
            if lanes <= _MOST_LANES and dataset in readers_shown:
                lane = margin.put(dataset)
                yield margin.branching(lane, "┌", "─") + "┤" + " " * (width - 2) + "│"
        yield margin.passing() + "└" + "─" * (width - 2) + "┘"
    if len(job.vertices) > len(shown):
        yield f"  … and {counted(len(job.vertices) - len(shown), 'chain')} more; {_ELSEWHERE}"


def _is_last_edge(plan: Plan, vertex: int, dataset: int, number: int) -> bool:
    """A vertex may read one dataset twice."""
    same = [edge for edge in plan.job.inputs_of(vertex) if edge.dataset == dataset]
    return same[-1] is plan.job.edges[number]


def _lanes(plan: Plan, last_reader: dict[int, int]) -> int:
    """How many datasets are open at once, at most."""
    changes = np.zeros(len(plan.job.vertices) + 1, np.int64)
    for dataset, reader in last_reader.items():
        changes[plan.job.datasets[dataset].producer] += 1
        changes[reader] -= 1
    # A box takes its inputs before it gives its outputs, so what ends where something begins is not open with it.
    return int(np.cumsum(changes).max(initial=0))


def _boxed(left: str, right: str, width: int) -> str:
    room = width - 4
    if len(left) + len(right) + 2 > room and right:
        left = shortened(left, max(10, room - len(right) - 2))
    gap = " " * max(2, room - len(left) - len(right)) if right else ""
    return f"│ {shortened(left + gap + right, room):<{room}} │"


# --------------------------------------------------------------------------------------------------------- tables


def _reasons(plan: Plan) -> Iterator[str]:
    if plan.chaining is None or not plan.chaining.graph.edges:
        return
    yield ""
    yield "Chained, or why not"
    edges = plan.chaining.graph.edges
    for edge in edges[:_MOST_REASONS]:
        told = plan.chaining.explain(edge)
        sign = "═══" if told.is_chained else "─╳─"
        head = f"  {shortened(told.source, 24)} {sign} {shortened(told.target, 24)}"
        yield from textwrap.wrap(f"{head}   {told.reason}", WIDTH, subsequent_indent=" " * 6)
    if len(edges) > _MOST_REASONS:
        yield f"  … and {counted(len(edges) - _MOST_REASONS, 'edge')} more; {_ELSEWHERE}"


def _slots(plan: Plan) -> Iterator[str]:
    if not plan.slots_by_group:
        return
    yield ""
    groups = [
        f"{group.name} {slots:,}"
        for group, slots in zip(plan.job.slot_sharing_groups, plan.slots_by_group, strict=True)
    ]
    total = counted(sum(plan.slots_by_group), "slot")
    yield from textwrap.wrap(f"Slots   {total} by group: {', '.join(groups)}", WIDTH, subsequent_indent=" " * 8)
    if plan.placement is not None and len(plan.placement.stages) > 1:
        yield f"        in {len(plan.placement.stages)} stages, one after the other: each has all slots for itself"


def _taskmanagers(plan: Plan) -> Iterator[str]:
    if plan.placement is None or plan.channels is None or plan.buffers is None:
        return
    yield f"Network {network_text(plan)}"
    yield ""
    tasks = plan.placement.tasks
    spread = f"{int(tasks.min()):,} to {int(tasks.max()):,}" if tasks.min() != tasks.max() else f"{int(tasks.max()):,}"
    yield f"TaskManagers   {spread} tasks on each; of {plan.buffers.available:,} network buffers each"
    yield f"  {'TM':<5}{'tasks':>6}  {'dials':>6}{'buffers required':>18}{'at most':>11}   what runs there"
    rows = _rows(plan)
    for number in range(min(plan.taskmanagers, _MOST_TASKMANAGERS)):
        most = int(plan.buffers.maximum[number])
        numbers = (
            f"  {number:<5}{int(tasks[number]):>6,}  {int(plan.channels.dialled[number]):>6,}"
            f"{int(plan.buffers.required[number]):>18,}{'no bound' if most < 0 else f'{most:,}':>11}   "
        )
        indent = " " * len(numbers)
        shown = textwrap.wrap(rows[number], WIDTH - len(numbers), break_on_hyphens=False) or ["-"]
        yield numbers + shown[0]
        yield from (indent + line for line in shown[1:])
    if plan.taskmanagers > _MOST_TASKMANAGERS:
        yield f"  … and {counted(plan.taskmanagers - _MOST_TASKMANAGERS, 'TaskManager')} more; {_ELSEWHERE}"


def _rows(plan: Plan) -> Sequence[str]:
    """For each TaskManager its slots with their tasks, or in larger plans its subtasks as ranges."""
    assert plan.placement is not None
    count = min(plan.taskmanagers, _MOST_TASKMANAGERS)
    if plan.taskmanagers * plan.slots <= _MOST_SLOTS_SHOWN:
        slots: list[list[list[str]]] = [[[] for _ in range(plan.slots)] for _ in range(plan.taskmanagers)]
        for vertex in range(len(plan.job.vertices)):
            where = zip(plan.placement.taskmanagers_of(vertex), plan.placement.slots_of(vertex), strict=True)
            for subtask, (taskmanager, slot) in enumerate(where):
                slots[taskmanager][slot].append(f"{letter(vertex)}{subtask}")
        return [" ".join(f"[{' '.join(slot)}]" for slot in of) for of in slots]
    parts: list[list[str]] = [[] for _ in range(count)]
    for vertex in range(len(plan.job.vertices)):
        places = plan.placement.taskmanagers_of(vertex)
        order = np.argsort(places, kind="stable")
        bounds = np.searchsorted(places[order], np.arange(count + 1))
        for number in range(count):
            subtasks = order[bounds[number] : bounds[number + 1]].tolist()
            if subtasks:
                parts[number].append(f"{letter(vertex)}{ranges(subtasks)}")
    return [" ".join(part) for part in parts]


def _regions(plan: Plan) -> Iterator[str]:
    yield ""
    total = sum(region.count for region in plan.regions)
    size = counted(total, "region") if total else counted(len(plan.regions), "logical region")
    yield f"Pipelined regions   {size}, each scheduled and restarted as one"
    for region in plan.regions[:_MOST_BOXES]:
        yield from textwrap.wrap(region_text(plan, region), WIDTH, initial_indent="  ", subsequent_indent="    ")
    if len(plan.regions) > _MOST_BOXES:
        yield f"  … and {counted(len(plan.regions) - _MOST_BOXES, 'logical region')} more; {_ELSEWHERE}"
