"""Ctrl-C, SIGTERM and SIGHUP stop a command alike, which then ends with 128 and the number of the signal.

Takes: signals of this process. Gives: KeyboardInterrupt in its main thread; the exit code.

Rules: SIGHUP says that the terminal was closed. What a command measured or recorded until then is kept. A failure has
its own exit code, also in a command that was stopped. A service, which only a signal ends, ends with 0.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final, final

from ..base.errors import NetstackError

_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


@final
class _Signal:
    number = signal.SIGINT
    is_kept = False


class StoppedBySignal(NetstackError):
    """A signal stopped the command; the text says which, and what is kept."""


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
        _Signal.number = signal.Signals(number)
        signal.raise_signal(signal.SIGINT)  # a handler of its own for Ctrl-C (trio's) then handles this too

    _Signal.number, _Signal.is_kept = signal.SIGINT, False
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


def note_signal(number: int) -> None:
    """Says which signal a handler of the command's own received."""
    _Signal.number = signal.Signals(number)


def stopped_by() -> str:
    """The signal that stopped the command, for messages: `Ctrl-C`, `SIGTERM` or `SIGHUP`."""
    return "Ctrl-C" if _Signal.number == signal.SIGINT else _Signal.number.name


def keep_results() -> None:
    """Says that the command was stopped and shows its results until then: it will end with `stop_code`."""
    _Signal.is_kept = True


def stop_code() -> int:
    """The exit code of a command that was stopped: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""
    return 128 + _Signal.number


def exit_code(code: int) -> int:
    """The exit code of a command that returned `code`: its failure, else `stop_code` if a signal stopped it."""
    return code or (stop_code() if _Signal.is_kept else 0)
