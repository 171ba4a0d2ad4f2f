"""Wakes a trio task at a time, to some 50 us, without spinning: trio itself waits in epoll, which rounds up to 1 ms.

Takes: times of CLOCK_MONOTONIC, in nanoseconds, or seconds from now. Gives: `Alarm`, on Linux's timerfd.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import time
from typing import Final, final

import trio

_CLOCK_MONOTONIC: Final = 1
_ABSOLUTE: Final = 1
_NON_BLOCKING: Final = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
_LONGEST_S: Final = 1e9  # more is never
_SPEC: Final = struct.Struct("@qqqq")  # struct itimerspec: the interval, then the time; seconds and nanoseconds each


@final
class Alarm:
    """One timer; one task at a time waits for it.

    Raises:
        OSError: the system gives no more files.
    """

    IS_SUPPORTED: Final = sys.platform == "linux"
    """Whether there are such timers; elsewhere only `wait_until` works, as trio's own sleep."""

    __slots__ = ("_fd", "_set")

    def __init__(self) -> None:
        """Makes the timer, not set."""
        self._fd = -1
        if self.IS_SUPPORTED:
            libc = ctypes.PyDLL(None, use_errno=True)  # keeps the GIL; `os.timerfd_create` comes with 3.13
            self._set = libc.timerfd_settime
            self._fd = libc.timerfd_create(_CLOCK_MONOTONIC, _NON_BLOCKING)
            if self._fd < 0:
                raise OSError(ctypes.get_errno(), "timerfd_create")

    async def wait_until(self, at_ns: int) -> None:
        """Waits until `time.monotonic_ns()` is there; returns at once, as a checkpoint, when it is already.

        Cancellation: nothing changed.
        """
        if self._fd < 0:
            await trio.sleep(max(0, at_ns - time.monotonic_ns()) / 1e9)
            return
        seconds, rest = divmod(max(1, at_ns), 1_000_000_000)  # a time of 0 would unset it
        self._set(self._fd, _ABSOLUTE, _SPEC.pack(0, 0, seconds, rest), None)
        await trio.lowlevel.wait_readable(self._fd)

    def set(self, after_s: float) -> None:
        """Sets it anew, also for the task that waits, from any thread; infinity unsets it."""
        if after_s < _LONGEST_S:
            seconds, rest = divmod(max(1, int(after_s * 1e9)), 1_000_000_000)
            self._set(self._fd, 0, _SPEC.pack(0, 0, seconds, rest), None)
        else:
            self._set(self._fd, 0, _SPEC.pack(0, 0, 0, 0), None)

    async def wait(self) -> None:
        """Waits until the time of `set` has come: at once when it came before. Cancellation: nothing changed."""
        await trio.lowlevel.wait_readable(self._fd)

    def __del__(self) -> None:
        """Gives back what a cancelled task did not close."""
        self.close()

    def close(self) -> None:
        """Gives the timer back; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
