"""Settings and statistics of a scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from ..base.errors import ConfigError
from .descriptors.blob_store import DescriptorCacheStatistics, OffloadRule
from .execution import ExecutionState, JobState
from .graph.settings import AdaptiveSettings, SpeculationSettings
from .slots.slot_pool import SlotPoolSettings
from .slots.slot_sharing import FixedPlacement
from .slots.slots import LoadBalanceMode
from .strategies.scheduling_types import InputConstraint, SchedulingType
from .strategies.strategy import HybridConsumption


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """How a job is run.

    Attributes:
        mode: how tasks are spread over TaskManagers.
        placement: the TaskManager of each subtask; None leaves that to `mode`. Cannot be combined with mode TASKS.
        offload: which parts of descriptors go to the blob store.
        adaptive: how the parallelism of a dynamic job is decided.
        hybrid: when hybrid results of a dynamic job count as consumable.
        scheduling: None schedules pipelined regions, and a dynamic job subtask by subtask; else one of the older types,
            for jobs that are not dynamic.
        constraint: with `NEXT_STAGE_ON_FIRST_OUTPUT`, how many inputs of a subtask must be consumable.
        speculation: when a task counts as slow and gets a speculative attempt; None: never.
        step_budget: the most work of one step, in units of `work.COSTS`, about 10 microseconds each.
        builds: sent to TaskManagers: the build of each package that has functions of the job, by name.
        code: sent to TaskManagers: packages that were sent with the job, and their blobs.
        life: how many JobManagers ran the job before; each counted attempts from 0.

    Raises:
        ConfigError: a step budget below 1, or a placement with mode TASKS.
    """

    mode: LoadBalanceMode = LoadBalanceMode.NONE
    placement: FixedPlacement | None = None
    slots: SlotPoolSettings = field(default_factory=SlotPoolSettings)
    offload: OffloadRule = field(default_factory=OffloadRule)
    adaptive: AdaptiveSettings = field(default_factory=AdaptiveSettings)
    hybrid: HybridConsumption = HybridConsumption.UNFINISHED_PRODUCERS
    scheduling: SchedulingType | None = None
    constraint: InputConstraint = InputConstraint.ANY
    speculation: SpeculationSettings | None = None
    step_budget: int = 1000
    builds: Mapping[str, str] = field(default_factory=dict)
    code: tuple[tuple[str, str], ...] = ()
    life: int = 0

    def __post_init__(self) -> None:
        if self.step_budget < 1:
            raise ConfigError(f"step_budget={self.step_budget}; give at least 1")
        if self.placement is not None and self.mode is LoadBalanceMode.TASKS:
            raise ConfigError(
                "placement fixes the TaskManager of each task, so mode `tasks` cannot spread them; leave one out"
            )


@final
@dataclass(frozen=True, slots=True)
class SpeculationStatistics:
    """Counters of speculative execution.

    Attributes:
        slow: attempts that were found to be slow.
        started: speculative attempts that were deployed.
        won: of these, how many finished first or replaced a failed attempt.
        failed: how many failed or were lost.
        blocked: TaskManagers that get no new tasks, and until when.
    """

    slow: int
    started: int
    won: int
    failed: int
    blocked: Mapping[str, float]


@final
@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """A snapshot of a scheduler.

    Attributes:
        failures: failures that the restart strategy decided about.
        restarts: failures that it answered with a restart.
        restarted: subtasks that were reset for another attempt.
        stale: reports, requests and timers about something superseded.
        steps: pieces of queued work.
        speculation: None where it is off.
    """

    state: JobState
    executions: Mapping[ExecutionState, int]
    deployed: int
    failures: int
    restarts: int
    restarted: int
    stale: int
    steps: int
    descriptors: DescriptorCacheStatistics
    speculation: SpeculationStatistics | None = None
