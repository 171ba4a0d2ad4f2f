"""A byte stream over two rings in shared memory, and the handover of that memory to the other process.

Takes: a connected unix socket. Gives: `SharedMemory`, created here or by the peer (SCM_RIGHTS passes a memfd and two
eventfds), and a `ByteStream` over it.

Rules:
- Objects from a peer are checked before use. The memfd must have exactly our size and be sealed against shrinking,
  growing and further seals, so that no access can raise SIGBUS. Nothing has a name, so everything is freed when both
  processes have ended.
- Sending and receiving are copies to and from the memory. A system call is made only to wake a sleeping side: by its
  eventfd if it waits for bytes, by a byte on the socket if it waits for room.
- After the handover the socket carries nothing else; its hang-up means that the peer has ended, orderly or not. A
  system task waits for it while the stream is open. Data that the peer wrote before is read first.
- There is no `descriptor`, because the eventfd is not readable whenever there is data; `has_come` checks the memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
from collections.abc import Callable, Sequence
from typing import Final, final

import trio

from netstack.base.errors import ConnectionLost
from netstack.base.transport import ByteStream, OneWaiter, Piece, check_room

from .ring import HEADER_BYTES, RingBroken, RingReader, RingWriter

CAPACITIES: Final = 64 * 1024, 1024 * 1024
"""Capacities of the rings written by the dialler and by the acceptor: consumers dial, and send little except credit."""

GREETING: Final = b"netstack-shm 1 %d %d" % CAPACITIES
"""Sent with the descriptors by the dialler: it differs for another layout or capacity."""

_BASES: Final = 0, HEADER_BYTES + CAPACITIES[0]
MEMORY_BYTES: Final = _BASES[1] + HEADER_BYTES + CAPACITIES[1]
"""The memory of one stream, once all of it was touched."""

_DESCRIPTORS: Final = 3
_SEALS: Final = 0x1 | 0x2 | 0x4
"""F_SEAL_SEAL, F_SEAL_SHRINK and F_SEAL_GROW: `fcntl` names them on Linux only."""


class HandoverRefused(Exception):
    """The memory from the peer cannot be used; the text says why."""


@final
class SharedMemory:
    """Two rings, and an eventfd for the reader of each; the dialler writes ring 0."""

    def __init__(self, memory: int, bells: tuple[int, int]) -> None:
        """Args: the memfd, which may be closed afterwards; the eventfds, owned from now on unless this fails."""
        self._mapping = mmap.mmap(memory, MEMORY_BYTES)
        self._view = memoryview(self._mapping)
        self._words = tuple(self._view[base : base + HEADER_BYTES].cast("Q") for base in _BASES)
        self.bells = bells
        """The eventfd of the reader of each ring."""

    def writer(self, ring: int) -> RingWriter:
        """The writing side of ring 0 or 1."""
        return RingWriter(self._mapping, self._words[ring], _BASES[ring], CAPACITIES[ring])

    def reader(self, ring: int) -> RingReader:
        """The reading side of ring 0 or 1."""
        return RingReader(self._view, self._words[ring], _BASES[ring], CAPACITIES[ring])

    def close(self) -> None:
        """Unmaps the memory and closes the eventfds; the rings are not to be used any more."""
        for view in (*self._words, self._view):
            view.release()
        self._mapping.close()
        for bell in self.bells:
            os.close(bell)


def hand_over(sock: socket.socket) -> SharedMemory:
    """Creates the memory and sends it.

    Raises:
        OSError: no descriptors or no memory are left, or the peer has disconnected.
    """
    with contextlib.ExitStack() as at_end, contextlib.ExitStack() as on_error:
        memory = os.memfd_create("netstack-shm", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        at_end.callback(os.close, memory)
        os.ftruncate(memory, MEMORY_BYTES)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
        bells = []
        for _ in range(2):
            bells.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            on_error.callback(os.close, bells[-1])
        socket.send_fds(sock, [GREETING], [memory, *bells])
        shared = SharedMemory(memory, (bells[0], bells[1]))
        on_error.pop_all()
        return shared


def take_over(sock: socket.socket) -> SharedMemory:
    """Receives the memory; to be called when the socket is readable.

    Raises:
        BlockingIOError: nothing has arrived.
        HandoverRefused: it is not what `hand_over` sends.
        OSError: the peer has disconnected.
    """
    greeting, descriptors, flags, _ = socket.recv_fds(sock, len(GREETING), _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    with contextlib.ExitStack() as on_error:
        for descriptor in descriptors:
            on_error.callback(os.close, descriptor)
        if greeting != GREETING:
            raise HandoverRefused(
                f"it greets with {greeting!r} instead of {GREETING!r}" if greeting else "it hung up before it greeted"
            )
        if flags & socket.MSG_CTRUNC or len(descriptors) != _DESCRIPTORS:
            raise HandoverRefused(f"it handed over {len(descriptors)} descriptors or more, not {_DESCRIPTORS}")
        memory, *bells = descriptors
        _check_memory(memory)
        for bell in bells:
            _check_bell(bell)
        shared = SharedMemory(memory, (bells[0], bells[1]))
        on_error.pop_all()
        os.close(memory)
        return shared


def _check_memory(memory: int) -> None:
    size = os.fstat(memory).st_size
    if size != MEMORY_BYTES:
        raise HandoverRefused(f"its memory has {size} bytes, not {MEMORY_BYTES}")
    try:
        seals = fcntl.fcntl(memory, fcntl.F_GET_SEALS)
    except OSError as error:
        raise HandoverRefused(f"its memory is not a memfd: {error.strerror}") from error
    if seals != _SEALS:
        raise HandoverRefused(f"its memory has the seals {seals:#x}, not {_SEALS:#x}: it could be cut off")


def _check_bell(bell: int) -> None:
    kind = os.readlink(f"/proc/self/fd/{bell}")
    if kind != "anon_inode:[eventfd]":
        raise HandoverRefused(f"it handed over {kind} for an eventfd")
    os.set_blocking(bell, False)


@final
class ShmStream(ByteStream):
    """One end; only its event loop's thread may use it."""

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
        self._reader = OneWaiter("read from", peer)
        self._writer = OneWaiter("write to", peer)
        self._on_closed = on_closed
        if memory is not None:
            self._attach(memory, 0)
        trio.lowlevel.spawn_system_task(self._watch, name=f"shm to {peer}")

    def try_send(self, pieces: Sequence[Piece]) -> int:
        """Copies as much as the ring has room for."""
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
        """Copies arrived data."""
        incoming = self._in
        count = None
        if incoming is not None:
            try:
                count = incoming.read_into(windows)
            except RingBroken as error:
                raise self._broken(error) from error
            if count and incoming.must_wake_writer():
                with contextlib.suppress(OSError):  # many wake-ups are pending already, or the peer has ended
                    self._socket.send(b"\0")
        if count is None:
            if self._lost or self._closed:
                raise self._error(self._lost or "it is closed")
        elif not count:
            check_room(windows)
        return count

    async def wait_writable(self) -> None:
        """Waits until a quarter of the ring is free."""
        self._check_open()
        with self._writer:  # a second task would clear the flag by which the peer knows that the first one sleeps
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
        """Waits until data has arrived."""
        self._check_open()
        with self._reader:
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
                    self._check_open()  # it may be closed meanwhile, and its number reused
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
        """Whether data has arrived, according to the memory."""
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
        with contextlib.suppress(BlockingIOError):  # already readable
            os.eventfd_write(self._their_bell, 1)

    async def _watch(self) -> None:
        """Takes over the memory, wakes a writer that waits for room, and notices the end of the peer."""
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
        self._in = self._out = None  # its data can no longer be trusted
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
