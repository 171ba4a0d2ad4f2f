"""What runs on each TaskManager, as text that fits in a table.

Takes: a `Plan` with a placement. Gives: for each TaskManager its slots with their subtasks (`A0 B0`), in larger plans
its subtasks as ranges (`A0-99 B0-99`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ..slots.placement import Placement
from .plan import Plan
from .words import letter, ranges

_MOST_SLOTS: Final = 64
"""Slots that are told one by one."""


def taskmanager_rows(plan: Plan, placement: Placement, most: int) -> Sequence[Sequence[Sequence[str]]]:
    """The subtasks on the first TaskManagers.

    Args:
        plan: what is planned.
        placement: where.
        most: so many TaskManagers at most.

    Returns:
        For each of them its slots, each a list of subtasks; in large plans all as one slot.
    """
    if plan.taskmanagers * plan.slots <= _MOST_SLOTS:
        return _by_slot(plan, placement)[:most]
    return [[row] for row in _by_taskmanager(plan, placement, min(most, plan.taskmanagers))]


def _by_slot(plan: Plan, placement: Placement) -> list[list[list[str]]]:
    slots: list[list[list[str]]] = [[[] for _ in range(plan.slots)] for _ in range(plan.taskmanagers)]
    for vertex in range(len(plan.job.vertices)):
        where = zip(placement.taskmanagers_of(vertex), placement.slots_of(vertex), strict=True)
        for subtask, (taskmanager, slot) in enumerate(where):
            slots[taskmanager][slot].append(f"{letter(vertex)}{subtask}")
    for taskmanager, others in enumerate(plan.taken):  # which ones they are only the cluster knows
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
