"""A byte stream over two rings in shared memory.

Takes: a connected unix socket, and the memory that was made for it or is about to come over it. Gives: a `ByteStream`.

Rules:
- Sending and receiving are copies to and from the memory. A system call is made only to wake a side that sleeps: by
  its eventfd where it waits for bytes, by a byte on the socket where it waits for room.
- The socket carries nothing else after the handover; its hang-up is the end of the peer, orderly or not. A system task
  waits for it, as long as the stream is open. What the peer wrote before is read first.
- There is no `descriptor`: while bytes are there the eventfd says nothing. Whoever looks (`has_come`) sees them.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from typing import final

import trio

from netstack.errors import ConnectionLost
from netstack.transport import ByteStream, Piece

from .handover import HandoverRefused, SharedMemory, take_over
from .ring import RingBroken, RingReader, RingWriter


@final
class ShmStream(ByteStream):
    """One end. Not to be used by another thread than its loop's."""

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        memory: SharedMemory | None = None,
        on_closed: Callable[[], None] = lambda: None,
    ) -> None:
        """Runs from now on.

        Args:
            sock: owned from now on.
            peer: for messages.
            memory: None: the peer hands it over.
            on_closed: told once.
        """
        sock.setblocking(False)
        self.peer = peer
        self._socket = sock
        self._memory: SharedMemory | None = None
        self._out: RingWriter | None = None
        self._in: RingReader | None = None
        self._bell = self._their_bell = -1
        self._changed = trio.lowlevel.ParkingLot()
        self._has_ended = False
        self._lost = ""
        """Why the peer is gone; what it wrote before may still be read while there is `_in`."""
        self._closed = False
        self._on_closed = on_closed
        if memory is not None:
            self._attach(memory, 0)
        trio.lowlevel.spawn_system_task(self._watch, name=f"shm to {peer}")

    def try_send(self, pieces: Sequence[Piece]) -> int:
        """See `ByteStream.try_send`: a copy."""
        out = self._out
        if self._lost or self._has_ended or self._closed:
            raise self._error(self._lost or "it is closed")
        if out is None:
            return 0
        try:
            taken = out.write(pieces)
        except RingBroken as error:
            raise self._broken(error) from error
        if taken and out.must_wake_reader():
            self._wake_reader()
        return taken

    def try_receive_into(self, windows: Sequence[memoryview]) -> int | None:
        """See `ByteStream.try_receive_into`: a copy."""
        incoming = self._in
        count = None
        if incoming is not None:
            try:
                count = incoming.read_into(windows)
            except RingBroken as error:
                raise self._broken(error) from error
            if count and incoming.must_wake_writer():
                with contextlib.suppress(OSError):  # so many wake-ups wait there already, or nobody is there
                    self._socket.send(b"\0")
        if count is None and (self._lost or self._closed):
            raise self._error(self._lost or "it is closed")
        return count

    async def wait_writable(self) -> None:
        """See `ByteStream.wait_writable`; waits for a quarter of the ring."""
        self._check_open()
        out = self._out
        if self._lost or self._has_ended or (out is not None and not out.may_sleep()):
            await trio.lowlevel.checkpoint()
            return
        try:
            while not self._is_over() and (out is None or out.may_sleep()):
                await self._changed.park()
                self._check_open()
                out = self._out
        finally:
            if out is not None and self._out is out:
                out.stay_awake()

    async def wait_readable(self) -> None:
        """See `ByteStream.wait_readable`."""
        self._check_open()
        if not self._lost and self._in is None:
            await self._changed.park()
            self._check_open()
        incoming = self._in
        if self._lost or incoming is None or not incoming.may_sleep():
            await trio.lowlevel.checkpoint()
            return
        try:
            while not self._is_over() and incoming.may_sleep():
                await trio.lowlevel.wait_readable(self._bell)
                self._check_open()  # closed since it was woken: the number may be another file's
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._bell)
        finally:
            if self._in is incoming:
                incoming.stay_awake()

    def send_eof(self) -> None:
        """Ends the outgoing ring."""
        if not self._has_ended and not self._closed:
            self._has_ended = True
            if self._out is not None:
                self._end(self._out)

    def close(self) -> None:
        """Closes at once; the peer reads what was sent, and the end."""
        if not self._closed:
            self.send_eof()
            self._closed = True
            self._out = self._in = None
            trio.lowlevel.notify_closing(self._socket)
            with contextlib.suppress(OSError):  # a hang-up, even if a process that was forked meanwhile has it too
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            if self._memory is not None:
                trio.lowlevel.notify_closing(self._bell)
                self._memory.close()
            self._changed.unpark_all()
            self._on_closed()

    def endpoints(self) -> tuple[str, str]:
        """The name of the listener; who dialled it has none."""
        try:
            return _endpoint(self._socket.getsockname()), _endpoint(self._socket.getpeername())
        except OSError:
            return "", ""

    def has_come(self) -> bool:
        """See `ByteStream.has_come`: a look at the memory."""
        incoming = self._in
        return bool(self._lost or self._closed or (incoming is not None and incoming.has_more()))

    def _attach(self, memory: SharedMemory, ring: int) -> None:
        self._memory = memory
        self._out = memory.writer(ring)
        self._in = memory.reader(1 - ring)
        self._bell, self._their_bell = memory.bells[1 - ring], memory.bells[ring]
        if self._has_ended:
            self._end(self._out)

    def _end(self, out: RingWriter) -> None:
        out.end()
        if out.must_wake_reader():
            self._wake_reader()

    def _wake_reader(self) -> None:
        with contextlib.suppress(BlockingIOError):  # as readable as can be
            os.eventfd_write(self._their_bell, 1)

    async def _watch(self) -> None:
        """Takes over the memory, wakes who waits for room, and notices the end of the peer."""
        reason = ""
        while not reason and not self._closed:
            try:
                await trio.lowlevel.wait_readable(self._socket)
                if self._memory is None:
                    self._attach(take_over(self._socket), 1)
                elif not self._socket.recv(4096):
                    reason = "its process closed it, or has ended"
            except trio.ClosedResourceError:
                return
            except BlockingIOError:
                continue
            except HandoverRefused as error:
                reason = str(error)
            except OSError as error:
                reason = error.strerror or str(error)
            self._changed.unpark_all()
        if not self._closed:
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        self._lost = self._lost or reason
        self._changed.unpark_all()
        if self._memory is not None:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_write(self._bell, 1)

    def _broken(self, error: RingBroken) -> ConnectionLost:
        self._in = self._out = None  # neither what it wrote nor what it will write means anything
        self._lose(f"the memory it shares with us is damaged: {error}")
        return self._error(self._lost)

    def _error(self, reason: str) -> ConnectionLost:
        return ConnectionLost(f"the connection to {self.peer} broke: {reason}")

    def _is_over(self) -> bool:
        return bool(self._lost)

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError(f"the stream to {self.peer} was closed")


def _endpoint(name: object) -> str:
    """A name of the abstract namespace as text; empty for none."""
    return os.fsdecode(name.removeprefix(b"\0")) if isinstance(name, bytes) else ""
