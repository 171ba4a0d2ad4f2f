"""The assignment of the slots of all TaskManagers to jobs.

Takes: registrations and losses of TaskManagers, the number of slots that each job is to be offered in all, returned
slots. Gives: slot offers for jobs.

Rules: a slot belongs to at most one job. Jobs are served in the order of submission. Mode `none` fills TaskManagers one
by one in the order of registration. Mode `slots` prefers the TaskManager with the smallest share of used slots. Mode
`tasks` gives a job the slots that balance its tasks over all free slots; the job's own scheduler, which sees only
these, matches them the same way. A job that keeps results states no such demand, and is served as in mode `none`. This
module never waits, sends or reads a clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import final

from ....base.errors import LocalProtocolError
from ....base.units import counted, first_of
from ....schedule.graph.job_graph import JobGraph
from ....schedule.slots.slot_matching import match_balanced
from ....schedule.slots.slots import LoadBalanceMode, Location, PhysicalSlot, SlotDemand, SlotRequest


@final
@dataclass(frozen=True, slots=True)
class SlotOffer:
    """Slots to offer to a job.

    Attributes:
        job_id: the job that now owns them.
        slots: their indices, ascending.
    """

    job_id: str
    taskmanager: str
    slots: tuple[int, ...]


@final
@dataclass(slots=True)
class _Slots:
    total: int
    free: list[int]  # a heap: the lowest index first
    used: dict[int, str] = field(default_factory=dict)

    def take(self, job_id: str) -> int:
        slot = heappop(self.free)
        self.used[slot] = job_id
        return slot


@final
class SlotManager:
    """The assignment of slots to jobs (Flink's SlotManager).

    Args:
        mode: how slots are chosen among TaskManagers.
        demand_of: returns the slot request of a job for mode `tasks`; None: any slots serve it.
    """

    def __init__(
        self,
        mode: LoadBalanceMode = LoadBalanceMode.NONE,
        demand_of: Callable[[str], SlotDemand | None] = lambda job_id: None,
    ) -> None:
        self._mode = mode
        self._demand_of = demand_of
        self._taskmanagers: dict[str, _Slots] = {}
        self._missing: dict[str, int] = {}
        self._offered: Counter[str] = Counter()
        self._barred: dict[str, set[str]] = {}
        self._blocked: dict[str, frozenset[str]] = {}

    def register(self, taskmanager: str, slots: int) -> None:
        """Adds a TaskManager; all of its slots are free. Raises LocalProtocolError if the name is taken."""
        if taskmanager in self._taskmanagers:
            raise LocalProtocolError(f"TaskManager {taskmanager!r} is registered already")
        self._taskmanagers[taskmanager] = _Slots(slots, [*range(slots)])

    def lose(self, taskmanager: str) -> None:
        """Removes a TaskManager and its slots."""
        self._taskmanagers.pop(taskmanager, None)

    def job_came(self, job_id: str) -> None:
        """Adds a job at the end of the queue."""
        self._missing.setdefault(job_id, 0)

    def job_left(self, job_id: str) -> None:
        """Removes a job and frees its slots."""
        self._missing.pop(job_id, None)
        self._offered.pop(job_id, None)
        self._barred.pop(job_id, None)
        self._blocked.pop(job_id, None)
        for name, slots in self._taskmanagers.items():
            self._free(name, [slot for slot, owner in slots.used.items() if owner == job_id])

    def require(self, job_id: str, total: int) -> None:
        """Sets the number of slots that a job is to be offered in all; what it was offered is subtracted here only."""
        if job_id in self._missing:
            self._missing[job_id] = max(0, total - self._offered[job_id])

    def missed(self, job_id: str, count: int) -> None:
        """Adds offered slots that did not reach the job to those it lacks."""
        if job_id in self._missing:
            self._missing[job_id] += count
            self._offered[job_id] -= count

    def give_back(self, job_id: str, taskmanager: str, slot: int) -> None:
        """Frees a slot of a job; ignores a slot that the job does not own."""
        slots = self._taskmanagers.get(taskmanager)
        if slots is not None and slots.used.get(slot) == job_id:
            self._free(taskmanager, [slot])

    def bar(self, job_id: str, taskmanager: str) -> None:
        """Excludes a TaskManager that rejects a job; frees the job's slots there."""
        self._barred.setdefault(job_id, set()).add(taskmanager)
        slots = self._taskmanagers.get(taskmanager)
        if slots is not None:
            self._free(taskmanager, [slot for slot, owner in slots.used.items() if owner == job_id])

    def unbar(self, job_id: str, taskmanager: str) -> None:
        """Ends the exclusion of a TaskManager."""
        self._barred.get(job_id, set()).discard(taskmanager)

    def block(self, job_id: str, taskmanagers: Iterable[str]) -> None:
        """Sets the TaskManagers of which a job accepts no more slots; it keeps the slots that it has."""
        if job_id in self._missing:
            self._blocked[job_id] = frozenset(taskmanagers)

    def offers(self) -> list[SlotOffer]:
        """Assigns free slots to jobs that lack slots; returns the new assignments."""
        result = []
        for job_id in [*self._missing]:
            given: dict[str, list[int]] = {}
            demand = self._demand_of(job_id) if self._mode is LoadBalanceMode.TASKS else None
            for name in self._chosen(job_id) if demand is None else self._balanced(job_id, demand):
                given.setdefault(name, []).append(self._taskmanagers[name].take(job_id))
                self._offered[job_id] += 1
            result += [SlotOffer(job_id, name, tuple(slots)) for name, slots in given.items()]
        return result

    @property
    def total(self) -> int:
        """The number of slots."""
        return sum(slots.total for slots in self._taskmanagers.values())

    @property
    def free(self) -> int:
        """The number of free slots."""
        return sum(len(slots.free) for slots in self._taskmanagers.values())

    def missing(self, job_id: str) -> int:
        """Returns how many slots a job lacks."""
        return self._missing.get(job_id, 0)

    def used_of(self, taskmanager: str) -> dict[int, str]:
        """Returns the used slots of a TaskManager with their jobs."""
        slots = self._taskmanagers.get(taskmanager)
        return {} if slots is None else dict(sorted(slots.used.items()))

    def describe(self) -> str:
        """Describes the existing slots in words."""
        if not self._taskmanagers:
            return "no TaskManager is registered"
        each = first_of(f"{name} {slots.total} ({len(slots.free)} free)" for name, slots in self._taskmanagers.items())
        return f"{self.free} of {self.total} registered slots free: {each}"

    def _able(self, job_id: str) -> dict[str, _Slots]:
        """Returns the TaskManagers that may serve a job, in the order of registration."""
        barred = self._barred.get(job_id, frozenset()) | self._blocked.get(job_id, frozenset())
        return {name: slots for name, slots in self._taskmanagers.items() if name not in barred}

    def _chosen(self, job_id: str) -> Iterator[str]:
        """Yields the TaskManager of each slot; the caller takes the slot before the next one is chosen."""
        while self._missing[job_id]:
            able = [(name, slots) for name, slots in self._able(job_id).items() if slots.free]
            if not able:
                return
            self._missing[job_id] -= 1
            if self._mode is LoadBalanceMode.SLOTS:
                yield min(able, key=lambda item: len(item[1].used) / item[1].total)[0]
            else:
                yield able[0][0]

    def _balanced(self, job_id: str, demand: SlotDemand) -> list[str]:
        """Returns the TaskManager of each slot that balances a job's tasks over all free slots."""
        able = self._able(job_id)
        if not self._missing[job_id] or not any(entry.free for entry in able.values()):
            return []
        # Slots that the job owns and does not use may be in transit: only their number is known. They come first.
        own = {name: [*entry.used.values()].count(job_id) - demand.slots.get(name, 0) for name, entry in able.items()}
        slots = [
            PhysicalSlot(Location(name), index)
            for name, entry in able.items()
            for index in (*range(-own[name], 0), *entry.free)
        ]
        lacking = len(demand.loads) - sum(max(0, count) for count in own.values())
        if lacking <= 0:
            names = []
        elif len(slots) < len(demand.loads):
            names = [name for name, entry in able.items() for _ in entry.free]
        else:
            requests = [SlotRequest(number, load=load) for number, load in enumerate(demand.loads)]
            matches = match_balanced(requests, slots, demand.tasks)
            names = [match.slot.location.taskmanager for match in matches if match.slot.index >= 0]
        self._missing[job_id] = max(0, lacking - len(names))
        return names

    def _free(self, taskmanager: str, slots: list[int]) -> None:
        held = self._taskmanagers[taskmanager]
        for slot in slots:
            del held.used[slot]
            heappush(held.free, slot)


def slots_needed(job: JobGraph) -> str:
    """Describes how many slots a job needs in total and by slot sharing group."""
    needed: dict[str, int] = {}
    for vertex in job.vertices:
        name = job.slot_sharing_groups[vertex.slot_sharing_group].name
        needed[name] = max(needed.get(name, 0), vertex.parallelism)
    groups = ", ".join(f"{count} of group {name}" for name, count in needed.items())
    return f"the job needs {counted(sum(needed.values()), 'slot')} ({groups})"
