"""Threads that use what an event loop owns, in the moments in which the loop waits for the system.

Takes: the loop, which opens its door once; threads that come and go. Gives: the data path to one of them at a time.

The data path is synchronous and knows no threads. So it has one lock, held by whoever works: the loop lets it go while
it waits in epoll and has it back before any of its tasks runs; a visitor holds it while it reads, writes, polls a gate,
and lets it go before it waits for anything. Where nobody visits there is no lock.

Rules:
- What wakes tasks, starts them or ends them is the loop's: a visitor posts it (`soon`).
- Who waits for the lock gets it next, whoever else is in a hurry: the turnstile.
- The loop cannot end while somebody is inside; when it has ended, everybody is refused.
- Ctrl-C while the main thread is inside is put off until it is out, as trio does it, and only where SIGINT does what
  Python makes it do. Another handler that raises strikes where the program happens to be: inside, it ends the
  connection, the reader or the writer it hits.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Final, final

import trio

from ..errors import LocalProtocolError


@final
class Interrupts:
    """There is one main thread, so there is one of these (`INTERRUPTS`)."""

    __slots__ = ("_is_pending", "is_inside")

    def __init__(self) -> None:
        self.is_inside = False
        """Whether the main thread is inside; only it sets this."""
        self._is_pending = False

    def protect(self) -> None:
        """From now on Ctrl-C is put off; in another thread than the main one, or with a handler of somebody's, not."""
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            signal.signal(signal.SIGINT, self._on_signal)

    def leave(self) -> None:
        """The main thread is out. Raises KeyboardInterrupt if there was one."""
        self.is_inside = False
        if self._is_pending:
            self._is_pending = False
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_inside:
            self._is_pending = True
        else:
            signal.default_int_handler(number, frame)


INTERRUPTS = Interrupts()


_MAIN: Final = threading.main_thread().ident
_CLOSED: Final = "the TaskManager is closed; open a new one"
_FORKED: Final = (
    "this process was forked from the one whose thread runs the TaskManager; open one here (and start processes by"
    " spawn, or before you open one)"
)


def _nothing() -> None:
    """Nobody has anything to send."""


@final
class Visits(trio.abc.Instrument):
    """The door of one event loop; closed until `open`."""

    def __init__(self) -> None:
        self.is_inside = False
        """Whether a visitor is inside: whatever runs then is not in the loop's thread."""
        self.before_leaving: Callable[[], object] = _nothing
        """Called by each visitor on its way out: sends what it has caused."""
        self._clock: Callable[[], float] = trio.current_time
        self._token: trio.lowlevel.TrioToken | None = None
        self._core = threading.Lock()
        self._turnstile = threading.Lock()
        self._is_wanted = False
        self._visitor: int | None = None
        self._refusal = ""
        self._is_open = False

    def open(self) -> None:
        """Lets visitors in from now on, whenever the loop waits. Called in the loop; idempotent."""
        if not self._is_open:
            self._is_open = True
            self._clock = trio.lowlevel.current_clock().current_time
            self._token = trio.lowlevel.current_trio_token()
            self._core.acquire()
            trio.lowlevel.add_instrument(self)
            _OPEN.add(self)

    # For visitors.

    def enter(self) -> None:
        """Waits until the loop waits, which is soon; until `leave` nothing else touches what the loop owns.

        Raises:
            LocalProtocolError: the loop has ended, or this thread is inside already: a format, a selector, or a signal
                handler calls what it is called by.
        """
        if self._refusal:
            raise LocalProtocolError(self._refusal)
        thread = threading.get_ident()
        if self._visitor == thread:
            raise LocalProtocolError(
                "called by a format, a selector or a signal handler, inside of another call, which would wait for"
                " itself; call it when that has returned"
            )
        self.enter_again()

    def enter_again(self) -> None:
        """As `enter`, for who was inside and has something to bring to its end; never refused."""
        thread = threading.get_ident()
        if thread == _MAIN:
            INTERRUPTS.is_inside = True
        if self._is_wanted or not self._core.acquire(False):
            self._is_wanted = True
            with self._turnstile:
                self._core.acquire()
                self._is_wanted = False
        self._visitor = thread
        self.is_inside = True

    def leave(self) -> None:
        """Sends what the visit has caused, and lets others in.

        Raises:
            KeyboardInterrupt: in the main thread, if Ctrl-C came meanwhile.
        """
        try:
            self.before_leaving()
        finally:
            self.leave_quietly()

    def leave_quietly(self) -> None:
        """As `leave`, but sends nothing."""
        is_main = self._visitor == _MAIN
        self.is_inside = False
        self._visitor = None
        self._core.release()
        if is_main:
            INTERRUPTS.leave()

    @property
    def is_over(self) -> bool:
        """Whether the loop has ended: nobody gets in any more."""
        return bool(self._refusal)

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread is inside."""
        return self._visitor == threading.get_ident()

    # For whatever both do.

    def now(self) -> float:
        """The loop's time."""
        return self._clock()

    def soon(self, action: Callable[[], object]) -> None:
        """Does it now in the loop, or has the loop do it soon. It must not raise."""
        if not self.is_inside or self._token is None:
            action()
            return
        with contextlib.suppress(trio.RunFinishedError):  # who unwinds after the end has nobody to tell
            self._token.run_sync_soon(action)

    # The loop.

    def before_io_wait(self, timeout: float) -> None:
        """See `trio.abc.Instrument`."""
        self._core.release()

    def after_io_wait(self, timeout: float) -> None:
        """See `trio.abc.Instrument`."""
        if not self._core.acquire(False):
            self._is_wanted = True
            with self._turnstile:
                self._core.acquire()
                self._is_wanted = False

    def after_run(self) -> None:
        """See `trio.abc.Instrument`."""
        self._refusal = _CLOSED
        self._core.release()

    def forget(self) -> None:
        """This is a forked child, where no loop runs."""
        self._refusal = _FORKED
        self._core = threading.Lock()
        self._turnstile = threading.Lock()
        self._is_wanted = False


_OPEN: Final[weakref.WeakSet[Visits]] = weakref.WeakSet()


def _after_fork() -> None:
    for visits in list(_OPEN):
        visits.forget()


os.register_at_fork(after_in_child=_after_fork)
