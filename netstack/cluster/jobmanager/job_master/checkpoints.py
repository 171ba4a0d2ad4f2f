"""The checkpoints of one job: carries out the coordinator's instructions; also assigns checkpoint folders to jobs.

Takes: reports of tasks, requests of users, the time; folders that submitted jobs name. Gives: commands to the tasks,
manifests to the storage, a report of every checkpoint; an error for a folder that another job uses or that lies outside
the allowed roots.

Rules: only threads access the folder. Every request is answered exactly once, whatever happens to the job. Taking over
a folder fences its previous owner (`schedule.checkpoint.fence`), so a folder belongs to a job from before its first
access until the job has ended. Folders are compared after links are resolved.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, final

import trio

from ....base.errors import CheckpointError, ConfigError, LocalProtocolError
from ....base.events import encode_event
from ....base.text.safe_text import safe_repr
from ....network.waiting.threads import InThread
from ....schedule.checkpoint.coordinator import CheckpointCoordinator
from ....schedule.checkpoint.finals import NO_CHECKPOINT, FinalStates
from ....schedule.checkpoint.instructions import Abort, Complete, FailJob, Instruction, StoreFinal, Subtask, Trigger
from ....schedule.checkpoint.snapshot import TaskFile
from ....schedule.checkpoint.storage import CheckpointStorage
from .tasks import SHOWN, SLOW_S, CheckpointInProgress, TaskCommands


@final
class CheckpointOwners:
    """The checkpoint folders of the jobs of one JobManager.

    Args:
        roots: folders below which named checkpoint folders must lie; empty: anywhere.
    """

    def __init__(self, roots: Iterable[str], in_thread: InThread) -> None:
        self._roots = tuple(roots)
        self._in_thread = in_thread
        self._owners: dict[str, tuple[str, str]] = {}
        """Id and name of the owning job, by folder."""

    async def check_place(self, folder: str) -> None:
        """Checks that jobs may use this folder. Raises ConfigError if it lies outside the roots."""
        await self._in_thread(partial(self._check_place, folder))

    async def canonical(self, folder: str) -> str:
        """Returns a folder that links reach as one below a root, so that later no link is followed; others unchanged.

        Raises ConfigError if it is no path.
        """
        return await self._in_thread(partial(self._canonical, folder))

    async def claim(self, folder: str, job_id: str, name: str) -> None:
        """Assigns the folder to a job until `leave`. Idempotent. Raises ConfigError if another job owns the folder."""
        real = await self._in_thread(partial(_real_path, folder))
        owner, owner_name = self._owners.setdefault(real, (job_id, name))
        if owner != job_id:
            raise ConfigError(
                f"job {name!r}: job {owner} ({owner_name}), which has not ended, uses the checkpoint folder {folder}:"
                " name another folder, or none, so that the JobManager creates one"
            )

    def leave(self, job_id: str) -> None:
        """Releases the folders of a job that has ended or was rejected."""
        self._owners = {folder: owner for folder, owner in self._owners.items() if owner[0] != job_id}

    def _canonical(self, folder: str) -> str:
        real = _real_path(folder)
        for root in self._roots:
            real_root = os.path.realpath(root)
            if real.startswith(os.path.join(real_root, "")):
                return os.path.join(os.path.abspath(root), os.path.relpath(real, real_root))
        return folder

    def _check_place(self, folder: str) -> None:
        real = _real_path(folder)
        roots = [os.path.realpath(root) for root in self._roots]
        if roots and not any(os.path.commonpath((root, real)) == root for root in roots):
            raise ConfigError(
                f"{folder} is not below {', '.join(self._roots)}, where this JobManager allows checkpoints and"
                " savepoints: name a folder there, or start the JobManager with another --checkpoint-root"
            )


def _real_path(folder: str) -> str:
    try:
        return os.path.realpath(folder)
    except ValueError as error:  # it contains a NUL
        raise ConfigError(f"{safe_repr(folder)} is no path: {error}") from error


MAX_WAITING: Final = 16
"""Requests of users for checkpoints of a job that wait. They stay when their client leaves, and delay the job's end."""

HISTORY: Final = 1_000
"""Maximum number of reports stored for one job."""


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """The result of a checkpoint.

    Attributes:
        is_complete: whether it was completed; otherwise it was aborted.
        reason: why it was aborted; empty otherwise.
        is_savepoint: whether it is a savepoint, which is never removed automatically.
        triggered_s: time of the trigger on trio's clock.
        duration_s: from the trigger until its manifest was stored, or until it was aborted.
        subtasks: reports of the subtasks in order of acknowledgement: `task`, `subtask` and its measurements.
    """

    checkpoint_id: int
    is_complete: bool
    reason: str
    is_savepoint: bool
    triggered_s: float
    duration_s: float
    size_bytes: int
    store_s: float
    subtasks: tuple[Mapping[str, Any], ...]


@final
class CheckpointRequest:
    """A pending request for a checkpoint.

    Attributes:
        ended: set when the checkpoint has ended, or the job has ended without it.
        report: the result; None if the job ended without the checkpoint.
    """

    __slots__ = ("ended", "report")

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.report: CheckpointReport | None = None


@final
class _Pending:
    __slots__ = ("is_savepoint", "log_at_s", "reports", "request", "size_bytes", "store_s", "triggered_s")

    def __init__(self, triggered_s: float, is_savepoint: bool, request: CheckpointRequest | None) -> None:
        self.triggered_s = triggered_s
        self.log_at_s = triggered_s + SLOW_S  # stored as a time: an age computed again may be just below its limit
        self.is_savepoint = is_savepoint
        self.request = request
        self.reports: dict[Subtask, Mapping[str, Any]] = {}
        self.size_bytes = 0
        self.store_s = 0.0


@final
class JobCheckpoints:
    """Carries out the decisions of the checkpoint coordinator of one job.

    Attributes:
        history: the last `HISTORY` ended checkpoints, oldest first.
        failed: number of checkpoints that were declined, timed out, or could not be stored.
    """

    def __init__(
        self,
        coordinator: CheckpointCoordinator,
        storage: CheckpointStorage,
        finals: FinalStates,
        commands: TaskCommands,
        nursery: trio.Nursery,
        in_thread: InThread,
        history: list[CheckpointReport],
    ) -> None:
        self.history = history
        self.completed = self.failed = 0
        self._coordinator = coordinator
        self._storage = storage
        self._finals = finals
        self._commands = commands
        self._nursery = nursery
        self._in_thread = in_thread
        self._requests: deque[CheckpointRequest] = deque()  # not triggered yet
        self._pending: dict[int, _Pending] = {}
        self._states_wait: dict[Subtask, str] = {}  # final states that cannot be stored yet, and why
        self._last_waits = ""  # why the final checkpoint is not complete
        self._pauses = 0
        self._stops: dict[int, int] = {}  # savepoints that stop the job: `_pauses` at their trigger
        self._to_complete: deque[Complete] = deque()
        self._to_discard: deque[int] = deque()
        self._is_stopped = self._is_abandoned = False
        self._ended_one = trio.Event()
        self._changed = trio.Event()
        nursery.start_soon(self._run)

    def request(self, *, savepoint: bool, stops: bool = False) -> CheckpointRequest:
        """Requests a checkpoint. Raises LocalProtocolError if checkpoints are stopped."""
        request = CheckpointRequest()
        self._requests.append(request)
        try:
            self._with(lambda now_s: self._coordinator.request(now_s, savepoint=savepoint, stops=stops))
        except LocalProtocolError:
            self._requests.remove(request)
            raise
        return request

    async def take(self, *, savepoint: bool, stops: bool) -> CheckpointReport:
        """Requests a checkpoint and waits for its end.

        Raises:
            ConfigError: too many wait already.
            LocalProtocolError: checkpoints are stopped, or the job ended before this one.

        Cancellation: the checkpoint is taken anyway.
        """
        if len(self._requests) >= MAX_WAITING:
            raise ConfigError(
                f"{len(self._requests)} savepoints of this job wait already, which is the maximum: a job takes one"
                " after the other, also for clients that have left; try again later"
            )
        request = self.request(savepoint=savepoint, stops=stops)
        await request.ended.wait()
        if request.report is None:
            raise LocalProtocolError("the job ended before the checkpoint was taken")
        return request.report

    def acknowledged(self, checkpoint_id: int, file: TaskFile, report: Mapping[str, Any]) -> None:
        """Handles the acknowledgement of a subtask."""
        pending = self._pending.get(checkpoint_id)
        if pending is not None and (file.task, file.subtask) not in pending.reports:
            pending.reports[file.task, file.subtask] = {"task": file.task, "subtask": file.subtask, **report}
            pending.size_bytes += file.size_bytes
        self._with(partial(self._coordinator.acknowledged, checkpoint_id, file))

    def declined(self, checkpoint_id: int, task: str, subtask: int, reason: str) -> None:
        """Handles the refusal of a subtask; of `NO_CHECKPOINT` if it waits to store its final state."""
        if checkpoint_id == NO_CHECKPOINT:
            self._states_wait[task, subtask] = reason
            self._commands.final_waits((task, subtask), reason)
            return
        self._with(partial(self._coordinator.declined, checkpoint_id, task, subtask, reason))

    def task_ended(self, task: str, subtask: int) -> None:
        """Handles the successful end of a subtask, whose final state is stored."""
        self._states_wait.pop((task, subtask), None)
        self._with(partial(self._coordinator.task_ended, task, subtask))

    def task_waits(self, task: str, subtask: int) -> None:
        """Handles a subtask that has sent its last event and waits for a checkpoint triggered from now on."""
        self._with(partial(self._coordinator.task_waits, task, subtask))

    def pause(self, reason: str) -> None:
        """Pauses checkpoints while a part of the job restarts. Idempotent."""
        if not self._coordinator.is_paused:
            self._pauses += 1
            self._states_wait.clear()  # of tasks that restart; the others say it again
            self._with(partial(self._coordinator.pause, reason))

    def resume(self, goes_on: Callable[[Subtask], bool]) -> None:
        """Resumes checkpoints when all tasks run or have ended. Idempotent.

        Args:
            goes_on: returns whether a subtask that once ended or waited has been restarted since.
        """
        if self._coordinator.is_paused:
            before = {*self._coordinator.ended_subtasks, *self._coordinator.waiting_subtasks}
            self._with(partial(self._coordinator.resume, [subtask for subtask in sorted(before) if goes_on(subtask)]))

    def stops_the_job(self, checkpoint_id: int) -> bool:
        """Whether a savepoint stops the job, and no part of the job has restarted since its trigger."""
        return self._stops.get(checkpoint_id) == self._pauses

    def has_ended(self, subtask: Subtask) -> bool:
        """Whether `task_ended` was called for a subtask that has not been restarted since."""
        return subtask in self._coordinator.ended_subtasks

    async def take_last(self, goes_on: Callable[[Subtask], bool]) -> None:
        """After the end of every task: waits for pending checkpoints, or takes one of the final states."""
        self.resume(goes_on)
        while self._requests or self._pending:  # one of them may be a savepoint that ends the job
            self._ended_one = trio.Event()
            await self._ended_one.wait()
        if not self._coordinator.is_covered:
            await self.request(savepoint=False).ended.wait()

    def stop(self) -> None:
        """Aborts pending checkpoints and triggers no more. Idempotent."""
        self._is_stopped = True
        self._with(self._coordinator.stop)
        for request in self._requests:
            request.ended.set()
        self._requests.clear()

    def abandon(self) -> None:
        """Ignores all later reports, because this JobManager ends and the next one continues the job."""
        self._is_abandoned = True

    async def close(self) -> None:
        """Removes the files of incomplete checkpoints after the end of the job."""
        for pending in self._pending.values():  # their manifests may have been stored
            if pending.request is not None:
                pending.request.ended.set()
        while self._to_discard:
            await self._in_thread(partial(self._storage.discard, self._to_discard.pop()))
        await self._in_thread(self._finals.clear)

    async def _run(self) -> None:
        while not (self._is_stopped or self._is_abandoned):
            self._changed = trio.Event()
            deadline_s = self._coordinator.next_deadline()
            deadlines = [pending.log_at_s for pending in self._pending.values()]
            with trio.move_on_at(min([math.inf if deadline_s is None else deadline_s, *deadlines])):
                await self._changed.wait()
            self._with(self._coordinator.tick)
            self._log_slow()

    def _log_slow(self) -> None:
        now_s = trio.current_time()
        if all(pending.log_at_s > now_s for pending in self._pending.values()):
            return  # the bytes in all queues are counted only for what is logged
        for checkpoint in self.in_progress():
            pending = self._pending[checkpoint.checkpoint_id]
            if pending.log_at_s <= now_s:
                pending.log_at_s = now_s + checkpoint.age_s
                self._commands.checkpoint_is_slow(checkpoint)

    def _with(self, step: Callable[[float], Sequence[Instruction]]) -> None:
        """Runs a step of the coordinator, carries out its instructions, and updates the deadline."""
        if self._is_abandoned:
            return
        for instruction in step(trio.current_time()):
            self._carry_out(instruction)
        self._changed.set()

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Trigger():
                checkpoint_id = instruction.barrier.checkpoint_id
                if checkpoint_id not in self._pending:  # else tasks that lost their producers are triggered again
                    # A periodic checkpoint also serves the oldest request.
                    request = self._requests.popleft() if self._requests else None
                    self._pending[checkpoint_id] = _Pending(trio.current_time(), instruction.is_savepoint, request)
                    if instruction.stops:
                        self._stops[checkpoint_id] = self._pauses
                self._commands.trigger_checkpoint(
                    encode_event(instruction.barrier),
                    instruction.subtasks,
                    is_savepoint=instruction.is_savepoint,
                    stops=instruction.stops,
                )
            case StoreFinal():
                self._nursery.start_soon(self._store_finals, instruction)
            case Complete():
                self._to_complete.append(instruction)
                if len(self._to_complete) == 1:
                    self._nursery.start_soon(self._complete_all)
            case Abort():
                reason = f"{instruction.cause.value}: {instruction.reason}"
                self._commands.abort_checkpoint(instruction.checkpoint_id, instruction.subtasks)
                self._commands.checkpoint_aborted(
                    instruction.checkpoint_id, reason, is_failure=instruction.cause.is_failure
                )
                self.failed += instruction.cause.is_failure
                if instruction.cause.is_failure and self._coordinator.is_final_due:
                    self._last_waits = f"the final checkpoint, which is retried: {reason}"
                self._report(instruction.checkpoint_id, reason)
                self._to_discard.append(instruction.checkpoint_id)
                if not self._is_stopped:
                    self._nursery.start_soon(self._discard)
            case FailJob():
                self._commands.fail(instruction.reason)

    def in_progress(self) -> list[CheckpointInProgress]:
        """The checkpoints that were triggered and have not ended, oldest first."""
        now_s = trio.current_time()
        return [
            CheckpointInProgress(
                each.checkpoint_id,
                each.is_savepoint,
                now_s - each.triggered_s,
                each.acknowledged,
                each.subtasks,
                each.waits_for[:SHOWN],
                len(each.waits_for[SHOWN:]),
                self._commands.data_ahead(each.checkpoint_id, each.waits_for),
            )
            for each in self._coordinator.in_progress()
            if each.checkpoint_id in self._pending
        ]

    @property
    def waits_for(self) -> str:
        """Why a final state is not stored, or the final checkpoint not complete; empty if nothing delays them."""
        for (task, subtask), reason in self._states_wait.items():
            return f"{task}-{subtask} to store its final state: {reason}"
        return self._last_waits

    @property
    def is_storing(self) -> bool:
        """Whether a checkpoint that all tasks have acknowledged is not yet stored; pruning others does not count."""
        return any(each.checkpoint_id in self._pending for each in self._to_complete)

    async def _complete_all(self) -> None:
        """Completes checkpoints one by one; prunes only when no other one is being completed."""
        while self._to_complete:
            await self._complete(self._to_complete[0])
            if len(self._to_complete) == 1:
                await self._in_thread(self._storage.prune)
            self._to_complete.popleft()

    async def _complete(self, instruction: Complete) -> None:
        checkpoint_id = instruction.checkpoint_id
        began_s = trio.current_time()
        try:
            await self._in_thread(partial(self._storage.complete, instruction.manifest(datetime.now(UTC))))
        except CheckpointError as error:
            self._with(partial(self._coordinator.not_stored, checkpoint_id, str(error)))
            return
        self._pending[checkpoint_id].store_s = trio.current_time() - began_s
        self._last_waits = ""
        self._report(checkpoint_id, "")
        self._commands.checkpoint_stored(checkpoint_id, job_goes_on=instruction.job_goes_on)
        self._with(partial(self._coordinator.completed, checkpoint_id))

    async def _store_finals(self, instruction: StoreFinal) -> None:
        for subtask in instruction.subtasks:
            final = self._commands.final_of(subtask)
            if final is None:
                self.declined(instruction.checkpoint_id, *subtask, "it ended, and its final state is missing")
                return
            try:
                file = await self._in_thread(
                    partial(self._finals.copy, final, instruction.checkpoint_id, self._storage)
                )
            except CheckpointError as error:
                self.declined(instruction.checkpoint_id, *subtask, str(error))
                return
            self.acknowledged(instruction.checkpoint_id, file, {})

    async def _discard(self) -> None:
        if self._to_discard:
            await self._in_thread(partial(self._storage.discard, self._to_discard.popleft()))

    def _report(self, checkpoint_id: int, reason: str) -> None:
        pending = self._pending.pop(checkpoint_id)
        report = CheckpointReport(
            checkpoint_id,
            not reason,
            reason,
            pending.is_savepoint,
            pending.triggered_s,
            trio.current_time() - pending.triggered_s,
            pending.size_bytes,
            pending.store_s,
            tuple(pending.reports.values()),
        )
        self.completed += report.is_complete
        self.history.append(report)
        del self.history[:-HISTORY]
        self._ended_one.set()
        if pending.request is not None:
            pending.request.report = report
            pending.request.ended.set()
