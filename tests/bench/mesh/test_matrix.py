from __future__ import annotations

import itertools

from bench.mesh.matrix import Matrix, Placement
from bench.mesh.spec import MeshSpec
from netstack.ids import ChannelDescriptor

ADDRESSES = ["tcp://a:1", "tcp://b:1", "tcp://c:1"]


def test_subtasks_are_numbered_host_by_host() -> None:
    matrix = Matrix(MeshSpec(hosts=("a:1=2/1", "b:1=0/2", "c:1")))
    assert [(str(each), each.host) for each in matrix.placements] == [
        ("source-0", 0),
        ("source-1", 0),
        ("source-2", 2),
        ("sink-0", 0),
        ("sink-1", 1),
        ("sink-2", 1),
        ("sink-3", 2),
    ]
    assert matrix.as_rows() == [
        {"address": "a:1", "sources": [0, 1], "relays": [], "sinks": [0]},
        {"address": "b:1", "sources": [], "relays": [], "sinks": [1, 2]},
        {"address": "c:1", "sources": [2], "relays": [], "sinks": [3]},
    ]
    assert [matrix.slots(host) for host in range(3)] == [2, 2, 1]
    assert matrix.on_host(1, "sink") == [Placement("sink", 1, 1), Placement("sink", 2, 1)]


def test_every_source_reaches_every_sink_once() -> None:
    matrix = Matrix(MeshSpec(hosts=("a:1=2/1", "b:1=0/2", "c:1"), channels=3))
    found = [task for host in range(3) for task in matrix.descriptors(host, ADDRESSES)]
    written = {
        ChannelDescriptor(ADDRESSES[host], partition.name, subpartition)
        for host in range(3)
        for task in matrix.descriptors(host, ADDRESSES)
        for partition in task.partitions
        for subpartition in range(partition.subpartitions)
    }
    read = [channel for task in found for gate in task.gates for channel in gate]
    assert len(written) == 3 * matrix.spec.lanes
    assert sorted(read, key=repr) == sorted(written, key=repr)
    assert {task.invokable for task in found} == {
        "netstack.bench.mesh.invokables:source",
        "netstack.bench.mesh.invokables:sink",
    }


def test_each_group_of_channels_carries_the_lanes_it_is_said_to() -> None:
    spec = MeshSpec(hosts=("a:1=2/1", "b:1=0/2", "c:1"), channels=3)
    matrix = Matrix(spec)
    for each in matrix.of_task("sink"):
        (gate,) = next(task.gates for task in matrix.descriptors(each.host, ADDRESSES) if str(task) == str(each))
        bases, sources = matrix.lane_bases(each.subtask), matrix.sources_of(each.subtask)
        for group, channel in itertools.product(range(len(bases)), range(3)):
            descriptor = gate[group * 3 + channel]
            assert descriptor.partition_id == f"source-{sources[group]}"
            assert descriptor.subpartition == bases[group] + channel


def test_relays_return_each_lane_to_the_sink_beside_its_source() -> None:
    spec = MeshSpec(hosts=("a:1=2", "b:1"), channels=2, relay=True)
    matrix = Matrix(spec)
    tasks = {str(task): task for host in range(2) for task in matrix.descriptors(host, ADDRESSES)}
    assert [each.host for each in matrix.of_task("relay")] == [0, 0, 1]
    for sink, group, channel in itertools.product(range(3), range(3), range(2)):
        descriptor = tasks[f"sink-{sink}"].gates[0][group * 2 + channel]
        assert descriptor.partition_id == f"relay-{group}"
        # A relay returns channel c of its gate on subpartition c.
        origin = tasks[descriptor.partition_id].gates[0][descriptor.subpartition]
        assert origin.partition_id == f"source-{sink}"
        assert origin.subpartition == matrix.lane_bases(sink)[group] + channel
        assert matrix.sources_of(sink)[group] == sink


def test_memory_is_enough_for_every_buffer_that_may_be_used() -> None:
    small, wide = (Matrix(MeshSpec(hosts=("a:1", "b:1"), channels=channels)) for channels in (1, 100))
    config = wide.config(0)
    assert config.memory_bytes > small.config(0).memory_bytes
    assert config.exclusive_buffers_per_channel == 2
    # A source's partition: 200 subpartitions of 2 buffers and 8; a gate of 100 remote channels likewise.
    assert config.total_segments >= 408 + 208 + 16


def test_parameters_are_what_a_task_needs() -> None:
    spec = MeshSpec(hosts=("a:1", "b:1"), seconds=1)
    source, sink = Matrix(spec).descriptors(1, ADDRESSES)
    assert MeshSpec(**source.parameters["spec"]) == spec
    assert sink.parameters["lane_bases"] == [1, 1]
    assert sink.parameters["group_hosts"] == [0, 1]
