"""The interfaces of a barrier handler: the inputs and the task it works with, its abort reasons and its statistics.

Takes: nothing. Gives: `CheckpointedInputs` and `CheckpointTask` to implement, and the functions that both handlers
share.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Protocol

from ....base.errors import LocalProtocolError
from ....base.events import Alignment, CheckpointBarrier, DataType, data_type_of


class AbortReason(enum.Enum):
    """Why a checkpoint is aborted at this task."""

    SUBSUMED = "a newer checkpoint replaced it"
    DECLINED = "an upstream task cancelled it"
    CLOSED = "the task ends"


class CannotCheckpoint(Exception):
    """Raised by `CheckpointedInputs.checkpoint_started` or `CheckpointTask.on_barrier` to decline a checkpoint.

    The handler catches it and aborts the checkpoint.

    Attributes:
        reason: the reason that `CheckpointTask.abort` gets.
    """

    def __init__(self, reason: AbortReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class AlignmentStatistics:
    """The alignment of one checkpoint.

    Attributes:
        channels: number of barriers it waits for: one for each channel that was open when it began here.
        start_delay_ns: age of the checkpoint when its first barrier arrived.
        duration_ns: time from the first to the last barrier; until now while some are missing.
        timed_out: whether this task made it unaligned because of its timeout.
    """

    checkpoint_id: int
    channels: int
    start_delay_ns: int
    duration_ns: int
    timed_out: bool


@dataclass(frozen=True, slots=True)
class BarrierStatistics:
    """A snapshot of a barrier handler.

    Attributes:
        checkpoint_id: id of the newest checkpoint; -1 before the first.
        pending: ids of checkpoints that wait for barriers, oldest first.
        received_barriers: barriers and ends received for the newest pending checkpoint.
        expected_barriers: number of barriers that the newest pending checkpoint needs.
        alignment_started_s: time of its first barrier; None before.
        blocked_channels: number of channels whose producers are blocked by it.
        open_channels: number of channels that have not ended.
        completed: number of checkpoints that received all barriers.
        timed_out: number of checkpoints that this task made unaligned.
        last: alignment of the last completed checkpoint; None before.
    """

    checkpoint_id: int
    pending: tuple[int, ...]
    received_barriers: int
    expected_barriers: int
    alignment_started_s: float | None
    blocked_channels: int
    open_channels: int
    completed: int
    aborted: int
    timed_out: int
    last: AlignmentStatistics | None


class CheckpointedInputs(Protocol):
    """All inputs of a task; channels are numbered across its gates. No method may call the handler."""

    def resume(self, channel: int) -> None:
        """Resumes the producer that waits behind an aligned barrier; called once for every such barrier."""

    def checkpoint_started(self, barrier: CheckpointBarrier) -> None:
        """Starts to capture the data before this barrier on all channels that have not delivered it yet.

        The capture begins with data that has already arrived: the deserializer's unconsumed bytes, then queued buffers.

        Raises:
            CannotCheckpoint: a newer barrier has arrived on some channel, so this one is subsumed.
        """

    def checkpoint_stopped(self, checkpoint_id: int) -> None:
        """Ends the capture, because it is complete or the checkpoint is aborted; a call to the task says which."""

    def prioritize(self, channel: int, sequence: int) -> None:
        """Moves the announced barrier with this sequence number in front of the channel's data.

        Its alignment does not change, so its producer stays blocked. Called at most once per announcement. Does nothing
        if the barrier was already moved or polled.
        """


class CheckpointTask(Protocol):
    """The task. For each checkpoint: `on_barrier`, then `inputs_complete`; or `abort`, possibly after `on_barrier`."""

    def on_barrier(self, barrier: CheckpointBarrier, alignment: AlignmentStatistics) -> None:
        """Broadcasts `barrier`, then snapshots the operators; the checkpoint contains all records processed so far.

        Args:
            barrier: the barrier to forward: unaligned after a timeout, with the current age of the checkpoint.
            alignment: the alignment so far.

        Raises:
            CannotCheckpoint: the task declines the checkpoint; `abort` follows.
        """

    def inputs_complete(self, checkpoint_id: int, alignment: AlignmentStatistics) -> None:
        """All barriers have arrived, so the channel state of the inputs is complete. Called after `on_barrier`."""

    def abort(self, checkpoint_id: int, reason: AbortReason) -> None:
        """Discards the checkpoint, and notifies the coordinator and the downstream tasks."""


def check_polled(channel: int, open_channels: Collection[int], *, is_closed: bool) -> None:
    """Checks that a barrier, marker or end may be polled from `channel`.

    Raises:
        LocalProtocolError: the handler is closed, the channel has ended, or it does not exist.
    """
    if is_closed:
        raise LocalProtocolError(f"channel {channel} was polled after its task was closed; stop polling first")
    if channel not in open_channels:
        raise LocalProtocolError(f"channel {channel} has ended or does not exist, so it must not be polled")


def blocks_producer(barrier: CheckpointBarrier) -> bool:
    """Whether the producer is blocked behind this barrier until it is resumed, even if the barrier was moved."""
    return data_type_of(barrier).blocks_upstream


def may_time_out(barrier: CheckpointBarrier) -> bool:
    """Whether the barrier becomes unaligned when the checkpoint exceeds its timeout."""
    return data_type_of(barrier) is DataType.TIMEOUTABLE_ALIGNED_BARRIER


def turned_unaligned(barrier: CheckpointBarrier) -> CheckpointBarrier:
    """The barrier to forward after a timeout."""
    return replace(barrier, alignment=Alignment.UNALIGNED, aligned_timeout_ns=0)


def restored(barrier: CheckpointBarrier) -> CheckpointBarrier:
    """The barrier before an edge that does not support unaligned barriers forced it to align."""
    if barrier.alignment is not Alignment.FORCED_ALIGNED:
        return barrier
    return replace(barrier, alignment=Alignment.ALIGNED if barrier.aligned_timeout_ns else Alignment.UNALIGNED)


def age_ns(barrier: CheckpointBarrier, arrived_s: float, now_s: float) -> int:
    """The age of a checkpoint: the age in its barrier, plus the time since the barrier or its announcement arrived.

    It does not depend on clocks of other hosts, and does not include network delays.
    """
    return barrier.elapsed_ns + round((now_s - arrived_s) * 1e9)
