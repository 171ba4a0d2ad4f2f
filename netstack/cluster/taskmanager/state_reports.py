"""Batches the state reports of many attempts.

Takes: single state changes. Gives: one `TaskStates` message for each state, immediately or at most every `GATHER_S`.

Rules: the states of an attempt are sent in order; `flush` sends the batch before any message that must follow it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

import trio

from ..control.codec import Attempt, Message
from ..control.messages import slices
from ..control.reports import TaskStates

GATHER_S: Final = 0.05
"""Minimum interval of batches: each message costs a switch to the link's thread."""


@final
class StateReports:
    """The unreported states of one job's attempts."""

    def __init__(self, job_id: str, send: Callable[[Message], None]) -> None:
        self._job_id = job_id
        self._send = send
        # Attempts pass through states in this order, so one list for each state preserves it.
        self._gathered: dict[str, list[Attempt]] = {"initializing": [], "running": [], "waiting": [], "canceled": []}
        self._more = trio.Event()

    def add(self, state: str, attempt: Attempt) -> None:
        """Adds a state change of an attempt."""
        self._gathered[state].append(attempt)
        self._more.set()

    def flush(self) -> None:
        """Sends the batch."""
        for state, attempts in self._gathered.items():
            if attempts:
                self._gathered[state] = []
                for some in slices(attempts):
                    self._send(TaskStates(self._job_id, state, some))

    async def run(self) -> None:
        """Sends batches, at least `GATHER_S` apart, until cancelled."""
        sent_s = -GATHER_S
        while True:
            await self._more.wait()
            self._more = trio.Event()
            await trio.sleep(max(0.0, sent_s + GATHER_S - trio.current_time()))
            self.flush()
            sent_s = trio.current_time()
