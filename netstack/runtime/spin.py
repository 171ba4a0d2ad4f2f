"""Looking for data for a moment before parking: a wake-up through epoll costs 20 to 50 us, a look at the socket 2.

Takes: how long it may take at most, how long waits took, a function that looks. Gives: a wait that ends as soon as
there is something.

Rules:
- A process that may use one core only (its affinity) always parks: the other side could not run meanwhile.
- The average of the last waits must be below the limit, and a wait spins for a few averages at most. So an idle
  connection costs nothing, and the end of a burst little.
- Spinning must pay. There is an account: time spun with success fills it; time spun in vain, and time lost to other
  threads that wanted the core, empty it. An empty account parks the next waits, each time twice as many. So a task that
  never finds anything spins for less than a twentieth of the time.
- A task that works for a good part of the time spins for 200 us at most: a round trip of credit. What comes meanwhile
  is taken in one go later, for less. Only a task that does little but wait gains by going on at once, still awake.
- The processor is offered to other threads before each look (`sched_yield`). They want it if it comes back late, or if
  the kernel counts more than a switch every `LEAST_S_A_SWITCH`: on a busy machine a sleeping thread is woken sooner
  than a spinning one gets its next turn. Even on an idle machine a thread is late now and then: the system, or the
  host of a virtual machine, has something to do. So a twentieth of the time spun may be lost.
- Other tasks of the loop get their turn after 20 us and then every 100. If they had something to do, the task parks.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Final, final

import trio

try:
    import resource
except ImportError:  # not on Windows
    _SELF = None
else:
    _SELF = getattr(resource, "RUSAGE_THREAD", None)  # Linux's

FIRST_TURN_S: Final = 20e-6
TURN_S: Final = 100e-6
"""How long a spinning task keeps the loop, at first and then."""

BUSY_S: Final = 60e-6
"""A round of the scheduler, or a yield, that takes longer had something to do for others."""

AVERAGES: Final = 3.0
"""How many average waits one spins at most: nearly all of those that come at random are over by then."""

WEIGHT: Final = 0.25
"""Of the newest wait in the average: two long ones end the spinning, some short ones begin it."""

WORKING_LIMIT_S: Final = 0.0002
"""How long one spins at most who has work for more than a part in `WAITS_TO_WORK` of the time."""

WAITS_TO_WORK: Final = 4.0
"""Average waits so much longer than the work between them: there is little to do but wait."""

LATE_S: Final = 500e-6
"""A yield that takes longer has cost more than a wake-up, whatever came meanwhile."""

LOST_SHARE: Final = 0.05
"""Of the time spun with success may be lost to others, in yields that take longer than `BUSY_S` and bring nothing."""

LOST_S: Final = 300e-6
"""How much of it at once at most."""

VAIN_SHARE: Final = 0.1
"""Time spun in vain counts so much as if it were lost: half as much as was spun with success, and 3 ms at once."""

CHECK_S: Final = 0.01
LEAST_S_A_SWITCH: Final = 0.004
"""After so much spinning one asks how often others had the core, which may be once in so much time."""

WAITS_OFF: Final = 16
MOST_WAITS_OFF: Final = 4096
"""Waits without spinning when the account is empty, and how many they become if that goes on."""

MOST_S_OFF: Final = 0.25
"""How long they last at most: of a slow stream 4,096 would be a good while, and to try again costs a turn of theirs."""


def offer_processor() -> None:
    """Lets another thread of the system run, if one waits for this core."""
    os.sched_yield()


def switches() -> int:
    """How often this thread was taken its core, or gave it away while it had work; 0 where the system does not say."""
    return 0 if _SELF is None else resource.getrusage(_SELF).ru_nivcsw


def cores() -> int:
    """On how many cores this process may run."""
    affinity = getattr(os, "sched_getaffinity", None)
    return (os.cpu_count() or 1) if affinity is None else len(affinity(0))


@final
class Spinner:
    """How one task waits. Not shared between tasks."""

    __slots__ = (
        "_average_s",
        "_checked",
        "_clock",
        "_ended",
        "_is_alone",
        "_may_lose_s",
        "_next_off",
        "_off_until",
        "_pass_on",
        "_relax",
        "_spun_s",
        "_switches",
        "_switches_before",
        "_waits_off",
        "_work_s",
    )

    def __init__(
        self,
        *,
        clock: Callable[[], float] = perf_counter,
        relax: Callable[[], object] | None = None,
        pass_on: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint,
        cores: Callable[[], int] = cores,
        switches: Callable[[], int] = switches,
    ) -> None:
        """Begins with parking: that data comes fast has to be seen first.

        Args:
            clock: real seconds.
            relax: offers the processor to others; None is `offer_processor`.
            pass_on: gives other tasks of the loop their turn.
            cores: says on how many cores this process may run; asked once.
            switches: counts how often the calling thread was taken its core.
        """
        self._pass_on = pass_on
        self._clock = clock
        self._relax = relax or (lambda: offer_processor())  # looked up each time: a profile replaces it
        self._is_alone = cores() < 2
        self._switches = switches
        self._switches_before = -1
        self._checked = 0.0
        self._spun_s = 0.0
        self._average_s = 1.0
        self._work_s = 1.0
        self._ended = clock()
        self._may_lose_s = LOST_S
        self._waits_off = 0
        self._off_until = 0.0
        self._next_off = WAITS_OFF

    async def wait(self, limit_s: float, look: Callable[[], bool], park: Callable[[], Awaitable[None]]) -> None:
        """Returns when `look` has found something or `park` has returned; looks at once only if it spins.

        Between the last `look` and `park` nothing else runs, so what wakes `park` is not missed.

        Args:
            limit_s: longest time to spin; 0 always parks.
            look: looks, without waiting, and says whether the wait is over.
            park: waits until it may be.

        Cancellation: nothing changed.
        """
        if not limit_s or self._is_alone:
            await park()
            return
        began = self._clock()
        work_s = min(self._work_s, 4 * limit_s)
        self._work_s = work_s + (min(began - self._ended, 4 * limit_s) - work_s) * WEIGHT
        if self._average_s < self._work_s * WAITS_TO_WORK:
            limit_s = min(limit_s, WORKING_LIMIT_S)
        if self._waits_off and began < self._off_until:
            self._waits_off -= 1
            await park()
        elif self._average_s >= limit_s or not await self._spin(began, limit_s, look):
            await park()
        self._ended = self._clock()
        waited = min(self._ended - began, 4 * limit_s)
        average_s = min(self._average_s, 4 * limit_s)
        self._average_s = average_s + (waited - average_s) * WEIGHT

    async def _spin(self, began: float, limit_s: float, look: Callable[[], bool]) -> bool:
        """Returns whether the wait is over."""
        clock, relax = self._clock, self._relax
        now = began
        until = began + min(limit_s, AVERAGES * self._average_s + FIRST_TURN_S)
        turn = began + FIRST_TURN_S
        while True:
            relax()
            yielded = clock()
            has_come = look()
            late_s = yielded - now
            if late_s > BUSY_S and not has_come:
                self._may_lose_s -= late_s
            if late_s > LATE_S or self._may_lose_s < 0:
                self._leave_off(yielded)
                return has_come
            now = clock()
            if has_come or now >= until:
                self._settle(now - began, now, has_come)
                return has_come
            if now >= turn:
                await self._pass_on()
                after = clock()
                has_come = look()
                if has_come or after - now > BUSY_S:
                    self._settle(now - began, after, has_come)
                    return has_come
                now = clock()
                turn = now + TURN_S

    def _settle(self, spun_s: float, now: float, has_come: bool) -> None:
        """Enters into the account what one spin brought."""
        if has_come:
            self._may_lose_s = min(self._may_lose_s + spun_s * LOST_SHARE, LOST_S)
            self._next_off = max(self._next_off - 1, WAITS_OFF)
        else:
            self._may_lose_s -= spun_s * VAIN_SHARE
        self._spun_s += spun_s
        if self._switches_before < 0 or self._spun_s >= CHECK_S:
            count, before = self._switches(), self._switches_before
            if before >= 0 and (count - before) * LEAST_S_A_SWITCH > now - self._checked:
                self._may_lose_s = -1.0
            self._switches_before = count
            self._checked = now
            self._spun_s = 0.0
        if self._may_lose_s < 0:
            self._leave_off(now)

    def _leave_off(self, now: float) -> None:
        """The next waits park, each time twice as many."""
        self._may_lose_s = max(0.0, self._may_lose_s)
        self._waits_off = self._next_off
        self._off_until = now + MOST_S_OFF
        self._next_off = min(2 * self._next_off, MOST_WAITS_OFF)
        self._switches_before = -1
