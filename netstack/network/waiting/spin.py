"""Polls for a moment before parking: a wake-up through epoll costs 20 to 50 us, polling a socket 2.

Takes: the longest time to poll, the durations of earlier waits, a function that polls. Gives: a wait that ends as soon
as there is data.

Rules:
- A process that may use only one core (its affinity) always parks: the other side could not run meanwhile.
- The average of the recent waits must be below the limit, and a wait polls for a few averages at most. So an idle
  connection costs nothing, and the end of a burst little.
- Polling must pay off. It has a budget: successful polling adds to it; unsuccessful polling, and time lost to other
  threads that needed the core, subtract from it. Without budget the next waits park, twice as many each time. So a task
  that never finds data polls for less than a twentieth of the time.
- A task that works for a large part of the time polls for at most 200 us: a round trip of credit. It reads later data
  in one go, for less. Only a task that mostly waits gains by continuing at once, still awake.
- Before each poll the processor is offered to other threads (`sched_yield`). They need it if the call returns late, or
  if the kernel counts more than one context switch every `LEAST_S_A_SWITCH`: on a busy machine a sleeping thread is
  woken sooner than a polling one gets its next turn. Even on an idle machine a thread is sometimes late, because of the
  system or the host of a virtual machine. So a twentieth of the polling time may be lost.
- Other tasks of the loop run after 20 us, and then every 100. If they had work, the task parks.
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
"""How long a polling task keeps the loop, at first and later."""

BUSY_S: Final = 60e-6
"""In a scheduler round, or a yield, that takes longer, others had work."""

AVERAGES: Final = 3.0
"""How many average waits a task polls at most: nearly all waits of random arrivals are over by then."""

WEIGHT: Final = 0.25
"""The weight of the newest wait in the average: two long ones end the polling, a few short ones start it."""

WORKING_LIMIT_S: Final = 0.0002
"""How long a task polls at most if it works for more than one part in `WAITS_TO_WORK` of the time."""

WAITS_TO_WORK: Final = 4.0
"""If the average wait is this many times as long as the work between waits, the task mostly waits."""

LATE_S: Final = 500e-6
"""A yield that takes longer has cost more than a wake-up, even if data arrived."""

LOST_SHARE: Final = 0.05
"""The share of the successful polling time that may be lost to others, in yields longer than `BUSY_S` without data."""

LOST_S: Final = 300e-6
"""The most of it at once."""

VAIN_SHARE: Final = 0.1
"""The share of unsuccessful polling time that counts as lost: half of the successful time, and 3 ms at once."""

CHECK_S: Final = 0.01
LEAST_S_A_SWITCH: Final = 0.004
"""After `CHECK_S` of polling, context switches are counted; one in `LEAST_S_A_SWITCH` is allowed."""

WAITS_OFF: Final = 16
MOST_WAITS_OFF: Final = 4096
"""Waits without polling when the budget is empty, and the most after repeated doubling."""

MOST_S_OFF: Final = 0.25
"""The most time without polling: 4,096 waits of a slow stream would take long, and a new try costs one of its turns."""


def offer_processor() -> None:
    """Lets another thread run, if one waits for this core."""
    os.sched_yield()


def switches() -> int:
    """How often this thread lost its core while it had work; 0 if the system does not count this."""
    return 0 if _SELF is None else resource.getrusage(_SELF).ru_nivcsw


def cores() -> int:
    """The number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return (os.cpu_count() or 1) if affinity is None else len(affinity(0))


@final
class Spinner:
    """The polling state of one task; not shared between tasks."""

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
        """Starts with parking, until waits prove to be short.

        Args:
            clock: returns real seconds.
            relax: offers the processor to others; None means `offer_processor`.
            pass_on: lets other tasks of the loop run.
            cores: returns the number of usable cores; called once.
            switches: counts the involuntary context switches of the calling thread.
        """
        self._pass_on = pass_on
        self._clock = clock
        self._relax = relax or (lambda: offer_processor())  # looked up each time, because profiles replace it
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
        """Returns when `look` has found data or `park` has returned; calls `look` only if it polls.

        Nothing else runs between the last `look` and `park`, so no wake-up of `park` is missed.

        Args:
            limit_s: the longest time to poll; 0 always parks.
            look: polls without waiting, and returns whether the wait is over.
            park: waits until the wait may be over.

        Cancellation: no effect.
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
        """Updates the budget after polling."""
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
        """Makes the next waits park, twice as many each time."""
        self._may_lose_s = max(0.0, self._may_lose_s)
        self._waits_off = self._next_off
        self._off_until = now + MOST_S_OFF
        self._next_off = min(2 * self._next_off, MOST_WAITS_OFF)
        self._switches_before = -1
