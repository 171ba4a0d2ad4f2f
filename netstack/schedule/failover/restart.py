"""Restart strategies: whether a job restarts after a failure, and after which delay; and the restarts in progress.

Rules: a strategy handles every failure exactly once, in order; it has no clock and no randomness of its own. A restart
is ready when all its canceled tasks have stopped and returned their slots, and its delay has passed. A subtask belongs
to the newest restart that includes it: its version in an older one is stale.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, final

import numpy as np

from ...base.errors import ConfigError
from ..execution import RecordedVersions
from ..graph.settings import RestartSettings
from ..structures import FlagArray, GrowingArray, IndexArray, tally


@final
@dataclass(frozen=True, slots=True)
class RestartDecision:
    """The decision about a failure.

    Attributes:
        delay_s: seconds until the restart; None: no restart.
        reason: why not; empty when it restarts.
        number: the number of this restart, from 1, among those that `limit` counts.
        limit: the most restarts; None: no limit.
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
    """Decides about failures."""

    def on_failure(self, now_s: float) -> RestartDecision:
        """Decides about a failure at this time of the caller's monotonic clock."""


NO_RESTART: Final = "the restart strategy is none; set StreamSettings.restart"


@final
class NoRestart:
    """Never restarts."""

    def on_failure(self, now_s: float) -> RestartDecision:
        """Implements `RestartStrategy.on_failure`."""
        return RestartDecision(None, NO_RESTART)


@final
class FixedDelay:
    """A number of restarts, each after the same delay.

    Args:
        attempts: the most restarts; None: no limit.
        delay_s: before each.

    Raises:
        ConfigError: a negative value.
    """

    def __init__(self, attempts: int | None = None, delay_s: float = 1.0) -> None:
        _check(attempts=attempts, delay_s=delay_s)
        self._attempts = attempts
        self._delay_s = delay_s
        self._failures = 0

    def on_failure(self, now_s: float) -> RestartDecision:
        """Implements `RestartStrategy.on_failure`."""
        self._failures += 1
        if self._attempts is not None and self._failures > self._attempts:
            return RestartDecision(None, f"{self._attempts} restart{' is' if self._attempts == 1 else 's are'} used up")
        return RestartDecision(self._delay_s, number=self._failures, limit=self._attempts)


@final
class FailureRate:
    """Restarts until there are too many failures in an interval.

    Args:
        max_failures: failures tolerated in any interval.
        interval_s: its length.
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

    def on_failure(self, now_s: float) -> RestartDecision:
        """Implements `RestartStrategy.on_failure`."""
        self._failures.append(now_s)
        if len(self._failures) > self._max_failures and now_s - self._failures[0] <= self._interval_s:
            return RestartDecision(
                None,
                f"{len(self._failures)} failures within {self._interval_s} s; {self._max_failures} are allowed",
            )
        self._restarts += 1
        return RestartDecision(self._delay_s, number=self._restarts)


@final
class ExponentialDelay:
    """Restarts after a delay that grows with each failure and is reset after a quiet time.

    Args:
        initial_s: the first and shortest delay.
        max_s: the longest delay.
        multiplier: from one delay to the next.
        quiet_s: after so long without a failure since the last restart the next delay is the first again.
        jitter: the largest share of the delay that is added or subtracted.
        attempts: the most restarts before a quiet time; None: no limit.
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

    def on_failure(self, now_s: float) -> RestartDecision:
        """Implements `RestartStrategy.on_failure`."""
        if self._restarts and now_s - self._restarted_s >= self._quiet_s:
            self._restarts = 0
        if self._attempts is not None and self._restarts >= self._attempts:
            return RestartDecision(None, f"{self._attempts} restarts, without a quiet time of {self._quiet_s} s")
        self._delay_s = min(self._delay_s * self._multiplier, self._max_s) if self._restarts else self._initial_s
        self._restarts += 1
        moved_s = self._delay_s * (1 + self._jitter * self._chance())
        delay_s = min(max(moved_s, self._initial_s), self._max_s)
        self._restarted_s = now_s + delay_s
        return RestartDecision(delay_s, number=self._restarts, limit=self._attempts)


def restart_strategy(settings: RestartSettings, chance: Callable[[], float]) -> RestartStrategy:
    """The strategy of a job's settings; see `ExponentialDelay` for `chance`.

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
    """The restarts of one job that are in progress."""

    def __init__(self) -> None:
        self._waits_in = GrowingArray(np.int64)
        self._restarts: dict[int, _Restart] = {}
        self._next = 0

    def __len__(self) -> int:
        """Restarts in progress."""
        return len(self._restarts)

    def grow(self, subtasks: int) -> None:
        """Extends the table to this number of subtasks."""
        self._waits_in.extend_with(_NONE, subtasks - len(self._waits_in))

    def begin(self, recorded: RecordedVersions, is_running: FlagArray) -> int:
        """Begins a restart that waits for the running ones of these subtasks. Returns its timer."""
        running = recorded.subtasks[is_running]
        self.on_stopped(running)  # older restarts no longer wait for them
        number = self._next
        self._next += 1
        self._restarts[number] = _Restart(recorded, running.size)
        self._waits_in.view[running] = number
        return number

    def on_stopped(self, subtasks: IndexArray) -> None:
        """Notes that subtasks have stopped; those that no restart waits for are ignored."""
        subtasks = subtasks[subtasks < len(self._waits_in)]
        waited = self._waits_in.view[subtasks]
        for number, count in tally(waited[waited != _NONE]):
            self._restarts[number].running -= count
        self._waits_in.view[subtasks] = _NONE

    def mark_due(self, timer: int) -> bool:
        """Notes that the delay of a restart has passed; returns False for an unknown restart."""
        restart = self._restarts.get(timer)
        if restart is None:
            return False
        restart.is_due = True
        return True

    def take_ready(self) -> list[RecordedVersions]:
        """Removes the restarts that are ready, in the order in which they began."""
        ready = [number for number, restart in self._restarts.items() if restart.is_ready]
        return [self._restarts.pop(number).recorded for number in ready]

    def clear(self) -> None:
        """Drops all restarts: the job will not restart."""
        self._restarts.clear()
        self._waits_in.view[:] = _NONE
