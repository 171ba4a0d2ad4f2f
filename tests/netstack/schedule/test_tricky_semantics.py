"""What is easiest to get wrong about scheduling, one test each, from the outside where that can be seen."""

from __future__ import annotations

import numpy as np
import pytest
from group_views import consumer_vertex_group
from job_shapes import job_graph, job_of
from schedule.played import Play, canceled, deployed, timer

from netstack.cluster.jobmanager.job_master.inbox import Inbox
from netstack.schedule.adaptive.cut import PlainRow, cut_by_size
from netstack.schedule.adaptive.parallelism import decide, nearest_power_of_two
from netstack.schedule.descriptors.blob_store import MIB, MemoryBlobStore, Offloader, OffloadRule
from netstack.schedule.descriptors.shuffle import TaskManagerLocation
from netstack.schedule.events import GlobalFailure, SlotsOffered, TaskManagerLost, TaskManagerRegistered, Tick
from netstack.schedule.execution import ExecutionInput
from netstack.schedule.failover.restart import FixedDelay
from netstack.schedule.graph.job_graph import UNDECIDED, DistributionPattern
from netstack.schedule.graph.settings import AdaptiveSettings
from netstack.schedule.graph.slot_groups import required_slots
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import StreamSettings
from netstack.schedule.recovery import RegionFailover
from netstack.schedule.scheduler_settings import SchedulerSettings
from netstack.schedule.slots.placement import place
from netstack.schedule.slots.slot_matching import match_balanced
from netstack.schedule.slots.slot_pool import SlotPool
from netstack.schedule.slots.slot_sharing import local_input_preferred, task_balanced
from netstack.schedule.slots.slots import LoadBalanceMode, Location, PhysicalSlot, SlotRequest
from netstack.schedule.strategies.scheduling_types import SchedulingType
from netstack.schedule.strategies.strategy import RegionScheduling
from netstack.schedule.structures import strongly_connected_components
from netstack.schedule.topology.distribution import dynamic_subpartitions
from netstack.schedule.topology.execution_graph import ExecutionGraph
from netstack.schedule.topology.regions import Regions

ALL, POINTWISE = DistributionPattern.ALL_TO_ALL, DistributionPattern.POINTWISE
F = "jobs:function"


def read_by(text: str) -> list[tuple[int, int]]:
    """For each consumer of the only edge, the first partition and subpartition that it reads."""
    reads = ExecutionGraph(job_of(text)).input_info(0)
    pieces = [reads.pieces_of(subtask) for subtask in range(reads.parallelism)]
    return [(piece.partitions.start, piece.subpartitions.start) for (piece,) in pieces]


def test_01_a_blocking_shuffle_makes_one_region_only_inside_a_logical_region() -> None:
    assert len(Regions(ExecutionGraph(job_of("s(50) -all,blocking-> k(50)")))) == 100
    around = "s(50) -pointwise,pipelined-> m(50); s -all,blocking-> k(50); m -pointwise,pipelined-> k"
    assert len(Regions(ExecutionGraph(job_of(around)))) == 1


def test_02_a_static_fan_out_is_rotated_by_the_index_in_the_vertex() -> None:
    assert read_by("a(2) -pointwise,pipelined-> b(5)") == [(0, 0), (0, 1), (0, 2), (1, 1), (1, 0)]


def test_03_the_last_consumer_reads_the_surplus_and_the_first_producer_serves_it() -> None:
    narrow = ExecutionGraph(job_of("a(5) -pointwise,pipelined-> b(2)")).groups
    assert [len(narrow.partitions_of(group)) for group in range(2)] == [2, 3]
    wide = ExecutionGraph(job_of("a(2) -pointwise,pipelined-> b(5)")).groups
    assert [len(wide.consumers_of(group)) for group in range(2)] == [3, 2]


def test_04_a_result_that_two_edges_read_has_two_groups_that_are_not_equal_for_being_alike() -> None:
    topology = ExecutionGraph(job_of("a(2) -all,blocking=x-> b(2); a -all,blocking=x-> c(2)"))
    one, other = topology.groups_of_partition(0)
    groups = topology.groups
    assert one != other
    assert groups.partitions_of(one) == groups.partitions_of(other)
    assert consumer_vertex_group(groups, one).subtasks != consumer_vertex_group(groups, other).subtasks


def test_05_a_blocking_result_is_consumable_group_by_group_and_was_as_a_whole_once() -> None:
    job = job_of("a(2) -pointwise,blocking-> b(2)")
    now = Play(job)
    now.start()
    assert deployed(now.finish(0)) == [2]
    older = SchedulerSettings(scheduling=SchedulingType.NEXT_STAGE_ON_COMPLETE_OUTPUT)
    then = Play(job, settings=older)
    then.start()
    assert deployed(then.finish(0)) == []
    assert deployed(then.finish(1)) == [2, 3]


def test_06_finished_consumers_restart_with_their_producer_and_finished_producers_outlive_their_taskmanager() -> None:
    play = Play(job_of("a(1) -all,blocking-> b(1) -all,blocking-> c(1)"), restart=FixedDelay(9, 0.0))
    play.start()
    play.finish(0)
    play.give(TaskManagerLost(play.where[0], "gone"))
    assert play.states()[0] == "finished"
    play = Play(job_of("a(1) -all,blocking-> b(2)"), restart=FixedDelay(9, 0.0))
    play.start()
    play.finish(0)
    play.finish(1)
    message = play.fail(2, missing_partition=0, missing_attempt=0)
    assert canceled(message) == []
    assert deployed(play.due(timer(message))) == [0]
    assert play.states() == ["deploying", "created", "created"]


def test_07_what_is_consumed_once_only_is_never_there_for_a_restart() -> None:
    for type_, restarted in (
        ("hybrid_selective", [0, 1]),
        ("pipelined_bounded", [0, 1]),
        ("hybrid_full", [1]),
        ("blocking", [1]),
        ("pipelined_approximate", [1]),
    ):
        topology = ExecutionGraph(job_of(f"a(1) -all,{type_}-> b(1)"))
        failover = RegionFailover(topology, Regions(topology))
        assert failover.subtasks_to_restart(1, np.ones(1, np.bool_)).tolist() == restarted


def test_08_widest_vertices_leave_the_cursor_and_matching_is_all_or_nothing_by_tasks_of_a_taskmanager() -> None:
    chain = "a(1) -all,pipelined-> b(4) -all,pipelined-> c(4) -all,pipelined-> d(2) -all,pipelined-> e(3)"
    slots = [groups.tolist() for groups in task_balanced(job_of(chain)).of_vertex]
    assert slots == [[0], [0, 1, 2, 3], [0, 1, 2, 3], [1, 2], [3, 0, 1]]
    four = [PhysicalSlot(Location(f"tm{number}"), index) for number in range(2) for index in range(2)]
    loads = (4, 4, 3, 3)
    tasks = {"tm0": 0, "tm1": 0}
    for match in match_balanced([SlotRequest(group, load=load) for group, load in enumerate(loads)], four):
        tasks[match.slot.location.taskmanager] += match.request.load
    assert tasks == {"tm0": 7, "tm1": 7}
    pool = SlotPool(LoadBalanceMode.TASKS)
    pool.request([SlotRequest(group) for group in range(5)], 0.0)
    assert pool.offer(four, 1.0) == []
    assert len(pool.offer([PhysicalSlot(Location("tm2"), 0)], 2.0)) == 5


@pytest.mark.parametrize(("pattern", "tasks"), [("all", [4, 3, 2]), ("pointwise", [3, 3, 3])])
def test_09_what_the_default_comes_to_depends_on_the_edge(pattern: str, tasks: list[int]) -> None:
    assert place(job_of(f"a(6) -{pattern},pipelined-> b(3)"), [2, 2, 2]).tasks.tolist() == tasks


def test_10_candidates_belong_to_all_consumers_of_a_group_and_a_second_pass_serves_the_rest() -> None:
    # The four consumers take the slots of the two producers in order; only then the rest look for any.
    job = job_of("a(1); b(2); a -all,pipelined-> c(4); b -all,pipelined-> c")
    assert local_input_preferred(job).of_vertex[2].tolist() == [0, 1, 2, 3]
    # Consumer 1 of 3 has no room beside its producer, and does not take the slot that consumer 2 fits.
    assert local_input_preferred(job_of("a(2) -pointwise,pipelined-> b(3)")).of_vertex[1].tolist() == [0, 2, 1]


def test_11_in_batch_the_default_group_is_one_for_each_region() -> None:
    slots = []
    for is_batch in (False, True):
        job = StreamEnvironment(parallelism=4, settings=StreamSettings(is_batch=is_batch))
        job.source(F).rebalance().map(F).rebalance().sink(F)
        slots.append(required_slots(job_graph(job.stream_graph())))
    assert slots == [4, 12]


def test_12_ties_go_up_the_maximum_down_the_minimum_up_and_sources_are_left_alone() -> None:
    assert [nearest_power_of_two(number) for number in (3, 6, 12, 24, 48)] == [4, 8, 16, 32, 64]
    settings = AdaptiveSettings(min_parallelism=3, max_parallelism=100, default_source_parallelism=10, is_rounded=True)
    assert settings.bounds == (4, 64)
    assert decide([], settings).parallelism == 10


def test_13_too_few_stretches_are_cut_at_the_smallest_limit_that_gives_as_many_as_the_largest() -> None:
    row = PlainRow([10, 15, 13, 12, 1, 10, 8, 20, 12, 17], 10)
    enough = [limit for limit in range(1, 119) if len(row.cut(limit)) >= 4]
    as_many = [limit for limit in enough if len(row.cut(limit)) == len(row.cut(max(enough)))]
    assert (max(enough), row.cut(max(enough))) == (48, [0, 3, 7, 9])
    assert (min(as_many), row.cut(min(as_many))) == (36, [0, 2, 6, 8])
    assert cut_by_size(row, 1000, 4, 10) == [0, 2, 6, 8]


def test_14_subpartitions_follow_a_fixed_consumer_and_pointwise_ones_are_shared_by_producers() -> None:
    assert dynamic_subpartitions(ALL, 6, 10, 128) == 10
    assert dynamic_subpartitions(ALL, 6, UNDECIDED, 128) == 128
    assert dynamic_subpartitions(POINTWISE, 6, UNDECIDED, 128) == 22
    assert dynamic_subpartitions(POINTWISE, 6, 10, 128) == 2


def test_15_a_list_of_270_kib_is_small_by_size_and_large_by_the_product() -> None:
    data = bytes(270 << 10)
    assert OffloadRule().min_size_bytes == MIB

    def is_offloaded(rule: OffloadRule, descriptors: int, consumers: int) -> bool:
        offloader = Offloader(MemoryBlobStore(), "job", "run", rule)
        return isinstance(offloader.shuffle_descriptors(data, descriptors, consumers), str)

    assert not is_offloaded(OffloadRule(min_products=None), 10_000, 10_000)
    assert is_offloaded(OffloadRule(100 << 10, None), 10_000, 10_000)
    assert is_offloaded(OffloadRule(), 2_048, 2_048)
    assert not is_offloaded(OffloadRule(), 2_048, 2_047)


def test_16_a_late_callback_is_dropped_by_its_version_though_the_state_is_the_same() -> None:
    play = Play(job_of("a(1) -all,pipelined-> b(1)"), restart=FixedDelay(9, 5.0))
    play.start()
    first = timer(play.give(GlobalFailure("one")))
    second = timer(play.give(GlobalFailure("another, before the first restart")))
    play.report(ExecutionInput.CANCELED, 0, 1)
    assert play.states() == ["canceled", "canceled"]
    assert deployed(play.due(first)) == []
    assert play.states() == ["canceled", "canceled"]
    assert play.scheduler.statistics().stale >= 2
    assert deployed(play.due(second)) == [0, 1]


@pytest.mark.slow
def test_17_nothing_recurses_however_long_the_job_is() -> None:
    length = 3_000
    job = StreamEnvironment()
    stream = job.source(F)
    for _ in range(length):
        stream = stream.map(F)
    (vertex,) = job_graph(job.stream_graph()).vertices
    assert len(vertex.operators) == length + 1
    ring = np.arange(10_000, dtype=np.int32)
    assert not strongly_connected_components(ring.size, ring, np.roll(ring, -1)).any()
    topology = ExecutionGraph(
        job_of("v0(1)" + "".join(f" -all,hybrid_full-> v{index}(1)" for index in range(1, 1_100)))
    )
    assert len(RegionScheduling(topology, Regions(topology)).start()) == 1_100


def test_18_after_a_stall_what_came_meanwhile_is_heard_before_timers() -> None:
    play = Play(job_of("a(1) -all,pipelined-> b(1)"), taskmanagers=0, restart=FixedDelay(9, 0.0))
    play.start()
    inbox = Inbox()
    late_s = 1_000.0
    inbox.post(Tick())
    inbox.post(TaskManagerRegistered(TaskManagerLocation("tm", "tcp://tm:1")))
    inbox.post(SlotsOffered("tm", (0,)))
    while (event := inbox.take()) is not None:
        play.give(event, late_s)
    assert play.states() == ["deploying", "deploying"]
    assert play.scheduler.statistics().failures == 0
