from __future__ import annotations

import itertools

import pytest
from job_shapes import job_graph

from netstack.schedule.descriptors.blob_store import OffloadRule
from netstack.schedule.descriptors.descriptors import TaskDeploymentDescriptor
from netstack.schedule.descriptors.shuffle import TaskManagerLocation
from netstack.schedule.events import Proceed, SlotsOffered, StartJob, TaskManagerRegistered
from netstack.schedule.graph.job_file import job_of, write_job
from netstack.schedule.instructions import Continue, Deploy
from netstack.schedule.scheduler import Scheduler, SchedulerSettings
from netstack_bench.places.hosts.matrix import Matrix, Placement
from netstack_bench.places.hosts.spec import MeshSpec

TASKMANAGERS = ["a", "b", "c"]


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
    assert [matrix.slots(host) for host in range(3)] == [1, 1, 1], "one connection between two of them"
    raised = Matrix(MeshSpec(hosts=("a:1=2/1", "b:1=0/3", "c:1"), connections=2))
    assert [raised.slots(host) for host in range(3)] == [2, 2, 1]
    assert matrix.on_host(1, "sink") == [Placement("sink", 1, 1), Placement("sink", 2, 1)]


def deployed(matrix: Matrix, *, slots_first: bool = False) -> dict[str, TaskDeploymentDescriptor]:
    """What each subtask of the job is sent, by its name, when each TaskManager has the slots that it gives."""
    job = job_graph(matrix.graph("bench"))
    settings = SchedulerSettings(placement=matrix.placed(TASKMANAGERS), offload=OffloadRule(1 << 40))
    scheduler = Scheduler(job, "run", settings=settings)
    message = [] if slots_first else scheduler.handle(StartJob(), 0.0)
    for host, name in reversed([*enumerate(TASKMANAGERS[: len(matrix.spec.hosts)])]):  # placed, whoever comes first
        message += scheduler.handle(TaskManagerRegistered(TaskManagerLocation(name, f"tcp://{name}:1")), 0.0)
        message += scheduler.handle(SlotsOffered(name, tuple(range(matrix.slots(host)))), 0.0)
    if slots_first:
        message += scheduler.handle(StartJob(), 0.0)
    while isinstance(message[-1], Continue):
        message += scheduler.handle(Proceed(), 0.0)
    actual = {}
    for deploy in [each for each in message if isinstance(each, Deploy)]:
        for number, packed in scheduler.descriptors(deploy):
            vertex, index = scheduler.topology.place_of(number)
            actual[f"{job.vertices[vertex].name}-{index}"] = TaskDeploymentDescriptor.parse(packed)
    return actual


def channels_of(descriptor: TaskDeploymentDescriptor) -> list[tuple[str, str, int]]:
    """What a task reads, channel by channel: the address, the subtask that writes, the subpartition."""
    (gate,) = descriptor.gates
    actual = []
    for channel in gate.gate().channels:
        dataset, _, place = channel.partition_id.partition("/")[2].rpartition("/")
        writer = f"{dataset.partition('.')[0]}-{place.partition('.')[0]}"
        actual.append((channel.address, writer, channel.subpartition))
    return actual


@pytest.mark.parametrize("slots_first", [False, True])
def test_each_subtask_runs_where_it_is_placed(slots_first: bool) -> None:
    matrix = Matrix(MeshSpec(hosts=("a:1=2/1", "b:1=0/2", "c:1"), channels=3, connections=2))
    places = {name: actual.allocation for name, actual in deployed(matrix, slots_first=slots_first).items()}
    assert places == {
        "source-0": "a/0",
        "source-1": "a/1",
        "source-2": "c/0",
        "sink-0": "a/0",
        "sink-1": "b/0",
        "sink-2": "b/1",
        "sink-3": "c/0",
    }


def test_every_source_reaches_every_sink_once() -> None:
    matrix = Matrix(MeshSpec(hosts=("a:1=2/1", "b:1=0/2", "c:1"), channels=3))
    actual = deployed(matrix)
    written = {
        (f"tcp://{TASKMANAGERS[each.host]}:1", str(each), subpartition)
        for each in matrix.of_task("source")
        for subpartition in range(actual[str(each)].partitions[0].subpartitions)
    }
    read = [channel for name, task in actual.items() if name.startswith("sink") for channel in channels_of(task)]
    assert len(written) == 3 * matrix.spec.lanes
    assert sorted(read) == sorted(written)


def test_each_group_of_channels_carries_the_lanes_it_is_said_to() -> None:
    spec = MeshSpec(hosts=("a:1=2/1", "b:1=0/2", "c:1"), channels=3)
    matrix = Matrix(spec)
    actual = deployed(matrix)
    for each in matrix.of_task("sink"):
        channels = channels_of(actual[str(each)])
        bases, sources = matrix.lane_bases(each.subtask), matrix.sources_of(each.subtask)
        for group, channel in itertools.product(range(len(bases)), range(3)):
            _, writer, subpartition = channels[group * 3 + channel]
            assert writer == f"source-{sources[group]}"
            assert subpartition == bases[group] + channel


def test_relays_return_each_lane_to_the_sink_beside_its_source() -> None:
    spec = MeshSpec(hosts=("a:1=2", "b:1"), channels=2, relay=True)
    matrix = Matrix(spec)
    tasks = deployed(matrix)
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
    config = wide.network()
    assert config.memory_bytes > small.network().memory_bytes
    assert config.exclusive_buffers_per_channel == 2
    # A source's partition: 200 subpartitions of 2 buffers and 8; a gate of 100 remote channels likewise.
    assert config.total_segments >= 408 + 208 + 16


def test_the_settings_travel_with_the_job() -> None:
    spec = MeshSpec(hosts=("a:1", "b:1"), seconds=1, channels=5)
    graph = job_of(write_job(Matrix(spec).graph("bench")))
    assert [node.function for node in graph.nodes] == [
        "netstack_bench.places.hosts.invokables:source",
        "netstack_bench.places.hosts.invokables:sink",
    ]
    assert [MeshSpec(**node.parameters["spec"]) for node in graph.nodes] == [spec, spec]
    assert graph.settings.network == Matrix(spec).network()
    assert [edge.channels for edge in graph.edges] == [5]
