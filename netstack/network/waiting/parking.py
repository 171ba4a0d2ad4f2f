"""Where readers and writers wait: a task in its event loop; a thread, or an asyncio task, at its sockets.

Takes: how long to poll before parking, and a function that polls. Gives: a wait that ends by `wake`, or when data
arrives at a socket.

Readers and writers are written once, as async functions, and run in two ways. A trio task awaits them. A thread drives
them by hand as a visitor of the loop (`loop_lock`): where they wait, control returns to `ThreadParking.run`, which
leaves the data path, polls the sockets and its own pipe, enters again and resumes them. An asyncio task does the same
(`run_in_asyncio`), but its loop polls.
"""

from __future__ import annotations

import contextlib
import os
import select
import types
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from threading import get_ident
from time import monotonic
from typing import Any, Final, Protocol, TypeVar, final

import trio

from ...base.timing.wakeup import Signal
from ...base.transport import ByteStream
from .held_lock import HeldLock
from .interrupts import INTERRUPTS
from .loop_lock import MAIN, LoopLock
from .spin import Spinner, offer_processor

R = TypeVar("R")

LONGEST_S: Final = 60.0
"""A thread polls again after this time at the latest."""


class PolledConnection(Protocol):
    """What a waiting thread needs of a connection whose socket it polls."""

    @property
    def stream(self) -> ByteStream:
        """Its stream."""

    @property
    def is_plain(self) -> bool:
        """Whether the stream is a socket, which a thread may use without the loop."""

    @property
    def is_ending(self) -> bool:
        """Whether the connection is over, or the loop will end it next."""


class Parking(Protocol):
    """Where a reader or a writer waits."""

    def wake(self) -> None:
        """Ends the current wait, if any; called by the loop or a visitor."""

    async def checkpoint(self) -> None:
        """Lets other tasks of the loop run, if there are any."""

    async def wait(self, spin_s: float, look: Callable[[], bool]) -> None:
        """Waits until `wake`; polls for at most `spin_s` before it parks. Cancellation: no effect."""

    def move_on_after(self, seconds: float) -> contextlib.AbstractContextManager[object]:
        """Ends the block, without an error, if it still waits after this time."""


@final
class TaskParking:
    """Waits as a task of the event loop."""

    def __init__(self) -> None:
        self._signal = Signal()
        self._spinner = Spinner()
        self.wake = self._signal.wake
        self.checkpoint = trio.lowlevel.checkpoint
        self.move_on_after = trio.move_on_after

    async def wait(self, spin_s: float, look: Callable[[], bool]) -> None:
        """Waits until `wake`."""
        await self._spinner.wait(spin_s, look, self._signal.wait)


class _MovedOn(Exception):
    """Ends a block of `move_on_after`."""


async def _go_on() -> None:
    """The `pass_on` of a thread: it leaves the data path before each poll, so no task waits for it."""


@final
class ThreadParking:
    """Waits as a thread; for one thread at a time."""

    def __init__(self, loop_lock: LoopLock, pumps: Callable[[], Iterable[PolledConnection]]) -> None:
        """Created in the loop.

        Args:
            loop_lock: the lock of the loop.
            pumps: returns the connections whose sockets it polls, before each wait. They must be plain sockets.
        """
        self.waits = 0
        self.is_at_sockets = bool(pumps())
        """Whether there were connections to poll when it was created."""
        self.held = HeldLock(loop_lock.entry)
        self._loop_lock = loop_lock
        self._pumps = pumps
        self._polled: dict[PolledConnection, int] = {}
        self._poll = select.poll()
        self._bell, self._rope = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._rope, False)
        self._poll.register(self._bell, select.POLLIN)
        self._is_parked = False
        self._spinner: Spinner | None = Spinner(relax=self._relax, pass_on=_go_on)
        self._moves_on_at = float("inf")
        self._is_kept = False
        self._has_waited = False
        self._in_loop: Signal | None = None
        loop_lock.open()

    def __del__(self) -> None:
        """Closes the pipe."""
        os.close(self._bell)
        os.close(self._rope)

    def wake(self) -> None:
        """Ends the current wait, if any."""
        if self._is_parked:
            self._is_parked = False
            os.write(self._rope, b"\0")
        if self._in_loop is not None:
            self._in_loop.wake()

    async def checkpoint(self) -> None:
        """Does nothing: a thread blocks no other task."""

    async def wait(self, spin_s: float, look: Callable[[], bool]) -> None:
        """Waits until `wake`; never polls in a thread that runs an event loop of its own."""
        self._has_waited = True
        if self._in_loop is None and self._spinner is not None:
            await self._spinner.wait(spin_s, look, _park)
        else:
            await _park()

    @contextlib.contextmanager
    def move_on_after(self, seconds: float) -> Iterator[None]:
        """Ends the block, without an error, if it still waits after this time."""
        self._moves_on_at = monotonic() + seconds
        try:
            yield
        except _MovedOn:
            pass
        finally:
            self._moves_on_at = float("inf")

    def run(
        self,
        coroutine: Coroutine[Any, Any, R],
        timeout_s: float | None,
        what: str,
        *,
        keep: Callable[[], bool] | None = None,
        comes_again: Callable[[R], bool] | None = None,
    ) -> R | None:
        """Runs a coroutine that waits only here; called by the thread, outside, which blocks meanwhile.

        Args:
            coroutine: of a reader or a writer that uses this object to wait.
            timeout_s: the longest wait; None means no limit.
            what: describes the call in the error message.
            keep: called if the coroutine must wait but the time is up: returns whether it is kept and completed by
                `run_in_loop`; otherwise it is cancelled. If it is kept after a timeout, None is returned.
            comes_again: called with the result: whether the caller will return at once. If so, and the call has waited
                (and so sent what was due), data queued since then is sent by the next call, within `LOOK_IN_S`.

        Raises:
            TimeoutError: it waited longer; the coroutine was cancelled.
            LocalProtocolError: the TaskManager is closed, or the thread is already inside.
            BaseException: the error raised by the coroutine or a signal handler.
        """
        until = None if timeout_s is None else monotonic() + timeout_s
        visit = self._visit(coroutine, keep, comes_again)
        try:
            next(visit)
            while True:
                try:
                    self._block(until, timeout_s, what)
                except BaseException as error:  # TimeoutError, or of a signal handler
                    visit.throw(error)
                else:
                    next(visit)
        except StopIteration as done:
            result: R | None = done.value
            return result
        finally:
            visit.close()  # no effect, unless the error of a signal handler came between a step and the next wait

    async def run_in_asyncio(
        self,
        coroutine: Coroutine[Any, Any, R],
        *,
        keep: Callable[[], bool] | None = None,
        comes_again: Callable[[R], bool] | None = None,
    ) -> R | None:
        """Like `run`, in an asyncio task: other tasks of its loop run meanwhile.

        Cancellation: cancels the coroutine, unless it is kept.
        """
        self._spinner = None
        visit = self._visit(coroutine, keep, comes_again)
        try:
            next(visit)
            while True:
                try:
                    await self._readable()
                except BaseException as error:  # CancelledError
                    visit.throw(error)
                else:
                    next(visit)
        except StopIteration as done:
            result: R | None = done.value
            return result

    def _visit(
        self,
        coroutine: Coroutine[Any, Any, R],
        keep: Callable[[], bool] | None,
        comes_again: Callable[[R], bool] | None,
    ) -> Generator[None, None, R | None]:
        """One visit. It is outside wherever it yields; the caller waits there, and throws an error to end the visit."""
        loop_lock = self._loop_lock
        leave = loop_lock.leave
        held: HeldLock | None = self.held
        is_main = get_ident() == MAIN
        self._has_waited = False
        try:
            loop_lock.enter(self.held)
        except BaseException:
            coroutine.close()
            raise
        try:
            while True:
                coroutine.send(None)
                try:
                    self.waits += 1
                    self._keep_up()
                    self._is_parked = True
                    try:
                        loop_lock.leave()
                        yield
                    finally:
                        if is_main:
                            INTERRUPTS.is_inside = True  # before any call, so that no handler raises until it is true
                        loop_lock.come_back()
                        self._is_parked = False
                except _MovedOn as moved_on:
                    coroutine.throw(moved_on)
                except BaseException as error:  # cancels the coroutine
                    held = None  # if the loop completes a call, this one or an earlier one, the next call must wait
                    if keep is not None and keep():
                        self._is_kept = True
                        if isinstance(error, TimeoutError):
                            return None
                        raise
                    coroutine.throw(error)
        except StopIteration as done:
            result: R = done.value
            if self._has_waited and comes_again is not None and comes_again(result):
                leave = loop_lock.leave_quietly
            return result
        finally:
            leave(held)

    async def run_in_loop(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Completes a coroutine that `run` kept. Cancelled, or after an error, it is closed."""
        self._in_loop = Signal()
        try:
            while True:
                coroutine.send(None)
                with trio.move_on_after(max(0.0, self._moves_on_at - monotonic())):
                    await self._in_loop.wait()
                if monotonic() >= self._moves_on_at:
                    coroutine.throw(_MovedOn())
        except StopIteration:
            pass
        finally:
            self._in_loop = None
            coroutine.close()
            self._is_kept = False

    def _deadline(self) -> float:
        """When the caller's coroutine moves on; that of a kept coroutine concerns only the loop."""
        return float("inf") if self._is_kept else self._moves_on_at

    def _relax(self) -> None:
        is_main = get_ident() == MAIN
        raised = None
        try:
            self._loop_lock.leave()
            offer_processor()
        except BaseException as error:  # of a signal handler
            raised = error
        if is_main:
            INTERRUPTS.is_inside = True  # before any call, so that no handler raises until it is true
        self._loop_lock.come_back()
        if raised is not None:
            INTERRUPTS.postpone(raised)  # until the coroutine parks, where `_visit` can keep or cancel it

    def _block(self, until: float | None, timeout_s: float | None, what: str) -> None:
        """Waits, outside, as a thread: until data has arrived or may have."""
        least = LONGEST_S
        moves_on_at = self._deadline()
        if until is not None or moves_on_at < float("inf"):
            now = monotonic()
            if now >= moves_on_at:
                raise _MovedOn
            if until is not None:
                if now >= until:
                    raise TimeoutError(f"{what}: not within {timeout_s} s")
                least = min(least, until - now)
            least = min(least, moves_on_at - now)
        self._silence(self._poll.poll(least * 1000))

    async def _readable(self) -> None:
        """Waits like `_block`, in an asyncio task; O(sockets).

        It polls a set of its own, because the TaskManager's loop may close a socket meanwhile, and its number may be
        reused.
        """
        import asyncio  # programs without asyncio need not load it

        loop = asyncio.get_running_loop()
        come = asyncio.Event()
        with select.epoll() as waited:
            for descriptor in (self._bell, *self._polled.values()):
                with contextlib.suppress(OSError):  # it has just been closed; the pipe wakes the task
                    waited.register(descriptor, select.EPOLLIN)
            loop.add_reader(waited.fileno(), come.set)
            try:
                moves_on_at = self._deadline()
                if moves_on_at == float("inf"):
                    await come.wait()
                else:
                    async with asyncio.timeout(moves_on_at - monotonic()):
                        await come.wait()
            except TimeoutError:
                raise _MovedOn from None
            finally:
                loop.remove_reader(waited.fileno())
        self._silence(self._poll.poll(0))

    def _silence(self, ready: list[tuple[int, int]]) -> None:
        for descriptor, _ in ready:
            if descriptor == self._bell:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._bell, 64)

    def _keep_up(self) -> None:
        polled = self._polled
        for pump in list(polled):
            if pump.is_ending:
                self._poll.unregister(polled.pop(pump))
        for pump in self._pumps():
            if pump not in polled and pump.is_plain and not pump.is_ending:
                descriptor = pump.stream.descriptor()
                if descriptor is not None:
                    polled[pump] = descriptor
                    self._poll.register(descriptor, select.POLLIN)


@types.coroutine
def _park() -> Generator[None, None, None]:
    yield
