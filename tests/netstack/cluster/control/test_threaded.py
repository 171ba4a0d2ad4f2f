"""A link in a thread: whoever computes beside it loses no sign of life, and nothing that was said."""

from __future__ import annotations

import contextlib
import queue
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from netstack.base.errors import ConfigError, ConnectionLost
from netstack.base.transport import Listener, transport_for
from netstack.cluster.control import threaded
from netstack.cluster.control.build import own_build
from netstack.cluster.control.codec import Message
from netstack.cluster.control.link import JOBMANAGER, TASKMANAGER, ControlLink, Greeting, dial, full_build
from netstack.cluster.control.messages import CloseJob, OperatorEvent
from netstack.cluster.control.routing import read_route
from netstack.cluster.control.threaded import ThreadedLink, open_threaded
from netstack.network.waiting.threads import background_tasks

TIMEOUT_S = 0.6
PATIENCE_S = 60.0


@asynccontextmanager
async def ends() -> AsyncIterator[tuple[ThreadedLink, ControlLink, trio.Nursery]]:
    """A threaded end, and the other one in this loop."""
    listener = await transport_for("tcp://127.0.0.1:0").listen("tcp://127.0.0.1:0")
    other: list[ControlLink] = []
    try:
        async with background_tasks() as nursery:
            nursery.start_soon(_accept, listener, other, PATIENCE_S)
            connect = partial(
                dial, listener.address, role=TASKMANAGER, name="tm", facts={}, heartbeat_timeout_s=PATIENCE_S
            )
            async with open_threaded(connect) as link:
                nursery.start_soon(other[0].run)
                yield link, other[0], nursery
    finally:
        listener.close()


async def _accept(listener: Listener, into: list[ControlLink], timeout_s: float) -> None:
    stream = await listener.accept()
    await read_route(stream)
    link = ControlLink(stream, heartbeat_timeout_s=timeout_s)
    await link.greet(full_build(own_build()), "jm", JOBMANAGER, {})
    into.append(link)


async def _never() -> tuple[ControlLink, Greeting]:
    raise AssertionError("this link has no thread")


async def test_messages_cross_both_ways_in_order() -> None:
    async with ends() as (link, other, _):
        assert (link.greeting.role, link.greeting.name) == (JOBMANAGER, "jm")
        assert link.peer.startswith("jm at ")
        for number in range(200):
            link.send(CloseJob(f"to {number}"))
            other.send(CloseJob(f"from {number}"))
        assert [await other.receive() for _ in range(200)] == [CloseJob(f"to {number}") for number in range(200)]
        assert [await link.receive() for _ in range(200)] == [CloseJob(f"from {number}") for number in range(200)]
        with pytest.raises(ConfigError, match="cannot be sent"):
            link.send(OperatorEvent("j", (0, 0, 0), {"x": object()}))


async def test_a_message_that_comes_with_the_end_while_somebody_looks_is_received() -> None:
    link = ThreadedLink(_never)

    class Inbox(deque[tuple[Message, int]]):
        """Empty at the first look; then the thread adds a message, and the connection ends."""

        def __bool__(self) -> bool:
            if link.failure is not None:
                return len(self) > 0
            self.append((CloseJob("last"), 0))
            link.failure = ConnectionLost("it has ended")
            link._call_here(link._wake_all)
            return False

    link._inbox = Inbox()
    assert await link.receive() == CloseJob("last")
    with pytest.raises(ConnectionLost, match="it has ended"):
        await link.receive()


@pytest.mark.slow
@pytest.mark.long  # only time can show it
async def test_who_computes_for_long_is_heard_all_the_while() -> None:
    """This loop stands still for three heartbeat timeouts, in Python that lets go of nothing by itself."""
    address: queue.Queue[str] = queue.Queue()

    def serve() -> None:
        trio.run(_echo, address)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, serve)
        url = await trio.to_thread.run_sync(address.get)
        connect = partial(dial, url, role=TASKMANAGER, name="tm", facts={}, heartbeat_timeout_s=TIMEOUT_S)
        async with open_threaded(connect) as link:
            link.send(CloseJob("before"))
            until_s = time.monotonic() + 3 * TIMEOUT_S
            while time.monotonic() < until_s:
                pass
            link.send(CloseJob("after"))
            assert [await link.receive() for _ in range(2)] == [CloseJob("before"), CloseJob("after")]


async def _echo(address: queue.Queue[str]) -> None:
    """In another thread: says what it hears."""
    listener = await transport_for("tcp://127.0.0.1:0").listen("tcp://127.0.0.1:0")
    address.put(listener.address)
    accepted: list[ControlLink] = []
    await _accept(listener, accepted, TIMEOUT_S)
    listener.close()
    (link,) = accepted
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        with contextlib.suppress(ConnectionLost):
            while True:
                link.send(await link.receive())
        nursery.cancel_scope.cancel()


async def test_what_is_not_taken_is_bounded_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threaded, "INBOX_BYTES", 1 << 16)
    async with ends() as (link, other, nursery):
        large = OperatorEvent("j", (0, 0, 0), {"x": b"x" * (1 << 14)})

        async def send() -> None:
            for _ in range(1000):
                await other.wait_room()
                other.send(large)

        nursery.start_soon(send)
        while link._inbox_bytes < threaded.INBOX_BYTES:  # the thread reads no further
            await trio.lowlevel.checkpoint()
        assert [await link.receive() for _ in range(1000)] == [large] * 1000
        for _ in range(1000):
            await link.wait_room()
            link.send(large)
        assert [await other.receive() for _ in range(1000)] == [large] * 1000


async def test_a_peer_that_goes_is_told_after_what_it_said() -> None:
    async with ends() as (link, other, _):
        other.send(CloseJob("the last word"))
        while not link._inbox:
            await trio.lowlevel.checkpoint()
        other.close()
        assert await link.receive() == CloseJob("the last word")
        for _ in range(2):
            with pytest.raises(ConnectionLost, match=r"jm at .* closed the"):
                await link.receive()
        link.send(CloseJob("nobody hears this"))
        await link.wait_room()


async def test_nobody_there_and_a_dialling_that_is_cancelled() -> None:
    listener = await transport_for("tcp://127.0.0.1:0").listen("tcp://127.0.0.1:0")
    connect = partial(dial, listener.address, role=TASKMANAGER, name="tm", facts={})
    with trio.move_on_after(0.1) as waited:  # nobody greets
        async with open_threaded(connect):
            raise AssertionError("nobody is there")
    assert waited.cancelled_caught
    listener.close()
    with pytest.raises(ConnectionLost):
        async with open_threaded(connect):
            raise AssertionError("nobody is there")


async def test_the_block_s_own_error_leaves_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        async with ends() as (_, _, _):
            raise ZeroDivisionError
