from __future__ import annotations

import itertools

from bench.mesh.matrix import Matrix, Placement
from bench.mesh.spec import MeshSpec
from netstack.taskmanager.remote_task import RemoteTask

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


def channels_of(task: RemoteTask) -> list[tuple[str, str, int]]:
    """What a task reads, channel by channel: the address, the subtask that writes, the subpartition."""
    (gate,) = task.gates
    return [
        (each.address, f"{each.task}-{each.subtask}", subpartition)
        for each in gate.partitions
        for subpartition in range(gate.first, gate.first + gate.count)
    ]


def test_every_source_reaches_every_sink_once() -> None:
    matrix = Matrix(MeshSpec(hosts=("a:1=2/1", "b:1=0/2", "c:1"), channels=3))
    found = [task for host in range(3) for task in matrix.tasks(host, ADDRESSES)]
    written = {
        (ADDRESSES[host], str(task), subpartition)
        for host in range(3)
        for task in matrix.tasks(host, ADDRESSES)
        for subpartition in range(task.subpartitions)
    }
    read = [channel for task in found if task.gates for channel in channels_of(task)]
    assert len(written) == 3 * matrix.spec.lanes
    assert sorted(read) == sorted(written)
    assert {task.invokable for task in found} == {
        "netstack.bench.mesh.invokables:source",
        "netstack.bench.mesh.invokables:sink",
    }


def test_each_group_of_channels_carries_the_lanes_it_is_said_to() -> None:
    spec = MeshSpec(hosts=("a:1=2/1", "b:1=0/2", "c:1"), channels=3)
    matrix = Matrix(spec)
    for each in matrix.of_task("sink"):
        channels = channels_of(next(task for task in matrix.tasks(each.host, ADDRESSES) if str(task) == str(each)))
        bases, sources = matrix.lane_bases(each.subtask), matrix.sources_of(each.subtask)
        for group, channel in itertools.product(range(len(bases)), range(3)):
            _, writer, subpartition = channels[group * 3 + channel]
            assert writer == f"source-{sources[group]}"
            assert subpartition == bases[group] + channel


def test_relays_return_each_lane_to_the_sink_beside_its_source() -> None:
    spec = MeshSpec(hosts=("a:1=2", "b:1"), channels=2, relay=True)
    matrix = Matrix(spec)
    tasks = {str(task): task for host in range(2) for task in matrix.tasks(host, ADDRESSES)}
    assert [each.host for each in matrix.of_task("relay")] == [0, 0, 1]
    for sink, group, channel in itertools.product(range(3), range(3), range(2)):
        _, writer, subpartition = channels_of(tasks[f"sink-{sink}"])[group * 2 + channel]
        assert writer == f"relay-{group}"
        # A relay returns channel c of its gate on subpartition c.
        _, origin, origin_subpartition = channels_of(tasks[writer])[subpartition]
        assert origin == f"source-{sink}"
        assert origin_subpartition == matrix.lane_bases(sink)[group] + channel
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
    source, sink = Matrix(spec).tasks(1, ADDRESSES)
    assert MeshSpec(**source.parameters["spec"]) == spec
    assert sink.parameters["lane_bases"] == [1, 1]
    assert sink.parameters["group_hosts"] == [0, 1]
