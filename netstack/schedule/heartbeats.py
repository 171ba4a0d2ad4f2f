"""Which TaskManagers are still there: asks, remembers answers, and says who has been silent for too long.

Takes: registrations, answers, failed requests, and the time. Gives: whom to ask, and who is lost.

Rules: nobody is declared lost in the middle of a backlog. After a long step the answers that came meanwhile wait in the
inbox beside the timer that is overdue; `inbox` hands answers over before timers, and here an answer counts from when
it is handed over. A TaskManager that is lost is forgotten: it registers again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ..errors import ConfigError, LocalProtocolError


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatSettings:
    """How TaskManagers are watched.

    Attributes:
        interval_s: from one request to the next.
        timeout_s: silent for so long is lost.
        failure_threshold: so many requests in a row that could not be delivered are a loss too; None: only silence is.

    Raises:
        ConfigError: values that cannot work.
    """

    interval_s: float = 10.0
    timeout_s: float = 50.0
    failure_threshold: int | None = 2

    def __post_init__(self) -> None:
        if not 0 < self.interval_s < self.timeout_s:
            raise ConfigError(
                f"heartbeat interval_s={self.interval_s}, timeout_s={self.timeout_s}; give a longer timeout"
            )
        if self.failure_threshold is not None and self.failure_threshold < 1:
            raise ConfigError(f"heartbeat failure_threshold={self.failure_threshold}; give at least 1, or None")


@final
@dataclass(slots=True)
class _Watched:
    heard_s: float
    failures: int = 0


@final
class Heartbeats:
    """The TaskManagers of a job.

    All times are seconds of one monotonic clock of the caller's.

    Args:
        settings: how they are watched.
        now_s: the first request is due one interval later.
    """

    def __init__(self, settings: HeartbeatSettings, now_s: float) -> None:
        self._settings = settings
        self._next_s = now_s + settings.interval_s
        # In the order in which they were heard of: the first is the next that can be lost.
        self._watched: dict[str, _Watched] = {}

    def watch(self, taskmanager: str, now_s: float) -> None:
        """A TaskManager has registered.

        Raises:
            LocalProtocolError: it is watched.
        """
        if taskmanager in self._watched:
            raise LocalProtocolError(f"TaskManager {taskmanager} is registered; give a new one a new name")
        self._watched[taskmanager] = _Watched(now_s)

    def unwatch(self, taskmanager: str) -> None:
        """A TaskManager is gone; does nothing when it is not watched."""
        self._watched.pop(taskmanager, None)

    def heard(self, taskmanager: str, now_s: float) -> None:
        """Something came from it; one that is not watched is ignored."""
        watched = self._watched.pop(taskmanager, None)
        if watched is not None:
            watched.heard_s = now_s
            watched.failures = 0
            self._watched[taskmanager] = watched

    def request_failed(self, taskmanager: str) -> bool:
        """A request could not be delivered; says whether the TaskManager is lost by that."""
        watched = self._watched.get(taskmanager)
        if watched is None or self._settings.failure_threshold is None:
            return False
        watched.failures += 1
        if watched.failures < self._settings.failure_threshold:
            return False
        del self._watched[taskmanager]
        return True

    def expired(self, now_s: float) -> list[str]:
        """Who has been silent for too long; they are forgotten."""
        lost = []
        for taskmanager, watched in self._watched.items():
            if now_s - watched.heard_s < self._settings.timeout_s:
                break
            lost.append(taskmanager)
        for taskmanager in lost:
            del self._watched[taskmanager]
        return lost

    def to_ask(self, now_s: float) -> list[str]:
        """Whom to ask now: everybody when an interval has passed, else nobody."""
        if now_s < self._next_s:
            return []
        self._next_s = now_s + self._settings.interval_s
        return [*self._watched]

    def next_deadline(self) -> float:
        """When `expired` or `to_ask` may have something to say."""
        oldest = next(iter(self._watched.values()), None)
        return self._next_s if oldest is None else min(self._next_s, oldest.heard_s + self._settings.timeout_s)
