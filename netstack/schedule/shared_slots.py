"""Logical slots: which subtasks of a group have a share of its slot, and when the slot is asked for and given back.

Takes: execution slot sharing groups; subtasks that need a slot, return it or lose it; slots for groups. Gives: requests
for physical slots, logical slots, and what to release.

Rules:
- A group asks for one slot, whoever of it comes first. It keeps the slot until the last of its logical slots is
  returned. When the slot is lost, every subtask that has a share of it fails.
- A group would like to be where it was last, else where its members' inputs are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, final

from ..errors import LocalProtocolError
from .job_graph import UNKNOWN_PROFILE, JobGraph, ResourceProfile
from .preferred_locations import InputPreferences
from .slot_sharing import ExecutionSlotSharingGroups
from .slots import Location, PhysicalSlot, SlotRequest


class Subtask(NamedTuple):
    """A subtask, by vertex and index."""

    vertex: int
    subtask: int


class LogicalSlot(NamedTuple):
    """A subtask's share of a physical slot."""

    subtask: Subtask
    slot: PhysicalSlot


@final
@dataclass(slots=True)
class _SharedSlot:
    """One group's slot, asked for or there, and who shares it."""

    slot: PhysicalSlot | None = None
    subtasks: dict[Subtask, None] = field(default_factory=dict)


@final
class SharedSlots:
    """The logical slots of a job.

    Args:
        graph: the job.
        groups: which subtasks share a slot.
    """

    def __init__(self, graph: JobGraph, groups: ExecutionSlotSharingGroups) -> None:
        self._graph = graph
        self._shared: dict[int, _SharedSlot] = {}
        self._last: dict[int, Location] = {}
        self._inputs = InputPreferences(graph)
        self._is_anything_declared = any(vertex.profile != UNKNOWN_PROFILE for vertex in graph.vertices)
        self.extend(groups)

    def extend(self, groups: ExecutionSlotSharingGroups) -> None:
        """A dynamic job has more subtasks; groups that there were have kept their numbers."""
        self._groups = groups
        self._loads = groups.loads().tolist()
        self._group_of = [of_vertex.tolist() for of_vertex in groups.of_vertex]
        self._parallelisms = [len(of_vertex) for of_vertex in self._group_of]

    def allocate(self, subtasks: Iterable[Subtask]) -> tuple[list[LogicalSlot], list[SlotRequest]]:
        """Gives subtasks their share of their group's slot.

        Args:
            subtasks: those that need a slot; they have none.

        Returns:
            The shares of slots that are there, and requests for those that are not and were not asked for yet. The
            others come with `fulfil`.

        Raises:
            LocalProtocolError: a subtask has a share, or waits for it, already.
        """
        given, asking = [], []
        for subtask in subtasks:
            group = self._group_of[subtask.vertex][subtask.subtask]
            shared = self._shared.get(group)
            if shared is None:
                shared = self._shared[group] = _SharedSlot()
                asking.append(group)
            elif subtask in shared.subtasks:
                raise LocalProtocolError(f"subtask {self._name(subtask)} has a slot already; return it first")
            shared.subtasks[subtask] = None
            if shared.slot is not None:
                given.append(LogicalSlot(subtask, shared.slot))
        return given, [self._request(group) for group in asking]

    def fulfil(self, group: int, slot: PhysicalSlot) -> list[LogicalSlot]:
        """The slot that a group asked for is there; nothing if the group needs it no more: then release it.

        Raises:
            LocalProtocolError: the group has a slot already.
        """
        shared = self._shared.get(group)
        if shared is None:
            return []
        if shared.slot is not None:
            raise LocalProtocolError(f"group {group} has a slot already: {shared.slot}")
        shared.slot = slot
        self._last[group] = slot.location
        return [LogicalSlot(subtask, slot) for subtask in shared.subtasks]

    def release(self, subtask: Subtask) -> PhysicalSlot | int | None:
        """A subtask returns its share, or stops to wait for it.

        Returns:
            After the last one of a group: the slot to release, or if it was still waited for, the group whose request
            is to be cancelled. None while others need it, and for a subtask without a share.
        """
        group = self._group_of[subtask.vertex][subtask.subtask]
        shared = self._shared.get(group)
        if shared is None or subtask not in shared.subtasks:
            return None
        del shared.subtasks[subtask]
        if shared.subtasks:
            return None
        del self._shared[group]
        return group if shared.slot is None else shared.slot

    def lose(self, group: int) -> list[Subtask]:
        """A group's slot is gone, or its request has failed: everybody who shares it fails."""
        shared = self._shared.pop(group, None)
        return [] if shared is None else list(shared.subtasks)

    def slot_of(self, subtask: Subtask) -> PhysicalSlot | None:
        """Where a subtask is; None if it has no share of a slot that is there."""
        shared = self._shared.get(self._group_of[subtask.vertex][subtask.subtask])
        return shared.slot if shared is not None and subtask in shared.subtasks else None

    def _request(self, group: int) -> SlotRequest:
        return SlotRequest(group, self._profile(group), self._loads[group], self._preferred(group))

    def _preferred(self, group: int) -> tuple[Location, ...]:
        """Where the members that ask now would like to be, one after the other."""
        if not self._last:
            return ()  # the usual start: nobody is anywhere yet
        found: list[Location] = []
        for vertex, subtask in self._shared[group].subtasks:
            found += self._inputs.of(vertex, subtask, self._parallelisms, self._located, self._last.get(group))
        return tuple(found)

    def _located(self, vertex: int, subtask: int) -> Location | None:
        """Where a producer is, or was when it finished; nowhere while it waits for a slot itself."""
        group = self._group_of[vertex][subtask]
        shared = self._shared.get(group)
        return None if shared is not None and shared.slot is None else self._last.get(group)

    def _profile(self, group: int) -> ResourceProfile:
        """What was declared for the slot sharing group; else the sum of its members, unknown if one of them is."""
        declared = self._graph.slot_sharing_groups[int(self._groups.slot_sharing_group[group])].profile
        if declared != UNKNOWN_PROFILE or not self._is_anything_declared:
            return declared
        members = [self._graph.vertices[vertex].profile for vertex, _ in self._groups.members(group)]
        if UNKNOWN_PROFILE in members:
            return UNKNOWN_PROFILE
        return ResourceProfile(
            "concrete", sum(profile.cpu_cores for profile in members), sum(profile.memory_bytes for profile in members)
        )

    def _name(self, subtask: Subtask) -> str:
        return f"{subtask.subtask} of {self._graph.vertices[subtask.vertex].name!r}"
