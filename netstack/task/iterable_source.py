"""A source of a job from an iterable, or a function that makes one.

Takes: the iterable. Gives: an operator that reads it, and skips after a restart what was sent before.
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

from ..errors import CheckpointError, ConfigError, StateMismatch
from .context import OperatorContext

if TYPE_CHECKING:
    import numpy.typing as npt

LOGGER: Final = logging.getLogger("netstack")

TELL_S: Final = 2.0
"""From one line about skipped records to the next."""

READ_S: Final = 0.001
READ_RECORDS: Final = 1024


@final
class IterableSource:
    """A source made of a function that gives an iterable: its position is how many records it gave."""

    def __init__(self, function: Callable[[], Iterable[Any]], context: OperatorContext) -> None:
        """Nothing is called yet."""
        if inspect.isasyncgenfunction(getattr(function, "func", function)):
            raise ConfigError(
                f"operator {context.operator!r}: an async generator gives no iterable; make it a class with async read"
                " and snapshot"
            )
        self.function = function
        self._context = context
        self._records: Iterator[Any] | None = None
        self._count = 0
        self._skipped = 0
        self._at_once = 1
        self._told_at = 0.0

    @property
    def is_skipping(self) -> bool:
        """Whether it is still going through what it gave before a restart."""
        return self._skipped < self._count

    def read(self) -> list[Any] | npt.NDArray[Any] | None:
        """Returns as many records as come within about a millisecond; none while it skips those before a restart.

        Raises:
            CheckpointError: there are fewer than were sent then.
            ConfigError: the function gave no iterable.
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
        """How many records were sent."""
        return self._count - unsent

    def restore(self, states: list[Any]) -> None:
        """Goes on behind so many records.

        Raises:
            StateMismatch: the parallelism has changed, or it was a class.
        """
        kinds = {type(state).__name__ for state in states} - {"int"}
        if kinds:
            raise StateMismatch(
                f"source {self._context.operator!r} is a function, whose position is an int, and the checkpoint holds a"
                f" {kinds.pop()} of it: make it a class with restore"
            )
        if len(states) != 1:
            raise StateMismatch(
                f"source {self._context.operator!r} is a function, whose position ({len(states)} of them) cannot be"
                " shared out to another number of subtasks; keep its parallelism, or make it a class with restore"
            )
        (self._count,) = states

    def _begin(self) -> Iterator[Any]:
        made = self.function()
        if isinstance(made, np.ndarray):
            made = made.tolist()
        if not isinstance(made, Iterable):
            raise ConfigError(
                f"source {self._context.operator!r} gave a {type(made).__name__}; a source that is a function gives an"
                " iterable of records"
            )
        if not self._count or not isinstance(made, Sequence):
            return iter(made)
        if len(made) < self._count:
            raise self._has_only(len(made))
        self._skipped = self._count
        return map(made.__getitem__, range(self._count, len(made)))

    def _skip(self, records: Iterator[Any], began: float) -> None:
        """For about a millisecond; of what takes seconds the log tells how far it is."""
        self._told_at = self._told_at or began
        now = began
        while self._skipped < self._count and now - began < READ_S:
            at_once = min(self._at_once, self._count - self._skipped)
            counter = count()
            deque(zip(islice(records, at_once), counter, strict=False), maxlen=0)  # at the speed of C
            skipped = next(counter)
            self._skipped += skipped
            if skipped < at_once:
                raise self._has_only(self._skipped)
            elapsed_s, now = perf_counter() - now, perf_counter()
            self._at_once = max(1, at_once // 2) if elapsed_s > READ_S / 4 else min(2 * at_once, READ_RECORDS)
        if now - self._told_at > TELL_S:
            self._told_at = now
            LOGGER.info(
                "source %s goes through what it gave before the restart: %d of %d records so far; a class with restore"
                " goes on at once",
                self._context,
                self._skipped,
                self._count,
            )

    def _has_only(self, found: int) -> CheckpointError:
        return CheckpointError(
            f"source {self._context.operator!r} has {found} records, and {self._count} were processed before"
            " the restart; its input was changed meanwhile"
        )
