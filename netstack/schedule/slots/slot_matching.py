"""Which request gets which slot: whoever comes first, or so that TaskManagers get equally many tasks.

Takes: requests, free slots, loads. Gives: a request for one slot, or matches for all.

Rules: ties go to whoever comes first. Balancing serves all requests or none.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final

from ..graph.job_graph import ResourceProfile
from .free_slots import FreeSlots
from .resource_mapping import can_serve, map_resources
from .slots import PhysicalSlot, SlotMatch, SlotRequest

_by_index: Final = attrgetter("index")


def choose_request(slot: PhysicalSlot, pending: Iterable[SlotRequest]) -> SlotRequest | None:
    """Who gets a slot that was just offered, unless tasks are balanced: the first request that it serves."""
    here = ("", slot.location.taskmanager)
    return next((each for each in pending if each.taskmanager in here and can_serve(slot.profile, each.profile)), None)


def match_balanced(
    requests: Sequence[SlotRequest], slots: Sequence[PhysicalSlot], loads: Mapping[str, int] | None = None
) -> list[SlotMatch]:
    """Serves requests so that TaskManagers get about equally many tasks: the largest first, where there is least.

    Greedy, so not always the best there is. Costs O(n log n).

    Args:
        requests: in the order in which they were made.
        slots: the free ones, in the order in which their TaskManagers registered; ties go to the earlier TaskManager,
            then to the lower index.
        loads: tasks that each TaskManager has already; without one, 0.

    Returns:
        One match per request, or nothing if there is a request that would go without.
    """
    mapping = map_resources((request.profile for request in requests), (slot.profile for slot in slots))
    if mapping is None:
        return []
    wanted = sorted(requests, key=lambda request: -request.load)
    tasks = {slot.location.taskmanager: 0 for slot in slots} | dict(loads or {})
    alike = slots[0].profile
    if all(slot.profile is alike or slot.profile == alike for slot in slots):
        return _match_alike(wanted, slots, tasks)
    free = FreeSlots(slots)
    for taskmanager, load in tasks.items():
        free.set_load(taskmanager, load)
    matches = []
    for request in wanted:

        def allowed(profile: ResourceProfile, of_request: ResourceProfile = request.profile) -> bool:
            return mapping.allows(of_request, profile)

        slot = free.least_loaded(allowed)
        assert slot is not None  # the mapping keeps one for every request
        free.remove(slot)
        mapping.take(request.profile, slot.profile)
        tasks[slot.location.taskmanager] += request.load
        free.set_load(slot.location.taskmanager, tasks[slot.location.taskmanager])
        matches.append(SlotMatch(request, slot))
    return matches


def _match_alike(
    wanted: Sequence[SlotRequest], slots: Sequence[PhysicalSlot], tasks: Mapping[str, int]
) -> list[SlotMatch]:
    """The same where all slots are alike, so that nobody can be stranded: the usual case, and several times faster."""
    of_taskmanager: dict[str, list[PhysicalSlot]] = {}
    for slot in slots:
        of_taskmanager.setdefault(slot.location.taskmanager, []).append(slot)
    free = [sorted(own, key=_by_index, reverse=True) for own in of_taskmanager.values()]
    least = [(tasks[name], number) for number, name in enumerate(of_taskmanager)]
    heapq.heapify(least)
    matches = []
    for request in wanted:
        load, number = least[0]
        own = free[number]
        matches.append(SlotMatch(request, own.pop()))
        if own:
            heapq.heapreplace(least, (load + request.load, number))
        else:
            heapq.heappop(least)
    return matches
