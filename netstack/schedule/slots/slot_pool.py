"""The slot pool of one job: pending requests and free slots.

Rules:
- In the modes NONE and SLOTS a request takes the best free slot at once, and a new slot serves the first request that
  fits.
- In mode TASKS requests are matched only when they have been stable for a while and there are as many free slots as
  requests. Then all of them are matched, or none.
- The pool has no clock: every call passes the time, and `next_deadline_s` returns when to call `advance` again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import final

from ...base.errors import LocalProtocolError
from ..graph.job_graph import ResourceProfile
from .slot_matching import FreeSlots, can_serve, choose_request, map_resources, match_balanced
from .slots import LoadBalanceMode, PhysicalSlot, SlotDemand, SlotMatch, SlotRequest


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPoolSettings:
    """Timeouts of a slot pool.

    Attributes:
        max_interval_s: in mode TASKS, how long requests must be stable before they are matched.
        idle_timeout_s: an idle slot is returned after this time.
        request_timeout_s: an unserved request fails after this time.
        waits_for_running: whether a bulk may wait for slots that other bulks of the job hold: the timeout then counts
            only while the bulk could not be served even if those were free. None: True for a job with blocking or
            hybrid results, which never holds all slots at once.
    """

    max_interval_s: float = 0.02
    idle_timeout_s: float = 50.0
    request_timeout_s: float = 300.0
    waits_for_running: bool | None = None


@final
class SlotPool:
    """The slots of one job."""

    def __init__(
        self, mode: LoadBalanceMode = LoadBalanceMode.NONE, settings: SlotPoolSettings = SlotPoolSettings()
    ) -> None:
        self._mode = mode
        self._settings = settings
        self._pending: dict[int, SlotRequest] = {}
        self._since_s: dict[int, float] = {}
        self._changed_s = 0.0
        self._free = FreeSlots()
        self._free_since_s: dict[PhysicalSlot, float] = {}
        self._held: dict[PhysicalSlot, SlotRequest] = {}
        self._profiles: Counter[ResourceProfile] = Counter()
        self._slots_of: dict[str, int] = {}
        self._held_of: dict[str, int] = {}
        self._tasks_of: dict[str, int] = {}

    @property
    def pending(self) -> tuple[SlotRequest, ...]:
        """Requests without a slot, in the order in which they were made."""
        return tuple(self._pending.values())

    def demand(self, spare: int = 0) -> SlotDemand:
        """What the pool waits for and what it has.

        Args:
            spare: number of requests of one task that wait elsewhere.
        """
        loads = (*(request.load for request in self._pending.values()), *[1] * spare)
        return SlotDemand(loads, self._held_of, self._tasks_of)

    @property
    def free(self) -> int:
        """Number of free slots."""
        return len(self._free)

    def request(self, requests: Iterable[SlotRequest], now_s: float) -> list[SlotMatch]:
        """Adds requests; returns those that are matched at once.

        Raises:
            LocalProtocolError: a group already has a pending request.
        """
        added = list(requests)
        for request in added:
            if request.group in self._pending:
                raise LocalProtocolError(f"group {request.group} already waits for a slot; cancel that request first")
            self._pending[request.group] = request
            self._since_s[request.group] = now_s
        self._changed_s = now_s
        if self._mode is LoadBalanceMode.TASKS:
            return self.advance(now_s)
        matches = []
        for request in added:
            slot = self._free.choose(request, self._mode)
            if slot is not None:
                matches.append(self._match(request, slot))
        return matches

    def cancel(self, groups: Iterable[int], now_s: float) -> None:
        """Removes pending requests; unknown groups are ignored."""
        for group in groups:
            if self._pending.pop(group, None) is not None:
                del self._since_s[group]
                self._changed_s = now_s

    def offer(self, slots: Iterable[PhysicalSlot], now_s: float) -> list[SlotMatch]:
        """Adds slots."""
        matches = []
        for slot in slots:
            taskmanager = slot.location.taskmanager
            self._slots_of[taskmanager] = self._slots_of.get(taskmanager, 0) + 1
            self._profiles[slot.profile] += 1
            matches += self._add_free(slot, now_s)
        return matches + self.advance(now_s)

    def release(self, slot: PhysicalSlot, now_s: float) -> list[SlotMatch]:
        """Frees a slot that a group held. Raises LocalProtocolError if no group holds it."""
        self._forget_held(slot)
        self._changed_s = now_s
        return self._add_free(slot, now_s) + self.advance(now_s)

    def take_spare(self, request: SlotRequest, avoided: Container[str]) -> PhysicalSlot | None:
        """Serves a request that never waits: with a free slot on the least loaded TaskManager that is not avoided."""
        fitting = [
            slot
            for slot in self._free
            if slot.location.taskmanager not in avoided and can_serve(slot.profile, request.profile)
        ]
        if not fitting:
            return None
        slot = min(fitting, key=lambda slot: self._held_of.get(slot.location.taskmanager, 0))
        self._pending[request.group], self._since_s[request.group] = request, 0.0
        self._take([SlotMatch(request, slot)])
        return slot

    def free_of(self, taskmanagers: Container[str]) -> list[PhysicalSlot]:
        """The free slots of some TaskManagers."""
        return [slot for slot in self._free if slot.location.taskmanager in taskmanagers]

    def lose(self, slots: Iterable[PhysicalSlot]) -> list[SlotRequest]:
        """Removes slots, free or held; returns the requests that held them. Unknown slots are ignored."""
        failed = []
        for slot in slots:
            if slot in self._held:
                failed.append(self._forget_held(slot))
            elif self._free.remove(slot):
                del self._free_since_s[slot]
            else:
                continue
            self._slots_of[slot.location.taskmanager] -= 1
            self._profiles[slot.profile] -= 1
            if not self._profiles[slot.profile]:
                del self._profiles[slot.profile]
            self._update_load(slot.location.taskmanager)
        return failed

    def advance(self, now_s: float) -> list[SlotMatch]:
        """Matches requests in mode TASKS, if they are stable."""
        is_stable = now_s - self._changed_s >= self._settings.max_interval_s
        if self._mode is not LoadBalanceMode.TASKS or not is_stable or not 0 < len(self._pending) <= len(self._free):
            return []
        matches = match_balanced(tuple(self._pending.values()), tuple(self._free), self._tasks_of)
        self._take(matches)
        return matches

    def timed_out(self, now_s: float, may_wait: Iterable[int] = ()) -> list[SlotRequest]:
        """Removes and returns requests that waited too long.

        Args:
            now_s: the time.
            may_wait: groups whose waiting time starts anew, if they wait.
        """
        for group in may_wait:
            if self._since_s.pop(group, None) is not None:
                self._since_s[group] = now_s
        limit_s = now_s - self._settings.request_timeout_s
        late = [self._pending[group] for group, since_s in self._since_s.items() if since_s <= limit_s]
        self.cancel([request.group for request in late], now_s)
        return late

    def could_serve(self, waiting: Iterable[int], holding: Iterable[PhysicalSlot] = ()) -> bool:
        """Whether waiting groups could have slots if all slots were free except the held ones given here."""
        profiles = [self._pending[group].profile for group in waiting if group in self._pending]
        others = self._profiles - Counter(slot.profile for slot in holding)
        return not profiles or map_resources(profiles, others) is not None

    @property
    def matches_all_or_none(self) -> bool:
        """Whether all pending requests are served together, as in mode TASKS."""
        return self._mode is LoadBalanceMode.TASKS

    def interchangeable_slots(self) -> int | None:
        """How many requests could be served at once, if all are interchangeable; None if they are not."""
        if len(self._profiles) > 1:
            return None
        wanted = {id(request.profile): request.profile for request in self._pending.values()}
        if all(can_serve(profile, one) for profile in self._profiles for one in wanted.values()):
            return self._profiles.total()
        return None

    def idle(self, now_s: float) -> list[PhysicalSlot]:
        """Removes and returns slots that have been idle too long."""
        limit_s = now_s - self._settings.idle_timeout_s
        unwanted = [slot for slot, since_s in self._free_since_s.items() if since_s <= limit_s]
        self.lose(unwanted)
        return unwanted

    def next_deadline_s(self) -> float | None:
        """When to call `advance`, `timed_out` and `idle` next; None: not before the next event."""
        # Both dictionaries are in order of time, so the first entry is the oldest.
        deadlines = [since_s + self._settings.request_timeout_s for since_s in islice(self._since_s.values(), 1)]
        deadlines += [since_s + self._settings.idle_timeout_s for since_s in islice(self._free_since_s.values(), 1)]
        if self._mode is LoadBalanceMode.TASKS and 0 < len(self._pending) <= len(self._free):
            deadlines.append(self._changed_s + self._settings.max_interval_s)
        return min(deadlines, default=None)

    def _add_free(self, slot: PhysicalSlot, now_s: float) -> list[SlotMatch]:
        self._free.add(slot)
        self._free_since_s[slot] = now_s
        self._update_load(slot.location.taskmanager)
        if self._mode is LoadBalanceMode.TASKS:
            return []
        request = choose_request(slot, self._pending.values())
        return [] if request is None else [self._match(request, slot)]

    def _match(self, request: SlotRequest, slot: PhysicalSlot) -> SlotMatch:
        match = SlotMatch(request, slot)
        self._take([match])
        return match

    def _take(self, matches: Sequence[SlotMatch]) -> None:
        """Moves matched requests and slots from pending and free to held."""
        for request, slot in matches:
            self._free.remove(slot)
            del self._free_since_s[slot]
            del self._pending[request.group]
            del self._since_s[request.group]
            self._held[slot] = request
            taskmanager = slot.location.taskmanager
            self._held_of[taskmanager] = self._held_of.get(taskmanager, 0) + 1
            self._tasks_of[taskmanager] = self._tasks_of.get(taskmanager, 0) + request.load
            self._update_load(taskmanager)

    def _forget_held(self, slot: PhysicalSlot) -> SlotRequest:
        request = self._held.pop(slot, None)
        if request is None:
            raise LocalProtocolError(f"slot {slot.index} of {slot.location.taskmanager} is not held by this job")
        self._held_of[slot.location.taskmanager] -= 1
        self._tasks_of[slot.location.taskmanager] -= request.load
        return request

    def _update_load(self, taskmanager: str) -> None:
        """In mode SLOTS a TaskManager's load is the share of its slots in use."""
        if self._mode is LoadBalanceMode.SLOTS and self._slots_of[taskmanager]:
            self._free.set_load(taskmanager, self._held_of.get(taskmanager, 0) / self._slots_of[taskmanager])
