"""The timed steps of scheduling a source and a sink with an all-to-all edge.

The steps are those of Flink's scheduler benchmarks. Their preparation is not timed. Slots and TaskManagers are events.
The result of every step is checked. A step is one call of `handle` and the work of its instructions: the time during
which the scheduler's thread is blocked. It is CPU time, because nothing waits. The time in events is constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import thread_time_ns
from typing import Final, TypeAlias, final

import numpy as np

from netstack.base.ids import ResultPartitionType
from netstack.schedule.descriptors.shuffle import TaskManagerLocation
from netstack.schedule.events import (
    Event,
    GlobalFailure,
    Proceed,
    SlotsOffered,
    StartJob,
    TaskManagerRegistered,
    TasksReported,
    TimerDue,
)
from netstack.schedule.execution import ExecutionInput, ExecutionState
from netstack.schedule.failover.release import PartitionRelease
from netstack.schedule.failover.restart import FixedDelay
from netstack.schedule.graph.job_graph import Dataset, DistributionPattern, JobEdge, JobGraph, JobVertex
from netstack.schedule.instructions import Cancel, Continue, Deploy, Instruction, ReleasePartitions, StartTimer
from netstack.schedule.recovery import RegionFailover
from netstack.schedule.scheduler import Scheduler
from netstack.schedule.scheduler_settings import SchedulerSettings
from netstack.schedule.slots.slots import LoadBalanceMode
from netstack.schedule.strategies.strategy import HybridConsumption, RegionScheduling, VertexwiseScheduling
from netstack.schedule.structures import IndexArray, index_array
from netstack.schedule.topology.execution_graph import ExecutionGraph
from netstack.schedule.topology.regions import Regions

SLOTS_PER_TASKMANAGER: Final = 4

_NOW_S: Final = 0.0


@final
@dataclass(slots=True)
class Done:
    """Counters of the work of a scheduler: tasks, partitions, bytes of descriptors, and the length of each step."""

    deployed: int = 0
    deployed_bytes: int = 0
    canceled: int = 0
    released: int = 0
    releases: int = 0
    step_ns: list[int] = field(default_factory=list)


@final
class Cluster:
    """A cluster with as many TaskManagers as the job of a scheduler needs."""

    def __init__(self, scheduler: Scheduler, subtasks: int, slots: int) -> None:
        self.scheduler = scheduler
        self.done = Done()
        self.keeps_deployments = False
        """Whether descriptors are deferred to `make_descriptors`, to be timed alone."""
        self._kept: list[Deploy] = []
        self._timers: list[int] = []
        self._attempts = np.zeros(subtasks, np.uint32)
        for first in range(0, slots, SLOTS_PER_TASKMANAGER):
            number = first // SLOTS_PER_TASKMANAGER
            host = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
            location = TaskManagerLocation(f"taskmanager-{number}", f"tcp://{host}:6121", host)
            here = range(min(SLOTS_PER_TASKMANAGER, slots - first))
            self._handle(TaskManagerRegistered(location))
            self._handle(SlotsOffered(location.name, tuple(here)))

    def start(self) -> None:
        """Starts the job and deploys all tasks that can be deployed."""
        self._handle(StartJob())

    def report(self, what: ExecutionInput, subtasks: range) -> None:
        """Reports a state of tasks in one event."""
        numbers = np.arange(subtasks.start, subtasks.stop, dtype=np.int32)
        self._report(what, numbers)

    def run(self, subtasks: range) -> None:
        """Reports that deployed tasks run."""
        self.report(ExecutionInput.INITIALIZE, subtasks)
        self.report(ExecutionInput.RUN, subtasks)

    def fail_globally(self) -> None:
        """Fails the job globally: all tasks are cancelled, and restart after the delay."""
        self._handle(GlobalFailure("the coordinator has failed"))
        while self._timers:
            self._handle(TimerDue(self._timers.pop()))

    def make_descriptors(self) -> None:
        """Makes and serialises the deferred descriptors."""
        for deploy in self._kept:
            self._make(deploy)
        self._kept.clear()

    def _report(self, what: ExecutionInput, subtasks: IndexArray) -> None:
        self._handle(TasksReported(what, subtasks, self._attempts[subtasks]))

    def _handle(self, event: Event | None) -> None:
        canceled: list[IndexArray] = []
        while event is not None:
            began_ns = thread_time_ns()
            instructions = self.scheduler.handle(event, _NOW_S)
            for instruction in instructions:
                self._carry_out(instruction)
            self.done.step_ns.append(thread_time_ns() - began_ns)
            canceled += [instruction.subtasks for instruction in instructions if isinstance(instruction, Cancel)]
            goes_on = any(isinstance(instruction, Continue) for instruction in instructions)
            event = Proceed() if goes_on else None
        for subtasks in canceled:
            self._report(ExecutionInput.CANCELED, subtasks)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Deploy():
                self._attempts[instruction.subtasks] = instruction.attempts
                if self.keeps_deployments:
                    self._kept.append(instruction)
                else:
                    self._make(instruction)
            case Cancel():
                self.done.canceled += instruction.subtasks.size
            case ReleasePartitions():
                self.done.released += instruction.partitions.size
                self.done.releases += 1
            case StartTimer():
                self._timers.append(instruction.timer)

    def _make(self, deploy: Deploy) -> None:
        for _, descriptor in self.scheduler.descriptors(deploy):
            self.done.deployed += 1
            self.done.deployed_bytes += len(descriptor)


STREAMING: Final = ResultPartitionType.PIPELINED_BOUNDED
BATCH: Final = ResultPartitionType.BLOCKING

Facts: TypeAlias = Mapping[str, int]


@final
@dataclass(frozen=True, slots=True)
class Trial:
    """One prepared step: `work` does it once and returns its result, `expected` if it is correct."""

    work: Callable[[], Facts]
    expected: Facts
    cluster: Cluster | None = None  # its steps are the pieces of the work; None if a scheduler does it in one step
    is_many: bool = False  # whether it is many steps of a scheduler, without a cluster


Step: TypeAlias = Callable[[int], Trial]


def job_of(parallelism: int, type: ResultPartitionType) -> JobGraph:
    """A source and a sink with an all-to-all edge."""
    vertices = tuple(
        JobVertex(name, parallelism, max_parallelism=parallelism, invokable=f"job:{name}", is_source=name == "source")
        for name in ("source", "sink")
    )
    edge = JobEdge(0, 1, DistributionPattern.ALL_TO_ALL)
    return JobGraph("scheduler benchmark", vertices, (Dataset("shuffle", 0, type),), (edge,))


def scheduler_of(
    parallelism: int, type: ResultPartitionType, mode: LoadBalanceMode = LoadBalanceMode.NONE
) -> Scheduler:
    """A scheduler that restarts once."""
    settings = SchedulerSettings(mode=mode)
    return Scheduler(job_of(parallelism, type), "benchmark", restart=FixedDelay(1), settings=settings)


def sources(parallelism: int) -> range:
    """Subtasks of the source."""
    return range(parallelism)


def sinks(parallelism: int) -> range:
    """Subtasks of the sink."""
    return range(parallelism, 2 * parallelism)


def _finished(topology: ExecutionGraph, parallelism: int) -> None:
    for source in sources(parallelism):
        topology.finish(source)


def build_execution_graph(parallelism: int) -> Trial:
    """From a job graph to subtasks and groups."""
    job = job_of(parallelism, BATCH)

    def work() -> Facts:
        topology = ExecutionGraph(job)
        # An entry is both a group of partitions and a group of consumers.
        return {"subtasks": topology.subtask_count, "groups": 2 * len(topology.groups)}

    return Trial(work, {"subtasks": 2 * parallelism, "groups": 2})


def build_regions(type: ResultPartitionType) -> Step:
    """From groups to pipelined regions."""

    def step(parallelism: int) -> Trial:
        topology = ExecutionGraph(job_of(parallelism, type))
        regions = 1 if type is STREAMING else 2 * parallelism
        return Trial(lambda: {"regions": len(Regions(topology))}, {"regions": regions})

    return step


def init_region_strategy(parallelism: int) -> Trial:
    """The state of the region strategy, which first starts only sources."""
    topology = ExecutionGraph(job_of(parallelism, BATCH))
    regions = Regions(topology)

    def work() -> Facts:
        return {"started": len(RegionScheduling(topology, regions).start())}

    return Trial(work, {"started": parallelism})


def init_vertexwise_strategy(parallelism: int) -> Trial:
    """The state of the vertex-wise strategy."""
    topology = ExecutionGraph(job_of(parallelism, BATCH))
    return Trial(lambda: {"started": len(VertexwiseScheduling(topology).start())}, {"started": parallelism})


def create_scheduler(type: ResultPartitionType) -> Step:
    """Job initialization: everything from the job graph on."""

    def step(parallelism: int) -> Trial:
        def work() -> Facts:
            states = scheduler_of(parallelism, type).statistics().executions
            return {"created": states[ExecutionState.CREATED]}

        return Trial(work, {"created": 2 * parallelism})

    return step


def schedule_and_deploy(type: ResultPartitionType) -> Step:
    """From the start of the job until all possible tasks are deployed, descriptors included."""

    def step(parallelism: int) -> Trial:
        cluster = Cluster(scheduler_of(parallelism, type), 2 * parallelism, parallelism)

        def work() -> Facts:
            cluster.start()
            return {"deployed": cluster.done.deployed}

        return Trial(work, {"deployed": parallelism * (2 if type is STREAMING else 1)}, cluster)

    return step


def deploy_streaming(parallelism: int) -> Trial:
    """Makes and serialises the descriptors of all tasks; all have slots."""
    cluster = Cluster(scheduler_of(parallelism, STREAMING), 2 * parallelism, parallelism)
    cluster.keeps_deployments = True
    cluster.start()
    return _make_descriptors(cluster, 2 * parallelism)


def deploy_downstream_batch(parallelism: int) -> Trial:
    """Descriptors of the sinks, after the sources have finished."""
    cluster = _running_sources(parallelism)
    cluster.keeps_deployments = True
    cluster.report(ExecutionInput.FINISH, sources(parallelism))
    return _make_descriptors(cluster, parallelism)


def _running_sources(parallelism: int) -> Cluster:
    cluster = Cluster(scheduler_of(parallelism, BATCH), 2 * parallelism, parallelism)
    cluster.start()
    cluster.run(sources(parallelism))
    return cluster


def _make_descriptors(cluster: Cluster, tasks: int) -> Trial:
    before = cluster.done.deployed

    def work() -> Facts:
        cluster.make_descriptors()
        cache = cluster.scheduler.statistics().descriptors
        return {"descriptors": cluster.done.deployed - before, "cached_lists": cache.lists}

    return Trial(work, {"descriptors": tasks, "cached_lists": 1}, is_many=True)


def schedule_downstream(type: ResultPartitionType, hybrid: HybridConsumption) -> Step:
    """All source partitions are finished; the vertex-wise strategy handles the end of the first source."""

    def step(parallelism: int) -> Trial:
        topology = ExecutionGraph(job_of(parallelism, type))
        strategy = VertexwiseScheduling(topology, hybrid)
        started = len(strategy.start())
        _finished(topology, parallelism)
        early = hybrid is HybridConsumption.UNFINISHED_PRODUCERS and not type.is_blocking

        def work() -> Facts:
            return {"sinks_scheduled": started + len(strategy.on_finished(0)) - parallelism}

        if not early:
            return Trial(work, {"sinks_scheduled": parallelism})
        # Hybrid sinks start together with their sources, so the start takes the time.
        return Trial(
            lambda: {"sinks_scheduled": len(VertexwiseScheduling(topology, hybrid).start()) - parallelism},
            {"sinks_scheduled": parallelism},
        )

    return step


def restart_set(type: ResultPartitionType) -> Step:
    """The subtasks to restart after the first source fails; batch: all sources have finished."""

    def step(parallelism: int) -> Trial:
        topology = ExecutionGraph(job_of(parallelism, type))
        failover = RegionFailover(topology, Regions(topology))
        _finished(topology, parallelism)
        failed, is_tracked = index_array([0]), np.ones(topology.partition_count, np.bool_)
        expected = 2 * parallelism if type is STREAMING else parallelism + 1
        return Trial(
            lambda: {"restart_set": failover.subtasks_to_restart(failed, is_tracked).size}, {"restart_set": expected}
        )

    return step


def release_partitions(parallelism: int) -> Trial:
    """Every sink finishes, and the last releases the partitions that all of them have read."""
    topology = ExecutionGraph(job_of(parallelism, BATCH))
    release = PartitionRelease(topology, Regions(topology))
    _finished(topology, parallelism)

    def work() -> Facts:
        releases = [release.on_finished(sink) for sink in sinks(parallelism)]
        groups = sum(len(each.groups) for each in releases)
        return {"groups_released": groups, "partitions_released_by_the_last": releases[-1].partitions.size}

    return Trial(work, {"groups_released": 1, "partitions_released_by_the_last": parallelism}, is_many=True)


def finish_sinks(parallelism: int) -> Trial:
    """The same through the scheduler, up to the end of the job."""
    cluster = _running_sources(parallelism)
    cluster.report(ExecutionInput.FINISH, sources(parallelism))
    cluster.run(sinks(parallelism))

    def work() -> Facts:
        cluster.report(ExecutionInput.FINISH, sinks(parallelism))
        return {"partitions_released": cluster.done.released, "releases": cluster.done.releases}

    return Trial(work, {"partitions_released": parallelism, "releases": 1}, cluster)


def restart_all(type: ResultPartitionType, mode: LoadBalanceMode) -> Step:
    """A global failure: every running task is cancelled and deployed again."""

    def step(parallelism: int) -> Trial:
        cluster = Cluster(scheduler_of(parallelism, type, mode), 2 * parallelism, parallelism)
        cluster.start()
        tasks = range(cluster.done.deployed)
        cluster.run(tasks)

        def work() -> Facts:
            cluster.fail_globally()
            return {"canceled": cluster.done.canceled, "deployed_again": cluster.done.deployed - len(tasks)}

        return Trial(work, {"canceled": len(tasks), "deployed_again": len(tasks)}, cluster)

    return step


_NONE, _SLOTS = LoadBalanceMode.NONE, LoadBalanceMode.SLOTS
_HYBRID: Final = ResultPartitionType.HYBRID_FULL

STEPS: Final[Mapping[str, Step]] = {
    "build_execution_graph": build_execution_graph,
    "build_regions_batch": build_regions(BATCH),
    "build_regions_streaming": build_regions(STREAMING),
    "init_region_strategy": init_region_strategy,
    "init_vertexwise_strategy": init_vertexwise_strategy,
    "create_scheduler_batch": create_scheduler(BATCH),
    "create_scheduler_streaming": create_scheduler(STREAMING),
    "schedule_and_deploy_batch": schedule_and_deploy(BATCH),
    "schedule_and_deploy_streaming": schedule_and_deploy(STREAMING),
    "deploy_tasks_streaming": deploy_streaming,
    "deploy_downstream_batch": deploy_downstream_batch,
    "schedule_downstream_batch": schedule_downstream(BATCH, HybridConsumption.UNFINISHED_PRODUCERS),
    "schedule_downstream_hybrid": schedule_downstream(_HYBRID, HybridConsumption.UNFINISHED_PRODUCERS),
    "schedule_downstream_hybrid_partial": schedule_downstream(_HYBRID, HybridConsumption.ONLY_FINISHED_PRODUCERS),
    "schedule_downstream_hybrid_finished": schedule_downstream(_HYBRID, HybridConsumption.ALL_PRODUCERS_FINISHED),
    "restart_set_batch": restart_set(BATCH),
    "restart_set_streaming": restart_set(STREAMING),
    "release_partitions": release_partitions,
    "finish_sinks": finish_sinks,
    "restart_all_batch": restart_all(BATCH, _NONE),
    "restart_all_streaming": restart_all(STREAMING, _NONE),
    "restart_all_batch_evenly": restart_all(BATCH, _SLOTS),
    "restart_all_streaming_evenly": restart_all(STREAMING, _SLOTS),
}
"""Every step by name, in the order of a job's life."""
