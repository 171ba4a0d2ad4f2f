"""Slots beside those of slot sharing groups: one for each second attempt of a subtask.

Takes: who wants one, and where not; TaskManagers that are lost. Gives: who has which.

Rules: whoever belongs to a group goes first, so nobody is served here while a request of the pool waits. Attempts of
one subtask are on different TaskManagers. One that waits has no deadline: it is there to save time, and is withdrawn
when that is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias, final

from ..graph.job_graph import ResourceProfile
from .slot_pool import SlotPool
from .slots import PhysicalSlot, SlotRequest

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
