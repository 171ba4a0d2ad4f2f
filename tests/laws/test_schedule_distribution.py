"""Every pair of a pointwise edge once, even shares, and ranges without gaps, whatever the parallelisms."""

from __future__ import annotations

import numpy as np
from group_views import consumed_partition_group, consumer_vertex_group
from hypothesis import given, strategies as st
from job_shapes import job_of

from netstack.schedule.graph.job_graph import DistributionPattern
from netstack.schedule.topology.distribution import (
    InputInfo,
    dynamic_input,
    pointwise_consumers,
    pointwise_partitions,
    static_input,
)
from netstack.schedule.topology.execution_graph import ExecutionGraph

parallelisms = st.integers(1, 60)
patterns = st.sampled_from(DistributionPattern)


def pairs_by_consumer(producers: int, consumers: int) -> set[tuple[int, int]]:
    start, stop = pointwise_partitions(producers, consumers)
    return {(partition, k) for k in range(consumers) for partition in range(start[k], stop[k])}


@given(parallelisms, parallelisms)
def test_both_sides_of_a_pointwise_edge_see_the_same_pairs(producers: int, consumers: int) -> None:
    start, stop = pointwise_consumers(producers, consumers)
    by_partition = {(partition, k) for partition in range(producers) for k in range(start[partition], stop[partition])}
    assert pairs_by_consumer(producers, consumers) == by_partition
    assert len(by_partition) == max(producers, consumers)


@given(parallelisms, parallelisms)
def test_degrees_are_even(producers: int, consumers: int) -> None:
    start, stop = pointwise_partitions(producers, consumers)
    read = set((stop - start).tolist())
    assert read <= {max(1, producers // consumers), -(-producers // consumers)}
    start, stop = pointwise_consumers(producers, consumers)
    assert set((stop - start).tolist()) <= {max(1, consumers // producers), -(-consumers // producers)}


@given(parallelisms, parallelisms)
def test_with_fewer_producers_the_floor_and_the_ceiling_say_the_same(producers: int, consumers: int) -> None:
    if producers < consumers:
        start, _ = pointwise_partitions(producers, consumers)
        assert start.tolist() == [k * producers // consumers for k in range(consumers)]


@given(patterns, parallelisms, parallelisms)
def test_a_static_subpartition_has_exactly_one_reader(
    pattern: DistributionPattern, producers: int, consumers: int
) -> None:
    arrow = "all" if pattern is DistributionPattern.ALL_TO_ALL else "pointwise"
    topology = ExecutionGraph(job_of(f"a({producers}) -{arrow},blocking-> b({consumers})"))
    counts = topology.subpartition_counts(0)
    expected = [(partition, number) for partition in range(producers) for number in range(counts[partition])]
    assert sorted(read_of(static_input(pattern, producers, consumers))) == expected


@given(patterns, parallelisms, parallelisms, st.integers(0, 60))
def test_a_dynamic_subpartition_has_exactly_one_reader(
    pattern: DistributionPattern, producers: int, consumers: int, more: int
) -> None:
    each = consumers if pattern is DistributionPattern.ALL_TO_ALL else -(-consumers // producers)
    read = sorted(read_of(dynamic_input(pattern, producers, consumers, each + more)))
    assert read == [(partition, number) for partition in range(producers) for number in range(each + more)]


@given(parallelisms, st.integers(0, 100))
def test_subpartitions_are_cut_without_gaps(consumers: int, more: int) -> None:
    reads = dynamic_input(DistributionPattern.ALL_TO_ALL, 1, consumers, consumers + more)
    ranges = [reads.pieces_of(k)[0].subpartitions for k in range(consumers)]
    assert [number for cut in ranges for number in cut] == list(range(consumers + more))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


def read_of(reads: InputInfo) -> list[tuple[int, int]]:
    """(partition, subpartition) of every reader."""
    return [
        (partition, number)
        for k in range(reads.parallelism)
        for piece in reads.pieces_of(k)
        for partition in piece.partitions
        for number in piece.subpartitions
    ]


@given(parallelisms, parallelisms, patterns)
def test_groups_hold_the_pairs_of_their_edge_and_no_others(
    producers: int, consumers: int, pattern: DistributionPattern
) -> None:
    arrow = "all" if pattern is DistributionPattern.ALL_TO_ALL else "pointwise"
    topology = ExecutionGraph(job_of(f"a({producers}) -{arrow},blocking-> b({consumers})"))
    pairs = {
        (partition, subtask - producers)
        for group in range(len(topology.groups))
        for partition in consumed_partition_group(topology.groups, group).partitions
        for subtask in consumer_vertex_group(topology.groups, group).subtasks
    }
    if pattern is DistributionPattern.ALL_TO_ALL:
        assert len(topology.groups) == 1
        assert len(pairs) == producers * consumers
    else:
        assert len(topology.groups) == min(producers, consumers)
        assert pairs == pairs_by_consumer(producers, consumers)
    for subtask in topology.subtasks_of(1):
        (group,) = topology.consumed_groups(subtask)
        assert subtask in consumer_vertex_group(topology.groups, group).subtasks
    assert np.all(topology.groups.unfinished == topology.groups.partition_stop - topology.groups.partition_start)
