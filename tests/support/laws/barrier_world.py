"""A barrier handler in a small world, scripts of what its channels send, and what the log of a run says.

A channel is a script: data, barriers, cancel markers and an end, as its producer sends them. The producer waits behind
an aligned barrier until it is resumed. The model knows the scripts and the order in which events were polled, and
nothing of how the handlers work.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from netstack.base.events import (
    Alignment,
    CancelCheckpointMarker,
    CheckpointBarrier,
    DataType,
    EndOfPartition,
    data_type_of,
)
from netstack.schedule.checkpoint.barrier import (
    AbortReason,
    AlignmentStatistics,
    CannotCheckpoint,
)

MS = 1_000_000
TIMEOUT_MS = 50
BLOCKING = (Alignment.ALIGNED, Alignment.FORCED_ALIGNED)
Script = Sequence[Any]
"""Integers are data, each unique; the rest are events."""


def in_front(script: Script, checkpoint_id: int) -> list[int]:
    """The data in front of a barrier; all of it, if the channel ends without."""
    data: list[int] = []
    for item in script:
        if isinstance(item, CheckpointBarrier) and item.checkpoint_id == checkpoint_id:
            break
        if isinstance(item, int):
            data.append(item)
    return data


# What the log says.


@dataclass(frozen=True)
class Polled:
    """One event as it was given to the handler."""

    at_ms: int
    kind: str  # barrier, announcement, cancel, end; or declined: the inputs refused to capture
    channel: int
    checkpoint_id: int = -1
    elapsed_ns: int = 0
    alignment: Alignment | None = None
    may_time_out: bool = False

    @property
    def blocks(self) -> bool:
        return self.alignment in BLOCKING


@dataclass(frozen=True)
class Verdict:
    """What must have become of one checkpoint."""

    outcome: str  # nothing, aborted, completed
    begun: Polled | None = None
    channels: int = 0
    deadline_ms: int | None = None


def verdict(log: list[Polled], checkpoint_id: int, channels: int) -> Verdict:
    """Exactly once: what is newer, cancelled or refused ends it; else it is complete when nobody owes a barrier."""
    missing = set(range(channels))
    begun: Polled | None = None
    count = 0
    deadline: int | None = None
    for polled in log:
        mine = polled.checkpoint_id == checkpoint_id
        if polled.checkpoint_id > checkpoint_id and begun is None:
            return Verdict("nothing")
        if polled.checkpoint_id > checkpoint_id or (mine and polled.kind in ("cancel", "declined")):
            return Verdict("aborted", begun, count, deadline)
        if mine and begun is None:
            begun = polled
            count = len(missing)
        if mine and polled.may_time_out and deadline is None:
            age_ms = begun.elapsed_ns // MS + polled.at_ms - begun.at_ms
            deadline = polled.at_ms + TIMEOUT_MS - age_ms
        if polled.kind == "end" or (mine and polled.kind == "barrier"):
            missing.discard(polled.channel)
            if begun is not None and not missing:
                declined = any(each.kind == "declined" and each.checkpoint_id == checkpoint_id for each in log)
                return Verdict("aborted" if declined else "completed", begun, count, deadline)
    return Verdict("nothing" if begun is None else "pending", begun, count, deadline)


# What the handler works with.


@dataclass
class Channel:
    """A producer, what it has sent and is not polled yet, and what is captured."""

    script: Script
    left: deque[Any] = field(default_factory=deque)
    queue: deque[tuple[int, Any, bool]] = field(default_factory=deque)  # sequence number, item, has priority
    sent: int = 0
    is_blocked: bool = False
    arrived: dict[int, int] = field(default_factory=dict)  # barrier -> sequence number
    resumes_owed: int = 0
    processed: list[int] = field(default_factory=list)
    captured: list[int] = field(default_factory=list)
    capturing: int | None = None

    def send(self) -> bool:
        """Puts the next item of the script into the queue, as the network does."""
        if self.is_blocked or not self.left:
            return False
        item = self.left.popleft()
        sequence = self.sent
        self.sent += 1
        if isinstance(item, CheckpointBarrier):
            self.arrived[item.checkpoint_id] = sequence
            self.is_blocked = item.alignment in BLOCKING
            self.resumes_owed += self.is_blocked
            if self.capturing is not None and item.checkpoint_id >= self.capturing:
                self.capturing = None
            if item.alignment is Alignment.UNALIGNED:
                self.put_first(sequence, item)
                return True
            if data_type_of(item) is DataType.TIMEOUTABLE_ALIGNED_BARRIER:
                self.put_first(-1, (item, sequence))
        elif isinstance(item, int) and self.capturing is not None:
            self.captured.append(item)
        self.queue.append((sequence, item, False))
        return True

    @property
    def holds_a_barrier(self) -> bool:
        """Whether one has arrived and was not polled."""
        return any(isinstance(item, CheckpointBarrier) for _, item, _ in self.queue)

    def put_first(self, sequence: int, item: Any) -> None:
        self.queue.insert(sum(priority for _, _, priority in self.queue), (sequence, item, True))

    def capture(self, checkpoint_id: int) -> None:
        barrier = self.arrived.get(checkpoint_id)
        self.capturing = checkpoint_id if barrier is None else None
        self.captured = [
            item
            for sequence, item, _ in self.queue
            if isinstance(item, int) and (barrier is None or sequence < barrier)
        ]


class World:
    """A task with its channels and a virtual clock; the inputs and the task of a handler."""

    def __init__(self, scripts: Sequence[Script]) -> None:
        self.channels = [Channel(script, deque(script)) for script in scripts]
        self.now_ms = 0
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.timers_asked = 0
        self.log: list[Polled] = []
        self.handler: Any = None
        self.triggered: dict[int, CheckpointBarrier] = {}
        self.at_trigger: dict[int, list[list[int]]] = {}
        self.triggered_ms: dict[int, int] = {}
        self.started: list[int] = []
        self.stopped: list[int] = []
        self.completed: dict[int, AlignmentStatistics] = {}
        self.aborted: dict[int, AbortReason] = {}

    # The clock.

    def now(self) -> float:
        return self.now_ms / 1000

    def call_at(self, time_s: float, call: Callable[[], None]) -> None:
        assert time_s >= self.now()
        self.timers_asked += 1
        heapq.heappush(self.timers, (time_s, self.timers_asked, call))

    @property
    def has_due_timers(self) -> bool:
        return bool(self.timers) and self.timers[0][0] <= self.now()

    def advance(self, milliseconds: int, *, late_timers: bool = False) -> None:
        self.now_ms += milliseconds
        while self.has_due_timers and not late_timers:
            heapq.heappop(self.timers)[2]()

    # The inputs.

    def resume(self, channel: int) -> None:
        actual = self.channels[channel]
        assert actual.is_blocked, f"channel {channel} resumed, but it does not wait"
        assert all(not isinstance(item, CheckpointBarrier) for _, item, _ in actual.queue), (
            "resumed before it was polled"
        )
        actual.is_blocked = False
        actual.resumes_owed -= 1

    def checkpoint_started(self, barrier: CheckpointBarrier) -> None:
        assert barrier.alignment is Alignment.UNALIGNED
        checkpoint_id = barrier.checkpoint_id
        assert checkpoint_id not in self.started
        self.started.append(checkpoint_id)
        for index, channel in enumerate(self.channels):
            if max(channel.arrived, default=-1) > checkpoint_id:
                self.log.append(Polled(self.now_ms, "declined", index, checkpoint_id))
                raise CannotCheckpoint(AbortReason.SUBSUMED)
            channel.capture(checkpoint_id)

    def checkpoint_stopped(self, checkpoint_id: int) -> None:
        assert checkpoint_id == self.started[-1]
        self.stopped.append(checkpoint_id)
        for channel in self.channels:
            channel.capturing = None

    def prioritize(self, channel: int, sequence: int) -> None:
        queue = self.channels[channel].queue
        (actual,) = [each for each in queue if each[0] == sequence and not each[2]]
        assert isinstance(actual[1], CheckpointBarrier)
        queue.remove(actual)
        self.channels[channel].put_first(sequence, actual[1])

    # The task.

    def on_barrier(self, barrier: CheckpointBarrier, alignment: AlignmentStatistics) -> None:
        checkpoint_id = barrier.checkpoint_id
        assert checkpoint_id > max(self.triggered, default=-1), "triggered twice, or out of order"
        assert checkpoint_id not in self.aborted
        assert (checkpoint_id in self.started) <= (barrier.alignment is Alignment.UNALIGNED)
        self.check_trigger(checkpoint_id)
        self.triggered[checkpoint_id] = barrier
        self.triggered_ms[checkpoint_id] = self.now_ms
        self.at_trigger[checkpoint_id] = [list(channel.processed) for channel in self.channels]
        assert alignment.checkpoint_id == checkpoint_id

    def check_trigger(self, checkpoint_id: int) -> None:
        for polled in self.log:
            if polled.checkpoint_id == checkpoint_id and polled.kind == "barrier" and polled.blocks:
                assert self.channels[polled.channel].is_blocked, "resumed before the trigger"
        if verdict(self.log, checkpoint_id, len(self.channels)).outcome == "pending":
            assert checkpoint_id in self.started, "triggered before the capture"

    def inputs_complete(self, checkpoint_id: int, alignment: AlignmentStatistics) -> None:
        assert checkpoint_id in self.triggered
        assert checkpoint_id not in self.completed
        assert checkpoint_id not in self.aborted
        self.completed[checkpoint_id] = alignment
        for before, channel in zip(self.at_trigger[checkpoint_id], self.channels, strict=True):
            captured = channel.captured if checkpoint_id in self.started else []
            self.check_cut(checkpoint_id, before, captured, in_front(channel.script, checkpoint_id))

    def check_cut(self, checkpoint_id: int, before: list[int], captured: list[int], expected: list[int]) -> None:
        assert before + captured == expected

    def abort(self, checkpoint_id: int, reason: AbortReason) -> None:
        assert checkpoint_id not in self.aborted
        assert checkpoint_id not in self.completed
        self.aborted[checkpoint_id] = reason

    # The task's loop.

    def poll(self, index: int) -> bool:
        channel = self.channels[index]
        if not channel.queue:
            return False
        sequence, item, _ = channel.queue.popleft()
        if isinstance(item, int):
            channel.processed.append(item)
        elif isinstance(item, CheckpointBarrier):
            self.note("barrier", index, item)
            self.handler.on_barrier(index, item)
        elif isinstance(item, CancelCheckpointMarker):
            self.log.append(Polled(self.now_ms, "cancel", index, item.checkpoint_id))
            self.handler.on_cancel(index, item.checkpoint_id)
        elif isinstance(item, EndOfPartition):
            self.log.append(Polled(self.now_ms, "end", index))
            self.handler.on_end_of_partition(index)
        else:
            barrier, sequence = item
            self.note("announcement", index, barrier)
            self.handler.on_announcement(index, barrier, sequence)
        return True

    def note(self, kind: str, index: int, barrier: CheckpointBarrier) -> None:
        timeoutable = data_type_of(barrier) is DataType.TIMEOUTABLE_ALIGNED_BARRIER
        self.log.append(
            Polled(self.now_ms, kind, index, barrier.checkpoint_id, barrier.elapsed_ns, barrier.alignment, timeoutable)
        )

    def do(self, number: int) -> None:
        """One step of a schedule."""
        what, which = divmod(number, 8)
        index = which % len(self.channels)
        if what < 2:
            self.channels[index].send()
        elif what < 4:
            self.poll(index)
        else:
            self.advance(which // 2 * 10, late_timers=bool(which % 2))

    def run(self, schedule: Sequence[int], after_each: Callable[[], None]) -> None:
        """Sends, polls and waits as the schedule says, then until nothing is left."""
        count = len(self.channels)
        for number in schedule:
            self.do(number)
            after_each()
        moved = True
        while moved:
            moved = False
            for index in range(count):
                moved |= self.channels[index].send() | self.poll(index)
                after_each()
        for index, channel in enumerate(self.channels):
            assert not channel.left, f"channel {index} stays blocked"
            assert not channel.is_blocked
            assert channel.resumes_owed == 0
            assert channel.processed == [item for item in channel.script if isinstance(item, int)]


# Scripts.


@st.composite
def scripts_of(draw: st.DrawFn, kinds: Sequence[str]) -> list[Script]:
    """1 to 8 channels, up to 4 checkpoints of some kind each; a channel brings, cancels or omits its barriers."""
    channels = draw(st.integers(1, 8))
    ids = sorted(draw(st.sets(st.integers(0, 9), min_size=1, max_size=4)))
    kind_of = {checkpoint_id: draw(st.sampled_from(kinds)) for checkpoint_id in ids}
    elapsed_ms = {checkpoint_id: draw(st.sampled_from((0, 0, 20, 50, 70))) for checkpoint_id in ids}
    behaviour = st.sampled_from(("brings",) * 12 + ("variant",) * 4 + ("cancels", "omits", "ends"))
    scripts: list[Script] = []
    unique = 0
    for _ in range(channels):
        script: list[Any] = []
        for checkpoint_id in [*ids, None]:
            for _ in range(draw(st.integers(0, 3))):
                script.append(unique)
                unique += 1
            if checkpoint_id is None:
                break
            what = draw(behaviour)
            if what == "ends":
                break
            if what == "cancels":
                script.append(CancelCheckpointMarker(checkpoint_id))
            elif what != "omits":
                script.append(barrier_of(checkpoint_id, kind_of[checkpoint_id], elapsed_ms[checkpoint_id], what))
        script.append(EndOfPartition())
        scripts.append(script)
    return scripts


def barrier_of(checkpoint_id: int, kind: str, elapsed_ms: int, what: str) -> CheckpointBarrier:
    """A barrier as the coordinator made it; the variant is what an edge or an upstream timeout has made of it."""
    usual, variant, timeout_ms = {
        "counted": (Alignment.AT_LEAST_ONCE, Alignment.AT_LEAST_ONCE, 0),
        "aligned": (Alignment.ALIGNED, Alignment.ALIGNED, 0),
        "unaligned": (Alignment.UNALIGNED, Alignment.FORCED_ALIGNED, 0),
        "timed": (Alignment.ALIGNED, Alignment.FORCED_ALIGNED, TIMEOUT_MS),
        "converted": (Alignment.ALIGNED, Alignment.UNALIGNED, TIMEOUT_MS),
    }[kind]
    alignment = usual if what == "brings" else variant
    timeout_ns = 0 if alignment is Alignment.UNALIGNED else timeout_ms * MS
    # The timestamps are nonsense: nobody may look at them.
    return CheckpointBarrier(checkpoint_id, 17 * checkpoint_id, alignment, timeout_ns, elapsed_ms * MS)
