"""The checkpoints of one task: barrier on, states out, channel state gathered, everything stored, coordinator told.

Takes: what the barrier handler and the coordinator say. Gives: barriers to the consumers, a `TaskSnapshot` to the
storage, an acknowledgement or a refusal to the coordinator.

Order, for one checkpoint: the barrier is sent on; then the operator's state is taken; both between the same two
records. What the barrier overtook, in the outputs and in the inputs, comes in its own time. When it is all there it is
written in a thread, while the task goes on, and acknowledged.

Rules:
- A checkpoint is triggered at most once, and ids grow. Each that began here is acknowledged, declined, or aborted by
  the coordinator.
- The handler calls from within its table, so nothing is done there: it is noted, and done by `perform`, before the next
  record.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any, Final, final

import trio

from ..checkpoint.barrier import AbortReason, AlignmentStatistics, CannotCheckpoint
from ..checkpoint.channel_state import ChannelStateCapture
from ..checkpoint.snapshot import ChannelBytes, TaskFile, TaskSnapshot
from ..checkpoint.storage import CheckpointStorage
from ..errors import CheckpointStorageError
from ..events import CancelCheckpointMarker, CheckpointBarrier, DataType, data_type_of
from ..runtime.network_environment import NetworkEnvironment
from ..runtime.threads import InThread
from ..schedule.descriptors.information import EdgeId
from ..shown import shown
from .chain import OperatorChain
from .commits import AT_THE_END
from .input import TaskInput
from .mailbox import Mailbox
from .output import TaskOutput
from .reports import TaskReports

MAX_CHANNEL_STATE_BYTES: Final = 1 << 30
"""Of one task: more than its network buffers ever hold. What spills is counted, too."""

REMEMBERED_ABORTS: Final = 64
"""Ids that the coordinator gave up before they came here; only the few that are under way matter."""


@dataclass(frozen=True, slots=True)
class SubtaskReport:
    """How a checkpoint went at one subtask.

    Attributes:
        task: the task's name.
        subtask: which of its subtasks.
        start_delay_s: age of the checkpoint when its first barrier came here.
        alignment_s: from the first to the last barrier.
        timed_out: whether it turned unaligned here because it had become too old.
        snapshot_s: time in which no record was processed: barrier sent on, state taken.
        input_bytes: channel state of its inputs.
        output_bytes: channel state of its outputs.
        gather_s: from the snapshot until the channel state was there.
        write_s: for storing it.
        size_bytes: of the file.
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


def checked_subtask_report(said: Mapping[str, Any]) -> dict[str, Any]:
    """What a peer says of a checkpoint at a subtask, without the subtask itself: of known fields those that are there.

    Raises:
        ValueError: a field is not of its type, or no number that can be shown.
    """
    result = {}
    for field in fields(SubtaskReport):
        if field.name in said and field.name not in ("task", "subtask"):
            value = said[field.name]
            if type(value) not in _REPORT_KINDS[str(field.type)] or not 0 <= value < math.inf:
                raise ValueError(f"{field.name}={shown(value)} of a checkpoint at a subtask is no {field.type}")
            result[field.name] = value
    return result


@final
class _Pending:
    """A checkpoint that began here and is not stored yet."""

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
        nursery: where snapshots are written; given before the first record.
        is_held: the barrier of a savepoint that the job stops with was sent on here by a source: no record may follow
            until it is complete, or has failed.
        is_stopped: it is complete.
        is_confirmed: a checkpoint is complete, and operators know of it, that holds what they had in the end.
    """

    def __init__(
        self,
        name: str,
        subtask: int,
        chain: OperatorChain,
        output: TaskOutput,
        edges: Sequence[EdgeId],
        reports: TaskReports,
        storage: CheckpointStorage | None,
        environment: NetworkEnvironment,
        mailbox: Mailbox,
        in_thread: InThread,
    ) -> None:
        """Nothing has begun yet.

        Args: whose, and its parts; what checkpoints call the edges it writes to; where its snapshots are stored, and by
        whose threads.
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
        self._accepted: set[int] = set()  # what is to begin, and was not given up meanwhile
        self._pending: dict[int, _Pending] = {}
        self._last_id = -1
        self._here_id = -1  # the newest that the coordinator itself has triggered here
        self._is_closed = False
        self._completed_id = -1
        self._is_drained = False
        self._confirming: int | None = None
        self._aborted: dict[int, None] = {}
        self._stopping = -1
        for partition, each in zip(output.partitions, edges, strict=True):
            partition.on_barrier = partial(self._on_output, each.partition(subtask))

    # From the barrier handler.

    def trigger(self, barrier: CheckpointBarrier, alignment: AlignmentStatistics) -> None:
        """Implements `CheckpointTask.trigger`."""
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

    def trigger_here(self, barrier: CheckpointBarrier, received_s: float, *, stops: bool = False) -> None:
        """The coordinator has no other way to tell: nobody sends this task barriers (any more).

        All producers, if there were any, have ended, and every record of theirs was processed; so what the handler
        still says of this checkpoint, when it reads their ends, adds nothing.

        Args:
            barrier: what to send on.
            received_s: when it came, on the environment's clock; waiting for the record in hand counts as age.
            stops: the job ends with this savepoint: no record is to follow it.
        """
        age_ns = barrier.elapsed_ns + round((self._environment.now() - received_s) * 1e9)
        alignment = AlignmentStatistics(barrier.checkpoint_id, 0, age_ns, 0, False)
        try:
            self._accept(replace(barrier, elapsed_ns=age_ns), alignment)
        except CannotCheckpoint:
            return  # it began here already, was aborted, or the task has ended: then its final state is waited for
        self._here_id = barrier.checkpoint_id
        if stops:
            self._stopping = barrier.checkpoint_id
        self._due.append(partial(self._finish_inputs, barrier.checkpoint_id, alignment))

    def abort_here(self, checkpoint_id: int) -> None:
        """The coordinator has given it up. If its barrier is still to come, it ends here."""
        if checkpoint_id > self._last_id:
            self._aborted[checkpoint_id] = None
            if len(self._aborted) > REMEMBERED_ABORTS:
                del self._aborted[next(iter(self._aborted))]
        self._accepted.discard(checkpoint_id)
        self._forget(checkpoint_id)
        if checkpoint_id == self._stopping:
            self.is_held, self._stopping = False, -1

    def completed_here(self, checkpoint_id: int) -> None:
        """The checkpoint is complete: operators that want to know are notified before the next record."""
        if checkpoint_id == self._stopping:
            self.is_held, self.is_stopped = False, True
        self._due.append(partial(self._tell_completed, checkpoint_id))

    # From the task.

    @property
    def is_due(self) -> bool:
        """Whether `perform` has something to do before the next record."""
        return bool(self._due)

    @property
    def is_gathering(self) -> bool:
        """Whether channel state is still to come, for a checkpoint that began here. Its end wakes the mailbox."""
        return bool(self._pending)

    def await_confirmation(self, *, drain: bool, is_restored: bool = False) -> None:
        """The task has sent its last event, and waits for `is_confirmed`.

        Args:
            drain: whether operators have finished, so that only a checkpoint that begins from now on holds their ends.
                Otherwise the job was stopped, and the savepoint that it stops with is the last one that began here.
            is_restored: whether they had finished in the checkpoint that the task began from: later ones hold that too.
        """
        self._is_drained = drain
        if not drain or is_restored:
            self._confirming = self._last_id + drain
            self.is_confirmed = self._completed_id >= self._confirming

    def close(self) -> None:
        """The task has ended; it takes no new checkpoint."""
        self._is_closed = True

    async def perform(self) -> None:
        """Does what is due, between two records; nothing may be kept by the output.

        Cancellation: the task has to end; what was not done is lost.
        """
        while self._due:
            await self._due.popleft()()

    # Inside.

    async def _tell_completed(self, checkpoint_id: int) -> None:
        await self._chain.complete(checkpoint_id)
        self._completed_id = max(self._completed_id, checkpoint_id)
        is_reached = self._confirming is not None and checkpoint_id >= self._confirming
        self.is_confirmed = self.is_confirmed or is_reached or checkpoint_id == AT_THE_END

    def _accept(self, barrier: CheckpointBarrier, alignment: AlignmentStatistics) -> None:
        if barrier.checkpoint_id <= self._last_id or self._is_closed:
            raise CannotCheckpoint(AbortReason.SUBSUMED)
        if barrier.checkpoint_id in self._aborted:
            raise CannotCheckpoint(AbortReason.DECLINED)
        if self._is_drained and self._confirming is None:  # one that began elsewhere may be complete first
            self._confirming = barrier.checkpoint_id
        self._last_id = barrier.checkpoint_id
        self._accepted.add(barrier.checkpoint_id)
        self._due.append(partial(self._begin, barrier, alignment))

    async def _begin(self, barrier: CheckpointBarrier, alignment: AlignmentStatistics) -> None:
        began_s = self._environment.now()
        checkpoint_id = barrier.checkpoint_id
        if checkpoint_id not in self._accepted:  # consumers may wait for its barrier
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
        if self.inputs is not None:
            for key, data in self.inputs.in_flight().items():
                capture.add_input(key, data)
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
        """A barrier has left a subpartition, or overtaken this data there; comes at any time."""
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
        """In a thread; nobody else has the capture any more."""
        state = pending.capture.result()
        if state is None or self._storage is None:
            raise CheckpointStorageError("there is nothing to store it in: the job has no folder for checkpoints")
        return self._storage.write_task(
            pending.capture.checkpoint_id,
            TaskSnapshot(self._name, self._subtask, pending.states, state.inputs, state.outputs),
        )
