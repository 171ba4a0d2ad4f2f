"""Whether a job restarts after a failure, after which delay, and the restarts that wait.

Takes: the times of failures; the subtasks of a restart with their versions, which of them are gone, timers. Gives: a
decision for each failure; restarts that may be carried out.

Rules: a strategy handles every failure exactly once, in order. It has no clock and no chance of its own. A restart is
ready once, when all its canceled tasks are gone, with their slots, and its delay has passed. A subtask waits in the
newest restart that it is part of: its version in the older one is stale.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, final

import numpy as np

from ...errors import ConfigError
from ..execution.executions import RecordedVersions
from ..graph.settings import RestartSettings
from ..structures.arrays import FlagArray, GrowingArray, IndexArray


@final
@dataclass(frozen=True, slots=True)
class RestartDecision:
    """What to do about a failure.

    Attributes:
        delay_s: restart after so long; None: do not.
        reason: why not; empty when it restarts.
        number: which restart it is, from 1, of those that `limit` counts.
        limit: how many restarts there are at most; None without such a limit.
    """

    delay_s: float | None
    reason: str = ""
    number: int = 0
    limit: int | None = None

    def __str__(self) -> str:
        if self.delay_s is None:
            return f"no restart: {self.reason}"
        limit = "" if self.limit is None else f" of {self.limit}"
        return f"restart {self.number}{limit}, next in {round(self.delay_s, 2):g} s"


class RestartStrategy(Protocol):
    """Decides."""

    def failed(self, now_s: float) -> RestartDecision:
        """The job has failed at this time, by one monotonic clock of the caller's."""


@final
class NoRestart:
    """The first failure is the last."""

    def failed(self, now_s: float) -> RestartDecision:
        """Implements `RestartStrategy.failed`."""
        return RestartDecision(None, "the restart strategy is none")


@final
class FixedDelay:
    """A number of restarts, each after the same delay.

    Args:
        attempts: how many; None is without end.
        delay_s: before each.

    Raises:
        ConfigError: a negative value.
    """

    def __init__(self, attempts: int | None = None, delay_s: float = 1.0) -> None:
        _check(attempts=attempts, delay_s=delay_s)
        self._attempts = attempts
        self._delay_s = delay_s
        self._failures = 0

    def failed(self, now_s: float) -> RestartDecision:
        """Implements `RestartStrategy.failed`."""
        self._failures += 1
        if self._attempts is not None and self._failures > self._attempts:
            return RestartDecision(None, f"{self._attempts} restarts are used up")
        return RestartDecision(self._delay_s, number=self._failures, limit=self._attempts)


@final
class FailureRate:
    """Restarts as long as not too many failures fall into an interval.

    Args:
        max_failures: so many are tolerated in any interval.
        interval_s: how long that is.
        delay_s: before each restart.

    Raises:
        ConfigError: a negative value, or no interval.
    """

    def __init__(self, max_failures: int = 1, interval_s: float = 60.0, delay_s: float = 1.0) -> None:
        _check(max_failures=max_failures, delay_s=delay_s)
        if not interval_s > 0:
            raise ConfigError(f"interval_s={interval_s}; give more than 0")
        self._max_failures = max_failures
        self._interval_s = interval_s
        self._delay_s = delay_s
        self._failures: deque[float] = deque(maxlen=max_failures + 1)
        self._restarts = 0

    def failed(self, now_s: float) -> RestartDecision:
        """Implements `RestartStrategy.failed`."""
        self._failures.append(now_s)
        if len(self._failures) > self._max_failures and now_s - self._failures[0] <= self._interval_s:
            return RestartDecision(
                None,
                f"{len(self._failures)} failures within {self._interval_s} s, and {self._max_failures} are allowed",
            )
        self._restarts += 1
        return RestartDecision(self._delay_s, number=self._restarts)


@final
class ExponentialDelay:
    """Restarts after a delay that grows from failure to failure, and begins again after a quiet time.

    Args:
        initial_s: the first delay, and the shortest.
        max_s: the longest.
        multiplier: from one delay to the next.
        quiet_s: no failure for so long after a restart: the next delay is the first again.
        jitter: share of the delay by which it is moved.
        attempts: so many restarts before a quiet time; None is without end.
        chance: numbers evenly spread over -1 to 1, for the jitter.

    Raises:
        ConfigError: values that cannot work.
    """

    def __init__(
        self,
        *,
        initial_s: float = 1.0,
        max_s: float = 60.0,
        multiplier: float = 1.5,
        quiet_s: float = 3600.0,
        jitter: float = 0.1,
        attempts: int | None = None,
        chance: Callable[[], float],
    ) -> None:
        _check(quiet_s=quiet_s, attempts=attempts)
        if not 0 < initial_s <= max_s:
            raise ConfigError(f"initial_s={initial_s}, max_s={max_s}; give more than 0, and the larger as max_s")
        if not multiplier >= 1:
            raise ConfigError(f"multiplier={multiplier}; give at least 1")
        if not 0 <= jitter <= 1:
            raise ConfigError(f"jitter={jitter}; give 0 to 1")
        self._initial_s = initial_s
        self._max_s = max_s
        self._multiplier = multiplier
        self._quiet_s = quiet_s
        self._jitter = jitter
        self._attempts = attempts
        self._chance = chance
        self._delay_s = initial_s
        self._restarts = 0
        self._restarted_s = 0.0

    def failed(self, now_s: float) -> RestartDecision:
        """Implements `RestartStrategy.failed`."""
        if self._restarts and now_s - self._restarted_s >= self._quiet_s:
            self._restarts = 0
        if self._attempts is not None and self._restarts >= self._attempts:
            return RestartDecision(None, f"{self._attempts} restarts without {self._quiet_s} s of quiet are used up")
        self._delay_s = min(self._delay_s * self._multiplier, self._max_s) if self._restarts else self._initial_s
        self._restarts += 1
        moved_s = self._delay_s * (1 + self._jitter * self._chance())
        delay_s = min(max(moved_s, self._initial_s), self._max_s)
        self._restarted_s = now_s + delay_s
        return RestartDecision(delay_s, number=self._restarts, limit=self._attempts)


def restart_strategy(settings: RestartSettings, chance: Callable[[], float]) -> RestartStrategy:
    """The strategy that a job asks for.

    Args:
        settings: of the job.
        chance: see `ExponentialDelay`.

    Raises:
        ConfigError: values that cannot work.
    """
    match settings.kind:
        case "none":
            return NoRestart()
        case "fixed_delay":
            return FixedDelay(settings.attempts, settings.delay_s)
        case "failure_rate":
            return FailureRate(settings.max_failures, settings.interval_s, settings.delay_s)
    return ExponentialDelay(
        initial_s=settings.delay_s,
        max_s=max(settings.delay_s, settings.max_delay_s),
        multiplier=settings.multiplier,
        quiet_s=settings.quiet_s,
        attempts=settings.attempts,
        chance=chance,
    )


def _check(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not value >= 0:
            raise ConfigError(f"{name}={value}; give at least 0")


_NONE: Final = -1


@final
@dataclass(slots=True)
class _Restart:
    recorded: RecordedVersions
    running: int
    is_due: bool = False

    @property
    def is_ready(self) -> bool:
        return self.is_due and not self.running


@final
class Restarts:
    """The restarts of one job that have begun and are not done."""

    def __init__(self) -> None:
        self._waits_in = GrowingArray(np.int64)
        self._restarts: dict[int, _Restart] = {}
        self._next = 0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._restarts)

    def grow(self, subtasks: int) -> None:
        """There are so many subtasks by now."""
        self._waits_in.extend_with(_NONE, subtasks - len(self._waits_in))

    def begin(self, recorded: RecordedVersions, is_running: FlagArray) -> int:
        """A restart of these subtasks; it waits for those of them that are running. Returns its timer."""
        running = recorded.subtasks[is_running]
        self.ended(running)  # for the older restarts that waited for them
        number = self._next
        self._next += 1
        self._restarts[number] = _Restart(recorded, running.size)
        self._waits_in.view[running] = number
        return number

    def ended(self, subtasks: IndexArray) -> None:
        """Subtasks are gone; those that nobody waits for, or has ever waited for, do not matter."""
        subtasks = subtasks[subtasks < len(self._waits_in)]
        waited = self._waits_in.view[subtasks]
        numbers, counts = np.unique(waited[waited != _NONE], return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            self._restarts[number].running -= count
        self._waits_in.view[subtasks] = _NONE

    def due(self, timer: int) -> bool:
        """The delay of a restart has passed; False for a restart that is gone."""
        restart = self._restarts.get(timer)
        if restart is None:
            return False
        restart.is_due = True
        return True

    def take_ready(self) -> list[RecordedVersions]:
        """Removes the restarts that may be carried out, in the order in which they began."""
        ready = [number for number, restart in self._restarts.items() if restart.is_ready]
        return [self._restarts.pop(number).recorded for number in ready]

    def clear(self) -> None:
        """Forgets all of them: the job will not restart."""
        self._restarts.clear()
        self._waits_in.view[:] = _NONE
