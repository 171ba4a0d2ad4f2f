"""The connection between a blocking thread and the thread in which trio runs.

Takes: async functions, from any thread. Gives: their results or errors, to the calling thread.

Rules:
- A portal has one thread with one trio loop. It is a daemon thread, so a program that does not close it still exits.
- A call returns when its function has ended. A timeout, or an exception of a signal handler (Ctrl-C), cancels the
  function and waits for its end, so the caller always knows the outcome.
- No call waits for a thread that has ended: calls in progress raise LocalProtocolError then.
- A forked child has no such thread: every call raises there.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

import trio

from ...base.errors import ConfigError, LocalProtocolError
from ..waiting.interrupts import INTERRUPTS

if TYPE_CHECKING:
    from ..waiting.loop_lock import LoopLock

T = TypeVar("T")
R = TypeVar("R")

_CLOSED: Final = "the TaskManager is closed; open a new one"


class _Abandoned(Exception):
    """Leaves the opened block like an error: without goodbyes."""


@final
class _Call(Generic[T]):
    """One function call; created by the calling thread, run in trio's thread."""

    __slots__ = ("_action", "_done", "_error", "_is_begun", "_is_done", "_on_end", "_result", "_scope", "_timeout_s")

    def __init__(
        self,
        action: Callable[[], Awaitable[T]],
        timeout_s: float | None,
        what: str,
        on_end: Callable[[], object] | None = None,
    ) -> None:
        self._action = action
        self._on_end = on_end
        self._timeout_s = timeout_s
        self._scope = trio.CancelScope()
        self._is_begun = False
        self._result: list[T] = []
        self._error: BaseException = TimeoutError(f"{what}: not within {timeout_s} s")
        self._is_done = False
        self._done = threading.Lock()
        self._done.acquire()

    def begin(self, nursery: trio.Nursery) -> None:
        """Starts the function, once."""
        if not self._is_begun:
            self._is_begun = True
            nursery.start_soon(self._run)

    def cancel(self) -> None:
        """Cancels the function."""
        self._scope.cancel()

    def fail(self, error: BaseException) -> None:
        """Ends a call whose thread has ended; no effect if the call is over."""
        if not self._is_done:
            self._error = error
            self._end()

    def wait(self) -> None:
        """Waits for the end of the call, outside; can be repeated after an exception of a signal handler."""
        if not self._is_done:  # otherwise the lock may have been acquired just before that exception
            self._done.acquire()

    def outcome(self) -> T:
        """Returns the result, or raises the error."""
        for result in self._result:
            return result
        raise self._error

    async def _run(self) -> None:
        try:
            if self._timeout_s is not None:
                self._scope.deadline = trio.current_time() + self._timeout_s
            with self._scope:
                self._result.append(await self._action())
        except trio.Cancelled:
            self._error = LocalProtocolError("the TaskManager was closed while this call waited; open a new one")
            raise
        except BaseException as error:  # any error belongs to the caller
            self._error = error
        finally:
            self._end()

    def _end(self) -> None:
        self._is_done = True
        self._done.release()
        if self._on_end is not None:
            self._on_end()


@final
class _Latch:
    """Opened once, in one thread; others wait for it.

    An exception of a signal handler could leave the lock of a `threading.Event` held for ever. `with` releases a lock
    that is written in C whatever happens.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._is_set = False

    def set(self) -> None:
        if not self._is_set:
            self._is_set = True
            self._lock.release()

    def wait(self) -> None:
        with self._lock:
            pass


@final
class Started(Generic[T]):
    """A running function, whose end is signalled by a callback (`Portal.start`)."""

    def __init__(self, portal: Portal[Any], call: _Call[T]) -> None:
        """Called by `Portal.start`."""
        self._portal = portal
        self._call = call

    def cancel(self) -> None:
        """Cancels the function; its end is signalled as usual."""
        with contextlib.suppress(LocalProtocolError):
            self._portal.post(self._call.cancel)

    def outcome(self) -> T:
        """Returns the result, or raises the error. To be called once, after the end."""
        self._portal.forget(self._call)
        return self._call.outcome()


@final
class Portal(Generic[T]):
    """A thread that runs trio, and an object that stays open there as long as the thread runs.

    Attributes:
        inside: the opened object; may be used in the thread only.
    """

    inside: T

    def __init__(self, open_inside: Callable[[], AbstractAsyncContextManager[T]], name: str) -> None:
        """Starts the thread and waits until the object is open.

        Args:
            open_inside: creates the context manager that is entered in the thread.
            name: the name of the thread.

        Raises:
            BaseException: the error raised on entry.
        """
        self._open_inside = open_inside
        self._pid = os.getpid()
        self._calls: dict[_Call[Any], None] = {}
        self._is_over = False
        self._crash: BaseException | None = None
        self._is_clean = True
        self._token: trio.lowlevel.TrioToken | None = None
        self.loop_lock: LoopLock | None = None
        """The lock for readers and writers that do not use this portal; None if there are none."""
        self._opened, self._ended = _Latch(), _Latch()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        try:
            INTERRUPTS.shield(self._thread.start)
            self._opened.wait()
        except BaseException:  # of a signal handler, unless the system starts no thread
            if self._thread.ident is not None:
                self.close(clean=False)
            raise
        self._raise_crash()

    def call(self, action: Callable[[], Awaitable[R]], *, timeout_s: float | None, what: str) -> R:
        """Runs an async function in the thread and waits for its end.

        Args:
            action: called and awaited there.
            timeout_s: the longest it may take; None means no limit.
            what: describes the call in error messages.

        Raises:
            TimeoutError: the time is up; the function was cancelled.
            LocalProtocolError: the thread has ended, or ends meanwhile; or the caller is that thread or a forked
                process.
            ConfigError: the timeout is negative.
            BaseException: the error raised by the function.
        """
        check_timeout(timeout_s)
        self._check_thread(what)
        call = _Call(action, timeout_s, what)
        self._calls[call] = None
        try:
            try:
                self.post(lambda: self._begin(call))
                call.wait()
            except LocalProtocolError:
                raise
            except BaseException:  # of a signal handler: Ctrl-C
                with contextlib.suppress(LocalProtocolError):
                    self.post(call.cancel)
                    self.post(lambda: self._begin(call))  # if it has not started, it starts cancelled and ends at once
                    call.wait()
                raise
        finally:
            self._calls.pop(call, None)
        return call.outcome()

    def end(self, action: Callable[[], object], *, what: str) -> None:
        """Runs a function that closes something in the thread; no effect if the thread has ended, which closed it.

        Raises:
            LocalProtocolError: the caller is that thread or a forked process.
        """

        async def end_inside() -> None:
            action()

        try:
            self.call(end_inside, timeout_s=None, what=what)
        except LocalProtocolError:
            if not (self._is_over or self._closing.is_set()):
                raise

    def start(self, action: Callable[[], Awaitable[R]], *, what: str, on_end: Callable[[], object]) -> Started[R]:
        """Starts an async function in the thread without waiting; for event loops other than trio.

        Args:
            action: called and awaited there.
            what: describes the call in error messages.
            on_end: called once, in that thread, when the function has ended; must not raise.

        Raises:
            LocalProtocolError: it cannot start, as for `call`.
        """
        self._check_thread(what)
        call = _Call(action, None, what, on_end)
        self._calls[call] = None
        try:
            self.post(lambda: self._begin(call))
        except BaseException:
            self._calls.pop(call, None)
            raise
        return Started(self, call)

    def post(self, action: Callable[[], object]) -> None:
        """Schedules `action` in the thread, in order; it must not raise. Does not wait.

        Raises:
            LocalProtocolError: the thread has ended, or this is a forked process.
        """
        if self._pid != os.getpid():
            raise LocalProtocolError(
                "this process was forked from the process that runs the TaskManager; open one here (and start processes"
                " by spawn, or before you open one)"
            )
        if self._is_over or self._token is None:
            raise LocalProtocolError(_CLOSED) from self._crash
        try:
            self._token.run_sync_soon(action)
        except trio.RunFinishedError:
            raise LocalProtocolError(_CLOSED) from self._crash

    def forget(self, call: _Call[Any]) -> None:
        """Removes a call whose outcome was collected."""
        self._calls.pop(call, None)

    def start_task(self, task: Callable[[], Awaitable[None]]) -> None:
        """Runs a task until the thread ends. Called in the thread."""
        self._nursery.start_soon(task)

    def close(self, *, clean: bool) -> None:
        """Ends the thread and waits for it. Idempotent; no effect in a forked process.

        Args:
            clean: whether to leave the opened block normally rather than as after an error.

        Raises:
            BaseException: the error that ended the thread before.
            LocalProtocolError: called in that thread.
        """
        if self._pid != os.getpid():
            return
        if threading.current_thread() is self._thread:
            raise LocalProtocolError("the TaskManager cannot be closed in its own thread; close it in another thread")
        self._opened.wait()
        if not self._is_over:
            with contextlib.suppress(LocalProtocolError):  # the thread ended meanwhile
                self.post(lambda: self._end(clean))
        self._join()
        self._raise_crash()

    def _check_thread(self, what: str) -> None:
        if threading.current_thread() is self._thread:
            raise LocalProtocolError(
                f"{what}: called in the TaskManager's own thread, by a format or a selector, where it would wait for"
                " itself; call it in another thread"
            )
        if self.loop_lock is not None and self.loop_lock.is_mine:
            raise LocalProtocolError(
                f"{what}: called by a format, a selector or a signal handler inside another call, for which it would"
                " wait; call it after that call has returned"
            )

    def _join(self) -> None:
        self._ended.wait()
        INTERRUPTS.shield(self._thread.join)

    def _raise_crash(self) -> None:
        """Raises the error that ended the thread, once."""
        crash, self._crash = self._crash, None
        if crash is not None:
            self._join()
            raise crash

    def _begin(self, call: _Call[Any]) -> None:
        if self._closing.is_set():
            call.fail(LocalProtocolError(_CLOSED))
        else:
            call.begin(self._nursery)

    def _end(self, clean: bool) -> None:
        self._is_clean = self._is_clean and clean
        self._closing.set()

    def _live(self) -> None:
        try:
            trio.run(self._main)
        except _Abandoned:
            pass
        except BaseException as error:  # `_raise_crash` raises it in the thread that joins
            self._crash = error
        finally:
            self._is_over = True  # before the calls are failed: later calls are refused
            for call in list(self._calls):
                call.fail(LocalProtocolError(_CLOSED))
            self._opened.set()
            self._ended.set()

    async def _main(self) -> None:
        async with self._open_inside() as inside:
            async with trio.open_nursery() as self._nursery:
                self._closing = trio.Event()
                self.inside = inside
                self._token = trio.lowlevel.current_trio_token()
                self._opened.set()
                try:
                    await self._closing.wait()
                finally:
                    self._closing.set()  # from here on no call starts
                self._nursery.cancel_scope.cancel()
            if not self._is_clean:
                raise _Abandoned


def check_timeout(timeout_s: object) -> None:
    """Raises ConfigError for a timeout that is negative or no number."""
    if timeout_s is not None and not (isinstance(timeout_s, Real) and float(timeout_s) >= 0):
        raise ConfigError(f"timeout_s={timeout_s!r}; give 0, seconds above 0, or None for no limit")
