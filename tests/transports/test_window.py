"""TCP's window in front of an emulated line: it fills the line and its queue, loses, and continues with 0.7 of that."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, strategies as st

from netstack_transports._line import Line
from netstack_transports._window import FRAME_BYTES, CubicWindow

UNSENT_BYTES = 64 * 1024
STEP_S = 0.0005
LINES = [(0.01, 25e6, 250_000), (0.002, 25e6, 131_072), (0.04, 12.5e6, 500_000), (0.04, 1.25e6, 131_072)]


@dataclass(frozen=True)
class Look:
    """What is seen at one moment of a run: bytes that came so far, the window, the age of the last byte that came."""

    at: float
    came: int
    window: float
    age_s: float


def full_speed(line: Line, seconds: float) -> Iterator[Look]:
    """A source that always has more, and a sink that takes everything."""
    entered: list[tuple[int, float]] = []
    space = memoryview(bytearray(1 << 20))
    total = came = 0
    age_s = 0.0
    for step in itertools.count():
        now = step * STEP_S
        if now > seconds:
            return
        while (window := line.window()) is not None:
            line.enter(len(window), now)
            total += len(window)
            entered.append((total, now))
        line.advance(now)
        came += line.take_into([space], None)
        while entered and entered[0][0] <= came:
            age_s = now - entered.pop(0)[1]
        assert line._window is not None
        yield Look(now, came, line._window.size, age_s)


def losses(looks: list[Look]) -> list[tuple[float, float, float]]:
    """(when, the window before, the window after)."""
    pairs = itertools.pairwise(looks)
    return [(after.at, before.window, after.window) for before, after in pairs if after.window < 0.9 * before.window]


@pytest.mark.parametrize(("round_trip_s", "rate", "queue_bytes"), LINES)
def test_it_fills_the_line_and_its_queue_then_loses_and_keeps_seven_tenths(
    round_trip_s: float, rate: float, queue_bytes: int
) -> None:
    line = Line(queue_bytes, round_trip_s / 2, rate, unsent_bytes=UNSENT_BYTES)
    looks = list(full_speed(line, 30))
    holds = rate * round_trip_s + queue_bytes
    later = [each for each in looks if each.at > 5]
    assert later[-1].came - later[0].came > 0.97 * rate * 25, "the line is never idle"
    teeth = losses(later)
    assert len(teeth) > 1
    for _, before, after in teeth:
        assert before == pytest.approx(holds, rel=0.07)
        assert after == pytest.approx(0.7 * before, rel=0.02)
    waits_s = [each.age_s - (each.window + UNSENT_BYTES) / rate + round_trip_s / 2 for each in later]
    in_time = sum(abs(each) < 0.15 * holds / rate for each in waits_s) / len(waits_s)
    assert in_time > 0.85, "latency is what the window and the unsent bytes take; but for what is behind a loss"


def test_reno_s_growth_decides_how_often_a_short_line_loses() -> None:
    """Half a frame a round trip, over three tenths of the window; counted beside Linux: a loss in 3.2 s."""
    line = Line(250_000, 0.005, 25e6, unsent_bytes=UNSENT_BYTES)
    times = [at for at, _, _ in losses(list(full_speed(line, 20)))]
    periods = [after - before for before, after in itertools.pairwise(times[1:])]
    frames = 500_000 / FRAME_BYTES
    round_trip_s = 0.85 * 500_000 / 25e6
    assert all(each == pytest.approx(0.3 * frames / 0.53 * round_trip_s, rel=0.1) for each in periods)


@pytest.mark.parametrize(("round_trip_s", "rate", "frames"), [(0.01, 23.5e6, 247), (0.04, 11.77e6, 475)])
def test_slow_start_ends_where_linux_ends_it(round_trip_s: float, rate: float, frames: int) -> None:
    """The thresholds that `ss -ti` told on shaped lines of 200 Mbit/s and 100 Mbit/s."""
    line = Line(10**8, round_trip_s / 2, rate, unsent_bytes=UNSENT_BYTES)
    for _ in full_speed(line, 1):
        assert line._window is not None
    assert line._window is not None
    assert line._window._slow_until / FRAME_BYTES == pytest.approx(frames, rel=0.1)


def test_what_is_behind_a_lost_portion_waits_for_a_round_trip_and_the_queue() -> None:
    line = Line(250_000, 0.005, 25e6, unsent_bytes=UNSENT_BYTES)
    looks = [each for each in full_speed(line, 8) if each.at > 2]
    stops: list[float] = []
    since = looks[0].at
    for before, after in itertools.pairwise(looks):
        if after.came > before.came:
            stops.append(before.at - since)
            since = after.at
    longest = max(stops)
    assert longest == pytest.approx(0.02, abs=0.003), "10 ms of the line, and 10 ms of its queue"
    assert sum(each > 0.005 for each in stops) == len(losses(looks))


@pytest.mark.parametrize("round_trip_s", [0.01, 0.04])
def test_the_more_is_lost_the_less_comes(round_trip_s: float) -> None:
    """Near sqrt(1.5 / loss) frames a round trip (Mathis et al. 1997), or cubic's window where it is larger."""
    rates = []
    for loss in (0.0005, 0.002, 0.01):
        line = Line(10**7, round_trip_s / 2, 25e6, loss=loss, seed=4, unsent_bytes=UNSENT_BYTES)
        *_, last = full_speed(line, 40)
        rates.append(last.came / 40)
        reno = (1.5 / loss) ** 0.5
        cubic = (0.4 * 3.7 / 1.2) ** 0.25 * (round_trip_s / loss) ** 0.75
        assert 0.5 < rates[-1] * round_trip_s / FRAME_BYTES / max(reno, cubic) < 2
    assert rates[0] > 1.5 * rates[1] > 1.5 * 1.5 * rates[2]


def test_a_window_that_is_not_the_limit_does_not_grow() -> None:
    window = CubicWindow()
    size = window.size
    for turn in range(1000):
        now = turn * 0.02
        assert window.opens_at(now, now) == now
        window.send(FRAME_BYTES, now, now + 0.01, is_lost=False)
    assert window.size == size


@given(
    portions=st.lists(
        st.tuples(st.floats(0, 0.05), st.integers(1, 100_000), st.floats(0, 0.1), st.booleans()), max_size=200
    )
)
def test_no_more_is_under_way_than_the_window_and_a_frame(portions: list[tuple[float, int, float, bool]]) -> None:
    window = CubicWindow()
    now = 0.0
    under_way: list[tuple[float, int]] = []
    for pause_s, size, took_s, is_lost in portions:
        now += pause_s
        at = window.opens_at(now, now)
        if at > now:
            assert window.known_at > now, "what is known was applied"
            continue
        sent = min(size, window.room)
        known_at = max(now + took_s, under_way[-1][0] if under_way else 0.0)
        window.send(sent, now, now + took_s, is_lost=is_lost)
        under_way = [each for each in under_way if each[0] > now] + [(known_at, sent)]
        assert sum(each for _, each in under_way if _ > now) <= window.size + FRAME_BYTES
        assert window.size >= 2 * FRAME_BYTES
