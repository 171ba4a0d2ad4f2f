"""The checkpoints of one job: the coordinator's instructions carried out; and which job has which folder.

Takes: what tasks report, requests of users, the time; folders that jobs are submitted with. Gives: commands to the
tasks, manifests to the storage, a report of every checkpoint; an error where a folder is another job's, or lies
elsewhere than it may.

Rules: the folder is touched in threads only. A request is answered exactly once, whatever happens to the job. The last
one who takes over a folder has it (`checkpoint.fence`), so a folder is a job's from before it is touched until the job
has ended. Links are followed before folders are compared.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Protocol, final

import trio

from ..checkpoint.coordinator import (
    Abort,
    CheckpointCoordinator,
    Complete,
    CoordinatorStatistics,
    FailJob,
    Instruction,
    StoreFinal,
    Subtask,
    Trigger,
)
from ..checkpoint.finals import FinalStates
from ..checkpoint.snapshot import TaskFile
from ..checkpoint.storage import CheckpointStorage
from ..errors import CheckpointError, ConfigError, LocalProtocolError
from ..events import encode_event
from ..runtime.threads import InThread


@final
class CheckpointOwners:
    """The folders of the jobs of one JobManager.

    Args:
        roots: folders below which those that jobs name have to lie; none: anywhere.
        in_thread: runs what blocks.
    """

    def __init__(self, roots: Iterable[str], in_thread: InThread) -> None:
        self._roots = tuple(roots)
        self._in_thread = in_thread
        self._owners: dict[str, tuple[str, str]] = {}
        """By folder: id and name of the job."""

    async def check_place(self, folder: str) -> None:
        """Whether jobs may name this folder.

        Raises:
            ConfigError: no; the text names the roots.
        """
        await self._in_thread(partial(self._check_place, folder))

    async def claim(self, folder: str, job_id: str, name: str) -> None:
        """The folder is this job's, until `leave`. Nothing happens where it is already.

        Raises:
            ConfigError: it is another job's.
        """
        real = await self._in_thread(partial(os.path.realpath, folder))
        owner, owner_name = self._owners.setdefault(real, (job_id, name))
        if owner != job_id:
            raise ConfigError(
                f"job {name!r}: the checkpoint folder {folder} is that of job {owner} ({owner_name}), which has not"
                " ended: give every job a folder of its own, or none, and the JobManager keeps one for it"
            )

    def leave(self, job_id: str) -> None:
        """The job has ended, or was not accepted."""
        self._owners = {folder: owner for folder, owner in self._owners.items() if owner[0] != job_id}

    def _check_place(self, folder: str) -> None:
        real = os.path.realpath(folder)
        roots = [os.path.realpath(root) for root in self._roots]
        if roots and not any(os.path.commonpath((root, real)) == root for root in roots):
            raise ConfigError(
                f"{folder} lies nowhere below {', '.join(self._roots)}, where this JobManager has checkpoints and"
                " savepoints: name a folder there, or start it with another --checkpoint-root"
            )


HISTORY: Final = 1_000
"""Reports kept of one job."""


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """How a checkpoint went.

    Attributes:
        checkpoint_id: its number.
        is_complete: whether it can be restored from; otherwise it was aborted.
        reason: why it was aborted; empty otherwise.
        is_savepoint: whether it is kept until somebody removes it.
        triggered_s: when, on trio's clock.
        duration_s: from its trigger until it was complete, stored and all, or aborted.
        size_bytes: of all files that were acknowledged.
        store_s: for its manifest.
        subtasks: what those said that have acknowledged, in that order: `task`, `subtask`, and how it went there.
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


class CheckpointCommands(Protocol):
    """What is asked of the job."""

    def trigger(self, barrier: bytes, subtasks: Iterable[Subtask], *, is_savepoint: bool, stops: bool) -> None:
        """Has subtasks take a checkpoint."""

    def abort_checkpoint(self, checkpoint_id: int, subtasks: Iterable[Subtask]) -> None:
        """Tells these that it will not happen."""

    def final_of(self, subtask: Subtask) -> TaskFile | None:
        """What an ended subtask left; None where it left nothing."""

    def checkpoint_stored(self, checkpoint_id: int, *, job_goes_on: bool) -> None:
        """It is complete: tasks may commit, and begin from it, unless it is a savepoint and the job goes on."""

    def checkpoint_aborted(self, checkpoint_id: int, reason: str, *, is_failure: bool) -> None:
        """It will never be complete; a failure if that is nobody's wish, nor what follows from another failure."""

    def fail(self, reason: str) -> None:
        """Too many checkpoints have failed."""


@final
class CheckpointRequest:
    """Somebody waits for a checkpoint.

    Attributes:
        ended: set when it has, or when the job has without it.
        report: how it went; None if the job ended without it.
    """

    __slots__ = ("ended", "report")

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.report: CheckpointReport | None = None


@final
class _Pending:
    """A checkpoint under way."""

    __slots__ = ("is_savepoint", "reports", "request", "size_bytes", "store_s", "triggered_s")

    def __init__(self, triggered_s: float, is_savepoint: bool, request: CheckpointRequest | None) -> None:
        self.triggered_s = triggered_s
        self.is_savepoint = is_savepoint
        self.request = request
        self.reports: list[Mapping[str, Any]] = []
        self.size_bytes = 0
        self.store_s = 0.0


@final
class JobCheckpoints:
    """Carries out what the checkpoint coordinator of one job decides.

    Attributes:
        history: the checkpoints that have ended, the oldest first; the last `HISTORY` of them.
        failed: how many were declined, took too long, or could not be stored.
        waits_for: why the checkpoint that tasks end with is not there yet; empty where nothing was in its way.
    """

    def __init__(
        self,
        coordinator: CheckpointCoordinator,
        storage: CheckpointStorage,
        finals: FinalStates,
        commands: CheckpointCommands,
        nursery: trio.Nursery,
        in_thread: InThread,
        history: list[CheckpointReport],
    ) -> None:
        """Starts to take checkpoints, until `stop`.

        Args:
            coordinator: of this job.
            storage: for manifests.
            finals: of tasks that have ended.
            commands: carries out what concerns the tasks.
            nursery: where everything runs.
            in_thread: runs what blocks.
            history: where reports go.
        """
        self.history = history
        self.failed = 0
        self.waits_for = ""
        self._coordinator = coordinator
        self._storage = storage
        self._finals = finals
        self._commands = commands
        self._nursery = nursery
        self._in_thread = in_thread
        self._requests: deque[CheckpointRequest] = deque()  # not triggered yet
        self._pending: dict[int, _Pending] = {}
        self._to_complete: deque[Complete] = deque()
        self._to_discard: deque[int] = deque()
        self._is_stopped = self._is_abandoned = False
        self._ended_one = trio.Event()
        self._changed = trio.Event()
        nursery.start_soon(self._run)

    def request(self, *, savepoint: bool, stops: bool = False) -> CheckpointRequest:
        """Asks for a checkpoint.

        Raises:
            LocalProtocolError: it is stopped.
        """
        request = CheckpointRequest()
        self._requests.append(request)
        try:
            self._with(lambda now_s: self._coordinator.request(now_s, savepoint=savepoint, stops=stops))
        except LocalProtocolError:
            self._requests.remove(request)
            raise
        return request

    async def take(self, *, savepoint: bool, stops: bool) -> CheckpointReport:
        """Asks for a checkpoint, and waits for its end.

        Raises:
            LocalProtocolError: it is stopped, or was before the checkpoint was taken.

        Cancellation: it is taken all the same.
        """
        request = self.request(savepoint=savepoint, stops=stops)
        await request.ended.wait()
        if request.report is None:
            raise LocalProtocolError("the job ended before the checkpoint was taken")
        return request.report

    def acknowledged(self, checkpoint_id: int, file: TaskFile, report: Mapping[str, Any]) -> None:
        """A subtask has stored its part."""
        pending = self._pending.get(checkpoint_id)
        if pending is not None:
            pending.reports.append({"task": file.task, "subtask": file.subtask, **report})
            pending.size_bytes += file.size_bytes
        self._with(partial(self._coordinator.acknowledged, checkpoint_id, file))

    def declined(self, checkpoint_id: int, task: str, subtask: int, reason: str) -> None:
        """A subtask cannot take part."""
        self._with(partial(self._coordinator.declined, checkpoint_id, task, subtask, reason))

    def task_ended(self, task: str, subtask: int) -> None:
        """A subtask has ended well; its final state is stored."""
        self._with(partial(self._coordinator.task_ended, task, subtask))

    def task_waits(self, task: str, subtask: int) -> None:
        """A subtask has sent its last event, and wants to hear of a checkpoint that begins from now on."""
        self._with(partial(self._coordinator.task_waits, task, subtask))

    def pause(self, reason: str) -> None:
        """A part of the job restarts; idempotent."""
        if not self._coordinator.is_paused:
            self._with(partial(self._coordinator.pause, reason))

    def resume(self, goes_on: Callable[[Subtask], bool]) -> None:
        """All of the job runs, but for what has ended; idempotent.

        Args:
            goes_on: whether a subtask that once ended, or waited, has begun again since.
        """
        if self._coordinator.is_paused:
            before = {*self._coordinator.ended_subtasks, *self._coordinator.waiting_subtasks}
            self._with(partial(self._coordinator.resume, [subtask for subtask in sorted(before) if goes_on(subtask)]))

    def has_ended(self, subtask: Subtask) -> bool:
        """Whether `task_ended` was said of it, and it has not begun again since."""
        return subtask in self._coordinator.ended_subtasks

    async def take_last(self, goes_on: Callable[[Subtask], bool]) -> None:
        """Every task has ended: waits for what is under way, or takes a checkpoint of what each had in the end.

        Args:
            goes_on: see `resume`.
        """
        self.resume(goes_on)
        while self._requests or self._pending:  # whoever asked for those may have asked for the end of the job, too
            self._ended_one = trio.Event()
            await self._ended_one.wait()
        if not self._coordinator.is_covered:
            await self.request(savepoint=False).ended.wait()

    def stop(self) -> None:
        """Aborts what is under way; nothing is triggered any more. Idempotent."""
        self._is_stopped = True
        self._with(self._coordinator.stop)
        for request in self._requests:
            request.ended.set()
        self._requests.clear()

    def abandon(self) -> None:
        """The JobManager ends and the job does not: whatever is still said of it is the next one's affair."""
        self._is_abandoned = True

    async def close(self) -> None:
        """The job has ended, and nobody writes any more: removes what was written of checkpoints that it cut short."""
        for pending in self._pending.values():  # was being stored, and perhaps is
            if pending.request is not None:
                pending.request.ended.set()
        while self._to_discard:
            await self._in_thread(partial(self._storage.discard, self._to_discard.pop()))
        await self._in_thread(self._finals.clear)

    def statistics(self) -> CoordinatorStatistics:
        """The coordinator's view."""
        return self._coordinator.statistics()

    # Inside.

    async def _run(self) -> None:
        while not self._is_stopped:
            self._changed = trio.Event()
            deadline_s = self._coordinator.next_deadline()
            with trio.move_on_at(math.inf if deadline_s is None else deadline_s):
                await self._changed.wait()
            self._with(self._coordinator.tick)

    def _with(self, step: Callable[[float], Sequence[Instruction]]) -> None:
        """Tells the coordinator something, carries out what it says, and looks at its deadlines anew."""
        if self._is_abandoned:
            return
        for instruction in step(trio.current_time()):
            self._carry_out(instruction)
        self._changed.set()

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Trigger():
                checkpoint_id = instruction.barrier.checkpoint_id
                if checkpoint_id not in self._pending:  # else some tasks have lost their producers since
                    # Whoever asked first is served first, also by one that was due anyway.
                    request = self._requests.popleft() if self._requests else None
                    self._pending[checkpoint_id] = _Pending(trio.current_time(), instruction.is_savepoint, request)
                self._commands.trigger(
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
                    self.waits_for = f"the last checkpoint, which is tried again: {reason}"
                self._report(instruction.checkpoint_id, reason)
                self._to_discard.append(instruction.checkpoint_id)
                if not self._is_stopped:
                    self._nursery.start_soon(self._discard)
            case FailJob():
                self._commands.fail(instruction.reason)

    async def _complete_all(self) -> None:
        """One after the other; and nothing is removed while an older one is being completed."""
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
        self.waits_for = ""
        self._report(checkpoint_id, "")
        self._commands.checkpoint_stored(checkpoint_id, job_goes_on=instruction.job_goes_on)
        self._with(partial(self._coordinator.completed, checkpoint_id))

    async def _store_finals(self, instruction: StoreFinal) -> None:
        for subtask in instruction.subtasks:
            final = self._commands.final_of(subtask)
            if final is None:
                self.declined(instruction.checkpoint_id, *subtask, "it ended, and its final state is not there")
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
        """A checkpoint has ended."""
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
            tuple(pending.reports),
        )
        self.history.append(report)
        del self.history[:-HISTORY]
        self._ended_one.set()
        if pending.request is not None:
            pending.request.report = report
            pending.request.ended.set()
