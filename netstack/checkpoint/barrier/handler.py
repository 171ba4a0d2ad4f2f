"""When a checkpoint begins, exactly once: aligned, unaligned, or aligned until it becomes too old.

Takes: barriers, announcements, cancel markers and ends, as they are polled from the channels of a task; a clock and a
timer. Gives: calls to `CheckpointTask` and `CheckpointedInputs`.

Rules:
- Ids grow; a checkpoint is triggered at most once, and a newer one takes the place of a pending one.
- It waits for the channels that were open when it began here. The end of a channel counts as its barrier.
- The producer behind an aligned barrier is resumed exactly once: when the checkpoint is complete, when it is aborted,
  or at once if it was over already. A channel that ended is not resumed.
- Whatever began ends: with `inputs_complete` after `trigger`, or with `abort`. (When the cancel marker of a newer one
  ends a pending checkpoint, Flink's task hears of the newer one only.)
- A cancel marker aborts a checkpoint that was only announced so far. (Flink ignores it; the announced barrier then
  blocks its channel until the next checkpoint.)
- Time is the age that the first barrier, or its announcement, brought and the time since, by this process's clock.
  Nobody looks at `timestamp_ns`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, assert_never, final

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
    may_time_out,
    restored,
    turned_unaligned,
)
from .states import TRANSITIONS, Action, Input, State

_ALIGNED_INPUTS: Final = (Input.BARRIER, Input.LATE_BARRIER, Input.LAST_BARRIER)
_UNALIGNED_INPUTS: Final = (Input.UNALIGNED, Input.UNALIGNED, Input.LAST_UNALIGNED)
_END_INPUTS: Final = (Input.END, Input.LATE_END, Input.LAST_END)


@final
class BarrierHandler:
    """One checkpoint at a time, over all channels of a task. Not reentrant; no call waits."""

    def __init__(
        self,
        channels: int,
        inputs: CheckpointedInputs,
        task: CheckpointTask,
        *,
        unaligned: bool,
        now: Callable[[], float],
        call_at: Callable[[float, Callable[[], None]], None],
    ) -> None:
        """Starts with every channel open and no checkpoint.

        Args:
            channels: how many there are over all gates; a channel is its index.
            inputs: what blocks and captures.
            task: what is checkpointed.
            unaligned: whether a checkpoint may be, or become, unaligned. Aligned barriers stay aligned without a
                timeout of their own, so savepoints do.
            now: monotonic seconds.
            call_at: calls back once, not earlier than at a time of that clock. Nothing is cancelled: a call that comes
                when it is no longer wanted does nothing.
        """
        self._inputs = inputs
        self._task = task
        self._now = now
        self._call_at = call_at
        self._state = State.AW if unaligned else State.W
        self._open = set(range(channels))
        self._blocked: set[int] = set()
        self._current = -1  # newest id begun or aborted here
        self._closed = False
        self._wake_s: float | None = None  # the earliest call that was asked for and has not come
        self._completed = self._aborted = self._timed_out = 0
        self._last: AlignmentStatistics | None = None
        # Of the current checkpoint, while it is pending.
        self._pending: CheckpointBarrier | None = None
        self._received: set[int] = set()
        self._expected = 0
        self._announced: dict[int, int] = {}  # channel -> sequence number of its barrier
        self._arrived_s = 0.0
        self._first_s: float | None = None
        self._deadline_s: float | None = None
        self._too_old = False

    # From the channels.

    def on_barrier(self, channel: int, barrier: CheckpointBarrier) -> None:
        """A barrier was polled from `channel`.

        Raises:
            LocalProtocolError: it cannot come here: closed, the channel has ended or brought it already, or the job's
                tasks disagree about how barriers align.
        """
        check_polled(channel, self._open, is_closed=self._closed)
        if barrier.alignment is Alignment.AT_LEAST_ONCE:
            raise LocalProtocolError(
                f"barrier {barrier.checkpoint_id} of channel {channel} is AT_LEAST_ONCE, but this task cuts exactly:"
                " give it a BarrierTracker, or trigger aligned checkpoints"
            )
        if self._is_over(barrier.checkpoint_id):
            if blocks_producer(barrier):
                self._inputs.resume(channel)
            return
        self._begin(barrier)
        if channel in self._received:
            raise LocalProtocolError(
                f"channel {channel} brought barrier {barrier.checkpoint_id} twice; its producer is faulty"
            )
        self._set_deadline(barrier)
        self._count(channel, _ALIGNED_INPUTS if blocks_producer(barrier) else _UNALIGNED_INPUTS)

    def on_announcement(self, channel: int, barrier: CheckpointBarrier, sequence: int) -> None:
        """`barrier` is queued in `channel` under this sequence number, behind data.

        Raises:
            LocalProtocolError: closed, or the channel has ended.
        """
        check_polled(channel, self._open, is_closed=self._closed)
        if self._is_over(barrier.checkpoint_id):
            return
        self._begin(barrier)
        if channel in self._received:
            return
        self._set_deadline(barrier)
        self._step(Input.ANNOUNCEMENT, channel, sequence)

    def on_cancel(self, channel: int, checkpoint_id: int) -> None:
        """A cancel marker was polled from `channel`.

        Raises:
            LocalProtocolError: closed, or the channel has ended.
        """
        check_polled(channel, self._open, is_closed=self._closed)
        if self._is_over(checkpoint_id):
            return
        if checkpoint_id > self._current:
            self._give_way()
        self._abort(checkpoint_id, AbortReason.DECLINED)

    def on_end_of_partition(self, channel: int) -> None:
        """`channel` has ended: it counts as having brought its barrier.

        Raises:
            LocalProtocolError: closed, or it ended before.
        """
        check_polled(channel, self._open, is_closed=self._closed)
        self._open.remove(channel)
        if self._pending is not None:
            self._count(channel, _END_INPUTS)

    # From the task.

    def close(self) -> None:
        """Aborts what is pending; nothing may come any more. Idempotent."""
        if not self._closed:
            self._closed = True
            if self._pending is not None:
                self._abort(self._current, AbortReason.CLOSED)

    def statistics(self) -> BarrierStatistics:
        """A snapshot."""
        return BarrierStatistics(
            checkpoint_id=self._current,
            pending=() if self._pending is None else (self._current,),
            received_barriers=len(self._received),
            expected_barriers=self._expected,
            alignment_started_s=self._first_s,
            blocked_channels=len(self._blocked),
            open_channels=len(self._open),
            completed=self._completed,
            aborted=self._aborted,
            timed_out=self._timed_out,
            last=self._last,
        )

    # The frame: which checkpoint an input belongs to.

    def _is_over(self, checkpoint_id: int) -> bool:
        return checkpoint_id < self._current or (checkpoint_id == self._current and self._pending is None)

    def _begin(self, barrier: CheckpointBarrier) -> None:
        """Makes the barrier's checkpoint the current one, if it is newer."""
        if barrier.checkpoint_id == self._current:
            return
        self._give_way()
        self._current = barrier.checkpoint_id
        self._pending = barrier
        self._arrived_s = self._now()
        self._expected = len(self._open)

    def _give_way(self) -> None:
        if self._pending is not None:
            self._abort(self._current, AbortReason.SUBSUMED)

    def _count(self, channel: int, inputs: tuple[Input, Input, Input]) -> None:
        """Counts the channel, as one of these inputs: as usual, late, or the last."""
        usual, late, last = inputs
        now = self._now()
        self._received.add(channel)
        if self._first_s is None:
            self._first_s = now
        if len(self._received) == self._expected:
            if self._step(last, channel):
                self._complete()
        else:
            is_late = self._deadline_s is not None and now > self._deadline_s
            self._step(late if is_late else usual, channel)

    def _complete(self) -> None:
        self._completed += 1
        alignment = self._last = self._alignment()
        self._clear()
        self._task.inputs_complete(alignment.checkpoint_id, alignment)

    def _abort(self, checkpoint_id: int, reason: AbortReason) -> None:
        self._current = checkpoint_id
        self._aborted += 1
        self._clear()
        self._step(Input.ABORT)
        self._task.abort(checkpoint_id, reason)

    def _clear(self) -> None:
        self._pending = None
        self._received = set()
        self._expected = 0
        self._announced = {}
        self._first_s = None
        self._deadline_s = None
        self._too_old = False

    # The table.

    def _step(self, what: Input, channel: int = -1, sequence: int = -1) -> bool:
        """Does what the table says; False if the checkpoint was declined, and so aborted."""
        step = TRANSITIONS.get((self._state, what))
        if step is None:
            raise LocalProtocolError(
                f"checkpoint {self._current}, state {self._state.name} ({self._state.value}), cannot take:"
                f" {what.value}, channel {channel}; are all tasks of the job configured alike?"
            )
        try:
            for action in step.actions:
                self._do(action, channel, sequence)
        except CannotCheckpoint as declined:
            if Action.CAPTURE in step.actions:
                self._state = State.UC  # some inputs may capture already, so the abort has to stop them
            self._abort(self._current, declined.reason)
            return False
        self._state = step.following
        return True

    def _do(self, action: Action, channel: int, sequence: int) -> None:
        match action:
            case Action.BLOCK:
                self._blocked.add(channel)
            case Action.RESUME:
                self._resume()
            case Action.DROP:
                self._blocked.discard(channel)
                self._announced.pop(channel, None)
            case Action.REMEMBER:
                self._announced[channel] = sequence
            case Action.FORGET:
                self._announced.pop(channel, None)
            case Action.PRIORITIZE:
                self._inputs.prioritize(channel, sequence)
            case Action.TURN:
                self._turn()
            case Action.TIMED_OUT:
                self._too_old = True
                self._timed_out += 1
            case Action.CAPTURE:
                self._inputs.checkpoint_started(turned_unaligned(self._barrier()))
            case Action.STOP:
                self._inputs.checkpoint_stopped(self._current)
            case Action.TRIGGER:
                self._task.trigger(restored(self._barrier()), self._alignment())
            case Action.TRIGGER_UNALIGNED:
                self._task.trigger(turned_unaligned(self._barrier()), self._alignment())
            case _:
                assert_never(action)

    def _resume(self) -> None:
        blocked, self._blocked = self._blocked, set()
        for channel in sorted(blocked):
            self._inputs.resume(channel)

    def _turn(self) -> None:
        self._deadline_s = None
        announced, self._announced = self._announced, {}
        for channel, sequence in announced.items():
            self._inputs.prioritize(channel, sequence)

    # Time.

    def _barrier(self) -> CheckpointBarrier:
        """The pending barrier, as old as it is now."""
        assert self._pending is not None
        return replace(self._pending, elapsed_ns=age_ns(self._pending, self._arrived_s, self._now()))

    def _alignment(self) -> AlignmentStatistics:
        assert self._pending is not None
        assert self._first_s is not None
        return AlignmentStatistics(
            checkpoint_id=self._current,
            channels=self._expected,
            start_delay_ns=age_ns(self._pending, self._arrived_s, self._first_s),
            duration_ns=round((self._now() - self._first_s) * 1e9),
            timed_out=self._too_old,
        )

    def _set_deadline(self, barrier: CheckpointBarrier) -> None:
        """From the first barrier or announcement of a checkpoint that may time out.

        It need not be the one the checkpoint began with: that may have been forced to align on its way.
        """
        if self._deadline_s is None and may_time_out(barrier) and self._state in (State.AW, State.AC):
            now = self._now()
            left_ns = barrier.aligned_timeout_ns - self._barrier().elapsed_ns
            self._deadline_s = now + left_ns / 1e9
            self._wake_at(max(now, self._deadline_s))

    def _wake_at(self, due_s: float) -> None:
        # At most one timer is under way, however many checkpoints end long before their timeouts.
        if self._wake_s is None or due_s < self._wake_s:
            self._wake_s = due_s
            self._call_at(due_s, self._on_timer)

    def _on_timer(self) -> None:
        self._wake_s = None
        if self._deadline_s is None:
            return  # closed, over, or unaligned already
        if self._now() < self._deadline_s:
            self._wake_at(self._deadline_s)  # the timer of an older checkpoint
        else:
            self._step(Input.TIMEOUT)
