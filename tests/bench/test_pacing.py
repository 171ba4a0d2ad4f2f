from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, strategies as st

from netstack.base.timing.alarm import Alarm
from netstack_bench import pacing
from netstack_bench.pacing import SAMPLE_INTERVAL_NS, SPIN_NS, Pacer, Sampler, due_ns, due_ns_many

START = 1_000_000_000


class Clock:
    """Moves by a microsecond whenever it is read, and by what is slept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = START - 5_000_000
        self.slept: list[float] = []
        monkeypatch.setattr(pacing, "clock_ns", self.read)
        monkeypatch.setattr(pacing.time, "sleep", self.sleep)

    def read(self) -> int:
        self.now += 1000
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept.append(seconds)
        self.now += int(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def pacer(**settings: Any) -> Pacer:
    return Pacer(start_ns=START, **{"most": 100, **settings})


def test_without_a_rate_everything_is_due_from_the_start_on(clock: Clock) -> None:
    paced = pacer(records=250)
    assert paced.next_span() == 100
    assert clock.now >= START
    assert [paced.next_span() for _ in range(4)] == [100, 50, 0, 0]
    assert paced.sent_records == 250
    assert START <= paced.stopped_ns <= clock.now


def test_it_sleeps_until_shortly_before_and_then_spins(clock: Clock) -> None:
    pacer(records=1).next_span()
    assert sum(clock.slept) * 1e9 == pytest.approx(5_000_000 - SPIN_NS, rel=0.01)


def test_a_record_is_never_handed_out_before_it_is_due(clock: Clock) -> None:
    paced = pacer(rate_per_s=700, records=50)
    while count := paced.next_span():
        assert clock.now + 1 >= due_ns(START, 700, paced.sent_records - 1)
        assert clock.now < due_ns(START, 700, paced.sent_records) + 10_000, "handed out late"
        assert count == 1
    assert paced.sent_records == 50


def test_after_a_stall_everything_that_is_due_comes_at_once(clock: Clock) -> None:
    paced = pacer(rate_per_s=1000, records=500)
    assert paced.next_span() == 1
    clock.now += 50_000_000
    assert paced.next_span() == 50
    assert paced.next_span() == 1
    clock.now += 300_000_000
    assert [paced.next_span() for _ in range(4)] == [100, 100, 100, 1]


def test_late_records_of_a_timed_run_are_still_sent(clock: Clock) -> None:
    paced = pacer(rate_per_s=1000, seconds=0.1)
    assert paced.next_span() == 1
    clock.now = START + 150_000_000
    assert paced.next_span() == 99
    assert paced.next_span() == 0


def test_a_run_that_cannot_keep_up_ends_after_twice_its_length(clock: Clock) -> None:
    paced = pacer(rate_per_s=1000, seconds=0.1)
    clock.now = START + 200_000_000
    assert paced.next_span() == 0


@given(st.floats(0.5, 5e6), st.integers(1, 3000))
def test_a_timed_run_has_as_many_records_as_fit(rate: float, milliseconds: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        paced = pacer(rate_per_s=rate, seconds=milliseconds / 1000, most=10**9)
        clock.now = START + int(milliseconds * 1.5e6)
        while paced.next_span():
            clock.now += 1000
        fit = math.ceil(milliseconds / 1000 * rate)
        # What is due at most until half a run after the end is handed out; nothing beyond the end is.
        assert paced.sent_records == fit


def test_seconds_end_an_unpaced_run(clock: Clock) -> None:
    paced = pacer(seconds=0.001)
    assert paced.next_span() == 100
    clock.now = START + 1_000_000
    assert paced.next_span() == 0


@pytest.mark.parametrize("early_ns", [5_000_000, SPIN_NS // 2], ids=["asleep", "spinning"])
def test_under_trio_others_run_while_it_waits(monkeypatch: pytest.MonkeyPatch, early_ns: int) -> None:
    ticks: list[int] = []
    reads = 0

    def clock_ns() -> int:
        """It is time as soon as another task has run ten times."""
        nonlocal reads
        reads += 1
        assert reads < 1000, "no other task runs"
        return START - early_ns if len(ticks) < 10 else START

    monkeypatch.setattr(pacing, "clock_ns", clock_ns)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick)
            paced = Pacer(start_ns=START, most=1, records=1)
            assert await paced.next_span_async() == 1
            assert await paced.next_span_async() == 0
            nursery.cancel_scope.cancel()

    async def tick() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            ticks.append(1)

    trio.run(main)


@pytest.mark.parametrize(("spins", "spun_ns"), [(True, SPIN_NS), (False, 0)])
def test_under_trio_it_sleeps_and_spins_as_elsewhere(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, spins: bool, spun_ns: int
) -> None:
    async def wait_until(_: Alarm, at_ns: int) -> None:
        clock.sleep((at_ns - clock.now) / 1e9)

    monkeypatch.setattr(Alarm, "wait_until", wait_until)

    async def main() -> None:
        paced = Pacer(start_ns=START, most=1, records=1, spins=spins)
        assert await paced.next_span_async() == 1

    trio.run(main)
    assert sum(clock.slept) * 1e9 == pytest.approx(5_000_000 - spun_ns, rel=0.01)
    assert START <= clock.now < START + 10_000


@given(st.integers(0, 2**62), st.floats(0.1, 1e7), st.lists(st.integers(0, 10**9), max_size=20))
def test_due_times_are_the_same_for_both_sides(start: int, rate: float, indexes: list[int]) -> None:
    many = due_ns_many(start, rate, np.array(indexes, dtype=np.uint64))
    assert many.tolist() == [due_ns(start, rate, index) for index in indexes]


def test_samples_are_a_millisecond_apart() -> None:
    sampler = Sampler()
    for index in range(1000):
        sampler.offer(index, index * 100_000)
    indexes, times = sampler.samples()
    assert len(indexes) == 100
    assert (indexes * 100_000 == times).all()
    assert np.diff(times).min() >= SAMPLE_INTERVAL_NS


@given(st.integers(0, 10**9), st.integers(1, 10**6))
def test_samples_of_a_batch_are_all_over_it(first: int, count: int) -> None:
    sampler = Sampler()
    sampler.offer_batch(first, count)
    sampler.offer_batch(first + count, count)  # less than a millisecond later
    indexes, times = sampler.samples()
    strides = np.diff([first - 1, *indexes[: min(count, 16)], first + count])
    assert strides.max() <= 1 + 2 * -(-count // 16)
    assert len(set(times.tolist())) <= 2


def test_samples_of_a_long_run_are_thinned_out_and_cover_all_of_it() -> None:
    sampler = Sampler()
    for index in range(200_000):
        sampler.offer(index, index * 1_000_000)
    indexes, _ = sampler.samples()
    assert 8_000 < len(indexes) < 1 << 15
    assert indexes[0] < 100
    assert indexes[-1] > 199_900
    assert np.diff(indexes).max() <= 16
