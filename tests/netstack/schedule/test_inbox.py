"""Events in the order in which they are safe to hand over."""

from __future__ import annotations

from netstack.cluster.jobmanager.job_master.inbox import Inbox
from netstack.schedule.events import CancelJob, Event, Proceed, Tick, TimerDue


def test_the_inbox_keeps_the_order_of_its_kinds() -> None:
    inbox = Inbox()
    posted: list[Event] = [
        TimerDue(1),
        Tick(),
        Proceed(),
        CancelJob(),
    ]
    for event in posted:
        inbox.post(event)
    assert len(inbox) == 4
    taken = [inbox.take() for _ in range(4)]
    assert taken == [posted[3], posted[2], posted[0], posted[1]]
    assert inbox.take() is None
