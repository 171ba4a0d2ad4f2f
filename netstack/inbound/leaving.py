"""What leaving a `with` block means for gates and readers.

Takes: how the block ended. Gives: a closed gate, and a warning if records were left behind that nobody said to leave.
"""

from __future__ import annotations

import abc
import warnings
from types import TracebackType
from typing import Self


class UnreadRecordsWarning(UserWarning):
    """A gate was left before all of its channels had ended; what came after is not read by anybody."""


class ClosedByLeaving(abc.ABC):
    """A context manager that closes what it is.

    Call `close()` before the end of the block to leave early on purpose; an error or a cancellation needs no excuse.
    """

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes.

        Warns:
            UnreadRecordsWarning: the block ended by itself, and records may be left.
        """
        left = self._left_behind() if kind is None else ""
        self.close()
        if left:
            warnings.warn(
                f"left {left}; read on until the iteration ends, or call close() if you mean it",
                UnreadRecordsWarning,
                stacklevel=2,
            )

    @abc.abstractmethod
    def close(self) -> None:
        """Gives everything back; idempotent."""

    @abc.abstractmethod
    def _left_behind(self) -> str:
        """What nobody has read, in words; empty when there is nothing, or when it was closed."""
