"""A cache of decoded values by job and key, bounded in number, size and age.

Takes: values and the time. Gives: the values until they are evicted.

Rules: the least recently used value is evicted first; values expire `expire_after_s` after their last use; all values
of a job are dropped at its end.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar, final

from ...base.errors import ConfigError

Value = TypeVar("Value")


@final
@dataclass(slots=True)
class _Cached(Generic[Value]):
    value: Value
    size_bytes: int
    used_s: float


@final
class GroupCache(Generic[Value]):
    """Cached values of jobs.

    All times are seconds of one monotonic clock of the caller.

    Args:
        max_bytes: limit of all sizes given to `put`; None: no limit. A larger value is not cached.
        expire_after_s: unused values are dropped after this time.

    Raises:
        ConfigError: a limit is not positive.
    """

    def __init__(self, *, max_entries: int = 100, max_bytes: int | None = None, expire_after_s: float = 300.0) -> None:
        if max_entries < 1 or (max_bytes is not None and max_bytes < 1) or not expire_after_s > 0:
            raise ConfigError(
                f"max_entries={max_entries}, max_bytes={max_bytes},"
                f" expire_after_s={expire_after_s}: must be more than 0"
            )
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._expire_after_s = expire_after_s
        self._cached: OrderedDict[tuple[str, str], _Cached[Value]] = OrderedDict()
        self.size_bytes = 0
        """The size of all values, by the sizes given to `put`."""

    def __len__(self) -> int:
        """The number of values, including expired ones that were not requested since."""
        return len(self._cached)

    def get(self, job: str, key: str, now_s: float) -> Value | None:
        """Returns a value and marks it as used; None if it is not cached."""
        self._expire(now_s)
        cached = self._cached.get((job, key))
        if cached is None:
            return None
        cached.used_s = now_s
        self._cached.move_to_end((job, key))
        return cached.value

    def put(self, job: str, key: str, value: Value, now_s: float, size_bytes: int = 0) -> None:
        """Stores a value; evicts others when a limit is exceeded."""
        self._expire(now_s)
        self._drop((job, key))
        if self._max_bytes is not None and size_bytes > self._max_bytes:
            return
        self._cached[job, key] = _Cached(value, size_bytes, now_s)
        self.size_bytes += size_bytes
        while len(self._cached) > self._max_entries or (
            self._max_bytes is not None and self.size_bytes > self._max_bytes
        ):
            self._drop(next(iter(self._cached)))

    def clear(self, job: str) -> None:
        """Drops all values of a job."""
        for keys in [keys for keys in self._cached if keys[0] == job]:
            self._drop(keys)

    def _expire(self, now_s: float) -> None:
        while self._cached:
            oldest, cached = next(iter(self._cached.items()))
            if now_s - cached.used_s < self._expire_after_s:
                return
            self._drop(oldest)

    def _drop(self, place: tuple[str, str]) -> None:
        cached = self._cached.pop(place, None)
        if cached is not None:
            self.size_bytes -= cached.size_bytes
