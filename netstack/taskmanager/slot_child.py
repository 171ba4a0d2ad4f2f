"""One process of a slot, as its supervisor sees it: the link, the clock, the stacks, the end.

Takes: a fork server. Gives: a link to the process, and what can be learned from outside while user code holds it up.

Rules: everything here belongs to one process and ends with it. A stack that nobody asked for is the process's last
words: a crash writes one, and so does `os._exit`.
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

from ..control.build import own_build
from ..control.codec import Plain
from ..control.link import JOBMANAGER, ControlLink, full_build
from ..transports._sockets import SocketStream
from .fork_server import ForkedSlot, ForkServer
from .slot_settings import HEARTBEAT, STACK_SIGNAL
from .stacks import CodeTable, Frame, parse_stack

STOP_S: Final = 3.0
"""How long a process that is not needed any more may take to remove its files; then it is killed."""

_STACK_S: Final = 0.5
_STACK_QUIET_S: Final = 0.02
_PIPE_BYTES: Final = 1 << 16


@final
class SlotChild:
    """One process of a slot: `start` it, `talk`, and `close` it whatever happened.

    Attributes:
        link: to the process; use it once it has greeted.
        code: which code its tasks have.
    """

    def __init__(self, number: int) -> None:
        """Args: number of the slot. Opens descriptors; `close` closes them."""
        self._number = number
        self.code = CodeTable()
        self._stacks, self._stacks_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._stacks, False)
        self._shared = os.memfd_create("netstack-slot", os.MFD_CLOEXEC)
        os.ftruncate(self._shared, mmap.PAGESIZE)
        self._clock = mmap.mmap(self._shared, mmap.PAGESIZE)
        HEARTBEAT.pack_into(self._clock, 0, time.monotonic_ns())
        ours, self._control = socket.socketpair()
        self._stream = SocketStream(ours, f"slot {number}")
        self.link = ControlLink(self._stream, heartbeat_timeout_s=math.inf)
        self._process: ForkedSlot | None = None
        self._why_killed = ""
        self._text = ""
        self._rest = b""
        self._asking = trio.Lock()

    async def start(self, server: ForkServer, request: dict[str, Any]) -> None:
        """Forks the process. Raises as `ForkServer.fork`, and so is its cancellation."""
        descriptors = [self._control.fileno(), self._stacks_end, self._shared]
        try:
            self._process = await server.fork(self._number, request, descriptors)
        finally:
            self._control.close()
            os.close(self._stacks_end)
            os.close(self._shared)

    async def greet(self) -> Plain:
        """Exchanges greetings; what the process says of itself. Raises as `ControlLink.greet`."""
        greeting = await self.link.greet(full_build(own_build()), "supervisor", JOBMANAGER, {})
        return greeting.facts

    async def close(self) -> None:
        """Closes the link, which ends a process that still runs, and waits `STOP_S` for that at most."""
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
        """How long its event loop has not turned."""
        return float(time.monotonic() - HEARTBEAT.unpack_from(self._clock, 0)[0] / 1e9)

    def kill(self, why: str) -> None:
        """Ends the process at once.

        Args:
            why: told of it instead of the signal; the first counts.
        """
        if self._process is not None:
            self._why_killed = self._why_killed or why
            with contextlib.suppress(ProcessLookupError):
                pidfd_send_signal(self._process.pidfd, SIGKILL)

    def ended(self, code: int) -> str:
        """How it ended, and where its code was as far as that is known; `close` it first.

        Args:
            code: as `os.waitstatus_to_exitcode` gives it.
        """
        how = self._why_killed or how_ended(code)
        place = place_text(self.code.located(parse_stack(self._text)))
        return f"{how} ({place})" if place else how

    async def stack(self) -> list[Frame]:
        """The stack of the process's main thread, innermost frame first; empty when it cannot be had.

        It is taken by a signal handler in C, so also while user code holds the interpreter. Cancellation: a stack that
        comes later counts as its last words.
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
        """Takes what the process writes, until it has ended."""
        while True:
            await trio.lowlevel.wait_readable(self._stacks)
            if not self._drain():
                return

    def _drain(self) -> bool:
        """Takes what there is; False at the end."""
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
    """Where code is, in words: operator, file, line and function; empty if that is not known."""
    if not where.get("file"):
        return ""
    operator = f"operator {where['operator']!r}, " if where.get("operator") else ""
    return f"{operator}{where['file']}:{where['line']} in {where['function']}"


def how_ended(code: int) -> str:
    """How a process ended, by its exit code as `os.waitstatus_to_exitcode` gives it."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = Signals(-code).name
    except ValueError:
        return f"was ended by signal {-code}"
    return f"was ended by {name}" + (" (perhaps by the system, for want of memory)" if name == "SIGKILL" else "")
