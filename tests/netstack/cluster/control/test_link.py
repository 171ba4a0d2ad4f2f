"""Two ends of a control connection: greetings, signs of life, clocks; silence and nonsense have a name."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from trio.testing import MockClock
from trio_runs import streams

from netstack.base.errors import ConnectionLost, RemoteProtocolError, RequestRefused
from netstack.base.transport import transport_for
from netstack.cluster.control.build import own_build
from netstack.cluster.control.codec import Message
from netstack.cluster.control.frames import FrameStream, pack
from netstack.cluster.control.link import CLIENT, JOBMANAGER, TASKMANAGER, ControlLink, Greeting, dial, full_build
from netstack.cluster.control.messages import GREETING, VERSION, CloseJob, OperatorEvent, Refused
from netstack.cluster.control.routing import read_route

TIMEOUT_S = 9.0


@asynccontextmanager
async def links() -> AsyncIterator[tuple[ControlLink, ControlLink, trio.Nursery]]:
    """Two ends that have greeted each other, and do not run yet."""
    one, other = (ControlLink(stream, heartbeat_timeout_s=TIMEOUT_S) for stream in await streams())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other.greet, "b", "other", CLIENT, {})
        await one.greet("a", "one", TASKMANAGER, {})
    async with trio.open_nursery() as nursery:
        yield one, other, nursery
        nursery.cancel_scope.cancel()


async def drain(link: ControlLink, into: list[Message]) -> None:
    with contextlib.suppress(ConnectionLost):
        while True:
            into.append(await link.receive())


async def test_greetings_tell_who_is_there(autojump_clock: MockClock) -> None:
    one, other = (ControlLink(stream, heartbeat_timeout_s=TIMEOUT_S) for stream in await streams())
    actual = []

    async def greet() -> None:
        actual.append(await other.greet("0.3+abc", "host b", TASKMANAGER, {"slots": 4}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(greet)
        theirs = await one.greet("0.2+def", "host\na", CLIENT, {})
    assert theirs == Greeting(VERSION, "0.3+abc", "host b", TASKMANAGER, {"slots": 4})
    assert (actual[0].build, actual[0].role) == ("0.2+def", CLIENT)
    assert other.peer.startswith("host\\na at "), "no line of a log can be forged with a name"
    assert one.peer.startswith("host b at ")


@pytest.mark.parametrize(
    ("greeting", "message"),
    [
        ([], "does not speak netstack's control protocol"),
        (["netstack taskmanager", 1, "somebody"], "does not speak netstack's control protocol"),
        ([GREETING, "1", "a", "b", "c", {}], "does not speak netstack's control protocol"),
        ([GREETING, VERSION, "a", "b", {}], "greeting with 5 fields"),
        ([GREETING, VERSION, 7, "b", "c", {}], "fields of wrong types"),
        ([GREETING, VERSION, "a", "b", "c", []], "fields of wrong types"),
        ([GREETING, VERSION, "a", "b", "c", {"x": b"x" * (1 << 16)}], "FRAME_TOO_LARGE"),
    ],
)
async def test_a_greeting_that_is_none_is_refused(
    autojump_clock: MockClock, greeting: list[object], message: str
) -> None:
    stream, mine = await streams()
    peer = FrameStream(stream)
    peer.send(greeting)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.flush)
        link = ControlLink(mine, heartbeat_timeout_s=TIMEOUT_S)
        with pytest.raises(RemoteProtocolError, match=message):
            await link.greet("a", "one", CLIENT, {})


async def test_another_version_may_greet_in_another_way(autojump_clock: MockClock) -> None:
    stream, mine = await streams()
    peer = FrameStream(stream)
    peer.send([GREETING, VERSION + 1, "9.9+abc", "and", "more", "of", "it"])
    await peer.flush()
    greeting = await ControlLink(mine, heartbeat_timeout_s=TIMEOUT_S).greet("a", "one", CLIENT, {})
    assert (greeting.version, greeting.build) == (VERSION + 1, "9.9+abc")


async def test_two_idle_ends_hear_each_other_for_hours(autojump_clock: MockClock) -> None:
    async with links() as (one, other, nursery):
        received: list[Message] = []
        for link in (one, other):
            nursery.start_soon(link.run)
            nursery.start_soon(drain, link, received)
        await trio.sleep(1000)
        one.send(CloseJob("still there"))
        await trio.testing.wait_all_tasks_blocked()
        assert received == [CloseJob("still there")]


async def test_silence_is_a_lost_peer_with_a_name(autojump_clock: MockClock) -> None:
    async with links() as (one, _, nursery):  # the other end neither writes nor reads, as a host that was cut off
        nursery.start_soon(one.run)
        began = trio.current_time()
        with pytest.raises(ConnectionLost, match=r"other at memory.* silent for 9 s: its host is down"):
            await one.receive()
        assert trio.current_time() - began == TIMEOUT_S


async def test_a_long_message_that_takes_its_time_is_no_silence(autojump_clock: MockClock) -> None:
    stream, mine = await streams()
    link = ControlLink(mine, heartbeat_timeout_s=TIMEOUT_S)
    peer = FrameStream(stream)
    peer.send([GREETING, VERSION, "a", "slow", "client", {}])
    await peer.flush()
    await link.greet("a", "one", CLIENT, {})
    frame = b"\0\0\0\x0a\x92\xa7Ref"
    heard_s = (len(frame) - 1) * (TIMEOUT_S - 1)

    async def dribble() -> None:
        for byte in frame:
            stream.try_send([bytes([byte])])
            await trio.sleep(TIMEOUT_S - 1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(dribble)
        began = trio.current_time()
        with pytest.raises(ConnectionLost, match=r"slow at .* silent"):
            await link.receive()
        assert trio.current_time() - began > heard_s + TIMEOUT_S


async def test_a_pong_tells_the_clock_and_a_lost_peer_ends_the_wait(autojump_clock: MockClock) -> None:
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
        one.fail_pings()
        await trio.testing.wait_all_tasks_blocked()


async def _expect_gone(link: ControlLink) -> None:
    with pytest.raises(ConnectionLost, match="is lost"):
        await link.ping()


async def test_a_refusal_arrives_though_the_connection_ends(autojump_clock: MockClock) -> None:
    async with links() as (one, other, _):
        await other.refuse("too old")
        other.close()
        assert await one.receive() == Refused("too old")
        with pytest.raises(ConnectionLost):
            await one.receive()
        await one.refuse("nobody hears this")


async def test_receive_may_be_cancelled_at_any_byte(autojump_clock: MockClock) -> None:
    async with links() as (one, other, nursery):
        received: list[Message] = []
        for _ in range(20):
            other.send(CloseJob("r"))
        nursery.start_soon(other.run)
        while len(received) < 20:
            with trio.CancelScope() as scope:
                nursery.start_soon(_cancel_soon, scope)
                received.append(await one.receive())
        assert received == [CloseJob("r")] * 20


async def _cancel_soon(scope: trio.CancelScope) -> None:
    await trio.lowlevel.checkpoint()
    scope.cancel()


# ------------------------------------------------------------------------------------------------------ what is bounded


@pytest.mark.parametrize("told_s", [1e-9, 0.0, -1.0, float("nan"), float("inf"), "1", None, True])
async def test_a_peer_cannot_make_us_send_without_end(autojump_clock: MockClock, told_s: object) -> None:
    one, other = (ControlLink(stream, heartbeat_timeout_s=TIMEOUT_S) for stream in await streams())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other.greet, "b", "other", CLIENT, {"heartbeat_timeout_s": told_s})
        await one.greet("a", "one", TASKMANAGER, {"heartbeat_timeout_s": 3})
    assert 0.1 <= one.heartbeat_timeout_s <= TIMEOUT_S
    assert other.heartbeat_timeout_s == 3


async def test_a_flood_of_documents_leaves_everybody_else_their_turns(autojump_clock: MockClock) -> None:
    """By class: whoever reads a link passes through the scheduler at every document."""
    stream, mine = await streams()
    link = ControlLink(mine, heartbeat_timeout_s=TIMEOUT_S)
    peer = FrameStream(stream)
    peer.send([GREETING, VERSION, "a", "flooder", CLIENT, {}])
    await peer.flush()
    await link.greet("a", "one", TASKMANAGER, {})
    stream.try_send([pack(["Pong", 1, 1]) * 2000 + pack(["CloseJob", "end"])])
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        assert await link.receive() == CloseJob("end")
        nursery.cancel_scope.cancel()
    assert turns >= 1000


async def test_who_sends_much_waits_for_room_and_for_nobody_who_is_gone(autojump_clock: MockClock) -> None:
    async with links() as (one, other, nursery):
        large = OperatorEvent("j", (0, 0, 0), {"x": b"x" * (1 << 20)})
        received: list[Message] = []
        nursery.start_soon(one.run)
        nursery.start_soon(other.run)
        nursery.start_soon(drain, other, received)
        for _ in range(40):  # far more than may be unsent
            await one.wait_room()
            one.send(large)
        await trio.testing.wait_all_tasks_blocked()
        assert received == [large] * 40
        nursery.cancel_scope.cancel()
    async with links() as (one, other, nursery):
        nursery.start_soon(one.run)
        for _ in range(8):
            one.send(large)
        other.close()
        await one.wait_room()


# ------------------------------------------------------------------------------------------------------------- dialling


async def test_dialling_greets_and_compares_releases(autojump_clock: MockClock) -> None:
    listener = await transport_for("memory://dialled").listen("memory://dialled")
    actual: list[Greeting] = []

    async def serve(build: str) -> None:
        stream = await listener.accept()
        assert await read_route(stream) is None
        actual.append(await ControlLink(stream, heartbeat_timeout_s=TIMEOUT_S).greet(build, "b", JOBMANAGER, {}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, full_build(own_build()))
        _, greeting = await dial("memory://dialled", role=TASKMANAGER, name="a", facts={"slots": 1})
        assert (greeting.name, greeting.role) == ("b", JOBMANAGER)
        await trio.testing.wait_all_tasks_blocked()
        assert (actual[0].role, actual[0].facts) == (TASKMANAGER, {"slots": 1})
        nursery.start_soon(serve, "9.9+abc")
        with pytest.raises(RequestRefused, match=r"dialled runs netstack 9\.9\+abc .*: install one release"):
            await dial("memory://dialled", role=TASKMANAGER, name="a", facts={})
    listener.close()


async def test_nobody_there_or_nobody_who_answers(autojump_clock: MockClock) -> None:
    with pytest.raises(ConnectionLost):
        await dial("memory://nobody", role=CLIENT, name="a", facts={})
    listener = await transport_for("memory://mute").listen("memory://mute")
    with pytest.raises(ConnectionLost, match="mute did not answer within 3 s"):
        await dial("memory://mute", role=CLIENT, name="a", facts={}, connect_timeout_s=3)
    with pytest.raises(ConnectionLost, match=r"mute .* 3 s; .*memory://nobody"):
        await dial("memory://mute,memory://nobody", role=CLIENT, name="a", facts={}, connect_timeout_s=3)
    listener.close()
