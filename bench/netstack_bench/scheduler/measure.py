"""Times every step of scheduling at a parallelism and at half of it.

Times are CPU time of the thread, because nothing waits. A step always does the same work, so the least of several
repeats counts. The two parallelisms take turns, so that disturbances affect both.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import thread_time_ns
from typing import Any, Final, final

from netstack.base.errors import ConfigError
from netstack.schedule.execution import Executions
from netstack.schedule.failover.release import PartitionRelease
from netstack.schedule.recovery import RegionFailover
from netstack.schedule.strategies.strategy import RegionScheduling, VertexwiseScheduling
from netstack.schedule.topology.execution_graph import ExecutionGraph
from netstack.schedule.topology.regions import Regions

from ..experiment import with_facts
from ..spec import Settings
from .trials import BATCH, STEPS, STREAMING, Cluster, Facts, Step, Trial, job_of, scheduler_of

MOST_PARALLELISM: Final = 32768
_REPEATS: Final = (5, 50)
_ENOUGH_NS: Final = 700_000_000


@final
@dataclass(frozen=True, slots=True)
class Timing:
    """One step at one parallelism: its fastest repeat, and its longest piece where that was least.

    `longest_ns` is None if the step has no pieces; `facts` should equal `expected`.
    """

    total_ns: int
    longest_ns: int | None
    facts: Facts
    expected: Facts


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSpec(Settings):
    """The parallelism of the source and of the sink."""

    parallelism: int

    def __post_init__(self) -> None:
        if not 2 <= self.parallelism <= MOST_PARALLELISM or self.parallelism % 2:
            raise ConfigError(f"--parallelism {self.parallelism}: give an even number from 2 to {MOST_PARALLELISM}")


def measure(
    spec: SchedulerSpec,
    *,
    steps: Mapping[str, Step] = STEPS,
    on_step: Callable[[str], None] | None = None,
    repeats: tuple[int, int] = _REPEATS,
) -> dict[str, Any]:
    """Times every step and returns the document of the command (`bench/netstack_bench/METHOD.md` describes each key).

    `repeats` are the minimum for each step, and the maximum for quick ones.
    """
    parallelism, report = spec.parallelism, on_step or (lambda _: None)
    halves: dict[str, Timing] = {}
    wholes: dict[str, Timing] = {}
    for name, step in steps.items():
        report(name)
        halves[name], wholes[name] = time_step(step, (parallelism // 2, parallelism), repeats)
    report("memory")
    memory, sizes = peak_bytes(parallelism), descriptor_sizes(parallelism)
    problems = _problems(halves, wholes)
    figures = {
        "parallelism": parallelism,
        **_headlines(wholes),
        "topology_bytes": memory["topology"],
        "descriptor_bytes": sizes.plain,
        "descriptor_compressed_bytes": sizes.compressed,
        "task_descriptor_bytes": sizes.tasks,
        "growth": {name: wholes[name].total_ns / halves[name].total_ns for name in wholes},
        "steps_ms": {name: timing.total_ns / 1e6 for name, timing in wholes.items()},
        "longest_step_ms": max(_longest_ms(wholes).values()),
        "longest_ms": _longest_ms(wholes),
        "memory_bytes": memory,
        "work": _work(wholes),
        "results": {name: dict(timing.facts) for name, timing in wholes.items()},
        "delivered": not problems,
        "warnings": problems,
    }
    return with_facts(spec, figures)


@final
@dataclass(frozen=True, slots=True)
class DescriptorSizes:
    """Bytes of the descriptors of a streaming job.

    `plain` and `compressed` are the list of shuffle descriptors that all sinks share, `tasks` the descriptors of all
    tasks.
    """

    plain: int
    compressed: int
    tasks: int


def descriptor_sizes(parallelism: int) -> DescriptorSizes:
    """Deploys a streaming job and returns the sizes of its descriptors."""
    cluster = Cluster(scheduler_of(parallelism, STREAMING), 2 * parallelism, parallelism)
    cluster.start()
    cache = cluster.scheduler.statistics().descriptors
    return DescriptorSizes(cache.plain_bytes, cache.compressed_bytes, cluster.done.deployed_bytes)


def peak_bytes(parallelism: int) -> dict[str, int]:
    """Peak memory of the construction of each structure.

    `topology` is Flink's execution graph: subtasks, partitions and groups, with states and attempts. `scheduler` is
    everything together.
    """
    job = job_of(parallelism, BATCH)
    topology = ExecutionGraph(job)
    regions = Regions(topology)

    def execution_graph() -> object:
        executions = Executions()
        executions.grow(2 * parallelism)
        return ExecutionGraph(job), executions

    return {
        "topology": _peak(execution_graph),
        "regions": _peak(lambda: Regions(topology)),
        "region_strategy": _peak(lambda: RegionScheduling(topology, regions)),
        "vertexwise_strategy": _peak(lambda: VertexwiseScheduling(topology)),
        "failover": _peak(lambda: RegionFailover(topology, regions)),
        "release": _peak(lambda: PartitionRelease(topology, regions)),
        "scheduler": _peak(lambda: scheduler_of(parallelism, BATCH)),
    }


def _peak(make: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        made = make()
        peak = tracemalloc.get_traced_memory()[1]
        del made
    finally:
        tracemalloc.stop()
    return peak


def time_step(step: Step, parallelisms: tuple[int, int], repeats: tuple[int, int]) -> tuple[Timing, Timing]:
    """The least of several repeats at each of two parallelisms; quick steps are repeated more often."""
    began_ns = thread_time_ns()
    timings = [_time_once(step(parallelism)) for parallelism in parallelisms]
    least, most = repeats
    for repeat in range(1, most):
        if repeat >= least and thread_time_ns() - began_ns > _ENOUGH_NS:
            break
        timings = [_least(best, _time_once(step(each))) for best, each in zip(timings, parallelisms, strict=True)]
    return timings[0], timings[1]


def _time_once(trial: Trial) -> Timing:
    cluster = trial.cluster
    before = 0 if cluster is None else len(cluster.done.step_ns)
    gc.collect()
    began_ns = thread_time_ns()
    facts = trial.work()
    total_ns = thread_time_ns() - began_ns
    if cluster is not None:
        return Timing(total_ns, max(cluster.done.step_ns[before:]), facts, trial.expected)
    return Timing(total_ns, None if trial.is_many else total_ns, facts, trial.expected)


def _least(one: Timing, other: Timing) -> Timing:
    longest_ns = None
    if one.longest_ns is not None and other.longest_ns is not None:
        longest_ns = min(one.longest_ns, other.longest_ns)
    wrong = one if one.facts != one.expected else other
    return Timing(min(one.total_ns, other.total_ns), longest_ns, wrong.facts, wrong.expected)


def _headlines(wholes: Mapping[str, Timing]) -> dict[str, float]:
    def slowest_ms(*names: str) -> float:
        return max((wholes[name].total_ns for name in names if name in wholes), default=0) / 1e6

    return {
        "init_ms": slowest_ms("create_scheduler_batch", "create_scheduler_streaming"),
        "regions_ms": slowest_ms("build_regions_batch", "build_regions_streaming"),
        "failover_ms": slowest_ms("restart_set_batch", "restart_set_streaming"),
        "deploy_ms": slowest_ms("deploy_tasks_streaming"),
    }


def _work(wholes: Mapping[str, Timing]) -> dict[str, int]:
    facts: dict[str, int] = {}
    for name in ("build_execution_graph", "build_regions_batch", "restart_set_batch"):
        if name in wholes:
            facts |= wholes[name].facts
    return facts


def _longest_ms(wholes: Mapping[str, Timing]) -> dict[str, float]:
    return {name: timing.longest_ns / 1e6 for name, timing in wholes.items() if timing.longest_ns is not None}


def _problems(*measured: Mapping[str, Timing]) -> list[str]:
    return [
        f"{name}: {dict(timing.facts)}, expected {dict(timing.expected)}"
        for timings in measured
        for name, timing in timings.items()
        if timing.facts != timing.expected
    ]
