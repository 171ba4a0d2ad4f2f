from __future__ import annotations

import itertools

import pytest
import trio
import trio.testing
from trio_runs import run_virtual

from netstack_bench.pacing import Throttle


def clock_ns() -> int:
    return int(trio.current_time() * 1e9)


def run(rate_per_s: float, turns: int, records: int, pauses: dict[int, float] | None = None) -> list[float]:
    """When each turn ended, in seconds since the start; before some of them the consumer is busy."""

    async def consume() -> list[float]:
        throttle = Throttle(rate_per_s, now_ns=clock_ns)
        began = trio.current_time()
        ended = []
        for turn in range(turns):
            await trio.sleep((pauses or {}).get(turn, 0))
            await throttle.turn(records)
            ended.append(trio.current_time() - began)
        return ended

    return run_virtual(consume)


def test_turns_are_spread_evenly() -> None:
    ended = run(10, 5, 1)
    assert [later - earlier for earlier, later in itertools.pairwise(ended)] == pytest.approx([0.1] * 4)


def test_the_rate_is_kept_whatever_the_size_of_a_turn() -> None:
    for records in (1, 7, 500):
        ended = run(1000, 500 // records, records)
        assert ended[-1] == pytest.approx(500 // records * records / 1000, abs=0.03)


def test_a_consumer_that_fell_behind_does_not_catch_up() -> None:
    ended = run(100, 101, 1, {50: 5.0})
    assert ended[-1] == pytest.approx(1.0 + 5.0, abs=0.03)


def test_a_late_wake_up_is_made_up_for() -> None:
    ended = run(1000, 1001, 1, dict.fromkeys(range(0, 1000, 10), 0.002))  # 2 ms in every 10 ms are not its own fault
    assert ended[-1] == pytest.approx(1.0, abs=0.03)


def test_arrays_are_taken_in_parts_of_10_ms() -> None:
    assert Throttle(1e6).step_records == 10_000
    assert Throttle(3).step_records == 1
