"""What a barrier handler asks of the inputs and of the task around it, and what it says of a checkpoint.

Takes: nothing. Gives: `CheckpointedInputs` and `CheckpointTask` to implement, reasons and statistics to read, and the
few facts about barriers that both handlers need.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Protocol

from ...errors import LocalProtocolError
from ...events import Alignment, CheckpointBarrier, DataType, data_type_of


class AbortReason(enum.Enum):
    """Why a checkpoint will not happen at this task."""

    SUBSUMED = "a newer checkpoint took its place"
    DECLINED = "a task in front of this one cancelled it"
    CLOSED = "the task ends"


class CannotCheckpoint(Exception):
    """Raised by `CheckpointedInputs.checkpoint_started` or `CheckpointTask.trigger`: this checkpoint cannot be had.

    It never leaves the handler, which aborts the checkpoint and goes on.

    Attributes:
        reason: what `CheckpointTask.abort` is told.
    """

    def __init__(self, reason: AbortReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class AlignmentStatistics:
    """How the barriers of one checkpoint came together.

    Attributes:
        checkpoint_id: whose.
        channels: how many it waits for: those that were open when it began here. An end counts as a barrier.
        start_delay_ns: age of the checkpoint when the first of them came.
        duration_ns: from the first to the last of them; up to now while some are missing.
        timed_out: whether this task turned it unaligned because it had become too old.
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
        checkpoint_id: the newest it has heard of; -1 before the first.
        pending: checkpoints that some channels still owe a barrier, oldest first.
        received_barriers: of the newest pending one; ends count.
        expected_barriers: of the newest pending one.
        alignment_started_s: when the first of them came; None while there is none.
        blocked_channels: channels whose producers wait until it is over.
        open_channels: channels that have not ended.
        completed: checkpoints whose barriers all came.
        aborted: checkpoints given up.
        timed_out: checkpoints this task turned unaligned.
        last: how the last completed one went; None before.
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
    """All inputs of a task; channels are numbered through its gates. No call may come back into the handler."""

    def resume(self, channel: int) -> None:
        """Lets the producer go on that waits behind an aligned barrier; called once for every such barrier."""

    def checkpoint_started(self, barrier: CheckpointBarrier) -> None:
        """Captures, from now on, what comes in front of this barrier on channels that have not brought it yet.

        Begins with what is here already: the deserializer's unconsumed bytes, then queued buffers.

        Raises:
            CannotCheckpoint: a newer barrier has arrived on some channel, so this one is subsumed.
        """

    def checkpoint_stopped(self, checkpoint_id: int) -> None:
        """Ends the capture, because it is complete or because the checkpoint is aborted; the task is told which."""

    def prioritize(self, channel: int, sequence: int) -> None:
        """Moves the announced barrier, queued under this sequence number, in front of the channel's data.

        Its alignment stays what it is: the producer waits behind it all the same. Called once for an announcement at
        most; nothing happens if the barrier has moved already, or was polled.
        """


class CheckpointTask(Protocol):
    """The task itself. Each checkpoint: `trigger`, then `inputs_complete`; or `abort`, also after `trigger`."""

    def trigger(self, barrier: CheckpointBarrier, alignment: AlignmentStatistics) -> None:
        """Broadcasts `barrier`, then snapshots the operator: every record so far is in the checkpoint, no later one.

        Args:
            barrier: as it is to be sent on: unaligned after a timeout, with the checkpoint's age as of now.
            alignment: as far as it has come.

        Raises:
            CannotCheckpoint: the task cannot take this one; `abort` follows.
        """

    def inputs_complete(self, checkpoint_id: int, alignment: AlignmentStatistics) -> None:
        """Every barrier has come: the channel state of the inputs is whole. Follows `trigger`, maybe at once."""

    def abort(self, checkpoint_id: int, reason: AbortReason) -> None:
        """The checkpoint will not happen: discard what there is of it, tell the coordinator and the tasks behind."""


def check_polled(channel: int, open_channels: Collection[int], *, is_closed: bool) -> None:
    """A barrier, marker or end was polled from `channel`.

    Raises:
        LocalProtocolError: nothing can come from there any more, or ever could.
    """
    if is_closed:
        raise LocalProtocolError(f"channel {channel} was polled after its task closed it; stop polling first")
    if channel not in open_channels:
        raise LocalProtocolError(f"channel {channel} has ended, or never was: nothing may come from it")


def blocks_producer(barrier: CheckpointBarrier) -> bool:
    """Whether the producer waits behind this barrier until it is resumed. Moving it to the front changes nothing."""
    return data_type_of(barrier).blocks_upstream


def may_time_out(barrier: CheckpointBarrier) -> bool:
    """Whether it turns unaligned when the checkpoint becomes too old."""
    return data_type_of(barrier) is DataType.TIMEOUTABLE_ALIGNED_BARRIER


def turned_unaligned(barrier: CheckpointBarrier) -> CheckpointBarrier:
    """The barrier as it goes on after a timeout."""
    return replace(barrier, alignment=Alignment.UNALIGNED, aligned_timeout_ns=0)


def restored(barrier: CheckpointBarrier) -> CheckpointBarrier:
    """The barrier as it was before an edge that cannot do unaligned forced it to align."""
    if barrier.alignment is not Alignment.FORCED_ALIGNED:
        return barrier
    return replace(barrier, alignment=Alignment.ALIGNED if barrier.aligned_timeout_ns else Alignment.UNALIGNED)


def age_ns(barrier: CheckpointBarrier, arrived_s: float, now_s: float) -> int:
    """How old a checkpoint is: as old as when this barrier was sent, and the time since it, or its announcement, came.

    No clock of another host is involved; the network's own delay is left out.
    """
    return barrier.elapsed_ns + round((now_s - arrived_s) * 1e9)
