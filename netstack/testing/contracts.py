"""What every implementation of an interface must do, as checks to be run against yours.

Takes: a function that makes a fresh address of your transport. Gives: an `AssertionError` that says what is wrong, or
whatever your transport raised out of turn.

    @pytest.mark.parametrize("name", TRANSPORT_CHECKS)
    def test_contract(name: str) -> None:
        trio.run(TRANSPORT_CHECKS[name], make_url)

or `trio.run(check_transport, make_url)` for all of them. A check takes milliseconds; should something never happen, it
fails by itself after `LIMIT_S`.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final, TypeAlias

import trio
import trio.testing

from ..errors import ConnectionLost
from ..transport import ByteStream, Listener, transport_for

MakeUrl: TypeAlias = Callable[[], str]
"""Gives an address to listen at which nobody uses, another one at each call."""

TransportCheck: TypeAlias = Callable[[MakeUrl], Awaitable[None]]

LIMIT_S: Final = 10.0
MOST_BYTES_UNDER_WAY: Final = 64 * 1024 * 1024
"""A stream that takes more than this without a reader has no bound: large socket buffers hold a few MiB."""

_FULL_S: Final = 0.02  # a stream that was not writable for so long is full for good


async def check_transport(make_url: MakeUrl) -> None:
    """Runs every check of `TRANSPORT_CHECKS`.

    Args:
        make_url: gives a fresh address at each call, such as `lambda: "tcp://127.0.0.1:0"`.

    Raises:
        AssertionError: the transport breaks its contract.
    """
    for check in TRANSPORT_CHECKS.values():
        await check(make_url)


# The checks.


async def _bytes_arrive_in_order(make_url: MakeUrl) -> None:
    """Gathered from many pieces, scattered over many windows; both directions at once."""
    async with _pair(make_url) as (near, far):
        message = bytes(range(256)) * 40
        for a, b in ((near, far), (far, near)):
            pieces = [message[start : start + 7] for start in range(0, len(message), 7)]
            pieces.insert(5, b"")
            _check(len(pieces) > 1024, "more than one system call takes")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_send_all, a, pieces)
                received = await _receive(b, len(message), windows=(1, 0, 3, 1000))
            _equal(received, message, "the bytes received")


async def _pieces_may_change_after_they_were_taken(make_url: MakeUrl) -> None:
    async with _pair(make_url) as (near, far):
        piece = bytearray(b"before")
        _equal(near.try_send([piece]), len(piece), "what an empty stream takes of 6 bytes")
        piece[:] = b"after!"
        _equal(await _receive(far, 6), b"before", "bytes that were taken before their memory changed")


async def _nothing_there_is_not_the_end(make_url: MakeUrl) -> None:
    async with _pair(make_url) as (near, far):
        window = memoryview(bytearray(10))
        _equal(near.try_receive_into([window]), None, "a read when nothing has come")
        _equal(far.try_send([b"x"]), 1, "what an empty stream takes of 1 byte")
        await near.wait_readable()
        _equal(near.try_receive_into([window]), 1, "a read of one byte")
        _equal(near.try_receive_into([window]), None, "a read when everything was read")


async def _directions_end_separately(make_url: MakeUrl) -> None:
    """Half-close: what was sent before arrives, then the end, while the other direction goes on."""
    async with _pair(make_url) as (near, far):
        await _send_all(near, [b"last words"])
        near.send_eof()
        near.send_eof()
        _equal(await _receive(far, 10), b"last words", "what was sent before the end")
        for _ in range(2):
            await far.wait_readable()
            _equal(far.try_receive_into([memoryview(bytearray(5))]), 0, "a read at the end")
        await _send_all(far, [b"answer"])
        far.send_eof()
        _equal(await _receive(near, 6), b"answer", "what came in the other direction after send_eof")
        _equal(await _end(near), True, "the end of the other direction")


async def _sending_after_the_end_is_an_error(make_url: MakeUrl) -> None:
    async with _pair(make_url) as (near, _):
        near.send_eof()
        _lost(lambda: near.try_send([b"x"]), "try_send after send_eof")


async def _a_full_stream_takes_nothing(make_url: MakeUrl) -> None:
    """Backpressure: bounded, told by 0, ended by the reader; nothing is lost meanwhile."""
    async with _pair(make_url) as (near, far):
        sent = await _clog(near)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(near.wait_writable)
            received = bytearray(await _receive(far, sent))
        _check(near.try_send([b"more"]) > 0, "writable, but try_send took nothing")
        received += await _receive(far, 4)
        _check(received == _pattern(sent) + b"more", "bytes of a full stream were lost or changed")


async def _full_one_way_is_not_full_the_other(make_url: MakeUrl) -> None:
    async with _pair(make_url) as (near, far):
        await _clog(near)
        await _send_all(far, [b"against the current"])
        _equal(await _receive(near, 19), b"against the current", "bytes against a full direction")


async def _closing_wakes_who_reads(make_url: MakeUrl) -> None:
    async with _pair(make_url) as (near, _):
        await _closed_while(near.wait_readable, near.close)


async def _closing_wakes_who_writes(make_url: MakeUrl) -> None:
    async with _pair(make_url) as (near, _):
        await _clog(near)
        await _closed_while(near.wait_writable, near.close)


async def _closing_wakes_who_accepts(make_url: MakeUrl) -> None:
    listener = await _listen(make_url())
    await _closed_while(listener.accept, listener.close)
    await _raises_closed(listener.accept)


async def _a_closed_stream_is_closed(make_url: MakeUrl) -> None:
    async with _pair(make_url) as (near, _):
        near.close()
        near.close()
        near.send_eof()
        await _raises_closed(near.wait_readable)
        await _raises_closed(near.wait_writable)
        _lost(lambda: near.try_send([b"x"]), "try_send on a closed stream")
        _lost(lambda: near.try_receive_into([memoryview(bytearray(1))]), "try_receive_into on a closed stream")
        near.tcp_facts()


async def _a_closed_peer_is_the_end(make_url: MakeUrl) -> None:
    """Whoever reads gets what was sent and then the end; whoever writes gets ConnectionLost before long."""
    async with _pair(make_url) as (near, far):
        await _send_all(near, [b"bye"])
        near.close()
        _equal(await _receive(far, 3), b"bye", "what was sent before close")
        _equal(await _end(far), True, "the end of a stream whose peer closed")
        lost: ConnectionLost | None = None
        for _ in range(100):
            try:
                far.try_send([bytes(1000)])
                await far.wait_writable()
            except ConnectionLost as error:
                lost = error
                break
        _check(lost is not None, "writing to a peer that closed never failed")
        _check(far.peer in str(lost), f"the error does not name the peer {far.peer}: {lost}")


async def _a_closed_peer_wakes_who_writes(make_url: MakeUrl) -> None:
    async with _pair(make_url) as (near, far):
        await _clog(near)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(near.wait_writable)
            await trio.testing.wait_all_tasks_blocked()
            far.close()


async def _nobody_answers(make_url: MakeUrl) -> None:
    """Dialling an address at which nobody listens (any more): ConnectionLost that names it."""
    listener = await _listen(make_url())
    address = listener.address
    listener.close()
    lost: ConnectionLost | None = None
    try:
        (await transport_for(address).connect(address)).close()
    except ConnectionLost as error:
        lost = error
    _check(lost is not None, f"connecting to {address} succeeded although nobody listens")
    _check(address in str(lost), f"the error does not name {address}: {lost}")


async def _an_address_in_use(make_url: MakeUrl) -> None:
    """The second listener gets OSError that names the address; when the first is closed it is free again."""
    listener = await _listen(make_url())
    address = listener.address
    refused: OSError | None = None
    try:
        (await _listen(address)).close()
    except OSError as error:
        refused = error
    _check(refused is not None, f"two listeners at {address}")
    _equal(getattr(refused, "errno", None), errno.EADDRINUSE, "errno of an address in use")
    _check(address in str(refused), f"the error does not name {address}: {refused}")
    near, far = await _connected(listener)  # the first is none the worse for it
    for closable in (near, far, listener, listener):
        closable.close()
    (await _listen(address)).close()


async def _cancelled_waits_change_nothing(make_url: MakeUrl) -> None:
    listener = await _listen(make_url())
    await _cancelled(listener.accept)
    near, far = await _connected(listener)
    await _cancelled(near.wait_readable)
    sent = await _clog(near)
    await _cancelled(near.wait_writable)
    received = await _receive(far, sent)
    _check(received == _pattern(sent), "a cancelled wait lost bytes")
    await _send_all(near, [b"x"])
    _equal(await _receive(far, 1), b"x", "a byte after a cancelled wait")
    for closable in (near, far, listener):
        closable.close()


async def _streams_are_separate(make_url: MakeUrl) -> None:
    listener = await _listen(make_url())
    pairs = [await _connected(listener) for _ in range(3)]
    for index, (near, _) in enumerate(pairs):
        await _send_all(near, [bytes([index])])
    for index, (near, far) in enumerate(pairs):
        _equal(await _receive(far, 1), bytes([index]), "the bytes of one stream of several")
        _check(bool(near.peer), "a stream must say who is at its other end")
        _check(bool(far.peer), "a stream must say who is at its other end")
        near.close()
        far.close()
    listener.close()


async def _waiting_dialers_are_served_in_the_end(make_url: MakeUrl) -> None:
    """Who dials before anybody accepts may send at once."""
    listener = await _listen(make_url())
    near = await transport_for(listener.address).connect(listener.address)
    _equal(near.try_send([b"early"]), 5, "what an empty stream takes of 5 bytes")
    far = await listener.accept()
    _equal(await _receive(far, 5), b"early", "bytes sent before the stream was accepted")
    for closable in (near, far, listener):
        closable.close()


async def _every_wait_is_a_checkpoint(make_url: MakeUrl) -> None:
    """Also when there is nothing to wait for (listen and connect may use threads, and count as one call)."""
    listener = await _listen(make_url())
    with trio.testing.assert_checkpoints():
        near = await transport_for(listener.address).connect(listener.address)
    with trio.testing.assert_checkpoints():
        far = await listener.accept()
    _equal(near.try_send([b"x"]), 1, "what an empty stream takes of 1 byte")
    await far.wait_readable()
    with trio.testing.assert_checkpoints():
        await far.wait_readable()
    with trio.testing.assert_checkpoints():
        await near.wait_writable()
    for closable in (near, far, listener):
        closable.close()


# What they are made of.


def _limited(check: TransportCheck) -> TransportCheck:
    @functools.wraps(check)
    async def limited(make_url: MakeUrl) -> None:
        with trio.move_on_after(LIMIT_S) as scope:
            await check(make_url)
        _check(not scope.cancelled_caught, f"{check.__name__}: not done after {LIMIT_S} s; something never happened")

    return limited


TRANSPORT_CHECKS: Final[Mapping[str, TransportCheck]] = MappingProxyType(
    {
        check.__name__.strip("_"): _limited(check)
        for check in (
            _bytes_arrive_in_order,
            _pieces_may_change_after_they_were_taken,
            _nothing_there_is_not_the_end,
            _directions_end_separately,
            _sending_after_the_end_is_an_error,
            _a_full_stream_takes_nothing,
            _full_one_way_is_not_full_the_other,
            _closing_wakes_who_reads,
            _closing_wakes_who_writes,
            _closing_wakes_who_accepts,
            _a_closed_stream_is_closed,
            _a_closed_peer_is_the_end,
            _a_closed_peer_wakes_who_writes,
            _nobody_answers,
            _an_address_in_use,
            _cancelled_waits_change_nothing,
            _streams_are_separate,
            _waiting_dialers_are_served_in_the_end,
            _every_wait_is_a_checkpoint,
        )
    }
)
"""Each check by name; it takes `make_url` and raises `AssertionError`."""


@asynccontextmanager
async def _pair(make_url: MakeUrl) -> AsyncIterator[tuple[ByteStream, ByteStream]]:
    listener = await _listen(make_url())
    try:
        near, far = await _connected(listener)
        try:
            yield near, far
        finally:
            near.close()
            far.close()
    finally:
        listener.close()


async def _listen(url: str) -> Listener:
    return await transport_for(url).listen(url)


async def _connected(listener: Listener) -> tuple[ByteStream, ByteStream]:
    near = await transport_for(listener.address).connect(listener.address)
    return near, await listener.accept()


async def _send_all(stream: ByteStream, pieces: list[bytes]) -> None:
    rest = list(pieces)
    while any(rest):
        count = stream.try_send(rest)
        while rest and count >= len(rest[0]):
            count -= len(rest.pop(0))
        if count:
            rest[0] = rest[0][count:]
        if any(rest):
            await stream.wait_writable()


async def _receive(stream: ByteStream, size: int, windows: tuple[int, ...] = (1 << 20,)) -> bytes:
    received = bytearray()
    while len(received) < size:
        await stream.wait_readable()
        places = [memoryview(bytearray(length)) for length in windows]
        count = stream.try_receive_into(places)
        _check(count != 0, f"the stream ended after {len(received)} of {size} bytes")
        received += b"".join(places)[: count or 0]
    return bytes(received)


async def _end(stream: ByteStream) -> bool:
    await stream.wait_readable()
    return stream.try_receive_into([memoryview(bytearray(1))]) == 0


def _pattern(size: int) -> bytes:
    return (bytes(range(251)) * (size // 251 + 1))[:size]


async def _clog(stream: ByteStream) -> int:
    """Sends until the stream is full for good; returns how many bytes of the pattern it took."""
    pattern = _pattern(251 * 1000)
    sent = 0
    while True:
        count = stream.try_send([pattern[sent % 251 :]])
        sent += count
        _check(sent < MOST_BYTES_UNDER_WAY, f"a stream took {sent} bytes that nobody reads")
        if not count:
            # The system may still move bytes to the other end.
            with trio.move_on_after(_FULL_S) as scope:
                await stream.wait_writable()
            if scope.cancelled_caught:
                return sent


async def _closed_while(wait: Callable[[], Awaitable[object]], close: Callable[[], None]) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_raises_closed, wait)
        await trio.testing.wait_all_tasks_blocked()
        close()


async def _raises_closed(wait: Callable[[], Awaitable[object]]) -> None:
    try:
        await wait()
    except trio.ClosedResourceError:
        return
    raise AssertionError(f"{wait} must raise trio.ClosedResourceError once it is closed")


async def _cancelled(wait: Callable[[], Awaitable[object]]) -> None:
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def expect_cancellation() -> None:
                await wait()
                raise AssertionError(f"{wait} returned although there was nothing to wait for")

            nursery.start_soon(expect_cancellation)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    _check(scope.cancelled_caught, f"{wait} was not cancelled")


def _lost(attempt: Callable[[], object], what: str) -> None:
    try:
        attempt()
    except ConnectionLost:
        return
    raise AssertionError(f"{what} must raise ConnectionLost")


def _check(condition: bool, text: str) -> None:
    if not condition:
        raise AssertionError(text)


def _equal(found: object, expected: object, what: str) -> None:
    _check(found == expected, f"{what}: {found!r:.80}, expected {expected!r:.80}")
