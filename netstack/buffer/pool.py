"""Two levels of pools: NetworkBufferPool owns every segment, LocalBufferPools borrow from it.

Takes: a count and a size. Gives: segments to builders and input channels; availability to whoever waits.

Rules (one thread, so no locks; the order of effects is what matters):
- free + lent = N, always. A segment returns exactly once.
- A local pool is available when a segment is at hand and no subpartition is over its quota; overdraft never makes it
  available.
- Waiting is being called back on the edge from unavailable to available; nothing polls.
- State changes first, callbacks last.
- Free segments are reused last in, first out: a small hot pool is worth 20-30 % over a large cold one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, final

from ..errors import ConfigError, InsufficientBuffers, LocalProtocolError, PoolDestroyed
from .segment import Segment, allocate_segments


class BufferListener(Protocol):
    """Waits for one floating buffer; one-shot, served in order of registration."""

    def on_buffer_available(self, segment: Segment) -> bool:
        """Offers a segment. Returns False to refuse it; then the next listener is asked."""

    def on_pool_destroyed(self) -> None:
        """No segment will come."""


@dataclass(frozen=True, slots=True)
class NetworkBufferPoolStatistics:
    """A snapshot of the TaskManager's memory.

    Attributes:
        total_segments: N.
        free_segments: with the network pool.
        lent_segments: with local pools, channels and connections; free + lent = N.
        required_segments: the sum of what pools were promised and of unpooled segments.
        requested_segments: what everybody would like to have: the maximum of every pool (of one without: twice what it
            was promised), and the unpooled segments.
        local_pools: how many there are.
        segment_size_bytes: of each.
    """

    total_segments: int
    free_segments: int
    lent_segments: int
    required_segments: int
    requested_segments: int
    local_pools: int
    segment_size_bytes: int

    @property
    def requested_percent(self) -> float:
        """`requested_segments` in percent of N; above 100 works with reduced throughput."""
        return 100.0 * self.requested_segments / self.total_segments

    @property
    def total_bytes(self) -> int:
        """Size of all segments."""
        return self.total_segments * self.segment_size_bytes

    @property
    def free_bytes(self) -> int:
        """Size of the free segments."""
        return self.free_segments * self.segment_size_bytes

    @property
    def lent_bytes(self) -> int:
        """Size of the lent segments."""
        return self.lent_segments * self.segment_size_bytes


@dataclass(frozen=True, slots=True)
class LocalBufferPoolStatistics:
    """A snapshot of one pool.

    Attributes:
        required: its guaranteed size.
        maximum: its largest size, None without a bound.
        size: its size now.
        requested: segments taken from the network pool and not yet returned.
        available: of these, at hand.
        overdraft: of these, beyond the size.
        waiting_listeners: channels that wait for a floating buffer.
    """

    required: int
    maximum: int | None
    size: int
    requested: int
    available: int
    overdraft: int
    waiting_listeners: int

    @classmethod
    def sum_of(cls, pools: Sequence[LocalBufferPoolStatistics]) -> LocalBufferPoolStatistics | None:
        """Several pools as one; None of none."""
        if not pools:
            return None
        maxima = [pool.maximum for pool in pools if pool.maximum is not None]
        return cls(
            required=sum(pool.required for pool in pools),
            maximum=sum(maxima) if len(maxima) == len(pools) else None,
            size=sum(pool.size for pool in pools),
            requested=sum(pool.requested for pool in pools),
            available=sum(pool.available for pool in pools),
            overdraft=sum(pool.overdraft for pool in pools),
            waiting_listeners=sum(pool.waiting_listeners for pool in pools),
        )

    @property
    def used(self) -> int:
        """Segments in use."""
        return self.requested - self.available

    @property
    def usage(self) -> float:
        """Used segments as a part of the size.

        Above 1 while the pool has more than its size: by overdraft, or because it shrank and waits for segments.
        """
        return self.used / self.size if self.size else 0.0


@final
class NetworkBufferPool:
    """Owns every segment of a TaskManager."""

    def __init__(self, total_segments: int, segment_size_bytes: int) -> None:
        """Reserves `total_segments` segments.

        Raises:
            ConfigError: fewer than one segment.
            InsufficientBuffers: the system does not give so much address space.
        """
        if total_segments < 1:
            raise ConfigError(f"a NetworkBufferPool needs at least 1 segment, not {total_segments}")
        self._segment_size_bytes = segment_size_bytes
        self._total = total_segments
        try:
            self._free = allocate_segments(total_segments, segment_size_bytes)
        except MemoryError as error:
            raise InsufficientBuffers(
                f"{total_segments} network buffers of {segment_size_bytes} bytes need"
                f" {total_segments * segment_size_bytes / (1 << 20):,.0f} MiB of address space, and the system gave"
                " none: lower memory_bytes, or raise the limit of the process (ulimit -v)"
            ) from error
        self._required = 0
        self._unpooled = 0
        self._pools: dict[LocalBufferPool, None] = {}  # in order of creation, so that redistribution is exact
        self._waiting: dict[LocalBufferPool, None] = {}
        self._requests: deque[UnpooledRequest] = deque()
        self._destroyed = False

    @property
    def segment_size_bytes(self) -> int:
        """Size of every segment."""
        return self._segment_size_bytes

    @property
    def free_segments(self) -> int:
        """Segments nobody holds."""
        return len(self._free)

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
        """A pool that is guaranteed `required` segments and may grow to `maximum` (None: as far as memory goes).

        Raises:
            InsufficientBuffers: the guarantee cannot be given; the message says what is missing and what to raise.
            LocalProtocolError: this pool is destroyed.
        """
        if self._destroyed:
            raise LocalProtocolError("the NetworkBufferPool is destroyed; open a new TaskManager")
        if maximum is not None and maximum < required:
            raise ConfigError(f"{purpose}: maximum {maximum} is below required {required}")
        self._check(required, purpose)
        self._required += required
        pool = LocalBufferPool(self, required, maximum, subpartitions, max_buffers_per_channel, max_overdraft)
        self._pools[pool] = None
        self._redistribute()
        if maximum == required:
            pool.set_size(required)  # has no share to be given, but wants its first segment like every other
        return pool

    def take_unpooled(self, count: int, purpose: str = "unpooled buffers") -> list[Segment]:
        """`count` segments outside every pool, such as the exclusive buffers of a channel: all or none.

        Shrinks local pools that hold more than they were promised.

        Raises:
            InsufficientBuffers: the guarantee cannot be given, or others still hold the segments.
        """
        if self._destroyed:
            raise PoolDestroyed(f"{purpose}: the NetworkBufferPool is destroyed")
        self._check(count, purpose)
        self._required += count
        self._unpooled += count
        self._redistribute()
        if len(self._free) < count:
            missing = count - len(self._free)
            self._required -= count
            self._unpooled -= count
            self._redistribute()
            raise InsufficientBuffers(
                f"{purpose}: {count} network buffers wanted, {missing} of them are still held by pools that shrink;"
                f" raise memory_bytes by {missing * self._segment_size_bytes}, or try again when they were consumed"
            )
        return self._pop(count)

    def request_unpooled(self, count: int, purpose: str = "unpooled buffers") -> UnpooledRequest:
        """As `take_unpooled`, for whoever can wait until others have given back what they hold beyond their promise.

        Waiting requests are served in order, before every local pool.

        Raises:
            InsufficientBuffers: the guarantee cannot be given, so that waiting would not help.
        """
        if self._destroyed:
            raise PoolDestroyed(f"{purpose}: the NetworkBufferPool is destroyed")
        self._check(count, purpose)
        self._required += count
        self._unpooled += count
        self._redistribute()
        request = UnpooledRequest(self, count)
        self._requests.append(request)
        self._serve_waiting()
        return request

    def withdraw(self, request: UnpooledRequest) -> None:
        """Gives a request up, and back what it has got (`UnpooledRequest.withdraw`)."""
        if request in self._requests:
            self._requests.remove(request)
        segments, request.segments = request.segments, []
        self._free.extend(segments)
        self._required -= request.count
        self._unpooled -= request.count
        self._redistribute()
        self._serve_waiting()

    def recycle_unpooled(self, segments: list[Segment]) -> None:
        """Takes unpooled segments back."""
        self._free.extend(segments)
        self._required -= len(segments)
        self._unpooled -= len(segments)
        self._redistribute()
        self._serve_waiting()

    def destroy(self) -> None:
        """Destroys every local pool; segments still out are dropped when they return. Idempotent."""
        if not self._destroyed:
            self._destroyed = True
            for pool in list(self._pools):
                pool.destroy()
            for request in list(self._requests):
                request.on_change()

    @property
    def is_destroyed(self) -> bool:
        """Whether it was destroyed."""
        return self._destroyed

    def statistics(self) -> NetworkBufferPoolStatistics:
        """A snapshot; O(pools)."""
        wanted = self._unpooled
        for pool in self._pools:
            wanted += pool.wanted
        return NetworkBufferPoolStatistics(
            total_segments=self._total,
            free_segments=len(self._free),
            lent_segments=self._total - len(self._free),
            required_segments=self._required,
            requested_segments=wanted,
            local_pools=len(self._pools),
            segment_size_bytes=self._segment_size_bytes,
        )

    # What local pools call.

    def try_take(self) -> Segment | None:
        """One segment for a local pool."""
        return self._free.pop() if self._free else None

    def give_back(self, segment: Segment) -> None:
        """One segment from a local pool."""
        self._free.append(segment)
        if self._waiting or self._requests:
            self._serve_waiting()

    def wait_for_segment(self, pool: LocalBufferPool) -> None:
        """Calls `pool.on_network_segment` once, when a segment is free."""
        self._waiting[pool] = None

    def forget(self, pool: LocalBufferPool, required: int) -> None:
        """A local pool was destroyed."""
        del self._pools[pool]
        self._waiting.pop(pool, None)
        self._required -= required
        self._redistribute()

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
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return taken

    def _serve_waiting(self) -> None:
        while self._requests and self._free:
            request = self._requests[0]
            request.segments += self._pop(min(request.missing, len(self._free)))
            if not request.missing:
                self._requests.popleft()
                request.on_change()
        while self._waiting and self._free:
            pool = next(iter(self._waiting))
            del self._waiting[pool]
            pool.on_network_segment()

    def _redistribute(self) -> None:
        """Shares what is not promised in proportion to the capped excess of each pool: exact sum, each within one."""
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
    """Unpooled segments that are promised and not all there yet.

    Attributes:
        count: how many were asked for.
        segments: what has come; the caller's once nothing is missing.
        on_change: called when the last one came, or the network pool was destroyed.
    """

    __slots__ = ("_network", "count", "on_change", "segments")

    def __init__(self, network: NetworkBufferPool, count: int) -> None:
        self._network = network
        self.count = count
        self.segments: list[Segment] = []
        self.on_change: Callable[[], None] = _nothing

    @property
    def missing(self) -> int:
        """How many are still to come."""
        return self.count - len(self.segments)

    def withdraw(self) -> None:
        """Gives the request up, and back what it has got."""
        self._network.withdraw(self)


def _nothing() -> None:
    """Nobody waits for this request."""


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
        self.on_available: Callable[[], None] | None = None
        """Called on the edge to available; whoever waits re-checks, since another may have been faster."""
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
        return self._size

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

    def try_acquire(self, subpartition: int = -1) -> Segment | None:
        """A segment charged to `subpartition`, or None.

        Raises:
            PoolDestroyed: the pool is gone.
        """
        if self._available:
            segment = self._available.pop()
        else:
            if self._destroyed:
                raise PoolDestroyed("the buffer pool was destroyed: its partition or gate is closed")
            taken = None
            if self._requested < self._size + self._max_overdraft:
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
        return count <= len(self._available) or (
            not self._destroyed
            and count - len(self._available)
            <= min(self._size + self._max_overdraft - self._requested, self._network.free_segments)
        )

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
        """Returns what is at hand, wakes everybody who waits; segments still out return one by one. Idempotent."""
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
        """A snapshot; O(1)."""
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
        was = self._is_available
        self._is_available = bool(self._available) and self._over_quota == 0
        if self._is_available and not was and self.on_available is not None:
            self.on_available()
