"""What a connection is for: exactly twenty bytes, whatever comes in them."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import example, given, strategies as st
from trio.testing import MockClock
from trio_runs import run_virtual, streams

from netstack.base.errors import ConfigError, ConnectionLost, RemoteProtocolError
from netstack.cluster.control.routing import (
    CONTROL,
    DATA,
    ROUTE_BYTES,
    SHARED,
    RoutedListener,
    check_job_id,
    read_route,
    write_route,
)

JOB_ID = "0123456789abcdef"


@pytest.mark.parametrize("environment", [None, JOB_ID, SHARED])
async def test_not_one_byte_more_is_read(autojump_clock: MockClock, environment: str | None) -> None:
    dialled, accepted = await streams()
    await write_route(dialled, environment)
    dialled.try_send([b"what follows"])
    assert await read_route(accepted) == environment
    left = memoryview(bytearray(100))
    assert accepted.try_receive_into([left]) == len(b"what follows")


@given(st.binary(min_size=ROUTE_BYTES, max_size=ROUTE_BYTES))
@example(DATA + bytes(16))
@example(DATA + b"0123456789abcde\n")
@example(DATA + "é".encode() * 8)
@example(CONTROL + b"x" * 16)
def test_any_twenty_bytes_are_a_route_or_refused(route: bytes) -> None:
    async def main() -> None:
        dialled, accepted = await streams()
        dialled.try_send([route])
        if route.startswith(CONTROL):
            assert await read_route(accepted) is None
        elif route.startswith(DATA) and route[4:].isalnum():
            assert await read_route(accepted) == route[4:].decode("ascii")
        else:
            with pytest.raises(RemoteProtocolError, match="not a netstack process, or it uses a secret"):
                await read_route(accepted)

    run_virtual(main)


async def test_a_peer_that_goes_in_the_middle(autojump_clock: MockClock) -> None:
    dialled, accepted = await streams()
    dialled.try_send([DATA + b"0123"])
    dialled.close()
    with pytest.raises(ConnectionLost, match="before it sent its route"):
        await read_route(accepted)


@pytest.mark.parametrize(
    "environment", ["", "1234", "0123456789abcdeg", "0123456789abcdef0", "0123456789abcde\n", "0" * 16]
)
def test_an_id_that_is_none(environment: str) -> None:
    with pytest.raises(ConfigError, match="must be 16 hex digits"):
        check_job_id(environment)


async def test_a_listener_closes_what_nobody_accepts_and_tells_of_each_once(autojump_clock: MockClock) -> None:
    dropped: list[None] = []
    listener = RoutedListener("tcp://here:1", lambda stream: dropped.append(None))
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


async def test_whoever_waits_for_a_stream_learns_that_the_run_closes(autojump_clock: MockClock) -> None:
    listener = RoutedListener("tcp://here:1", lambda stream: None)
    async with trio.open_nursery() as nursery:

        async def accept() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await listener.accept()

        nursery.start_soon(accept)
        await trio.testing.wait_all_tasks_blocked()
        listener.close()


async def test_a_flood_is_dropped_not_kept(autojump_clock: MockClock) -> None:
    dropped: list[None] = []
    listener = RoutedListener("tcp://here:1", lambda stream: dropped.append(None))
    for _ in range(1030):
        _, accepted = await streams()
        listener.put(accepted)
    assert len(dropped) == 6
    listener.close()
    assert len(dropped) == 1030
