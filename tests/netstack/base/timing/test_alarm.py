"""A timer that wakes a task at its time, never before, and is usable after a cancellation."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import trio
import trio.testing
from trio.testing import MockClock

from netstack.base.timing.alarm import Alarm


async def test_it_wakes_not_before_its_time_and_at_once_after_it() -> None:
    alarm = Alarm()
    for wait_ns in (300_000, 20_000, 0, -5_000_000):
        at_ns = time.monotonic_ns() + wait_ns
        await alarm.wait_until(at_ns)
        assert time.monotonic_ns() >= at_ns
    await alarm.wait_until(0)
    alarm.close()
    alarm.close()


async def test_a_time_that_has_passed_for_ever_ends_it_at_once() -> None:
    """A line whose bytes are due before any time asks for -infinity."""
    alarm = Alarm()
    alarm.set(-math.inf)
    await alarm.wait()
    alarm.close()


def test_a_cancelled_wait_changes_nothing_and_no_file_is_left() -> None:
    async def main() -> None:
        alarm = Alarm()
        with trio.move_on_after(0):
            await alarm.wait_until(time.monotonic_ns() + 10**12)
        await alarm.wait_until(time.monotonic_ns() + 1000)

    before = len(list(Path("/proc/self/fd").iterdir())) if os.path.exists("/proc/self/fd") else 0
    trio.run(main)
    after = len(list(Path("/proc/self/fd").iterdir())) if os.path.exists("/proc/self/fd") else 0
    assert after == before


async def test_it_can_be_set_anew_while_a_task_waits(autojump_clock: MockClock) -> None:
    alarm = Alarm()
    alarm.set(math.inf)
    with trio.move_on_after(1) as forever:
        await alarm.wait()
    assert forever.cancelled_caught, "it is not set"
    alarm.set(10**6)
    woken = False

    async def wait() -> None:
        nonlocal woken
        await alarm.wait()
        woken = True

    with trio.move_on_after(3600):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            alarm.set(-1)
    assert woken
    alarm.set(math.inf)  # what came is forgotten
    with trio.move_on_after(1) as forever:
        await alarm.wait()
    assert forever.cancelled_caught
    alarm.close()
