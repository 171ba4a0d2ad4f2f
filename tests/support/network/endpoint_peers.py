"""Peers made of bytes, and that nothing is left of them."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio
import trio.lowlevel
import trio.testing

from netstack.base.config import NetworkConfig
from netstack.base.errors import (
    ConnectionLost,
)
from netstack.base.transport import ByteStream, transport_for
from netstack.network.environment import NetworkEnvironment

CONFIG = NetworkConfig(
    segment_size_bytes=256,
    memory_bytes=64 * 256,
    heartbeat_interval_s=None,
    connect_timeout_s=5.0,
    handshake_timeout_s=20.0,
)
numbers = itertools.count()


def url() -> str:
    return f"memory://endpoint-{next(numbers)}"


@asynccontextmanager
async def peer(behave: Callable[[ByteStream], Awaitable[None]]) -> AsyncIterator[tuple[str, list[ByteStream]]]:
    """An address, and whoever dials it; `behave` is run for each stream."""
    address = url()
    listener = await transport_for(address).listen(address)
    streams: list[ByteStream] = []

    async def accept() -> None:
        while True:
            stream = await listener.accept()
            streams.append(stream)
            nursery.start_soon(behave, stream)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        yield address, streams
        nursery.cancel_scope.cancel()
    listener.close()
    for stream in streams:
        stream.close()


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


def assert_nothing_left(manager: NetworkEnvironment) -> None:
    statistics = manager.statistics()
    assert statistics.gates == ()
    assert (statistics.accepted, statistics.dialled) == ((), ())
    assert statistics.pool.lent_segments == 0


async def is_closed(stream: ByteStream) -> bool:
    """Whether the other side has closed."""
    window = memoryview(bytearray(4096))
    try:
        with trio.move_on_after(1):
            while True:
                await stream.wait_readable()
                if stream.try_receive_into([window]) == 0:
                    return True
    except ConnectionLost:
        return True
    return False
