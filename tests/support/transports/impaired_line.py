"""Both ends of an impaired line in virtual time."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing

from netstack.base.transport import ByteStream, Listener, transport_for
from netstack_transports.impaired import Impairment, impairment

KIB = 1024
MIB = 1024 * KIB
numbers = itertools.count()


def url(query: str = "") -> str:
    return f"impaired+memory://impaired-{next(numbers)}{query and '?'}{query}"


async def listen(address: str) -> Listener:
    return await transport_for(address).listen(address)


async def dial(address: str) -> ByteStream:
    return await transport_for(address).connect(address)


@asynccontextmanager
async def connected(query: str) -> AsyncIterator[tuple[ByteStream, ByteStream]]:
    """A pair of streams impaired by these parameters, both of them."""
    listener = await listen(url(query))
    near = await dial(listener.address)
    far = await listener.accept()
    try:
        yield near, far
    finally:
        for closable in (near, far, listener):
            closable.close()


@asynccontextmanager
async def laboratory(query: str = "") -> AsyncIterator[tuple[ByteStream, ByteStream, Impairment]]:
    name = f"lab-{next(numbers)}"
    async with connected(f"{query}{query and '&'}name={name}") as (near, far):
        yield near, far, impairment(name)


def take(stream: ByteStream, size: int = MIB) -> bytes | None:
    """What one try brings; None when nothing is there."""
    window = memoryview(bytearray(size))
    count = stream.try_receive_into([window])
    return None if count is None else bytes(window[:count])


async def receive(stream: ByteStream, size: int) -> bytes:
    received = b""
    while len(received) < size:
        await stream.wait_readable()
        received += take(stream, size - len(received)) or b""
    return received


def now() -> float:
    return trio.current_time()
