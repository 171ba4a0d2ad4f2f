"""Ctrl-C and SIGTERM act alike: results are kept, every process is ended, no folder in `/tmp` remains."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import final


@final
class _Stopped:
    by = "Ctrl-C"


@contextlib.contextmanager
def sigterm_is_ctrl_c() -> Iterator[None]:
    """Makes SIGTERM act like Ctrl-C inside the block; does nothing outside of the main thread.

    A shell script ignores SIGINT in what it starts with `&`. Inside the block it is not ignored; SIGTERM would be too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        _Stopped.by = "SIGTERM"
        signal.raise_signal(signal.SIGINT)  # a handler of its own for Ctrl-C (trio's) then handles this too

    _Stopped.by = "Ctrl-C"
    before = signal.signal(signal.SIGTERM, interrupt)
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if is_ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if is_ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def stopped_by() -> str:
    """`Ctrl-C` or `SIGTERM`, for messages."""
    return _Stopped.by
