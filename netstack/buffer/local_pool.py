"""The lower level of pools: LocalBufferPool holds the buffers of one result partition, or the floating ones of a gate.

Takes: a size within [required, maximum], segments of a `NetworkBufferPool`. Gives: segments to builders and input
channels; availability to those that wait.

Rules:
- A pool is available when a segment is at hand and no subpartition is over its quota; overdraft never makes it
  available.
- Waiting is being called back on the edge from unavailable to available; nothing polls.
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
    """Waits for one floating buffer; one-shot, served in order of registration."""

    def on_buffer_available(self, segment: Segment) -> bool:
        """Offers a segment. Returns False to refuse it; then the next listener is asked."""

    def on_pool_destroyed(self) -> None:
        """No segment will come."""


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
        """Called by `NetworkBufferPool.create_pool`."""
        self._network = network
        self.required = required
        self.maximum = maximum
        self.largest_maximum = maximum
        """So far: what was taken under it may still be in use."""
        self.on_available: Callable[[], None] | None = None
        """Called on the edge to available; a waiter re-checks, since another may have been faster."""
        self._size = required
        self._max_overdraft = max_overdraft
        self._quota = max_buffers_per_channel
        self._held = [0] * subpartitions if max_buffers_per_channel is not None else []
        self._over_quota = 0
        self._available: list[Segment] = []
        self._requested = 0
        self._listeners: deque[BufferListener] = deque()
        self._is_available = False
        self._waits_for_network = False
        self._destroyed = False

    @property
    def segment_size_bytes(self) -> int:
        """Size of every segment."""
        return self._network.segment_size_bytes

    @property
    def size(self) -> int:
        """Its present size in segments."""
        self._network.settle()
        return self._size

    @property
    def is_network_idle(self) -> bool:
        """Whether a quarter of the network's segments is free (`NetworkBufferPool.is_idle`)."""
        return self._network.is_idle

    @property
    def present_size(self) -> int:
        """The size that was shared out last."""
        return self._size

    def set_maximum(self, maximum: int) -> None:
        """How far it may grow from now on; a surplus still in use returns when it is recycled.

        Raises:
            LocalProtocolError: below what was promised, or a pool without a maximum.
        """
        if self.maximum is None or maximum < self.required:
            raise LocalProtocolError(f"a pool of {self.required} to {self.maximum} segments, and at most {maximum}")
        if maximum != self.maximum and not self._destroyed:
            self.largest_maximum = max(maximum, self.largest_maximum or 0)
            self._network.set_maximum(self, maximum)

    @property
    def lacks_promised(self) -> bool:
        """Whether it holds fewer than it was promised."""
        return self._requested < self.required

    @property
    def is_available(self) -> bool:
        """Whether a segment is at hand and no subpartition is over its quota; also true when destroyed."""
        return self._is_available or self._destroyed

    @property
    def is_over_quota(self) -> bool:
        """Whether a subpartition holds as many buffers as it may: then its writer waits before it opens another."""
        return self._over_quota > 0 and not self._destroyed

    @property
    def is_destroyed(self) -> bool:
        """Whether it was destroyed."""
        return self._destroyed

    @property
    def wanted(self) -> int:
        """What it would like to hold: its maximum, or twice its guarantee when it has none."""
        return self.maximum if self.maximum is not None else 2 * self.required

    def try_acquire(self, subpartition: int = -1, overdraft: bool = False) -> Segment | None:
        """A segment charged to `subpartition`, or None.

        Args:
            subpartition: whom it counts for; below 0 nobody.
            overdraft: whether it may be one beyond the size: what was begun has to be ended.

        Raises:
            PoolDestroyed: the pool is gone.
        """
        if self._available:
            segment = self._available.pop()
        else:
            if self._destroyed:
                raise PoolDestroyed("the buffer pool was destroyed: its partition or gate is closed")
            taken = None
            if self._requested < (self._size + self._max_overdraft if overdraft else self._size):
                taken = self._network.try_take()
            if taken is None:
                return None
            segment = taken
            self._requested += 1
        if self._quota is not None and subpartition >= 0:
            self._held[subpartition] += 1
            if self._held[subpartition] == self._quota:
                self._over_quota += 1
        if not self._available or self._over_quota:
            self._update()
        return segment

    def try_acquire_many(self, count: int, subpartition: int = -1) -> list[Segment]:
        """Up to `count` segments charged to `subpartition`, in one go where they are at hand.

        Raises:
            PoolDestroyed: the pool is gone.
        """
        available = self._available
        if self._quota is None and len(available) > count:  # one stays at hand: nothing else changes
            taken = available[-count:]
            del available[-count:]
            return taken
        taken = []
        while len(taken) < count and (segment := self.try_acquire(subpartition)) is not None:
            taken.append(segment)
        return taken

    def can_acquire(self, count: int) -> bool:
        """Whether `count` segments could be taken one after the other right now, overdraft included."""
        more = count - len(self._available)
        if more <= 0:
            return True
        if self._destroyed:
            return False
        if self._requested + more > self._size and self._network.is_stale:
            self._network.at_limit(self)
            more = count - len(self._available)  # it may have shrunk, and given back what was at hand
        return more <= min(self._size + self._max_overdraft - self._requested, self._network.free_segments)

    def recycle(self, segment: Segment, subpartition: int = -1) -> None:
        """Takes a segment back: to the network pool when there are too many, else to a listener, else to hand."""
        if self._quota is not None and subpartition >= 0:
            if self._held[subpartition] == self._quota:
                self._over_quota -= 1
            self._held[subpartition] -= 1
        if self._destroyed or self._requested > self._size:
            self._requested -= 1
            self._network.give_back(segment)
            if not self._destroyed:
                self._update()
            return
        while self._listeners:
            if self._listeners.popleft().on_buffer_available(segment):
                return
        self._available.append(segment)
        if not self._is_available:
            self._update()

    def add_listener(self, listener: BufferListener) -> bool:
        """Registers for one segment. Returns False when one is at hand (take it) or the pool is destroyed."""
        if self._available or self._destroyed:
            return False
        self._listeners.append(listener)
        return True

    def is_next(self, listener: BufferListener) -> bool:
        """Whether a segment recycled now would be offered to `listener`, and to nobody after it."""
        listeners = self._listeners
        return len(listeners) == 1 and listeners[0] is listener and self._requested <= self._size

    def set_size(self, size: int) -> None:
        """Changes the size within [required, maximum]; a surplus still in use returns when it is recycled.

        Raises:
            LocalProtocolError: below what was promised.
        """
        if size < self.required:
            raise LocalProtocolError(f"a pool that was promised {self.required} segments cannot shrink to {size}")
        self._size = size if self.maximum is None else min(size, self.maximum)
        while self._requested > self._size and self._available:
            self._requested -= 1
            self._network.give_back(self._available.pop())
        if not self._destroyed:
            self._update()
            self._serve_listeners()

    def destroy(self) -> None:
        """Returns what is at hand, wakes all waiters; segments still out return one by one. Idempotent."""
        if self._destroyed:
            return
        self._destroyed = True
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
        """A snapshot; O(1), once sizes are shared out."""
        self._network.settle()
        return LocalBufferPoolStatistics(
            required=self.required,
            maximum=self.maximum,
            size=self._size,
            requested=self._requested,
            available=len(self._available),
            overdraft=max(0, self._requested - self._size),
            waiting_listeners=len(self._listeners),
        )

    def on_network_segment(self) -> None:
        """The network pool has a free segment again (registered by `_update`)."""
        self._waits_for_network = False
        if not self._destroyed:
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
        """Keeps one segment at hand while below the size, so that availability is known before the next request."""
        if not self._available and self._requested < self._size:
            segment = self._network.try_take()
            if segment is not None:
                self._requested += 1
                self._available.append(segment)
            elif not self._waits_for_network:
                self._waits_for_network = True
                self._network.wait_for_segment(self)
        elif not self._available and (self.maximum is None or self._size < self.maximum) and not self._destroyed:
            self._network.at_limit(self)
        was = self._is_available
        self._is_available = bool(self._available) and self._over_quota == 0
        if self._is_available and not was and self.on_available is not None:
            self.on_available()
