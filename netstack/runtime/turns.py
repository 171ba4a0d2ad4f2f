"""Whose turn it is to use the one thread: what peers make us do in control frames leaves most of it to everybody else.

Takes: how long a connection's reader has worked. Gives: the moment from which it may go on.

A task of trio that never parks gets one turn in each round of the scheduler, whatever the turn costs. So a hundred
peers that send without end get a hundred turns while an honest one gets one. Here those who would go on and on stand in
one line, the same for all connections of an event loop, and whoever is at its head lets others work for `OTHERS_SHARE`
times as long as it has worked itself, unless there is nothing to do for others.

Rules: nobody sleeps, so nothing is lost while a loop is idle; the first in line is the first to go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, final

import trio

TURN_S: Final = 0.000_25
"""How long a reader works before it stands in line."""

FREE_BYTES_PER_S: Final = 256e6
"""Data that moves at this rate or more is no burden."""

FREE_SHARE: Final = 0.02
"""Of the time each connection may use for nothing: heartbeats, a few records now and then."""

OTHERS_SHARE: Final = 3.0
"""All who stand in line get at most a quarter of the loop while others have something to do."""

IDLE_ROUND_S: Final = 0.000_06
"""A round of the scheduler that takes no longer had nothing to do for others."""

IDLE_ROUNDS: Final = 3
"""So many of them in a row, and the loop is idle: tasks that do little in each round get so many of them."""


@final
class Turns:
    """The line of one event loop.

    Args:
        clock: seconds; what others do is measured with it.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._line = trio.StrictFIFOLock()

    async def pass_on(self, worked_s: float) -> None:
        """Returns when others have had their share after `worked_s` of ours, or had nothing to do. A checkpoint.

        Cancellation: whoever waited leaves the line.
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
    """What one connection has had us do beyond the data that it moved.

    A connection that moves data may cause `1 / FREE_BYTES_PER_S` of work a byte for nothing, and every one
    `FREE_SHARE` of the time; so who sends credit for what it reads never stands in line, whoever else does.
    """

    __slots__ = ("_bytes", "_ended_s", "_owed_s")

    def __init__(self, now_s: float) -> None:
        self._bytes = 0
        self._ended_s = now_s
        self._owed_s = 0.0

    def owes(self, start_s: float, end_s: float, moved_bytes: int) -> bool:
        """Enters a turn. Returns whether it is time to stand in line.

        Args:
            start_s: when it began.
            end_s: when it ended.
            moved_bytes: that the connection has ever moved, in both directions.
        """
        free_s = (start_s - self._ended_s) * FREE_SHARE + (moved_bytes - self._bytes) / FREE_BYTES_PER_S
        self._owed_s = max(0.0, self._owed_s + end_s - start_s - free_s)
        self._bytes = moved_bytes
        self._ended_s = end_s
        return self._owed_s >= TURN_S

    def settle(self) -> float:
        """What it owes, and does not any more, in seconds."""
        owed_s, self._owed_s = self._owed_s, 0.0
        return owed_s


@final
class PeerShare:
    """The account of one control connection with the line of its event loop (a `control.frames.LoopShare`)."""

    def __init__(self) -> None:
        self._line = turns()
        self.clock = self._line.clock
        self._account = WorkAccount(self.clock())
        self._owes = False

    def worked(self, began_s: float, moved_bytes: int) -> None:
        """Notes work that was done, as `LoopShare.worked` does."""
        self._owes |= self._account.owes(began_s, self.clock(), moved_bytes)

    async def wait_turn(self) -> None:
        """Waits for the next turn, as `LoopShare.wait_turn` does. A checkpoint only where it owes something."""
        if self._owes:
            self._owes = False
            await self._line.pass_on(self._account.settle())


_TURNS: Final[trio.lowlevel.RunVar[Turns]] = trio.lowlevel.RunVar("netstack_turns")


def measure_with(clock: Callable[[], float]) -> None:
    """Has this event loop measure its work by another clock: a simulation by its own. Before anything is opened."""
    _TURNS.set(Turns(clock))


def turns() -> Turns:
    """The line of this event loop."""
    try:
        return _TURNS.get()
    except LookupError:
        made = Turns()
        _TURNS.set(made)
        return made
