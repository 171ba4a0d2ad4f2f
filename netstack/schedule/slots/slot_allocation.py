"""Slots for bulks of subtasks: a bulk is deployed when every subtask of it has its share of a slot, and not before.

Takes: bulks, slots that TaskManagers offer and lose, subtasks that have ended, and the time. Gives: bulks that are
complete, subtasks whose slot is lost or never came.

Rules:
- Which subtasks share a slot is the business of `shared_slots`, which slot a group gets that of `slot_pool`; here
  subtasks are numbers of the topology. A subtask waits in at most one bulk; one that is withdrawn no longer holds up
  the others. Nothing new gets a slot of a blocked TaskManager: those are given back.
- A second attempt of a subtask has a spare slot, on another TaskManager than the first; when it becomes the only one,
  the subtask keeps that slot instead of a share. Spare slots are served last, while no request of the pool waits, and
  have no deadline.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias, final

import numpy as np

from ..graph.job_graph import ResourceProfile
from ..structures.arrays import NOTHING, Batches, GrowingArray, IndexArray, index_array
from ..topology.topology import Topology
from .shared_slots import SharedSlots
from .slot_pool import SlotPool
from .slot_sharing import ExecutionSlotSharingGroups
from .slots import PhysicalSlot, SlotMatch, SlotRequest, SlotWish

SpareKey: TypeAlias = tuple[int, int]
"""Who has a spare slot: subtask and attempt."""

NO_GROUP: Final = -1
"""The group of the requests of all of them."""
_NONE: Final[frozenset[str]] = frozenset()


@final
class SpareSlots:
    """The spare slots of one job.

    Args:
        pool: where they come from.
    """

    def __init__(self, pool: SlotPool) -> None:
        self._pool = pool
        self._waiting: dict[SpareKey, tuple[ResourceProfile, frozenset[str]]] = {}
        self._held: dict[SpareKey, PhysicalSlot] = {}
        self._given: list[SpareKey] = []

    @property
    def waiting(self) -> int:
        """How many are asked for and not there."""
        return len(self._waiting)

    def ask(self, key: SpareKey, profile: ResourceProfile, avoided: Iterable[str]) -> None:
        """An attempt wants a slot, on none of these TaskManagers."""
        self._waiting[key] = profile, frozenset(avoided)

    def serve(self) -> None:
        """Hands out what is free and nobody else waits for."""
        if not self._waiting or self._pool.pending:
            return
        for key, (profile, avoided) in [*self._waiting.items()]:
            beside = {slot.location.taskmanager for (subtask, _), slot in self._held.items() if subtask == key[0]}
            slot = self._pool.take_spare(SlotRequest(NO_GROUP, profile), avoided | beside)
            if slot is not None:
                del self._waiting[key]
                self._held[key] = slot
                self._given.append(key)

    def avoided_by_all(self) -> frozenset[str]:
        """TaskManagers whose slots would serve none of those who wait."""
        return frozenset.intersection(*(avoided for _, avoided in self._waiting.values())) if self._waiting else _NONE

    def take_given(self) -> list[tuple[SpareKey, PhysicalSlot]]:
        """Who has got a slot since the last call, and has it still."""
        given, self._given = self._given, []
        return [(key, self._held[key]) for key in given if key in self._held]

    def slot_of(self, key: SpareKey) -> PhysicalSlot:
        """The slot that an attempt has."""
        return self._held[key]

    def release(self, key: SpareKey) -> PhysicalSlot | None:
        """An attempt has ended, or does not wait any more: its slot, which goes back to the pool, if it has one."""
        self._waiting.pop(key, None)
        return self._held.pop(key, None)

    def lose(self, taskmanager: str) -> list[SpareKey]:
        """The slots of a TaskManager are gone; returns who had one."""
        lost = [key for key, slot in self._held.items() if slot.location.taskmanager == taskmanager]
        for key in lost:
            del self._held[key]
        return lost


_NO_BULK = -1


@final
class SlotAllocation:
    """The slots of one job's subtasks.

    Args:
        topology: the subtasks.
        groups: which of them share a slot.
        pool: the slots there are; nobody else calls it.
        waits_for_running: whether bulks may wait for slots that others hold.
    """

    def __init__(
        self,
        topology: Topology,
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
        """The topology has more subtasks; groups there were have kept their numbers."""
        self._shared.extend(groups)
        self._grow()

    def _grow(self) -> None:
        self._bulk_of.extend_with(_NO_BULK, self._topology.subtask_count - len(self._bulk_of))

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
        given, requests = self._shared.allocate(subtasks[self._bulk_of.view[subtasks] != _NO_BULK])
        self._count(given)
        self._match(self._pool.request(requests, now_s), now_s)

    def offer(self, taskmanager: str, slots: Iterable[PhysicalSlot], now_s: float) -> None:
        """A TaskManager has these slots for the job; those that the job has already are skipped."""
        known = self._slots_of_taskmanager.setdefault(taskmanager, set())
        new = [slot for slot in slots if slot not in known]
        if taskmanager in self._blocked:
            self._unwanted += new
            return
        known.update(new)
        self._match(self._pool.offer(new, now_s), now_s)

    def withdraw(self, subtasks: IndexArray) -> None:
        """Subtasks do not wait any more; their bulks go on without them. Their shares are released apart."""
        self._count(subtasks[~self._shared.have_slots(subtasks)])
        self._bulk_of.view[subtasks] = _NO_BULK

    def release(self, subtasks: IndexArray, now_s: float) -> None:
        """Subtasks give their shares back; those without one are skipped."""
        free, unwanted = self._shared.release(subtasks)
        self._pool.cancel(unwanted, now_s)
        if self._own:
            free += self._release_own(subtasks)
        for slot in free:
            self._match(self._put_back(slot, now_s), now_s)
        self._spare.serve()

    def lose_taskmanager(self, taskmanager: str) -> tuple[IndexArray, list[SpareKey]]:
        """All slots of a TaskManager are gone.

        Returns:
            The subtasks that had a share of one, or one of their own, ascending; the attempts that had a spare one.
        """
        subtasks = self._lose(self._pool.lose(self._slots_of_taskmanager.pop(taskmanager, ())))
        spare = self._spare.lose(taskmanager)
        own = [subtask for subtask, key in self._own.items() if key in spare]
        spare = [key for key in spare if self._own.get(key[0]) != key]
        for subtask in own:
            del self._own[subtask]
        return np.union1d(subtasks, index_array(own)).astype(np.int32), spare

    def timed_out(self, now_s: float) -> IndexArray:
        """Gives up requests that waited too long; returns the subtasks that waited for them, ascending."""
        may_wait = self._that_may_wait() if self._waits_for_running and self._missing else ()
        return self._lose(self._pool.timed_out(now_s, may_wait))

    def advance(self, now_s: float) -> None:
        """Matches what can be matched by now."""
        self._match(self._pool.advance(now_s), now_s)

    def idle(self, now_s: float) -> list[PhysicalSlot]:
        """Takes slots out that nobody wants; they may be offered again."""
        unwanted = self._pool.idle(now_s)
        for slot in unwanted:
            self._slots_of_taskmanager[slot.location.taskmanager].discard(slot)
        return unwanted

    def block(self, taskmanagers: Iterable[str]) -> None:
        """Nothing new gets a slot of these TaskManagers, and of no others; replaces what was said before."""
        self._blocked = frozenset(taskmanagers)
        self._give_back(self._pool.free_of(self._blocked))

    def take_unwanted(self) -> list[PhysicalSlot]:
        """Slots of blocked TaskManagers that were free, or came free, since the last call: to be given back."""
        unwanted, self._unwanted = self._unwanted, []
        return unwanted

    def ask_spare(self, key: SpareKey, profile: ResourceProfile, avoided: Iterable[str]) -> None:
        """A second attempt of a subtask wants a slot, on none of these TaskManagers; `take_spare` says when it has."""
        self._spare.ask(key, profile, avoided)
        self._spare.serve()

    def of_no_use(self) -> frozenset[str]:
        """TaskManagers that none of the second attempts that wait may be on."""
        return self._spare.avoided_by_all()

    def take_spare(self) -> list[tuple[SpareKey, PhysicalSlot]]:
        """Attempts that have got a spare slot since the last call."""
        return self._spare.take_given()

    def release_spare(self, key: SpareKey, now_s: float) -> None:
        """An attempt has ended, or does not wait any more."""
        slot = self._spare.release(key)
        if slot is not None:
            self._match(self._put_back(slot, now_s), now_s)
            self._spare.serve()

    def adopt(self, key: SpareKey, now_s: float) -> None:
        """An attempt with a spare slot is the only one of its subtask now; what the subtask had before goes back."""
        subtask = index_array([key[0]])
        self.release(subtask, now_s)
        self._own[key[0]] = key

    def disown(self, subtask: int) -> SpareKey | None:
        """The subtask's current attempt is no more than a spare one; None if it has a share of its group's slot."""
        return self._own.pop(subtask, None)

    def next_deadline_s(self) -> float | None:
        """When `advance`, `timed_out` or `idle` may have something to say."""
        return self._pool.next_deadline_s()

    @property
    def missing(self) -> int:
        """How many slots are asked for and not there."""
        return len(self._pool.pending) + self._spare.waiting

    def wish(self) -> SlotWish:
        """What is asked for and not there, and what there is."""
        return self._pool.wish(self._spare.waiting)

    @property
    def is_waited_for(self) -> bool:
        """Whether subtasks wait for slots; those of second attempts do not count."""
        return bool(self._pool.pending)

    def slots_of(self, subtasks: IndexArray) -> list[PhysicalSlot]:
        """The slot that each subtask has a share of, or has for itself.

        Raises:
            LocalProtocolError: one of them has none.
        """
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
        """Nobody has a share of a slot any more: it is free for others, or goes where nobody wants it."""
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
        """The subtasks of the bulks that became complete since the last call, ascending, but those withdrawn."""
        if not self._complete:
            return NOTHING
        members = np.unique(np.concatenate([self._members.pop(bulk) for bulk in self._complete]))
        taken = members[np.isin(self._bulk_of.view[members], self._complete)]
        self._bulk_of.view[taken] = _NO_BULK
        self._complete.clear()
        return taken

    def take_matched(self) -> int:
        """How many slots were handed out since the last call."""
        matched, self._matched = self._matched, 0
        return matched

    def _match(self, matches: list[SlotMatch], now_s: float) -> None:
        """Hands slots to groups; one that nobody of its group needs any more goes back, and may serve another."""
        while matches:
            self._matched += len(matches)
            given, unwanted = self._shared.fulfil(matches)
            self._count(given)
            matches = [match for slot in unwanted for match in self._put_back(slot, now_s)]
        self._spare.serve()

    def _count(self, subtasks: IndexArray) -> None:
        """These hold up their bulks no longer, if they are in any."""
        bulks, counts = np.unique(self._bulk_of.view[subtasks], return_counts=True)
        for bulk, count in zip(bulks.tolist(), counts.tolist(), strict=True):
            if bulk not in self._missing:
                continue
            self._missing[bulk] -= count
            if not self._missing[bulk]:
                del self._missing[bulk]
                self._complete.append(bulk)

    def _that_may_wait(self) -> list[int]:
        """Groups of bulks that will be served when others give their slots back."""
        if self._pool.matches_all_or_none:
            everybody = [request.group for request in self._pool.pending]
            return everybody if self._pool.could_serve(everybody) else []
        numbers = np.fromiter(self._missing, np.int64, len(self._missing))
        members = np.concatenate([self._members[bulk] for bulk in self._missing])
        bulks = self._bulk_of.view[members]
        is_in = np.isin(bulks, numbers)
        pairs = np.unique(np.stack((bulks[is_in], self._shared.groups_of(members[is_in]))), axis=1)
        waiting, first, sizes = np.unique(pairs[0], return_index=True, return_counts=True)
        most = self._pool.most_that_any_serves()
        if most is not None:
            fits = sizes <= most
        else:
            cuts = np.split(pairs[1], first[1:])
            fits = np.fromiter((self._could_be_served(groups.tolist()) for groups in cuts), np.bool_, waiting.size)
        is_stuck = np.repeat(~fits, sizes)
        may_wait: list[int] = np.setdiff1d(pairs[1][~is_stuck], pairs[1][is_stuck]).tolist()
        return may_wait

    def _could_be_served(self, groups: list[int]) -> bool:
        """Whether all groups of a bulk could have slots at once: those that they hold, and any others."""
        holding = [slot for group in groups if (slot := self._shared.slot_of_group(group)) is not None]
        return self._pool.could_serve(groups, holding)

    def _lose(self, requests: Iterable[SlotRequest]) -> IndexArray:
        groups = index_array([request.group for request in requests if request.group != NO_GROUP])
        subtasks = np.sort(self._shared.sharing(groups))
        self.withdraw(subtasks)
        self._shared.lose(groups)
        return subtasks
