"""The two levels of buffer pools: a TaskManager's NetworkBufferPool, and the LocalBufferPools it lends segments to.

A local pool holds the buffers of one result partition, or the floating buffers of one gate.

Takes: a count and a size. Gives: local pools of elastic size; unpooled segments, at once or as they are returned; from
a local pool segments to builders and input channels, and callbacks when segments become available.

Rules (one thread, so there are no locks; the order of effects matters):
- free + lent = N, always. Each segment returns exactly once.
- Guaranteed segments never exceed N. The others are distributed in proportion to how much each pool may still grow.
- State changes first, callbacks last.
- Free segments are reused last in, first out: a small hot pool is 20-30 % faster than a large cold one.
- Redistribution visits every pool, so it is deferred until a pool lacks a guaranteed segment, a pool at its size
  would take another segment, or a size is read. With more than `_FEW_POOLS` pools, growth also waits until an eighth
  of the pools is new or destroyed. So n pools are created and destroyed in O(n).
- A local pool is available when it has a free segment and no subpartition has reached its quota. Overdraft never makes
  it available. Its waiters are called back when it changes from unavailable to available; nothing polls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, final

from ...base.errors import ConfigError, InsufficientBuffers, LocalProtocolError, PoolDestroyed
from .segment import Segment, SegmentReservation
from .statistics import LocalBufferPoolStatistics, NetworkBufferPoolStatistics

_FEW_POOLS: Final = 64
"""Up to this number of pools, every change may redistribute."""


@final
class NetworkBufferPool:
    """Owns every segment of a TaskManager."""

    def __init__(
        self,
        total_segments: int,
        segment_size_bytes: int,
        segments: list[Segment] | None = None,
        on_empty: Callable[[], None] | None = None,
    ) -> None:
        """Reserves `total_segments` segments.

        Args:
            total_segments: how many.
            segment_size_bytes: size of each segment.
            segments: existing segments to use instead of new ones.
            on_empty: called when the pool is destroyed and all segments have returned.

        Raises:
            ConfigError: fewer than one segment.
            InsufficientBuffers: the operating system refused the address space.
        """
        if total_segments < 1:
            raise ConfigError(f"a NetworkBufferPool needs at least 1 segment, not {total_segments}")
        self._segment_size_bytes = segment_size_bytes
        self._total = total_segments
        self._on_empty = on_empty
        try:
            self._unmade = SegmentReservation(total_segments if segments is None else 0, segment_size_bytes)
        except MemoryError as error:
            raise InsufficientBuffers(
                f"{total_segments} network buffers of {segment_size_bytes} bytes need"
                f" {total_segments * segment_size_bytes / (1 << 20):,.0f} MiB of address space; the system refused:"
                " lower memory_bytes, or raise the limit of the process (ulimit -v)"
            ) from error
        self._free: list[Segment] = [] if segments is None else segments
        self._required = 0
        self._unpooled = 0
        self._wanted = 0
        self.is_stale = False
        """Whether pools were created or destroyed, or guarantees changed, since the last redistribution."""
        self._changes = 0
        self._limited: dict[LocalBufferPool, None] = {}
        self._pools: dict[LocalBufferPool, None] = {}  # in order of creation, so that redistribution is exact
        self._waiting: dict[LocalBufferPool, None] = {}
        self._requests: deque[UnpooledRequest] = deque()
        self.is_destroyed = False

    @property
    def segment_size_bytes(self) -> int:
        """Size of every segment."""
        return self._segment_size_bytes

    @property
    def free_segments(self) -> int:
        """Segments that are not lent."""
        return len(self._free) + self._unmade.left

    @property
    def is_idle(self) -> bool:
        """Whether a quarter of all segments is free, so that unguaranteed use blocks no other pool."""
        return 4 * self.free_segments >= self._total

    def create_pool(
        self,
        required: int,
        maximum: int | None,
        *,
        subpartitions: int = 0,
        max_buffers_per_channel: int | None = None,
        max_overdraft: int = 0,
        purpose: str = "a buffer pool",
    ) -> LocalBufferPool:
        """Creates a pool with `required` guaranteed segments that may grow to `maximum` (None: no limit).

        Raises:
            InsufficientBuffers: too few segments are left to guarantee; the message contains how many, and what to
            raise.
            LocalProtocolError: this pool is destroyed.
        """
        if self.is_destroyed:
            raise LocalProtocolError("the NetworkBufferPool is destroyed; open a new TaskManager")
        if maximum is not None and maximum < required:
            raise ConfigError(f"{purpose}: maximum {maximum} is below required {required}")
        self._check(required, purpose)
        self._required += required
        pool = LocalBufferPool(self, required, maximum, subpartitions, max_buffers_per_channel, max_overdraft)
        self._pools[pool] = None
        self._wanted += pool.wanted
        self._change()
        pool.set_size(required)  # takes its first segment; redistribution adds the rest when needed
        return pool

    def take_unpooled(self, count: int, purpose: str = "unpooled buffers") -> list[Segment]:
        """Takes all of `count` segments outside every pool (such as the exclusive buffers of a channel), or none.

        Shrinks local pools that hold more than their guaranteed size.

        Raises:
            InsufficientBuffers: too few segments are left to guarantee, or other pools still hold them.
        """
        self._guarantee(count, purpose)
        if self.free_segments < count:
            self.redistribute()
        if self.free_segments < count:
            missing = count - self.free_segments
            self._required -= count
            self._unpooled -= count
            self._change()
            raise InsufficientBuffers(
                f"{purpose}: {count} network buffers requested, and pools that shrink still hold {missing} of them;"
                f" raise memory_bytes by {missing * self._segment_size_bytes}, or retry after they were consumed"
            )
        return self._pop(count)

    def request_unpooled(self, count: int, purpose: str = "unpooled buffers") -> UnpooledRequest:
        """Like `take_unpooled`, for a caller that can wait until other pools have returned their surplus.

        Waiting requests are served in order, before all local pools.

        Raises:
            InsufficientBuffers: too few segments are left to guarantee, so that waiting would not help.
        """
        self._guarantee(count, purpose)
        request = UnpooledRequest(self, count)
        self._requests.append(request)
        self._serve_waiting()
        if request.missing:
            self.redistribute()
        return request

    def withdraw(self, request: UnpooledRequest) -> None:
        """Cancels a request and takes its segments back (`UnpooledRequest.withdraw`)."""
        if request in self._requests:
            self._requests.remove(request)
        segments, request.segments = request.segments, []
        self._free.extend(segments)
        self._required -= request.count
        self._unpooled -= request.count
        self._change()
        self._serve_waiting()
        self._let_grow()

    def recycle_unpooled(self, segments: list[Segment]) -> None:
        """Takes unpooled segments back."""
        self._free.extend(segments)
        self._required -= len(segments)
        self._unpooled -= len(segments)
        self._change()
        self._serve_waiting()
        self._let_grow()

    def destroy(self) -> None:
        """Destroys every local pool; lent segments are dropped when they return. Idempotent."""
        if not self.is_destroyed:
            self.is_destroyed = True
            for pool in list(self._pools):
                pool.destroy()
            for request in list(self._requests):
                request.on_change()
            self._check_empty()

    def _check_empty(self) -> None:
        if self._on_empty is not None and self.free_segments == self._total:
            on_empty, self._on_empty = self._on_empty, None
            on_empty()

    def statistics(self) -> NetworkBufferPoolStatistics:
        """A snapshot; O(1)."""
        return NetworkBufferPoolStatistics(
            total_segments=self._total,
            free_segments=self.free_segments,
            lent_segments=self._total - self.free_segments,
            required_segments=self._required,
            requested_segments=self._unpooled + self._wanted,
            local_pools=len(self._pools),
            segment_size_bytes=self._segment_size_bytes,
        )

    # What local pools call.

    def try_take(self) -> Segment | None:
        """Takes a segment for a local pool; None when none is free."""
        if self._free:
            return self._free.pop()
        return self._unmade.make() if self._unmade.left else None

    def give_back(self, segment: Segment) -> None:
        """Takes a segment back from a local pool."""
        self._free.append(segment)
        if self._waiting or self._requests:
            self._serve_waiting()
        if self.is_destroyed:
            self._check_empty()

    def wait_for_segment(self, pool: LocalBufferPool) -> None:
        """Calls `pool.on_network_segment` once, as soon as a segment is free."""
        self._waiting[pool] = None
        if self.is_stale and (pool.lacks_promised or self._is_due()):
            self.redistribute()  # other pools may hold more than their share

    def at_limit(self, pool: LocalBufferPool) -> None:
        """Redistributes now or later for a pool that has used up its size and may grow."""
        if self.is_stale and self._is_due():
            self.redistribute()
        else:
            self._limited[pool] = None

    def set_maximum(self, pool: LocalBufferPool, maximum: int) -> None:
        """Changes the maximum of a pool; it stays at or above the guaranteed size."""
        assert pool.maximum is not None
        self._wanted += maximum - pool.maximum
        pool.maximum = maximum
        self._change()
        pool.set_size(pool.present_size)
        self._let_grow()
        self.at_limit(pool)

    def settle(self) -> None:
        """Runs a deferred redistribution before a size is read."""
        if self.is_stale:
            self.redistribute()

    def forget(self, pool: LocalBufferPool, required: int) -> None:
        """Removes a destroyed local pool."""
        del self._pools[pool]
        self._waiting.pop(pool, None)
        self._limited.pop(pool, None)
        self._required -= required
        self._wanted -= pool.wanted
        self._change()
        self._let_grow()

    def _guarantee(self, count: int, purpose: str) -> None:
        """Guarantees unpooled segments. Raises InsufficientBuffers if too few are left."""
        if self.is_destroyed:
            raise PoolDestroyed(f"{purpose}: the NetworkBufferPool is destroyed")
        self._check(count, purpose)
        self._required += count
        self._unpooled += count
        self._change()

    def _check(self, count: int, purpose: str) -> None:
        free = self._total - self._required
        if count > free:
            raise InsufficientBuffers(
                f"{purpose} requires {count} network buffers, but only {free} of {self._total} are not yet promised"
                f" (segments of {self._segment_size_bytes} bytes): raise memory_bytes by"
                f" {(count - free) * self._segment_size_bytes} to at least"
                f" {(self._required + count) * self._segment_size_bytes}, or use fewer channels or exclusive buffers"
            )

    def _pop(self, count: int) -> list[Segment]:
        free = self._free
        kept = max(0, len(free) - count)
        taken = free[kept:]
        del free[kept:]
        while len(taken) < count:
            taken.append(self._unmade.make())
        return taken

    def _serve_waiting(self) -> None:
        while self._requests and self.free_segments:
            request = self._requests[0]
            request.segments += self._pop(min(request.missing, self.free_segments))
            if not request.missing:
                self._requests.popleft()
                request.on_change()
        while self._waiting and self.free_segments:
            pool = next(iter(self._waiting))
            del self._waiting[pool]
            pool.on_network_segment()

    def _change(self) -> None:
        self.is_stale = True
        self._changes += 1

    def _is_due(self) -> bool:
        """Whether enough has changed to visit every pool for the sake of growth."""
        return 8 * self._changes >= len(self._pools) or len(self._pools) <= _FEW_POOLS

    def _let_grow(self) -> None:
        """More segments are unguaranteed: pools that reached their size get some of them."""
        if self._limited and self._is_due():
            self.redistribute()

    def redistribute(self) -> None:
        """Distributes unguaranteed segments in proportion to each pool's capped excess: exact sum, each within one."""
        self.is_stale = False
        self._changes = 0
        self._limited.clear()
        resizable = [pool for pool in self._pools if pool.maximum is None or pool.maximum > pool.required]
        available = self._total - self._required
        if available <= 0:
            for pool in resizable:
                pool.set_size(pool.required)
            return
        capacities = [
            available if pool.maximum is None else min(available, pool.maximum - pool.required) for pool in resizable
        ]
        total_capacity = sum(capacities)
        if total_capacity == 0:
            return
        to_distribute = min(available, total_capacity)
        cumulated = given = 0
        for pool, capacity in zip(resizable, capacities, strict=True):
            cumulated += capacity
            mine = to_distribute * cumulated // total_capacity - given
            given += mine
            pool.set_size(pool.required + mine)


@final
class UnpooledRequest:
    """Guaranteed unpooled segments of which some may still be in use elsewhere.

    Attributes:
        segments: received so far; owned by the caller once `missing` is 0.
        on_change: called when the last segment arrived, or the network pool was destroyed.
    """

    __slots__ = ("_network", "count", "on_change", "segments")

    def __init__(self, network: NetworkBufferPool, count: int) -> None:
        self._network = network
        self.count = count
        self.segments: list[Segment] = []
        self.on_change: Callable[[], None] = _nothing

    @property
    def missing(self) -> int:
        """Segments that have not arrived."""
        return self.count - len(self.segments)

    def withdraw(self) -> None:
        """Cancels the request and returns its segments."""
        self._network.withdraw(self)


def _nothing() -> None:
    """The default `on_change`."""


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
