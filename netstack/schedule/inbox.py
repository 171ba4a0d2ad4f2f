"""The events that wait for a scheduler, in the order in which they are safe to hand over.

Takes: events as they come. Gives: the next one.

Rules: first what has happened, as it came, then the next piece of cut work, timers last. So after a long step what came
meanwhile is heard before any timeout is looked at. The order among events of one kind is kept.
"""

from __future__ import annotations

from collections import deque
from typing import final

from .events import Event, Proceed, Tick, TimerDue


@final
class Inbox:
    """A queue of events."""

    def __init__(self) -> None:
        self._others: deque[Event] = deque()
        self._work: deque[Event] = deque()
        self._timers: deque[Event] = deque()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._others) + len(self._work) + len(self._timers)

    def post(self, event: Event) -> None:
        """Adds one."""
        if isinstance(event, Proceed):
            self._work.append(event)
        elif isinstance(event, Tick | TimerDue):
            self._timers.append(event)
        else:
            self._others.append(event)

    def take(self) -> Event | None:
        """Removes the next one; None when nothing waits."""
        for queue in (self._others, self._work, self._timers):
            if queue:
                return queue.popleft()
        return None
