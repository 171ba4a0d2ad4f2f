"""WaitMeter says the same as somebody who remembers every wait."""

from __future__ import annotations

from hypothesis import given, strategies as st

from netstack.base.timing.waits import SPAN_S, SPANS, WaitMeter, WaitStatistics

EIGHTHS = 8  # times are multiples of 1/8 s, so that sums are exact


class Naive:
    """Remembers every wait."""

    def __init__(self, now: float) -> None:
        self.made = now
        self.waits: list[tuple[float, float]] = []
        self.began = 0.0
        self.waiters = 0

    def begin(self, now: float) -> None:
        if not self.waiters:
            self.began = now
        self.waiters += 1

    def end(self, now: float) -> None:
        self.waiters -= 1
        if not self.waiters:
            self.waits.append((self.began, now))

    def statistics(self, now: float) -> WaitStatistics:
        waits = self.waits + ([(self.began, now)] if self.waiters else [])
        since = max(self.made, (now // SPAN_S - SPANS + 1) * SPAN_S)
        recent = sum(max(0.0, end - max(begun, since)) for begun, end in waits)
        return WaitStatistics(
            sum(end - begun for begun, end in waits),
            1000.0 * recent / (now - since) if now > since else 0.0,
            max((end - begun for begun, end in waits), default=0.0),
        )


steps = st.integers(0, 8) | st.integers(0, 60 * EIGHTHS) | st.integers(0, 200 * EIGHTHS)


@given(st.integers(-1000, 10**9), st.lists(st.tuples(steps, st.sampled_from(["begin", "end", "read"])), max_size=60))
def test_a_meter_agrees_with_a_list_of_waits(made: int, orders: list[tuple[int, str]]) -> None:
    now = made / EIGHTHS
    meter, naive = WaitMeter(now), Naive(now)
    for step, order in orders:
        now += step / EIGHTHS
        if order == "begin":
            meter.begin(now)
            naive.begin(now)
        elif order == "end" and naive.waiters:
            meter.end(now)
            naive.end(now)
        elif order == "read":
            assert meter.statistics(now) == naive.statistics(now)
    assert meter.statistics(now) == naive.statistics(now)
    later = now + 1000
    assert meter.statistics(later) == naive.statistics(later)


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0, 30)), max_size=40), st.floats(0, 1e6))
def test_a_share_is_one(waits: list[tuple[float, float]], made: float) -> None:
    now = made
    meter = WaitMeter(now)
    before = 0.0
    for pause, wait in waits:
        now += pause
        meter.begin(now)
        now += wait
        meter.end(now)
        actual = meter.statistics(now)
        assert 0.0 <= actual.ms_per_s <= 1000.0
        assert before <= actual.total_s <= now - made + 1e-6
        assert 0.0 <= actual.longest_s <= actual.total_s + 1e-6
        before = actual.total_s
