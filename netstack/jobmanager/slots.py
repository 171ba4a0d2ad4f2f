"""The slots of all TaskManagers, and which job has which.

Takes: TaskManagers that come and go, how many slots each job lacks, slots that jobs give back. Gives: what to offer to
whom.

Rules: a slot belongs to one job or to nobody. Jobs are served in the order in which they were submitted. In mode `none`
TaskManagers are filled one after the other, in the order in which they registered; in mode `slots` the one goes first
whose share of slots in use is the lowest; in mode `tasks` a job gets the slots that balance its tasks over all that are
free, which its own scheduler, seeing these only, will match in the same way. Nothing here waits, sends or looks at a
clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import final

from ..errors import LocalProtocolError
from ..schedule.graph.job_graph import JobGraph
from ..schedule.slots.slot_matching import match_balanced
from ..schedule.slots.slots import LoadBalanceMode, Location, PhysicalSlot, SlotDemand, SlotRequest


@final
@dataclass(frozen=True, slots=True)
class SlotOffer:
    """Slots that a job is to be offered.

    Attributes:
        job_id: whose they are now.
        taskmanager: name of their TaskManager.
        slots: which, ascending.
    """

    job_id: str
    taskmanager: str
    slots: tuple[int, ...]


@final
@dataclass(slots=True)
class _Slots:
    total: int
    free: list[int]  # a heap: the lowest goes first
    used: dict[int, str] = field(default_factory=dict)

    def take(self, job_id: str) -> int:
        slot = heappop(self.free)
        self.used[slot] = job_id
        return slot


@final
class ClusterSlots:
    """Who has which slot.

    Args:
        mode: how slots are chosen among TaskManagers.
        demand_of: what a job says of its slots; only mode `tasks` asks. None is a job that says nothing now.
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
        self._barred: dict[str, set[str]] = {}
        self._blocked: dict[str, frozenset[str]] = {}

    def register(self, taskmanager: str, slots: int) -> None:
        """A TaskManager is there, with so many slots, all free.

        Raises:
            LocalProtocolError: the name is taken.
        """
        if taskmanager in self._taskmanagers:
            raise LocalProtocolError(f"TaskManager {taskmanager!r} is registered already")
        self._taskmanagers[taskmanager] = _Slots(slots, [*range(slots)])

    def lose(self, taskmanager: str) -> None:
        """It is gone, with its slots."""
        self._taskmanagers.pop(taskmanager, None)

    def job_came(self, job_id: str) -> None:
        """A job that will want slots; it stands behind those that came before."""
        self._missing.setdefault(job_id, 0)

    def job_left(self, job_id: str) -> None:
        """All its slots are free."""
        self._missing.pop(job_id, None)
        self._barred.pop(job_id, None)
        self._blocked.pop(job_id, None)
        for name, slots in self._taskmanagers.items():
            self._free(name, [slot for slot, owner in slots.used.items() if owner == job_id])

    def require(self, job_id: str, missing: int) -> None:
        """The job lacks so many slots; replaces what was said before."""
        if job_id in self._missing:
            self._missing[job_id] = missing

    def missed(self, job_id: str, count: int) -> None:
        """So many slots of an offer never came to the job."""
        if job_id in self._missing:
            self._missing[job_id] += count

    def give_back(self, job_id: str, taskmanager: str, slot: int) -> None:
        """A job does not need a slot any more; one that is not its own is ignored."""
        slots = self._taskmanagers.get(taskmanager)
        if slots is not None and slots.used.get(slot) == job_id:
            self._free(taskmanager, [slot])

    def bar(self, job_id: str, taskmanager: str) -> None:
        """The TaskManager does not take this job: its slots go to others."""
        self._barred.setdefault(job_id, set()).add(taskmanager)
        slots = self._taskmanagers.get(taskmanager)
        if slots is not None:
            self._free(taskmanager, [slot for slot, owner in slots.used.items() if owner == job_id])

    def unbar(self, job_id: str, taskmanager: str) -> None:
        """The TaskManager may be asked again."""
        self._barred.get(job_id, set()).discard(taskmanager)

    def block(self, job_id: str, taskmanagers: Iterable[str]) -> None:
        """The job wants no more slots of these for now; replaces what was said before. It keeps those it has."""
        if job_id in self._missing:
            self._blocked[job_id] = frozenset(taskmanagers)

    def offers(self) -> list[SlotOffer]:
        """Hands out what is free to those who lack slots; they have them from now on."""
        result = []
        for job_id in [*self._missing]:
            given: dict[str, list[int]] = {}
            for name in self._balanced(job_id) if self._mode is LoadBalanceMode.TASKS else self._chosen(job_id):
                given.setdefault(name, []).append(self._taskmanagers[name].take(job_id))
            result += [SlotOffer(job_id, name, tuple(slots)) for name, slots in given.items()]
        return result

    @property
    def total(self) -> int:
        """All slots there are."""
        return sum(slots.total for slots in self._taskmanagers.values())

    @property
    def free(self) -> int:
        """Those that nobody has."""
        return sum(len(slots.free) for slots in self._taskmanagers.values())

    def missing(self, job_id: str) -> int:
        """How many slots a job waits for."""
        return self._missing.get(job_id, 0)

    def used_of(self, taskmanager: str) -> dict[int, str]:
        """The slots of a TaskManager that are in use, with the job of each."""
        slots = self._taskmanagers.get(taskmanager)
        return {} if slots is None else dict(sorted(slots.used.items()))

    def describe(self) -> str:
        """The slots that there are, in words, for a job that waits."""
        if not self._taskmanagers:
            return "no TaskManager is registered"
        each = ", ".join(f"{name} {slots.total} ({len(slots.free)} free)" for name, slots in self._taskmanagers.items())
        return f"{self.total} slots are there, {self.free} of them free: {each}"

    def _able(self, job_id: str) -> dict[str, _Slots]:
        """The TaskManagers that may serve a job, in the order in which they registered."""
        barred = self._barred.get(job_id, frozenset()) | self._blocked.get(job_id, frozenset())
        return {name: slots for name, slots in self._taskmanagers.items() if name not in barred}

    def _chosen(self, job_id: str) -> Iterator[str]:
        """The TaskManager of one slot after the other, which is taken before the next is asked for."""
        while self._missing[job_id]:
            able = [(name, slots) for name, slots in self._able(job_id).items() if slots.free]
            if not able:
                return
            self._missing[job_id] -= 1
            if self._mode is LoadBalanceMode.NONE:
                yield able[0][0]
            else:
                yield min(able, key=lambda item: len(item[1].used) / item[1].total)[0]

    def _balanced(self, job_id: str) -> list[str]:
        """The TaskManager of each slot that balances a job's tasks, as its scheduler would if it saw all free ones."""
        able = self._able(job_id)
        if not self._missing[job_id] or not any(entry.free for entry in able.values()):
            return []
        demand = self._demand_of(job_id)
        if demand is None:
            return []
        # What the job has and no task uses yet may be on its way, so only how many is known, and they come first.
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
    """How many slots a job takes when all of it runs, by slot sharing group, in words."""
    needed: dict[str, int] = {}
    for vertex in job.vertices:
        name = job.slot_sharing_groups[vertex.slot_sharing_group].name
        needed[name] = max(needed.get(name, 0), vertex.parallelism)
    groups = ", ".join(f"{count} of group {name}" for name, count in needed.items())
    return f"all of it takes {sum(needed.values())} slots ({groups})"
