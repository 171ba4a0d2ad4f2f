"""The control stream: every message as it was, and what is none refused."""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgpack
import pytest
import trio
import trio.testing

from netstack.checkpoint.coordinator import CheckpointSettings
from netstack.config import NetworkConfig
from netstack.control.frames import MAX_FRAME_BYTES
from netstack.errors import ConfigError, ConnectionLost, RemoteProtocolError
from netstack.events import Alignment, CheckpointBarrier, encode_event
from netstack.job.control import (
    AbortCheckpoint,
    Acknowledged,
    Cancel,
    Connect,
    Declined,
    Deploy,
    Deployed,
    Ended,
    Failed,
    Message,
    Running,
    Stopped,
    StoreFinals,
    TriggerCheckpoint,
)
from netstack.job.control_stream import StreamLink, decode, encode
from netstack.job.spec import InputSpec, Job, TaskSpec
from netstack.job.task_checkpoints import SubtaskReport
from netstack.transport import ByteStream, transport_for

_NAMES = itertools.count()

JOB = Job(
    name="j",
    tasks=(
        TaskSpec("source", "a.b:Source", {"count": 3, "names": ["x"]}, parallelism=2, workers=(0, 1)),
        TaskSpec("sink", "a.b:Sink", inputs=(InputSpec("source", "a.b:key", "int64", None),), keyed_state=True),
    ),
    checkpoints=CheckpointSettings(interval_s=0.1, unaligned=True),
    folder="/checkpoints",
    network=NetworkConfig(segment_size_bytes=1024),
)

MESSAGES: list[Message] = [
    Deploy(1, JOB, 0, 2, -1),
    Connect(1, ("tcp://a:1", "tcp://b:2")),
    TriggerCheckpoint(1, encode_event(CheckpointBarrier(7, alignment=Alignment.UNALIGNED)), (("source", 0),)),
    AbortCheckpoint(1, 7),
    StoreFinals(1, 7, (("source", 0), ("sink", 0))),
    Cancel(1),
    Deployed(1, "tcp://a:1"),
    Running(1),
    Acknowledged(1, 7, 0xFFFFFFFF, SubtaskReport("sink", 0, 0.5, timed_out=True, input_bytes=3, size_bytes=100)),
    Declined(1, 7, "sink", 0, "the disk is full"),
    Ended(1, "source", 1),
    Failed(1, "sink", 0, "ValueError: no", is_secondary=False),
    Stopped(1),
]


def virtual(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        async def main() -> None:
            with trio.fail_after(3600):
                await test(**arguments)

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    return run


@asynccontextmanager
async def streams() -> AsyncIterator[tuple[ByteStream, ByteStream]]:
    url = f"memory://control-{next(_NAMES)}"
    transport = transport_for(url)
    listener = await transport.listen(url)
    one = await transport.connect(url)
    other = await listener.accept()
    try:
        yield one, other
    finally:
        one.close()
        other.close()
        listener.close()


async def raw(stream: ByteStream, data: bytes) -> None:
    while data:
        await stream.wait_writable()
        data = data[stream.try_send((data,)) :]


def framed(document: Any) -> bytes:
    body = msgpack.packb(document)
    return struct.pack(">I", len(body)) + body


@virtual
async def test_messages_arrive_as_they_were() -> None:
    async with streams() as (one, other), trio.open_nursery() as nursery:
        near, far = StreamLink(one), StreamLink(other)
        async with trio.open_nursery() as both:
            both.start_soon(near.greet, "near")
            assert await far.greet("far") == "near"
        assert near.peer.startswith("far at memory://")
        nursery.start_soon(near.run)
        for message in MESSAGES:
            near.send(message)
        assert [await far.receive() for _ in MESSAGES] == MESSAGES
        near.send(Failed(1, "", 0, "OSError: x", is_secondary=True, error=OSError("x")))
        assert await far.receive() == Failed(1, "", 0, "OSError: x", is_secondary=True)  # the error itself stays here
        near.close()
        with pytest.raises(ConnectionLost, match=r"near at .* ended its control stream"):
            await far.receive()
        with pytest.raises(ConnectionLost):
            await near.receive()
        near.send(Running(1))  # nobody hears it, and nothing happens
        nursery.cancel_scope.cancel()


@virtual
async def test_a_large_job_goes_through_a_full_pipe() -> None:
    large = Job(tasks=(TaskSpec("source", "a.b:Source", {"text": "x" * (3 << 20)}),))
    async with streams() as (one, other), trio.open_nursery() as nursery:
        near, far = StreamLink(one), StreamLink(other)
        nursery.start_soon(near.run)
        near.send(Deploy(1, large, 0, 1, -1))
        near.send(Running(1))
        assert await far.receive() == Deploy(1, large, 0, 1, -1)
        assert await far.receive() == Running(1)
        nursery.cancel_scope.cancel()


@virtual
async def test_what_cannot_be_sent_is_refused_here() -> None:
    async with streams() as (one, _):
        link = StreamLink(one)
        for job, text in (
            (Job(tasks=(TaskSpec("source", "a.b:Source", {"text": "x" * (5 << 20)}),)), "is the most"),
            (Job(tasks=(TaskSpec("source", "a.b:Source", {"text": object()}),)), "give plain data"),
            (Job(tasks=(TaskSpec("source", StreamLink),)), "give its name"),
        ):
            with pytest.raises(ConfigError, match=text):
                link.send(Deploy(1, job, 0, 1, -1))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (framed(["Cancel"]), "MALFORMED_FRAME: Cancel"),
        (framed(["Cancel", 1, 2]), "MALFORMED_FRAME: Cancel"),
        (framed(["Cancel", "1"]), "'1' is no int"),
        (framed(["Cancel", True]), "True is no int"),
        (framed(["Nonsense", 1]), "UNEXPECTED_FRAME"),
        (framed([]), "UNEXPECTED_FRAME"),
        (framed([["Cancel"], 1]), "UNEXPECTED_FRAME"),
        (framed({"Cancel": 1}), "not a list"),
        (framed(["StoreFinals", 1, 2, [["a"]]]), "MALFORMED_FRAME: StoreFinals"),
        (framed(["Connect", 1, [1]]), "1 is no str"),
        (framed(["Deploy", 1, {"name": "x"}, 0, 1, -1]), "this is no job of this release"),
        (framed(["Acknowledged", 1, 2, 3, ["a", 1]]), "MALFORMED_FRAME: Acknowledged"),
        (struct.pack(">I", 3) + b"\xc1\xc1\xc1", "not msgpack"),
        (struct.pack(">I", 1 << 31), "FRAME_TOO_LARGE"),
        (struct.pack(">I", MAX_FRAME_BYTES + 1), "FRAME_TOO_LARGE"),
        (b"NSA1" + bytes(32), "wants a shared secret to be proven first"),
    ],
)
@virtual
async def test_what_is_no_message_is_refused(data: bytes, text: str) -> None:
    async with streams() as (one, other):
        await raw(one, data)
        with pytest.raises(RemoteProtocolError, match=text):
            await StreamLink(other).receive()


@virtual
async def test_an_end_inside_a_frame_is_a_lost_connection() -> None:
    async with streams() as (one, other):
        await raw(one, framed(["Cancel", 1])[:-1])
        one.close()
        with pytest.raises(ConnectionLost):
            await StreamLink(other).receive()


@pytest.mark.parametrize(
    ("greeting", "text"),
    [
        (["netstack control", 99, "x"], "VERSION_MISMATCH: .* speaks version 99"),
        (["netstack control", 1], "does not speak"),
        (["netstack control", 1, 5], "does not speak"),
        (["http", 1, "x"], "does not speak"),
    ],
)
@virtual
async def test_strangers_are_told_apart(greeting: list[Any], text: str) -> None:
    async with streams() as (one, other):
        await raw(one, framed(greeting))
        with pytest.raises(RemoteProtocolError, match=text):
            await StreamLink(other).greet("master")


def test_a_document_tells_the_kind_first() -> None:
    assert encode(Cancel(4)) == ["Cancel", 4]
    assert decode(["Cancel", 4]) == Cancel(4)
