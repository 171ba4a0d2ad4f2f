"""One run of a job, seen from its master: started on all workers, checkpointed, ended or failed.

Takes: a job, links to the workers. Gives: commands to them; to the caller checkpoints, the end, the cause of a failure.

Rules:
- Checkpoints begin when every task runs, and end when every task has ended: with a last one that holds the final
  states of all of them.
- The first failure ends the run everywhere. Who caused it is told apart from those who only noticed: a task that lost
  its producer is not to blame.
- The run is over when every worker has said that nothing is left of it, or is gone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final, final

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
from ..checkpoint.snapshot import TaskFile, TaskSnapshot
from ..checkpoint.storage import CheckpointStorage
from ..errors import CheckpointError, LocalProtocolError, NetstackError
from ..events import encode_event
from .control import (
    AbortCheckpoint,
    Acknowledged,
    Cancel,
    Connect,
    ControlLink,
    Declined,
    Deploy,
    Deployed,
    Ended,
    Failed,
    Message,
    Running,
    Stopped,
    StoreFinals,
    Subtasks,
    TriggerCheckpoint,
)
from .job_spec import Job
from .signal import Signal
from .task_checkpoints import InThread, SubtaskReport

STOP_GRACE_S: Final = 10.0
"""How long workers may take to end a run before the master gives them up; closing takes milliseconds."""


class JobFailed(NetstackError):
    """A run of a job ended before its tasks did; the message names the task, or the worker, and the cause.

    Attributes:
        task: of the subtask that failed; empty when it was none, such as a process that died.
        subtask: which.
    """

    def __init__(self, text: str, *, task: str = "", subtask: int = 0) -> None:
        super().__init__(text)
        self.task = task
        self.subtask = subtask


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


@final
class _Request:
    """Somebody waits for a checkpoint."""

    __slots__ = ("done", "report")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.report: CheckpointReport | None = None


@final
class _Pending:
    """A checkpoint under way."""

    __slots__ = ("is_savepoint", "reports", "request", "triggered_s")

    def __init__(self, triggered_s: float, is_savepoint: bool, request: _Request | None) -> None:
        self.triggered_s = triggered_s
        self.is_savepoint = is_savepoint
        self.request = request
        self.reports: list[SubtaskReport] = []


@final
class JobRun:
    """One run; from `open_job` or `JobMaster.open_job`.

    Attributes:
        attempt: its number, from 1.
        restored_from: the checkpoint it goes on from; None from the start.
        history: its checkpoints that have ended, the oldest first.
    """

    def __init__(
        self,
        job: Job,
        attempt: int,
        links: Sequence[ControlLink],
        storage: CheckpointStorage | None,
        nursery: trio.Nursery,
        in_thread: InThread,
    ) -> None:
        self.job = job
        self.attempt = attempt
        self.restored_from: int | None = None
        self.history: list[CheckpointReport] = []
        self._links = list(links)
        self._places = job.placement(len(links))
        self._storage = storage
        self._nursery = nursery
        self._in_thread = in_thread
        self._addresses: dict[int, str] = {}
        self._running: set[int] = set()
        self._stopped: set[int] = set()
        self._ended: set[Subtask] = set()
        self._failures: list[tuple[bool, JobFailed]] = []
        self._has_ended = False
        self._is_stopping = False
        self._is_finishing = False
        self._changed = Signal()
        self._coordinator: CheckpointCoordinator | None = None
        self._tick_soon = trio.Event()
        self._requests: deque[_Request] = deque()  # not triggered yet
        self._pending: dict[int, _Pending] = {}

    # For the caller.

    async def checkpoint(self, *, savepoint: bool = False) -> CheckpointReport:
        """Takes a checkpoint now, or as soon as one that is under way has ended.

        Args:
            savepoint: aligned, and kept until somebody removes it.

        Returns:
            How it went; look at `is_complete`.

        Raises:
            LocalProtocolError: the job takes no checkpoints, or the run is over.
            JobFailed: the run fails meanwhile.

        Cancellation: it is taken all the same.
        """
        if self._coordinator is None or self._is_stopping:
            raise LocalProtocolError(
                f"job {self.job.name!r} takes no checkpoint now: it needs `checkpoints` and a `folder`, and a run that"
                " is not over"
            )
        request = _Request()
        self._requests.append(request)
        self._carry_out(self._coordinator.request(trio.current_time(), savepoint=savepoint))
        await request.done.wait()
        if request.report is None:
            raise self._failure() or LocalProtocolError(f"the run of job {self.job.name!r} was cancelled")
        return request.report

    async def wait(self) -> None:
        """Waits until every task has ended, and the last checkpoint is taken.

        Raises:
            JobFailed: the run failed; its `__cause__` is the error itself if it happened in this process.
            LocalProtocolError: it was cancelled.
        """
        await trio.lowlevel.checkpoint()
        while not (self._has_ended or self._is_over):
            await self._changed.wait()
        failure = self._failure()
        if failure is not None:
            raise failure
        if not self._has_ended:
            raise LocalProtocolError(f"the run of job {self.job.name!r} was cancelled")

    async def stop(self) -> None:
        """Cancels whatever still runs, and waits until nothing is left of it. Idempotent."""
        self._cancel()
        while not self._is_over:
            await self._changed.wait()
        self._end_requests()

    def statistics(self) -> CoordinatorStatistics | None:
        """The coordinator's view; None where no checkpoints are taken."""
        return None if self._coordinator is None else self._coordinator.statistics()

    # For the master.

    async def start(self, restore: int | None) -> None:
        """Has every worker start its part; returns when all tasks run.

        Raises:
            JobFailed: one could not.
        """
        self.restored_from = restore
        for index, link in enumerate(self._links):
            link.send(Deploy(self.attempt, self.job, index, len(self._links), -1 if restore is None else restore))
        await self._until(lambda: len(self._addresses) == len(self._links))
        addresses = tuple(address for _, address in sorted(self._addresses.items()))
        self._send_all(Connect(self.attempt, addresses))
        await self._until(lambda: len(self._running) == len(self._links))
        settings = self.job.checkpoints
        if settings is not None and self._storage is not None:
            self._coordinator = CheckpointCoordinator(
                self.job.coordinated_tasks(),
                settings,
                first_id=await self._in_thread(self._storage.next_id),
                now_s=trio.current_time(),
            )
            for subtask in sorted(self._ended):
                self._carry_out(self._coordinator.task_ended(TaskSnapshot(*subtask), trio.current_time()))
            self._nursery.start_soon(self._run_coordinator)
        self._check_all_ended()

    def on_message(self, index: int, message: Message) -> None:
        """A worker has said something."""
        if message.attempt != self.attempt:
            return
        now = trio.current_time()
        coordinator = self._coordinator
        match message:
            case Deployed():
                self._addresses[index] = message.address
            case Running():
                self._running.add(index)
            case Acknowledged() if coordinator is not None:
                report = SubtaskReport(*message.report)
                file = TaskFile(report.task, report.subtask, message.size_bytes, message.crc32)
                if message.checkpoint_id in self._pending:
                    self._pending[message.checkpoint_id].reports.append(report)
                self._carry_out(coordinator.acknowledged(message.checkpoint_id, file, now))
            case Declined() if coordinator is not None:
                self._carry_out(
                    coordinator.declined(message.checkpoint_id, message.task, message.subtask, message.reason, now)
                )
            case Ended():
                self._ended.add((message.task, message.subtask))
                if coordinator is not None:
                    # The worker keeps the state: it may be large.
                    self._carry_out(coordinator.task_ended(TaskSnapshot(message.task, message.subtask), now))
                    self._check_all_ended()
            case Failed():
                where = f"{message.task}-{message.subtask}" if message.task else self._links[index].peer
                failure = JobFailed(
                    f"job {self.job.name!r}: {where} failed: {message.cause}",
                    task=message.task,
                    subtask=message.subtask,
                )
                failure.__cause__ = message.error
                self._fail(failure, is_secondary=message.is_secondary)
            case Stopped():
                self._leave(index)
        self._changed.wake()

    def worker_lost(self, index: int, cause: str) -> None:
        """A worker is gone, and all its subtasks."""
        if index not in self._stopped:
            if not self._is_stopping:
                self._fail(JobFailed(f"job {self.job.name!r}: {cause}"), is_secondary=False)
            self._leave(index)
            self._changed.wake()

    # Inside.

    @property
    def _is_over(self) -> bool:
        return len(self._stopped) == len(self._links)

    def _failure(self) -> JobFailed | None:
        """The failure to blame."""
        return min(self._failures, key=lambda failure: failure[0])[1] if self._failures else None

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition() or self._failures:
            failure = self._failure()
            if failure is not None and self._is_over:
                raise failure
            await self._changed.wait()

    def _fail(self, failure: JobFailed, *, is_secondary: bool) -> None:
        self._failures.append((is_secondary, failure))
        if self._coordinator is not None and not self._is_stopping:
            now = trio.current_time()
            if failure.task:
                self._carry_out(self._coordinator.task_failed(failure.task, failure.subtask, str(failure), now))
            else:
                self._carry_out(self._coordinator.stop(now))
        self._cancel()

    def _leave(self, index: int) -> None:
        """Nothing of the run is left in this worker."""
        self._stopped.add(index)
        self._cancel()  # the others cannot go on without it
        if self._is_over:
            self._end_requests()

    def _cancel(self) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            if self._coordinator is not None:
                self._carry_out(self._coordinator.stop(trio.current_time()))
            self._send_all(Cancel(self.attempt))
            self._nursery.start_soon(self._give_up)

    async def _give_up(self) -> None:
        """Workers that do not stop in time are cut off: whatever they still do, they do alone."""
        await trio.sleep(STOP_GRACE_S)
        for index, link in enumerate(self._links):
            if index not in self._stopped:
                link.close()
                self._leave(index)
        self._changed.wake()

    def _end_requests(self) -> None:
        waiting = [pending.request for pending in self._pending.values() if pending.request is not None]
        for request in (*waiting, *self._requests):
            request.done.set()
        self._requests.clear()

    def _check_all_ended(self) -> None:
        if len(self._ended) == len(self._places) and not self._is_finishing and not self._is_stopping:
            self._is_finishing = True
            self._nursery.start_soon(self._finish)

    async def _finish(self) -> None:
        """Every task has ended: a last checkpoint, with what each of them had in the end."""
        if self._coordinator is not None:
            await self.checkpoint()
        self._has_ended = True
        self._changed.wake()

    def _send_all(self, message: Message) -> None:
        for index, link in enumerate(self._links):
            if index not in self._stopped:
                link.send(message)

    def _by_worker(self, subtasks: Sequence[Subtask]) -> list[tuple[ControlLink, Subtasks]]:
        workers: dict[int, list[Subtask]] = {}
        for subtask in subtasks:
            workers.setdefault(self._places[subtask], []).append(subtask)
        return [(self._links[index], tuple(group)) for index, group in workers.items()]

    # Checkpoints.

    async def _run_coordinator(self) -> None:
        assert self._coordinator is not None
        while not self._is_stopping:
            self._tick_soon = trio.Event()
            deadline_s = self._coordinator.next_deadline()
            with trio.move_on_at(math.inf if deadline_s is None else deadline_s):
                await self._tick_soon.wait()
            self._carry_out(self._coordinator.tick(trio.current_time()))

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Trigger():
                    request = self._requests.popleft() if self._requests else None
                    self._pending[instruction.barrier.checkpoint_id] = _Pending(
                        trio.current_time(), instruction.is_savepoint, request
                    )
                    barrier = encode_event(instruction.barrier)
                    for link, subtasks in self._by_worker(instruction.subtasks):
                        link.send(TriggerCheckpoint(self.attempt, barrier, subtasks))
                case StoreFinal():
                    ended = [(final.task, final.subtask) for final in instruction.snapshots]
                    for link, subtasks in self._by_worker(ended):
                        link.send(StoreFinals(self.attempt, instruction.checkpoint_id, subtasks))
                case Complete():
                    self._nursery.start_soon(self._complete, instruction)
                case Abort():
                    self._send_all(AbortCheckpoint(self.attempt, instruction.checkpoint_id))
                    self._report(instruction.checkpoint_id, f"{instruction.cause.value}: {instruction.reason}")
                    self._nursery.start_soon(self._discard, instruction.checkpoint_id)
                case FailJob():
                    self._fail(JobFailed(f"job {self.job.name!r}: {instruction.reason}"), is_secondary=False)
        self._tick_soon.set()  # deadlines may have changed

    async def _complete(self, instruction: Complete) -> None:
        assert self._coordinator is not None
        assert self._storage is not None
        checkpoint_id = instruction.checkpoint_id
        try:
            await self._in_thread(partial(self._storage.complete, instruction.manifest(datetime.now(UTC))))
        except CheckpointError as error:
            self._carry_out(self._coordinator.not_stored(checkpoint_id, str(error), trio.current_time()))
            return
        self._report(checkpoint_id, "")
        self._carry_out(self._coordinator.completed(checkpoint_id, trio.current_time()))
        await self._in_thread(self._storage.prune)

    async def _discard(self, checkpoint_id: int) -> None:
        assert self._storage is not None
        await self._in_thread(partial(self._storage.discard, checkpoint_id))

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
        if pending.request is not None:
            pending.request.report = report
            pending.request.done.set()
