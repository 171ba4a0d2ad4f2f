"""When a checkpoint begins, at least once: barriers are counted, and nobody waits for anybody.

Takes: barriers, cancel markers and ends, as they are polled from the channels of a task; a clock. Gives: calls to
`CheckpointTask`.

Rules:
- Records behind a barrier are processed while others are still missing, so after a recovery they are seen again.
- Several checkpoints may be pending, at most `MAX_PENDING`; the first complete one takes the place of all older ones.
- A cancel marker aborts its checkpoint, once, and all older ones; barriers of it that still come are swallowed.
- Each counts the channels that were open when it began here. The end of a channel counts as its barrier.
- Whatever began ends: with `trigger` and `inputs_complete`, or with `abort`. (Flink drops older ones silently.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, final

from ...errors import LocalProtocolError
from ...events import Alignment, CheckpointBarrier
from .ports import (
    AbortReason,
    AlignmentStatistics,
    BarrierStatistics,
    CannotCheckpoint,
    CheckpointedInputs,
    CheckpointTask,
    age_ns,
    blocks_producer,
    check_polled,
    restored,
)

MAX_PENDING: Final = 50
"""A channel that brings no barriers must not make the list of those it owes grow."""


@dataclass(slots=True)
class _Count:
    """One checkpoint that some channels still owe a barrier."""

    barrier: CheckpointBarrier
    expected: int
    arrived_s: float
    received: set[int] = field(default_factory=set)

    @property
    def is_complete(self) -> bool:
        return len(self.received) == self.expected


@final
class BarrierTracker:
    """Counts barriers over all channels of a task. The same outside as `BarrierHandler`; no call waits."""

    def __init__(
        self,
        channels: int,
        inputs: CheckpointedInputs,
        task: CheckpointTask,
        *,
        now: Callable[[], float],
    ) -> None:
        """Starts with every channel open and no checkpoint.

        Args:
            channels: how many there are over all gates; a channel is its index.
            inputs: resumed at once if a barrier came aligned all the same; nothing else is asked of them.
            task: what is checkpointed.
            now: monotonic seconds.
        """
        self._inputs = inputs
        self._task = task
        self._now = now
        self._open = set(range(channels))
        self._counts: dict[int, _Count] = {}  # ids grow
        self._newest = -1  # begun or cancelled; what is not newer and not counted is over
        self._closed = False
        self._completed = self._aborted = 0
        self._last: AlignmentStatistics | None = None

    def on_barrier(self, channel: int, barrier: CheckpointBarrier) -> None:
        """A barrier was polled from `channel`.

        Raises:
            LocalProtocolError: closed, the channel has ended, or the barrier is unaligned: what it overtook would be
                in no checkpoint.
        """
        check_polled(channel, self._open, is_closed=self._closed)
        checkpoint_id = barrier.checkpoint_id
        if barrier.alignment is Alignment.UNALIGNED:
            raise LocalProtocolError(
                f"barrier {checkpoint_id} of channel {channel} is UNALIGNED, but this task only counts, at least once:"
                " give it a BarrierHandler, or trigger AT_LEAST_ONCE checkpoints"
            )
        if blocks_producer(barrier):
            self._inputs.resume(channel)
        count = self._counts.get(checkpoint_id)
        if count is None:
            if checkpoint_id <= self._newest:
                return
            self._newest = checkpoint_id
            count = self._counts[checkpoint_id] = _Count(barrier, len(self._open), self._now())
        count.received.add(channel)
        if count.is_complete:
            self._complete(checkpoint_id)
        elif len(self._counts) > MAX_PENDING:
            self._drop(next(iter(self._counts)), AbortReason.SUBSUMED)

    def on_announcement(self, channel: int, barrier: CheckpointBarrier, sequence: int) -> None:
        """A barrier is queued in `channel`: ignored, it counts when it comes.

        Raises:
            LocalProtocolError: closed, or the channel has ended.
        """
        check_polled(channel, self._open, is_closed=self._closed)

    def on_cancel(self, channel: int, checkpoint_id: int) -> None:
        """A cancel marker was polled from `channel`.

        Raises:
            LocalProtocolError: closed, or the channel has ended.
        """
        check_polled(channel, self._open, is_closed=self._closed)
        self._drop_older(checkpoint_id)
        if checkpoint_id in self._counts:
            self._drop(checkpoint_id, AbortReason.DECLINED)
        elif checkpoint_id > self._newest:
            self._newest = checkpoint_id
            self._abort(checkpoint_id, AbortReason.DECLINED)

    def on_end_of_partition(self, channel: int) -> None:
        """`channel` has ended: it counts as having brought every barrier that is pending.

        Raises:
            LocalProtocolError: closed, or it ended before.
        """
        check_polled(channel, self._open, is_closed=self._closed)
        self._open.remove(channel)
        newest: int | None = None
        for checkpoint_id, count in self._counts.items():
            count.received.add(channel)
            if count.is_complete:
                newest = checkpoint_id
        if newest is not None:
            self._complete(newest)

    def close(self) -> None:
        """Aborts what is pending; nothing may come any more. Idempotent."""
        self._closed = True
        for checkpoint_id in list(self._counts):
            self._drop(checkpoint_id, AbortReason.CLOSED)

    def statistics(self) -> BarrierStatistics:
        """A snapshot."""
        pending = tuple(self._counts)
        newest = self._counts[pending[-1]] if pending else None
        return BarrierStatistics(
            checkpoint_id=self._newest,
            pending=pending,
            received_barriers=0 if newest is None else len(newest.received),
            expected_barriers=0 if newest is None else newest.expected,
            alignment_started_s=None if newest is None else newest.arrived_s,
            blocked_channels=0,
            open_channels=len(self._open),
            completed=self._completed,
            aborted=self._aborted,
            timed_out=0,
            last=self._last,
        )

    def _complete(self, checkpoint_id: int) -> None:
        self._drop_older(checkpoint_id)
        count = self._counts.pop(checkpoint_id)
        now = self._now()
        alignment = AlignmentStatistics(
            checkpoint_id=checkpoint_id,
            channels=count.expected,
            start_delay_ns=count.barrier.elapsed_ns,
            duration_ns=round((now - count.arrived_s) * 1e9),
            timed_out=False,
        )
        barrier = replace(restored(count.barrier), elapsed_ns=age_ns(count.barrier, count.arrived_s, now))
        try:
            self._task.trigger(barrier, alignment)
        except CannotCheckpoint as declined:
            self._abort(checkpoint_id, declined.reason)
            return
        self._completed += 1
        self._last = alignment
        self._task.inputs_complete(checkpoint_id, alignment)

    def _drop_older(self, checkpoint_id: int) -> None:
        for older in [pending for pending in self._counts if pending < checkpoint_id]:
            self._drop(older, AbortReason.SUBSUMED)

    def _drop(self, checkpoint_id: int, reason: AbortReason) -> None:
        del self._counts[checkpoint_id]
        self._abort(checkpoint_id, reason)

    def _abort(self, checkpoint_id: int, reason: AbortReason) -> None:
        self._aborted += 1
        self._task.abort(checkpoint_id, reason)
