"""Fair shares of the event loop: limits the work that control frames of peers cause.

Takes: how long a connection's reader has worked. Gives: the moment from which it may continue.

A trio task that never parks gets one turn in each round of the scheduler, however long the turn is. So a hundred peers
that send without end would get a hundred turns for one turn of an honest peer. Here all such readers share one queue
per event loop. The reader at its head lets other tasks work for `OTHERS_SHARE` times as long as it has worked, unless
they have nothing to do.

Rules: nobody sleeps, so an idle loop loses no time; the queue is first in, first out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, final

import trio

TURN_S: Final = 0.000_25
"""How long a reader works before it joins the queue."""

FREE_BYTES_PER_S: Final = 256e6
"""Data that arrives at this rate or faster is not charged."""

FREE_SHARE: Final = 0.02
"""The share of the time that each connection may use without charge, for heartbeats and occasional records."""

OTHERS_SHARE: Final = 3.0
"""Queued readers together get at most a quarter of the loop while other tasks have work."""

IDLE_ROUND_S: Final = 0.000_06
"""In a scheduler round that takes no longer than this, other tasks had nothing to do."""

IDLE_ROUNDS: Final = 3
"""After this many such rounds in a row the loop counts as idle; tasks with little work per round get this many."""


@final
class FairShare:
    """The queue of one event loop, in which readers wait for their share.

    Args:
        clock: returns seconds; measures the work of other tasks.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._line = trio.StrictFIFOLock()

    async def pass_on(self, worked_s: float) -> None:
        """Returns when other tasks have had their share after `worked_s` of work, or had nothing to do. A checkpoint.

        Cancellation: the reader leaves the queue.
        """
        async with self._line:
            owed_s = worked_s * OTHERS_SHARE
            idle = 0
            while owed_s > 0 and idle < IDLE_ROUNDS:
                start = self.clock()
                await trio.lowlevel.checkpoint()
                round_s = self.clock() - start
                owed_s -= round_s
                idle = idle + 1 if round_s < IDLE_ROUND_S else 0


@final
class WorkAccount:
    """The work that one connection has caused beyond the data that it moved.

    `1 / FREE_BYTES_PER_S` of work per byte, and `FREE_SHARE` of the time, are free. So a peer that sends credit for the
    data it reads never has to queue.
    """

    __slots__ = ("_bytes", "_ended_s", "_owed_s")

    def __init__(self, now_s: float) -> None:
        self._bytes = 0
        self._ended_s = now_s
        self._owed_s = 0.0

    def owes(self, start_s: float, end_s: float, moved_bytes: int) -> bool:
        """Records a turn. Returns whether the reader has to queue."""
        free_s = (start_s - self._ended_s) * FREE_SHARE + (moved_bytes - self._bytes) / FREE_BYTES_PER_S
        self._owed_s = max(0.0, self._owed_s + end_s - start_s - free_s)
        self._bytes = moved_bytes
        self._ended_s = end_s
        return self._owed_s >= TURN_S

    def settle(self) -> float:
        """Returns the owed seconds and resets them to 0."""
        owed_s, self._owed_s = self._owed_s, 0.0
        return owed_s


@final
class PeerShare:
    """The account of one control connection in its event loop's queue (a `cluster.control.frames.LoopShare`)."""

    def __init__(self) -> None:
        self._share = fair_share()
        self.clock = self._share.clock
        self._account = WorkAccount(self.clock())
        self._owes = False

    def worked(self, began_s: float, moved_bytes: int) -> None:
        """Records work, as `LoopShare.worked` documents."""
        self._owes |= self._account.owes(began_s, self.clock(), moved_bytes)

    async def wait_turn(self) -> None:
        """Waits for the next turn, as `LoopShare.wait_turn` documents. A checkpoint only if work is owed."""
        if self._owes:
            self._owes = False
            await self._share.pass_on(self._account.settle())


_FAIR_SHARE: Final[trio.lowlevel.RunVar[FairShare]] = trio.lowlevel.RunVar("netstack_fair_share")


def measure_with(clock: Callable[[], float]) -> None:
    """Makes this event loop measure work by another clock, for a simulation. To be called before anything is opened."""
    _FAIR_SHARE.set(FairShare(clock))


def fair_share() -> FairShare:
    """The queue of this event loop."""
    try:
        return _FAIR_SHARE.get()
    except LookupError:
        made = FairShare()
        _FAIR_SHARE.set(made)
        return made
