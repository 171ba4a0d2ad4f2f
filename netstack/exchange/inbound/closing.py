"""Closes gates and readers at the end of a `with` block.

Takes: how the block ended. Gives: a closed gate, and a warning if it left records unread by mistake.
"""

from __future__ import annotations

import abc
import warnings
from types import TracebackType
from typing import Self


class UnreadRecordsWarning(UserWarning):
    """A gate was left before all of its channels had ended; the remaining records are lost to this reader."""


class ClosingContext(abc.ABC):
    """Base of context managers that close themselves on exit.

    Call `close()` inside the block to stop reading early: without a warning, and the producers do not count this
    consumer as lost. An error or a cancellation never warns.
    """

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it; a producer whose end was not read counts this consumer as lost.

        Warns:
            UnreadRecordsWarning: the block ended without an error, and records may be unread.
        """
        left = self._describe_unread() if kind is None else ""
        self.abandon()
        if left:
            warnings.warn(
                f"left {left}; read until the iteration ends, or call close() to stop early",
                UnreadRecordsWarning,
                stacklevel=2,
            )

    @abc.abstractmethod
    def close(self) -> None:
        """Closes it on purpose: the producers learn that no more records are needed. Idempotent."""

    @abc.abstractmethod
    def abandon(self) -> None:
        """Closes it after a failure: a producer whose end was not read counts this consumer as lost. Idempotent."""

    @abc.abstractmethod
    def _describe_unread(self) -> str:
        """Describes what is unread, for the warning; empty if nothing is, or after `close`."""
