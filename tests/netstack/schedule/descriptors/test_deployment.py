"""Descriptors of tasks: shared lists in the order of their group, unknown places, and what becomes known (T1)."""

from __future__ import annotations

import numpy as np
import pytest
from schedule.descriptors import loaded as load_parts

from netstack.base.errors import LocalProtocolError
from netstack.base.ids import ResultPartitionType
from netstack.schedule.descriptors.blob_store import MemoryBlobStore, Offloader, OffloadRule
from netstack.schedule.descriptors.deployment import Deployment
from netstack.schedule.descriptors.descriptors import TaskDeploymentDescriptor
from netstack.schedule.descriptors.information import JobInformation
from netstack.schedule.descriptors.shuffle import ShuffleDescriptors, TaskManagerLocation
from netstack.schedule.execution import ExecutionInput, Executions
from netstack.schedule.failover.release import PartitionTracker
from netstack.schedule.graph.job_graph import Dataset, DistributionPattern, JobEdge, JobGraph, JobVertex
from netstack.schedule.instructions import Deploy
from netstack.schedule.slots.slots import Location, PhysicalSlot
from netstack.schedule.structures import index_array
from netstack.schedule.topology.distribution import InputInfo, Piece
from netstack.schedule.topology.execution_graph import ExecutionGraph

LOCATIONS = [TaskManagerLocation(f"tm-{number}", f"tcp://tm-{number}:1") for number in range(4)]
PRODUCERS, CONSUMERS = index_array([0, 1, 2, 3]), index_array([4, 5, 6, 7])


class Setting:
    """Four producers, each on its own TaskManager, and four consumers."""

    def __init__(
        self,
        result: ResultPartitionType,
        *,
        pattern: DistributionPattern = DistributionPattern.ALL_TO_ALL,
        is_offloading: bool = False,
        only_finished: bool = False,
    ) -> None:
        self.topology = ExecutionGraph(
            JobGraph(
                "job",
                (JobVertex("source", 4, is_source=True, parameters={"rate": 5}), JobVertex("sink", 4, 64)),
                (Dataset("words", 0, result),),
                (JobEdge(0, 1, pattern),),
            )
        )
        self.executions = Executions()
        self.executions.grow(8)
        self.tracker = PartitionTracker()
        self.tracker.grow(4)
        self.store = MemoryBlobStore()
        rule = OffloadRule(0, 0) if is_offloading else OffloadRule(min_products=1 << 40)
        self.deployment = Deployment(
            JobInformation.of("run-1", self.topology.job),
            self.topology,
            self.executions,
            self.tracker,
            LOCATIONS,
            Offloader(self.store, "run-1", "me", rule),
            only_finished=only_finished,
        )

    def deploy_producers(self) -> None:
        self.executions.apply(PRODUCERS, ExecutionInput.SCHEDULE)
        self.executions.apply(PRODUCERS, ExecutionInput.DEPLOY)
        self.tracker.track(PRODUCERS, PRODUCERS, self.executions.attempts[PRODUCERS])

    def finish(self, *subtasks: int) -> None:
        self.executions.apply(index_array(subtasks), ExecutionInput.FINISH)
        for subtask in subtasks:
            self.topology.finish(subtask)

    def sent(self, *subtasks: int) -> list[TaskDeploymentDescriptor]:
        numbers = index_array(subtasks)
        slots = tuple(PhysicalSlot(Location("tm-0"), 3) for _ in subtasks)
        deploy = Deploy(numbers, self.executions.attempts[numbers], slots, 17)
        actual = dict(self.deployment.descriptors(deploy))
        assert [*actual] == [*subtasks]
        return [TaskDeploymentDescriptor.parse(data) for data in actual.values()]

    def addresses(self, descriptor: TaskDeploymentDescriptor) -> list[str]:
        loaded = load_parts(descriptor, lambda key: self.store.get("run-1", key))
        return [channel.address for channel in loaded.gates[0].gate().channels]


@pytest.mark.parametrize("is_offloading", [False, True])
def test_four_descriptors_in_the_order_of_the_group(is_offloading: bool) -> None:
    setting = Setting(ResultPartitionType.PIPELINED_BOUNDED, is_offloading=is_offloading)
    setting.deploy_producers()
    consumers = setting.sent(*CONSUMERS.tolist())
    assert len({descriptor.gates[0].groups for descriptor in consumers}) == 1
    for index, descriptor in enumerate(consumers):
        assert setting.addresses(descriptor) == [location.address for location in LOCATIONS]
        loaded = load_parts(descriptor, lambda key: setting.store.get("run-1", key))
        channels = loaded.gates[0].gate().channels
        assert {channel.subpartition for channel in channels} == {index}
        assert [channel.partition_id for channel in channels] == [f"run-1/words/{number}.0" for number in range(4)]
    assert setting.deployment.cache.statistics().misses == 1
    if is_offloading:
        assert sorted(key.split("-")[0] for key in setting.store.keys("run-1")) == ["job", "shuffle", "task"]
        with pytest.raises(LocalProtocolError, match="not loaded"):
            consumers[0].gates[0].gate()


def test_a_producer_is_told_what_it_writes_and_where_it_begins() -> None:
    setting = Setting(ResultPartitionType.PIPELINED_BOUNDED)
    setting.deploy_producers()
    (descriptor,) = setting.sent(2)
    assert str(descriptor.attempt) == "run-1_0_2_0"
    assert (descriptor.allocation, descriptor.restore, descriptor.gates) == ("tm-0/3", 17, ())
    (partition,) = descriptor.partitions
    assert (partition.name, partition.subpartitions, partition.max_parallelism) == ("run-1/words/2.0", 4, 64)
    assert partition.type is ResultPartitionType.PIPELINED_BOUNDED


def test_pointwise_consumers_have_a_list_each() -> None:
    setting = Setting(ResultPartitionType.PIPELINED_BOUNDED, pattern=DistributionPattern.POINTWISE)
    setting.deploy_producers()
    consumers = setting.sent(*CONSUMERS.tolist())
    assert [setting.addresses(descriptor) for descriptor in consumers] == [[actual.address] for actual in LOCATIONS]
    assert setting.deployment.cache.statistics().groups == 4


def test_a_streaming_job_is_told_known_places_only() -> None:
    setting = Setting(ResultPartitionType.PIPELINED_BOUNDED)
    with pytest.raises(LocalProtocolError, match="partition 0 of 'source', whose producer is created"):
        setting.sent(4)


def test_a_batch_job_is_told_what_is_complete() -> None:
    setting = Setting(ResultPartitionType.BLOCKING)
    setting.deploy_producers()
    setting.finish(1, 3)
    (descriptor,) = setting.sent(4)
    assert setting.addresses(descriptor) == ["", LOCATIONS[1].address, "", LOCATIONS[3].address]


def test_a_lost_partition_is_still_told_so_that_somebody_misses_it() -> None:
    setting = Setting(ResultPartitionType.BLOCKING)
    setting.deploy_producers()
    setting.finish(0, 1, 2, 3)
    setting.tracker.lose(range(2, 3))
    (descriptor,) = setting.sent(4)
    assert setting.addresses(descriptor)[2] == LOCATIONS[2].address


def test_of_hybrid_results_what_finishes_is_told_in_further_lists() -> None:
    setting = Setting(ResultPartitionType.HYBRID_FULL, only_finished=True)
    setting.deploy_producers()
    setting.finish(0)
    (first,) = setting.sent(4)
    assert (len(first.gates[0].groups), setting.addresses(first)) == (1, [LOCATIONS[0].address, "", "", ""])
    setting.finish(1, 2)
    (second,) = setting.sent(5)
    assert (len(second.gates[0].groups), setting.addresses(second)[3]) == (2, "")
    setting.finish(3)
    (third,) = setting.sent(6)
    assert (len(third.gates[0].groups), "" in setting.addresses(third)) == (3, False)
    (fourth,) = setting.sent(7)
    assert fourth.gates[0].groups == third.gates[0].groups


def test_consumers_that_are_there_are_told_what_has_become_known() -> None:
    setting = Setting(ResultPartitionType.HYBRID_FULL)
    setting.executions.apply(index_array([0, 1]), ExecutionInput.SCHEDULE)
    setting.tracker.track(index_array([0, 1]), index_array([0, 1]), np.zeros(2, np.uint32))
    (descriptor,) = setting.sent(4)
    assert setting.addresses(descriptor)[2:] == ["", ""]
    assert setting.deployment.updates() == []
    setting.executions.apply(index_array([2]), ExecutionInput.SCHEDULE)
    setting.tracker.track(index_array([2]), index_array([3]), np.zeros(1, np.uint32))
    setting.deployment.on_produced(index_array([2]))
    ((group, data),) = setting.deployment.updates()
    news = ShuffleDescriptors.decompress(data)
    assert (group, news.index.tolist(), news.channel(0, 0).address) == (0, [2], LOCATIONS[3].address)
    assert setting.deployment.updates() == []
    setting.deployment.on_produced(index_array([2]))
    assert setting.deployment.updates() == []
    (later,) = setting.sent(5)
    assert setting.addresses(later)[2:] == [LOCATIONS[3].address, ""]
    setting.deployment.invalidate(index_array([0]))
    setting.deployment.on_produced(index_array([2]))
    assert setting.deployment.updates() == []


def test_hybrid_results_are_read_while_they_are_produced() -> None:
    setting = Setting(ResultPartitionType.HYBRID_FULL)
    setting.deploy_producers()
    (descriptor,) = setting.sent(4)
    assert setting.addresses(descriptor) == [location.address for location in LOCATIONS]


def test_invalidated_lists_are_made_anew() -> None:
    setting = Setting(ResultPartitionType.PIPELINED_BOUNDED, is_offloading=True)
    setting.deploy_producers()
    (before,) = setting.sent(4)
    setting.executions.apply(index_array([1]), ExecutionInput.FAIL)
    setting.executions.apply(index_array([1]), ExecutionInput.RESET)
    setting.executions.apply(index_array([1]), ExecutionInput.SCHEDULE)
    setting.deployment.invalidate(index_array([0]))
    (after,) = setting.sent(4)
    assert before.gates[0].groups != after.gates[0].groups
    loaded = load_parts(after, lambda key: setting.store.get("run-1", key))
    assert loaded.gates[0].gate().channels[1].partition_id == "run-1/words/1.1"
    assert before.gates[0].groups[0] not in setting.store.keys("run-1")
    setting.deployment.clear()
    assert setting.store.keys("run-1") == []


def test_a_skewed_input_is_read_in_pieces() -> None:
    job = JobGraph(
        "job",
        (JobVertex("source", 2, 8, is_source=True), JobVertex("sink", -1, 8)),
        (Dataset("words", 0, ResultPartitionType.BLOCKING),),
        (JobEdge(0, 1, DistributionPattern.ALL_TO_ALL),),
        is_dynamic=True,
    )
    setting = Setting(ResultPartitionType.BLOCKING)
    setting.topology = ExecutionGraph(job)
    setting.topology.initialise(0)
    setting.topology.decide(1, 2)
    pieces = [[Piece(range(1), range(2)), Piece(range(1, 2), range(1))], [Piece(range(1, 2), range(1, 2))]]
    setting.topology.initialise(1, [InputInfo.of_pieces(pieces)])
    tracker = PartitionTracker()
    tracker.grow(2)
    executions = Executions()
    executions.grow(4)
    producers = index_array([0, 1])
    executions.apply(producers, ExecutionInput.SCHEDULE)
    tracker.track(producers, producers, np.zeros(2, np.uint32))
    setting.deployment = Deployment(
        JobInformation.of("run-1", setting.topology.job),
        setting.topology,
        executions,
        tracker,
        LOCATIONS,
        Offloader(setting.store, "run-1", "me"),
        only_finished=False,
    )
    one, other = setting.sent(2, 3)
    channels = one.gates[0].gate().channels
    assert [(channel.partition_id, channel.subpartition, channel.subpartitions) for channel in channels] == [
        ("run-1/words/0.0", 0, 2),
        ("run-1/words/1.0", 0, 1),
    ]
    assert [channel.subpartition for channel in other.gates[0].gate().channels] == [1]
