"""Lets threads use objects of an event loop while the loop waits for the system.

Takes: the loop, which admits threads once; threads. Gives: exclusive access to the data path.

The data path is synchronous and not thread-safe. One lock protects it: the loop releases the lock while it waits in
epoll and reacquires it before any of its tasks runs; a visiting thread holds it while it reads, writes or polls a gate,
and releases it before it waits. Without visitors there is no lock.

Rules:
- Only the loop starts, wakes or ends tasks: a visitor posts such actions (`soon`).
- A thread that waits for the lock gets it next, however often another one reacquires it: the turnstile.
- A frequent visitor keeps the lock between its calls until another thread wants it (`held_lock`).
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Final, final

import trio

from ...base.errors import LocalProtocolError
from .held_lock import Entry, HeldLock
from .interrupts import INTERRUPTS

MAIN: Final = threading.main_thread().ident
_CLOSED: Final = "the TaskManager is closed; open a new one"
_FORKED: Final = (
    "this process was forked from the process that runs the TaskManager; open one here (and start processes by"
    " spawn, or before you open one)"
)


def _nothing() -> None:
    """The default of `before_leaving`."""


@final
class LoopLock(trio.abc.Instrument):
    """The lock of one event loop; not in use until `open`."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Args: the loop's clock in seconds; visitors read it from their own threads."""
        self.now: Final = now
        self.is_inside = False
        """Whether a visitor is inside: then the running code is not in the loop's thread."""
        self.is_held = False
        """Whether the running code flushes the connections before other tasks run: data wakes no connection's task."""
        self.before_leaving: Callable[[], object] = _nothing
        """Called by each visitor before it leaves: sends what the visit has queued."""
        self._token: trio.lowlevel.TrioToken | None = None
        self._core = threading.Lock()
        self._turnstile = threading.Lock()
        self.entry = Entry(self._give_way)
        self._held: HeldLock | None = None
        self._visitor: int | None = None
        self._refusal = ""
        self._is_open = False

    def open(self) -> None:
        """Admits visitors from now on, whenever the loop waits. Called in the loop; idempotent."""
        if not self._is_open:
            self._is_open = True
            self._token = trio.lowlevel.current_trio_token()
            self._core.acquire()
            trio.lowlevel.add_instrument(self)
            _OPEN.add(self)

    # For visitors.

    def enter(self, held: HeldLock | None = None) -> None:
        """Waits until the loop waits, and takes the lock; until `leave` no other thread uses the loop's objects.

        Args:
            held: the lock as a visitor has it that may still hold it.

        Raises:
            LocalProtocolError: the loop has ended, or this thread is already inside: a format, a selector or a signal
                handler made this call inside another one.
        """
        if self._refusal:
            raise LocalProtocolError(self._refusal)
        if self.is_mine:
            raise LocalProtocolError(
                "called by a format, a selector or a signal handler inside another call, which would wait for itself;"
                " call it after that call has returned"
            )
        self.enter_again(held)

    def enter_again(self, held: HeldLock | None = None) -> None:
        """Enters, for a visitor that was inside and has to complete something; never refused."""
        thread = threading.get_ident()
        if thread == MAIN:
            INTERRUPTS.enter()
        if held is None or not held.is_held or not self._claim(held):
            self._take()
        self._visitor = thread
        self.is_inside = True

    def come_back(self) -> None:
        """Enters again after `leave`. In the main thread the caller has set `INTERRUPTS.is_inside` before this call."""
        while not self.is_mine:
            try:
                self.enter_again()
            except BaseException as error:  # of a handler that the program has just set, and so is not deferred yet
                INTERRUPTS.postpone(error)

    def leave(self, held: HeldLock | None = None) -> None:
        """Sends what the visit has queued, and releases the lock; with `held` only when another thread wants it.

        Raises:
            KeyboardInterrupt: in the main thread, if Ctrl-C came meanwhile.
        """
        try:
            self.before_leaving()
        finally:
            self.leave_quietly(held)

    def leave_quietly(self, held: HeldLock | None = None) -> None:
        """Leaves like `leave`, but sends nothing."""
        is_main = self._visitor == MAIN
        self._visitor = None
        if held is None:
            self.is_inside = False
            self._core.release()
        else:
            held.thread = threading.get_ident()
            if is_main:
                INTERRUPTS.held_locks.add(held)
            self._held = held
            held.is_held = True
            held.claim.append(None)  # last: from here on another thread may take the lock
            if self.entry.is_wanted:
                self._give_way(held)
        if is_main:
            INTERRUPTS.leave()

    def _give_way(self, held: HeldLock) -> None:
        """Releases a lock that is kept, unless another thread has taken it. Called between its calls."""
        if self._claim(held):
            self._core.release()
        if held.thread == MAIN:
            INTERRUPTS.leave()

    @property
    def is_over(self) -> bool:
        """Whether the loop has ended, so that every visit is refused."""
        return bool(self._refusal)

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from the one in which the loop runs."""
        return self._refusal is _FORKED

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread is inside; a visitor that keeps the lock is not, between its calls."""
        thread = threading.get_ident()
        held = self._held
        return self._visitor == thread or (held is not None and held.is_active and held.thread == thread)

    # For visitors and the loop.

    def soon(self, action: Callable[[], object]) -> None:
        """Runs `action` now if in the loop, otherwise posts it to the loop. It must not raise."""
        if not self.is_inside or self._token is None:
            action()
            return
        with contextlib.suppress(trio.RunFinishedError):  # the loop has ended
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
        """Resets the lock in a forked child, where no loop runs."""
        self._refusal = _FORKED
        self._core = threading.Lock()
        self._turnstile = threading.Lock()
        self.entry.is_wanted = False
        if self._held is not None:
            self._claim(self._held)

    # Inside.

    def _take(self) -> None:
        if self.entry.is_wanted or not self._core.acquire(False):
            with self._turnstile:
                self.entry.is_wanted = True
                held = self._held
                if held is None or held.is_active or not self._claim(held):
                    self._core.acquire()
                self.entry.is_wanted = False

    def _claim(self, held: HeldLock) -> bool:
        """Takes the lock from the visitor that keeps it. Returns whether it still had it."""
        try:
            held.claim.pop()
        except IndexError:
            return False
        held.is_held = False
        self._held = None
        self.is_inside = False
        INTERRUPTS.held_locks.discard(held)
        return True


_OPEN: Final[weakref.WeakSet[LoopLock]] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_OPEN):
        lock.forget()


os.register_at_fork(after_in_child=_after_fork)
