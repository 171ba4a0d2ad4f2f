"""The model before credit, for comparison: a channel without a free buffer stops its whole connection.

Takes: frames of one connection, buffers of the gates' pools. Gives: the frames in order, as their channels have
buffers; a pause of reading while the next frame has none.

Channels are opened with unlimited credit, so a producer sends whatever it has. Data takes a buffer of the gate's pool
when it arrives. If there is none, the frame and everything already read behind it is staged in order (at most what one
system call reads), and the socket is not read until the channel's gate has a buffer again. Meanwhile no other channel
of the connection receives anything: head-of-line blocking.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import final

from ..buffer.segment import Segment
from .receiving import BufferManager

_NO_DATA = -1
"""In the place of a channel's number: the frame needs no buffer."""


@final
class StagedFrames:
    """The frames of one connection that were read and cannot be delivered yet."""

    def __init__(self, manager_of: Callable[[int], BufferManager | None], on_pause: Callable[[bool], None]) -> None:
        """Args: returns the manager of an open channel; pauses and continues reading."""
        self._manager_of = manager_of
        self._on_pause = on_pause
        self._frames: deque[tuple[int, Callable[[], None]]] = deque()
        self._waiter: _Waiter | None = None
        self.stalls = 0
        """Number of times the connection was stopped."""

    def admits(self, channel: int) -> bool:
        """Whether a data frame is delivered now; then its channel, if open, has a floating buffer for it."""
        if self._frames:
            return False
        manager = self._manager_of(channel)
        return manager is None or manager.borrow()

    def add_data(self, channel: int, deliver: Callable[[], None]) -> None:
        """Stages a data frame that is not admitted."""
        self._frames.append((channel, deliver))
        if len(self._frames) == 1:
            manager = self._manager_of(channel)
            assert manager is not None
            self.stalls += 1
            self._on_pause(True)
            self._wait_for(manager)

    def add(self, deliver: Callable[[], None]) -> bool:
        """Stages a frame without data behind others; does nothing and returns False if there is none."""
        if self._frames:
            self._frames.append((_NO_DATA, deliver))
            return True
        return False

    def deliver(self) -> None:
        """Delivers staged frames while there are buffers; then reading continues."""
        self._waiter = None
        frames = self._frames
        while frames:
            channel, deliver = frames[0]
            if channel != _NO_DATA:
                manager = self._manager_of(channel)
                if manager is not None:
                    if not manager.borrow():
                        self._wait_for(manager)
                        return
                    deliver()
                frames.popleft()
            else:
                frames.popleft()
                deliver()
        self._on_pause(False)

    def remove(self, manager: BufferManager) -> None:
        """Continues if the connection waited for this channel, which was released."""
        waiter = self._waiter
        if waiter is not None and waiter.manager is manager:
            waiter.is_over = True
            self.deliver()

    def close(self) -> None:
        """Drops all frames: the connection has ended."""
        self._frames.clear()
        if self._waiter is not None:
            self._waiter.is_over = True
            self._waiter = None

    def _wait_for(self, manager: BufferManager) -> None:
        self._waiter = _Waiter(self, manager)
        manager.wait_to_borrow(self._waiter)


@final
class _Waiter:
    """Waits for a floating buffer of one channel's gate (a `BufferListener`)."""

    __slots__ = ("_staged", "is_over", "manager")

    def __init__(self, staged: StagedFrames, manager: BufferManager) -> None:
        self._staged = staged
        self.manager = manager
        self.is_over = False

    def on_buffer_available(self, segment: Segment) -> bool:
        """Takes the buffer that the pool offers, and continues."""
        if self.is_over or self.manager.is_released:
            return False
        self.is_over = True
        self.manager.lend(segment)
        self._staged.deliver()
        return True

    def on_pool_destroyed(self) -> None:
        """The gate is closing; its channels are removed separately."""
        self.is_over = True
