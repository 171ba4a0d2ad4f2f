"""TaskManagers as processes of this one: started, started again when they die, and gone with it.

Takes: where the JobManager is, how many TaskManagers, of how many slots. Gives: the processes, and what they print.

Rules: the standard input of a child is a pipe of this process; the child ends when it closes, so also when this
process is killed. It runs in a session of its own: Ctrl-C reaches only this process, which then ends it. The shared
secret is handed over in memory and never on a disk. When the block is left, every child is reaped, and what operators
have started there is killed.
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

from ..config import MIB
from ..errors import NetstackError
from ..runtime.authentication import Secret
from ..shown import shown_text

TAIL_LINES: Final = 40
"""Last lines of a child's standard error, to explain its death."""

_STOP_S: Final = 5.0
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 10.0
_QUIET_S: Final = 30.0  # alive for so long, and the next pause is the first again
_LINE_BYTES: Final = 1 << 16
_LOGGED: Final = re.compile(r"\d\d:\d\d:\d\d ")

Lines = Callable[[str, str], None]
"""Takes the name of a TaskManager and a line that it printed."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskManagerSettings:
    """What the TaskManagers are started with.

    Attributes:
        slots: of each.
        memory_bytes: for network buffers, of each.
        allow: prefixes of the functions that they may run; `*` is any.
        is_restarting: whether one that dies is started again.
        flags: more flags of `netstack taskmanager`.
    """

    slots: int = 1
    memory_bytes: int = 64 * MIB
    allow: tuple[str, ...] = ("*",)
    is_restarting: bool = True
    flags: tuple[str, ...] = ()


@final
class LocalTaskManagers:
    """Made by `open_local_taskmanagers`.

    Attributes:
        deaths: how TaskManagers ended that nobody had ended, the newest last.
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
        self._pids: dict[str, int] = {}  # of those that are not reaped
        self._tails: dict[str, deque[str]] = {}
        self._stopping = trio.Event()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of those that run, by name."""
        return dict(self._pids)

    def start(self, name: str) -> None:
        """Starts a TaskManager; it registers with the JobManager as soon as it can.

        Args:
            name: for messages; not taken by another one that runs.
        """
        self._nursery.start_soon(self._keep, name)

    def kill(self, name: str) -> None:
        """SIGKILL, now; what follows is what follows any death.

        Raises:
            KeyError: none of this name runs.
        """
        os.kill(self._pids[name], SIGKILL)

    def stop(self) -> None:
        """Has all of them end, and no other one begin; those that do not within a few seconds are killed."""
        self._stopping.set()

    def last_words(self) -> str:
        """What one of them logged last, to explain why they do not come; empty if they are silent."""
        return next(
            (f"; process {name} said: {shown_text(tail[-1])}" for name, tail in self._tails.items() if tail), ""
        )

    # Inside.

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
        """One TaskManager, for as long as it is wanted."""
        pause_s = _FIRST_PAUSE_S
        while not self._stopping.is_set():
            began_s = trio.current_time()
            with trio.CancelScope(shield=True):  # its end is waited for, whatever happens
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
        """From its start to its end; how that was."""
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
            nursery.start_soon(self._read, name, process.stdout, self._on_printed, None)
            nursery.start_soon(self._read, name, process.stderr, self._on_logged, tail)
            async with trio.open_nursery() as guard:
                guard.start_soon(self._end_when_stopping, process.pid)
                await _wait_unreaped(process.pid)
                guard.cancel_scope.cancel()
            _kill_session(process.pid)  # what it has started holds the pipes too
            del self._pids[name]
            await process.wait()
        return f"TaskManager process {name} {_how(process.returncode)}{_last_words(tail)}"

    async def _end_when_stopping(self, pid: int) -> None:
        await self._stopping.wait()
        os.kill(pid, SIGTERM)
        await trio.sleep(_STOP_S)
        os.kill(pid, SIGKILL)

    async def _read(
        self, name: str, pipe: trio.abc.ReceiveStream, on_line: Lines | None, tail: deque[str] | None
    ) -> None:
        rest = b""
        async with pipe:
            while chunk := await pipe.receive_some(_LINE_BYTES):
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > _LINE_BYTES:
                    lines.append(rest)
                    rest = b""
                for line in lines:
                    self._add_line(name, line, on_line, tail)
        if rest:
            self._add_line(name, rest, on_line, tail)

    def _add_line(self, name: str, line: bytes, on_line: Lines | None, tail: deque[str] | None) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        if tail is not None:
            tail.append(text)
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
    """TaskManagers as processes, for as long as the block runs.

    Args:
        address: URL of the JobManager.
        names: one for each, for messages.
        settings: what they are started with.
        secret: shared with the JobManager.
        on_printed: takes what they print on standard output: what operators print.
        on_logged: takes what they print on standard error.

    Cancellation, and the end of the block: they are stopped, and reaped.
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
            except BaseException as error:  # leaves as it is, not inside this nursery's group
                failure = error
            finally:
                taskmanagers.stop()
    if failure is not None:
        raise failure


def search_path() -> list[str]:
    """Where this process finds modules, for others."""
    return list(dict.fromkeys(os.path.abspath(place) for place in sys.path if not place or os.path.exists(place)))


async def wait_registered(found: LocalTaskManagers, count: Callable[[], int], wanted: int, timeout_s: float) -> None:
    """Waits until so many TaskManagers are registered.

    Raises:
        NetstackError: one of them died, or they do not come; the text says why as far as it is known.
    """
    deadline_s = trio.current_time() + timeout_s
    while count() < wanted and trio.current_time() < deadline_s:
        if found.deaths:
            raise NetstackError(found.deaths[-1])
        await trio.sleep(0.02)
    if count() < wanted:
        raise NetstackError(
            f"of {wanted} TaskManager processes {count()} have registered within {timeout_s:g} s{found.last_words()}"
        )


async def _wait_unreaped(pid: int) -> None:
    """Waits for its end, and leaves its process id taken: nobody else is killed in its place."""
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
        return f"was ended by {Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _last_words(tail: deque[str]) -> str:
    words = [line for line in tail if line.strip() and not _LOGGED.match(line)]
    return f" ({shown_text(words[-1])})" if words else ""


@contextlib.contextmanager
def _secret_in_memory(secret: Secret | None) -> Iterator[int | None]:
    """A file that has no name, for those who are handed its descriptor."""
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
