"""Where a reader or a writer waits: a task in its event loop, or a thread, or a task of asyncio's, at its sockets.

Takes: how long it may look before it parks, a function that looks. Gives: a wait that ends with somebody's `wake`, or
with what comes at a socket.

What the readers and writers do is written once, as async functions, and there are two ways to run them. A task awaits
them. A thread runs them as a visitor of the loop (`visits`), by hand: wherever they wait, they come back to
`ThreadParking.run`, which leaves, polls the sockets and a pipe of its own, enters and lets them go on. A thread that
has a loop of asyncio does the same (`run_in_asyncio`), but has that loop poll.
"""

from __future__ import annotations

import contextlib
import os
import select
import types
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from time import monotonic
from typing import Any, Final, Protocol, TypeVar, final

import trio

from ..wakeup import Signal
from .pump import Pump
from .spin import Spinner, offer_processor
from .staying import Stay
from .visits import Visits

R = TypeVar("R")

LONGEST_S: Final = 60.0
"""A thread looks again after this long, whatever happens."""


class Parking(Protocol):
    """Where a reader or a writer waits."""

    def wake(self) -> None:
        """Ends the wait, if there is one; from the loop or a visitor."""

    async def checkpoint(self) -> None:
        """Lets others have their turn, if there are any."""

    async def wait(self, spin_s: float, look: Callable[[], bool]) -> None:
        """Waits until `wake`; looks for at most `spin_s` before. Cancellation: nothing changed."""

    def move_on_after(self, seconds: float) -> contextlib.AbstractContextManager[object]:
        """Leaves the block, without an error, where it waits when that time is up."""


@final
class TaskParking:
    """In an event loop."""

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
    """Leaves a block of `move_on_after`."""


async def _go_on() -> None:
    """Nothing of the loop waits behind a thread that spins: it leaves before each look."""


@final
class ThreadParking:
    """In a thread, one at a time.

    Attributes:
        waits: how often it parked.
    """

    def __init__(self, visits: Visits, pumps: Callable[[], Iterable[Pump]]) -> None:
        """Made in the loop.

        Args:
            visits: the door.
            pumps: the connections at whose sockets it waits; asked before each wait. Only plain sockets.
        """
        self.waits = 0
        self.is_at_sockets = bool(pumps())
        """Whether there were any when it was made."""
        self.stay = Stay(visits.door)
        self._visits = visits
        self._pumps = pumps
        self._polled: dict[Pump, int] = {}
        self._poll = select.poll()
        self._bell, self._rope = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._rope, False)
        self._poll.register(self._bell, select.POLLIN)
        self._is_parked = False
        self._spinner: Spinner | None = Spinner(relax=self._relax, pass_on=_go_on)
        self._moves_on_at = float("inf")
        self._has_waited = False
        self._in_loop: Signal | None = None
        visits.open()

    def __del__(self) -> None:
        """Nobody can ring, or listen, any more."""
        os.close(self._bell)
        os.close(self._rope)

    def wake(self) -> None:
        """Ends the wait, if there is one."""
        if self._is_parked:
            self._is_parked = False
            os.write(self._rope, b"\0")
        if self._in_loop is not None:
            self._in_loop.wake()

    async def checkpoint(self) -> None:
        """Does nothing: a thread holds up no other task."""

    async def wait(self, spin_s: float, look: Callable[[], bool]) -> None:
        """Waits until `wake`; never spins in a thread that has an event loop of its own."""
        self._has_waited = True
        if self._in_loop is None and self._spinner is not None:
            await self._spinner.wait(spin_s, look, _park)
        else:
            await _park()

    @contextlib.contextmanager
    def move_on_after(self, seconds: float) -> Iterator[None]:
        """Leaves the block, without an error, where it waits when that time is up."""
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
        """Runs what waits here and nowhere else; in the thread, outside, which blocks meanwhile.

        Args:
            coroutine: of a reader or a writer that parks here.
            timeout_s: the longest it may wait; None for no limit.
            what: is said to have taken longer.
            keep: asked when it must wait and may not: whether it is kept, to be brought to its end by `run_in_loop`;
                else it is cancelled. Where time is up, None is returned then.
            comes_again: asked about the result whether the caller is back in a moment. If it has waited, and so told
                all there was to tell, what is to be sent since then waits for that (at most `LOOK_IN_S`).

        Raises:
            TimeoutError: it waited longer; it was cancelled.
            LocalProtocolError: the TaskManager is closed; or the thread is inside already.
            BaseException: what the coroutine raised, or a signal handler.
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

    async def run_in_asyncio(
        self,
        coroutine: Coroutine[Any, Any, R],
        *,
        keep: Callable[[], bool] | None = None,
        comes_again: Callable[[R], bool] | None = None,
    ) -> R | None:
        """Like `run`, in a task of asyncio, which awaits instead: other tasks of its loop run meanwhile.

        Cancellation: of what waits, unless it is kept.
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
        """One visit, which is outside wherever it yields; whoever runs it waits there, and throws what ends it."""
        visits = self._visits
        leave = visits.leave
        stay: Stay | None = self.stay
        self._has_waited = False
        try:
            visits.enter(self.stay)
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
                        visits.leave()
                        yield
                    finally:
                        visits.enter_again()
                        self._is_parked = False
                except _MovedOn as moved_on:
                    coroutine.throw(moved_on)
                except BaseException as error:  # cancels: whatever the coroutine does then, it gets the reason
                    if keep is not None and keep():
                        stay = None  # what comes next waits for that
                        if isinstance(error, TimeoutError):
                            return None
                        raise
                    coroutine.throw(error)
        except StopIteration as done:
            result: R = done.value
            if self._has_waited and comes_again is not None and comes_again(result):
                leave = visits.leave_quietly
            return result
        finally:
            leave(stay)

    async def run_in_loop(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Brings to its end what `run` kept. Cancellation, and its errors: it is closed."""
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

    def _relax(self) -> None:
        self._visits.leave()
        try:
            offer_processor()
        finally:
            self._visits.enter_again()

    def _block(self, until: float | None, timeout_s: float | None, what: str) -> None:
        """Waits until something has come, or may have; a thread's way, outside."""
        least = LONGEST_S
        if until is not None or self._moves_on_at < float("inf"):
            now = monotonic()
            if now >= self._moves_on_at:
                raise _MovedOn
            if until is not None:
                if now >= until:
                    raise TimeoutError(f"{what}: not within {timeout_s} s")
                least = min(least, until - now)
            least = min(least, self._moves_on_at - now)
        self._silence(self._poll.poll(least * 1000))

    async def _readable(self) -> None:
        """The same in a task of asyncio's; O(sockets).

        It polls a set of its own: the loop of the TaskManager may close a socket meanwhile, whose number may be given
        out again.
        """
        import asyncio  # who does without it need not load it

        loop = asyncio.get_running_loop()
        come = asyncio.Event()
        with select.epoll() as waited:
            for descriptor in (self._bell, *self._polled.values()):
                with contextlib.suppress(OSError):  # it was closed a moment ago, and the bell tells
                    waited.register(descriptor, select.EPOLLIN)
            loop.add_reader(waited.fileno(), come.set)
            try:
                if self._moves_on_at == float("inf"):
                    await come.wait()
                else:
                    async with asyncio.timeout(self._moves_on_at - monotonic()):
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
        """Polls the sockets that are open now."""
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
