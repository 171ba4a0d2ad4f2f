"""The event queue of one job's scheduler, which orders root failures before their consequences.

Takes: events, timers, failures that may have a remote cause, heartbeats of TaskManagers. Gives: the next event when it
is due.

When a TaskManager dies, consumers of its tasks often report failures before its death is noticed. If the scheduler
handled them at once, the restart strategy would count two failures, and tasks would be sent to a dead host. So
`HeldFailures` holds a secondary failure until every TaskManager of the job has sent something since, is lost, or the
patience ends. After the root failure, the tasks of its secondary failures are already canceled, so these do not count.

Rules: events are handled one by one: reported events in order of arrival, then `Proceed`, timers last. So after a long
step no timeout fires before the reports that arrived meanwhile.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, final

import trio

from ....schedule import events
from ....schedule.events import Event, Proceed, TaskFailed, Tick, TimerDue
from ..peer_budget import Charge


@final
class Inbox:
    """A queue of events."""

    def __init__(self) -> None:
        self._others: deque[tuple[Event, Charge | None]] = deque()
        self._work: deque[Event] = deque()
        self._timers: deque[Event] = deque()

    def __len__(self) -> int:
        return len(self._others) + len(self._work) + len(self._timers)

    def post(self, event: Event, charge: Charge | None = None) -> None:
        """Adds an event; `charge` is the message that caused it. Raises RemoteProtocolError as `Charge.take`."""
        if isinstance(event, Proceed):
            self._work.append(event)
        elif isinstance(event, Tick | TimerDue):
            self._timers.append(event)
        else:
            self._others.append((event, charge))
            if charge is not None:
                charge.take()

    def take(self) -> Event | None:
        """Removes and returns the next event; None if the queue is empty."""
        if self._others:
            event, charge = self._others.popleft()
            if charge is not None:
                charge.give_back()
            return event
        for queue in (self._work, self._timers):
            if queue:
                return queue.popleft()
        return None


PATIENCE_S: Final = 12.0
"""How long a failure is held; longer than the heartbeat timeout, so dead TaskManagers are declared lost by then."""

LEAST_S: Final = 0.1
"""Minimum time a failure is held: a live TaskManager needs a moment to report the death of a slot."""


@final
@dataclass(frozen=True, slots=True)
class _Held:
    failure: TaskFailed
    since_s: float


@final
class HeldFailures:
    """The secondary failures of one job that are held until their root cause is known.

    Args:
        heard_s: returns when a TaskManager was last heard; None if it is lost.
    """

    def __init__(self, heard_s: Callable[[str], float | None], patience_s: float = PATIENCE_S) -> None:
        self._heard_s = heard_s
        self._patience_s = patience_s
        self._held: dict[tuple[int, int], _Held] = {}  # by subtask and attempt

    def hold(self, failure: TaskFailed, now_s: float) -> None:
        """Holds a failure that may have a remote cause; of one attempt only the first."""
        self._held.setdefault((failure.subtask, failure.attempt), _Held(failure, now_s))

    def __len__(self) -> int:
        return len(self._held)

    def release(self, taskmanagers: Iterable[str], now_s: float) -> list[TaskFailed]:
        """Releases the failures that the scheduler may handle now, in order of arrival.

        Args:
            taskmanagers: the TaskManagers of the job.
            now_s: current time.
        """
        if not self._held:
            return []
        times_s = [when for name in taskmanagers if (when := self._heard_s(name)) is not None]
        quietest_s = min(times_s, default=now_s)
        ready = [
            key
            for key, held in self._held.items()
            if (quietest_s > held.since_s and now_s - held.since_s >= LEAST_S)
            or now_s - held.since_s >= self._patience_s
            or not times_s
        ]
        return [self._held.pop(key).failure for key in ready]

    def release_all(self) -> list[TaskFailed]:
        """Releases all failures, because a root cause is known."""
        held, self._held = self._held, {}
        return [each.failure for each in held.values()]

    def next_deadline_s(self) -> float | None:
        """Returns when the patience of the oldest failure ends."""
        return min((held.since_s + self._patience_s for held in self._held.values()), default=None)


_LISTEN_S: Final = 0.02
"""Interval at which held failures and held timers are checked."""

_TICK_S: Final = 0.01
"""Minimum interval of `Tick` events: a deadline may pass without any possible action."""


@final
class JobInbox:
    """The event queue of one job, with timers and held failures.

    Args:
        held: holds secondary failures.
        taskmanagers: names of the job's TaskManagers; read whenever a failure is held.
        next_deadline_s: returns when the scheduler needs a `Tick`; None: not now.
        is_storing: returns whether a checkpoint is being stored. No timer is due meanwhile: tasks that restarted from
            an older checkpoint would prepare commits again that the newer one contains.

    Attributes:
        charge: the TaskManager's message that is being handled; events that are posted meanwhile are charged to it.
    """

    def __init__(
        self,
        held: HeldFailures,
        taskmanagers: Collection[str],
        next_deadline_s: Callable[[], float | None],
        is_storing: Callable[[], bool],
    ) -> None:
        self.charge: Charge | None = None
        self._is_storing = is_storing
        self._held = held
        self._taskmanagers = taskmanagers
        self._next_deadline_s = next_deadline_s
        self._inbox = Inbox()
        self._timers: list[tuple[float, int]] = []
        self._ticked_s = -math.inf
        self._wake = trio.Event()

    def post(self, event: events.Event) -> None:
        """Adds an event. Raises RemoteProtocolError as `Charge.take`."""
        self._wake.set()
        self._inbox.post(event, self.charge)

    def start_timer(self, timer: int, delay_s: float) -> None:
        """Adds a `TimerDue` event after a delay."""
        heappush(self._timers, (trio.current_time() + delay_s, timer))

    def hold(self, failure: events.TaskFailed) -> None:
        """Holds a secondary failure until its root cause is known or the patience ends."""
        self._held.hold(failure, trio.current_time())
        self._wake.set()

    def post_held(self) -> None:
        """Queues all held failures behind the root cause that was just posted."""
        for failure in self._held.release_all():
            self.post(failure)

    async def next(self) -> events.Event:
        """Waits for the next event. A checkpoint. Cancellation: loses nothing."""
        self._post_due()
        if self._inbox:
            await trio.lowlevel.checkpoint()
        while (event := self._inbox.take()) is None:
            await self._sleep()
            self._post_due()
        return event

    @property
    def holds_a_timer(self) -> bool:
        """Whether a timer is due and waits until a checkpoint is stored."""
        return bool(self._timers) and self._timers[0][0] <= trio.current_time() and self._is_storing()

    def _post_due(self) -> None:
        """Queues the events that are due by the clock."""
        now_s = trio.current_time()
        while self._timers and self._timers[0][0] <= now_s and not self._is_storing():
            self.post(events.TimerDue(heappop(self._timers)[1]))
        for failure in self._held.release(self._taskmanagers, now_s):
            self.post(failure)
        deadline_s = self._next_deadline_s()
        if deadline_s is not None and max(deadline_s, self._ticked_s + _TICK_S) <= now_s:
            self._ticked_s = now_s
            self.post(events.Tick())

    async def _sleep(self) -> None:
        """Waits for a posted event or the next deadline."""
        self._wake = trio.Event()
        tick_s = self._next_deadline_s()
        deadlines = [
            None if tick_s is None else max(tick_s, self._ticked_s + _TICK_S),
            self._held.next_deadline_s(),
        ]
        if self._timers:
            deadlines.append(self._timers[0][0])
            if self._is_storing():
                deadlines[-1] = max(self._timers[0][0], trio.current_time() + _LISTEN_S)
        if len(self._held):
            deadlines.append(trio.current_time() + _LISTEN_S)
        with trio.move_on_at(min((each for each in deadlines if each is not None), default=math.inf)):
            await self._wake.wait()
