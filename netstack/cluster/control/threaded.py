"""A control link in its own thread, so that heartbeats continue while user code blocks the main event loop.

Takes: how to connect. Gives: the `send` and `receive` of `ControlLink` in the caller's event loop.

The thread runs a trio loop that connects, greets, answers pings and reads; messages cross in two bounded queues. Python
switches threads within milliseconds, however long another thread computes. A full inbox stops the reading, never the
heartbeats.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias, final

import trio

from ...base.errors import ConnectionLost, NetstackError
from .codec import Message
from .frames import MAX_UNSENT_BYTES
from .link import ControlLink, Greeting, packed

INBOX_BYTES: Final = 16 << 20
"""Limit of received messages that the main loop has not taken; reading pauses above it."""

Connect: TypeAlias = Callable[[], Awaitable[tuple[ControlLink, Greeting]]]
"""Connects and greets, such as a partial of `link.dial`; runs in the thread's loop."""


@final
class ThreadedLink:
    """A control link whose sockets another thread serves; created by `open_threaded`.

    Attributes:
        peer: name of the other end for error texts.
    """

    def __init__(self, connect: Connect) -> None:
        self.peer = ""
        self.greeting = Greeting(0, "", "", "", {})
        self._connect = connect
        self._here = trio.lowlevel.current_trio_token()
        self._lock = threading.Lock()  # guards the byte counts, which both threads write
        self._arrived = trio.Event()
        self._room = trio.Event()
        self._inbox: deque[tuple[Message, int]] = deque()
        self._inbox_bytes = 0
        self.failure: BaseException | None = None
        """Why the connection ended; None while it is open."""
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        # These belong to the thread's loop.
        self._there: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._is_closing = False
        self.is_connected = False
        """Whether the greetings were exchanged; stays true after the connection is lost."""
        self._more = trio.Event()
        self._taken = trio.Event()

    def send(self, message: Message) -> None:
        """Queues a message, like `ControlLink.send`; never waits."""
        frame = packed(message)
        if self.failure is not None:
            return
        with self._lock:
            self._outbox.append(frame)
            self._outbox_bytes += len(frame)
        if self._outbox_bytes > 4 * MAX_UNSENT_BYTES:
            self.close()  # the peer does not read; `receive` raises
        self._call_there(self._wake_writer)

    async def wait_connected(self) -> None:
        """Waits until the greetings are exchanged or connecting failed."""
        while not self.is_connected and self.failure is None:
            await self._arrived.wait()

    async def wait_room(self) -> None:
        """Waits until few bytes are unsent, like `ControlLink.wait_room`."""
        await trio.lowlevel.checkpoint()
        while self._outbox_bytes >= MAX_UNSENT_BYTES and self.failure is None:
            await self._room.wait()

    async def receive(self) -> Message:
        """Waits for the next message, like `ControlLink.receive`."""
        await trio.lowlevel.checkpoint()
        while True:
            failure = self.failure  # read first: the thread may add a last message and then set it
            if self._inbox:
                break
            if failure is not None:
                raise failure
            await self._arrived.wait()
        message, size_bytes = self._inbox.popleft()
        with self._lock:
            self._inbox_bytes -= size_bytes
        if self._inbox_bytes < INBOX_BYTES <= self._inbox_bytes + size_bytes:
            self._call_there(self._wake_reader)
        return message

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        self._is_closing = True
        self._call_there(self._cancel)

    # Methods of the thread.

    def main(self) -> None:
        """Body of the thread: a trio run from connecting to the end of the connection."""
        trio.run(self._main)

    async def _main(self) -> None:
        self._there = trio.lowlevel.current_trio_token()
        if self._is_closing:  # `close` ran before this loop existed
            self._scope.cancel()
        link: ControlLink | None = None
        with self._scope:
            try:
                link, self.greeting = await self._connect()
                self.peer = link.peer
                self.is_connected = True
                self._call_here(self._wake_all)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(link.run)
                    nursery.start_soon(self._write, link)
                    await self._read(link)
                    nursery.cancel_scope.cancel()
            except (NetstackError, OSError) as error:
                self.failure = error
            finally:
                if link is not None:
                    link.close()
        if self.failure is None:
            self.failure = ConnectionLost(f"this process closed its connection to {self.peer or 'the other end'}")
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
            self.failure = error

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

    # Methods of the caller's loop.

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
    """Connects in a thread and keeps the connection while the block runs.

    Args:
        connect: connects and greets; its exceptions propagate.

    Raises:
        ConnectionLost: no peer answers.

    Cancellation, like the end of the block, closes the connection and ends the thread.
    """
    link = ThreadedLink(connect)
    failure: BaseException | None = None

    async def live() -> None:
        with trio.CancelScope(shield=True):  # `close` ends the thread a moment later
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
        except BaseException as error:  # propagates unwrapped, not in this nursery's group
            failure = error
        finally:
            link.close()
    if failure is not None:
        raise failure
