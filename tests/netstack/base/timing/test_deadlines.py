"""Calls come at their deadlines, in their order, and costs nothing without any."""

from __future__ import annotations

import math

import pytest
import trio
import trio.testing
from trio.testing import MockClock
from trio_runs import PATIENCE_S

from netstack.base.timing.alarm import Alarm
from netstack.base.timing.deadlines import Deadlines


async def test_deadlines_are_called_in_order_each_at_its_time(autojump_clock: MockClock) -> None:
    deadlines = Deadlines()
    log: list[tuple[str, float]] = []

    def call(name: str, delay_s: float) -> None:
        deadlines.call_at(trio.current_time() + delay_s, lambda: log.append((name, trio.current_time())))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        await trio.testing.wait_all_tasks_blocked()
        call("late", 5)
        await trio.testing.wait_all_tasks_blocked()
        call("early", 1)  # before the one it sleeps for
        call("same", 1)
        call("past", -1)
        deadlines.call_at(2, lambda: call("from a callback", 0.5))
        await trio.sleep(10)
        call("after a rest", 1)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert log == [
        ("past", 0),
        ("early", 1),
        ("same", 1),
        ("from a callback", 2.5),
        ("late", 5),
        ("after a rest", 11),
    ]


async def test_an_idle_flusher_waits_without_a_deadline() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Deadlines().run)
        await trio.testing.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline > PATIENCE_S / 2, "but the test's own"
        nursery.cancel_scope.cancel()


@pytest.mark.skipif(not Alarm.IS_SUPPORTED, reason="only Linux has timers that are files")
def test_on_the_real_clock_a_timer_wakes_it_not_a_timeout_of_epoll_that_is_rounded_up_to_a_millisecond() -> None:
    async def main() -> None:
        deadlines = Deadlines()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deadlines.run)
            await trio.testing.wait_all_tasks_blocked()
            deadlines.call_at(trio.current_time() + 5, nursery.cancel_scope.cancel)
            await trio.testing.wait_all_tasks_blocked()
            assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf
            called = trio.Event()
            deadline_s = trio.current_time() + 0.000_1
            deadlines.call_at(deadline_s, called.set)
            await called.wait()
            assert trio.current_time() >= deadline_s
            nursery.cancel_scope.cancel()

    trio.run(main)
