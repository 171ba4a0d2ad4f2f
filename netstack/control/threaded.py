"""A control link in a thread of its own: user code that computes for long costs no sign of life.

Takes: how to connect. Gives: the same `send` and `receive` as `ControlLink`, in the loop of whoever opened it.

The thread runs a trio loop that dials, greets, answers pings and reads; messages cross by two bounded queues. Python
gives every thread its turn within milliseconds, however long another one computes. What the other side has not taken
stops the reading, never the signs of life.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias, final

import trio

from ..errors import ConnectionLost, NetstackError
from .codec import Message
from .frames import MAX_UNSENT_BYTES
from .link import ControlLink, Greeting, packed

INBOX_BYTES: Final = 16 << 20
"""What has come and was not taken: no more is read until it is."""

Connect: TypeAlias = Callable[[], Awaitable[tuple[ControlLink, Greeting]]]
"""Dials and greets, such as a partial of `link.dial`; runs in the thread's loop."""


@final
class ThreadedLink:
    """A control link whose sockets another thread serves; `open_threaded` makes one.

    Attributes:
        peer: who is at the other end.
        greeting: what it said of itself.
    """

    def __init__(self, connect: Connect) -> None:
        self.peer = ""
        self.greeting = Greeting(0, "", "", "", {})
        self._connect = connect
        self._here = trio.lowlevel.current_trio_token()
        self._lock = threading.Lock()  # of what both threads write: the sums of bytes
        self._arrived = trio.Event()
        self._room = trio.Event()
        self._inbox: deque[tuple[Message, int]] = deque()
        self._inbox_bytes = 0
        self._error: BaseException | None = None
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        # Of the thread's loop; there once it is connected.
        self._there: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._is_closing = False
        self._is_connected = False
        self._more = trio.Event()
        self._taken = trio.Event()

    @property
    def is_connected(self) -> bool:
        """Whether the greetings were exchanged, whatever has become of it since."""
        return self._is_connected

    @property
    def failure(self) -> BaseException | None:
        """Why it has ended; None while it lives."""
        return self._error

    def send(self, message: Message) -> None:
        """Sends a message as `ControlLink.send` does; never waits."""
        frame = packed(message)
        if self._error is not None:
            return
        with self._lock:
            self._outbox.append(frame)
            self._outbox_bytes += len(frame)
        if self._outbox_bytes > 4 * MAX_UNSENT_BYTES:
            self.close()  # it does not read; `receive` tells
        self._call_there(self._wake_writer)

    async def wait_connected(self) -> None:
        """Waits until the greetings are exchanged, or it failed."""
        while not self._is_connected and self._error is None:
            await self._arrived.wait()

    async def wait_room(self) -> None:
        """Waits until little is unsent, as `ControlLink.wait_room` does."""
        await trio.lowlevel.checkpoint()
        while self._outbox_bytes >= MAX_UNSENT_BYTES and self._error is None:
            await self._room.wait()

    async def receive(self) -> Message:
        """Waits for the next message, as `ControlLink.receive` does."""
        await trio.lowlevel.checkpoint()
        while not self._inbox:
            if self._error is not None:
                raise self._error
            await self._arrived.wait()
        message, size_bytes = self._inbox.popleft()
        with self._lock:
            self._inbox_bytes -= size_bytes
        if self._inbox_bytes < INBOX_BYTES <= self._inbox_bytes + size_bytes:
            self._call_there(self._wake_reader)
        return message

    def close(self) -> None:
        """Ends the connection; idempotent."""
        self._is_closing = True
        self._call_there(self._cancel)

    # In the thread.

    def main(self) -> None:
        """All of the thread: a loop from dialling to the end of the connection."""
        trio.run(self._main)

    async def _main(self) -> None:
        self._there = trio.lowlevel.current_trio_token()
        if self._is_closing:  # before it could be notified
            self._scope.cancel()
        link: ControlLink | None = None
        with self._scope:
            try:
                link, self.greeting = await self._connect()
                self.peer = link.peer
                self._is_connected = True
                self._call_here(self._wake_all)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(link.run)
                    nursery.start_soon(self._write, link)
                    await self._read(link)
                    nursery.cancel_scope.cancel()
            except (NetstackError, OSError) as error:
                self._error = error
            finally:
                if link is not None:
                    link.close()
        if self._error is None:
            self._error = ConnectionLost(f"the connection to {self.peer or 'the other end'} was closed here")
        self._call_here(self._wake_all)

    async def _read(self, link: ControlLink) -> None:
        try:
            while True:
                before_bytes = link.received_bytes
                message = await link.receive()
                size_bytes = link.received_bytes - before_bytes
                with self._lock:
                    self._inbox.append((message, size_bytes))
                    self._inbox_bytes += size_bytes
                self._call_here(self._wake_receiver)
                while self._inbox_bytes >= INBOX_BYTES:
                    self._taken = trio.Event()
                    if self._inbox_bytes >= INBOX_BYTES:
                        await self._taken.wait()
        except NetstackError as error:
            self._error = error

    async def _write(self, link: ControlLink) -> None:
        while True:
            self._more = trio.Event()
            while self._outbox:
                await link.wait_room()
                frame = self._outbox.popleft()
                with self._lock:
                    self._outbox_bytes -= len(frame)
                link.send_frame(frame)
                if self._outbox_bytes < MAX_UNSENT_BYTES <= self._outbox_bytes + len(frame):
                    self._call_here(self._wake_sender)
            await self._more.wait()

    def _wake_writer(self) -> None:
        self._more.set()

    def _wake_reader(self) -> None:
        self._taken.set()

    def _cancel(self) -> None:
        self._scope.cancel()

    def _call_there(self, function: Callable[[], None]) -> None:
        if self._there is not None:
            with contextlib.suppress(trio.RunFinishedError):
                self._there.run_sync_soon(function, idempotent=True)

    # In the loop of whoever opened it.

    def _wake_receiver(self) -> None:
        self._arrived.set()
        self._arrived = trio.Event()

    def _wake_sender(self) -> None:
        self._room.set()
        self._room = trio.Event()

    def _wake_all(self) -> None:
        self._wake_receiver()
        self._wake_sender()

    def _call_here(self, function: Callable[[], None]) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            self._here.run_sync_soon(function, idempotent=True)


@asynccontextmanager
async def open_threaded(connect: Connect) -> AsyncIterator[ThreadedLink]:
    """Connects in a thread, and keeps the connection while the block runs.

    Args:
        connect: dials and greets; what it raises leaves here.

    Raises:
        ConnectionLost: nobody answers; what else `connect` raises too.

    Cancellation, and the end of the block: the connection ends, the thread with it.
    """
    link = ThreadedLink(connect)
    failure: BaseException | None = None

    async def live() -> None:
        with trio.CancelScope(shield=True):  # ended by `close`, which takes a moment
            await trio.to_thread.run_sync(link.main, limiter=trio.CapacityLimiter(1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(live)
        try:
            await link.wait_connected()
            if link.is_connected:
                yield link
            else:
                failure = link.failure
        except trio.Cancelled:
            raise
        except BaseException as error:  # the caller's own: it leaves as it is, not inside this nursery's group
            failure = error
        finally:
            link.close()
    if failure is not None:
        raise failure
