"""A plan in text, 100 columns wide: boxes for chains, lines between them, TaskManagers with their subtasks.

Rules: long texts are cut with a mark; `plan_json` is complete. A TaskManager's slots are listed with their subtasks
(`A0 B0`), in larger plans its subtasks as ranges (`A0-99 B0-99`).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from ...base.units import counted, first_of
from ..slots.placement import Placement
from .labels import (
    buffers_problem,
    cluster_text,
    letter,
    network_text,
    ranges,
    region_text,
    shortened,
    summary,
    unknown_text,
)
from .picture import picture
from .plan import Plan

_MOST_SLOTS: Final = 64
"""Slots that are listed one by one."""


def taskmanager_rows(plan: Plan, placement: Placement, most: int) -> Sequence[Sequence[Sequence[str]]]:
    """The slots of the first `most` TaskManagers, each a list of subtasks; in large plans all as one slot."""
    if plan.taskmanagers * plan.slots <= _MOST_SLOTS:
        return _by_slot(plan, placement)[:most]
    return [[row] for row in _by_taskmanager(plan, placement, min(most, plan.taskmanagers))]


def _by_slot(plan: Plan, placement: Placement) -> list[list[list[str]]]:
    slots: list[list[list[str]]] = [[[] for _ in range(plan.slots)] for _ in range(plan.taskmanagers)]
    for vertex in range(len(plan.job.vertices)):
        where = zip(placement.taskmanagers_of(vertex), placement.slots_of(vertex), strict=True)
        for subtask, (taskmanager, slot) in enumerate(where):
            slots[taskmanager][slot].append(f"{letter(vertex)}{subtask}")
    for taskmanager, others in enumerate(plan.taken):  # the plan cannot know which slots
        for slot in range(plan.slots - others, plan.slots):
            slots[taskmanager][slot].append("taken")
    return slots


def _by_taskmanager(plan: Plan, placement: Placement, count: int) -> list[list[str]]:
    rows: list[list[str]] = [[] for _ in range(count)]
    for vertex in range(len(plan.job.vertices)):
        places = placement.taskmanagers_of(vertex)
        order = np.argsort(places, kind="stable")
        bounds = np.searchsorted(places[order], np.arange(count + 1))
        for number, row in enumerate(rows):
            subtasks = order[bounds[number] : bounds[number + 1]].tolist()
            if subtasks:
                row.append(f"{letter(vertex)}{ranges(subtasks)}")
    return rows


WIDTH: Final = 100
_MOST_BOXES: Final = 60
_MOST_REASONS: Final = 60
_MOST_TASKMANAGERS: Final = 40
_ELSEWHERE: Final = "--format json has all of it"


def plan_text(plan: Plan) -> str:
    """The whole plan."""
    lines = [f"{plan.job.name}: {summary(plan)}", *([] if plan.is_undecided else [f"on {cluster_text(plan)}"]), ""]
    lines += picture(plan, WIDTH, _MOST_BOXES)
    if len(plan.job.vertices) > _MOST_BOXES:
        lines.append(f"  … and {counted(len(plan.job.vertices) - _MOST_BOXES, 'chain')} more; {_ELSEWHERE}")
    lines += _reasons(plan)
    if plan.job.uids:
        given = [f"{name} is {uid!r}" for name, uid in plan.job.uids.items()]
        text = f"Uids    in checkpoints {first_of(given, 20)}"
        lines += ["", *textwrap.wrap(text, WIDTH, subsequent_indent=" " * 8)]
    lines += _slots(plan)
    lines += _taskmanagers(plan)
    lines += _regions(plan)
    if plan.warning:
        lines += ["", *textwrap.wrap(plan.warning, WIDTH)]
    for problem in filter(None, (plan.problem, buffers_problem(plan))):
        lines += ["", *textwrap.wrap(f"does not fit: {problem}", WIDTH, subsequent_indent="  ")]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _reasons(plan: Plan) -> Iterator[str]:
    if plan.chaining is None or not plan.chaining.graph.edges:
        return
    yield ""
    yield "Chaining"
    edges = plan.chaining.graph.edges
    reasons = [plan.chaining.explain(edge) for edge in edges[:_MOST_REASONS]]
    heads = [
        f"  {shortened(one.source, 20)} {'═══' if one.is_chained else '╌╌╌'} {shortened(one.target, 20)}  "
        for one in reasons
    ]
    column = max(map(len, heads))
    for head, one in zip(heads, reasons, strict=True):
        yield from textwrap.wrap(one.reason, WIDTH, initial_indent=f"{head:<{column}}", subsequent_indent=" " * column)
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
    yield from textwrap.wrap(f"Slots   {total} by group: {first_of(groups, 20)}", WIDTH, subsequent_indent=" " * 8)
    if plan.placement is not None and len(plan.placement.stages) > 1:
        yield f"        in {len(plan.placement.stages)} stages, one after the other, each with all slots"
    yield from textwrap.wrap(plan.turns, WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8)


def _taskmanagers(plan: Plan) -> Iterator[str]:
    if plan.placement is None or plan.channels is None or plan.buffers is None:
        return
    yield from textwrap.wrap(f"Network {network_text(plan)}", WIDTH, subsequent_indent=" " * 8)
    yield ""
    tasks = plan.placement.tasks
    spread = counted(int(tasks.max()), "task")
    if tasks.min() != tasks.max():
        spread = f"{int(tasks.min()):,} to {spread}"
    where = ", and" if plan.processes == 1 else "; each slot is a process with"
    yield f"TaskManagers   {spread} on each{where} memory for {plan.buffers.available:,} network buffers"
    yield f"  {'TM':<5}{'tasks':>6}  {'dials':>6}{'buffers required':>18}{'at most':>11}   what runs there"
    used = int(tasks.nonzero()[0].max()) + 1
    dialled, _, required, maximum = plan.taskmanager_rows()
    for number, row in enumerate(taskmanager_rows(plan, plan.placement, min(used, _MOST_TASKMANAGERS))):
        most = int(maximum[number])
        numbers = (
            f"  {number:<5}{int(tasks[number]):>6,}  {int(dialled[number]):>6,}"
            f"{int(required[number]):>18,}{'no bound' if most < 0 else f'{most:,}':>11}   "
        )
        indent = " " * len(numbers)
        lines = textwrap.wrap(_cells(row), WIDTH - len(numbers), break_on_hyphens=False) or ["-"]
        yield numbers + lines[0]
        yield from (indent + line for line in lines[1:])
    if used > _MOST_TASKMANAGERS:
        yield f"  … and {counted(used - _MOST_TASKMANAGERS, 'TaskManager')} more; {_ELSEWHERE}"
    if plan.taskmanagers > used:
        yield f"  nothing runs on {counted(plan.taskmanagers - used, 'TaskManager')} more"
    if plan.processes > 1:
        yield "  Buffers are those of the slot that needs most."
    yield from textwrap.wrap(unknown_text(plan), WIDTH, initial_indent="  ", subsequent_indent="  ")


def _cells(row: Sequence[Sequence[str]]) -> str:
    """Each slot in brackets; subtasks that are not listed by slot without."""
    return " ".join(row[0]) if len(row) == 1 else " ".join(f"[{' '.join(slot)}]" for slot in row)


def _regions(plan: Plan) -> Iterator[str]:
    yield ""
    total = sum(region.count for region in plan.regions)
    size = counted(total, "region") if total else counted(len(plan.regions), "logical region")
    yield f"Pipelined regions   {size}, each scheduled and restarted as one"
    for region in plan.regions[:_MOST_BOXES]:
        yield from textwrap.wrap(region_text(plan, region), WIDTH, initial_indent="  ", subsequent_indent="    ")
    if len(plan.regions) > _MOST_BOXES:
        yield f"  … and {counted(len(plan.regions) - _MOST_BOXES, 'logical region')} more; {_ELSEWHERE}"
