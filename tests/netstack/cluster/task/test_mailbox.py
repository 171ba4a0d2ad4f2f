"""What a task is told while it waits, or works."""

from __future__ import annotations

import trio
import trio.testing
from trio.testing import MockClock

from netstack.cluster.task.mailbox import Mailbox


async def test_what_was_posted_runs_once_in_order_when_the_task_looks(autojump_clock: MockClock) -> None:
    mailbox = Mailbox()
    seen: list[str] = []
    mailbox.post(lambda: seen.append("a"))
    mailbox.post(lambda: (seen.append("b"), mailbox.post(lambda: seen.append("c")))[0])
    assert mailbox.is_urgent
    await mailbox.wait()  # not at all
    assert seen == []
    mailbox.open()
    assert seen == ["a", "b"]
    assert mailbox.is_urgent  # something was posted meanwhile
    mailbox.open()
    assert seen == ["a", "b", "c"]
    assert not mailbox.is_urgent


async def test_waking_is_not_urgent_and_an_alert_is(autojump_clock: MockClock) -> None:
    mailbox = Mailbox()
    for notify, is_urgent in ((mailbox.wake, False), (mailbox.alert, True)):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mailbox.wait)
            await trio.testing.wait_all_tasks_blocked()
            notify()
        assert mailbox.is_urgent is is_urgent
        mailbox.open()


async def test_reading_is_cancelled_by_what_is_urgent_only(autojump_clock: MockClock) -> None:
    mailbox = Mailbox()

    async def read() -> int:
        await trio.sleep(10)
        return 5

    assert await mailbox.unless_urgent(read) == (True, 5)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def notify() -> None:
            await trio.sleep(1)
            mailbox.wake()
            await trio.sleep(1)
            mailbox.post(lambda: None)

        began = trio.current_time()
        assert await mailbox.unless_urgent(read) == (False, None)
        assert trio.current_time() - began == 2
    mailbox.open()
    mailbox.alert()
    assert await mailbox.unless_urgent(read) == (True, 5)  # it was urgent before; the task looks first


async def test_what_is_posted_while_a_source_reads_runs_at_once_and_is_urgent_behind_it(
    autojump_clock: MockClock,
) -> None:
    mailbox = Mailbox()
    seen: list[float] = []

    async def read() -> int:
        await trio.sleep(10)
        return 5

    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def notify() -> None:
            await trio.sleep(1)
            mailbox.post(lambda: seen.append(trio.current_time() - began))

        began = trio.current_time()
        assert await mailbox.serving(read) == 5
    assert (seen, trio.current_time() - began, mailbox.is_urgent) == ([1], 10, True)
    mailbox.post(lambda: seen.append(-1))
    assert seen == [1]  # the read is over: it waits again
