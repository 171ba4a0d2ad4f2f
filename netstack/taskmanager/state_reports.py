"""States of many attempts in few messages.

Takes: states, one by one. Gives: `TaskStates`, one a state: at once where little happens, every `GATHER_S` where much
does.

Rules: the states of an attempt are sent in their order; `flush` sends what has gathered, before any message that
has to come after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

import trio

from ..control.codec import Attempt, Message
from ..control.messages import slices
from ..control.reports import TaskStates

GATHER_S: Final = 0.05
"""A deployment of thousands costs a message a state each time, and each message a switch to the link's thread."""


@final
class StateReports:
    """The states of one job's attempts that were not told yet.

    Args:
        job_id: of the job.
        send: to whoever drives it.
    """

    def __init__(self, job_id: str, send: Callable[[Message], None]) -> None:
        self._job_id = job_id
        self._send = send
        # An attempt goes through states in one order, so one list a state keeps that order.
        self._gathered: dict[str, list[Attempt]] = {"initializing": [], "running": [], "waiting": [], "canceled": []}
        self._more = trio.Event()

    def add(self, state: str, attempt: Attempt) -> None:
        """An attempt is in this state now."""
        self._gathered[state].append(attempt)
        self._more.set()

    def flush(self) -> None:
        """Tells what has gathered."""
        for state, attempts in self._gathered.items():
            if attempts:
                self._gathered[state] = []
                for some in slices(attempts):
                    self._send(TaskStates(self._job_id, state, some))

    async def run(self) -> None:
        """Tells, a turn of the loop after something came or `GATHER_S` after it told last, until cancelled."""
        told_s = -GATHER_S
        while True:
            await self._more.wait()
            self._more = trio.Event()
            await trio.sleep(max(0.0, told_s + GATHER_S - trio.current_time()))
            self.flush()
            told_s = trio.current_time()
