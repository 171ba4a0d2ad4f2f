"""The exactly-once barrier handler: aligned checkpoints, unaligned ones, and aligned ones with a timeout.

Takes: barriers, announcements, cancel markers and ends, as the task polls them from its channels; a clock and a timer.
Gives: calls to `CheckpointTask` and `CheckpointedInputs`.

Rules:
- Ids increase. A checkpoint is triggered at most once, and a newer one replaces a pending one.
- A checkpoint waits for the channels that were open when it began here. The end of a channel counts as its barrier.
- The producer behind an aligned barrier is resumed exactly once: when the checkpoint is complete or aborted, or at once
  if it was already over. A channel that has ended is not resumed.
- Every checkpoint that began ends with `inputs_complete` after `CheckpointTask.on_barrier`, or with `abort`. (If the
  cancel marker of a newer checkpoint ends a pending one, Flink notifies its task of the newer one only.)
- A cancel marker also aborts a checkpoint that was only announced. (Flink ignores such a marker, and the announced
  barrier then blocks its channel until the next checkpoint.)
- The age of a checkpoint is the age in its first barrier or announcement, plus the time since then by this process's
  clock. `timestamp_ns` is not used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, assert_never, final

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
    """Handles one checkpoint at a time over all channels of a task. Not reentrant; no call waits."""

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
        """Starts with all channels open and no checkpoint.

        Args:
            channels: number of channels of all gates; a channel is identified by its index.
            inputs: the inputs, which block and capture.
            task: the task.
            unaligned: whether a checkpoint may be, or become, unaligned. A barrier without timeout, such as that of a
                savepoint, stays aligned.
            now: clock in monotonic seconds.
            call_at: calls a function once, not before a time of that clock. Timers are not cancelled; an obsolete one
                does nothing.
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
        self._wake_s: float | None = None  # time of the earliest timer that has not fired
        self._completed = self._aborted = self._timed_out = 0
        self._last: AlignmentStatistics | None = None
        # The pending checkpoint.
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
            LocalProtocolError: the handler is closed, the channel has ended or has already delivered this barrier, or
                the tasks of the job disagree about alignment.
        """
        check_polled(channel, self._open, is_closed=self._closed)
        if barrier.alignment is Alignment.AT_LEAST_ONCE:
            raise LocalProtocolError(
                f"barrier {barrier.checkpoint_id} of channel {channel} is AT_LEAST_ONCE, but this task is exactly-once:"
                " use a BarrierTracker, or trigger aligned checkpoints"
            )
        if self._is_over(barrier.checkpoint_id):
            if blocks_producer(barrier):
                self._inputs.resume(channel)
            return
        self._begin(barrier)
        if channel in self._received:
            raise LocalProtocolError(
                f"channel {channel} delivered barrier {barrier.checkpoint_id} twice; its producer is faulty"
            )
        self._set_deadline(barrier)
        self._count(channel, _ALIGNED_INPUTS if blocks_producer(barrier) else _UNALIGNED_INPUTS)

    def on_announcement(self, channel: int, barrier: CheckpointBarrier, sequence: int) -> None:
        """`barrier` is queued in `channel` with this sequence number, after data.

        Raises:
            LocalProtocolError: the handler is closed, or the channel has ended.
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
            LocalProtocolError: the handler is closed, or the channel has ended.
        """
        check_polled(channel, self._open, is_closed=self._closed)
        if self._is_over(checkpoint_id):
            return
        if checkpoint_id > self._current:
            self._subsume()
        self._abort(checkpoint_id, AbortReason.DECLINED)

    def on_end_of_partition(self, channel: int) -> None:
        """`channel` has ended, which counts as its barrier.

        Raises:
            LocalProtocolError: the handler is closed, or the channel ended before.
        """
        check_polled(channel, self._open, is_closed=self._closed)
        self._open.remove(channel)
        if self._pending is not None:
            self._count(channel, _END_INPUTS)

    # From the task.

    def close(self) -> None:
        """Aborts the pending checkpoint and refuses further calls. Idempotent."""
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

    # The current checkpoint.

    def _is_over(self, checkpoint_id: int) -> bool:
        return checkpoint_id < self._current or (checkpoint_id == self._current and self._pending is None)

    def _begin(self, barrier: CheckpointBarrier) -> None:
        """Makes the barrier's checkpoint the current one, if it is newer."""
        if barrier.checkpoint_id == self._current:
            return
        self._subsume()
        self._current = barrier.checkpoint_id
        self._pending = barrier
        self._arrived_s = self._now()
        self._expected = len(self._open)

    def _subsume(self) -> None:
        if self._pending is not None:
            self._abort(self._current, AbortReason.SUBSUMED)

    def _count(self, channel: int, inputs: tuple[Input, Input, Input]) -> None:
        """Counts a channel, and steps with one of these inputs: the usual one, the late one, or the last one."""
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

    # The state machine.

    def _step(self, what: Input, channel: int = -1, sequence: int = -1) -> bool:
        """Performs a transition of the table. Returns False if the checkpoint was declined, and so aborted."""
        step = TRANSITIONS.get((self._state, what))
        if step is None:
            raise LocalProtocolError(
                f"checkpoint {self._current} in state {self._state.name} ({self._state.value}) cannot handle"
                f" {what.value} of channel {channel}; give all tasks of the job the same checkpoint settings"
            )
        try:
            for action in step.actions:
                self._do(action, channel, sequence)
        except CannotCheckpoint as declined:
            if Action.CAPTURE in step.actions:
                self._state = State.UC  # some inputs may already capture, so the abort must stop them
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
                self._task.on_barrier(restored(self._barrier()), self._alignment())
            case Action.TRIGGER_UNALIGNED:
                self._task.on_barrier(turned_unaligned(self._barrier()), self._alignment())
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
        """The pending barrier with its current age."""
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
        """Sets the deadline at the first barrier or announcement with a timeout.

        The first barrier of the checkpoint may have none, because an edge forced it to align.
        """
        if self._deadline_s is None and may_time_out(barrier) and self._state in (State.AW, State.AC):
            now = self._now()
            left_ns = barrier.aligned_timeout_ns - self._barrier().elapsed_ns
            self._deadline_s = now + left_ns / 1e9
            self._wake_at(max(now, self._deadline_s))

    def _wake_at(self, due_s: float) -> None:
        # At most one timer is active, however many checkpoints end before their timeouts.
        if self._wake_s is None or due_s < self._wake_s:
            self._wake_s = due_s
            self._call_at(due_s, self._on_timer)

    def _on_timer(self) -> None:
        self._wake_s = None
        if self._deadline_s is None:
            return  # the checkpoint is over, or already unaligned
        if self._now() < self._deadline_s:
            self._wake_at(self._deadline_s)  # this timer belonged to an older checkpoint
        else:
            self._step(Input.TIMEOUT)
