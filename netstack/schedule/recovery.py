"""What a failure costs: which subtasks run again, when, and when the job gives up.

Takes: failed tasks and global failures. Gives: cancellations and timers, later restarts.

Rules:
- The restart strategy is asked once for each failure; tasks that were to be canceled anyway are none, nor is that of
  one attempt while another of its subtask can go on (`speculation`).
- What is to restart is superseded at once: its versions are bumped, so whatever waits for it is stale; what it wrote
  is void, and no descriptor tells of it any more. Its tasks are canceled.
- It is reset and scheduled again when all of its tasks have stopped and given back their slots, and the delay has
  passed. A subtask that is caught by another failure meanwhile restarts with that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np

from .commit_phase import COMMITTED, CommitPhase
from .events import TaskFailed, TasksLost
from .execution.execution_states import ExecutionInput, ExecutionState, JobInput, JobState, JobStatus
from .failover.failover import RegionFailover
from .failover.restart import RestartDecision, Restarts, RestartStrategy
from .instructions import Cancel, StartTimer
from .progress import Progress
from .speculation.speculation import Speculation
from .structures.arrays import IndexArray, index_array

PERMANENT: Final = RestartDecision(None, "trying again cannot help")
"""About a failure that is not recoverable."""


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """A root failure, and what was decided.

    Attributes:
        cause: error and text.
        decision: restart or not.
    """

    cause: str
    decision: RestartDecision


@final
class Recovery:
    """The parts of a scheduler that deal with failures.

    Args:
        progress: the other parts.
        speculation: the second attempts.
        status: of the job.
        strategy: decides about failures.
        commits: knows what never runs again.

    Attributes:
        failures: that the strategy was asked about.
        restarts: that it answered with.
        restarted: subtasks that were reset.
        stale: what came for something that was superseded.
    """

    def __init__(
        self,
        progress: Progress,
        speculation: Speculation,
        status: JobStatus,
        strategy: RestartStrategy,
        commits: CommitPhase,
    ) -> None:
        self._progress = progress
        self._commits = commits
        self._speculation = speculation
        self._status = status
        self._strategy = strategy
        self._failover = RegionFailover(progress.topology, progress.regions)
        self._restarts = Restarts()
        progress.on_released = self._released
        self.failures = 0
        self.restarts = 0
        self.restarted = 0
        self.stale = 0
        self._news: list[Failure] = []

    def drain_events(self) -> list[Failure]:
        """The root failures since the last call, each with what was decided."""
        news, self._news = self._news, []
        return news

    def task_failed(self, event: TaskFailed) -> None:
        """A TaskManager's report."""
        executions, tracker = self._progress.executions, self._progress.tracker
        subtask = index_array([event.subtask])
        missing = event.missing_partition
        if missing is not None and tracker.attempts[missing] != event.missing_attempt:
            missing = None  # its producer has run again since
        is_current = executions.current(subtask, np.array([event.attempt], np.uint32))
        if not is_current[0] and self._speculation.failed(event.subtask, event.attempt, event.cause):
            if missing is not None and not executions.terminal(subtask)[0]:
                self.fail(subtask, event.cause, missing=missing)
            return
        if not is_current[0] or executions.terminal(subtask)[0]:
            self.stale += 1
            return
        self.fail_tasks(subtask, event.cause, missing=missing, is_recoverable=event.is_recoverable)

    def tasks_lost(self, event: TasksLost) -> None:
        """The process of a slot has ended."""
        executions = self._progress.executions
        is_current = executions.current(event.subtasks, event.attempts)
        for subtask, attempt in zip(
            event.subtasks[~is_current].tolist(), event.attempts[~is_current].tolist(), strict=True
        ):
            if not self._speculation.failed(subtask, attempt, event.cause):
                self.stale += 1
        self.fail_tasks(event.subtasks[is_current], event.cause)

    def fail_tasks(
        self, subtasks: IndexArray, cause: str, *, missing: int | None = None, is_recoverable: bool = True
    ) -> None:
        """These tasks are gone; those that have ended already are skipped."""
        executions = self._progress.executions
        live = subtasks[~executions.terminal(subtasks)]
        if missing is None and is_recoverable:
            live = live[[not self._speculation.take_over(subtask, cause) for subtask in live.tolist()]]
        failed = executions.not_in_state(live, ExecutionState.CANCELING)
        executions.apply(live, ExecutionInput.FAIL)
        self._progress.allocation.withdraw(live)
        self._progress.ended(live)
        if failed.size:
            self.fail(failed, cause, missing=missing, is_recoverable=is_recoverable)

    def fail(
        self, failed: IndexArray | None, cause: str, *, missing: int | None = None, is_recoverable: bool = True
    ) -> None:
        """Restarts what has to be, or gives up.

        Args:
            failed: the subtasks that failed; None is all of the job.
            cause: why.
            missing: a partition that could not be read.
            is_recoverable: False gives up.
        """
        if self._status.is_in(JobState.CANCELLING, JobState.FAILING):
            return
        self.failures += 1
        if failed is None:
            subtasks = index_array(np.arange(self._progress.topology.subtask_count))
        else:
            subtasks = self._failover.subtasks_to_restart(failed, self._progress.tracker.is_tracked, missing)
        if not is_recoverable:
            decision = PERMANENT
        elif self._commits.has_begun(subtasks):
            decision = RestartDecision(None, COMMITTED)
        else:
            decision = self._strategy.failed(self._progress.now_s)
        self._news.append(Failure(cause, decision))
        if decision.delay_s is None:
            self._status.change(JobInput.GIVE_UP)
            self._status.reason = f"{cause} ({decision.reason})"
            self.stop_all()
            return
        self.restarts += 1
        self._status.change(JobInput.RESTART)
        self._begin(self._progress.executions.not_in_state(subtasks, ExecutionState.CREATED), decision.delay_s)

    def due(self, timer: int) -> None:
        """The delay of a restart has passed."""
        if not self._restarts.due(timer):
            self.stale += 1

    def restart_ready(self) -> None:
        """Carries out the restarts whose tasks have all stopped, with their slots, and whose delay is over."""
        progress = self._progress
        for recorded in self._restarts.take_ready():
            current = progress.versions.current(recorded)
            self.stale += recorded.subtasks.size - current.size
            progress.executions.apply(current, ExecutionInput.RESET)
            self.restarted += current.size
            if not self._restarts and self._status.is_in(JobState.RESTARTING):
                self._status.change(JobInput.RESTARTED)
            progress.schedule(progress.strategy.restart(current))

    def stop_all(self) -> None:
        """Nothing runs again; everything that does is canceled."""
        everything = index_array(np.arange(self._progress.topology.subtask_count))
        self._restarts.clear()
        self._progress.versions.bump(everything)
        self._cancel(everything)

    def _begin(self, subtasks: IndexArray, delay_s: float) -> None:
        """Supersedes these subtasks, cancels them, and has them restart."""
        progress = self._progress
        recorded = progress.versions.bump(subtasks)
        written = progress.partitions_of(subtasks)
        # The others are dropped by their TaskManagers, together with the task.
        progress.release_partitions(
            progress.partitions_of(progress.executions.in_state(subtasks, ExecutionState.FINISHED))
        )
        progress.forget_partitions(written)
        progress.topology.reset(subtasks)
        progress.release.on_reset(subtasks)
        progress.deployment.invalidate(progress.topology.produced_by_all(subtasks))
        self._cancel(subtasks)
        self._restarts.grow(len(progress.executions))
        timer = self._restarts.begin(recorded, progress.occupying(subtasks))
        progress.out.append(StartTimer(timer, delay_s))

    def _released(self, subtasks: IndexArray) -> None:
        """Subtasks have ended, and given back their slots."""
        self._restarts.ended(subtasks)
        self.restart_ready()

    def _cancel(self, subtasks: IndexArray) -> None:
        """Tells those on TaskManagers to stop; the others stop at once."""
        executions = self._progress.executions
        self._speculation.cancel(subtasks)
        live = executions.allowed(subtasks, ExecutionInput.CANCEL)
        is_out = executions.on_taskmanager(live)
        executions.apply(live, ExecutionInput.CANCEL)
        running, waiting = live[is_out], live[~is_out]
        if running.size:
            slots = tuple(self._progress.allocation.slots_of(running))
            self._progress.out.append(Cancel(running, executions.attempts[running], slots))
        self._progress.allocation.withdraw(waiting)
        self._progress.ended(waiting)
