"""LocalBufferPool, the lower level of pools: the buffers of one result partition, or the floating buffers of a gate.

Takes: a size within [required, maximum], and segments of a `NetworkBufferPool`. Gives: segments to builders and
input channels; callbacks when segments become available.

Rules:
- A pool is available when it has a free segment and no subpartition has reached its quota. Overdraft never makes it
  available.
- Waiters are called back when the pool changes from unavailable to available; nothing polls.
- State changes first, callbacks last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, final

from ..errors import LocalProtocolError, PoolDestroyed
from .segment import Segment
from .statistics import LocalBufferPoolStatistics

if TYPE_CHECKING:
    from .network_pool import NetworkBufferPool


class BufferListener(Protocol):
    """Waits for one floating buffer. Each registration is served once, in order."""

    def on_buffer_available(self, segment: Segment) -> bool:
        """Offers a segment. Returns False to refuse it; the pool then offers it to the next listener."""

    def on_pool_destroyed(self) -> None:
        """The pool was destroyed: no segment will be offered."""


@final
class LocalBufferPool:
    """The buffers of one result partition, or the floating buffers of one gate."""

    def __init__(
        self,
        network: NetworkBufferPool,
        required: int,
        maximum: int | None,
        subpartitions: int,
        max_buffers_per_channel: int | None,
        max_overdraft: int,
    ) -> None:
        """Use `NetworkBufferPool.create_pool` instead."""
        self._network = network
        self.required = required
        self.maximum = maximum
        self.largest_maximum = maximum
        """The largest maximum so far; segments acquired under it may still be in use."""
        self.on_available: Callable[[], None] | None = None
        """Called when the pool becomes available. A waiter checks again, since another may have taken the segment."""
        self.present_size = required
        """The size of the last redistribution; pending changes are not applied."""
        self._max_overdraft = max_overdraft
        self.quota = max_buffers_per_channel
        """The number of segments that one subpartition may hold before the pool is unavailable; None: no limit."""
        self._held = [0] * subpartitions if max_buffers_per_channel is not None else []
        self._over_quota = 0
        self._available: list[Segment] = []
        self._requested = 0
        self._listeners: deque[BufferListener] = deque()
        self._is_available = False
        self._waits_for_network = False
        self.is_destroyed = False

    @property
    def segment_size_bytes(self) -> int:
        """Size of every segment."""
        return self._network.segment_size_bytes

    @property
    def size(self) -> int:
        """The present size in segments, after pending redistribution."""
        self._network.settle()
        return self.present_size

    @property
    def is_network_idle(self) -> bool:
        """Whether a quarter of the network's segments is free (`NetworkBufferPool.is_idle`)."""
        return self._network.is_idle

    def set_maximum(self, maximum: int) -> None:
        """Sets the maximum size; surplus segments in use return when they are recycled.

        Raises:
            LocalProtocolError: `maximum` is below the guaranteed size, or the pool has no maximum.
        """
        if self.maximum is None or maximum < self.required:
            raise LocalProtocolError(
                f"a pool of {self.required} to {self.maximum} segments cannot get the maximum {maximum}; give at least"
                f" {self.required}, for a pool with a maximum"
            )
        if maximum != self.maximum and not self.is_destroyed:
            self.largest_maximum = max(maximum, self.largest_maximum or 0)
            self._network.set_maximum(self, maximum)

    @property
    def lacks_promised(self) -> bool:
        """Whether it holds fewer segments than it is guaranteed."""
        return self._requested < self.required

    @property
    def is_available(self) -> bool:
        """Whether a segment is free and no subpartition has reached its quota; also true when destroyed."""
        return self._is_available or self.is_destroyed

    @property
    def is_over_quota(self) -> bool:
        """Whether a subpartition has reached its quota: its writer waits before it opens another buffer."""
        return self._over_quota > 0 and not self.is_destroyed

    @property
    def wanted(self) -> int:
        """The size it could use: its maximum, or twice its guaranteed size when it has no maximum."""
        return self.maximum if self.maximum is not None else 2 * self.required

    def try_acquire(self, subpartition: int = -1, overdraft: bool = False) -> Segment | None:
        """Acquires a segment charged to `subpartition`; None when there is none.

        Args:
            subpartition: whose quota it counts towards; below 0: none.
            overdraft: whether the pool may exceed its size by this segment, to complete a record.

        Raises:
            PoolDestroyed: the pool was destroyed.
        """
        if self._available:
            segment = self._available.pop()
        else:
            if self.is_destroyed:
                raise PoolDestroyed("the buffer pool was destroyed: its partition or gate is closed")
            taken = None
            if self._requested < (self.present_size + self._max_overdraft if overdraft else self.present_size):
                taken = self._network.try_take()
            if taken is None:
                return None
            segment = taken
            self._requested += 1
        if self.quota is not None and subpartition >= 0:
            self._held[subpartition] += 1
            if self._held[subpartition] == self.quota:
                self._over_quota += 1
        if not self._available or self._over_quota:
            self._update()
        return segment

    def try_acquire_many(self, count: int, subpartition: int = -1) -> list[Segment]:
        """Acquires up to `count` segments charged to `subpartition`. Raises PoolDestroyed if the pool was destroyed."""
        available = self._available
        if self.quota is None and len(available) > count:  # one stays free, so availability does not change
            taken = available[-count:]
            del available[-count:]
            return taken
        taken = []
        while len(taken) < count and (segment := self.try_acquire(subpartition)) is not None:
            taken.append(segment)
        return taken

    def can_acquire(self, count: int) -> bool:
        """Whether `count` segments could be acquired now, overdraft included."""
        more = count - len(self._available)
        if more <= 0:
            return True
        if self.is_destroyed:
            return False
        if self._requested + more > self.present_size and self._network.is_stale:
            self._network.at_limit(self)
            more = count - len(self._available)  # the pool may have shrunk and returned free segments
        return more <= min(self.present_size + self._max_overdraft - self._requested, self._network.free_segments)

    def recycle(self, segment: Segment, subpartition: int = -1) -> None:
        """Takes a segment back: to the network pool above the size, else to a listener, else to the free ones."""
        if self.quota is not None and subpartition >= 0:
            if self._held[subpartition] == self.quota:
                self._over_quota -= 1
            self._held[subpartition] -= 1
        if self.is_destroyed or self._requested > self.present_size:
            self._requested -= 1
            self._network.give_back(segment)
            if not self.is_destroyed:
                self._update()
            return
        while self._listeners:
            if self._listeners.popleft().on_buffer_available(segment):
                return
        self._available.append(segment)
        if not self._is_available:
            self._update()

    def add_listener(self, listener: BufferListener) -> bool:
        """Registers for one segment. Returns False when one is free (acquire it) or the pool is destroyed."""
        if self._available or self.is_destroyed:
            return False
        self._listeners.append(listener)
        return True

    def is_next(self, listener: BufferListener) -> bool:
        """Whether `listener` is the only one that would be offered the next recycled segment."""
        listeners = self._listeners
        return len(listeners) == 1 and listeners[0] is listener and self._requested <= self.present_size

    def set_size(self, size: int) -> None:
        """Sets the size within [required, maximum]; surplus segments in use return when they are recycled.

        Raises:
            LocalProtocolError: `size` is below the guaranteed size.
        """
        if size < self.required:
            raise LocalProtocolError(f"a pool with {self.required} guaranteed segments cannot shrink to {size}")
        self.present_size = size if self.maximum is None else min(size, self.maximum)
        while self._requested > self.present_size and self._available:
            self._requested -= 1
            self._network.give_back(self._available.pop())
        if not self.is_destroyed:
            self._update()
            self._serve_listeners()

    def destroy(self) -> None:
        """Returns the free segments and wakes all waiters; each segment in use returns when recycled. Idempotent."""
        if self.is_destroyed:
            return
        self.is_destroyed = True
        at_hand, self._available = self._available, []
        self._requested -= len(at_hand)
        listeners, self._listeners = self._listeners, deque()
        self._network.forget(self, self.required)
        for segment in at_hand:
            self._network.give_back(segment)
        for listener in listeners:
            listener.on_pool_destroyed()
        if self.on_available is not None:
            self.on_available()

    def statistics(self) -> LocalBufferPoolStatistics:
        """A snapshot; O(1) after pending redistribution."""
        self._network.settle()
        return LocalBufferPoolStatistics(
            required=self.required,
            maximum=self.maximum,
            size=self.present_size,
            requested=self._requested,
            available=len(self._available),
            overdraft=max(0, self._requested - self.present_size),
            waiting_listeners=len(self._listeners),
        )

    def on_network_segment(self) -> None:
        """The network pool has a free segment again (requested by `_update`)."""
        self._waits_for_network = False
        if not self.is_destroyed:
            self._update()
            self._serve_listeners()

    def _serve_listeners(self) -> None:
        while self._listeners and self._available:
            segment = self._available.pop()
            if not self._listeners.popleft().on_buffer_available(segment):
                self._available.append(segment)
            else:
                self._update()

    def _update(self) -> None:
        """Keeps one segment free while below the size, so that availability is known before the next request."""
        if not self._available and self._requested < self.present_size:
            segment = self._network.try_take()
            if segment is not None:
                self._requested += 1
                self._available.append(segment)
            elif not self._waits_for_network:
                self._waits_for_network = True
                self._network.wait_for_segment(self)
        elif (
            not self._available and (self.maximum is None or self.present_size < self.maximum) and not self.is_destroyed
        ):
            self._network.at_limit(self)
        was = self._is_available
        self._is_available = bool(self._available) and self._over_quota == 0
        if self._is_available and not was and self.on_available is not None:
            self.on_available()
