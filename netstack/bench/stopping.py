"""Ctrl-C, SIGTERM and SIGHUP act alike: results are kept, every process is ended, no folder in `/tmp` remains.

SIGHUP says that the terminal was closed.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final, final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


@final
class _Signal:
    by = "Ctrl-C"


@contextlib.contextmanager
def signals_are_ctrl_c() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP act like Ctrl-C inside the block; does nothing outside of the main thread.

    `nohup` ignores SIGHUP, and it stays ignored.

    A shell script ignores SIGINT in what it starts with `&`. Inside the block it is not ignored; SIGTERM would be too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, _frame: FrameType | None) -> None:
        _Signal.by = signal.Signals(number).name
        signal.raise_signal(signal.SIGINT)  # a handler of its own for Ctrl-C (trio's) then handles this too

    _Signal.by = "Ctrl-C"
    handled = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN or each is signal.SIGTERM]
    before = {each: signal.signal(each, interrupt) for each in handled}
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if is_ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        if is_ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def unwrapped_interrupt() -> Iterator[None]:
    """Turns a group with a Ctrl-C (as a nursery raises it) into the plain KeyboardInterrupt."""
    try:
        yield
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        raise KeyboardInterrupt from group


@final
class Stopped:
    """Whether a block was stopped: `by` is then that of `stopped_by`, else None."""

    by: str | None = None


@contextlib.contextmanager
def kept_at_interrupt(has_results: Callable[[], bool]) -> Iterator[Stopped]:
    """Ends the block at Ctrl-C, which is raised only if nothing has been measured."""
    stopped = Stopped()
    try:
        with unwrapped_interrupt():
            yield stopped
    except KeyboardInterrupt:
        if not has_results():
            raise
        stopped.by = stopped_by()


def stopped_by() -> str:
    """`Ctrl-C`, `SIGTERM` or `SIGHUP`, for messages."""
    return _Signal.by
