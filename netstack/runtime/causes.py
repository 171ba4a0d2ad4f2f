"""Which error began it all: of a group the first that is no cancellation, and whether somebody else is to blame.

Takes: what a task raised. Gives: the error to report.
"""

from __future__ import annotations

import trio

from ..errors import ChannelFailed, ConnectionLost, PoolDestroyed
from ..shown import error_text


def root_cause(error: BaseException) -> BaseException:
    """The first error in a group that is more than a cancellation."""
    waiting, canceled = [error], error
    while waiting:  # groups may be nested deeper than calls may be
        canceled = waiting.pop()
        if isinstance(canceled, BaseExceptionGroup):
            waiting += reversed(canceled.exceptions)
        elif not isinstance(canceled, trio.Cancelled):
            return canceled
    return canceled


def is_secondary(error: BaseException) -> bool:
    """Whether the cause lies with somebody else: a connection or a producer was lost, the run is being closed."""
    return isinstance(error, ConnectionLost | ChannelFailed | PoolDestroyed)


def cause_text(error: BaseException) -> str:
    """The error's class and text, for another process."""
    return f"{type(error).__name__}: {error_text(error)}"
