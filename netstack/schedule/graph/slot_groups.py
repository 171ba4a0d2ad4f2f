"""Slot sharing groups, co-location, and logical pipelined regions of a job.

Rules: vertices of different groups never share a slot, nor do two subtasks of one vertex. In a batch job the name
`default` stands for one group per logical pipelined region. A logical region is a set of vertices joined by edges that
must be pipelined, whatever their pattern. Logical regions on a cycle are one only in `acyclic_logical_regions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...base.errors import ConfigError
from ..structures import connected_components, index_array, strongly_connected_components
from .job_graph import UNDECIDED, UNKNOWN_PROFILE, JobGraph, ResourceProfile, SlotSharingGroup
from .stream_graph import DEFAULT_GROUP


def logical_regions(job: JobGraph) -> tuple[tuple[int, ...], ...]:
    """Vertices joined by edges that must be pipelined; each region ascends, in the order of their first vertices."""
    return _as_sets(_joined(job))


def acyclic_logical_regions(job: JobGraph) -> tuple[tuple[int, ...], ...]:
    """The logical regions, with those that depend on each other in a cycle merged."""
    joined = _joined(job)
    source = index_array([joined[job.datasets[edge.dataset].producer] for edge in job.edges])
    target = index_array([joined[edge.consumer] for edge in job.edges])
    merged = strongly_connected_components(len(job.vertices), source, target)
    return _as_sets([int(merged[region]) for region in joined])


def _joined(job: JobGraph) -> list[int]:
    """The first vertex of each vertex's region."""
    pipelined = [edge for edge in job.edges if job.datasets[edge.dataset].type.must_be_pipelined]
    one = index_array([job.datasets[edge.dataset].producer for edge in pipelined])
    other = index_array([edge.consumer for edge in pipelined])
    joined: list[int] = connected_components(len(job.vertices), one, other).tolist()
    return joined


def _as_sets(region_of: list[int]) -> tuple[tuple[int, ...], ...]:
    members: dict[int, list[int]] = {}
    for vertex, region in enumerate(region_of):
        members.setdefault(region, []).append(vertex)
    return tuple(tuple(vertices) for vertices in members.values())


def inherited_group(explicit: str | None, inputs: Sequence[str]) -> str:
    """The name of an operator's slot sharing group.

    Args:
        explicit: as set by the job's author; None: not set.
        inputs: the groups of the operators that it reads.

    Returns:
        The explicit name, else the common group of all inputs, else `default`.
    """
    if explicit is not None:
        return explicit
    return inputs[0] if inputs and all(name == inputs[0] for name in inputs) else DEFAULT_GROUP


def with_slot_sharing_groups(
    job: JobGraph, names: Sequence[str], *, is_default_shared: bool, profiles: Mapping[str, ResourceProfile]
) -> JobGraph:
    """A job with its slot sharing groups.

    Args:
        job: without groups of its own.
        names: of the group of each vertex.
        is_default_shared: whether `default` is one group; otherwise one for each logical region.
        profiles: of groups, by name.

    Raises:
        ConfigError: a hybrid result in a job with a group other than `default`; a profile for a group without members;
            vertices that cannot be co-located.
    """
    if any(name != DEFAULT_GROUP for name in names):
        hybrid = next((dataset for dataset in job.datasets if dataset.type.is_hybrid), None)
        if hybrid is not None:
            raise ConfigError(
                f"job {job.name!r}: dataset {hybrid.name!r} is {hybrid.type.value}, which supports only slot sharing"
                f" group {DEFAULT_GROUP!r}"
            )
    unused = set(profiles) - set(names)
    if unused:
        raise ConfigError(f"job {job.name!r}: no vertex is in the slot sharing groups {', '.join(sorted(unused))}")
    region_heads = {vertex: region[0] for region in logical_regions(job) for vertex in region}
    numbers: dict[tuple[str, int], int] = {}
    groups: list[SlotSharingGroup] = []
    members = []
    for vertex, name in enumerate(names):
        is_separate = name == DEFAULT_GROUP and not is_default_shared
        head = region_heads[vertex] if is_separate else -1
        if (name, head) not in numbers:
            numbers[name, head] = len(groups)
            label = f"{name} of {job.vertices[head].operators[0]}" if is_separate else name
            groups.append(SlotSharingGroup(label, profiles.get(name, UNKNOWN_PROFILE)))
        members.append(numbers[name, head])
    vertices = (replace(vertex, slot_sharing_group=group) for vertex, group in zip(job.vertices, members, strict=True))
    grouped = replace(job, vertices=tuple(vertices), slot_sharing_groups=tuple(groups))
    check_co_location(grouped)
    return grouped


def check_co_location(job: JobGraph) -> None:
    """Rejects co-located vertices that can never share slots.

    Raises:
        ConfigError: they are in different slot sharing groups, or in different pipelined regions.
    """
    first_of: dict[str, int] = {}
    regions: dict[int, int] = {}
    for index, vertex in enumerate(job.vertices):
        if vertex.co_location_group is None:
            continue
        if not regions:
            regions = {member: number for number, region in enumerate(logical_regions(job)) for member in region}
        first = first_of.setdefault(vertex.co_location_group, index)
        what = f"co-location group {vertex.co_location_group!r}: {job.vertices[first].name!r} and {vertex.name!r}"
        groups = [job.slot_sharing_groups[job.vertices[member].slot_sharing_group].name for member in (first, index)]
        if groups[0] != groups[1]:
            raise ConfigError(f"{what} are in the slot sharing groups {groups[0]!r} and {groups[1]!r}; put both in one")
        if regions[first] != regions[index]:
            raise ConfigError(
                f"{what} are in different pipelined regions, which may run at different times; connect them by"
                " pipelined edges"
            )


def slots_by_group(job: JobGraph) -> tuple[int, ...]:
    """The number of slots that each slot sharing group needs when the whole job runs at once: its largest parallelism.

    Raises:
        ConfigError: a vertex has no parallelism yet.
    """
    slots = [0] * len(job.slot_sharing_groups)
    for vertex in job.vertices:
        if vertex.parallelism == UNDECIDED:
            raise ConfigError(f"vertex {vertex.name!r} has no parallelism yet, so its slots cannot be counted")
        slots[vertex.slot_sharing_group] = max(slots[vertex.slot_sharing_group], vertex.parallelism)
    return tuple(slots)


def required_slots(job: JobGraph) -> int:
    """The number of slots that a job needs when all of it runs at once.

    Raises:
        ConfigError: a vertex has no parallelism yet.
    """
    return sum(slots_by_group(job))
