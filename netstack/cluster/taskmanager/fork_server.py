"""The fork server: a process with netstack imported, but without event loop and user code, that forks slot processes.

Takes: requests over a socket, each with the file descriptors for a slot. Gives: slot processes, and their exit status.

Forking a slot takes about 30 ms, and the slots share the memory pages of all imported modules. The fork server itself
is forked from its keeper, which is forked from a process that has not started an event loop (`start_fork_server`).

Rules:
- No process outlives its parent: the fork server kills all slots and ends when the supervisor's end of the socket
  closes; the kernel kills the slots when the fork server dies. Each slot leads its own session, and processes that it
  started in that session are killed at its end.
- The keeper only waits. If a signal kills the fork server, and so all slots, the keeper forks another one, and the
  supervisor starts the slots again.
- The fork server reaps its slots, so a process id is not reused before the supervisor knows of the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn, final

import msgpack
import trio

from ...base.errors import ConfigError, NetstackError
from .memory import keep_freed_memory

LOGGER: Final = logging.getLogger("netstack.taskmanager")

_REQUEST_BYTES: Final = 1 << 16
_DESCRIPTORS: Final = 8
_PR_SET_PDEATHSIG: Final = 1
_PAUSE_S: Final = 0.1  # before a fork server that was killed is started again
_HANDLED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD)

_leave: Final = os._exit  # slot processes replace it to record the stack of the caller

SlotMain = Callable[[dict[str, Any], list[int]], int]
"""Main function of a slot process: receives its request and descriptors, returns the exit code."""


@final
@dataclass(frozen=True, slots=True)
class ForkedSlot:
    """A started slot process.

    Attributes:
        pidfd: process descriptor; the receiver closes it.
    """

    pid: int
    pidfd: int


@final
class ForkServer:
    """The supervisor's interface to the fork server; created by `start_fork_server`.

    Attributes:
        pid: process id of its keeper.
    """

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._connection = connection
        self._numbers = itertools.count()  # of requests: a fork server that was killed may leave one unanswered
        self._pending: set[int] = set()  # requests whose process has not ended
        self._started: dict[int, ForkedSlot] = {}
        self._ended: dict[int, int] = {}
        self._current: dict[int, int] = {}  # by slot
        self._changed = trio.Event()
        self._is_lost = False

    async def fork(self, slot: int, request: dict[str, Any], descriptors: list[int]) -> ForkedSlot:
        """Starts the process of a slot.

        Args:
            slot: index of the slot, whose previous process has ended.
            request: plain data for the main function.
            descriptors: file descriptors to copy into the process; the caller closes its own.

        Raises:
            NetstackError: the fork server has ended.

        Cancellation: the process may have been started; `close` ends it.
        """
        while True:
            number = next(self._numbers)
            self._pending.add(number)
            data = msgpack.packb({**request, "slot": slot, "number": number})
            try:
                socket.send_fds(self._connection, [data], descriptors)
            except OSError as error:
                raise NetstackError(f"the fork server (process {self.pid}) has ended: {error.strerror}") from error
            while number not in self._started and number in self._pending:
                await self._wait()
            if number in self._started:
                self._current[slot] = number
                return self._started.pop(number)
            del self._ended[number]  # the fork server was killed before it answered: the next one is asked

    async def wait_ended(self, slot: int) -> int:
        """Waits for the end of a slot's process.

        Returns:
            The exit code; negative: the signal that killed it.

        Raises:
            NetstackError: the fork server has ended, and all slots with it.

        Cancellation: changes nothing.
        """
        number = self._current[slot]
        while number not in self._ended:
            await self._wait()
        return os.waitstatus_to_exitcode(self._ended.pop(number))

    async def run(self) -> None:
        """Receives messages of the fork server until it ends or this is cancelled."""
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
        """Ends the fork server and all slots, and reaps it; blocks briefly. Idempotent."""
        if self._connection.fileno() < 0:
            return
        self._connection.close()
        for exited in self._started.values():
            os.close(exited.pidfd)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _take(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if "lost" in message:
            LOGGER.warning(
                "the fork server (process %d) was killed, and all slots with it; they are started again",
                message["lost"],
            )
            self._ended |= dict.fromkeys(self._pending, int(signal.SIGKILL))  # a status of waitpid
            self._pending.clear()
        elif message["number"] in self._pending:
            number = message["number"]
            if "pid" in message:
                self._started[number] = ForkedSlot(message["pid"], descriptors[0])
            else:
                self._pending.discard(number)
                self._ended[number] = message["status"]
        elif descriptors:  # of a request that counts as lost
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptors[0], signal.SIGKILL)
            os.close(descriptors[0])
        self._notify()

    async def _wait(self) -> None:
        if self._is_lost:
            raise NetstackError(f"the fork server (process {self.pid}) has ended, and all slots with it")
        await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def start_fork_server(main: SlotMain) -> ForkServer:
    """Forks the fork server from this process; call it before any event loop or thread starts.

    Raises:
        ConfigError: an event loop is running, or the system is not Linux.
    """
    if trio.lowlevel.in_trio_run():
        raise ConfigError(
            "slot processes cannot be forked from a running event loop; start the fork server before trio.run"
        )
    if not hasattr(os, "pidfd_open"):
        raise ConfigError("slot processes need Linux; start the TaskManager with --slots-in loop")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        ours.close()
        _keep(theirs, main)
    theirs.close()
    return ForkServer(pid, ours)


# In the keeper.


def _keep(connection: socket.socket, main: SlotMain) -> NoReturn:
    """Runs fork servers, one after the other if they are killed, until the supervisor ends."""
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the supervisor handles a terminal's signals
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        gc.collect()
        gc.freeze()  # so that collections in slots do not touch the shared pages
        keeper = os.getpid()
        while True:
            pid = os.fork()
            if not pid:
                die_with_parent(keeper)
                _serve_and_exit(connection, main)
            _, status = os.waitpid(pid, 0)
            if not os.WIFSIGNALED(status):  # the supervisor has ended, or the fork server failed
                code = os.waitstatus_to_exitcode(status)
                break
            socket.send_fds(connection, [msgpack.packb({"lost": pid})], [])
            time.sleep(_PAUSE_S)
    except ConnectionError:  # the supervisor has ended
        code = 0
    finally:
        _leave(code)


# In the fork server.


def _serve_and_exit(connection: socket.socket, main: SlotMain) -> NoReturn:
    code = 1
    try:
        keep_freed_memory()
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
        self._slots: dict[int, tuple[int, int]] = {}  # by pidfd: number of the request and process id

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
        """Handles one request; returns False when the supervisor has ended."""
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
        self._slots[pidfd] = request["number"], pid
        self._selector.register(pidfd, selectors.EVENT_READ)
        self._send({"number": request["number"], "pid": pid}, [pidfd])
        return True

    def _reap(self, pidfd: int) -> None:
        number, pid = self._slots.pop(pidfd)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _kill_session(pid)  # children of user code; the session id cannot be reused before the next line
        _, status = os.waitpid(pid, 0)
        self._send({"number": number, "status": status}, [])

    def _send(self, message: dict[str, Any], descriptors: list[int]) -> None:
        with contextlib.suppress(ConnectionError):  # the supervisor has ended; the next receive detects it
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
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # the default of Python processes
            code = self._main(request, descriptors)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            _leave(code)


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent dies; ends it at once if the parent is dead."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        _leave(1)


def _kill_session(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
