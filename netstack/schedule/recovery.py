"""Failover: decides which subtasks restart, when they restart, and when the job fails.

Rules:
- A region that restarts produces again, so every region that consumes from it restarts, finished or not. Its inputs
  must be available: the producers of unavailable partitions restart too. Regions and groups are handled as whole
  arrays, each once: the work is linear in subtasks, with about 35 microseconds per stage of a chain. It is not cut,
  because all of the set is superseded at once.
- The restart strategy decides once per failure. The failure of a task that is being canceled does not count, nor that
  of one attempt while another attempt of the subtask can continue (`speculation`). A failure that names a lost
  partition always counts: its producer has to restart.
- Subtasks that restart are superseded at once: their versions are bumped, so whatever waits for them is stale; their
  partitions are void and leave the descriptors; their tasks are canceled.
- They are reset and scheduled again when all of the tasks have stopped and returned their slots, and the delay has
  passed. A subtask that another failure reaches meanwhile restarts with that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np

from ..base.errors import ConfigError
from ..base.ids import ResultPartitionType
from .commit_phase import COMMITTED, CommitPhase
from .deployer import Deployer
from .events import TaskFailed, TasksLost
from .execution import ExecutionInput, ExecutionState, JobInput, JobState, JobStatus
from .failover.restart import RestartDecision, Restarts, RestartStrategy
from .instructions import Cancel, StartTimer
from .speculation import Speculation
from .structures import FlagArray, IndexArray, index_array
from .topology.execution_graph import ExecutionGraph
from .topology.regions import Regions


@final
class RegionFailover:
    """Computes restart sets.

    Args:
        topology: of the job; it may grow.
        regions: of that topology.
    """

    def __init__(self, topology: ExecutionGraph, regions: Regions) -> None:
        self._topology = topology
        self._regions = regions
        self._can_be_read_again = np.array(
            [
                dataset.type.is_reconsumable or dataset.type is ResultPartitionType.PIPELINED_APPROXIMATE
                for dataset in topology.job.datasets
            ],
            np.bool_,
        )

    def subtasks_to_restart(
        self, failed: int | IndexArray, is_tracked: FlagArray, missing: int | None = None
    ) -> IndexArray:
        """The restart set of one failure.

        Args:
            failed: the failed subtask, or all that failed with one TaskManager.
            is_tracked: by partition: whether a TaskManager has it, as far as the scheduler knows.
            missing: a partition that a consumer could not read, if that was the cause.

        Returns:
            Numbers of all subtasks of the affected regions, ascending, whatever their state.

        Raises:
            ConfigError: there is no such subtask, or `is_tracked` is not as long as there are partitions.
        """
        topology, regions = self._topology, self._regions
        seeds = np.unique(failed)
        topology.place_of(int(seeds[0]))
        topology.place_of(int(seeds[-1]))
        if is_tracked.size != topology.partition_count:
            raise ConfigError(f"is_tracked has {is_tracked.size} elements for {topology.partition_count} partitions")
        is_taken = np.zeros(len(regions), np.bool_)
        is_read = np.zeros(len(topology.groups), np.bool_)
        is_written = np.zeros(len(topology.groups), np.bool_)
        frontier = regions.of_subtasks(index_array(seeds))
        while frontier.size:
            is_taken[frontier] = True
            subtasks = np.sort(regions.members_of_all(frontier).subtasks)
            read = _unseen(topology.consumed_by_all(subtasks), is_read)
            written = _unseen(topology.produced_by_all(subtasks), is_written)
            needed = topology.groups.partitions_of_all(read)
            lost = needed[~self._are_available(needed, is_tracked, missing)]
            reached = np.concatenate([topology.producer_of_partition[lost], topology.groups.consumers_of_all(written)])
            frontier = regions.of_subtasks(reached)
            frontier = frontier[~is_taken[frontier]]
        return np.sort(regions.members_of_all(index_array(np.flatnonzero(is_taken))).subtasks)

    def _are_available(self, partitions: IndexArray, is_tracked: FlagArray, missing: int | None) -> FlagArray:
        """Whether a consumer that restarts can read each partition."""
        available = is_tracked[partitions] & self._can_be_read_again[self._topology.dataset_of_partition[partitions]]
        if missing is not None:
            available &= partitions != missing
        return available


def _unseen(groups: IndexArray, is_seen: FlagArray) -> IndexArray:
    """The groups that are not marked as seen yet; marks them."""
    new = groups[~is_seen[groups]]
    is_seen[new] = True
    return new


PERMANENT: Final = RestartDecision(None, "a restart cannot help")
"""The decision about a failure that is not recoverable."""


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """A root failure and the decision about it.

    Attributes:
        cause: class and text of the error.
        decision: of the restart strategy.
    """

    cause: str
    decision: RestartDecision


@final
class Recovery:
    """Handles the failures of one job.

    Attributes:
        failures: failures that the strategy decided about.
        restarts: failures that it answered with a restart.
        restarted: subtasks that were reset.
        stale: reports, timers and restarts about something superseded.
    """

    def __init__(
        self,
        deployer: Deployer,
        speculation: Speculation,
        status: JobStatus,
        strategy: RestartStrategy,
        commits: CommitPhase,
    ) -> None:
        self._deployer = deployer
        self._commits = commits
        self._speculation = speculation
        self._status = status
        self._strategy = strategy
        self._failover = RegionFailover(deployer.topology, deployer.regions)
        self._restarts = Restarts()
        deployer.on_released = self._released
        self.failures = 0
        self.restarts = 0
        self.restarted = 0
        self.stale = 0
        self._events: list[Failure] = []

    def drain_events(self) -> list[Failure]:
        """The root failures since the last call, each with the decision."""
        events, self._events = self._events, []
        return events

    def task_failed(self, event: TaskFailed) -> None:
        """Handles a TaskManager's failure report."""
        executions, tracker = self._deployer.executions, self._deployer.tracker
        subtask = index_array([event.subtask])
        missing = event.missing_partition
        if missing is not None and tracker.attempts[missing] != event.missing_attempt:
            missing = None  # its producer has run again since
        is_current = executions.current(subtask, np.array([event.attempt], np.uint32))
        if not is_current[0] and self._speculation.on_failed(event.subtask, event.attempt, event.cause):
            if missing is not None and not executions.terminal(subtask)[0]:
                self.fail(subtask, event.cause, missing=missing)
            return
        if not is_current[0] or executions.terminal(subtask)[0]:
            self.stale += 1
            return
        self.fail_tasks(subtask, event.cause, missing=missing, is_recoverable=event.is_recoverable)

    def tasks_lost(self, event: TasksLost) -> None:
        """Handles the end of a slot's process."""
        executions = self._deployer.executions
        is_current = executions.current(event.subtasks, event.attempts)
        for subtask, attempt in zip(
            event.subtasks[~is_current].tolist(), event.attempts[~is_current].tolist(), strict=True
        ):
            if not self._speculation.on_failed(subtask, attempt, event.cause):
                self.stale += 1
        self.fail_tasks(event.subtasks[is_current], event.cause)

    def fail_tasks(
        self, subtasks: IndexArray, cause: str, *, missing: int | None = None, is_recoverable: bool = True
    ) -> None:
        """Fails these tasks; those that have ended already are skipped."""
        executions = self._deployer.executions
        live = subtasks[~executions.terminal(subtasks)]
        if missing is None and is_recoverable:
            live = live[[not self._speculation.take_over(subtask, cause) for subtask in live.tolist()]]
        failed = executions.not_in_state(live, ExecutionState.CANCELING)
        executions.apply(live, ExecutionInput.FAIL)
        self._deployer.allocation.withdraw(live)
        self._deployer.ended(live)
        if failed.size:
            self.fail(failed, cause, missing=missing, is_recoverable=is_recoverable)

    def fail(
        self, failed: IndexArray | None, cause: str, *, missing: int | None = None, is_recoverable: bool = True
    ) -> None:
        """Restarts the subtasks that a failure affects, or fails the job.

        Args:
            failed: the subtasks that failed; None: the whole job.
            cause: why.
            missing: a partition that could not be read.
            is_recoverable: False fails the job.
        """
        if self._status.is_in(JobState.CANCELLING, JobState.FAILING):
            return
        self.failures += 1
        if failed is None:
            subtasks = index_array(np.arange(self._deployer.topology.subtask_count))
        else:
            subtasks = self._failover.subtasks_to_restart(failed, self._deployer.tracker.is_tracked, missing)
        if not is_recoverable:
            decision = PERMANENT
        elif self._commits.has_begun(subtasks):
            decision = RestartDecision(None, COMMITTED)
        else:
            decision = self._strategy.on_failure(self._deployer.now_s)
        self._events.append(Failure(cause, decision))
        if decision.delay_s is None:
            self._status.change(JobInput.GIVE_UP)
            self._status.reason = f"{cause} ({decision.reason})"
            self.stop_all()
            return
        self.restarts += 1
        self._status.change(JobInput.RESTART)
        self._begin(self._deployer.executions.not_in_state(subtasks, ExecutionState.CREATED), decision.delay_s)

    def timer_due(self, timer: int) -> None:
        """Handles the end of a restart's delay."""
        if not self._restarts.mark_due(timer):
            self.stale += 1

    def restart_ready(self) -> None:
        """Carries out the restarts whose delay is over and whose tasks have stopped and returned their slots."""
        deployer = self._deployer
        for recorded in self._restarts.take_ready():
            current = deployer.versions.current(recorded)
            self.stale += recorded.subtasks.size - current.size
            deployer.executions.apply(current, ExecutionInput.RESET)
            self.restarted += current.size
            if not self._restarts and self._status.is_in(JobState.RESTARTING):
                self._status.change(JobInput.RESTARTED)
            deployer.schedule(deployer.strategy.restart(current))

    def stop_all(self) -> None:
        """Cancels everything that runs; nothing restarts."""
        everything = index_array(np.arange(self._deployer.topology.subtask_count))
        self._restarts.clear()
        self._deployer.versions.bump(everything)
        self._cancel(everything)

    def _begin(self, subtasks: IndexArray, delay_s: float) -> None:
        """Supersedes these subtasks, cancels them, and begins their restart."""
        deployer = self._deployer
        recorded = deployer.versions.bump(subtasks)
        written = deployer.partitions_of(subtasks)
        # TaskManagers drop the partitions of the other subtasks together with the task.
        deployer.release_partitions(
            deployer.partitions_of(deployer.executions.in_state(subtasks, ExecutionState.FINISHED))
        )
        deployer.forget_partitions(written)
        deployer.topology.reset(subtasks)
        deployer.release.on_reset(subtasks)
        deployer.deployment.invalidate(deployer.topology.produced_by_all(subtasks))
        self._cancel(subtasks)
        self._restarts.grow(len(deployer.executions))
        timer = self._restarts.begin(recorded, deployer.occupying(subtasks))
        deployer.out.append(StartTimer(timer, delay_s))

    def _released(self, subtasks: IndexArray) -> None:
        """Continues restarts when subtasks have returned their slots."""
        self._restarts.on_stopped(subtasks)
        self.restart_ready()

    def _cancel(self, subtasks: IndexArray) -> None:
        """Cancels tasks on their TaskManagers; subtasks that are not deployed are canceled at once."""
        executions = self._deployer.executions
        self._speculation.cancel(subtasks)
        live = executions.allowed(subtasks, ExecutionInput.CANCEL)
        is_out = executions.on_taskmanager(live)
        executions.apply(live, ExecutionInput.CANCEL)
        running, waiting = live[is_out], live[~is_out]
        if running.size:
            slots = tuple(self._deployer.allocation.slots_of(running))
            self._deployer.out.append(Cancel(running, executions.attempts[running], slots))
        self._deployer.allocation.withdraw(waiting)
        self._deployer.ended(waiting)
