"""A timer that wakes one trio task within about 50 us of its deadline.

trio's own sleep uses epoll, which rounds up to 1 ms.

Takes: CLOCK_MONOTONIC deadlines in nanoseconds, or delays in seconds. Gives: `Alarm`, on Linux's timerfd.
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
_LONGEST_S: Final = 1e9  # longer delays disarm the timer
_SPEC: Final = struct.Struct("@qqqq")  # struct itimerspec: the interval, then the time; seconds and nanoseconds each


@final
class Alarm:
    """One timer. At most one task waits for it at a time.

    Raises:
        OSError: the process has no file descriptors left.
    """

    IS_SUPPORTED: Final = sys.platform == "linux"
    """Whether this system has timerfd. Without it only `wait_until` works, by `trio.sleep`."""

    __slots__ = ("_fd", "_set")

    def __init__(self) -> None:
        self._fd = -1
        if self.IS_SUPPORTED:
            libc = ctypes.PyDLL(None, use_errno=True)  # keeps the GIL; `os.timerfd_create` comes with 3.13
            self._set = libc.timerfd_settime
            self._fd = libc.timerfd_create(_CLOCK_MONOTONIC, _NON_BLOCKING)
            if self._fd < 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))

    async def wait_until(self, at_ns: int) -> None:
        """Waits until `time.monotonic_ns()` reaches `at_ns`. Returns after a checkpoint if that time has passed.

        Cancellation: no effect on the timer.
        """
        if self._fd < 0:
            await trio.sleep(max(0, at_ns - time.monotonic_ns()) / 1e9)
            return
        seconds, rest = divmod(max(1, at_ns), 1_000_000_000)  # a time of 0 would disarm it
        self._set(self._fd, _ABSOLUTE, _SPEC.pack(0, 0, seconds, rest), None)
        await trio.lowlevel.wait_readable(self._fd)

    def set(self, after_s: float) -> None:
        """Rearms the timer, also for a task that is already waiting, from any thread.

        Infinity disarms it; a negative time, also -infinity, ends it at once.
        """
        if after_s < _LONGEST_S:
            seconds, rest = divmod(max(1, int(max(0.0, after_s) * 1e9)), 1_000_000_000)
            self._set(self._fd, 0, _SPEC.pack(0, 0, seconds, rest), None)
        else:
            self._set(self._fd, 0, _SPEC.pack(0, 0, 0, 0), None)

    async def wait(self) -> None:
        """Waits until the time given to `set`; at once if it has passed. Cancellation: no effect on the timer."""
        await trio.lowlevel.wait_readable(self._fd)

    def __del__(self) -> None:
        """Closes a timer that a cancelled task did not close."""
        self.close()

    def close(self) -> None:
        """Closes the file descriptor; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
