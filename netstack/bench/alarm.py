"""Wakes a trio task at a time, to some 50 us, without spinning: trio itself waits in epoll, which rounds up to 1 ms.

Takes: times of CLOCK_MONOTONIC, in nanoseconds. Gives: `Alarm`, on Linux's timerfd; elsewhere trio's own sleep.
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
_SPEC: Final = struct.Struct("@qqqq")  # struct itimerspec: the interval, then the time; seconds and nanoseconds each


@final
class Alarm:
    """One timer; used by one task at a time.

    Raises:
        OSError: the system gives no more files.
    """

    __slots__ = ("_fd", "_libc")

    def __init__(self) -> None:
        """Makes the timer."""
        self._fd = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)  # `os.timerfd_create` comes with Python 3.13
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NON_BLOCKING)
            if self._fd < 0:
                raise OSError(ctypes.get_errno(), "timerfd_create")

    async def wait_until(self, at_ns: int) -> None:
        """Waits until `time.monotonic_ns()` is there; returns at once, as a checkpoint, when it is already.

        Cancellation: nothing changed.
        """
        if self._fd < 0:
            await trio.sleep(max(0, at_ns - time.monotonic_ns()) / 1e9)
            return
        seconds, rest = divmod(max(1, at_ns), 1_000_000_000)  # a time of 0 would disarm it
        self._libc.timerfd_settime(self._fd, _ABSOLUTE, _SPEC.pack(0, 0, seconds, rest), None)
        await trio.lowlevel.wait_readable(self._fd)

    def __del__(self) -> None:
        """Who was cancelled does not close."""
        self.close()

    def close(self) -> None:
        """Gives the timer back; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
