"""The checkpoints of one run of a job: the coordinator's instructions carried out.

Takes: what tasks report, requests of the caller, the time. Gives: commands to the workers, manifests to the storage, a
report of every checkpoint.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final, Protocol, final

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
from ..checkpoint.snapshot import TaskFile
from ..checkpoint.storage import CheckpointStorage
from ..errors import CheckpointError
from ..events import encode_event
from .control import Acknowledged, Declined
from .task_checkpoints import InThread, SubtaskReport

HISTORY: Final = 10_000
"""Reports kept of one run."""


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
        subtasks: those that have acknowledged, in that order.
    """

    checkpoint_id: int
    is_complete: bool
    reason: str
    is_savepoint: bool
    triggered_s: float
    duration_s: float
    size_bytes: int
    subtasks: tuple[SubtaskReport, ...]


class CheckpointCommands(Protocol):
    """What is asked of the run."""

    def trigger(self, barrier: bytes, subtasks: Iterable[Subtask]) -> None:
        """Has subtasks take a checkpoint."""

    def abort_checkpoint(self, checkpoint_id: int) -> None:
        """Tells all subtasks that it will not happen."""

    def store_finals(self, checkpoint_id: int, subtasks: Iterable[Subtask]) -> None:
        """Has the final states of subtasks that have ended written."""

    def fail(self, reason: str) -> None:
        """Ends the run: too many checkpoints have failed."""


@final
class CheckpointRequest:
    """Somebody waits for a checkpoint.

    Attributes:
        ended: set when it has, or when the run has without it.
        report: how it went; None if the run ended without it.
    """

    __slots__ = ("ended", "report")

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.report: CheckpointReport | None = None


@final
class _Pending:
    """A checkpoint under way."""

    __slots__ = ("is_savepoint", "reports", "request", "triggered_s")

    def __init__(self, triggered_s: float, is_savepoint: bool, request: CheckpointRequest | None) -> None:
        self.triggered_s = triggered_s
        self.is_savepoint = is_savepoint
        self.request = request
        self.reports: list[SubtaskReport] = []


@final
class JobCheckpoints:
    """See the module.

    Attributes:
        history: the checkpoints that have ended, the oldest first; the last `HISTORY` of them.
    """

    def __init__(
        self,
        coordinator: CheckpointCoordinator,
        storage: CheckpointStorage,
        commands: CheckpointCommands,
        nursery: trio.Nursery,
        in_thread: InThread,
        history: list[CheckpointReport],
    ) -> None:
        """Starts to take checkpoints, until `stop`.

        Args:
            coordinator: of this run.
            storage: for manifests.
            commands: carries out what concerns the workers.
            nursery: where everything runs.
            in_thread: runs what blocks.
            history: where reports go.
        """
        self.history = history
        self._coordinator = coordinator
        self._storage = storage
        self._commands = commands
        self._nursery = nursery
        self._in_thread = in_thread
        self._requests: deque[CheckpointRequest] = deque()  # not triggered yet
        self._pending: dict[int, _Pending] = {}
        self._to_complete: deque[Complete] = deque()
        self._to_discard: deque[int] = deque()
        self._is_stopped = False
        self._changed = trio.Event()
        nursery.start_soon(self._run)

    def request(self, *, savepoint: bool) -> CheckpointRequest:
        """Asks for a checkpoint.

        Raises:
            LocalProtocolError: it is stopped.
        """
        request = CheckpointRequest()
        self._requests.append(request)
        self._with(lambda now_s: self._coordinator.request(now_s, savepoint=savepoint))
        return request

    def acknowledged(self, message: Acknowledged) -> None:
        """A subtask has stored its part."""
        report = message.report
        file = TaskFile(report.task, report.subtask, report.size_bytes, message.crc32)
        pending = self._pending.get(message.checkpoint_id)
        if pending is not None:
            pending.reports.append(report)
        self._with(partial(self._coordinator.acknowledged, message.checkpoint_id, file))

    def declined(self, message: Declined) -> None:
        """A subtask cannot take part."""
        self._with(
            partial(self._coordinator.declined, message.checkpoint_id, message.task, message.subtask, message.reason)
        )

    def task_ended(self, task: str, subtask: int) -> None:
        """A subtask has ended well. Its worker keeps its final state, which may be large."""
        self._with(partial(self._coordinator.task_ended, task, subtask))

    def task_failed(self, task: str, subtask: int, reason: str) -> None:
        """A subtask has failed."""
        self._with(partial(self._coordinator.pause, f"{task}-{subtask} failed: {reason}"))

    def stop(self) -> None:
        """Aborts what is under way; nothing is triggered any more. Idempotent."""
        self._is_stopped = True
        self._with(self._coordinator.stop)
        for request in self._requests:
            request.ended.set()
        self._requests.clear()

    async def close(self) -> None:
        """The run is over, and nobody writes any more: removes what was written of checkpoints that it cut short."""
        for pending in self._pending.values():  # was being stored, and perhaps is
            if pending.request is not None:
                pending.request.ended.set()
        while self._to_discard:
            await self._in_thread(partial(self._storage.discard, self._to_discard.pop()))

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
                self._commands.trigger(encode_event(instruction.barrier), instruction.subtasks)
            case StoreFinal():
                self._commands.store_finals(instruction.checkpoint_id, instruction.subtasks)
            case Complete():
                self._to_complete.append(instruction)
                if len(self._to_complete) == 1:
                    self._nursery.start_soon(self._complete_all)
            case Abort():
                self._commands.abort_checkpoint(instruction.checkpoint_id)
                self._report(instruction.checkpoint_id, f"{instruction.cause.value}: {instruction.reason}")
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
        try:
            await self._in_thread(partial(self._storage.complete, instruction.manifest(datetime.now(UTC))))
        except CheckpointError as error:
            self._with(partial(self._coordinator.not_stored, checkpoint_id, str(error)))
            return
        self._report(checkpoint_id, "")
        self._with(partial(self._coordinator.completed, checkpoint_id))

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
            sum(subtask.size_bytes for subtask in pending.reports),
            tuple(pending.reports),
        )
        self.history.append(report)
        del self.history[:-HISTORY]
        if pending.request is not None:
            pending.request.report = report
            pending.request.ended.set()
