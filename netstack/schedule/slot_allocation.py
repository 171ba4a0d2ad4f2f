"""Slots for bulks of subtasks: a bulk is deployed when every subtask of it has its share of a slot, and not before.

Takes: bulks, slots that TaskManagers offer and lose, subtasks that have ended, and the time. Gives: bulks that are
complete, subtasks whose slot is lost or never came.

Rules: which subtasks share a slot is the business of `shared_slots`, which slot a group gets that of `slot_pool`; here
subtasks are numbers of the topology. A subtask waits in at most one bulk; one that is withdrawn no longer holds up the
others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import numpy as np

from .arrays import Batches, GrowingArray, IndexArray, index_array
from .job_graph import JobGraph
from .shared_slots import LogicalSlot, SharedSlots, Subtask
from .slot_pool import SlotPool
from .slot_sharing import ExecutionSlotSharingGroups
from .slots import PhysicalSlot, SlotMatch, SlotRequest
from .topology import Topology

_NO_BULK = -1


@final
class SlotAllocation:
    """The slots of one job's subtasks.

    Args:
        job: the job.
        topology: its subtasks.
        groups: which of them share a slot.
        pool: the slots there are; nobody else calls it.
    """

    def __init__(self, job: JobGraph, topology: Topology, groups: ExecutionSlotSharingGroups, pool: SlotPool) -> None:
        self._topology = topology
        self._shared = SharedSlots(job, groups)
        self._pool = pool
        self._slots_of_taskmanager: dict[str, set[PhysicalSlot]] = {}
        self._bulk_of = GrowingArray(np.int64)
        self._slots: list[PhysicalSlot | None] = []
        self._members: dict[int, IndexArray] = {}
        self._missing: dict[int, int] = {}
        self._complete: list[int] = []
        self._next_bulk = 0
        self._grow()

    def extend(self, groups: ExecutionSlotSharingGroups) -> None:
        """The topology has more subtasks; groups there were have kept their numbers."""
        self._shared.extend(groups)
        self._grow()

    def _grow(self) -> None:
        added = self._topology.subtask_count - len(self._slots)
        self._bulk_of.extend_with(_NO_BULK, added)
        self._slots += [None] * added

    def open(self, bulks: Batches) -> None:
        """New bulks; `request` is called for all of their subtasks, in any number of calls."""
        numbers = range(self._next_bulk, self._next_bulk + len(bulks))
        self._next_bulk = numbers.stop
        sizes = np.diff(bulks.offsets)
        self._bulk_of.view[bulks.subtasks] = np.repeat(np.arange(numbers.start, numbers.stop), sizes)
        self._members.update(zip(numbers, bulks, strict=True))
        self._missing.update(zip(numbers, sizes.tolist(), strict=True))

    def request(self, subtasks: IndexArray, now_s: float) -> None:
        """Asks for the slots of subtasks of opened bulks; those withdrawn meanwhile are skipped."""
        waiting = subtasks[self._bulk_of.view[subtasks] != _NO_BULK]
        given, requests = self._shared.allocate(self._as_pairs(waiting))
        self._give(given)
        self._match(self._pool.request(requests, now_s), now_s)

    def offer(self, taskmanager: str, slots: Iterable[PhysicalSlot], now_s: float) -> None:
        """A TaskManager has these slots for the job; those that the job has already are skipped."""
        known = self._slots_of_taskmanager.setdefault(taskmanager, set())
        new = [slot for slot in slots if slot not in known]
        known.update(new)
        self._match(self._pool.offer(new, now_s), now_s)

    def withdraw(self, subtasks: IndexArray) -> None:
        """Subtasks do not wait any more; their bulks go on without them. Their shares are released apart."""
        for subtask, bulk in zip(subtasks.tolist(), self._bulk_of.view[subtasks].tolist(), strict=True):
            if bulk != _NO_BULK and bulk in self._missing and self._slots[subtask] is None:
                self._count(bulk)
        self._bulk_of.view[subtasks] = _NO_BULK

    def release(self, subtasks: IndexArray, now_s: float) -> None:
        """Subtasks give their shares back; those without one are skipped."""
        unwanted = []
        for subtask, pair in zip(subtasks.tolist(), self._as_pairs(subtasks), strict=True):
            self._slots[subtask] = None
            last = self._shared.release(pair)
            if isinstance(last, PhysicalSlot):
                self._match(self._pool.release(last, now_s), now_s)
            elif last is not None:
                unwanted.append(last)
        self._pool.cancel(unwanted, now_s)

    def lose_taskmanager(self, taskmanager: str) -> IndexArray:
        """All slots of a TaskManager are gone; returns the subtasks that had a share of one, ascending."""
        return self._lose(self._pool.lose(self._slots_of_taskmanager.pop(taskmanager, ())))

    def timed_out(self, now_s: float) -> IndexArray:
        """Gives up requests that waited too long; returns the subtasks that waited for them, ascending."""
        return self._lose(self._pool.timed_out(now_s))

    def advance(self, now_s: float) -> None:
        """Matches what can be matched by now."""
        self._match(self._pool.advance(now_s), now_s)

    def idle(self, now_s: float) -> list[PhysicalSlot]:
        """Takes slots out that nobody wants; they may be offered again."""
        unwanted = self._pool.idle(now_s)
        for slot in unwanted:
            self._slots_of_taskmanager[slot.location.taskmanager].discard(slot)
        return unwanted

    def next_deadline_s(self) -> float | None:
        """When `advance`, `timed_out` or `idle` may have something to say."""
        return self._pool.next_deadline_s()

    @property
    def missing(self) -> int:
        """How many slots are asked for and not there."""
        return len(self._pool.pending)

    def slot_of(self, subtask: int) -> PhysicalSlot | None:
        """The slot that a subtask has a share of."""
        return self._slots[subtask]

    def take_complete(self) -> list[IndexArray]:
        """The subtasks of every bulk that became complete since the last call; withdrawn ones are not among them."""
        taken = []
        for bulk in self._complete:
            members = self._members.pop(bulk)
            taken.append(members[self._bulk_of.view[members] == bulk])
            self._bulk_of.view[taken[-1]] = _NO_BULK
        self._complete.clear()
        return taken

    def _match(self, matches: list[SlotMatch], now_s: float) -> None:
        """Hands slots to groups; one that nobody of its group needs any more goes back, and may serve another."""
        while matches:
            match = matches.pop()
            given = self._shared.fulfil(match.request.group, match.slot)
            if given:
                self._give(given)
            else:
                matches += self._pool.release(match.slot, now_s)

    def _give(self, given: Iterable[LogicalSlot]) -> None:
        bulk_of = self._bulk_of.view
        for pair, slot in given:
            subtask = self._topology.subtask(pair.vertex, pair.subtask)
            self._slots[subtask] = slot
            bulk = int(bulk_of[subtask])
            if bulk != _NO_BULK:
                self._count(bulk)

    def _count(self, bulk: int) -> None:
        """One subtask less holds up a bulk."""
        self._missing[bulk] -= 1
        if not self._missing[bulk]:
            del self._missing[bulk]
            self._complete.append(bulk)

    def _lose(self, requests: Iterable[SlotRequest]) -> IndexArray:
        pairs = [pair for request in requests for pair in self._shared.lose(request.group)]
        subtasks = index_array(sorted(self._topology.subtask(pair.vertex, pair.subtask) for pair in pairs))
        self.withdraw(subtasks)
        for subtask in subtasks.tolist():
            self._slots[subtask] = None
        return subtasks

    def _as_pairs(self, subtasks: IndexArray) -> list[Subtask]:
        vertices = self._topology.vertex_of_subtask[subtasks].tolist()
        starts = {vertex: self._topology.subtasks_of(vertex).start for vertex in set(vertices)}
        return [
            Subtask(vertex, subtask - starts[vertex])
            for vertex, subtask in zip(vertices, subtasks.tolist(), strict=True)
        ]
