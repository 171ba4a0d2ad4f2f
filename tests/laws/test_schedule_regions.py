"""Regions, restart sets and releases from groups are those that a walk over every single edge finds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
from group_views import consumed_partition_group, consumer_vertex_group
from hypothesis import given, strategies as st

from netstack.base.ids import ResultPartitionType
from netstack.schedule.failover.release import PartitionRelease
from netstack.schedule.graph.job_graph import Dataset, DistributionPattern, JobEdge, JobGraph, JobVertex
from netstack.schedule.graph.slot_groups import acyclic_logical_regions
from netstack.schedule.recovery import RegionFailover
from netstack.schedule.strategies.strategy import RegionScheduling, VertexwiseScheduling
from netstack.schedule.structures import index_array
from netstack.schedule.topology.execution_graph import ExecutionGraph
from netstack.schedule.topology.regions import Regions

types = st.sampled_from(ResultPartitionType)


@st.composite
def jobs(draw: st.DrawFn) -> JobGraph:
    """Up to six vertices of up to five subtasks; a dataset may have several readers."""
    parallelisms = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    vertices = tuple(JobVertex(f"v{index}", parallelism) for index, parallelism in enumerate(parallelisms))
    datasets, edges = [], []
    for producer in range(len(vertices) - 1):
        for _ in range(draw(st.integers(0, 2))):
            datasets.append(Dataset(f"d{len(datasets)}", producer, draw(types)))
            for consumer in draw(st.sets(st.integers(producer + 1, len(vertices) - 1), min_size=1, max_size=2)):
                edges.append(JobEdge(len(datasets) - 1, consumer, draw(st.sampled_from(DistributionPattern))))
    return JobGraph("job", vertices, tuple(datasets), tuple(edges))


def edges_of(topology: ExecutionGraph) -> Iterator[tuple[int, int, int]]:
    """(partition, producer, consumer) of every single edge."""
    for group in range(len(topology.groups)):
        for partition in consumed_partition_group(topology.groups, group).partitions:
            for consumer in consumer_vertex_group(topology.groups, group).subtasks:
                yield partition, int(topology.producer_of_partition[partition]), consumer


def type_of(topology: ExecutionGraph, partition: int) -> ResultPartitionType:
    return topology.job.datasets[int(topology.dataset_of_partition[partition])].type


def reachable(start: int, edges: dict[int, set[int]]) -> set[int]:
    actual, waiting = {start}, [start]
    while waiting:
        for target in edges.get(waiting.pop(), set()) - actual:
            actual.add(target)
            waiting.append(target)
    return actual


def brute_force_regions(topology: ExecutionGraph) -> list[list[int]]:
    """Joined along every edge that must be pipelined, then along every cycle of what is left."""
    joined: dict[int, set[int]] = {}
    for partition, producer, consumer in edges_of(topology):
        if type_of(topology, partition).must_be_pipelined:
            joined.setdefault(producer, set()).add(consumer)
            joined.setdefault(consumer, set()).add(producer)
    region = {subtask: min(reachable(subtask, joined)) for subtask in range(topology.subtask_count)}
    follows: dict[int, set[int]] = {}
    for _, producer, consumer in edges_of(topology):
        follows.setdefault(region[producer], set()).add(region[consumer])
    reached = {label: reachable(label, follows) for label in set(region.values())}
    merged: dict[int, list[int]] = {}
    for subtask, label in region.items():
        merged.setdefault(min(other for other in reached[label] if label in reached[other]), []).append(subtask)
    return sorted(merged.values())


@given(jobs())
def test_regions_are_those_of_the_whole_graph(job: JobGraph) -> None:
    topology = ExecutionGraph(job)
    regions = Regions(topology)
    actual = [regions.members(region).tolist() for region in range(len(regions))]
    assert actual == brute_force_regions(topology)
    assert [int(regions.region_of[members[0]]) for members in actual] == list(range(len(actual)))


@given(jobs(), st.data())
def test_restart_sets_are_those_of_a_walk_over_edges(job: JobGraph, data: st.DataObject) -> None:
    topology = ExecutionGraph(job)
    regions = Regions(topology)
    failed = data.draw(st.integers(0, topology.subtask_count - 1))
    is_tracked = np.array(data.draw(st.lists(st.booleans(), min_size=topology.partition_count,
                                             max_size=topology.partition_count)), np.bool_)  # fmt: skip
    missing = data.draw(st.none() | st.integers(0, topology.partition_count))
    can_be_read_again = {
        ResultPartitionType.BLOCKING,
        ResultPartitionType.BLOCKING_PERSISTENT,
        ResultPartitionType.HYBRID_FULL,
        ResultPartitionType.PIPELINED_APPROXIMATE,
    }
    follows: dict[int, set[int]] = {}
    for partition, producer, consumer in edges_of(topology):
        one, other = int(regions.region_of[producer]), int(regions.region_of[consumer])
        follows.setdefault(one, set()).add(other)
        if not is_tracked[partition] or partition == missing or type_of(topology, partition) not in can_be_read_again:
            follows.setdefault(other, set()).add(one)
    expected = sorted(
        subtask
        for region in reachable(int(regions.region_of[failed]), follows)
        for subtask in regions.members(region).tolist()
    )
    actual = RegionFailover(topology, regions).subtasks_to_restart(index_array([failed]), is_tracked, missing)
    assert actual.tolist() == expected


@given(jobs(), st.data())
def test_partitions_are_released_exactly_while_nobody_needs_them(job: JobGraph, data: st.DataObject) -> None:
    topology = ExecutionGraph(job)
    regions = Regions(topology)
    release = PartitionRelease(topology, regions)
    finished: set[int] = set()
    for _ in range(data.draw(st.integers(0, 30))):
        subtask = data.draw(st.integers(0, topology.subtask_count - 1))
        if subtask in finished:
            finished.remove(subtask)
            release.on_reset(index_array([subtask]))
            continue
        finished.add(subtask)
        lost = release.on_finished(subtask)
        region = regions.members(int(regions.region_of[subtask])).tolist()
        read_here = {group for member in region for group in topology.consumed_groups(member)}
        done = {
            group for group in read_here if releasable(topology, group) and all_read(topology, regions, group, finished)
        }
        assert set(lost.groups) == (done if finished.issuperset(region) else set())
        assert len(lost.groups) == len(set(lost.groups))
        for group in lost.groups:
            for partition in consumed_partition_group(topology.groups, group).partitions:
                of_partition = topology.groups_of_partition(partition)
                is_free = all(all_read(topology, regions, other, finished) for other in of_partition)
                assert (partition in lost.partitions) == is_free


@given(jobs(), st.data())
def test_a_job_that_grows_comes_to_the_regions_and_groups_of_one_that_was_there(
    job: JobGraph, data: st.DataObject
) -> None:
    whole = ExecutionGraph(job)
    expected = Regions(whole)
    growing = ExecutionGraph(dataclasses.replace(job, is_dynamic=True))
    regions = Regions(growing)
    strategy, release = RegionScheduling(growing, regions), PartitionRelease(growing, regions)
    waiting = [set(vertices) for vertices in acyclic_logical_regions(job)]
    while waiting:
        ready = [vertices for vertices in waiting if not producers_of(job, vertices) & set().union(*waiting) - vertices]
        vertices = data.draw(st.sampled_from(ready))
        waiting.remove(vertices)
        for vertex in sorted(vertices):
            growing.initialise(vertex)
        regions.extend()
        strategy.extend()
        release.extend()

    def places(topology: ExecutionGraph, subtasks: Iterable[int]) -> frozenset[tuple[int, int]]:
        return frozenset(topology.place_of(subtask) for subtask in subtasks)

    def sets(topology: ExecutionGraph, actual: Regions) -> set[frozenset[tuple[int, int]]]:
        return {places(topology, actual.members(region).tolist()) for region in range(len(actual))}

    def groups(topology: ExecutionGraph) -> set[tuple[object, ...]]:
        return {
            (
                view.edge,
                places(topology, (int(topology.producer_of_partition[partition]) for partition in view.partitions)),
                places(topology, consumer_vertex_group(topology.groups, view.number).subtasks),
            )
            for view in map(partial(consumed_partition_group, topology.groups), range(len(topology.groups)))
        }

    assert sets(growing, regions) == sets(whole, expected)
    assert groups(growing) == groups(whole)
    from_start = RegionScheduling(whole, expected).start()
    assert places(growing, strategy.start().subtasks.tolist()) == places(whole, from_start.subtasks.tolist())


def producers_of(job: JobGraph, vertices: set[int]) -> set[int]:
    return {job.datasets[edge.dataset].producer for edge in job.edges if edge.consumer in vertices}


def releasable(topology: ExecutionGraph, group: int) -> bool:
    type = consumed_partition_group(topology.groups, group).type
    return type.is_released_by_scheduler and not type.is_persistent


def all_read(topology: ExecutionGraph, regions: Regions, group: int, finished: set[int]) -> bool:
    """Whether every region that consumes a group has finished."""
    readers = {int(regions.region_of[subtask]) for subtask in consumer_vertex_group(topology.groups, group).subtasks}
    return all(finished.issuperset(regions.members(region).tolist()) for region in readers)


@given(jobs(), st.booleans(), st.data())
def test_every_subtask_is_scheduled_once_and_never_before_its_blocking_inputs(
    job: JobGraph, by_vertex: bool, data: st.DataObject
) -> None:
    topology = ExecutionGraph(job)
    regions = Regions(topology)
    strategy = VertexwiseScheduling(topology) if by_vertex else RegionScheduling(topology, regions)
    inputs: dict[int, set[int]] = {}
    for partition, _, consumer in edges_of(topology):
        inputs.setdefault(consumer, set()).add(partition)
    scheduled: list[int] = []
    running: list[int] = []

    def deploy(batches: list[list[int]]) -> None:
        for batch in batches:
            for subtask in batch:
                for partition in inputs.get(subtask, set()):
                    producer = int(topology.producer_of_partition[partition])
                    inside = not by_vertex and regions.region_of[producer] == regions.region_of[subtask]
                    assert inside or not type_of(topology, partition).is_blocking or topology.is_finished[partition]
            scheduled.extend(batch)
            running.extend(batch)

    deploy(strategy.start().tolist())
    while running:
        subtask = running.pop(data.draw(st.integers(0, len(running) - 1)))
        topology.finish(subtask)
        deploy(strategy.on_finished(subtask).tolist())
    assert sorted(scheduled) == list(range(topology.subtask_count))
