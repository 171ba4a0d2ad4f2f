"""The at-least-once barrier handler: counts barriers, and blocks no channel.

Takes: barriers, cancel markers and ends, as the task polls them from its channels; a clock. Gives: calls to
`CheckpointTask`.

Rules:
- Records after a barrier are processed while other barriers are missing, so a recovery may process them again.
- Several checkpoints may be pending, at most `MAX_PENDING`. The first complete one aborts all older ones.
- A cancel marker aborts its checkpoint and all older ones; later barriers of these are ignored.
- A checkpoint waits for the channels that were open when it began here. The end of a channel counts as its barrier.
- Every checkpoint that began ends with `CheckpointTask.on_barrier` and `inputs_complete`, or with `abort`. (Flink drops
  older ones silently.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, final

from ....base.errors import LocalProtocolError
from ....base.events import Alignment, CheckpointBarrier
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
"""Maximum number of pending checkpoints; bounds memory if a channel delivers no barriers."""


@dataclass(slots=True)
class _Count:
    """One pending checkpoint."""

    barrier: CheckpointBarrier
    expected: int
    arrived_s: float
    received: set[int] = field(default_factory=set)

    @property
    def is_complete(self) -> bool:
        return len(self.received) == self.expected


@final
class BarrierTracker:
    """Counts barriers over all channels of a task. It has the interface of `BarrierHandler`; no call waits."""

    def __init__(
        self,
        channels: int,
        inputs: CheckpointedInputs,
        task: CheckpointTask,
        *,
        now: Callable[[], float],
    ) -> None:
        """Starts with all channels open and no checkpoint.

        Args:
            channels: number of channels of all gates; a channel is identified by its index.
            inputs: the inputs; only resumed, at once, if a barrier arrives aligned.
            task: the task.
            now: clock in monotonic seconds.
        """
        self._inputs = inputs
        self._task = task
        self._now = now
        self._open = set(range(channels))
        self._counts: dict[int, _Count] = {}  # by checkpoint id, ascending
        self._newest = -1  # newest id begun or cancelled; older ones that are not counted are over
        self._closed = False
        self._completed = self._aborted = 0
        self._last: AlignmentStatistics | None = None

    def on_barrier(self, channel: int, barrier: CheckpointBarrier) -> None:
        """A barrier was polled from `channel`.

        Raises:
            LocalProtocolError: the handler is closed, the channel has ended, or the barrier is unaligned: no checkpoint
                would contain the data it overtook.
        """
        check_polled(channel, self._open, is_closed=self._closed)
        checkpoint_id = barrier.checkpoint_id
        if barrier.alignment is Alignment.UNALIGNED:
            raise LocalProtocolError(
                f"barrier {checkpoint_id} of channel {channel} is UNALIGNED, but this task is at-least-once: use a"
                " BarrierHandler, or trigger AT_LEAST_ONCE checkpoints"
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
        """Ignores the announcement of a barrier, which is counted when it arrives.

        Raises:
            LocalProtocolError: the handler is closed, or the channel has ended.
        """
        check_polled(channel, self._open, is_closed=self._closed)

    def on_cancel(self, channel: int, checkpoint_id: int) -> None:
        """A cancel marker was polled from `channel`.

        Raises:
            LocalProtocolError: the handler is closed, or the channel has ended.
        """
        check_polled(channel, self._open, is_closed=self._closed)
        self._drop_older(checkpoint_id)
        if checkpoint_id in self._counts:
            self._drop(checkpoint_id, AbortReason.DECLINED)
        elif checkpoint_id > self._newest:
            self._newest = checkpoint_id
            self._abort(checkpoint_id, AbortReason.DECLINED)

    def on_end_of_partition(self, channel: int) -> None:
        """`channel` has ended, which counts as a barrier of every pending checkpoint.

        Raises:
            LocalProtocolError: the handler is closed, or the channel ended before.
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
        """Aborts all pending checkpoints and refuses further calls. Idempotent."""
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
            self._task.on_barrier(barrier, alignment)
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
