"""Logical slots: which subtasks of a group share its slot, and when the slot is requested and returned.

Rules:
- A group requests one slot, for its first subtask that needs it, and keeps it until the last of its logical slots is
  returned. When the slot is lost, every subtask that shares it fails.
- A group prefers its last location, else the locations of its members' inputs. An input with many readers or many
  producers expresses no preference.
- Subtasks are numbers of the topology, handled in arrays; a logical slot is a flag, not an object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, final

import numpy as np

from ...base.errors import LocalProtocolError
from ..graph.job_graph import UNKNOWN_PROFILE, JobGraph, ResourceProfile, sum_profiles
from ..structures import (
    NOTHING,
    Batches,
    FlagArray,
    GrowingArray,
    IndexArray,
    distinct,
    expand_ranges,
    index_array,
    offsets_of,
)
from ..topology.execution_graph import ExecutionGraph
from .slot_sharing import ExecutionSlotSharingGroups, consumed_partitions
from .slots import Location, PhysicalSlot, SlotMatch, SlotRequest

MAX_CONSUMERS_TO_CONSIDER: Final = 8
"""A partition group with more consumers gives no preferred location."""
MAX_LOCATIONS_TO_CONSIDER: Final = 8
"""An input with more producers that have a location gives no preferred location."""


@final
@dataclass(frozen=True, slots=True)
class InputLocations:
    """The locations of one consumed partition group.

    Attributes:
        consumers: number of subtasks that consume it.
        producers: the locations of its producers, as far as they have one.
    """

    consumers: int
    producers: Sequence[Location]


def preferred_locations(inputs: Iterable[InputLocations]) -> tuple[Location, ...]:
    """The preferred locations of a subtask: those of the input with the fewest locations.

    Args:
        inputs: the partition groups it consumes, in order; among equally good ones the last wins.
    """
    best: tuple[Location, ...] = ()
    for consumed in inputs:
        if consumed.consumers > MAX_CONSUMERS_TO_CONSIDER or len(consumed.producers) > MAX_LOCATIONS_TO_CONSIDER:
            continue
        if consumed.producers and (not best or len(set(consumed.producers)) <= len(set(best))):
            best = tuple(consumed.producers)
    return best


@final
@dataclass(frozen=True, slots=True)
class _Input:
    """One edge, by consumer: the partitions that it reads, and how many consumers read the same."""

    producer: int
    first: list[int]
    last: list[int]
    consumers: list[int]


@final
class InputPreferences:
    """What the subtasks of a job read, as far as it matters for their location."""

    def __init__(self, graph: JobGraph) -> None:
        self._graph = graph
        self._inputs: dict[int, list[_Input]] = {}

    def of(
        self, vertex: int, subtask: int, parallelisms: Sequence[int], located: Callable[[int, int], Location | None]
    ) -> tuple[Location, ...]:
        """The preferred locations of a subtask.

        Args:
            vertex: its vertex.
            subtask: its index.
            parallelisms: of every vertex; those of `vertex` and of its producers never change.
            located: the location of a producer, if any, by vertex and index.
        """
        inputs = self._inputs.get(vertex)
        if inputs is None:
            inputs = self._inputs[vertex] = self._read_by(vertex, parallelisms)
        return preferred_locations(self._locations(given, subtask, located) for given in inputs)

    def _locations(self, given: _Input, subtask: int, located: Callable[[int, int], Location | None]) -> InputLocations:
        """The locations of one input; stops as soon as the input has too many to count."""
        consumers = given.consumers[subtask]
        if consumers > MAX_CONSUMERS_TO_CONSIDER:
            return InputLocations(consumers, ())
        producers = range(given.first[subtask], given.last[subtask] + 1)
        known = filter(None, (located(given.producer, producer) for producer in producers))
        return InputLocations(consumers, tuple(islice(known, MAX_LOCATIONS_TO_CONSIDER + 1)))

    def _read_by(self, vertex: int, parallelisms: Sequence[int]) -> list[_Input]:
        inputs = []
        for consumed in consumed_partitions(self._graph, vertex, parallelisms):
            ranges = np.stack((consumed.first, consumed.last))
            _, inverse, counts = np.unique(ranges, axis=1, return_inverse=True, return_counts=True)
            consumers = counts[inverse.ravel()].tolist()
            inputs.append(_Input(consumed.producer, consumed.first.tolist(), consumed.last.tolist(), consumers))
        return inputs


@final
class SharedSlots:
    """The logical slots of a job."""

    def __init__(self, topology: ExecutionGraph, groups: ExecutionSlotSharingGroups) -> None:
        self._topology = topology
        self._inputs = InputPreferences(topology.job)
        self._is_anything_declared = any(vertex.profile != UNKNOWN_PROFILE for vertex in topology.job.vertices)
        self._profiles: dict[tuple[int, ...], ResourceProfile] = {}
        self._has_share = GrowingArray(np.bool_)  # by subtask: whether it has a logical slot, or waits for one
        self._sharers = GrowingArray()  # by group: how many of it do
        self._has_slot = GrowingArray(np.bool_)  # by group
        self._slots: list[PhysicalSlot | None] = []
        self._last: dict[int, Location] = {}
        self.extend(groups)

    def extend(self, groups: ExecutionSlotSharingGroups) -> None:
        """Extends it to a dynamic job's new subtasks; existing groups keep their numbers."""
        self._groups = groups
        self._loads = groups.loads()
        initialised = [groups.of_vertex[vertex] for vertex in self._topology.initialised]
        self._group_of = np.concatenate(initialised) if initialised else NOTHING
        members = index_array(np.argsort(self._group_of, kind="stable"))
        counts = index_array(np.bincount(self._group_of, minlength=groups.count))
        self._members = Batches(members, offsets_of(counts))
        self._parallelisms = [self._topology.parallelism_of(vertex) for vertex in range(len(groups.of_vertex))]
        self._has_share.extend_with(False, self._group_of.size - len(self._has_share))
        added = groups.count - len(self._slots)
        self._sharers.extend_with(0, added)
        self._has_slot.extend_with(False, added)
        self._slots += [None] * added

    def allocate(self, subtasks: IndexArray) -> tuple[IndexArray, list[SlotRequest]]:
        """Gives subtasks a logical slot of their group.

        Args:
            subtasks: subtasks without a logical slot; none may occur twice.

        Returns:
            Subtasks whose slot is there, and requests for slots that were not requested yet. `fulfil` returns the other
            subtasks.

        Raises:
            LocalProtocolError: a subtask has a logical slot, or waits for one; nothing is changed.
        """
        has_share, sharers = self._has_share.view, self._sharers.view
        refused = subtasks[has_share[subtasks]]
        if refused.size:
            raise LocalProtocolError(f"subtask {self._name(int(refused[0]))} already has a slot; release it first")
        groups = self._group_of[subtasks]
        asking = groups[sharers[groups] == 0]
        has_share[subtasks] = True
        np.add.at(sharers, groups, 1)
        requests = [self._request(group) for group in dict.fromkeys(asking.tolist())]  # in the order of first subtasks
        return subtasks[self._has_slot.view[groups]], requests

    def fulfil(self, matches: Sequence[SlotMatch]) -> tuple[IndexArray, list[PhysicalSlot]]:
        """Gives groups the slots that they requested.

        Returns:
            The subtasks that wait for them, and slots to release because their group no longer needs them.

        Raises:
            LocalProtocolError: a group has a slot already; nothing is changed.
        """
        groups = index_array([match.request.group for match in matches])
        served = groups[self._has_slot.view[groups]]
        if served.size:
            raise LocalProtocolError(f"group {served[0]} already has a slot: {self._slots[served[0]]}")
        is_wanted = self._sharers.view[groups] > 0
        unwanted = []
        for match, wanted in zip(matches, is_wanted.tolist(), strict=True):
            if wanted:
                self._slots[match.request.group] = match.slot
                self._last[match.request.group] = match.slot.location
            else:
                unwanted.append(match.slot)
        self._has_slot.view[groups[is_wanted]] = True
        return self.sharing(groups[is_wanted]), unwanted

    def release(self, subtasks: IndexArray) -> tuple[list[PhysicalSlot], list[int]]:
        """Returns the logical slots of subtasks, held or waited for; subtasks without one are skipped.

        Returns:
            Slots to release because no subtask of their group uses them, and groups whose pending requests to cancel.
        """
        sharers = self._sharers.view
        leaving = subtasks[self._has_share.view[subtasks]]
        self._has_share.view[leaving] = False
        groups = self._group_of[leaving]
        np.subtract.at(sharers, groups, 1)
        left = distinct(groups[sharers[groups] == 0])
        is_there = self._has_slot.view[left]
        return self._take_slots(left[is_there]), left[~is_there].tolist()

    def lose(self, groups: IndexArray) -> None:
        """Removes the logical slots of groups whose slots are lost or whose requests have failed."""
        self._has_share.view[self.sharing(groups)] = False
        self._sharers.view[groups] = 0
        self._take_slots(groups)

    def sharing(self, groups: IndexArray) -> IndexArray:
        """The subtasks of groups that have a logical slot, or wait for one."""
        offsets = self._members.offsets
        members = self._members.subtasks[expand_ranges(offsets[groups], offsets[groups + 1])]
        sharing: IndexArray = members[self._has_share.view[members]]
        return sharing

    def groups_of(self, subtasks: IndexArray) -> IndexArray:
        """The group of each subtask."""
        return self._group_of[subtasks]

    def have_slots(self, subtasks: IndexArray) -> FlagArray:
        """For each, whether it has a logical slot whose slot is there."""
        have: FlagArray = self._has_share.view[subtasks] & self._has_slot.view[self._group_of[subtasks]]
        return have

    def slots_of(self, subtasks: IndexArray) -> list[PhysicalSlot]:
        """The slot of each subtask. Raises LocalProtocolError if one of them has no slot."""
        without = subtasks[~self.have_slots(subtasks)]
        if without.size:
            raise LocalProtocolError(f"subtask {self._name(int(without[0]))} has no slot: released, or not there yet")
        result = (self._slots[group] for group in self._group_of[subtasks].tolist())
        return [slot for slot in result if slot is not None]

    def slot_of_group(self, group: int) -> PhysicalSlot | None:
        """The slot of a group, if it is there."""
        return self._slots[group]

    def _take_slots(self, groups: IndexArray) -> list[PhysicalSlot]:
        taken = []
        for group in groups.tolist():
            slot = self._slots[group]
            if slot is not None:
                taken.append(slot)
                self._slots[group] = None
        self._has_slot.view[groups] = False
        return taken

    def _request(self, group: int) -> SlotRequest:
        only = self._groups.taskmanagers[group] if self._groups.taskmanagers else ""
        return SlotRequest(group, self._profile(group), int(self._loads[group]), self._preferred(group), only)

    def _preferred(self, group: int) -> tuple[Location, ...]:
        """The preferred locations of the requesting members, one after the other."""
        if not self._last:
            return ()  # the usual start: no subtask has a location yet
        last = self._last.get(group)
        if last is not None:
            return (last,) * int(self._sharers.view[group])
        locations: list[Location] = []
        for subtask in self._members[group].tolist():
            if self._has_share.view[subtask]:
                vertex, index = self._topology.place_of(subtask)
                locations += self._inputs.of(vertex, index, self._parallelisms, self._located)
        return tuple(locations)

    def _located(self, vertex: int, index: int) -> Location | None:
        """The location of a producer, or its last one; None while it waits for a slot itself."""
        group = int(self._groups.of_vertex[vertex][index])
        waits = self._sharers.view[group] and not self._has_slot.view[group]
        return None if waits else self._last.get(group)

    def _profile(self, group: int) -> ResourceProfile:
        """The declared profile of the slot sharing group, else the sum of its members; unknown if a member's is."""
        declared = self._topology.job.slot_sharing_groups[int(self._groups.slot_sharing_group[group])].profile
        if declared != UNKNOWN_PROFILE or not self._is_anything_declared:
            return declared
        vertices = tuple(self._topology.vertex_of_subtask[self._members[group]].tolist())
        profile = self._profiles.get(vertices)
        if profile is None:
            profile = self._profiles[vertices] = sum_profiles(
                [self._topology.job.vertices[vertex].profile for vertex in vertices]
            )
        return profile

    def _name(self, subtask: int) -> str:
        vertex, index = self._topology.place_of(subtask)
        return f"{index} of {self._topology.job.vertices[vertex].name!r}"
