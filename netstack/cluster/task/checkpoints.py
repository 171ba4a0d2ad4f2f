"""The checkpoints of one task: forward the barrier, take the state, gather channel state, store it, acknowledge.

Takes: calls of the barrier handler and the coordinator. Gives: barriers to the consumers, a `TaskSnapshot` to the
storage, an acknowledgement or a decline to the coordinator.

Order within a checkpoint: the task forwards the barrier and then snapshots its operators, both between the same two
records. The data that barriers overtook, in outputs and inputs, is gathered afterwards. Once it is complete a thread
writes the snapshot while the task continues, and the task acknowledges the checkpoint.

Rules:
- A checkpoint is triggered at most once, and ids increase. Each checkpoint that began here is acknowledged, declined,
  or aborted by the coordinator.
- The barrier handler calls this class from within its state transitions, so these methods only queue work. `perform`
  does the work before the next record.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any, Final, final

import trio

from ...base.errors import CheckpointStorageError
from ...base.events import CancelCheckpointMarker, CheckpointBarrier, DataType, data_type_of
from ...base.text.safe_text import safe_repr
from ...network.environment import NetworkEnvironment
from ...network.waiting.threads import InThread
from ...schedule.checkpoint.barrier import AbortReason, AlignmentStatistics, CannotCheckpoint
from ...schedule.checkpoint.channel_state import ChannelStateCapture
from ...schedule.checkpoint.finals import NO_CHECKPOINT, FinalStates
from ...schedule.checkpoint.snapshot import ChannelBytes, TaskFile, TaskSnapshot
from ...schedule.checkpoint.storage import CheckpointStorage
from ..disk_retries import until_stored
from .chain import OperatorChain
from .input import TaskInput
from .mailbox import Mailbox
from .operators import AT_THE_END
from .output import TaskOutput
from .reports import AttemptReports

MAX_CHANNEL_STATE_BYTES: Final = 1 << 30
"""Maximum channel state of a task, including spilled records: more than its network buffers can hold."""

REMEMBERED_ABORTS: Final = 64
"""Number of stored ids that the coordinator aborted before they began here; only those in progress matter."""


@dataclass(frozen=True, slots=True)
class SubtaskReport:
    """The durations and sizes of a checkpoint at one subtask.

    Attributes:
        start_delay_s: age of the checkpoint when its first barrier arrived.
        alignment_s: time from the first to the last barrier.
        timed_out: whether the checkpoint became unaligned here because of its timeout.
        snapshot_s: time without record processing, for forwarding the barrier and taking the state.
        gather_s: time from the snapshot until the channel state was complete.
    """

    task: str
    subtask: int
    start_delay_s: float = 0.0
    alignment_s: float = 0.0
    timed_out: bool = False
    snapshot_s: float = 0.0
    input_bytes: int = 0
    output_bytes: int = 0
    gather_s: float = 0.0
    write_s: float = 0.0
    size_bytes: int = 0


_REPORT_KINDS: Final = {"bool": (bool,), "int": (int,), "float": (int, float)}


def checked_subtask_report(report: Mapping[str, Any]) -> dict[str, Any]:
    """Validates a peer's report. Returns its known fields except the task and the subtask.

    Raises:
        ValueError: a field has the wrong type, or is negative or not finite.
    """
    result = {}
    for field in fields(SubtaskReport):
        if field.name in report and field.name not in ("task", "subtask"):
            value = report[field.name]
            if type(value) not in _REPORT_KINDS[str(field.type)] or not 0 <= value < math.inf:
                raise ValueError(f"{field.name}={safe_repr(value)} in the report of a checkpoint is no {field.type}")
            result[field.name] = value
    return result


async def store_final(
    storage: CheckpointStorage, snapshot: TaskSnapshot, in_thread: InThread, reports: AttemptReports
) -> TaskFile:
    """Writes the final state of a task that has ended; while the disk is full it waits, since a restart would not help.

    Raises:
        CheckpointError: the state is not plain data.

    Cancellation: a write in progress is completed first.
    """

    def waits(why: str) -> None:
        if why:
            reports.declined(NO_CHECKPOINT, why)

    write = partial(FinalStates(storage.folder, root=storage.root).write, snapshot)
    return await until_stored(partial(in_thread, write), waits, CheckpointStorageError)


@final
class _Pending:
    """A checkpoint that has begun here and is not stored yet."""

    __slots__ = ("capture", "outputs_missing", "report", "snapshot_at_s", "states")

    def __init__(self, capture: ChannelStateCapture, report: SubtaskReport) -> None:
        self.capture = capture
        self.report = report
        self.outputs_missing = 0
        self.states: dict[str, Any] = {}
        self.snapshot_at_s = 0.0


@final
class TaskCheckpoints:
    """The checkpoints of one task (a `CheckpointTask`).

    Attributes:
        inputs: the task's input; None for a source.
        nursery: runs the writing of snapshots; set before the first record.
        is_held: whether a source has sent the barrier of a stop-with-savepoint, so that it may send no record until the
            savepoint is complete or has failed.
        is_stopped: whether that savepoint is complete.
        is_confirmed: whether a checkpoint with the final state of the operators is complete, and they were notified.
    """

    def __init__(
        self,
        name: str,
        subtask: int,
        chain: OperatorChain,
        output: TaskOutput,
        partitions: Sequence[str],
        reports: AttemptReports,
        storage: CheckpointStorage | None,
        environment: NetworkEnvironment,
        mailbox: Mailbox,
        in_thread: InThread,
    ) -> None:
        """Starts without checkpoints.

        Args:
            name: name of the task.
            subtask: index of the subtask.
            chain: the operators.
            output: the task's output.
            partitions: the names in checkpoints of the partitions it writes (`EdgeId.partition`).
            reports: receives acknowledgements and declines.
            storage: stores snapshots; None if the job takes no checkpoints.
            environment: provides the clock and timers.
            mailbox: the task's mailbox.
            in_thread: runs the writing of a snapshot in a thread.
        """
        self.inputs: TaskInput | None = None
        self.nursery: trio.Nursery | None = None
        self.is_held = False
        self.is_stopped = False
        self.is_confirmed = False
        self._name = name
        self._subtask = subtask
        self._chain = chain
        self._output = output
        self._reports = reports
        self._storage = storage
        self._environment = environment
        self._mailbox = mailbox
        self._in_thread = in_thread
        self._due: deque[Callable[[], Awaitable[None]]] = deque()
        self._accepted: set[int] = set()  # triggered checkpoints that have not begun and were not aborted
        self._pending: dict[int, _Pending] = {}
        self._last_id = -1
        self._here_id = -1  # the newest checkpoint that the coordinator triggered here directly
        self._is_closed = False
        self._completed_id = -1
        self._is_drained = False
        self._confirming: int | None = None
        self._aborted: dict[int, None] = {}
        self._stopping = -1
        for partition, kept_name in zip(output.partitions, partitions, strict=True):
            partition.on_barrier = partial(self._on_output, kept_name)

    # From the barrier handler.

    def on_barrier(self, barrier: CheckpointBarrier, alignment: AlignmentStatistics) -> None:
        """Implements `CheckpointTask.on_barrier`."""
        if barrier.checkpoint_id != self._here_id:
            self._accept(barrier, alignment)

    def inputs_complete(self, checkpoint_id: int, alignment: AlignmentStatistics) -> None:
        """Implements `CheckpointTask.inputs_complete`."""
        if checkpoint_id != self._here_id:
            self._due.append(partial(self._finish_inputs, checkpoint_id, alignment))
        elif self.inputs is not None:
            self.inputs.take_captured(checkpoint_id)

    def abort(self, checkpoint_id: int, reason: AbortReason) -> None:
        """Implements `CheckpointTask.abort`."""
        if checkpoint_id != self._here_id:
            self._last_id = max(self._last_id, checkpoint_id)
            self._due.append(partial(self._cancel, checkpoint_id, reason))

    # From the coordinator, between two records.

    def trigger_checkpoint(self, barrier: CheckpointBarrier, received_s: float, *, stops: bool = False) -> None:
        """Triggers a checkpoint from the coordinator, for a task that receives no barriers (any more).

        All its producers, if any, have ended and their records were processed. So later calls of the handler for this
        checkpoint, when it reads the ends of channels, are ignored.

        Args:
            barrier: the barrier to forward.
            received_s: when it was received, on the environment's clock; the time since then adds to its age.
            stops: whether the job stops with this savepoint, so that no record may follow.
        """
        age_ns = barrier.elapsed_ns + round((self._environment.now() - received_s) * 1e9)
        alignment = AlignmentStatistics(barrier.checkpoint_id, 0, age_ns, 0, False)
        try:
            self._accept(replace(barrier, elapsed_ns=age_ns), alignment)
        except CannotCheckpoint:
            return  # it has begun already, was aborted, or the task has ended, which reports its final state
        self._here_id = barrier.checkpoint_id
        if stops:
            self._stopping = barrier.checkpoint_id
        self._due.append(partial(self._finish_inputs, barrier.checkpoint_id, alignment))

    def abort_here(self, checkpoint_id: int) -> None:
        """Aborts a checkpoint for the coordinator, also one whose barrier has not arrived yet."""
        if checkpoint_id > self._last_id:
            self._aborted[checkpoint_id] = None
            if len(self._aborted) > REMEMBERED_ABORTS:
                del self._aborted[next(iter(self._aborted))]
        self._accepted.discard(checkpoint_id)
        self._forget(checkpoint_id)
        if checkpoint_id == self._stopping:
            self.is_held, self._stopping = False, -1

    def completed_here(self, checkpoint_id: int) -> None:
        """Notes that a checkpoint is complete; operators are notified before the next record."""
        if checkpoint_id == self._stopping:
            self.is_held, self.is_stopped = False, True
        self._due.append(partial(self._complete, checkpoint_id))

    # From the task.

    @property
    def is_due(self) -> bool:
        """Whether `perform` has work to do before the next record."""
        return bool(self._due)

    @property
    def is_gathering(self) -> bool:
        """Whether a checkpoint that began here still gathers channel state. The mailbox is woken when it ends."""
        return bool(self._pending)

    def await_confirmation(self, *, drain: bool, is_restored: bool = False) -> None:
        """Called after the task's last event: determines the checkpoint that sets `is_confirmed`.

        Args:
            drain: whether operators have finished, so that only a checkpoint that begins from now on contains their
                final state. Otherwise the job was stopped, and its savepoint is the last checkpoint that began here.
            is_restored: whether they had finished in the restored checkpoint, so that every later one contains it too.
        """
        self._is_drained = drain
        if not drain or is_restored:
            self._confirming = self._last_id + drain
            self.is_confirmed = self._completed_id >= self._confirming

    def close(self) -> None:
        """Refuses new checkpoints from now on, because the task has ended."""
        self._is_closed = True

    async def perform(self) -> None:
        """Does the queued work, between two records, when nothing is staged in the output.

        Cancellation: the task must end; the remaining work is lost.
        """
        while self._due:
            await self._due.popleft()()

    # Inside.

    async def _complete(self, checkpoint_id: int) -> None:
        await self._chain.complete(checkpoint_id)
        self._completed_id = max(self._completed_id, checkpoint_id)
        is_reached = self._confirming is not None and checkpoint_id >= self._confirming
        self.is_confirmed = self.is_confirmed or is_reached or checkpoint_id == AT_THE_END

    def _accept(self, barrier: CheckpointBarrier, alignment: AlignmentStatistics) -> None:
        if barrier.checkpoint_id <= self._last_id or self._is_closed:
            raise CannotCheckpoint(AbortReason.SUBSUMED)
        if barrier.checkpoint_id in self._aborted:
            raise CannotCheckpoint(AbortReason.DECLINED)
        if self._is_drained and self._confirming is None:  # a checkpoint that began elsewhere may complete before it
            self._confirming = barrier.checkpoint_id
        self._last_id = barrier.checkpoint_id
        self._accepted.add(barrier.checkpoint_id)
        self._due.append(partial(self._begin, barrier, alignment))

    async def _begin(self, barrier: CheckpointBarrier, alignment: AlignmentStatistics) -> None:
        began_s = self._environment.now()
        checkpoint_id = barrier.checkpoint_id
        if checkpoint_id not in self._accepted:  # aborted meanwhile, but consumers may wait for its barrier
            await self._output.broadcast(CancelCheckpointMarker(checkpoint_id))
            return
        self._accepted.discard(checkpoint_id)
        capture = ChannelStateCapture(checkpoint_id, max_bytes=MAX_CHANNEL_STATE_BYTES, on_end=self._on_gathered)
        report = SubtaskReport(
            self._name,
            self._subtask,
            start_delay_s=alignment.start_delay_ns / 1e9,
            timed_out=alignment.timed_out,
        )
        pending = self._pending[checkpoint_id] = _Pending(capture, report)
        kind = data_type_of(barrier)
        if kind in (DataType.PRIORITY_EVENT, DataType.TIMEOUTABLE_ALIGNED_BARRIER):
            pending.outputs_missing = self._output.barriers_missing
        if not pending.outputs_missing:
            capture.finish_outputs()
        await self._output.broadcast(barrier)
        if kind is DataType.TIMEOUTABLE_ALIGNED_BARRIER and pending.outputs_missing:
            left_s = (barrier.aligned_timeout_ns - barrier.elapsed_ns) / 1e9
            self._environment.call_at(
                self._environment.now() + max(0.0, left_s), partial(self._output.time_out_barrier, checkpoint_id)
            )
        pending.states = await self._chain.snapshot(checkpoint_id)
        self.is_held = self.is_held or checkpoint_id == self._stopping
        pending.snapshot_at_s = self._environment.now()
        pending.report = replace(report, snapshot_s=pending.snapshot_at_s - began_s)

    async def _finish_inputs(self, checkpoint_id: int, alignment: AlignmentStatistics) -> None:
        captured: ChannelBytes = {} if self.inputs is None else self.inputs.take_captured(checkpoint_id)
        pending = self._pending.get(checkpoint_id)
        if pending is None:
            return  # aborted by the coordinator, or too large
        pending.report = replace(pending.report, alignment_s=alignment.duration_ns / 1e9, timed_out=alignment.timed_out)
        for key, data in captured.items():
            pending.capture.add_input(key, data)
        if not pending.capture.is_aborted:
            pending.capture.finish_inputs()

    async def _cancel(self, checkpoint_id: int, reason: AbortReason) -> None:
        if self.inputs is not None:
            self.inputs.take_captured(checkpoint_id)
        self._forget(checkpoint_id)
        if checkpoint_id not in self._aborted:
            self._reports.declined(checkpoint_id, reason.value)
        self._aborted.pop(checkpoint_id, None)
        await self._output.broadcast(CancelCheckpointMarker(checkpoint_id))

    def _forget(self, checkpoint_id: int) -> None:
        pending = self._pending.pop(checkpoint_id, None)
        if pending is not None:
            pending.capture.abort()
            self._output.forget_barrier(checkpoint_id)

    def _on_output(self, partition_id: str, subpartition: int, checkpoint_id: int, overtaken: bytes) -> None:
        """A barrier has left a subpartition, or has overtaken this data there. May be called at any time."""
        pending = self._pending.get(checkpoint_id)
        if pending is None:
            return
        pending.capture.add_output((partition_id, subpartition), overtaken)
        pending.outputs_missing -= 1
        if not pending.outputs_missing and not pending.capture.is_aborted:
            pending.capture.finish_outputs()

    def _on_gathered(self, capture: ChannelStateCapture) -> None:
        pending = self._pending.pop(capture.checkpoint_id)
        self._mailbox.wake()
        if capture.failure is not None:
            self._output.forget_barrier(capture.checkpoint_id)
            self._reports.declined(capture.checkpoint_id, str(capture.failure))
        else:
            assert self.nursery is not None  # it was triggered between two records
            self.nursery.start_soon(self._store, pending)

    async def _store(self, pending: _Pending) -> None:
        checkpoint_id = pending.capture.checkpoint_id
        gathered = pending.capture.statistics()
        began_s = self._environment.now()
        try:
            file = await self._in_thread(partial(self._write, pending))
        except CheckpointStorageError as error:
            self._reports.declined(checkpoint_id, str(error))
            return
        report = replace(
            pending.report,
            input_bytes=gathered.input_bytes,
            output_bytes=gathered.output_bytes,
            gather_s=began_s - pending.snapshot_at_s,
            write_s=self._environment.now() - began_s,
            size_bytes=file.size_bytes,
        )
        self._reports.acknowledged(checkpoint_id, file, asdict(report))

    def _write(self, pending: _Pending) -> TaskFile:
        """Writes the snapshot; runs in a thread that owns the capture."""
        state = pending.capture.result()
        if state is None or self._storage is None:
            raise CheckpointStorageError("the job has no folder for checkpoints; give it one")
        return self._storage.write_task(
            pending.capture.checkpoint_id,
            TaskSnapshot(self._name, self._subtask, pending.states, state.inputs, state.outputs),
        )
