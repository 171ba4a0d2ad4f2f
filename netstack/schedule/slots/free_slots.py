"""The slots that nobody has, by profile, with the least loaded TaskManager at hand.

Takes: slots as they come free, and how loaded each TaskManager is. Gives: the best one for a request.

Rules: what counts as load is the owner's business: nothing, the share of slots in use, or tasks. Ties go to the
TaskManager that was seen first, then to the lower slot index, so the same input gives the same plan.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from operator import itemgetter
from typing import Final, final

from ..graph.job_graph import ResourceProfile
from .resource_mapping import can_serve
from .slots import LoadBalanceMode, Location, PhysicalSlot, SlotRequest

_PLACE: Final = itemgetter(0, 1)


@final
class FreeSlots:
    """Free slots; each operation costs O(log n) and a look at each distinct profile.

    Args:
        slots: the first ones, their TaskManagers in the order in which they registered.
    """

    __slots__ = ("_count", "_least", "_loads", "_numbers", "_on_host", "_slots")

    def __init__(self, slots: Iterable[PhysicalSlot] = ()) -> None:
        self._numbers: dict[str, int] = {}
        self._on_host: dict[str, list[int]] = {}
        self._loads: list[float] = []
        self._slots: dict[ResourceProfile, dict[int, list[tuple[int, PhysicalSlot]]]] = {}
        # By profile, a heap of (load, TaskManager); what is no longer true is dropped when it comes up.
        self._least: dict[ResourceProfile, list[tuple[float, int]]] = {}
        self._count = 0
        for slot in slots:
            self.add(slot)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[PhysicalSlot]:
        """All of them, TaskManager by TaskManager."""
        free = [
            (number, index, slot)
            for by_taskmanager in self._slots.values()
            for number, heap in by_taskmanager.items()
            for index, slot in heap
        ]
        return (slot for _, _, slot in sorted(free, key=_PLACE))

    def add(self, slot: PhysicalSlot) -> None:
        """A slot came free. It must not be free already."""
        number = self._numbers.get(slot.location.taskmanager)
        if number is None:
            number = self._numbers[slot.location.taskmanager] = len(self._loads)
            self._loads.append(0)
            if slot.location.host:
                self._on_host.setdefault(slot.location.host, []).append(number)
        by_taskmanager = self._slots.setdefault(slot.profile, {})
        heap = by_taskmanager.get(number)
        if heap is None:
            heap = by_taskmanager[number] = []
            self._enter(slot.profile, number)
        heapq.heappush(heap, (slot.index, slot))
        self._count += 1

    def remove(self, slot: PhysicalSlot) -> bool:
        """A slot is taken or gone; says whether it was free."""
        number = self._numbers.get(slot.location.taskmanager, -1)
        by_taskmanager = self._slots.get(slot.profile, {})
        heap = by_taskmanager.get(number, [])
        if heap and heap[0][0] == slot.index:
            heapq.heappop(heap)
        elif (slot.index, slot) in heap:
            heap.remove((slot.index, slot))
            heapq.heapify(heap)
        else:
            return False
        if not heap:
            del by_taskmanager[number]
        self._count -= 1
        return True

    def set_load(self, taskmanager: str, load: float) -> None:
        """How loaded a TaskManager is from now on; one that never had a slot does not matter."""
        number = self._numbers.get(taskmanager, -1)
        if number < 0 or self._loads[number] == load:
            return
        self._loads[number] = load
        for profile, by_taskmanager in self._slots.items():
            if number in by_taskmanager:
                self._enter(profile, number)

    def least_loaded(self, allowed: Callable[[ResourceProfile], bool]) -> PhysicalSlot | None:
        """The first slot on the least loaded TaskManager among the profiles that are allowed; it stays free."""
        best: tuple[float, int, int] | None = None
        chosen = None
        for profile, by_taskmanager in self._slots.items():
            if by_taskmanager and allowed(profile):
                load, number = self._peek(profile)
                index, slot = by_taskmanager[number][0]
                if best is None or (load, number, index) < best:
                    best, chosen = (load, number, index), slot
        return chosen

    def choose(self, request: SlotRequest, mode: LoadBalanceMode) -> PhysicalSlot | None:
        """The best slot for one request; it stays free. None if no slot will do; only its TaskManager's, if it has one.

        A slot scores by how often its TaskManager and its host are among the preferred locations: 10 and 1 times in
        mode NONE, 20 and 2 times less the load (0 to 1) in mode SLOTS. Without preferences that leaves the least load.
        """
        if request.taskmanager:
            fitting = self._near(replace(request, preferred=(Location(request.taskmanager),)))
            return fitting[0] if fitting else None
        near = self._near(request)
        if not near:
            return self.least_loaded(lambda profile: can_serve(profile, request.profile))
        weight = 20 if mode is LoadBalanceMode.SLOTS else 10
        taskmanagers = [location.taskmanager for location in request.preferred]
        hosts = [location.host for location in request.preferred if location.host]

        def score(slot: PhysicalSlot) -> float:
            here = slot.location
            load = self._loads[self._numbers[here.taskmanager]] if mode is LoadBalanceMode.SLOTS else 0
            return weight * taskmanagers.count(here.taskmanager) + weight / 10 * hosts.count(here.host) - load

        return max(near, key=score)

    def _near(self, request: SlotRequest) -> list[PhysicalSlot]:
        """The first fitting slot of each TaskManager that scores by preference; every other scores less than these."""
        numbers = {self._numbers.get(location.taskmanager, -1) for location in request.preferred}
        for location in request.preferred:
            numbers.update(self._on_host.get(location.host, ()))
        near = []
        for number in sorted(numbers):
            fitting = [
                by_taskmanager[number][0]
                for profile, by_taskmanager in self._slots.items()
                if number in by_taskmanager and can_serve(profile, request.profile)
            ]
            if fitting:
                near.append(min(fitting, key=lambda entry: entry[0])[1])
        return near

    def _enter(self, profile: ResourceProfile, number: int) -> None:
        """Notes a TaskManager's load. Out-of-date notes are swept when they are most of the heap."""
        entries, by_taskmanager = self._least.setdefault(profile, []), self._slots[profile]
        if len(entries) > 4 * len(by_taskmanager) + 16:
            entries[:] = [(self._loads[one], one) for one in by_taskmanager]
            heapq.heapify(entries)
        else:
            heapq.heappush(entries, (self._loads[number], number))

    def _peek(self, profile: ResourceProfile) -> tuple[float, int]:
        """Load and number of the least loaded TaskManager that has a free slot of a profile; there is one."""
        entries, by_taskmanager = self._least[profile], self._slots[profile]
        while entries[0][1] not in by_taskmanager or entries[0][0] != self._loads[entries[0][1]]:
            heapq.heappop(entries)
        return entries[0]
