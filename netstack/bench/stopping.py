"""Ctrl-C, SIGTERM and SIGHUP act alike: results are kept, every process is ended, no folder in `/tmp` remains.

SIGHUP says that the terminal was closed.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final, final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


@final
class _Stopped:
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
        _Stopped.by = signal.Signals(number).name
        signal.raise_signal(signal.SIGINT)  # a handler of its own for Ctrl-C (trio's) then handles this too

    _Stopped.by = "Ctrl-C"
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


def stopped_by() -> str:
    """`Ctrl-C`, `SIGTERM` or `SIGHUP`, for messages."""
    return _Stopped.by
