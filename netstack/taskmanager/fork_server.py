"""Forks slot processes: a process that has imported netstack, and runs neither an event loop nor user code.

Takes: requests over a socket, each with the descriptors that a slot is to have. Gives: slot processes, and how each
ended.

A slot that is forked from here is there within some 30 ms and shares the pages of all imported modules. The fork server
is forked itself, from a process that has not begun an event loop (`start_fork_server`).

Rules:
- Nothing outlives its parent: the fork server kills all slots and ends when its supervisor's end of the socket closes;
  slots are killed by the kernel when the fork server dies. A slot leads a session of its own, and what it has started
  in that session is killed when it ends.
- The fork server reaps its slots, so a process id stays taken until the supervisor knows of the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn, final

import msgpack
import trio

from ..errors import ConfigError, NetstackError

_REQUEST_BYTES: Final = 1 << 16
_DESCRIPTORS: Final = 8
_PR_SET_PDEATHSIG: Final = 1
_HANDLED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD)

_leave: Final = os._exit  # slots replace it, so that user code that calls it leaves its stack

SlotMain = Callable[[dict[str, Any], list[int]], int]
"""What a slot process runs: takes its request and its descriptors, gives its exit code."""


@final
@dataclass(frozen=True, slots=True)
class ForkedSlot:
    """A slot process that has begun.

    Attributes:
        pid: its process id.
        pidfd: refers to it whatever becomes of the id; the receiver closes it.
    """

    pid: int
    pidfd: int


@final
class ForkServer:
    """The supervisor's end; see `start_fork_server`, which makes one. One task at a time calls `fork`.

    Attributes:
        pid: of the fork server.
    """

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._connection = connection
        self._started: dict[int, ForkedSlot] = {}
        self._ended: dict[int, int] = {}
        self._changed = trio.Event()
        self._is_lost = False

    async def fork(self, slot: int, request: dict[str, Any], descriptors: list[int]) -> ForkedSlot:
        """Starts the process of a slot.

        Args:
            slot: its number; its last process has ended.
            request: plain data for its main function.
            descriptors: it gets copies of these; the caller closes its own.

        Raises:
            NetstackError: the fork server has ended.

        Cancellation: the process may have been started; `kill_all` ends it.
        """
        data = msgpack.packb({**request, "slot": slot})
        try:
            socket.send_fds(self._connection, [data], descriptors)
        except OSError as error:
            raise NetstackError(f"the fork server (process {self.pid}) has ended: {error.strerror}") from error
        while slot not in self._started:
            await self._wait()
        return self._started.pop(slot)

    async def wait_ended(self, slot: int) -> int:
        """Waits for the end of a slot's process.

        Returns:
            Its exit code; negative: the signal that ended it.

        Raises:
            NetstackError: the fork server has ended, and all slots with it.

        Cancellation: nothing changed.
        """
        while slot not in self._ended:
            await self._wait()
        return os.waitstatus_to_exitcode(self._ended.pop(slot))

    async def run(self) -> None:
        """Reads what the fork server says, until it has ended or this is cancelled."""
        self._connection.setblocking(False)
        try:
            while True:
                await trio.lowlevel.wait_readable(self._connection)
                with contextlib.suppress(BlockingIOError):
                    data, descriptors, _, _ = socket.recv_fds(self._connection, _REQUEST_BYTES, 1)
                    if not data:
                        break
                    self._take(msgpack.unpackb(data), descriptors)
        except OSError:
            pass
        self._is_lost = True
        self._notify()

    def close(self) -> None:
        """Ends the fork server and all slots, and reaps the server; blocks for a moment. Idempotent."""
        if self._connection.fileno() < 0:
            return
        self._connection.close()
        for exited in self._started.values():
            os.close(exited.pidfd)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _take(self, message: dict[str, Any], descriptors: list[int]) -> None:
        slot = message["slot"]
        if "pid" in message:
            self._started[slot] = ForkedSlot(message["pid"], descriptors[0])
        else:
            self._ended[slot] = message["status"]
        self._notify()

    async def _wait(self) -> None:
        if self._is_lost:
            raise NetstackError(f"the fork server (process {self.pid}) has ended, and all slots with it")
        await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def start_fork_server(main: SlotMain) -> ForkServer:
    """Forks a fork server off this process. Call it before any event loop and any thread begins.

    Args:
        main: what each slot process runs.

    Raises:
        ConfigError: an event loop runs here, or the system is not Linux.
    """
    if trio.lowlevel.in_trio_run():
        raise ConfigError("slots cannot be forked off a running event loop; start the fork server before trio.run")
    if not hasattr(os, "pidfd_open"):
        raise ConfigError("slots in processes need Linux; start the TaskManager with --slots-in loop")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        ours.close()
        _serve_and_exit(theirs, main)
    theirs.close()
    return ForkServer(pid, ours)


# In the fork server.


def _serve_and_exit(connection: socket.socket, main: SlotMain) -> NoReturn:
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a terminal's are for the supervisor
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        gc.collect()
        gc.freeze()  # what a slot collects are its own objects: the pages of these stay shared
        _Server(connection, main).serve()
        code = 0
    finally:
        _leave(code)


@final
class _Server:
    def __init__(self, connection: socket.socket, main: SlotMain) -> None:
        self._connection = connection
        self._main = main
        self._selector = selectors.DefaultSelector()
        self._slots: dict[int, tuple[int, int]] = {}  # by pidfd: slot and process id

    def serve(self) -> None:
        self._selector.register(self._connection, selectors.EVENT_READ)
        try:
            while True:
                for key, _ in self._selector.select():
                    if key.fileobj is not self._connection:
                        self._reap(key.fd)
                    elif not self._take():
                        return
        finally:
            for _, pid in self._slots.values():
                _kill_session(pid)

    def _take(self) -> bool:
        """One request; False when the supervisor has ended."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._connection, _REQUEST_BYTES, _DESCRIPTORS)
        except ConnectionError:
            return False
        if not data:
            return False
        request = msgpack.unpackb(data)
        server = os.getpid()
        pid = os.fork()
        if not pid:
            self._run_slot(request, descriptors, server)
        for descriptor in descriptors:
            os.close(descriptor)
        pidfd = os.pidfd_open(pid)
        self._slots[pidfd] = request["slot"], pid
        self._selector.register(pidfd, selectors.EVENT_READ)
        self._send({"slot": request["slot"], "pid": pid}, [pidfd])
        return True

    def _reap(self, pidfd: int) -> None:
        slot, pid = self._slots.pop(pidfd)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _kill_session(pid)  # what user code has started there; the id of the session is taken until the next line
        _, status = os.waitpid(pid, 0)
        self._send({"slot": slot, "status": status}, [])

    def _send(self, message: dict[str, Any], descriptors: list[int]) -> None:
        with contextlib.suppress(ConnectionError):  # the supervisor has ended: the next request says so
            socket.send_fds(self._connection, [msgpack.packb(message)], descriptors)

    def _run_slot(self, request: dict[str, Any], descriptors: list[int], server: int) -> NoReturn:
        code = 1
        try:
            self._selector.close()
            self._connection.close()
            for pidfd in self._slots:
                os.close(pidfd)
            os.setsid()
            die_with_parent(server)
            for number in _HANDLED:
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as every Python process has it
            code = self._main(request, descriptors)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            _leave(code)


def die_with_parent(parent: int) -> None:
    """The kernel kills this process when its parent dies; at once if it is dead already."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        _leave(1)


def _kill_session(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
