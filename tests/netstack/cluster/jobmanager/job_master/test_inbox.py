"""The timers of a job wait for a checkpoint that is being stored, and the job says so."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from netstack.cluster.jobmanager.job_master.inbox import HeldFailures, JobInbox
from netstack.schedule.events import TimerDue


async def test_a_due_timer_waits_until_the_checkpoint_is_stored(autojump_clock: MockClock) -> None:
    is_storing = True
    inbox = JobInbox(HeldFailures(lambda name: None, 1.0), (), lambda: None, lambda: is_storing)
    inbox.start_timer(7, 1.0)
    assert not inbox.holds_a_timer
    with trio.move_on_after(5) as waited:
        await inbox.next()
    assert waited.cancelled_caught
    assert inbox.holds_a_timer
    is_storing = False
    event = await inbox.next()
    assert isinstance(event, TimerDue)
    assert event.timer == 7
    assert not inbox.holds_a_timer
