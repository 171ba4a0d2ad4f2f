"""Waits for guaranteed network buffers that others still hold.

Takes: a request to the NetworkBufferPool. Gives: all requested segments, or an error after a timeout.
"""

from __future__ import annotations

import trio

from ...base.errors import InsufficientBuffers, PoolDestroyed
from ...base.timing.wakeup import Signal
from ...exchange.buffer.pools import NetworkBufferPool
from ...exchange.buffer.segment import Segment


async def wait_unpooled(pool: NetworkBufferPool, count: int, purpose: str, *, timeout_s: float) -> list[Segment]:
    """Returns `count` unpooled segments; waits while local pools hold segments that they have to return.

    Raises:
        InsufficientBuffers: the memory is guaranteed to others, or was not returned within `timeout_s`.
        PoolDestroyed: the TaskManager was closed meanwhile.

    Cancellation: no segment was taken. A checkpoint only if it waits.
    """
    request = pool.request_unpooled(count, purpose)
    complete = False
    try:
        if request.missing:
            changed = Signal()
            request.on_change = changed.wake
            with trio.move_on_after(timeout_s):
                while request.missing and not pool.is_destroyed:
                    await changed.wait()
        if pool.is_destroyed:
            raise PoolDestroyed(f"{purpose}: the TaskManager was closed while it waited for buffers")
        if request.missing:
            raise InsufficientBuffers(
                f"{purpose}: {request.missing} of {count} network buffers were still held by others after"
                f" buffers_request_timeout_s={timeout_s:g}; have their consumers read, raise the timeout, or raise"
                f" memory_bytes by {request.missing * pool.segment_size_bytes}"
            )
        complete = True
        return request.segments
    finally:
        if not complete:
            request.withdraw()
