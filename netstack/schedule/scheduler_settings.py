"""How a scheduler runs its job, and what it tells about itself.

Takes: values. Gives: frozen settings and statistics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from ..errors import ConfigError
from .descriptors.blob_store import DescriptorCacheStatistics, OffloadRule
from .execution.execution_states import ExecutionState, JobState
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
        placement: which TaskManager each subtask runs on; None leaves that to `mode`. With one the mode is not TASKS.
        slots: how long to wait for slots.
        offload: which parts of descriptors go to the blob store.
        adaptive: how the parallelism of a dynamic job is decided.
        hybrid: when hybrid results of a dynamic job count as consumable.
        scheduling: None schedules pipelined regions, and a dynamic job subtask by subtask; else one of the older ways,
            for jobs that are not dynamic.
        constraint: how many inputs a subtask needs before it is deployed, when the next stage waits for output.
        speculation: when a task is slow, and gets a second attempt; None: no task does.
        step_budget: how much is done in one step, in units of `work.COSTS`, about 10 microseconds each.
        builds: told to TaskManagers: of the packages that the job's functions are in, by their names.
        code: told to TaskManagers: packages that were sent with the job, and the blobs they are in.
        life: how many JobManagers had the job before, who counted attempts from 0 as well.

    Raises:
        ConfigError: steps that do nothing.
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
                "tasks that are placed one by one cannot be spread in mode `tasks` as well; leave one out"
            )


@final
@dataclass(frozen=True, slots=True)
class SpeculationStatistics:
    """What second attempts have brought.

    Attributes:
        slow: attempts that were found to be slow.
        started: attempts that were sent beside another.
        won: of these, how many finished first, or took the place of one that failed.
        failed: how many failed or were lost.
        blocked: TaskManagers that get nothing new, and until when.
    """

    slow: int
    started: int
    won: int
    failed: int
    blocked: Mapping[str, float]


@final
@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """What a scheduler has seen and done.

    Attributes:
        state: of the job.
        executions: how many subtasks are in each state.
        deployed: attempts that were sent to TaskManagers.
        failures: that the restart strategy was asked about.
        restarts: that it answered with.
        restarted: subtasks that were reset for another attempt.
        stale: reports, requests and timers that came for something that was superseded.
        steps: pieces of cut work.
        descriptors: the cache of shuffle descriptors.
        speculation: what second attempts have brought; None where there are none.
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
