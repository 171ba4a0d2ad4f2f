"""When what was written is flushed: at once after a quiet timeout, then once a timeout; or, as Flink, by a clock."""

from __future__ import annotations

import itertools

import pytest
from exchange.writer_stage import Stage
from hypothesis import given, strategies as st

from netstack.base.events import UserEvent
from netstack.exchange.outbound.flush_times import EARLY_BURST, EARLY_PER_S, OVERSLEEP_S, TICKS
from netstack.exchange.outbound.selector import CustomSelector
from netstack.exchange.record.framing import frame

TIMEOUT_S = 0.16
TICK_S = TIMEOUT_S / TICKS
SLACK_S = 1e-9


def flushes(stage: Stage) -> int:
    return stage.partition.statistics().flushes_timeout


def test_a_record_that_finds_its_channel_quiet_leaves_at_once() -> None:
    stage = Stage(timeout_s=TIMEOUT_S)
    for count in range(1, 4):
        kicks = stage.host.kicks
        stage.emit(b"a")
        assert stage.host.kicks == kicks + 1
        assert stage.read() == frame(b"a")
        assert flushes(stage) == count
        assert not stage.host.pending_calls, "an idle writer costs nothing"
        stage.host.advance(TIMEOUT_S)


def test_what_follows_waits_until_a_timeout_after_that() -> None:
    stage = Stage(timeout_s=TIMEOUT_S)
    stage.emit(b"a")
    stage.read()
    stage.host.advance(4 * TICK_S)
    stage.emit(b"b")
    stage.host.advance(4 * TICK_S)
    stage.emit(b"c")
    stage.host.advance(8 * TICK_S - 0.001)
    assert not stage.visible()
    kicks = stage.host.kicks
    stage.host.advance(0.002)
    assert stage.host.kicks == kicks + 1
    assert stage.read() == frame(b"b") + frame(b"c")
    assert flushes(stage) == 2
    assert not stage.host.pending_calls


def test_bytes_behind_a_flush_that_nobody_has_read_go_with_it() -> None:
    stage = Stage(timeout_s=TIMEOUT_S)
    stage.emit(b"a")
    stage.emit(b"b")
    assert not stage.host.pending_calls
    assert stage.read() == frame(b"a") + frame(b"b")
    stage.emit(b"c")
    assert not stage.visible(), "the channel was not quiet"
    stage.host.advance(TIMEOUT_S)
    assert stage.read() == frame(b"c")


def test_a_channel_that_was_busy_while_its_flush_waited_was_not_quiet() -> None:
    stage = Stage(timeout_s=TIMEOUT_S)
    stage.emit(b"a")
    stage.host.advance(2 * TIMEOUT_S)
    stage.emit(b"b")
    stage.read()  # only now
    stage.emit(b"c")
    assert not stage.visible()
    stage.host.advance(TIMEOUT_S)
    assert stage.read() == frame(b"c")


def test_a_deadline_of_a_buffer_that_left_is_forgotten() -> None:
    stage = Stage(timeout_s=TIMEOUT_S)
    stage.emit(b"a")
    stage.read()
    stage.emit(b"b")
    stage.host.advance(TIMEOUT_S / 2)
    stage.emit(b"x" * 18)  # fills it to the last byte
    stage.emit(b"c")
    stage.read()
    stage.host.advance(TIMEOUT_S / 2 + TICK_S / 2)  # the deadline of b has passed
    assert not stage.visible()
    assert flushes(stage) == 1
    stage.host.advance(TIMEOUT_S / 2)
    assert stage.read() == frame(b"c")


@pytest.mark.parametrize("how", ["full", "event", "flush"])
def test_a_channel_is_quiet_from_when_its_last_bytes_left(how: str) -> None:
    stage = Stage(timeout_s=TIMEOUT_S)
    stage.emit(b"a")
    stage.read()
    stage.host.advance(TIMEOUT_S / 2)
    stage.emit(b"x" * 23)
    if how == "full":
        assert not stage.partition.subpartitions[0].has_open_buffer
    elif how == "event":
        stage.writer.broadcast_event(UserEvent("e", b""))
    else:
        stage.writer.flush()
    stage.read()
    stage.host.advance(TIMEOUT_S - TICK_S)
    stage.emit(b"b")
    assert not stage.visible()
    stage.host.advance(TICK_S)
    assert stage.read() == frame(b"b")
    stage.host.advance(TIMEOUT_S)
    stage.emit(b"c")
    assert stage.read() == frame(b"c")


def sparse(channels: int, **settings: object) -> Stage:
    return Stage(
        subpartitions=channels,
        selector=CustomSelector(lambda record, count: record[0] % count),
        timeout_s=TIMEOUT_S,
        segments=4 * channels,
        **settings,  # type: ignore[arg-type]
    )


def test_over_its_budget_a_writer_flushes_many_quiet_channels_together() -> None:
    channels = 200
    stage = sparse(channels)
    for record in range(channels):
        stage.emit(bytes((record,)))
    early = sum(stage.visible(channel) for channel in range(channels))
    assert early == EARLY_BURST
    kicks = stage.host.kicks
    stage.host.advance(TIMEOUT_S)
    assert all(stage.visible(channel) for channel in range(channels))
    assert stage.host.kicks == kicks + 1, "deadlines that fall close together are served together"


def test_a_budget_that_was_used_up_fills_again() -> None:
    stage = sparse(200)
    for record in range(40):
        stage.emit(bytes((record,)))
    stage.host.advance(10 / EARLY_PER_S)
    for record in range(100, 120):
        stage.emit(bytes((record,)))
    assert sum(stage.visible(channel) for channel in range(100, 120)) == 10


_writes = st.lists(
    st.tuples(st.integers(0, 7), st.sampled_from((0.0, 0.001, 0.013, 0.02, 0.07, 0.15, 0.16, 0.161, 0.4))),
    min_size=1,
    max_size=60,
)


@given(writes=_writes)
def test_the_law_of_deadlines(writes: list[tuple[int, float]]) -> None:
    """No record waits longer than the timeout; no channel is flushed more often than once a timeout (less a tick); one
    that found its channel quiet does not wait; a writer wakes up as often as there are ticks, however many channels."""
    stage = sparse(8)
    host = stage.host
    waiting: list[list[float]] = [[] for _ in range(8)]
    flushed_at: list[list[float]] = [[] for _ in range(8)]
    written_at = [float("-inf")] * 8
    began_kicks = host.kicks

    def look() -> None:
        for channel in range(8):
            if waiting[channel] and stage.visible(channel):
                stage.read(channel)
                assert host.now() - waiting[channel][0] <= TIMEOUT_S + SLACK_S
                waiting[channel].clear()
                flushed_at[channel].append(host.now())

    host.on_kick = look
    for channel, pause_s in writes:
        last = max([written_at[channel], *flushed_at[channel]])
        was_quiet = host.now() - last >= TIMEOUT_S + SLACK_S
        waiting[channel].append(host.now())
        written_at[channel] = host.now()
        stage.emit(bytes((channel,)))
        look()
        assert not (was_quiet and waiting[channel]), "8 channels are within the budget"
        host.advance(pause_s)
    host.advance(TIMEOUT_S)
    assert not any(waiting)
    for times in flushed_at:
        for first, second in itertools.pairwise(times):
            assert second - first >= TIMEOUT_S - TICK_S - SLACK_S
    early = sum(map(len, flushed_at))
    assert host.kicks - began_kicks <= early
    assert not host.pending_calls


@given(st.lists(st.integers(1, 400), min_size=1, max_size=40))
def test_flinks_flusher_flushes_everything_once_a_timeout(pauses_ms: list[int]) -> None:
    stage = sparse(3, as_flink=True, segment_bytes=1 << 14)  # so that none leaves because it is full
    began = stage.host.now()
    period_s = TIMEOUT_S + OVERSLEEP_S
    waiting: list[float] = []
    ends: list[float] = []
    for number, pause_ms in enumerate(pauses_ms):
        stage.emit(bytes((number % 3,)))
        waiting.append(stage.host.now())
        end = began + ((stage.host.now() - began) // period_s + 1) * period_s
        kicks = stage.host.kicks
        past = end - stage.host.now() + 1e-9  # sums of floats are not exact
        stage.host.advance(min(pause_ms / 1000, past))
        if stage.host.now() < end:
            assert stage.host.kicks == kicks
            assert not any(stage.visible(channel) for channel in range(3))
            continue
        ends.append(stage.host.now())
        assert stage.host.kicks == kicks + 1
        assert b"".join(stage.read(channel) for channel in range(3))
        assert max(stage.host.now() - when for when in waiting) <= period_s + SLACK_S
        waiting.clear()
    assert flushes(stage) <= 3 * len(ends)


def test_a_record_waits_half_of_flinks_timeout_on_average() -> None:
    stage = Stage(timeout_s=TIMEOUT_S, segment_bytes=1 << 14, as_flink=True)
    waits = []
    for number in range(200):
        stage.emit(b"a")
        began = stage.host.now()
        while not stage.visible():
            stage.host.advance(TICK_S / 10)
        waits.append(stage.host.now() - began)
        stage.read()
        stage.host.advance(number * 0.618 % 1 * TIMEOUT_S)
    assert sum(waits) / len(waits) == pytest.approx(TIMEOUT_S / 2, rel=0.1)


def test_on_a_busy_channel_a_record_waits_half_of_the_timeout_on_average() -> None:
    stage = Stage(timeout_s=TIMEOUT_S, segment_bytes=1 << 16)
    waits: list[float] = []
    written: list[float] = []
    for _ in range(3000):
        stage.emit(b"a")
        written.append(stage.host.now())
        if stage.visible():
            stage.read()
            waits += [stage.host.now() - when for when in written]
            written.clear()
        stage.host.advance(TIMEOUT_S / 100)
    assert sum(waits) / len(waits) <= TIMEOUT_S / 2 * 1.05
    assert flushes(stage) <= 31 * TICKS / (TICKS - 1)
