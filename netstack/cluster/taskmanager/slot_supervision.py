"""The supervisor's view of one slot process: link, heartbeat clock, stacks, exit.

Takes: a fork server. Gives: a link to the process, and its stacks, also while user code blocks it.

Rules: all state belongs to one process and ends with it. An unrequested stack explains the end of the process: a crash
and `os._exit` write one.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import socket
import time
from signal import SIGKILL, Signals, pidfd_send_signal
from typing import Any, Final, final

import trio

from ...base.transport import transport_for
from ..control.build import own_build
from ..control.codec import Plain
from ..control.link import JOBMANAGER, ControlLink, full_build
from .fork_server import ForkedSlot, ForkServer
from .slot_settings import HEARTBEAT, STACK_SIGNAL
from .stacks import CodeTable, Frame, parse_stack

STOP_S: Final = 3.0
"""How long an unneeded process may take to remove its files before it is killed."""

_STACK_S: Final = 0.5
_STACK_QUIET_S: Final = 0.02
_PIPE_BYTES: Final = 1 << 16


@final
class SlotChild:
    """One slot process: call `start`, then `greet`, and always `close`.

    Attributes:
        link: the link to the process, usable after `greet`.
    """

    def __init__(self, number: int) -> None:
        """Opens the descriptors of slot `number`; `close` closes them."""
        self._number = number
        self.code = CodeTable()
        self._stacks, self._stacks_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._stacks, False)
        self._shared = os.memfd_create("netstack-slot", os.MFD_CLOEXEC)
        os.ftruncate(self._shared, mmap.PAGESIZE)
        self._clock = mmap.mmap(self._shared, mmap.PAGESIZE)
        HEARTBEAT.pack_into(self._clock, 0, time.monotonic_ns())
        ours, self._control = socket.socketpair()
        self._stream = transport_for("unix://").stream_of(ours, f"slot {number}")
        self.link = ControlLink(self._stream, heartbeat_timeout_s=math.inf)
        self._process: ForkedSlot | None = None
        self._why_killed = ""
        self._text = ""
        self._rest = b""
        self._asking = trio.Lock()

    async def start(self, server: ForkServer, request: dict[str, Any]) -> None:
        """Forks the process; errors and cancellation are those of `ForkServer.fork`."""
        descriptors = [self._control.fileno(), self._stacks_end, self._shared]
        try:
            self._process = await server.fork(self._number, request, descriptors)
        finally:
            self._control.close()
            os.close(self._stacks_end)
            os.close(self._shared)

    async def greet(self) -> Plain:
        """Exchanges greetings; returns the facts of the process. Raises as `ControlLink.greet`."""
        greeting = await self.link.greet(full_build(own_build()), "supervisor", JOBMANAGER, {})
        return greeting.facts

    async def close(self) -> None:
        """Closes the link, which ends a running process, and waits at most `STOP_S` for its end."""
        self._stream.close()
        if self._process is not None:
            with trio.move_on_after(STOP_S, shield=True):
                await trio.lowlevel.wait_readable(self._process.pidfd)
            os.close(self._process.pidfd)
            self._process = None
        self._drain()
        os.close(self._stacks)

    @property
    def silent_s(self) -> float:
        """How long its event loop has been blocked."""
        return float(time.monotonic() - HEARTBEAT.unpack_from(self._clock, 0)[0] / 1e9)

    def kill(self, why: str) -> None:
        """Kills the process.

        Args:
            why: reported instead of the signal; the first reason counts.
        """
        if self._process is not None:
            self._why_killed = self._why_killed or why
            with contextlib.suppress(ProcessLookupError):
                pidfd_send_signal(self._process.pidfd, SIGKILL)

    def ended(self, code: int) -> str:
        """Describes how the process ended, and where its code was if known; call `close` first.

        Args:
            code: exit code from `os.waitstatus_to_exitcode`.
        """
        how = self._why_killed or how_ended(code)
        place = place_text(self.code.located(parse_stack(self._text)))
        return f"{how} ({place})" if place else how

    async def stack(self) -> list[Frame]:
        """Returns the stack of the process's main thread, innermost frame first; empty if it is not available.

        A signal handler in C writes it, so this works while user code holds the interpreter. Cancellation: a later
        stack counts as unrequested.
        """
        async with self._asking:
            if self._process is None:
                return []
            with contextlib.suppress(ProcessLookupError):
                pidfd_send_signal(self._process.pidfd, STACK_SIGNAL)
            before = ""
            with trio.move_on_after(_STACK_S):
                while not self._text or self._text != before:
                    before = self._text
                    await trio.sleep(_STACK_QUIET_S)
            text, self._text = self._text, ""
            return parse_stack(text)

    async def read_stacks(self) -> None:
        """Reads the stacks that the process writes, until it ends."""
        while True:
            await trio.lowlevel.wait_readable(self._stacks)
            if not self._drain():
                return

    def _drain(self) -> bool:
        """Reads available data; returns False at the end."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._stacks, _PIPE_BYTES):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    text = line.decode("utf-8", "replace")
                    if not (text.startswith("{") and self.code.add(text)):
                        self._text = f"{self._text}{text}\n"[-_PIPE_BYTES:]
            return False
        return True


def place_text(where: Plain) -> str:
    """Describes a place in code: operator, file, line and function; empty if unknown."""
    if not where.get("file"):
        return ""
    operator = f"operator {where['operator']!r}, " if where.get("operator") else ""
    return f"{operator}{where['file']}:{where['line']} in {where['function']}"


def how_ended(code: int) -> str:
    """Describes an exit code from `os.waitstatus_to_exitcode`."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = Signals(-code).name
    except ValueError:
        return f"was killed by signal {-code}"
    return f"was killed by {name}" + (" (perhaps by the system, out of memory)" if name == "SIGKILL" else "")
