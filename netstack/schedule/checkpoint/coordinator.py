"""The checkpoint coordinator of one job: a synchronous state machine that turns time and reports into instructions.

Takes: the time, and the reports of tasks: acknowledged, declined, waiting, ended; whether all of them run. Gives:
instructions, in order.

Rules:
- The coordinator neither waits nor sends. Its caller calls `tick` at `next_deadline`, reads that again after every
  call, and carries out the returned instructions.
- Ids increase. Every triggered checkpoint ends exactly once: it is complete when its manifest is stored, or it is
  aborted. Later reports about it are counted and ignored.
- Tasks without running producers are triggered; all others get the barrier of the checkpoint.
- An ended task is not triggered again. Its final state is copied into every later checkpoint.
- A waiting task has sent its last event, and ends once a checkpoint that began after that is complete. It is triggered
  directly, since it sends no barriers, and so are its consumers. If all tasks that it is connected with are waiting or
  have ended, this final checkpoint is triggered at once, and repeated until one is complete.
- A savepoint that does not stop the job has no effect on it, as in Flink (FLIP-203): it confirms no task's end, and
  older checkpoints in progress continue.
- While a part of the job restarts, no checkpoint is triggered, and those in progress are aborted: `pause`, then
  `resume`. The caller drops reports of former attempts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, final

from ...base.errors import ConfigError, LocalProtocolError
from ...base.events import CheckpointBarrier
from .instructions import (
    NS_PER_S,
    Abort,
    AbortCause,
    CheckpointSettings,
    Complete,
    FailJob,
    Instruction,
    JobTask,
    StoreFinal,
    Subtask,
    Trigger,
)
from .snapshot import TaskFile


@final
@dataclass(slots=True, kw_only=True, eq=False)
class PendingCheckpoint:
    """One checkpoint that has not ended: its barrier, and the acknowledgements received and missing."""

    barrier: CheckpointBarrier
    triggered_s: float
    is_savepoint: bool
    stops: bool
    confirms: tuple[Subtask, ...]
    is_last: bool
    waiting: set[Subtask]
    is_storing: bool = False
    files: dict[Subtask, TaskFile] = field(default_factory=dict)

    @property
    def checkpoint_id(self) -> int:
        """Id of the checkpoint."""
        return self.barrier.checkpoint_id

    @property
    def job_goes_on(self) -> bool:
        """Whether it is a savepoint after which the job continues."""
        return self.is_savepoint and not self.stops


@final
@dataclass(frozen=True, slots=True)
class CheckpointProgress:
    """The state of a checkpoint in progress.

    Attributes:
        acknowledged: number of subtasks that have acknowledged it.
        waits_for: sorted subtasks that have not acknowledged it, though all subtasks of their inputs have: the barriers
            are in front of these. Empty while the manifest is being stored.
    """

    checkpoint_id: int
    is_savepoint: bool
    triggered_s: float
    acknowledged: int
    subtasks: int
    waits_for: tuple[Subtask, ...]


def connected_tasks(tasks: Mapping[str, JobTask]) -> dict[str, str]:
    """Maps each task to a representative of its connected component: all tasks linked by edges in any direction."""
    components = {name: {name} for name in tasks}
    for task in tasks.values():
        for name in task.inputs:
            joined = components[name] | components[task.name]
            for each in joined:
                components[each] = joined
    return {name: min(group) for name, group in components.items()}


def checked_tasks(tasks: Iterable[JobTask]) -> dict[str, JobTask]:
    """The tasks by name. Raises ConfigError if two have one name, one has no subtasks, or an input is no task."""
    by_name: dict[str, JobTask] = {}
    for task in tasks:
        if task.name in by_name:
            raise ConfigError(f"two tasks have the name {task.name!r}; give each its own name")
        if task.parallelism < 1:
            raise ConfigError(f"task {task.name!r} has parallelism {task.parallelism}; give at least 1")
        by_name[task.name] = task
    for task in by_name.values():
        for name in task.inputs:
            if name not in by_name:
                raise ConfigError(f"task {task.name!r} reads {name!r}, which is no task of the job")
    if all(task.inputs for task in by_name.values()):
        raise ConfigError("the job has no source: give at least one task without inputs")
    return by_name


FINAL_PAUSE_S: Final = 1.0
LONGEST_FINAL_PAUSE_S: Final = 30.0
"""Pauses between attempts of a final checkpoint that cannot be stored: the first one, and the longest one."""


@final
class CheckpointCoordinator:
    """Coordinates the checkpoints of a job, across restarts of its tasks.

    All times are seconds of one monotonic clock of the caller.

    Args:
        first_id: id of the first checkpoint, from `CheckpointStorage.next_id()`.
        now_s: start of the first interval.

    Raises:
        ConfigError: the tasks do not form a job.
    """

    def __init__(
        self, tasks: Iterable[JobTask], settings: CheckpointSettings, *, first_id: int = 1, now_s: float
    ) -> None:
        self._tasks = checked_tasks(tasks)
        self._settings = settings
        self._next_id = first_id
        self._next_s = now_s + (settings.interval_s or 0.0)
        self._ended_s = now_s - settings.min_pause_s
        self._running = {(task.name, subtask) for task in self._tasks.values() for subtask in range(task.parallelism)}
        self._subtasks = frozenset(self._running)
        self._finals: dict[Subtask, None] = {}
        self._awaiting: dict[Subtask, None] = {}  # a checkpoint that begins from now on
        self._neighbours = connected_tasks(self._tasks)
        self.is_covered = False
        """Whether a checkpoint is complete that stopped the job, or that began when all running tasks were waiting."""
        self._final_pause_s = 0.0
        self._pending: dict[int, PendingCheckpoint] = {}
        self._requests: deque[tuple[float, bool, bool]] = deque()
        self._is_stopped = False
        self.is_paused = False
        """Whether it was paused and not resumed."""
        self._failures_in_a_row = 0

    def next_deadline(self) -> float | None:
        """Time of the next `tick`, possibly in the past; None if there is nothing to do before another call."""
        deadlines = [self._timeout_s(pending) for pending in self._pending.values() if not pending.is_storing]
        trigger_s = self._trigger_s()
        if trigger_s is not None:
            deadlines.append(trigger_s)
        return min(deadlines, default=None)

    def tick(self, now_s: float) -> list[Instruction]:
        """Aborts checkpoints that have timed out, and triggers those that are due."""
        instructions: list[Instruction] = []
        for pending in [*self._pending.values()]:
            is_pending = pending.checkpoint_id in self._pending  # the abort before may have failed the job
            if is_pending and not pending.is_storing and self._timeout_s(pending) <= now_s:
                instructions += self._abort(pending, AbortCause.TIMED_OUT, self._describe_wait(pending), now_s)
        while (trigger_s := self._trigger_s()) is not None and trigger_s <= now_s:
            instructions += self._trigger(now_s)
        return instructions

    def request(self, now_s: float, *, savepoint: bool = False, stops: bool = False) -> list[Instruction]:
        """Requests a checkpoint. It is triggered now, or once fewer than `max_concurrent` are in progress.

        Args:
            now_s: the time.
            savepoint: whether it is a savepoint.
            stops: whether the sources, and with them the job, end after its barrier.

        Raises:
            LocalProtocolError: the coordinator was stopped.
        """
        if self._is_stopped:
            raise LocalProtocolError("no checkpoints are taken any more: the job is ending or failing")
        self._requests.append((now_s, savepoint, stops))
        return self.tick(now_s)

    def acknowledged(self, checkpoint_id: int, file: TaskFile, now_s: float) -> list[Instruction]:
        """A subtask has stored its snapshot. Raises LocalProtocolError if the job has no such subtask."""
        subtask = self._checked_subtask(file.task, file.subtask)
        pending = self._pending.get(checkpoint_id)
        if pending is None or subtask not in pending.waiting:
            return []
        pending.waiting.remove(subtask)
        pending.files[subtask] = file
        if pending.waiting:
            return []
        pending.is_storing = True
        files = tuple(file for _, file in sorted(pending.files.items()))
        parallelism = {task.name: task.parallelism for task in self._tasks.values()}
        return [Complete(checkpoint_id, parallelism, files, pending.is_savepoint, pending.job_goes_on)]

    def declined(self, checkpoint_id: int, task: str, subtask: int, reason: str, now_s: float) -> list[Instruction]:
        """A subtask has declined a checkpoint, which is aborted unless its manifest is already being stored.

        Raises:
            LocalProtocolError: the job has no such subtask.
        """
        self._checked_subtask(task, subtask)
        pending = self._pending.get(checkpoint_id)
        if pending is None or pending.is_storing:
            return []
        return self._abort(pending, AbortCause.DECLINED, f"{task}-{subtask} declined: {reason}", now_s)

    def completed(self, checkpoint_id: int, now_s: float) -> list[Instruction]:
        """A manifest was stored. Older pending checkpoints are aborted, unless it is a savepoint.

        Raises:
            LocalProtocolError: the checkpoint has no open `Complete` instruction.
        """
        pending = self._storing(checkpoint_id)
        self._failures_in_a_row = 0
        self._final_pause_s = 0.0
        self._end(pending, now_s)
        if pending.job_goes_on:
            return []
        self.is_covered = self.is_covered or pending.is_last or pending.stops
        for subtask in pending.confirms:
            self._awaiting.pop(subtask, None)
        instructions: list[Instruction] = []
        for older in [*self._pending.values()]:
            if older.checkpoint_id < checkpoint_id and not older.is_storing:
                reason = f"checkpoint {checkpoint_id} is complete"
                instructions += self._abort(older, AbortCause.SUBSUMED, reason, now_s)
        return instructions

    def not_stored(self, checkpoint_id: int, reason: str, now_s: float) -> list[Instruction]:
        """A manifest could not be stored, so its checkpoint is aborted.

        Raises:
            LocalProtocolError: the checkpoint has no open `Complete` instruction.
        """
        return self._abort(self._storing(checkpoint_id), AbortCause.NOT_STORED, reason, now_s)

    def task_ended(self, task: str, subtask: int, now_s: float) -> list[Instruction]:
        """A subtask has finished: its consumers have processed everything it sent.

        Called after its last acknowledgement, when its final state is stored. Checkpoints in progress get its final
        state, and tasks without running producers are triggered for them.

        Raises:
            LocalProtocolError: the job has no such subtask, or it has ended before.
        """
        ended = self._checked_subtask(task, subtask)
        if ended in self._finals:
            raise LocalProtocolError(f"subtask {task}-{subtask} has already ended")
        triggered = self._without_producers()
        self._running.remove(ended)
        self._awaiting.pop(ended, None)
        self._finals[ended] = None
        instructions = self._trigger_also(triggered, now_s)
        for pending in self._pending.values():
            if ended in pending.waiting:
                instructions.append(StoreFinal(pending.checkpoint_id, (ended,)))
        return instructions + self.tick(now_s)

    def task_waits(self, task: str, subtask: int, now_s: float) -> list[Instruction]:
        """A subtask has sent its last event, and ends once a checkpoint that begins from now on is complete.

        Raises:
            LocalProtocolError: the job has no such subtask, or it has ended before.
        """
        waits = self._checked_subtask(task, subtask)
        if waits in self._finals:
            raise LocalProtocolError(f"subtask {task}-{subtask} has already ended")
        triggered = self._without_producers()
        self._awaiting[waits] = None
        self._final_pause_s = 0.0
        return self._trigger_also(triggered, now_s) + self.tick(now_s)

    def pause(self, reason: str, now_s: float) -> list[Instruction]:
        """Tasks restart: aborts the checkpoints in progress, except those whose manifest is being stored. Idempotent.

        Requests stay, and are served after `resume`.
        """
        self.is_paused = True
        self.is_covered = False
        return self._abort_pending(AbortCause.TASK_FAILED, reason, now_s)

    def resume(self, restarted: Iterable[Subtask], now_s: float) -> list[Instruction]:
        """All tasks run again, or have ended.

        Args:
            restarted: subtasks that had ended or waited, and were restarted.
            now_s: the time.
        """
        for subtask in restarted:
            self._awaiting.pop(subtask, None)
            if subtask in self._finals:
                del self._finals[subtask]
                self._running.add(subtask)
        self.is_paused = False
        return self.tick(now_s)

    def in_progress(self) -> list[CheckpointProgress]:
        """The checkpoints that were triggered and have not ended, oldest first."""
        return [
            CheckpointProgress(
                pending.checkpoint_id,
                pending.is_savepoint,
                pending.triggered_s,
                len(pending.files),
                len(self._subtasks),
                self._in_front(pending),
            )
            for pending in self._pending.values()
        ]

    def _in_front(self, pending: PendingCheckpoint) -> tuple[Subtask, ...]:
        waiting = {task for task, _ in pending.waiting}
        return tuple(sorted(each for each in pending.waiting if waiting.isdisjoint(self._tasks[each[0]].inputs)))

    @property
    def ended_subtasks(self) -> Collection[Subtask]:
        """The subtasks that have ended; a view."""
        return self._finals.keys()

    @property
    def waiting_subtasks(self) -> Collection[Subtask]:
        """The subtasks that wait for a checkpoint that begins after their end; a view."""
        return self._awaiting.keys()

    @property
    def is_final_due(self) -> bool:
        """Whether a subtask waits, and all subtasks that it is connected with wait or have ended."""
        if not self._awaiting:
            return False
        busy = {self._neighbours[task] for task, subtask in self._running if (task, subtask) not in self._awaiting}
        return any(self._neighbours[task] not in busy for task, _ in self._awaiting)

    def stop(self, now_s: float) -> list[Instruction]:
        """Aborts the checkpoints in progress, except one that is being stored, and triggers no more. Idempotent."""
        self._is_stopped = True
        return self._abort_pending(AbortCause.STOPPED, "the job ends", now_s)

    def _trigger_s(self) -> float | None:
        """Time from which a checkpoint may be triggered; None if none may."""
        if self._is_stopped or self.is_paused or len(self._pending) >= self._settings.max_concurrent:
            return None
        if self._requests:
            return self._requests[0][0]
        if self.is_final_due and not self._pending:
            return self._ended_s + self._final_pause_s
        if self._settings.interval_s is None or not self._running:
            return None
        return max(self._next_s, self._ended_s + self._settings.min_pause_s)

    def _trigger(self, now_s: float) -> list[Instruction]:
        _, savepoint, stops = self._requests.popleft() if self._requests else (now_s, False, False)
        checkpoint_id = self._next_id
        self._next_id += 1
        self._next_s = now_s + (self._settings.interval_s or 0.0)
        alignment, aligned_timeout_ns = self._settings.alignment(savepoint=savepoint)
        barrier = CheckpointBarrier(checkpoint_id, round(now_s * NS_PER_S), alignment, aligned_timeout_ns)
        self._pending[checkpoint_id] = PendingCheckpoint(
            barrier=barrier,
            triggered_s=now_s,
            is_savepoint=savepoint,
            stops=stops,
            confirms=tuple(self._awaiting),
            is_last=self._running <= self._awaiting.keys(),
            waiting=set(self._subtasks),
        )
        first = tuple(sorted(self._without_producers()))
        instructions: list[Instruction] = [Trigger(barrier, first, savepoint, stops)]
        if self._finals:
            instructions.append(StoreFinal(checkpoint_id, tuple(self._finals)))
        return instructions

    def _without_producers(self) -> set[Subtask]:
        """Running subtasks that no barrier can reach, since all their producers have sent their last events."""
        busy = {subtask[0] for subtask in self._running if subtask not in self._awaiting}
        return {
            subtask
            for subtask in self._running
            if subtask in self._awaiting or busy.isdisjoint(self._tasks[subtask[0]].inputs)
        }

    def _trigger_also(self, triggered: set[Subtask], now_s: float) -> list[Instruction]:
        """Triggers subtasks that barriers can no longer reach, for the checkpoints in progress.

        Their producers may have ended before they received the trigger, and then sent no barrier.

        Args:
            triggered: the subtasks that had no running producers before.
            now_s: the time.
        """
        newly = self._without_producers() - triggered
        instructions: list[Instruction] = []
        for pending in self._pending.values():
            if reached := tuple(sorted(newly & pending.waiting)):
                elapsed_ns = round((now_s - pending.triggered_s) * NS_PER_S)
                barrier = replace(pending.barrier, elapsed_ns=elapsed_ns)
                instructions.append(Trigger(barrier, reached, pending.is_savepoint, pending.stops))
        return instructions

    def _timeout_s(self, pending: PendingCheckpoint) -> float:
        return pending.triggered_s + self._settings.timeout_s

    def _describe_wait(self, pending: PendingCheckpoint) -> str:
        missing = sorted(pending.waiting)
        names = ", ".join(f"{task}-{subtask}" for task, subtask in missing[:5]) + (", ..." if missing[5:] else "")
        return (
            f"{len(missing)} of {len(self._subtasks)} subtasks have not acknowledged within"
            f" {self._settings.timeout_s} s: {names}"
        )

    def _abort(self, pending: PendingCheckpoint, cause: AbortCause, reason: str, now_s: float) -> list[Instruction]:
        self._end(pending, now_s)
        running = tuple(sorted(self._running))
        instructions: list[Instruction] = [Abort(pending.checkpoint_id, cause, reason, running)]
        if not cause.is_failure or pending.is_savepoint or self.is_paused:
            return instructions
        if self.is_final_due:  # a restart would not help, so the job waits and tries again
            self._final_pause_s = min(max(FINAL_PAUSE_S, 2 * self._final_pause_s), LONGEST_FINAL_PAUSE_S)
        else:
            self._failures_in_a_row += 1
            instructions += self._fail_job(pending.checkpoint_id, f"{cause.value}: {reason}", now_s)
        return instructions

    def _fail_job(self, checkpoint_id: int, why: str, now_s: float) -> list[Instruction]:
        """Fails the job if too many checkpoints have failed in a row. A restart may help, so it resets the count."""
        tolerable, failures = self._settings.tolerable_failures, self._failures_in_a_row
        if tolerable is None or failures <= tolerable or self._is_stopped:
            return []
        self._failures_in_a_row = 0
        reason = f"{failures} checkpoints failed in a row, {tolerable} are tolerated; the last, {checkpoint_id}: {why}"
        return [FailJob(reason), *self.pause("too many checkpoints failed", now_s)]

    def _end(self, pending: PendingCheckpoint, now_s: float) -> None:
        del self._pending[pending.checkpoint_id]
        self._ended_s = now_s

    def _abort_pending(self, cause: AbortCause, reason: str, now_s: float) -> list[Instruction]:
        instructions: list[Instruction] = []
        for pending in [*self._pending.values()]:
            if not pending.is_storing:
                instructions += self._abort(pending, cause, reason, now_s)
        return instructions

    def _storing(self, checkpoint_id: int) -> PendingCheckpoint:
        pending = self._pending.get(checkpoint_id)
        if pending is None or not pending.is_storing:
            raise LocalProtocolError(f"checkpoint {checkpoint_id} is not being stored; wait for its Complete")
        return pending

    def _checked_subtask(self, task: str, subtask: int) -> Subtask:
        if (task, subtask) not in self._subtasks:
            raise LocalProtocolError(f"the job has no subtask {task}-{subtask}; its tasks are {', '.join(self._tasks)}")
        return task, subtask
