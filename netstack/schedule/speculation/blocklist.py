"""TaskManagers that get nothing new for a while, because a task was slow there.

Takes: TaskManagers as they come and go, which of them were slow, and the time. Gives: who is blocked.

Rules: all TaskManagers of a slow one's host are blocked with it, where the job knows more than one host; on one host
each stands for itself. Who is slow again is blocked for longer. Slow is slower than most: never more than half of them
are blocked, so there is always somebody who takes what is new.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from ..slots.slots import Location


@final
class Blocklist:
    """Of one job.

    Args:
        duration_s: how long somebody is blocked.
    """

    def __init__(self, duration_s: float) -> None:
        self._duration_s = duration_s
        self._hosts: dict[str, str] = {}
        self._until_s: dict[str, float] = {}

    def came(self, location: Location) -> None:
        """A TaskManager is there."""
        self._hosts[location.taskmanager] = location.host

    def lost(self, taskmanager: str) -> None:
        """It is gone."""
        self._hosts.pop(taskmanager, None)
        self._until_s.pop(taskmanager, None)

    def block(self, taskmanagers: Iterable[str], now_s: float) -> None:
        """Tasks are slow there; those that come first count most."""
        for name in taskmanagers:
            slow = self._beside(name)
            if len(self._until_s.keys() | slow) <= len(self._hosts) // 2:
                self._until_s.update(dict.fromkeys(slow, now_s + self._duration_s))

    def look(self, now_s: float) -> None:
        """Time has passed, or TaskManagers have gone."""
        self._until_s = {name: until_s for name, until_s in self._until_s.items() if until_s > now_s}
        while len(self._until_s) > len(self._hosts) // 2:
            del self._until_s[min(self._until_s, key=self._until_s.__getitem__)]

    @property
    def blocked(self) -> dict[str, float]:
        """Who is blocked, and until when."""
        return dict(self._until_s)

    def _beside(self, taskmanager: str) -> set[str]:
        """Those that are slow when this one is: itself, and who shares its host."""
        host = self._hosts.get(taskmanager)
        if not host or len(set(self._hosts.values())) == 1:
            return {taskmanager}
        return {name for name, where in self._hosts.items() if where == host}
