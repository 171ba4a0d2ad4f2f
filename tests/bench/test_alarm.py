"""A timer that wakes a task at its time, never before, and is usable after a cancellation."""

from __future__ import annotations

import os
import time
from pathlib import Path

import trio

from netstack.bench.alarm import Alarm


async def test_it_wakes_not_before_its_time_and_at_once_after_it() -> None:
    alarm = Alarm()
    for wait_ns in (300_000, 20_000, 0, -5_000_000):
        at_ns = time.monotonic_ns() + wait_ns
        await alarm.wait_until(at_ns)
        assert time.monotonic_ns() >= at_ns
    await alarm.wait_until(0)
    alarm.close()
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
