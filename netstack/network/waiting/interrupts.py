"""Defers signal handlers while the main thread is inside the data path, where an exception would corrupt state.

Takes: whether the main thread is inside. Gives: calls of the handlers when it has left.

Rules: one for every handler of the program, Python's for Ctrl-C included: it runs where the program is outside, at the
next such place. What it raises ends the call there, as a timeout would. Handlers of event loops (trio, asyncio), which
do not raise and are compared by identity, are left alone.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import signal
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, final

if TYPE_CHECKING:
    from .held_lock import HeldLock

Handler = Callable[[int, FrameType | None], object]
_LOOPS: Final = ("trio", "asyncio")
_NUMBERS: Final = tuple(int(number) for number in signal.valid_signals())
_handler_of: Final[Callable[[int], Any]] = importlib.import_module("_signal").getsignal
"""`signal.getsignal` without its enums: all signals take 2 us instead of 40."""


@final
class Deferring:
    """A signal handler that runs another one at once, or when the main thread has left the data path."""

    __slots__ = ("_interrupts", "handler")

    def __init__(self, handler: Handler, interrupts: Interrupts) -> None:
        self.handler = handler
        self._interrupts = interrupts

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Called by Python between two bytecodes of the main thread."""
        if not self._interrupts.defers(functools.partial(self.handler, number, frame)):
            self.handler(number, frame)


@final
class Interrupts:
    """The state of the main thread; `INTERRUPTS` is the only instance."""

    __slots__ = ("_deferred", "_known", "held_locks", "is_inside")

    def __init__(self) -> None:
        self.is_inside = False
        """Whether the main thread is inside; only the main thread sets this."""
        self.held_locks: set[HeldLock] = set()
        """Locks that the main thread keeps: it may be inside without setting `is_inside`."""
        self._deferred: deque[Callable[[], object]] = deque()
        self._known: tuple[Any, ...] = ()  # the handlers of all signals at the last visit

    def enter(self) -> None:
        """Marks the main thread as inside. Handlers that the program has set since are deferred too from now on."""
        self.is_inside = True
        handlers = tuple(map(_handler_of, _NUMBERS))
        if handlers == self._known:
            return
        for number, handler in zip(_NUMBERS, handlers, strict=True):
            if callable(handler) and type(handler) is not Deferring and not _is_of_a_loop(handler):
                with contextlib.suppress(ValueError):  # this is not the main interpreter
                    signal.signal(number, Deferring(handler, self))
        self._known = tuple(map(_handler_of, _NUMBERS))

    def protect(self) -> None:
        """Defers handlers that are set now, before the first visit; no effect outside the main thread."""
        if threading.current_thread() is threading.main_thread() and not self.is_inside:
            self.enter()
            self.leave()

    def shield(self, action: Callable[[], object]) -> None:
        """Runs a short action that an exception of a signal handler would leave half done; handlers run afterwards."""
        if self.is_inside or threading.current_thread() is not threading.main_thread():
            action()
            return
        try:
            self.enter()
            action()
        finally:
            self.leave()

    def leave(self) -> None:
        """Marks the main thread as outside, and runs the deferred handlers. Raises what the last one raises."""
        self.is_inside = False
        if self._deferred:
            self._run_deferred()

    def postpone(self, error: BaseException) -> None:
        """Defers an error that was caught where its catcher cannot end: the next `leave` raises it."""

        def again() -> None:
            raise error

        self._deferred.append(again)

    def defers(self, action: Callable[[], object]) -> bool:
        """Defers what a signal asks for if the main thread is inside. Returns whether it is."""
        active = [held for held in list(self.held_locks) if held.is_active]
        for held in active:
            held.entry.is_wanted = True  # so that it calls `leave` when its call ends
        if not (self.is_inside or active):
            return False
        self._deferred.append(action)
        return True

    def _run_deferred(self) -> None:
        try:
            self._deferred.popleft()()
        finally:
            if self._deferred:
                self._run_deferred()


def _is_of_a_loop(handler: Any) -> bool:
    while isinstance(handler, functools.partial):
        handler = handler.func
    return str(getattr(handler, "__module__", "")).partition(".")[0] in _LOOPS


INTERRUPTS = Interrupts()
