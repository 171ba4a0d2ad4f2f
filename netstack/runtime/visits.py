"""Threads that use what an event loop owns, in the moments in which the loop waits for the system.

Takes: the loop, which opens its door once; threads that come and go. Gives: the data path to one of them at a time.

The data path is synchronous and knows no threads. So it has one lock, held by whoever works: the loop lets it go while
it waits in epoll and has it back before any of its tasks runs; a visitor holds it while it reads, writes, polls a gate,
and lets it go before it waits for anything. Where nobody visits there is no lock.

Rules:
- What wakes tasks, starts them or ends them is the loop's: a visitor posts it (`soon`).
- Who waits for the lock gets it next, whoever else is in a hurry: the turnstile.
- A visitor that comes again and again stays (`staying`): it keeps the lock until somebody else wants it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Final, final

import trio

from ..errors import LocalProtocolError
from .interrupts import INTERRUPTS
from .staying import Door, Stay

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

    def __init__(self, now: Callable[[], float]) -> None:
        """Args: the loop's clock in seconds; visitors read it from their own threads."""
        self.now: Final = now
        self.is_inside = False
        """Whether a visitor is inside: whatever runs then is not in the loop's thread."""
        self.before_leaving: Callable[[], object] = _nothing
        """Called by each visitor on its way out: sends what it has caused."""
        self._token: trio.lowlevel.TrioToken | None = None
        self._core = threading.Lock()
        self._turnstile = threading.Lock()
        self.door = Door(self._give_way)
        self._resident: Stay | None = None
        self._visitor: int | None = None
        self._refusal = ""
        self._is_open = False

    def open(self) -> None:
        """Lets visitors in from now on, whenever the loop waits. Called in the loop; idempotent."""
        if not self._is_open:
            self._is_open = True
            self._token = trio.lowlevel.current_trio_token()
            self._core.acquire()
            trio.lowlevel.add_instrument(self)
            _OPEN.add(self)

    # For visitors.

    def enter(self, stay: Stay | None = None) -> None:
        """Waits until the loop waits, which is soon; until `leave` nothing else touches what the loop owns.

        Args:
            stay: of who may have the lock still.

        Raises:
            LocalProtocolError: the loop has ended, or this thread is inside already: a format, a selector, or a signal
                handler calls what it is called by.
        """
        if self._refusal:
            raise LocalProtocolError(self._refusal)
        if self.is_mine:
            raise LocalProtocolError(
                "called by a format, a selector or a signal handler, inside of another call, which would wait for"
                " itself; call it when that has returned"
            )
        self.enter_again(stay)

    def enter_again(self, stay: Stay | None = None) -> None:
        """Enters, for a visitor that was inside and has something to bring to its end; never refused."""
        thread = threading.get_ident()
        if thread == _MAIN:
            INTERRUPTS.is_inside = True
        if stay is None or not stay.is_resident or not self._claim(stay):
            self._take()
        self._visitor = thread
        self.is_inside = True

    def leave(self, stay: Stay | None = None) -> None:
        """Sends what the visit has caused, and lets others in: at once, or, if it stays, as soon as one wants to.

        Raises:
            KeyboardInterrupt: in the main thread, if Ctrl-C came meanwhile.
        """
        try:
            self.before_leaving()
        finally:
            self.leave_quietly(stay)

    def leave_quietly(self, stay: Stay | None = None) -> None:
        """Leaves like `leave`, but sends nothing."""
        is_main = self._visitor == _MAIN
        self._visitor = None
        if stay is None:
            self.is_inside = False
            self._core.release()
        else:
            stay.thread = threading.get_ident()
            if is_main:
                INTERRUPTS.stays.add(stay)
            self._resident = stay
            stay.is_resident = True
            stay.claim.append(None)  # last: from here on somebody else may have the lock
            if self.door.is_wanted:
                self._give_way(stay)
        if is_main:
            INTERRUPTS.leave()

    def _give_way(self, stay: Stay) -> None:
        """Lets the next visitor in, unless it has taken the lock by now. Called between its calls."""
        if self._claim(stay):
            self._core.release()
        if stay.thread == _MAIN:
            INTERRUPTS.leave()

    @property
    def is_over(self) -> bool:
        """Whether the loop has ended: nobody gets in any more."""
        return bool(self._refusal)

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread is inside, and not only stays."""
        thread = threading.get_ident()
        resident = self._resident
        return self._visitor == thread or (resident is not None and resident.is_active and resident.thread == thread)

    # For whatever both do.

    def soon(self, action: Callable[[], object]) -> None:
        """Does it now in the loop, or has the loop do it soon. It must not raise."""
        if not self.is_inside or self._token is None:
            action()
            return
        with contextlib.suppress(trio.RunFinishedError):  # who unwinds after the end has nobody to tell
            self._token.run_sync_soon(action)

    # The loop.

    def before_io_wait(self, timeout: float) -> None:
        """Called by trio (`trio.abc.Instrument`)."""
        self._core.release()

    def after_io_wait(self, timeout: float) -> None:
        """Called by trio (`trio.abc.Instrument`)."""
        self._take()

    def after_run(self) -> None:
        """Called by trio (`trio.abc.Instrument`)."""
        self._refusal = _CLOSED
        self._core.release()

    def forget(self) -> None:
        """This is a forked child, where no loop runs."""
        self._refusal = _FORKED
        self._core = threading.Lock()
        self._turnstile = threading.Lock()
        self.door.is_wanted = False
        if self._resident is not None:
            self._claim(self._resident)

    # Inside.

    def _take(self) -> None:
        """Waits for the lock."""
        if self.door.is_wanted or not self._core.acquire(False):
            with self._turnstile:
                self.door.is_wanted = True
                resident = self._resident
                if resident is None or resident.is_active or not self._claim(resident):
                    self._core.acquire()
                self.door.is_wanted = False

    def _claim(self, stay: Stay) -> bool:
        """Takes the lock from who stays. Returns whether it was there."""
        try:
            stay.claim.pop()
        except IndexError:
            return False
        stay.is_resident = False
        self._resident = None
        self.is_inside = False
        INTERRUPTS.stays.discard(stay)
        return True


_OPEN: Final[weakref.WeakSet[Visits]] = weakref.WeakSet()


def _after_fork() -> None:
    for door in list(_OPEN):
        door.forget()


os.register_at_fork(after_in_child=_after_fork)
