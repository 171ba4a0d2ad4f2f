"""The memory that two processes share, and how one hands it to the other: a memfd and two eventfds by SCM_RIGHTS.

Takes: a connected unix socket. Gives: `SharedMemory`, made here or by the peer.

Rules: what a peer hands over is checked before it is used. The memfd has exactly our size and is sealed against
shrinking, growing and other seals, so that no access of ours can fail (SIGBUS). Nothing has a name: with the last of
both processes everything is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
from typing import Final, final

from .ring import HEADER_BYTES, RingReader, RingWriter

CAPACITIES: Final = 64 * 1024, 1024 * 1024
"""Bytes under way that the dialler has written, and the acceptor: consumers dial, and say little beside credit."""

GREETING: Final = b"netstack-shm 1 %d %d" % CAPACITIES
"""Sent with the descriptors, by whoever dialled: a peer of another layout or capacity is told apart by it."""

_BASES: Final = 0, HEADER_BYTES + CAPACITIES[0]
MEMORY_BYTES: Final = _BASES[1] + HEADER_BYTES + CAPACITIES[1]
"""Of one stream, as soon as bytes have been everywhere."""

_DESCRIPTORS: Final = 3
_SEALS: Final = 0x1 | 0x2 | 0x4
"""F_SEAL_SEAL, F_SEAL_SHRINK and F_SEAL_GROW: `fcntl` names them on Linux only."""


class HandoverRefused(Exception):
    """What the peer handed over cannot be used; the text says why."""


@final
class SharedMemory:
    """Two rings, and an eventfd for the reader of each; ring 0 is written by whoever dialled."""

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
    """Makes the memory and sends it.

    Raises:
        OSError: no descriptors or no memory are left; the peer is gone.
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
    """Receives the memory; call it when the socket is readable.

    Raises:
        BlockingIOError: nothing has come.
        HandoverRefused: it is not what `hand_over` sends.
        OSError: the peer is gone.
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
        raise HandoverRefused(f"its memory is no memfd: {error.strerror}") from error
    if seals != _SEALS:
        raise HandoverRefused(f"its memory has the seals {seals:#x}, not {_SEALS:#x}: it could be cut off")


def _check_bell(bell: int) -> None:
    kind = os.readlink(f"/proc/self/fd/{bell}")
    if kind != "anon_inode:[eventfd]":
        raise HandoverRefused(f"it handed over {kind} for an eventfd")
    os.set_blocking(bell, False)
