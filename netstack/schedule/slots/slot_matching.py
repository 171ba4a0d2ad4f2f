"""Matching of requests with slots: in order of arrival, or so that TaskManagers get equally many tasks.

Rules:
- Ties go to the first request, then to the lower slot index. Balancing serves all requests or none.
- A request of unknown profile takes any slot, a slot of profile `any` serves every request, otherwise both profiles
  must be equal: a bigger slot does not serve a smaller request. A batch reserves exact pairs first, then slots of
  profile `any` for concrete requests, then the rest for unknown ones. A request may take an unreserved slot and give
  back a reserved one.
- The owner defines the load: nothing, the share of slots in use, or tasks.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter, itemgetter
from typing import Final, final

from ...base.errors import ConfigError
from ..graph.job_graph import ANY_PROFILE, UNKNOWN_PROFILE, ResourceProfile
from .slots import LoadBalanceMode, Location, PhysicalSlot, SlotMatch, SlotRequest


def can_serve(slot: ResourceProfile, request: ResourceProfile) -> bool:
    """Whether a slot of one profile serves a request of another."""
    return request == UNKNOWN_PROFILE or slot in (ANY_PROFILE, request)


@final
class ResourceMapping:
    """Number of slots of each profile that each kind of request may still take."""

    __slots__ = ("_flexible", "_reserved")

    def __init__(self, reserved: dict[ResourceProfile, Counter[ResourceProfile]], flexible: Counter[ResourceProfile]):
        self._reserved = reserved
        self._flexible = flexible

    def allows(self, request: ResourceProfile, slot: ResourceProfile) -> bool:
        """Whether a request may take a slot without leaving another request unserved, by their profiles."""
        return can_serve(slot, request) and (self._reserved[request][slot] > 0 or self._flexible[slot] > 0)

    def take(self, request: ResourceProfile, slot: ResourceProfile) -> None:
        """Counts a slot as taken; `allows` must be true."""
        reserved = self._reserved[request]
        if reserved[slot] > 0:
            reserved[slot] -= 1
            return
        self._flexible[slot] -= 1
        given_back = next(profile for profile, count in reserved.items() if count > 0)
        reserved[given_back] -= 1
        self._flexible[given_back] += 1


def map_resources(
    requests: Iterable[ResourceProfile], slots: Iterable[ResourceProfile] | Counter[ResourceProfile]
) -> ResourceMapping | None:
    """Reserves slots for every request, if possible.

    Args:
        requests: a profile per request.
        slots: a profile per free slot, or the number of each; their order decides which of them serve unknown requests.

    Returns:
        The mapping; None if there are no requests, or one of them cannot be served.

    Raises:
        ConfigError: a request of profile `any`, or a slot of profile `unknown`.
    """
    wanted, free = _counted(requests), _counted(slots)
    if ANY_PROFILE in wanted:
        raise ConfigError("a slot is requested with profile `any`; request a concrete profile, or `unknown`")
    if UNKNOWN_PROFILE in free:
        raise ConfigError("a slot has profile `unknown`; give it a concrete profile, or `any`")
    if not wanted or wanted.total() > free.total():
        return None
    reserved: dict[ResourceProfile, Counter[ResourceProfile]] = {profile: Counter() for profile in wanted}
    for profile in wanted:
        _reserve(reserved, wanted, free, profile, profile)
    for profile in wanted:
        if profile != UNKNOWN_PROFILE:
            _reserve(reserved, wanted, free, profile, ANY_PROFILE)
    if UNKNOWN_PROFILE in wanted:
        for slot in free:
            _reserve(reserved, wanted, free, UNKNOWN_PROFILE, slot)
    return None if wanted.total() else ResourceMapping(reserved, free)


def _counted(profiles: Iterable[ResourceProfile]) -> Counter[ResourceProfile]:
    """Counts profiles, in order; usually all are one object, which is hashed once."""
    if isinstance(profiles, Counter):
        return Counter(profiles)
    given = list(profiles)
    objects = {id(profile): profile for profile in given}
    counted: Counter[ResourceProfile] = Counter()
    for identity, count in Counter(map(id, given)).items():
        counted[objects[identity]] += count
    return counted


def _reserve(
    reserved: dict[ResourceProfile, Counter[ResourceProfile]],
    wanted: Counter[ResourceProfile],
    free: Counter[ResourceProfile],
    request: ResourceProfile,
    slot: ResourceProfile,
) -> None:
    """Reserves as many slots of one profile for one kind of request as it needs and there are."""
    count = min(wanted[request], free[slot])
    if count:
        reserved[request][slot] += count
        wanted[request] -= count
        free[slot] -= count


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
        # By profile, a heap of (load, TaskManager); stale entries are dropped when they reach the top.
        self._least: dict[ResourceProfile, list[tuple[float, int]]] = {}
        self._count = 0
        for slot in slots:
            self.add(slot)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[PhysicalSlot]:
        """All slots, TaskManager by TaskManager."""
        free = [
            (number, index, slot)
            for by_taskmanager in self._slots.values()
            for number, heap in by_taskmanager.items()
            for index, slot in heap
        ]
        return (slot for _, _, slot in sorted(free, key=_PLACE))

    def add(self, slot: PhysicalSlot) -> None:
        """Adds a slot that is not free yet."""
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
        """Removes a slot; returns whether it was free."""
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
        """Sets the load of a TaskManager; one that never had a slot is ignored."""
        number = self._numbers.get(taskmanager, -1)
        if number < 0 or self._loads[number] == load:
            return
        self._loads[number] = load
        for profile, by_taskmanager in self._slots.items():
            if number in by_taskmanager:
                self._enter(profile, number)

    def least_loaded(self, allowed: Callable[[ResourceProfile], bool]) -> PhysicalSlot | None:
        """The first slot on the least loaded TaskManager, among allowed profiles; it stays free."""
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
        """The best slot for a request, which stays free; None if no slot fits. A fixed TaskManager is respected.

        A slot scores by how often its TaskManager and its host are among the preferred locations: 10 and 1 times in
        mode NONE, 20 and 2 times less the load (0 to 1) in mode SLOTS. Without preferences the least load decides.
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
        """The first fitting slot of each TaskManager with a preference score; every other slot scores less."""
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
        """Adds a TaskManager's load to the heap. Stale entries are swept when they are most of the heap."""
        entries, by_taskmanager = self._least.setdefault(profile, []), self._slots[profile]
        if len(entries) > 4 * len(by_taskmanager) + 16:
            entries[:] = [(self._loads[one], one) for one in by_taskmanager]
            heapq.heapify(entries)
        else:
            heapq.heappush(entries, (self._loads[number], number))

    def _peek(self, profile: ResourceProfile) -> tuple[float, int]:
        """Load and number of the least loaded TaskManager with a free slot of a profile; there is one."""
        entries, by_taskmanager = self._least[profile], self._slots[profile]
        while entries[0][1] not in by_taskmanager or entries[0][0] != self._loads[entries[0][1]]:
            heapq.heappop(entries)
        return entries[0]


_by_index: Final = attrgetter("index")


def choose_request(slot: PhysicalSlot, pending: Iterable[SlotRequest]) -> SlotRequest | None:
    """The first request that a new slot serves, when tasks are not balanced."""
    here = ("", slot.location.taskmanager)
    return next((each for each in pending if each.taskmanager in here and can_serve(slot.profile, each.profile)), None)


def match_balanced(
    requests: Sequence[SlotRequest], slots: Sequence[PhysicalSlot], loads: Mapping[str, int] | None = None
) -> list[SlotMatch]:
    """Serves requests so that TaskManagers get about equally many tasks: the largest first, on the least loaded.

    Greedy, so not always optimal. O(n log n).

    Args:
        requests: in the order in which they were made.
        slots: the free ones, in the order in which their TaskManagers registered; ties go to the earlier TaskManager,
            then to the lower index.
        loads: tasks that each TaskManager has already; 0 if not given.

    Returns:
        One match per request, or nothing if a request cannot be served.
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
    """`match_balanced` for slots of one profile: the usual case, several times faster."""
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
