"""What the checks of a transport are made of: pairs of streams, whole sends and receives, and what must be so.

Takes: an address, streams. Gives: an `AssertionError` that says what was found instead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import trio
import trio.testing

from ..base.errors import ConnectionLost
from ..base.transport import ByteStream, Listener, transport_for

MakeUrl: TypeAlias = Callable[[], str]
"""Gives an address to listen at which nobody uses, another one at each call."""

MOST_BYTES_UNDER_WAY: Final = 64 * 1024 * 1024
"""A stream that takes more than this without a reader has no bound: large socket buffers hold a few MiB."""

_FULL_S: Final = 0.02  # a stream that was not writable for so long is full for good


@asynccontextmanager
async def stream_pair(make_url: MakeUrl) -> AsyncIterator[tuple[ByteStream, ByteStream]]:
    """Two ends of one stream; they and their listener are closed at the end.

    A byte has gone either way, so that who has to shake hands has done so: a stream that is full is then full for good.
    """
    listener = await listen(make_url())
    try:
        near, far = await connected(listener)
        try:
            for one, other in ((near, far), (far, near)):
                await send_all(one, [b"."])
                await receive(other, 1)
            yield near, far
        finally:
            near.close()
            far.close()
    finally:
        listener.close()


async def listen(url: str) -> Listener:
    """Listens with the transport of the URL's scheme."""
    return await transport_for(url).listen(url)


async def connected(listener: Listener) -> tuple[ByteStream, ByteStream]:
    """Dials a listener and accepts; returns both ends."""
    near = await transport_for(listener.address).connect(listener.address)
    return near, await listener.accept()


async def send_all(stream: ByteStream, pieces: list[bytes]) -> None:
    """Sends pieces, waiting as often as necessary."""
    rest = list(pieces)
    while any(rest):
        count = stream.try_send(rest)
        while rest and count >= len(rest[0]):
            count -= len(rest.pop(0))
        if count:
            rest[0] = rest[0][count:]
        if any(rest):
            await stream.wait_writable()


async def receive(stream: ByteStream, size: int, windows: tuple[int, ...] = (1 << 20,)) -> bytes:
    """Waits for `size` bytes, which it reads into windows of these lengths."""
    received = bytearray()
    while len(received) < size:
        await stream.wait_readable()
        places = [memoryview(bytearray(length)) for length in windows]
        count = stream.try_receive_into(places)
        check(count != 0, f"the stream ended after {len(received)} of {size} bytes")
        received += b"".join(places)[: count or 0]
    return bytes(received)


async def is_at_end(stream: ByteStream) -> bool:
    """Waits, and tells whether what came is the end."""
    await stream.wait_readable()
    return stream.try_receive_into([memoryview(bytearray(1))]) == 0


def pattern_of(size: int) -> bytes:
    """Bytes whose order can be seen: their period is a prime."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


async def clog(stream: ByteStream) -> int:
    """Sends until the stream is full for good; returns how many bytes of the pattern it took."""
    pattern = pattern_of(251 * 1000)
    sent = 0
    while True:
        count = stream.try_send([pattern[sent % 251 :]])
        sent += count
        check(sent < MOST_BYTES_UNDER_WAY, f"a stream took {sent} bytes that nobody reads")
        if not count:
            # The system may still move bytes to the other end.
            with trio.move_on_after(_FULL_S) as scope:
                await stream.wait_writable()
            if scope.cancelled_caught:
                return sent


async def closed_while(wait: Callable[[], Awaitable[object]], close: Callable[[], None]) -> None:
    """Closes while another task waits; the task must get an error."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(raises_closed, wait)
        await trio.testing.wait_all_tasks_blocked()
        close()


async def raises_closed(wait: Callable[[], Awaitable[object]]) -> None:
    """A wait on something closed must say so."""
    await raises(trio.ClosedResourceError, wait)


async def raises(kind: type[Exception], wait: Callable[[], Awaitable[object]]) -> None:
    """A wait must raise an error of this kind."""
    try:
        await wait()
    except kind:
        return
    raise AssertionError(f"{wait} must raise {kind.__name__}")


async def cancelled(wait: Callable[[], Awaitable[object]]) -> None:
    """Cancels a wait, which must have been one."""
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def expect_cancellation() -> None:
                await wait()
                raise AssertionError(f"{wait} returned although there was nothing to wait for")

            nursery.start_soon(expect_cancellation)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    check(scope.cancelled_caught, f"{wait} was not cancelled")


def expect_lost(attempt: Callable[[], object], what: str) -> None:
    """An attempt must raise `ConnectionLost`."""
    try:
        attempt()
    except ConnectionLost:
        return
    raise AssertionError(f"{what} must raise ConnectionLost")


def check(condition: bool, text: str) -> None:
    """Raises AssertionError with the text unless the condition holds."""
    if not condition:
        raise AssertionError(text)


def check_equal(found: object, expected: object, what: str) -> None:
    """Raises AssertionError unless the two are equal; shows the first 80 characters of each."""
    check(found == expected, f"{what}: {found!r:.80}, expected {expected!r:.80}")
