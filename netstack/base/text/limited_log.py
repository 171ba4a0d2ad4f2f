"""A rate limit for log lines that peers can cause; the number of omitted lines is logged.

Takes: lines and the time. Gives: lines to a `logging.Logger`, at most `burst` at once and `per_second` on average;
`quieter` suppresses a logger's lines below a level for a while.

Rules: each kind of line has its own account, so a flood of one kind suppresses no other. The next written line of a
kind reports how many were omitted. The caller escapes data of peers (`shown`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, final

_MAX_KINDS: Final = 64


@contextmanager
def quieter(name: str, level: int) -> Iterator[None]:
    """Inside the block, the logger of this name and its children write nothing below `level`."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


@final
class LimitedLog:
    """A logger with a rate limit.

    Args:
        clock: returns seconds of a monotonic clock.
        per_second: lines of one kind, on average.
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
        """Writes a line, or counts it as omitted.

        Args:
            level: as for `logging`.
            kind: selects the account; a constant of the program, never data of a peer.
            text: the line; it is not formatted.
            error: an error whose traceback follows the line: for bugs of this program.

        Returns:
            Whether the line was written.
        """
        if not self._logger.isEnabledFor(level):
            return False
        account = self._kinds.get(kind)
        now = self._clock()
        if account is None:
            if (
                len(self._kinds) >= _MAX_KINDS
            ):  # kinds are constants, so there are few; this bounds the memory in any case
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
