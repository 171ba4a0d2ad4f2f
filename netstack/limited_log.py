"""Log lines that strangers can cause: a few a second, whatever happens; what was left out is counted and told.

Takes: lines and the time. Gives: lines to a `logging.Logger`, at most `burst` at once and `per_second` on the average;
or, for a while, none below a level (`quieter`).

Rules: every kind of line has an account of its own, so a flood of one kind hides no other. The number of lines that
were left out is told with the next one of its kind that is written. What comes from a peer is `shown` by the caller.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, final

_MAX_KINDS: Final = 64


@contextmanager
def quieter(name: str, level: int) -> Iterator[None]:
    """Inside the block the logger of this name, and those below it, write nothing under `level`."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


@final
class LimitedLog:
    """One logger with a limit.

    Args:
        logger: where lines go.
        clock: seconds, never running back.
        per_second: lines of one kind, on the average.
        burst: lines of one kind at once.
    """

    __slots__ = ("_burst", "_clock", "_kinds", "_logger", "_per_second")

    def __init__(
        self, logger: logging.Logger, clock: Callable[[], float], *, per_second: float = 1.0, burst: int = 10
    ) -> None:
        self._logger = logger
        self._clock = clock
        self._per_second = per_second
        self._burst = burst
        self._kinds: dict[str, _Account] = {}

    def log(self, level: int, kind: str, text: str, *, error: BaseException | None = None) -> bool:
        """Writes a line, or counts it as left out.

        Args:
            level: as for `logging`.
            kind: which account it is on: a word of ours, never a peer's.
            text: the line; no formatting is done.
            error: whose traceback follows: for mistakes of this program.

        Returns:
            Whether it was written.
        """
        if not self._logger.isEnabledFor(level):
            return False
        account = self._kinds.get(kind)
        now = self._clock()
        if account is None:
            if len(self._kinds) >= _MAX_KINDS:  # kinds are ours, so there are few; if not, this stays small
                self._kinds.clear()
            account = self._kinds[kind] = _Account(float(self._burst), now)
        account.lines = min(float(self._burst), account.lines + (now - account.since) * self._per_second)
        account.since = now
        if account.lines < 1:
            account.left_out += 1
            return False
        account.lines -= 1
        if account.left_out:
            text = f"{text} ({account.left_out} more like this were not logged)"
            account.left_out = 0
        self._logger.log(level, "%s", text, exc_info=error)
        return True


@final
class _Account:
    __slots__ = ("left_out", "lines", "since")

    def __init__(self, lines: float, since: float) -> None:
        self.lines = lines
        self.since = since
        self.left_out = 0
