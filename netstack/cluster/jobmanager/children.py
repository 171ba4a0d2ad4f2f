"""TaskManagers as child processes: starts them, restarts them when they die, and ends them with this process.

Takes: the address of the JobManager, the number of TaskManagers and slots. Gives: the processes and their output.

Rules: the standard input of a child is a pipe of this process; the child ends when the pipe closes, also when this
process is killed. A child runs in its own session, so Ctrl-C reaches only this process, which then ends the child. The
shared secret is passed in memory and never on a disk. At the end of the block every child is reaped, and processes that
operators started there are killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from signal import SIGKILL, SIGTERM, Signals
from typing import Final, final

import trio

from ...base.config import MIB
from ...base.errors import NetstackError
from ...base.text.safe_text import safe_text
from ...network.connection.authentication import Secret

TAIL_LINES: Final = 40
"""Number of stderr lines of a child that are stored to explain its death."""

_STOP_S: Final = 5.0
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 10.0
_QUIET_S: Final = 30.0  # a child that lived this long is restarted after the first pause again
_LINE_BYTES: Final = 1 << 16
_LOGGED: Final = re.compile(r"\d\d:\d\d:\d\d (?!(WARNING|ERROR|CRITICAL) )")
"""A line of a child's log, except warnings of user code (`cli.logs.TextFormatter`)."""

Lines = Callable[[str, str], None]
"""Receives the name of a TaskManager and a line that it printed."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskManagerSettings:
    """Settings of the TaskManager processes.

    Attributes:
        memory_bytes: memory for network buffers of each TaskManager.
        allow: prefixes of the functions that they may run; `*`: any.
        flags: additional flags of `netstack taskmanager`.
    """

    slots: int = 1
    memory_bytes: int = 64 * MIB
    allow: tuple[str, ...] = ("*",)
    is_restarting: bool = True
    flags: tuple[str, ...] = ()


@final
class LocalTaskManagers:
    """The TaskManager processes; created by `open_local_taskmanagers`.

    Attributes:
        deaths: descriptions of unexpected deaths, newest last.
    """

    def __init__(
        self,
        address: str,
        secret_fd: int | None,
        settings: TaskManagerSettings,
        nursery: trio.Nursery,
        on_printed: Lines | None,
        on_logged: Lines | None,
    ) -> None:
        self.deaths: deque[str] = deque(maxlen=16)
        self._settings = settings
        self._secret_fd = secret_fd
        self._nursery = nursery
        self._on_printed = on_printed
        self._on_logged = on_logged
        self._address = address
        self._pids: dict[str, int] = {}  # of children that are not reaped
        self._tails: dict[str, deque[str]] = {}
        self._stopping = trio.Event()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the running TaskManagers, by name."""
        return dict(self._pids)

    def start(self, name: str) -> None:
        """Starts a TaskManager; it registers with the JobManager as soon as it can.

        Args:
            name: name for messages; no other running one has it.
        """
        self._nursery.start_soon(self._keep, name)

    def kill(self, name: str) -> None:
        """Kills a TaskManager with SIGKILL. Raises KeyError if no TaskManager of this name is running."""
        os.kill(self._pids[name], SIGKILL)

    def stop(self) -> None:
        """Ends all TaskManagers and starts no more; kills those that do not end within a few seconds."""
        self._stopping.set()

    def last_words(self) -> str:
        """Returns the last log line of one TaskManager for error texts; empty without output."""
        return next(
            (f"; last log line of {name}: {safe_text(tail[-1])}" for name, tail in self._tails.items() if tail), ""
        )

    def _command(self, name: str) -> list[str]:
        words = [sys.executable, "-m", "netstack.cli", "taskmanager", "--jobmanager", self._address]
        words += ["--until-eof"]
        words += ["--listen", "tcp://127.0.0.1:0", "--slots", str(self._settings.slots)]
        words += ["--memory", str(self._settings.memory_bytes), *self._settings.flags]
        for prefix in self._settings.allow:
            words += ["--allow", prefix]
        if self._secret_fd is not None:
            words += ["--secret-file", f"/proc/self/fd/{self._secret_fd}"]
        return words

    async def _keep(self, name: str) -> None:
        """Runs one TaskManager, restarting it if configured, until `stop`."""
        pause_s = _FIRST_PAUSE_S
        while not self._stopping.is_set():
            began_s = trio.current_time()
            with trio.CancelScope(shield=True):  # reap the child even when cancelled
                death = await self._live(name)
            if self._stopping.is_set():
                return
            self.deaths.append(death)
            if not self._settings.is_restarting:
                return
            if trio.current_time() - began_s > _QUIET_S:
                pause_s = _FIRST_PAUSE_S
            with trio.move_on_after(pause_s):
                await self._stopping.wait()
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _live(self, name: str) -> str:
        """Runs one TaskManager process to its end; returns a description of its death."""
        tail = self._tails[name] = deque(maxlen=TAIL_LINES)
        process = await trio.lowlevel.open_process(
            self._command(name),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(search_path()), "PYTHONUNBUFFERED": "1"},
            pass_fds=() if self._secret_fd is None else (self._secret_fd,),
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._pids[name] = process.pid
        async with process.stdin, trio.open_nursery() as nursery:
            nursery.start_soon(self._read, name, process.stdout, None)
            nursery.start_soon(self._read, name, process.stderr, tail)
            async with trio.open_nursery() as guard:
                guard.start_soon(self._end_when_stopping, process.pid)
                await _wait_unreaped(process.pid)
                guard.cancel_scope.cancel()
            _kill_session(process.pid)  # its own children hold the pipes open
            del self._pids[name]
            await process.wait()
        return f"TaskManager process {name} {_how(process.returncode)}{_last_words(tail)}"

    async def _end_when_stopping(self, pid: int) -> None:
        await self._stopping.wait()
        os.kill(pid, SIGTERM)
        await trio.sleep(_STOP_S)
        os.kill(pid, SIGKILL)

    async def _read(self, name: str, pipe: trio.abc.ReceiveStream, tail: deque[str] | None) -> None:
        rest = b""
        async with pipe:
            while chunk := await pipe.receive_some(_LINE_BYTES):
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > _LINE_BYTES:
                    lines.append(rest)
                    rest = b""
                for line in lines:
                    self._add_line(name, line, tail)
        if rest:
            self._add_line(name, rest, tail)

    def _add_line(self, name: str, line: bytes, tail: deque[str] | None) -> None:
        """Passes on a line; `tail` keeps the last ones of standard error.

        There an operator's lines, and those that Python prints for it, stand among those of the log.
        """
        text = line.decode(errors="replace").rstrip("\r")
        if tail is not None:
            if self._stopping.is_set() and (not text or text.startswith("netstack: stopped by ")):
                return  # `stop` met a process that did not handle signals yet, which says so itself
            tail.append(text)
        on_line = self._on_printed if tail is None or _LOGGED.match(text) is None else self._on_logged
        if on_line is not None:
            on_line(name, text)


@asynccontextmanager
async def open_local_taskmanagers(
    address: str,
    names: Sequence[str],
    settings: TaskManagerSettings,
    *,
    secret: Secret | None = None,
    on_printed: Lines | None = None,
    on_logged: Lines | None = None,
) -> AsyncIterator[LocalTaskManagers]:
    """Runs TaskManagers as child processes while the block runs.

    Cancellation, like the end of the block, stops and reaps all processes.
    """
    with _secret_in_memory(secret) as secret_fd:
        async with trio.open_nursery() as nursery:
            taskmanagers = LocalTaskManagers(address, secret_fd, settings, nursery, on_printed, on_logged)
            for name in names:
                taskmanagers.start(name)
            failure: BaseException | None = None
            try:
                yield taskmanagers
            except trio.Cancelled:
                raise
            except BaseException as error:  # propagates unwrapped, not in this nursery's group
                failure = error
            finally:
                taskmanagers.stop()
    if failure is not None:
        raise failure


def search_path() -> list[str]:
    """Returns the module search path of this process for child processes."""
    return list(dict.fromkeys(os.path.abspath(place) for place in sys.path if not place or os.path.exists(place)))


async def wait_registered(
    taskmanagers: LocalTaskManagers, count: Callable[[], int], wanted: int, timeout_s: float
) -> None:
    """Waits until `wanted` TaskManagers are registered.

    Raises:
        NetstackError: a TaskManager died, or they do not register in time; the text contains the reason if known.
    """
    deadline_s = trio.current_time() + timeout_s
    while count() < wanted and trio.current_time() < deadline_s:
        if taskmanagers.deaths:
            raise NetstackError(taskmanagers.deaths[-1])
        await trio.sleep(0.02)
    if count() < wanted:
        raise NetstackError(
            f"only {count()} of {wanted} TaskManager processes registered within {timeout_s:g} s"
            f"{taskmanagers.last_words()}"
        )


async def _wait_unreaped(pid: int) -> None:
    """Waits for the end of a process without reaping it, so that its id cannot be reused before the kill."""
    descriptor = os.pidfd_open(pid)
    try:
        await trio.lowlevel.wait_readable(descriptor)
    finally:
        os.close(descriptor)


def _kill_session(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, SIGKILL)


def _how(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _last_words(tail: deque[str]) -> str:
    words = [line for line in tail if line.strip() and not _LOGGED.match(line)]
    return f" ({safe_text(words[-1])})" if words else ""


@contextlib.contextmanager
def _secret_in_memory(secret: Secret | None) -> Iterator[int | None]:
    """Yields the descriptor of an unnamed in-memory file with the secret."""
    if secret is None:
        yield None
        return
    descriptor = os.memfd_create("netstack-secret")
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, secret.reveal())
        yield descriptor
    finally:
        os.close(descriptor)
