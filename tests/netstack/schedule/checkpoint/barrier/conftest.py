"""A stage for barrier handlers: the inputs, the task and the clock around them, which write down what they are told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from netstack.base.events import Alignment, CheckpointBarrier
from netstack.schedule.checkpoint.barrier import AbortReason, AlignmentStatistics, CannotCheckpoint

MS = 1_000_000


class Stage:
    """`calls` is what the handler asked for, as words; `took()` reads them and begins anew."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.calls: list[str] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.triggered: list[tuple[CheckpointBarrier, AlignmentStatistics]] = []
        self.completed: list[AlignmentStatistics] = []
        self.captured: list[CheckpointBarrier] = []
        self.refuses_to: set[str] = set()

    def took(self) -> list[str]:
        calls, self.calls = self.calls, []
        return calls

    # The clock.

    def now(self) -> float:
        return self.now_s

    def call_at(self, time_s: float, call: Callable[[], None]) -> None:
        assert time_s >= self.now_s
        self.timers.append((time_s, call))

    def wait_ms(self, milliseconds: float) -> None:
        """Lets time pass, and what is due happen."""
        self.now_s += milliseconds / 1000
        for timer in [each for each in self.timers if each[0] <= self.now_s]:
            self.timers.remove(timer)
            timer[1]()

    def sleep_ms(self, milliseconds: float) -> None:
        """Lets time pass while timers are late."""
        self.now_s += milliseconds / 1000

    # The inputs.

    def resume(self, channel: int) -> None:
        self.calls.append(f"resume {channel}")

    def checkpoint_started(self, barrier: CheckpointBarrier) -> None:
        self.calls.append(f"capture {barrier.checkpoint_id}")
        self.captured.append(barrier)
        self.refuse("capture", AbortReason.SUBSUMED)

    def checkpoint_stopped(self, checkpoint_id: int) -> None:
        self.calls.append(f"stop {checkpoint_id}")

    def prioritize(self, channel: int, sequence: int) -> None:
        self.calls.append(f"prioritize {channel} @{sequence}")

    # The task.

    def on_barrier(self, barrier: CheckpointBarrier, alignment: AlignmentStatistics) -> None:
        self.calls.append(f"trigger {barrier.checkpoint_id} {barrier.alignment.name}")
        self.triggered.append((barrier, alignment))
        self.refuse("trigger", AbortReason.DECLINED)

    def inputs_complete(self, checkpoint_id: int, alignment: AlignmentStatistics) -> None:
        assert alignment.checkpoint_id == checkpoint_id
        self.calls.append(f"complete {checkpoint_id}")
        self.completed.append(alignment)

    def abort(self, checkpoint_id: int, reason: AbortReason) -> None:
        self.calls.append(f"abort {checkpoint_id} {reason.name}")

    def refuse(self, what: str, reason: AbortReason) -> None:
        if what in self.refuses_to:
            self.refuses_to.remove(what)
            raise CannotCheckpoint(reason)

    # Barriers.

    @staticmethod
    def counted(checkpoint_id: int, *, age_ms: int = 0) -> CheckpointBarrier:
        return CheckpointBarrier(checkpoint_id, 0, Alignment.AT_LEAST_ONCE, 0, age_ms * MS)

    @staticmethod
    def aligned(checkpoint_id: int, *, timeout_ms: int = 0, age_ms: int = 0) -> CheckpointBarrier:
        return CheckpointBarrier(checkpoint_id, 17, Alignment.ALIGNED, timeout_ms * MS, age_ms * MS)

    @staticmethod
    def forced(checkpoint_id: int, *, timeout_ms: int = 0) -> CheckpointBarrier:
        return CheckpointBarrier(checkpoint_id, 0, Alignment.FORCED_ALIGNED, timeout_ms * MS)

    @staticmethod
    def unaligned(checkpoint_id: int) -> CheckpointBarrier:
        return CheckpointBarrier(checkpoint_id, 0, Alignment.UNALIGNED)


@pytest.fixture
def stage() -> Stage:
    return Stage()
