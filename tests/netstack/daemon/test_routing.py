"""What a connection is for: exactly twenty bytes, whatever comes in them."""

from __future__ import annotations

import itertools

import pytest
import trio
import trio.testing
from daemonworld import virtual
from hypothesis import example, given
from hypothesis import strategies as st

from netstack.daemon.routing import CONTROL, DATA, ROUTE_BYTES, RoutedListener, check_run_id, read_route, write_route
from netstack.errors import ConfigError, ConnectionLost, RemoteProtocolError
from netstack.transport import ByteStream, transport_for

RUN_ID = "0123456789abcdef"
_numbers = itertools.count()


async def streams() -> tuple[ByteStream, ByteStream]:
    url = f"memory://route{next(_numbers)}"
    listener = await transport_for(url).listen(url)
    dialled = await transport_for(url).connect(url)
    accepted = await listener.accept()
    listener.close()
    return dialled, accepted


@pytest.mark.parametrize("run_id", [None, RUN_ID])
@virtual
async def test_not_one_byte_more_is_read(run_id: str | None) -> None:
    dialled, accepted = await streams()
    await write_route(dialled, run_id)
    dialled.try_send([b"what follows"])
    assert await read_route(accepted) == run_id
    left = memoryview(bytearray(100))
    assert accepted.try_receive_into([left]) == len(b"what follows")


@given(st.binary(min_size=ROUTE_BYTES, max_size=ROUTE_BYTES))
@example(DATA + bytes(16))
@example(DATA + b"0123456789abcde\n")
@example(DATA + "é".encode() * 8)
@example(CONTROL + b"x" * 16)
def test_any_twenty_bytes_are_a_route_or_refused(route: bytes) -> None:
    @virtual
    async def main() -> None:
        dialled, accepted = await streams()
        dialled.try_send([route])
        if route.startswith(CONTROL):
            assert await read_route(accepted) is None
        elif route.startswith(DATA) and route[4:].isalnum():
            assert await read_route(accepted) == route[4:].decode("ascii")
        else:
            with pytest.raises(RemoteProtocolError, match="that is no netstack command or daemon; or it has a secret"):
                await read_route(accepted)

    main()


@virtual
async def test_a_peer_that_goes_in_the_middle() -> None:
    dialled, accepted = await streams()
    dialled.try_send([DATA + b"0123"])
    dialled.close()
    with pytest.raises(ConnectionLost, match="went before it said what it wants"):
        await read_route(accepted)


@pytest.mark.parametrize("run_id", ["", "1234", "0123456789abcdeg", "0123456789abcdef0", "0123456789abcde\n"])
def test_an_id_that_is_none(run_id: str) -> None:
    with pytest.raises(ConfigError, match="give 16 hex digits"):
        check_run_id(run_id)


@virtual
async def test_a_listener_closes_what_nobody_accepts_and_tells_of_each_once() -> None:
    dropped: list[None] = []
    listener = RoutedListener("tcp://here:1", lambda: dropped.append(None))
    peers = []
    for _ in range(3):
        dialled, accepted = await streams()
        peers.append(dialled)
        listener.put(accepted)
    taken = await listener.accept()
    assert not dropped
    listener.close()
    listener.close()
    assert len(dropped) == 2
    with pytest.raises(trio.ClosedResourceError):
        await listener.accept()
    late, accepted = await streams()
    listener.put(accepted)
    assert len(dropped) == 3
    window = memoryview(bytearray(1))
    assert [peer.try_receive_into([window]) for peer in (*peers, late)] == [None, 0, 0, 0]
    taken.close()


@virtual
async def test_whoever_waits_for_a_stream_learns_that_the_run_closes() -> None:
    listener = RoutedListener("tcp://here:1", lambda: None)
    async with trio.open_nursery() as nursery:

        async def accept() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await listener.accept()

        nursery.start_soon(accept)
        await trio.testing.wait_all_tasks_blocked()
        listener.close()


@virtual
async def test_a_flood_is_dropped_not_kept() -> None:
    dropped: list[None] = []
    listener = RoutedListener("tcp://here:1", lambda: dropped.append(None))
    for _ in range(1030):
        _, accepted = await streams()
        listener.put(accepted)
    assert len(dropped) == 6
    listener.close()
    assert len(dropped) == 1030
