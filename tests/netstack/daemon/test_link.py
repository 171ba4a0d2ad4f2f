"""Two ends of a control connection: greetings, signs of life, clocks; silence and nonsense have a name."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from daemonworld import virtual

from netstack.control.frames import FrameStream
from netstack.daemon.link import DaemonLink
from netstack.daemon.messages import GREETING, VERSION, CloseRun, Message, Refused
from netstack.errors import ConnectionLost, RemoteProtocolError
from netstack.transport import ByteStream, transport_for

TIMEOUT_S = 9.0
_numbers = itertools.count()


async def streams() -> tuple[ByteStream, ByteStream]:
    url = f"memory://link{next(_numbers)}"
    listener = await transport_for(url).listen(url)
    dialled = await transport_for(url).connect(url)
    accepted = await listener.accept()
    listener.close()
    return dialled, accepted


@asynccontextmanager
async def links() -> AsyncIterator[tuple[DaemonLink, DaemonLink, trio.Nursery]]:
    """Two ends that have greeted each other, and do not run yet."""
    one, other = (DaemonLink(stream, heartbeat_timeout_s=TIMEOUT_S) for stream in await streams())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other.greet, "b", "other", {})
        await one.greet("a", "one", {})
        yield one, other, nursery
        nursery.cancel_scope.cancel()


async def drain(link: DaemonLink, into: list[Message]) -> None:
    with contextlib.suppress(ConnectionLost):
        while True:
            into.append(await link.receive())


@virtual
async def test_greetings_tell_who_is_there() -> None:
    one, other = (DaemonLink(stream, heartbeat_timeout_s=TIMEOUT_S) for stream in await streams())
    found = []

    async def greet() -> None:
        found.append(await other.greet("0.3+abc", "host b", {"slots": 4}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(greet)
        theirs = await one.greet("0.2+def", "host a", {})
    assert (theirs.version, theirs.build, theirs.name, theirs.facts) == (VERSION, "0.3+abc", "host b", {"slots": 4})
    assert found[0].build == "0.2+def"
    assert one.peer.startswith("host b at ")


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        ([], "does not speak the protocol of netstack taskmanager"),
        (["netstack control", 1, "somebody"], "does not speak the protocol"),
        ([GREETING, "1", "a", "b", {}], "does not speak the protocol"),
        ([GREETING, VERSION, "a", "b"], "greeting of 4 parts"),
        ([GREETING, VERSION, 7, "b", {}], "greeting of other types"),
        ([GREETING, VERSION, "a", "b", []], "greeting of other types"),
        ([GREETING, VERSION, "a", "b", {"x": b"x" * (1 << 16)}], "FRAME_TOO_LARGE"),
    ],
)
@virtual
async def test_a_greeting_that_is_none_is_refused(greeting: list[object], said: str) -> None:
    stream, mine = await streams()
    peer = FrameStream(stream)
    peer.send(greeting)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.flush)
        link = DaemonLink(mine, heartbeat_timeout_s=TIMEOUT_S)
        with pytest.raises(RemoteProtocolError, match=said):
            await link.greet("a", "one", {})


@virtual
async def test_another_version_may_greet_in_another_way() -> None:
    stream, mine = await streams()
    peer = FrameStream(stream)
    peer.send([GREETING, VERSION + 1, "9.9+abc", "and", "more", "of", "it"])
    await peer.flush()
    greeting = await DaemonLink(mine, heartbeat_timeout_s=TIMEOUT_S).greet("a", "one", {})
    assert (greeting.version, greeting.build) == (VERSION + 1, "9.9+abc")


@virtual
async def test_two_idle_ends_hear_each_other_for_hours() -> None:
    async with links() as (one, other, nursery):
        heard: list[Message] = []
        for link in (one, other):
            nursery.start_soon(link.run)
            nursery.start_soon(drain, link, heard)
        await trio.sleep(1000)
        one.send(CloseRun("still there"))
        await trio.testing.wait_all_tasks_blocked()
        assert heard == [CloseRun("still there")]


@virtual
async def test_silence_is_a_lost_peer_with_a_name() -> None:
    async with links() as (one, _, nursery):  # the other end neither writes nor reads, as a host that was cut off
        nursery.start_soon(one.run)
        began = trio.current_time()
        with pytest.raises(
            ConnectionLost, match=r"other at memory.* said nothing for 9 s: its host is down or cut off"
        ):
            await one.receive()
        assert trio.current_time() - began == TIMEOUT_S


@virtual
async def test_a_long_message_that_takes_its_time_is_no_silence() -> None:
    stream, mine = await streams()
    link = DaemonLink(mine, heartbeat_timeout_s=TIMEOUT_S)
    peer = FrameStream(stream)
    peer.send([GREETING, VERSION, "a", "slow", {}])
    await peer.flush()
    await link.greet("a", "one", {})
    frame = b"\0\0\0\x0a\x92\xa7Ref"
    heard_s = (len(frame) - 1) * (TIMEOUT_S - 1)

    async def dribble() -> None:
        for byte in frame:
            stream.try_send([bytes([byte])])
            await trio.sleep(TIMEOUT_S - 1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(dribble)
        began = trio.current_time()
        with pytest.raises(ConnectionLost, match=r"slow at .* said nothing"):
            await link.receive()
        assert trio.current_time() - began > heard_s + TIMEOUT_S


@virtual
async def test_a_pong_tells_the_clock_and_a_lost_peer_ends_the_wait() -> None:
    async with links() as (one, other, nursery):
        nursery.start_soon(other.run)
        nursery.start_soon(drain, other, [])
        nursery.start_soon(one.run)
        nursery.start_soon(drain, one, [])
        before, theirs, after = await one.ping()
        assert before <= theirs <= after, "one host, one clock"
        assert one.pongs == {}
        with trio.CancelScope() as scope:
            scope.cancel()
            await one.ping()
        assert one.pongs == {}
    async with links() as (one, _, nursery):
        nursery.start_soon(_expect_gone, one)
        await trio.testing.wait_all_tasks_blocked()
        one.give_up()
        await trio.testing.wait_all_tasks_blocked()


async def _expect_gone(link: DaemonLink) -> None:
    with pytest.raises(ConnectionLost, match="is gone"):
        await link.ping()


@virtual
async def test_a_refusal_arrives_though_the_connection_ends() -> None:
    async with links() as (one, other, _):
        await other.refuse("too old")
        other.close()
        assert await one.receive() == Refused("too old")
        with pytest.raises(ConnectionLost):
            await one.receive()
        await one.refuse("nobody hears this")


@virtual
async def test_receive_may_be_cancelled_at_any_byte() -> None:
    async with links() as (one, other, nursery):
        heard: list[Message] = []
        for _ in range(20):
            other.send(CloseRun("r"))
        nursery.start_soon(other.run)
        while len(heard) < 20:
            with trio.CancelScope() as scope:
                nursery.start_soon(_cancel_soon, scope)
                heard.append(await one.receive())
        assert heard == [CloseRun("r")] * 20


async def _cancel_soon(scope: trio.CancelScope) -> None:
    await trio.lowlevel.checkpoint()
    scope.cancel()
