"""Conformance checks for transports, to be run against your own implementation.

Takes: a function that returns an unused address of your transport. Gives: an `AssertionError` that describes the
violation, or an unexpected error of your transport.

    @pytest.mark.parametrize("name", TRANSPORT_CHECKS)
    def test_contract(name: str) -> None:
        trio.run(TRANSPORT_CHECKS[name], make_url)

or `trio.run(check_transport, make_url)` for all of them. A check takes milliseconds; one that hangs fails after
`LIMIT_S`.
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

    A byte was sent in each direction, so the TLS handshake is complete: a full stream then stays full until it is read.
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


TransportCheck: TypeAlias = Callable[[MakeUrl], Awaitable[None]]

LIMIT_S: Final = 10.0


async def check_transport(make_url: MakeUrl) -> None:
    """Runs every check of `TRANSPORT_CHECKS`.

    Args:
        make_url: returns an unused address at each call, such as `lambda: "tcp://127.0.0.1:0"`.

    Raises:
        AssertionError: the transport violates the contract.
    """
    for transport_check in TRANSPORT_CHECKS.values():
        await transport_check(make_url)


# The checks.


async def _bytes_arrive_in_order(make_url: MakeUrl) -> None:
    """Sends many pieces and receives into many windows, in both directions at once."""
    async with stream_pair(make_url) as (near, far):
        message = bytes(range(256)) * 40
        for a, b in ((near, far), (far, near)):
            pieces = [message[start : start + 7] for start in range(0, len(message), 7)]
            pieces.insert(5, b"")
            check(len(pieces) > 1024, "more than one system call takes")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_all, a, pieces)
                received = await receive(b, len(message), windows=(1, 0, 3, 1000))
            check_equal(received, message, "the bytes received")


async def _pieces_may_change_after_they_were_taken(make_url: MakeUrl) -> None:
    async with stream_pair(make_url) as (near, far):
        piece = bytearray(b"before")
        check_equal(near.try_send([piece]), len(piece), "what an empty stream takes of 6 bytes")
        piece[:] = b"after!"
        check_equal(await receive(far, 6), b"before", "bytes that were taken before their memory changed")


async def _nothing_there_is_not_the_end(make_url: MakeUrl) -> None:
    async with stream_pair(make_url) as (near, far):
        window = memoryview(bytearray(10))
        check_equal(near.try_receive_into([window]), None, "a read when nothing has come")
        check_equal(far.try_send([b"x"]), 1, "what an empty stream takes of 1 byte")
        await near.wait_readable()
        check_equal(near.try_receive_into([window]), 1, "a read of one byte")
        check_equal(near.try_receive_into([window]), None, "a read when everything was read")


async def _one_task_waits_for_each_direction(make_url: MakeUrl) -> None:
    """A second task in a wait gets BusyResourceError; the first one is woken as if there had been no second one."""
    async with stream_pair(make_url) as (near, far):
        sent = await clog(near)
        for wait, wake in (
            (near.wait_readable, functools.partial(send_all, far, [b"x"])),
            (near.wait_writable, functools.partial(receive, far, sent)),
        ):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                await raises(trio.BusyResourceError, wait)
                await wake()


async def _windows_without_room_are_refused(make_url: MakeUrl) -> None:
    """0 bytes stored would look like the end, and nothing would be read for ever."""
    async with stream_pair(make_url) as (near, far):
        empty, window = memoryview(bytearray(0)), memoryview(bytearray(10))
        for what, expected in (("data has come", 1), ("the end has come", 0)):
            if expected:
                await send_all(far, [b"x"])
            else:
                far.send_eof()
            await near.wait_readable()
            for windows in ([empty], [empty, empty], []):
                try:
                    count = near.try_receive_into(windows)
                except ValueError:
                    continue
                check(False, f"{what}: a read into {len(windows)} windows without room returns {count}")
            check_equal(near.try_receive_into([empty, window]), expected, f"a read into a window with room, {what}")


async def _counts_are_bytes_whatever_the_items_are(make_url: MakeUrl) -> None:
    """Integers, signed bytes and rows, in pieces and in windows, also where a ring in memory begins again."""
    message = bytes(range(1, 241))
    async with stream_pair(make_url) as (near, far):
        for _ in range(300):
            pieces = [memoryview(message).cast("i")]
            pieces += [memoryview(message).cast("b"), memoryview(message).cast("B", (60, 4))]
            check_equal(near.try_send(pieces), 720, "what an empty stream takes of 720 bytes of several types")
            stored = bytearray(720)
            filled = 0
            while filled < 720:
                await far.wait_readable()
                rest = memoryview(stored)[filled:]
                window = rest.cast("i") if len(rest) % 4 == 0 else rest
                filled += far.try_receive_into([window]) or 0
            check_equal(bytes(stored), message * 3, "the bytes received")


async def _what_has_come_is_known_without_reading(make_url: MakeUrl) -> None:
    """For streams that implement `has_come`."""
    async with stream_pair(make_url) as (near, far):
        window = memoryview(bytearray(10))

        def check_knows(expected: bool, when: str) -> None:
            check(near.has_come() in (None, expected), f"has_come is {near.has_come()} {when}")

        check_knows(False, "when nothing has come")
        await send_all(far, [b"x"])
        await near.wait_readable()
        check_knows(True, "when a byte has come")
        near.try_receive_into([window])
        check_knows(False, "when everything was read")
        far.send_eof()
        await near.wait_readable()
        check_knows(True, "at the end")
        near.close()
        check_knows(True, "when a read would raise, since it is closed")


async def _directions_end_separately(make_url: MakeUrl) -> None:
    """Half-close: earlier data arrives, then the end, while the other direction continues."""
    async with stream_pair(make_url) as (near, far):
        await send_all(near, [b"last words"])
        near.send_eof()
        near.send_eof()
        check_equal(await receive(far, 10), b"last words", "what was sent before the end")
        for _ in range(2):
            await far.wait_readable()
            check_equal(far.try_receive_into([memoryview(bytearray(5))]), 0, "a read at the end")
        await send_all(far, [b"answer"])
        far.send_eof()
        check_equal(await receive(near, 6), b"answer", "what came in the other direction after send_eof")
        check_equal(await is_at_end(near), True, "the end of the other direction")


async def _sending_after_the_end_is_an_error(make_url: MakeUrl) -> None:
    async with stream_pair(make_url) as (near, _):
        near.send_eof()
        expect_lost(lambda: near.try_send([b"x"]), "try_send after send_eof")


async def _a_full_stream_takes_nothing(make_url: MakeUrl) -> None:
    """Back-pressure: bounded, signalled by 0, ended by the reader, without loss."""
    async with stream_pair(make_url) as (near, far):
        sent = await clog(near)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(near.wait_writable)
            received = bytearray(await receive(far, sent))
        check(near.try_send([b"more"]) > 0, "writable, but try_send took nothing")
        received += await receive(far, 4)
        check(received == pattern_of(sent) + b"more", "bytes of a full stream were lost or changed")


async def _full_one_way_is_not_full_the_other(make_url: MakeUrl) -> None:
    async with stream_pair(make_url) as (near, far):
        await clog(near)
        await send_all(far, [b"against the current"])
        check_equal(await receive(near, 19), b"against the current", "bytes against a full direction")


async def _closing_wakes_who_reads(make_url: MakeUrl) -> None:
    async with stream_pair(make_url) as (near, _):
        await closed_while(near.wait_readable, near.close)


async def _closing_wakes_who_writes(make_url: MakeUrl) -> None:
    async with stream_pair(make_url) as (near, _):
        await clog(near)
        await closed_while(near.wait_writable, near.close)


async def _closing_wakes_who_accepts(make_url: MakeUrl) -> None:
    listener = await listen(make_url())
    await closed_while(listener.accept, listener.close)
    await raises_closed(listener.accept)


async def _a_closed_stream_is_closed(make_url: MakeUrl) -> None:
    async with stream_pair(make_url) as (near, _):
        near.close()
        near.close()
        near.send_eof()
        await raises_closed(near.wait_readable)
        await raises_closed(near.wait_writable)
        expect_lost(lambda: near.try_send([b"x"]), "try_send on a closed stream")
        expect_lost(lambda: near.try_receive_into([memoryview(bytearray(1))]), "try_receive_into on a closed stream")
        near.tcp_facts()


async def _a_closed_peer_is_the_end(make_url: MakeUrl) -> None:
    """A reader gets the sent data and then the end; a writer soon gets ConnectionLost."""
    async with stream_pair(make_url) as (near, far):
        await send_all(near, [b"bye"])
        near.close()
        check_equal(await receive(far, 3), b"bye", "what was sent before close")
        check_equal(await is_at_end(far), True, "the end of a stream whose peer closed")
        lost: ConnectionLost | None = None
        for _ in range(100):
            try:
                far.try_send([bytes(1000)])
                await far.wait_writable()
            except ConnectionLost as error:
                lost = error
                break
        check(lost is not None, "writing to a peer that closed never failed")
        check(far.peer in str(lost), f"the error does not name the peer {far.peer}: {lost}")


async def _a_closed_peer_wakes_who_writes(make_url: MakeUrl) -> None:
    async with stream_pair(make_url) as (near, far):
        await clog(near)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(near.wait_writable)
            await trio.testing.wait_all_tasks_blocked()
            far.close()


async def _nobody_answers(make_url: MakeUrl) -> None:
    """Dialling an address without a listener raises a ConnectionLost that names the address."""
    listener = await listen(make_url())
    address = listener.address
    listener.close()
    lost: ConnectionLost | None = None
    try:
        (await transport_for(address).connect(address)).close()
    except ConnectionLost as error:
        lost = error
    check(lost is not None, f"connecting to {address} succeeded although nobody listens")
    check(address in str(lost), f"the error does not name {address}: {lost}")


async def _an_address_in_use(make_url: MakeUrl) -> None:
    """A second listener gets an OSError that names the address; closing the first one frees it."""
    listener = await listen(make_url())
    address = listener.address
    refused: OSError | None = None
    try:
        (await listen(address)).close()
    except OSError as error:
        refused = error
    check(refused is not None, f"two listeners at {address}")
    check_equal(getattr(refused, "errno", None), errno.EADDRINUSE, "errno of an address in use")
    check(address in str(refused), f"the error does not name {address}: {refused}")
    near, far = await connected(listener)  # the first listener still works
    for closable in (near, far, listener, listener):
        closable.close()
    (await listen(address)).close()


async def _cancelled_waits_change_nothing(make_url: MakeUrl) -> None:
    listener = await listen(make_url())
    await cancelled(listener.accept)
    near, far = await connected(listener)
    await cancelled(near.wait_readable)
    sent = await clog(near)
    await cancelled(near.wait_writable)
    received = await receive(far, sent)
    check(received == pattern_of(sent), "a cancelled wait lost bytes")
    await send_all(near, [b"x"])
    check_equal(await receive(far, 1), b"x", "a byte after a cancelled wait")
    for closable in (near, far, listener):
        closable.close()


async def _streams_are_separate(make_url: MakeUrl) -> None:
    listener = await listen(make_url())
    pairs = [await connected(listener) for _ in range(3)]
    for index, (near, _) in enumerate(pairs):
        await send_all(near, [bytes([index])])
    for index, (near, far) in enumerate(pairs):
        check_equal(await receive(far, 1), bytes([index]), "the bytes of one stream of several")
        check(bool(near.peer), "a stream must name its peer")
        check(bool(far.peer), "a stream must name its peer")
        near.close()
        far.close()
    listener.close()


async def _waiting_dialers_are_served_in_the_end(make_url: MakeUrl) -> None:
    """A client may send before its connection is accepted."""
    listener = await listen(make_url())
    near = await transport_for(listener.address).connect(listener.address)
    check_equal(near.try_send([b"early"]), 5, "what an empty stream takes of 5 bytes")
    far = await listener.accept()
    check_equal(await receive(far, 5), b"early", "bytes sent before the stream was accepted")
    for closable in (near, far, listener):
        closable.close()


async def _every_wait_is_a_checkpoint(make_url: MakeUrl) -> None:
    """Even if there is nothing to wait for (listen and connect may use threads, and count as one call)."""
    listener = await listen(make_url())
    with trio.testing.assert_checkpoints():
        near = await transport_for(listener.address).connect(listener.address)
    with trio.testing.assert_checkpoints():
        far = await listener.accept()
    check_equal(near.try_send([b"x"]), 1, "what an empty stream takes of 1 byte")
    await far.wait_readable()
    with trio.testing.assert_checkpoints():
        await far.wait_readable()
    with trio.testing.assert_checkpoints():
        await near.wait_writable()
    for closable in (near, far, listener):
        closable.close()


def _limited(transport_check: TransportCheck) -> TransportCheck:
    @functools.wraps(transport_check)
    async def limited(make_url: MakeUrl) -> None:
        with trio.move_on_after(LIMIT_S) as scope:
            await transport_check(make_url)
        check(
            not scope.cancelled_caught,
            f"{transport_check.__name__}: not done after {LIMIT_S} s; something never happened",
        )

    return limited


TRANSPORT_CHECKS: Final[Mapping[str, TransportCheck]] = MappingProxyType(
    {
        transport_check.__name__.strip("_"): _limited(transport_check)
        for transport_check in (
            _bytes_arrive_in_order,
            _pieces_may_change_after_they_were_taken,
            _nothing_there_is_not_the_end,
            _one_task_waits_for_each_direction,
            _windows_without_room_are_refused,
            _counts_are_bytes_whatever_the_items_are,
            _what_has_come_is_known_without_reading,
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
"""All checks by name; each takes `make_url` and raises `AssertionError`."""
