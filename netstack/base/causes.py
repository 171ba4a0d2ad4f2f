"""The root cause of a failure: the first error in a group that is not a cancellation.

Takes: the error raised by a task. Gives: the error to report.
"""

from __future__ import annotations

import trio

from .errors import ChannelFailed, ConnectionLost, ConsumerLost, PoolDestroyed
from .text.safe_text import error_text


def root_cause(error: BaseException) -> BaseException:
    """Returns the first error in a group that is not a cancellation."""
    waiting, canceled = [error], error
    while waiting:  # groups may be nested deeper than calls may be
        canceled = waiting.pop()
        if isinstance(canceled, BaseExceptionGroup):
            waiting += reversed(canceled.exceptions)
        elif not isinstance(canceled, trio.Cancelled):
            return canceled
    return canceled


def is_secondary(error: BaseException) -> bool:
    """Whether the error follows from another failure: a lost connection or peer, or a run that is being closed."""
    return isinstance(error, ConnectionLost | ChannelFailed | ConsumerLost | PoolDestroyed)


def cause_text(error: BaseException) -> str:
    """The error's class and text, to be sent to another process."""
    return f"{type(error).__name__}: {error_text(error)}"
