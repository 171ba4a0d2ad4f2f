"""Laws of barriers: whatever comes in which order, each checkpoint is the cut that its channels' scripts say."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import event, given, strategies as st
from laws.barrier_world import MS, TIMEOUT_MS, Polled, Script, World, scripts_of, verdict

from netstack.base.events import (
    Alignment,
    CheckpointBarrier,
)
from netstack.schedule.checkpoint.barrier import (
    AbortReason,
    BarrierHandler,
    BarrierTracker,
)

schedules = st.lists(st.integers(0, 39), min_size=25, max_size=200)


# Exactly once.


def check_urgency(world: World, checkpoint_id: int, deadline_ms: int | None) -> None:
    """A pending checkpoint that has to be unaligned is triggered, and its announced barriers are in front."""
    mine = [polled for polled in world.log if polled.checkpoint_id == checkpoint_id]
    barriers = [polled for polled in mine if polled.kind == "barrier"]
    is_old = deadline_ms is not None and world.now_ms > deadline_ms
    last = world.log[-1]
    was_asked = last.at_ms == world.now_ms and (last in barriers or last.kind == "end")
    if barriers and is_old and (was_asked or not world.has_due_timers):
        assert checkpoint_id in world.triggered, "too old, and still aligning"
    if any(polled.alignment is Alignment.UNALIGNED for polled in barriers):
        assert checkpoint_id in world.triggered, "an unaligned barrier has come, and still aligning"
    if checkpoint_id in world.triggered and checkpoint_id not in world.started:
        raise AssertionError("triggered, and still pending: nobody captures what comes in front of the other barriers")
    if checkpoint_id in world.started or (is_old and not world.has_due_timers):
        announced = {polled.channel for polled in mine if polled.kind == "announcement"}
        for index in announced:
            for _, item, priority in world.channels[index].queue:
                if isinstance(item, CheckpointBarrier) and item.checkpoint_id == checkpoint_id:
                    assert priority, "an announced barrier waits behind data"


def run_exactly_once(scripts: list[Script], schedule: Sequence[int], *, unaligned: bool) -> World:
    world = World(scripts)
    count = len(scripts)
    handler = BarrierHandler(count, world, world, unaligned=unaligned, now=world.now, call_at=world.call_at)
    world.handler = handler
    ids = sorted({item.checkpoint_id for script in scripts for item in script if isinstance(item, CheckpointBarrier)})

    def check() -> None:
        blocked = sum(channel.is_blocked for channel in world.channels)
        assert handler.statistics().blocked_channels <= blocked
        current = handler.statistics().pending
        assert len(current) <= 1
        for checkpoint_id in current:
            actual = verdict(world.log, checkpoint_id, count)
            assert actual.outcome == "pending"
            if unaligned:
                check_urgency(world, checkpoint_id, actual.deadline_ms)

    world.run(schedule, check)
    for checkpoint_id in ids:
        actual = verdict(world.log, checkpoint_id, count)
        event(actual.outcome)
        assert (checkpoint_id in world.completed) == (actual.outcome == "completed")
        assert (checkpoint_id in world.aborted) == (actual.outcome == "aborted")
        barrier = world.triggered.get(checkpoint_id)
        if actual.begun is not None and barrier is not None:
            age_ms = world.triggered_ms[checkpoint_id] - actual.begun.at_ms
            assert barrier.elapsed_ns == actual.begun.elapsed_ns + age_ms * MS
            assert barrier.timestamp_ns == 17 * checkpoint_id
            assert barrier.alignment is not Alignment.FORCED_ALIGNED
        if actual.outcome == "completed":
            assert world.completed[checkpoint_id].channels == actual.channels
    assert world.stopped == world.started
    assert handler.statistics().open_channels == 0
    assert handler.statistics().blocked_channels == 0
    assert list(world.completed) == sorted(world.completed)
    return world


@given(scripts_of(["aligned", "timed"]), schedules)
def test_aligned_is_the_cut(scripts: list[Script], schedule: list[int]) -> None:
    world = run_exactly_once(scripts, schedule, unaligned=False)
    assert not world.started
    assert not world.timers_asked


@given(scripts_of(["aligned", "unaligned", "timed", "converted"]), schedules)
def test_unaligned_is_the_cut_with_what_was_captured(scripts: list[Script], schedule: list[int]) -> None:
    world = run_exactly_once(scripts, schedule, unaligned=True)
    savepoints = {
        item.checkpoint_id
        for script in scripts
        for item in script
        if isinstance(item, CheckpointBarrier) and item.alignment is Alignment.ALIGNED and not item.aligned_timeout_ns
    }
    assert savepoints.isdisjoint(world.started)
    for checkpoint_id in world.completed:
        event("captured" if checkpoint_id in world.started else "aligned")


@given(scripts_of(["timed"]), schedules)
def test_time_alone_turns_a_checkpoint_unaligned(scripts: list[Script], schedule: list[int]) -> None:
    world = run_exactly_once(scripts, schedule, unaligned=True)
    for checkpoint_id, barrier in world.triggered.items():
        turned = barrier.alignment is Alignment.UNALIGNED
        assert turned == (checkpoint_id in world.started)
        if turned:
            assert barrier.elapsed_ns >= TIMEOUT_MS * MS, "too early"
            assert not barrier.aligned_timeout_ns
        else:
            assert barrier.aligned_timeout_ns == TIMEOUT_MS * MS
        if checkpoint_id in world.completed:
            assert world.completed[checkpoint_id].timed_out == turned
            event("turned" if turned else "aligned")


@given(scripts_of(["aligned", "unaligned", "timed", "converted"]), schedules)
def test_closing_ends_what_is_pending(scripts: list[Script], schedule: list[int]) -> None:
    world = World(scripts)
    count = len(scripts)
    handler = world.handler = BarrierHandler(count, world, world, unaligned=True, now=world.now, call_at=world.call_at)
    for number in schedule:
        world.do(number)
    pending = handler.statistics().pending
    before = set(world.aborted)
    handler.close()
    handler.close()
    assert set(world.aborted) == before.union(pending)
    assert all(world.aborted[checkpoint_id] is AbortReason.CLOSED for checkpoint_id in pending)
    assert world.started == world.stopped
    for channel in world.channels:
        assert channel.holds_a_barrier or not channel.is_blocked
    world.advance(1000)  # late timers


# At least once.


class CountingWorld(World):
    """A task that may have processed more than the cut, but not less."""

    def check_trigger(self, checkpoint_id: int) -> None:
        assert not any(channel.is_blocked and not channel.holds_a_barrier for channel in self.channels)

    def check_cut(self, checkpoint_id: int, before: list[int], captured: list[int], expected: list[int]) -> None:
        assert before[: len(expected)] == expected
        assert not captured


@given(scripts_of(["counted", "aligned"]), schedules)
def test_counting_loses_nothing_and_blocks_nobody(scripts: list[Script], schedule: list[int]) -> None:
    world = CountingWorld(scripts)
    count = len(scripts)
    tracker = world.handler = BarrierTracker(count, world, world, now=world.now)
    ids = sorted({item.checkpoint_id for script in scripts for item in script if isinstance(item, CheckpointBarrier)})

    def check() -> None:
        for channel in world.channels:
            assert channel.holds_a_barrier or not channel.is_blocked

    world.run(schedule, check)
    assert not world.started
    assert tracker.statistics().pending == ()
    outcomes = counted(world.log, ids, count)
    assert sorted(world.completed) == [each for each in ids if outcomes[each] == "completed"]
    assert sorted(world.aborted) == sorted(each for each in outcomes if outcomes[each] == "aborted")
    for checkpoint_id in ids:
        event(outcomes[checkpoint_id])


def counted(log: list[Polled], ids: list[int], channels: int) -> dict[int, str]:
    """At least once: completing or cancelling one ends the older ones, beginning one does not."""
    open_channels = set(range(channels))
    missing: dict[int, set[int]] = {}
    outcomes = dict.fromkeys(ids, "nothing")
    for polled in log:
        mine = polled.checkpoint_id
        if polled.kind == "barrier" and outcomes[mine] == "nothing" and mine == max([mine, *missing]):
            missing.setdefault(mine, set(open_channels))
        if polled.kind == "end":
            open_channels.discard(polled.channel)
        if polled.kind == "cancel" and mine >= max(missing, default=-1):
            missing[mine] = set()
            outcomes[mine] = "aborted"
        for each in sorted(missing, reverse=True):
            if polled.kind == "end" or (polled.kind == "barrier" and mine == each):
                missing[each].discard(polled.channel)
            over = polled.kind == "cancel" and each <= mine
            newer = any(outcomes[other] == "completed" for other in missing if other > each)
            if outcomes[each] == "nothing" and (over or newer):
                outcomes[each] = "aborted"
            elif outcomes[each] == "nothing" and not missing[each]:
                outcomes[each] = "completed"
    return outcomes
