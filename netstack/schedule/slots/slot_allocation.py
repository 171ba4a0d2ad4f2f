"""Slots for bulks of subtasks: a bulk is deployed when each of its subtasks has its slot, and not before.

Rules:
- `shared_slots` decides which subtasks share a slot, `slot_pool` which slot a group gets. A subtask waits in at most
  one bulk; a withdrawn one no longer delays the others. Slots of blocked TaskManagers are given back instead of used.
- A speculative attempt has a spare slot, on another TaskManager than the other attempts. When it becomes the only
  attempt, the subtask keeps that slot instead of a logical one. Spare slots are served last, while the pool has no
  pending request, and have no deadline.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias, final

import numpy as np

from ..graph.job_graph import ResourceProfile
from ..structures import NOTHING, Batches, GrowingArray, IndexArray, distinct, index_array, tally
from ..topology.execution_graph import ExecutionGraph
from .shared_slots import SharedSlots
from .slot_pool import SlotPool
from .slot_sharing import ExecutionSlotSharingGroups
from .slots import PhysicalSlot, SlotDemand, SlotMatch, SlotRequest

SpareKey: TypeAlias = tuple[int, int]
"""The owner of a spare slot: subtask and attempt."""

NO_GROUP: Final = -1
"""The group number in requests for spare slots."""
_NONE: Final[frozenset[str]] = frozenset()


@final
class SpareSlots:
    """The spare slots of one job."""

    def __init__(self, pool: SlotPool) -> None:
        self._pool = pool
        self._waiting: dict[SpareKey, tuple[ResourceProfile, frozenset[str]]] = {}
        self._held: dict[SpareKey, PhysicalSlot] = {}
        self._granted: list[SpareKey] = []

    @property
    def waiting(self) -> int:
        """Number of requests without a slot."""
        return len(self._waiting)

    def request(self, key: SpareKey, profile: ResourceProfile, avoided: Iterable[str]) -> None:
        """Requests a slot for an attempt, on none of these TaskManagers."""
        self._waiting[key] = profile, frozenset(avoided)

    def serve(self) -> None:
        """Hands out free slots, if no other request waits."""
        if not self._waiting or self._pool.pending:
            return
        for key, (profile, avoided) in [*self._waiting.items()]:
            beside = {slot.location.taskmanager for (subtask, _), slot in self._held.items() if subtask == key[0]}
            slot = self._pool.take_spare(SlotRequest(NO_GROUP, profile), avoided | beside)
            if slot is not None:
                del self._waiting[key]
                self._held[key] = slot
                self._granted.append(key)

    def avoided_by_all(self) -> frozenset[str]:
        """TaskManagers whose slots can serve none of the waiting requests."""
        return frozenset.intersection(*(avoided for _, avoided in self._waiting.values())) if self._waiting else _NONE

    def take_granted(self) -> list[tuple[SpareKey, PhysicalSlot]]:
        """Attempts that got a slot since the last call and still have it."""
        granted, self._granted = self._granted, []
        return [(key, self._held[key]) for key in granted if key in self._held]

    def slot_of(self, key: SpareKey) -> PhysicalSlot:
        """The slot of an attempt."""
        return self._held[key]

    def release(self, key: SpareKey) -> PhysicalSlot | None:
        """Removes an attempt's request or slot; returns the slot, which goes back to the pool."""
        self._waiting.pop(key, None)
        return self._held.pop(key, None)

    def lose(self, taskmanager: str) -> list[SpareKey]:
        """Removes the slots of a lost TaskManager; returns the attempts that had one."""
        lost = [key for key, slot in self._held.items() if slot.location.taskmanager == taskmanager]
        for key in lost:
            del self._held[key]
        return lost


_NO_BULK = -1


@final
class SlotAllocation:
    """The slots of one job's subtasks.

    Args:
        pool: the slots of the job; only this class calls it.
        waits_for_running: whether bulks may wait for slots that other bulks hold.
    """

    def __init__(
        self,
        topology: ExecutionGraph,
        groups: ExecutionSlotSharingGroups,
        pool: SlotPool,
        *,
        waits_for_running: bool = False,
    ) -> None:
        self._waits_for_running = waits_for_running
        self._topology = topology
        self._shared = SharedSlots(topology, groups)
        self._pool = pool
        self._slots_of_taskmanager: dict[str, set[PhysicalSlot]] = {}
        self._bulk_of = GrowingArray(np.int64)
        self._members: dict[int, IndexArray] = {}
        self._missing: dict[int, int] = {}
        self._complete: list[int] = []
        self._next_bulk = 0
        self._matched = 0
        self._spare = SpareSlots(pool)
        self._own: dict[int, SpareKey] = {}  # subtasks that have a spare slot instead of a share
        self._blocked: frozenset[str] = frozenset()
        self._unwanted: list[PhysicalSlot] = []
        self._grow()

    def extend(self, groups: ExecutionSlotSharingGroups) -> None:
        """Extends it to a topology that has grown; existing groups keep their numbers."""
        self._shared.extend(groups)
        self._grow()

    def _grow(self) -> None:
        self._bulk_of.extend_with(_NO_BULK, self._topology.subtask_count - len(self._bulk_of))

    def open(self, bulks: Batches) -> None:
        """Opens bulks; `request` is called for all of their subtasks afterwards, in any number of calls."""
        numbers = range(self._next_bulk, self._next_bulk + len(bulks))
        self._next_bulk = numbers.stop
        sizes = np.diff(bulks.offsets)
        self._bulk_of.view[bulks.subtasks] = np.repeat(np.arange(numbers.start, numbers.stop), sizes)
        self._members.update(zip(numbers, bulks, strict=True))
        self._missing.update(zip(numbers, sizes.tolist(), strict=True))

    def request(self, subtasks: IndexArray, now_s: float) -> None:
        """Requests the slots of subtasks of open bulks; withdrawn ones are skipped."""
        given, requests = self._shared.allocate(subtasks[self._bulk_of.view[subtasks] != _NO_BULK])
        self._count(given)
        self._match(self._pool.request(requests, now_s), now_s)

    def offer(self, taskmanager: str, slots: Iterable[PhysicalSlot], now_s: float) -> None:
        """Adds slots that a TaskManager offers; known ones are skipped."""
        known = self._slots_of_taskmanager.setdefault(taskmanager, set())
        new = [slot for slot in slots if slot not in known]
        if taskmanager in self._blocked:
            self._unwanted += new
            return
        known.update(new)
        self._match(self._pool.offer(new, now_s), now_s)

    def withdraw(self, subtasks: IndexArray) -> None:
        """Removes subtasks from their bulks, which no longer wait for them. Release their slots separately."""
        self._count(subtasks[~self._shared.have_slots(subtasks)])
        self._bulk_of.view[subtasks] = _NO_BULK

    def release(self, subtasks: IndexArray, now_s: float) -> None:
        """Returns the slots of subtasks; those without one are skipped."""
        free, unwanted = self._shared.release(subtasks)
        self._pool.cancel(unwanted, now_s)
        if self._own:
            free += self._release_own(subtasks)
        for slot in free:
            self._match(self._put_back(slot, now_s), now_s)
        self._spare.serve()

    def lose_taskmanager(self, taskmanager: str) -> tuple[IndexArray, list[SpareKey]]:
        """Removes all slots of a TaskManager.

        Returns:
            The subtasks that used one, ascending; the attempts that had a spare one.
        """
        subtasks = self._lose(self._pool.lose(self._slots_of_taskmanager.pop(taskmanager, ())))
        spare = self._spare.lose(taskmanager)
        own = [subtask for subtask, key in self._own.items() if key in spare]
        spare = [key for key in spare if self._own.get(key[0]) != key]
        for subtask in own:
            del self._own[subtask]
        return np.union1d(subtasks, index_array(own)).astype(np.int32), spare

    def timed_out(self, now_s: float) -> IndexArray:
        """Drops requests that waited too long; returns the subtasks that waited for them, ascending."""
        may_wait = self._groups_that_may_wait() if self._waits_for_running and self._missing else ()
        return self._lose(self._pool.timed_out(now_s, may_wait))

    def advance(self, now_s: float) -> None:
        """Matches requests that have been stable long enough (mode TASKS)."""
        self._match(self._pool.advance(now_s), now_s)

    def idle(self, now_s: float) -> list[PhysicalSlot]:
        """Removes slots that have been idle too long; they may be offered again."""
        unwanted = self._pool.idle(now_s)
        for slot in unwanted:
            self._slots_of_taskmanager[slot.location.taskmanager].discard(slot)
        return unwanted

    def block(self, taskmanagers: Iterable[str]) -> None:
        """Blocks these TaskManagers, and no others: new tasks get no slots of theirs."""
        self._blocked = frozenset(taskmanagers)
        self._give_back(self._pool.free_of(self._blocked))

    def take_unwanted(self) -> list[PhysicalSlot]:
        """Free slots of blocked TaskManagers since the last call: to be given back."""
        unwanted, self._unwanted = self._unwanted, []
        return unwanted

    def request_spare(self, key: SpareKey, profile: ResourceProfile, avoided: Iterable[str]) -> None:
        """Requests a slot for a speculative attempt, on none of these TaskManagers; `take_spare` returns it."""
        self._spare.request(key, profile, avoided)
        self._spare.serve()

    def avoided_by_spare(self) -> frozenset[str]:
        """TaskManagers that none of the waiting speculative attempts may use."""
        return self._spare.avoided_by_all()

    def take_spare(self) -> list[tuple[SpareKey, PhysicalSlot]]:
        """Attempts that got a spare slot since the last call."""
        return self._spare.take_granted()

    def release_spare(self, key: SpareKey, now_s: float) -> None:
        """Returns the spare slot of an attempt that has ended or no longer waits."""
        slot = self._spare.release(key)
        if slot is not None:
            self._match(self._put_back(slot, now_s), now_s)
            self._spare.serve()

    def adopt(self, key: SpareKey, now_s: float) -> None:
        """Makes an attempt's spare slot the slot of its subtask; returns the subtask's previous slot."""
        subtask = index_array([key[0]])
        self.release(subtask, now_s)
        self._own[key[0]] = key

    def disown(self, subtask: int) -> SpareKey | None:
        """Makes the current attempt a mere speculative one again; returns None if it has a logical slot."""
        return self._own.pop(subtask, None)

    def next_deadline_s(self) -> float | None:
        """When to call `advance`, `timed_out` and `idle` again."""
        return self._pool.next_deadline_s()

    @property
    def missing(self) -> int:
        """Number of slots that are requested and not there."""
        return len(self._pool.pending) + self._spare.waiting

    def demand(self) -> SlotDemand:
        """What is requested and not there, and what is there."""
        return self._pool.demand(self._spare.waiting)

    @property
    def is_waited_for(self) -> bool:
        """Whether subtasks wait for slots; speculative attempts do not count."""
        return bool(self._pool.pending)

    def slots_of(self, subtasks: IndexArray) -> list[PhysicalSlot]:
        """The slot of each subtask, logical or its own. Raises LocalProtocolError if one of them has none."""
        if self._own:
            return [self._slot_of(subtask) for subtask in subtasks.tolist()]
        return self._shared.slots_of(subtasks)

    def _slot_of(self, subtask: int) -> PhysicalSlot:
        key = self._own.get(subtask)
        return self._shared.slots_of(index_array([subtask]))[0] if key is None else self._spare.slot_of(key)

    def _release_own(self, subtasks: IndexArray) -> list[PhysicalSlot]:
        keys = [key for subtask in subtasks.tolist() if (key := self._own.pop(subtask, None)) is not None]
        return [slot for key in keys if (slot := self._spare.release(key)) is not None]

    def _put_back(self, slot: PhysicalSlot, now_s: float) -> list[SlotMatch]:
        """Frees a slot for other requests, or gives it back if its TaskManager is blocked."""
        if slot.location.taskmanager in self._blocked:
            self._give_back([slot])
            return []
        return self._pool.release(slot, now_s)

    def _give_back(self, slots: list[PhysicalSlot]) -> None:
        self._pool.lose(slots)
        for slot in slots:
            self._slots_of_taskmanager[slot.location.taskmanager].discard(slot)
        self._unwanted += slots

    def take_complete(self) -> IndexArray:
        """The subtasks of bulks that became complete since the last call, ascending; without withdrawn ones."""
        if not self._complete:
            return NOTHING
        members = [self._members.pop(bulk) for bulk in self._complete]
        complete = zip(members, self._complete, strict=True)
        taken = distinct(np.concatenate([each[self._bulk_of.view[each] == bulk] for each, bulk in complete]))
        self._bulk_of.view[taken] = _NO_BULK
        self._complete.clear()
        return taken

    def take_matched(self) -> int:
        """Number of slots handed out since the last call."""
        matched, self._matched = self._matched, 0
        return matched

    def _match(self, matches: list[SlotMatch], now_s: float) -> None:
        """Gives slots to groups; a slot that its group no longer needs may serve another."""
        while matches:
            self._matched += len(matches)
            given, unwanted = self._shared.fulfil(matches)
            self._count(given)
            matches = [match for slot in unwanted for match in self._put_back(slot, now_s)]
        self._spare.serve()

    def _count(self, subtasks: IndexArray) -> None:
        """Counts subtasks that no longer delay their bulks."""
        for bulk, count in tally(self._bulk_of.view[subtasks]):
            if bulk not in self._missing:
                continue
            self._missing[bulk] -= count
            if not self._missing[bulk]:
                del self._missing[bulk]
                self._complete.append(bulk)

    def _groups_that_may_wait(self) -> list[int]:
        """Groups of bulks that can be served when other bulks return their slots."""
        if self._pool.matches_all_or_none:
            pending = [request.group for request in self._pool.pending]
            return pending if self._pool.could_serve(pending) else []
        numbers = np.fromiter(self._missing, np.int64, len(self._missing))
        members = np.concatenate([self._members[bulk] for bulk in self._missing])
        bulks = self._bulk_of.view[members]
        is_in = np.isin(bulks, numbers)
        pairs = np.unique(np.stack((bulks[is_in], self._shared.groups_of(members[is_in]))), axis=1)
        waiting, first, sizes = np.unique(pairs[0], return_index=True, return_counts=True)
        most = self._pool.interchangeable_slots()
        if most is not None:
            fits = sizes <= most
        else:
            cuts = np.split(pairs[1], first[1:])
            fits = np.fromiter((self._could_be_served(groups.tolist()) for groups in cuts), np.bool_, waiting.size)
        is_stuck = np.repeat(~fits, sizes)
        may_wait: list[int] = np.setdiff1d(pairs[1][~is_stuck], pairs[1][is_stuck]).tolist()
        return may_wait

    def _could_be_served(self, groups: list[int]) -> bool:
        """Whether all groups of a bulk could have slots at once, including those that they hold."""
        holding = [slot for group in groups if (slot := self._shared.slot_of_group(group)) is not None]
        return self._pool.could_serve(groups, holding)

    def _lose(self, requests: Iterable[SlotRequest]) -> IndexArray:
        groups = index_array([request.group for request in requests if request.group != NO_GROUP])
        subtasks = np.sort(self._shared.sharing(groups))
        self.withdraw(subtasks)
        self._shared.lose(groups)
        return subtasks
