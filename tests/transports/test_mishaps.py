"""Losses and jitter of an impaired line: bytes come late, in order and all of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from netstack_transports._line import Line
from netstack_transports._window import FRAME_BYTES

DELAY_S = 0.01


def carried(line: Line, data: bytes) -> list[tuple[float, int]]:
    """Enters `data` from time 0 on and takes what is due; gives the times at which something came, with its bytes."""
    entered, now = 0, 0.0
    arrived, came = bytearray(), []
    space = memoryview(bytearray(len(data)))
    while not line.is_over:
        while entered < len(data) and (window := line.window()) is not None:
            count = min(len(window), len(data) - entered)
            window[:count] = data[entered : entered + count]
            line.enter(count, now)
            entered += count
            if entered == len(data):
                line.end(now)
        line.advance(now)
        assert now < line.due_at() or line.due_at() == -math.inf
        count = line.take_into([space], None)
        if count:
            arrived += space[:count]
            came.append((now, count))
        now += 0.0005
        assert now < 60
    assert arrived == data
    return came


@given(
    size=st.integers(1, 200_000),
    loss=st.sampled_from([0.0, 0.01, 0.3]),
    jitter_s=st.sampled_from([0.0, 0.005]),
    rate=st.sampled_from([None, 1e6, 1e8]),
    seed=st.integers(0, 99),
    unsent_bytes=st.none() | st.sampled_from([1, 5000, 64 * 1024]),
)
def test_what_is_lost_or_late_comes_in_order_and_never_early(
    size: int, loss: float, jitter_s: float, rate: float | None, seed: int, unsent_bytes: int | None
) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    line = Line(1 << 20, DELAY_S, rate, loss=loss, jitter_s=jitter_s, seed=seed, unsent_bytes=unsent_bytes)
    came = carried(line, data[:size])
    taken = 0
    for at, count in came:
        taken += count
        assert at >= DELAY_S + (0.0 if rate is None else taken / rate) - 1e-9
    if not loss and unsent_bytes is None:
        assert came[-1][0] <= DELAY_S + jitter_s + (0.0 if rate is None else size / rate) + 0.002


def test_a_loss_costs_a_round_trip_as_often_as_asked() -> None:
    lost = 0
    for seed in range(2000):
        line = Line(1 << 20, DELAY_S, None, loss=0.05, seed=seed)
        at = carried(line, bytes(FRAME_BYTES))[0][0]
        lost += at >= 3 * DELAY_S
        assert at < 2 * DELAY_S or at >= 3 * DELAY_S
    assert lost == pytest.approx(100, rel=0.35)
