"""Law: channels and connections are those one finds by looking at every pair of subtasks."""

from __future__ import annotations

from hypothesis import given, strategies as st

from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import Partitioner
from netstack.schedule.plan.plan import Plan, SlotsIn, make_plan
from netstack.schedule.slots.slots import LoadBalanceMode
from netstack.schedule.topology.execution_graph import ExecutionGraph

_PARTITIONERS = [Partitioner.REBALANCE, Partitioner.RESCALE, Partitioner.BROADCAST]


@given(
    parallelism=st.lists(st.integers(1, 7), min_size=2, max_size=4),
    partitioners=st.lists(st.sampled_from(_PARTITIONERS), min_size=4, max_size=4),
    taskmanagers=st.integers(1, 5),
    mode=st.sampled_from(LoadBalanceMode),
    slots_in=st.sampled_from(SlotsIn),
    has_shortcut=st.booleans(),
    channels=st.integers(1, 3),
    prompt=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_counted_pair_by_pair(
    parallelism: list[int],
    partitioners: list[Partitioner],
    taskmanagers: int,
    mode: LoadBalanceMode,
    slots_in: SlotsIn,
    has_shortcut: bool,
    channels: int,
    prompt: list[bool],
) -> None:
    job = StreamEnvironment()
    whole = job.invokable("a:b").set_parallelism(parallelism[0]).rebalance()
    job.invokable("a:b", whole.with_channels(channels).prompt(prompt[0])).set_parallelism(parallelism[1])
    first = stream = job.source("a:b").set_parallelism(parallelism[0])
    for count, partitioner, is_prompt in zip(parallelism[1:], partitioners, prompt[1:], strict=False):
        stream = stream.partition_by(partitioner).prompt(is_prompt).map("a:b").set_parallelism(count)
    if has_shortcut:
        first.partition_by(partitioners[-1]).prompt(prompt[-1]).connect(stream.rebalance(), "a:b")
    plan = make_plan(job.stream_graph(), taskmanagers=taskmanagers, mode=mode, slots_in=slots_in)
    assert plan.placement is not None
    assert plan.channels is not None
    topology = ExecutionGraph(plan.job)
    dialled = set()
    for number, (edge, counted) in enumerate(zip(plan.job.edges, plan.channels.edges, strict=True)):
        producers = _processes(plan, plan.job.datasets[edge.dataset].producer)
        consumers = _processes(plan, edge.consumer)
        info = topology.input_info(number)
        pairs = [
            (consumers[consumer], producers[producer])
            for consumer in range(len(consumers))
            for piece in info.pieces_of(consumer)
            for producer in piece.partitions
            for _ in piece.subpartitions
        ]
        dataset = topology.job.edges[number].dataset
        assert counted.per_producer.tolist() == topology.subpartition_counts(dataset).tolist()
        remote = [pair for pair in pairs if pair[0] != pair[1]]
        assert (counted.channels, counted.remote, counted.connections) == (len(pairs), len(remote), len(set(remote)))
        assert counted.within == sum(here[0] == there[0] for here, there in set(remote))
        assert counted.per_consumer.sum() == counted.per_producer.sum() == len(pairs)
        assert counted.remote_per_consumer.sum() == len(remote)
        dialled.update((*pair, edge.is_prompt) for pair in remote)
    for number in range(taskmanagers * plan.processes):
        process = divmod(number, plan.processes)
        assert plan.channels.dialled[number] == sum(pair[0] == process for pair in dialled)
        assert plan.channels.accepted[number] == sum(pair[1] == process for pair in dialled)
    within = [here[0] == there[0] for here, there, _ in dialled]
    assert (plan.channels.within, plan.channels.tcp_connections) == (sum(within), len(within) - sum(within))
    all_dialled, all_accepted, required, most = plan.taskmanager_rows()
    assert all_dialled.sum() == all_accepted.sum() == len(dialled)
    assert len(required) == len(most) == taskmanagers


def _processes(plan: Plan, vertex: int) -> list[tuple[int, int]]:
    """TaskManager and process of each subtask: its slot, or the only one."""
    assert plan.placement is not None
    slots = plan.placement.slots_of(vertex).tolist()
    return [
        (taskmanager, slot if plan.slots_in is SlotsIn.PROCESSES else 0)
        for taskmanager, slot in zip(plan.placement.taskmanagers_of(vertex).tolist(), slots, strict=True)
    ]
