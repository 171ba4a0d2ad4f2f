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

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NoReturn, final

import trio

from .. import errors
from ..checkpoint.coordinator import CheckpointCoordinator, CoordinatorStatistics, Subtask
from ..checkpoint.storage import CheckpointStorage
from ..errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from ..runtime.signal import Signal
from .checkpoints import CheckpointReport, JobCheckpoints
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
    TriggerCheckpoint,
)
from .spec import Job
from .task_checkpoints import InThread, SubtaskReport

STOP_GRACE_S: Final = 10.0
"""How long workers may take to end a run before the master gives them up; closing takes milliseconds."""


class JobFailed(errors.JobFailed):
    """A run of a job ended before its tasks did; the message names the task, or the worker, and the cause.

    Attributes:
        task: of the subtask that failed; empty when it was none, such as a process that died.
        subtask: which.
    """

    def __init__(self, text: str, *, task: str = "", subtask: int = 0) -> None:
        super().__init__(text)
        self.task = task
        self.subtask = subtask


@final
class JobRun:
    """One run; from `open_job` or `JobMaster.open_job` (a `CheckpointCommands`).

    Attributes:
        attempt: its number, from 1.
        restored_from: the checkpoint it goes on from; None from the start.
        history: its checkpoints that have ended, the oldest first; the last 10,000 of them.
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
        self._stopped = set(range(len(links)))  # nothing of the run is in these
        self._ended: set[Subtask] = set()
        self._failures: list[tuple[bool, JobFailed]] = []
        self._has_ended = False
        self._is_stopping = False
        self._is_started = False
        self._changed = Signal()
        self._checkpoints: JobCheckpoints | None = None

    # For the caller.

    async def checkpoint(self, *, savepoint: bool = False) -> CheckpointReport:
        """Takes a checkpoint now, or as soon as one that is under way has ended.

        Args:
            savepoint: aligned, and kept until somebody removes it.

        Returns:
            How it went; look at `is_complete`.

        Raises:
            LocalProtocolError: the job takes no checkpoints, or the run is over.
            JobFailed: the run failed before it was triggered.

        Cancellation: it is taken all the same.
        """
        if self._is_stopping:
            await self._raise_cause()
        if self._checkpoints is None:
            raise LocalProtocolError(
                f"job {self.job.name!r} takes no checkpoints; give it `checkpoints` and a `folder`"
            )
        request = self._checkpoints.request(savepoint=savepoint)
        await request.ended.wait()
        if request.report is None:
            await self._raise_cause()
        assert request.report is not None
        return request.report

    async def wait(self) -> None:
        """Waits until every task has ended, and the last checkpoint is taken.

        Raises:
            JobFailed: the run failed; its `__cause__` is the error itself if it happened in this process.
            LocalProtocolError: it was cancelled.
        """
        await trio.lowlevel.checkpoint()
        while not (self._has_ended or self._is_stopping):
            await self._changed.wait()
        if not self._has_ended:
            await self._raise_cause()

    async def stop(self) -> None:
        """Cancels whatever still runs, and waits until nothing is left of it. Idempotent.

        Workers that take longer than `STOP_GRACE_S` are cut off: whatever they still do, they do alone.
        """
        self._cancel()
        with trio.move_on_after(STOP_GRACE_S):
            while len(self._stopped) < len(self._links):
                await self._changed.wait()
        for index, link in enumerate(self._links):
            if index not in self._stopped:
                link.close()
                self._stopped.add(index)
        if self._checkpoints is not None:
            await self._checkpoints.close()

    def statistics(self) -> CoordinatorStatistics | None:
        """The coordinator's view; None where no checkpoints are taken."""
        return None if self._checkpoints is None else self._checkpoints.statistics()

    # For the master.

    async def start(self, restore: int | None) -> None:
        """Has every worker start its part; returns when all tasks run.

        Raises:
            JobFailed: one could not.
            ConfigError: the job cannot be sent to another process.
        """
        self.restored_from = restore
        for index, link in enumerate(self._links):
            link.send(Deploy(self.attempt, self.job, index, len(self._links), -1 if restore is None else restore))
            self._stopped.remove(index)
        await self._until(lambda: len(self._addresses) == len(self._links))
        addresses = tuple(address for _, address in sorted(self._addresses.items()))
        self._send_all(Connect(self.attempt, addresses))
        await self._until(lambda: len(self._running) == len(self._links))
        settings = self.job.checkpoints
        if settings is not None and self._storage is not None:
            first_id = await self._in_thread(self._storage.next_id)
            coordinator = CheckpointCoordinator(
                self.job.coordinated_tasks(), settings, first_id=first_id, now_s=trio.current_time()
            )
            self._checkpoints = JobCheckpoints(
                coordinator, self._storage, self, self._nursery, self._in_thread, self.history
            )
            for subtask in sorted(self._ended):
                self._checkpoints.task_ended(*subtask)
            if self._is_stopping:
                self._checkpoints.stop()
        self._is_started = True
        self._check_all_ended()

    def on_message(self, index: int, message: Message) -> None:
        """A worker has said something.

        Raises:
            RemoteProtocolError: about a subtask that is not its own.
        """
        if message.attempt != self.attempt:
            return
        about = message.report if isinstance(message, Acknowledged) else message
        if isinstance(about, SubtaskReport | Declined | Ended):
            subtask = (about.task, about.subtask)
            if self._places.get(subtask) != index or (isinstance(message, Ended) and subtask in self._ended):
                raise RemoteProtocolError(
                    ErrorCode.UNEXPECTED_FRAME,
                    f"{self._links[index].peer} reports of subtask {about.task}-{about.subtask}, which is not its own,"
                    " or has ended",
                )
        checkpoints = self._checkpoints
        match message:
            case Deployed():
                self._addresses[index] = message.address
            case Running():
                self._running.add(index)
            case Acknowledged() if checkpoints is not None:
                checkpoints.acknowledged(message)
            case Declined() if checkpoints is not None:
                checkpoints.declined(message)
            case Ended():
                self._ended.add((message.task, message.subtask))
                if checkpoints is not None:
                    checkpoints.task_ended(message.task, message.subtask)
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
            if not self._is_stopping or self._failures:  # others may have noticed before us
                self._fail(JobFailed(f"job {self.job.name!r}: {cause}"), is_secondary=False)
            self._leave(index)
            self._changed.wake()

    # Inside.

    def _failure(self) -> JobFailed | None:
        """The failure to blame."""
        return min(self._failures, key=lambda failure: failure[0])[1] if self._failures else None

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._is_stopping:
                await self._raise_cause()
            await self._changed.wait()

    async def _raise_cause(self) -> NoReturn:
        """Waits for the end; by then whoever is to blame has said so."""
        await self.stop()
        raise self._failure() or LocalProtocolError(f"the run of job {self.job.name!r} was cancelled")

    def _fail(self, failure: JobFailed, *, is_secondary: bool) -> None:
        self._failures.append((is_secondary, failure))
        if self._checkpoints is not None and failure.task and not self._is_stopping:
            self._checkpoints.task_failed(failure.task, failure.subtask, str(failure))
        self._cancel()

    def _leave(self, index: int) -> None:
        """Nothing of the run is left in this worker."""
        self._stopped.add(index)
        self._cancel()  # the others cannot go on without it

    def _cancel(self) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            if self._checkpoints is not None:
                self._checkpoints.stop()
            self._send_all(Cancel(self.attempt))
            self._changed.wake()

    def _check_all_ended(self) -> None:
        if self._is_started and len(self._ended) == len(self._places) and not self._is_stopping:
            self._is_started = False  # once
            self._nursery.start_soon(self._finish)

    async def _finish(self) -> None:
        """Every task has ended: a last checkpoint, with what each of them had in the end."""
        if self._checkpoints is not None and not self._is_stopping:
            await self._checkpoints.request(savepoint=False).ended.wait()
        if self._is_stopping:
            return  # a worker was lost, or the caller was faster
        self._has_ended = True
        self._changed.wake()

    def _send_all(self, message: Message) -> None:
        for index, link in enumerate(self._links):
            if index not in self._stopped:
                link.send(message)

    # What checkpoints need of the workers.

    def trigger(self, barrier: bytes, subtasks: Iterable[Subtask]) -> None:
        """See `CheckpointCommands.trigger`."""
        for index, group in self._by_worker(subtasks):
            self._links[index].send(TriggerCheckpoint(self.attempt, barrier, group))

    def abort_checkpoint(self, checkpoint_id: int) -> None:
        """See `CheckpointCommands.abort_checkpoint`."""
        self._send_all(AbortCheckpoint(self.attempt, checkpoint_id))

    def store_finals(self, checkpoint_id: int, subtasks: Iterable[Subtask]) -> None:
        """See `CheckpointCommands.store_finals`."""
        for index, group in self._by_worker(subtasks):
            self._links[index].send(StoreFinals(self.attempt, checkpoint_id, group))

    def fail(self, reason: str) -> None:
        """See `CheckpointCommands.fail`."""
        self._fail(JobFailed(f"job {self.job.name!r}: {reason}"), is_secondary=False)

    def _by_worker(self, subtasks: Iterable[Subtask]) -> list[tuple[int, tuple[Subtask, ...]]]:
        workers: dict[int, list[Subtask]] = {}
        for subtask in subtasks:
            workers.setdefault(self._places[subtask], []).append(subtask)
        return [(index, tuple(group)) for index, group in workers.items()]
