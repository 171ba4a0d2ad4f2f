"""The events for the scheduler of one job, in the order in which it may handle them.

Takes: events, timers, failures that may be another's fault, signs of life of TaskManagers. Gives: the next event, when
it is due; roots before what follows from them.

A TaskManager that dies takes tasks with it, and the consumers of those often say so before its death is noticed. Were
they told at once, the restart strategy would count two failures, and the tasks would be sent to a dead host. So a
secondary failure is held (`Blame`) until every TaskManager of the job has been heard since, or is lost, or the time is
up. After a root failure those it has caused find their tasks canceled, and count for nothing.

Rules: events are handed over one by one: what has happened, as it came, then the next piece of cut work, timers last.
So after a long step no timeout is looked at before what came meanwhile. `Blame` waits for nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, final

import trio

from ..schedule import events
from ..schedule.events import Event, Proceed, TaskFailed, Tick, TimerDue


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


PATIENCE_S: Final = 12.0
"""Longer than TaskManagers may be silent: by then those that are dead have been declared so."""

LEAST_S: Final = 0.1
"""A TaskManager is alive when one of its slots is not: it takes a moment to say so."""


@final
@dataclass(frozen=True, slots=True)
class _Held:
    failure: TaskFailed
    since_s: float


@final
class Blame:
    """The failures of one job that wait for a better explanation.

    Args:
        heard_s: when a TaskManager was last heard, by name; None of one that is gone.
        patience_s: how long they wait at most.
    """

    def __init__(self, heard_s: Callable[[str], float | None], patience_s: float = PATIENCE_S) -> None:
        self._heard_s = heard_s
        self._patience_s = patience_s
        self._held: list[_Held] = []

    def hold(self, failure: TaskFailed, now_s: float) -> None:
        """A failure whose cause may lie with somebody else."""
        self._held.append(_Held(failure, now_s))

    def __len__(self) -> int:
        return len(self._held)

    def release(self, taskmanagers: Iterable[str], now_s: float) -> list[TaskFailed]:
        """Failures that the scheduler may handle now, in the order in which they came.

        Args:
            taskmanagers: those that the job uses.
            now_s: the time.
        """
        if not self._held:
            return []
        times_s = [when for name in taskmanagers if (when := self._heard_s(name)) is not None]
        quietest_s = min(times_s, default=now_s)
        ready = [
            held.failure
            for held in self._held
            if (quietest_s > held.since_s and now_s - held.since_s >= LEAST_S)
            or now_s - held.since_s >= self._patience_s
            or not times_s
        ]
        self._held = [held for held in self._held if not any(held.failure is failure for failure in ready)]
        return ready

    def release_all(self) -> list[TaskFailed]:
        """What was held, since a root has been found."""
        held, self._held = self._held, []
        return [each.failure for each in held]

    def next_deadline_s(self) -> float | None:
        """When some will have waited long enough."""
        return min((held.since_s + self._patience_s for held in self._held), default=None)


_LISTEN_S: Final = 0.02
"""How often held failures are looked at."""

_TICK_S: Final = 0.01
"""The scheduler hears of the clock at most so often: a deadline may pass without anything that could be done."""


@final
class JobInbox:
    """The events of one job.

    Args:
        blame: holds failures.
        taskmanagers: names of those that the job uses; looked at whenever a failure is held.
        next_deadline_s: when the scheduler wants to hear of the time; None: not for now.
    """

    def __init__(
        self, blame: Blame, taskmanagers: Collection[str], next_deadline_s: Callable[[], float | None]
    ) -> None:
        self._blame = blame
        self._taskmanagers = taskmanagers
        self._next_deadline_s = next_deadline_s
        self._inbox = Inbox()
        self._timers: list[tuple[float, int]] = []
        self._ticked_s = -math.inf
        self._wake = trio.Event()

    def post(self, event: events.Event) -> None:
        """Adds an event for the scheduler."""
        self._inbox.post(event)
        self._wake.set()

    def start_timer(self, timer: int, delay_s: float) -> None:
        """Adds an event for the scheduler when this timer is due."""
        heappush(self._timers, (trio.current_time() + delay_s, timer))

    def hold(self, failure: events.TaskFailed) -> None:
        """Keeps a failure for the scheduler, unless a better explanation comes first."""
        self._blame.hold(failure, trio.current_time())
        self._wake.set()

    def post_held(self) -> None:
        """A root cause is known: what follows from it may come behind it."""
        for failure in self._blame.release_all():
            self.post(failure)

    async def next(self) -> events.Event:
        """The next event; its time is when it was posted, or none.

        Cancellation: nothing is lost.
        """
        while True:
            self._post_due()
            event = self._inbox.take()
            if event is not None:
                return event
            await self._sleep()

    def _post_due(self) -> None:
        """What the clock says."""
        now_s = trio.current_time()
        while self._timers and self._timers[0][0] <= now_s:
            self.post(events.TimerDue(now_s, heappop(self._timers)[1]))
        for failure in self._blame.release(self._taskmanagers, now_s):
            self.post(failure)
        deadline_s = self._next_deadline_s()
        if deadline_s is not None and max(deadline_s, self._ticked_s + _TICK_S) <= now_s:
            self._ticked_s = now_s
            self.post(events.Tick(now_s))

    async def _sleep(self) -> None:
        """Until something is posted, or the next deadline."""
        self._wake = trio.Event()
        tick_s = self._next_deadline_s()
        deadlines = [
            None if tick_s is None else max(tick_s, self._ticked_s + _TICK_S),
            self._blame.next_deadline_s(),
        ]
        if self._timers:
            deadlines.append(self._timers[0][0])
        if len(self._blame):
            deadlines.append(trio.current_time() + _LISTEN_S)
        with trio.move_on_at(min((each for each in deadlines if each is not None), default=math.inf)):
            await self._wake.wait()
