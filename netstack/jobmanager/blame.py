"""Which failure began it all: one that may be another's fault waits until it is known whether that other is alive.

Takes: failures of tasks, signs of life of TaskManagers, and the time. Gives: failures to be told to the scheduler,
roots before what follows from them.

A TaskManager that dies takes tasks with it, and the consumers of those often say so before its death is noticed. Were
they told at once, the restart strategy would count two failures, and the tasks would be sent to a dead host. So a
secondary failure is held until every TaskManager of the job has been heard since, or is lost, or the time is up. After
a root failure those it has caused find their tasks canceled, and count for nothing.

Rules: nothing here waits; `next_deadline_s` says when to ask again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, final

from ..schedule.events import TaskFailed

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
        """What may be told now, in the order in which it came.

        Args:
            taskmanagers: those that the job uses.
            now_s: the time.
        """
        if not self._held:
            return []
        heard = [when for name in taskmanagers if (when := self._heard_s(name)) is not None]
        quietest_s = min(heard, default=now_s)
        ready = [
            held.failure
            for held in self._held
            if (quietest_s > held.since_s and now_s - held.since_s >= LEAST_S)
            or now_s - held.since_s >= self._patience_s
            or not heard
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
