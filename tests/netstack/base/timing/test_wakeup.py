"""A signal wakes whoever waits, and nobody else."""

from __future__ import annotations

import trio
import trio.testing

from netstack.base.timing.wakeup import Signal


async def test_wake_reaches_all_who_wait_and_is_not_kept() -> None:
    signal = Signal()
    signal.wake()
    woken: list[int] = []

    async def wait(number: int) -> None:
        await signal.wait()
        woken.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, 1)
        nursery.start_soon(wait, 2)
        await trio.testing.wait_all_tasks_blocked()
        assert woken == []
        signal.wake()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(woken) == [1, 2]
        with trio.move_on_after(0) as scope:
            await signal.wait()
        assert scope.cancelled_caught
