"""A source operator that reads from a function that returns an iterable.

Takes: the function. Gives: an operator that reads the iterable, and after a restart skips the records sent before it.
"""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...base.errors import ConfigError, StateMismatch
from ...base.text.safe_text import type_text
from .context import OperatorContext

if TYPE_CHECKING:
    import numpy.typing as npt

LOGGER: Final = logging.getLogger("netstack")

LOG_INTERVAL_S: Final = 2.0
"""Interval of log lines about skipped records."""

READ_S: Final = 0.001
READ_RECORDS: Final = 1024


@final
class IterableSource:
    """A source made of a function that returns an iterable. Its position is the number of records read from it."""

    def __init__(self, function: Callable[[], Iterable[Any]], context: OperatorContext) -> None:
        if inspect.isasyncgenfunction(getattr(function, "func", function)):
            raise ConfigError(
                f"operator {context.operator!r}: an async generator is no iterable; write a class with async read and"
                " snapshot"
            )
        self.function = function
        self._context = context
        self._records: Iterator[Any] | None = None
        self._count = 0
        self._skipped = 0
        self._at_once = 1
        self._logged_at = 0.0

    @property
    def is_skipping(self) -> bool:
        """Whether it is still skipping the records that were sent before a restart."""
        return self._skipped < self._count

    def read(self) -> list[Any] | npt.NDArray[Any] | None:
        """Reads for about a millisecond. Returns an empty list while it skips records that were sent before a restart.

        Raises:
            StateMismatch: the iterable has fewer records than were sent before the restart.
            ConfigError: the function returned no iterable, or a set.
        """
        if self._records is None:
            self._records = self._begin()
        began = perf_counter()
        if self.is_skipping:
            self._skip(self._records, began)
            if self._skipped < self._count:
                return []
            began = perf_counter()
        records = list(islice(self._records, self._at_once))
        elapsed_s = perf_counter() - began
        if elapsed_s > READ_S:
            self._at_once = max(1, self._at_once // 2)
        elif 2 * elapsed_s < READ_S:
            self._at_once = min(2 * self._at_once, READ_RECORDS)
        self._count += len(records)
        self._skipped = self._count
        return records or None

    def snapshot(self, unsent: int) -> int:
        """The number of records sent."""
        return self._count - unsent

    def restore(self, states: list[Any]) -> None:
        """Sets the position from a checkpoint.

        Raises:
            StateMismatch: the parallelism has changed, or the source was a class before.
        """
        kinds = {type(state).__name__ for state in states} - {"int"}
        if kinds:
            raise StateMismatch(
                f"source {self._context.operator!r} is a function, whose position is an int, but the checkpoint holds a"
                f" {kinds.pop()}; write the source as a class with restore"
            )
        if len(states) != 1:
            raise StateMismatch(
                f"source {self._context.operator!r} is a function, whose position cannot be redistributed to another"
                f" number of subtasks ({len(states)} positions for this one); keep its parallelism, or write it as a"
                " class with restore"
            )
        (self._count,) = states

    def _begin(self) -> Iterator[Any]:
        made = self.function()
        if isinstance(made, np.ndarray):
            made = made.tolist()
        if not isinstance(made, Iterable):
            raise ConfigError(
                f"source {self._context.operator!r} returned {type_text(made)}; a source that is a function must"
                " return an iterable of records"
            )
        if isinstance(made, set | frozenset):
            raise ConfigError(
                f"source {self._context.operator!r} returned {type_text(made)}, whose order differs from process to"
                " process, so a restart would lose and repeat records; return it sorted"
            )
        if not self._count or not isinstance(made, Sequence):
            return iter(made)
        if len(made) < self._count:
            raise self._has_only(len(made))
        self._skipped = self._count
        return map(made.__getitem__, range(self._count, len(made)))

    def _skip(self, records: Iterator[Any], began: float) -> None:
        """Skips records for about a millisecond; logs the progress every two seconds."""
        self._logged_at = self._logged_at or began
        now = began
        while self._skipped < self._count and now - began < READ_S:
            at_once = min(self._at_once, self._count - self._skipped)
            counter = count()
            deque(zip(islice(records, at_once), counter, strict=False), maxlen=0)  # consumes without a Python loop
            skipped = next(counter)
            self._skipped += skipped
            if skipped < at_once:
                raise self._has_only(self._skipped)
            elapsed_s, now = perf_counter() - now, perf_counter()
            self._at_once = max(1, at_once // 2) if elapsed_s > READ_S / 4 else min(2 * at_once, READ_RECORDS)
        if now - self._logged_at > LOG_INTERVAL_S:
            self._logged_at = now
            LOGGER.info(
                "source %s is skipping the records sent before the restart: %d of %d skipped; a class with restore"
                " would continue at once",
                self._context,
                self._skipped,
                self._count,
            )

    def _has_only(self, count: int) -> StateMismatch:
        return StateMismatch(
            f"source {self._context.operator!r} has {count} records, but {self._count} were processed before the"
            " restart; its input has changed"
        )
