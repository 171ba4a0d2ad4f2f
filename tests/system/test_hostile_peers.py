"""Broken and hostile peers over real TCP: a typed error for them alone, everybody else goes on, nothing is lost.

The peers here are raw sockets and write their frames with `struct`, from the tables of `wire/SPEC.md`: they share no
code with what they attack. Around every attack an honest TaskManager reads from the victim and writes to it; `victim`
checks that it never notices, and that buffers and file descriptors are all back afterwards.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import random
import socket
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import pytest
import trio
import trio.testing

from netstack import (
    ChannelDescriptor,
    ChannelFailed,
    CheckpointBarrier,
    ConfigError,
    ConnectionLost,
    EndOfData,
    ErrorCode,
    InsufficientBuffers,
    NetworkConfig,
    PartitionNotFound,
    ProducerFailed,
    RecordReader,
    RecordWriter,
    RemoteProtocolError,
    TaskManager,
    UserEvent,
    open_task_manager,
)
from netstack.buffer.requirements import LANDING_SEGMENTS
from netstack.events import encode_event
from netstack.inbound.gate import SingleInputGate

SEGMENT = 1024
CONFIG = NetworkConfig(
    segment_size_bytes=SEGMENT,
    memory_bytes=128 * SEGMENT,
    floating_buffers_per_gate=4,
    heartbeat_interval_s=None,
)
ANY_PORT = "tcp://127.0.0.1:0"
LIMIT_S = 10  # for a test that hangs; they take milliseconds
SHORT_S = 0.2  # timeouts that have to pass here, and still suffice for the honest on a busy machine

# The wire, once more.

HEADER = struct.Struct(">IBBHIIII")
HELLO, BUFFER, OPEN, CREDIT, RESUME, ACKNOWLEDGE, CANCEL = 0x6E, 1, 2, 3, 4, 5, 6
BACKLOG, CHANNEL_ERROR, CONNECTION_ERROR, PING, PONG, GOODBYE = 7, 8, 9, 10, 11, 12
DATA, EVENT, PRIORITY, ALIGNED, END_OF_DATA, END_OF_PARTITION = 1, 2, 3, 4, 9, 10


class Got(NamedTuple):
    """A frame that arrived."""

    kind: int
    data_type: int
    channel: int
    sequence: int
    backlog: int
    payload: bytes

    @property
    def error(self) -> tuple[ErrorCode, str]:
        return ErrorCode(int.from_bytes(self.payload[:2], "big")), self.payload[2:].decode()


def frame(kind: int, payload: bytes = b"", *, channel: int = 0, length: int | None = None) -> bytes:
    return HEADER.pack(len(payload) if length is None else length, kind, 0, 0, channel, 0, 0, 0) + payload


def buffer(
    channel: int, sequence: int, payload: bytes, data_type: int = DATA, *, backlog: int = 0, checksum: int = 0
) -> bytes:
    return HEADER.pack(len(payload), BUFFER, data_type, 0, channel, sequence, backlog, checksum) + payload


def hello(version: int = 2, segment: int = SEGMENT, features: int = 1) -> bytes:
    return frame(HELLO, struct.pack(">8sHIIB", b"netstack", version, segment, features, 3) + b"raw")


def opening(channel: int, name: str, subpartition: int = 0, credit: int = 100) -> bytes:
    return frame(OPEN, struct.pack(">IIB", subpartition, credit, len(name)) + name.encode(), channel=channel)


def credit(channel: int, count: int) -> bytes:
    return frame(CREDIT, struct.pack(">II", channel, count))


def record(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


class Raw:
    """One end of a TCP stream that follows no rules."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._received = bytearray()

    async def send(self, *parts: bytes) -> None:
        await self.stream.send_all(b"".join(parts))

    async def _fill(self, size: int) -> bool:
        while len(self._received) < size:
            part = await self.stream.receive_some()
            if not part:
                return False
            self._received += part
        return True

    async def next(self) -> Got | None:
        """The next frame; None at the end of the stream."""
        if not await self._fill(HEADER.size):
            assert not self._received
            return None
        length, kind, data_type, reserved, channel, sequence, backlog, _ = HEADER.unpack_from(self._received)
        assert await self._fill(HEADER.size + length)
        payload = bytes(self._received[HEADER.size : HEADER.size + length])
        del self._received[: HEADER.size + length]
        assert reserved == 0
        return Got(kind, data_type, channel, sequence, backlog, payload)

    async def expect(self, kind: int, channel: int = 0) -> Got:
        """The next frame of this kind and channel; earlier ones of other channels are skipped, none may end it."""
        while True:
            got = await self.next()
            assert got is not None, f"the stream ended before a frame of kind {kind}"
            if (got.kind, got.channel) == (kind, channel):
                return got
            assert got.kind != CONNECTION_ERROR, got.error
            assert got.channel != channel or got.kind in (HELLO, BUFFER, CREDIT), got

    async def connection_error(self) -> tuple[ErrorCode, str]:
        """Why the victim closes the connection, which it then does."""
        while (got := await self.next()) is not None:
            if got.kind == CONNECTION_ERROR:
                assert await self.next() is None
                return got.error
        raise AssertionError("the stream ended without a reason")

    async def until_closed(self) -> list[Got]:
        """Every frame up to the end, or the reset, of the stream."""
        frames = []
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while (got := await self.next()) is not None:
                frames.append(got)
        return frames

    def reset(self) -> None:
        """Closes with a reset instead of an end."""
        self.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.stream.socket.close()


# The rig.

P = ParamSpec("P")


def attack(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Runs an async test, which leaves as many descriptors as it found."""

    @functools.wraps(test)
    def run(*args: P.args, **options: P.kwargs) -> None:
        async def limited() -> None:
            with trio.fail_after(LIMIT_S):
                await test(*args, **options)

        before = descriptors()
        trio.run(limited)
        assert descriptors() == before

    return run


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what real sockets do in their own time."""
    while not condition():
        await trio.testing.wait_all_tasks_blocked(0.001)


def lent(manager: TaskManager) -> int:
    return manager.statistics().pool.lent_segments


async def write(manager: TaskManager, name: str, records: list[bytes]) -> None:
    writer = RecordWriter(manager.create_partition(name, subpartitions=1), buffer_timeout_s=0)
    for item in records:
        await writer.emit(item)
    await writer.finish()
    await writer.wait_consumed()


async def read(gate: SingleInputGate) -> list[bytes]:
    with contextlib.closing(gate):
        return [item async for item in RecordReader(gate)]


RECORDS = [b"%d" % number * 50 for number in range(40)]


@asynccontextmanager
async def victim(config: NetworkConfig = CONFIG) -> AsyncIterator[TaskManager]:
    """A TaskManager to attack; an honest one reads from it and writes to it before and after."""
    async with open_task_manager(ANY_PORT, config) as manager, open_task_manager(ANY_PORT, config) as honest:
        first = manager.create_partition("from the victim", subpartitions=1)
        second = honest.create_partition("to the victim", subpartitions=1)
        reading = await honest.open_gate([ChannelDescriptor(manager.address, "from the victim")])
        writing = await manager.open_gate([ChannelDescriptor(honest.address, "to the victim")])
        assert len(manager.statistics().accepted) == 1
        yield manager
        await until(lambda: len(manager.statistics().accepted) == 1)
        for partition, gate in ((first, reading), (second, writing)):
            writer = RecordWriter(partition, buffer_timeout_s=0)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_check_delivery, gate)
                for item in RECORDS:
                    await writer.emit(item)
                await writer.finish()
                await writer.wait_consumed()
        await until(lambda: lent(manager) == lent(honest) == 0)


async def _check_delivery(gate: SingleInputGate) -> None:
    assert await read(gate) == RECORDS


@asynccontextmanager
async def dialled(manager: TaskManager, *first: bytes) -> AsyncIterator[Raw]:
    """A raw consumer of the victim, which has said `first`."""
    host, port = manager.address.removeprefix("tcp://").rsplit(":", 1)
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        raw = Raw(stream)
        await raw.send(*first)
        yield raw


@asynccontextmanager
async def two_channels(manager: TaskManager) -> AsyncIterator[tuple[Raw, RecordWriter, RecordWriter]]:
    """A raw consumer with the channels 0 and 1 open on one connection, and who writes to them."""
    writers = [
        RecordWriter(manager.create_partition(f"p{number}", subpartitions=1), buffer_timeout_s=0) for number in range(2)
    ]
    async with dialled(manager, hello(), opening(0, "p0"), opening(1, "p1")) as raw:
        await raw.expect(HELLO)
        for number, writer in enumerate(writers):
            await writer.emit(b"first")
            assert (await raw.expect(BUFFER, number)).payload == record(b"first")
        yield raw, writers[0], writers[1]
        # The other channel goes on, with the right sequence number.
        await writers[1].emit(b"second")
        got = await raw.expect(BUFFER, 1)
        assert (got.payload, got.sequence) == (record(b"second"), 1)
    for writer in writers:
        writer.partition.release()
        writer.close()


def names_peer(text: str) -> None:
    """The object an error is about: who is at the other end."""
    assert "tcp://127.0.0.1:" in text, text


# 1. Consumers that attack a producer.

FOREIGN = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "TLS": bytes.fromhex("16030100c8010000c403035f") + bytes(32),
    "ZMTP": bytes.fromhex("ff00000000000000017f0300") + bytes(52),
    "Flink": bytes.fromhex("0000002abadc0ffe02") + bytes(33),
    "another protocol": random.Random(7).randbytes(200),
}


@pytest.mark.parametrize("protocol", FOREIGN)
@attack
async def test_another_protocol(protocol: str) -> None:
    async with victim() as manager, dialled(manager, FOREIGN[protocol]) as raw:
        code, text = await raw.connection_error()
        assert code is ErrorCode.NOT_NETSTACK
        names_peer(text)
        assert protocol in text
        assert "check the address and port" in text


@attack
async def test_random_bytes_after_the_hello() -> None:
    chance = random.Random(11)
    async with victim() as manager:
        for _ in range(20):
            async with dialled(manager, hello(), chance.randbytes(chance.randrange(24, 3000))) as raw:
                with contextlib.suppress(trio.BrokenResourceError):
                    await raw.stream.send_eof()
                errors = [got.error[0] for got in await raw.until_closed() if got.kind == CONNECTION_ERROR]
                # A reset may overtake the reason: then nothing is left of the connection all the same.
                assert set(errors) <= {
                    ErrorCode.FRAME_TOO_LARGE,
                    ErrorCode.MALFORMED_FRAME,
                    ErrorCode.TRUNCATED_STREAM,
                }


@attack
async def test_another_version() -> None:
    async with victim() as manager, dialled(manager, hello(version=1)) as raw:
        code, text = await raw.connection_error()
        assert code is ErrorCode.VERSION_MISMATCH
        names_peer(text)
        assert "(raw) speaks protocol version 1, we speak 2; run the same netstack release on both sides" in text


@attack
async def test_another_segment_size() -> None:
    async with victim() as manager, dialled(manager, hello(segment=2 * SEGMENT)) as raw:
        code, text = await raw.connection_error()
        assert code is ErrorCode.SEGMENT_SIZE_MISMATCH
        assert "2048 bytes, we use 1024; set segment_size_bytes to the same value on both sides" in text


@pytest.mark.parametrize("first", [b"", hello()[:40]], ids=["nothing", "half a hello"])
@attack
async def test_a_peer_that_says_no_hello(first: bytes) -> None:
    async with victim(replace(CONFIG, handshake_timeout_s=SHORT_S)) as manager, dialled(manager, first) as raw:
        assert (await raw.expect(HELLO)).kind == HELLO
        assert await raw.until_closed() == []


@pytest.mark.parametrize("length", [0, 3, 24, len(hello()) - 1, len(hello()), len(hello()) + 30])
@attack
async def test_a_stream_that_ends_too_early(length: int) -> None:
    async with victim() as manager, dialled(manager, (hello() + opening(0, "p"))[:length]) as raw:
        await raw.stream.send_eof()
        code, text = await raw.connection_error()
        assert code is ErrorCode.TRUNCATED_STREAM
        names_peer(text)


WRONG = {
    "a control frame too long": (frame(PING, length=20_000), ErrorCode.FRAME_TOO_LARGE, "20000 bytes"),
    "four gigabytes": (frame(CREDIT, length=2**32 - 1), ErrorCode.FRAME_TOO_LARGE, "the most here is 16384"),
    "an event too long": (
        HEADER.pack(20_000, BUFFER, EVENT, 0, 0, 0, 0, 0),
        ErrorCode.FRAME_TOO_LARGE,
        "event of 20000 bytes",
    ),
    "an unknown kind": (frame(77), ErrorCode.MALFORMED_FRAME, "type 77"),
    "credit for nobody": (frame(CREDIT), ErrorCode.MALFORMED_FRAME, "no channel in it"),
    "a name that is no text": (
        frame(OPEN, struct.pack(">IIB", 0, 1, 2) + b"\xff\xfe"),
        ErrorCode.MALFORMED_FRAME,
        "utf-8",
    ),
    "data from a consumer": (buffer(0, 0, b""), ErrorCode.UNEXPECTED_FRAME, "data buffer"),
    "an event from a consumer": (
        buffer(0, 0, b"\0", END_OF_PARTITION),
        ErrorCode.UNEXPECTED_FRAME,
        "a consumer sent an event",
    ),
    "a producer's frame": (
        frame(BACKLOG, b"\0\0\0\1"),
        ErrorCode.UNEXPECTED_FRAME,
        "a consumer does not send BacklogAnnouncement",
    ),
    "hello again": (hello(), ErrorCode.UNEXPECTED_FRAME, "a hello comes first"),
    "more after goodbye": (
        frame(GOODBYE) + frame(PING, bytes(8)),
        ErrorCode.UNEXPECTED_FRAME,
        "nothing follows a goodbye",
    ),
}


@pytest.mark.parametrize("name", WRONG)
@attack
async def test_what_breaks_the_stream_ends_this_connection_only(name: str) -> None:
    data, expected, hint = WRONG[name]
    async with victim() as manager, dialled(manager, hello()) as raw:
        await raw.send(data)
        code, text = await raw.connection_error()
        assert code is expected
        assert hint in text


@pytest.mark.parametrize(
    ("name", "subpartition", "expected", "hint"),
    [
        ("nowhere", 0, ErrorCode.PARTITION_NOT_FOUND, "no partition 'nowhere' was created within 0.2 s"),
        ("p1", 7, ErrorCode.SUBPARTITION_OUT_OF_RANGE, "subpartitions 0 to 0"),
        ("p1", 0, ErrorCode.SUBPARTITION_CONSUMED, "pipelined data is read once"),
    ],
)
@attack
async def test_what_is_not_there_fails_one_channel(
    name: str, subpartition: int, expected: ErrorCode, hint: str
) -> None:
    config = replace(CONFIG, partition_request_timeout_s=SHORT_S)
    async with victim(config) as manager, two_channels(manager) as (raw, _, _):
        await raw.send(opening(2, name, subpartition))
        code, text = (await raw.expect(CHANNEL_ERROR, 2)).error
        assert code is expected
        assert hint in text
        await raw.send(credit(2, 1), frame(CANCEL, channel=2))  # too late, and no harm


MISUSE = {
    "channel opened twice": (
        opening(0, "p0"),
        ErrorCode.CHANNEL_IN_USE,
        "channel 0 was opened twice; every channel needs a number of its own",
    ),
    "credit overflow": (credit(0, 2**32 - 1), ErrorCode.CREDIT_VIOLATION, "4294967295 credits announced on top of 99"),
    "credit of nothing": (credit(0, 0), ErrorCode.CREDIT_VIOLATION, "0 credits announced on top of 99; expected 1"),
    "resume while not blocked": (
        frame(RESUME, channel=0),
        ErrorCode.UNEXPECTED_FRAME,
        "subpartition 0 is not blocked; resume follows a blocking event, once",
    ),
}


@pytest.mark.parametrize("name", MISUSE)
@attack
async def test_misuse_of_a_channel_fails_this_channel_only(name: str) -> None:
    data, expected, hint = MISUSE[name]
    async with victim() as manager, two_channels(manager) as (raw, first, _):
        await raw.send(data)
        code, text = (await raw.expect(CHANNEL_ERROR, 0)).error
        assert code is expected
        assert hint in text
        await first.emit(b"for nobody")  # its consumer is gone; nothing of it may reach the wire
        await raw.send(frame(PING, bytes(8)))
        await raw.expect(PONG)
        (sending,) = [
            found
            for found in manager.statistics().accepted
            if len(found.channels) == 1 and found.channels[0].partition_id == "p1"
        ]
        assert [channel.channel for channel in sending.channels] == [1]


@pytest.mark.parametrize("kind", [CREDIT, RESUME, ACKNOWLEDGE, CANCEL])
@attack
async def test_a_channel_number_that_was_never_opened(kind: int) -> None:
    async with victim() as manager, two_channels(manager) as (raw, _, _):
        await raw.send(credit(99, 1) if kind == CREDIT else frame(kind, channel=99))
        code, text = (await raw.expect(CHANNEL_ERROR, 99)).error
        assert code is ErrorCode.UNKNOWN_CHANNEL
        assert "channel 99 was never opened on this connection" in text


@pytest.mark.parametrize("kind", [CREDIT, RESUME, ACKNOWLEDGE, CANCEL])
@attack
async def test_frames_that_crossed_a_cancel_are_ignored(kind: int) -> None:
    async with victim() as manager, two_channels(manager) as (raw, _, _):
        late = credit(0, 1) if kind == CREDIT else frame(kind, channel=0)
        await raw.send(frame(CANCEL, channel=0), late, late, frame(PING, bytes(8)))
        while (got := await raw.next()) is not None and got.kind != PONG:
            assert got.kind == BUFFER
        assert got is not None


@attack
async def test_more_channels_than_allowed() -> None:
    config = replace(CONFIG, max_channels_per_connection=2)
    async with victim(config) as manager, two_channels(manager) as (raw, _, _):
        await raw.send(opening(2, "p0"))
        code, text = (await raw.expect(CHANNEL_ERROR, 2)).error
        assert code is ErrorCode.CHANNEL_IN_USE
        assert "more than 2 channels" in text


@attack
async def test_nothing_is_sent_without_credit() -> None:
    async with victim() as manager:
        writer = RecordWriter(manager.create_partition("p", subpartitions=1), buffer_timeout_s=0)
        async with dialled(manager, hello(), opening(0, "p", credit=1)) as raw:
            await raw.expect(HELLO)
            await writer.emit(b"1")
            assert (await raw.expect(BUFFER)).payload == record(b"1")
            await writer.emit(b"2")
            await raw.send(frame(PING, bytes(8)))
            assert (await raw.next())[0] == PONG  # type: ignore[index]
            await raw.send(credit(0, 1))
            got = await raw.expect(BUFFER)
            assert (got.payload, got.sequence) == (record(b"2"), 1)
        writer.partition.release()
        writer.close()


@attack
async def test_a_blocked_channel_goes_on_when_resumed() -> None:
    """The honest counterpart of a resume out of place."""
    async with victim() as manager, two_channels(manager) as (raw, first, _):
        await first.broadcast_event(CheckpointBarrier(1))
        assert (await raw.expect(BUFFER, 0)).data_type == ALIGNED
        await first.emit(b"behind")
        await raw.send(frame(PING, bytes(8)))
        assert (await raw.next())[0] == PONG  # type: ignore[index]
        await raw.send(frame(RESUME, channel=0))
        got = await raw.expect(BUFFER, 0)
        assert (got.payload, got.sequence) == (record(b"behind"), 2)


@attack
async def test_a_peer_that_asks_and_never_reads() -> None:
    """A flood of pings, and of frames for channels nobody opened, while nothing is read: bounded, and others go on."""
    async with victim() as manager, two_channels(manager) as (raw, first, _):
        await raw.send(*(frame(PING, number.to_bytes(8, "big")) for number in range(20_000)))
        await raw.send(frame(CREDIT, struct.pack(">II", 99, 1) * 2000), frame(PING, b"the last"))
        for number in range(10):
            await first.emit(bytes(500) + bytes([number]))
        pongs = 0
        while (got := await raw.next()) is not None:
            pongs += got.kind == PONG
            if got.payload == b"the last":
                break
        assert 0 < pongs < 20_000


@pytest.mark.parametrize("how", ["reset", "close"])
@attack
async def test_a_peer_that_is_gone_in_the_middle_of_data(how: str) -> None:
    """Buffers on their way to a peer that vanishes come back."""
    async with victim() as manager:
        before = lent(manager)
        partition = manager.create_partition("p", subpartitions=1)
        writer = RecordWriter(partition, buffer_timeout_s=0)
        async with dialled(manager, hello(), opening(0, "p", credit=1000)) as raw:
            await raw.expect(HELLO)
            await writer.emit(b"one")
            await raw.expect(BUFFER)
            raw.reset() if how == "reset" else raw.stream.socket.close()
        for _ in range(8):
            writer.emit_nowait(bytes(900))
        await until(lambda: len(manager.statistics().accepted) == 1)
        partition.release()
        writer.close()
        await until(lambda: lent(manager) == before)


@attack
async def test_a_peer_that_stops_reading_holds_its_own_partition_only() -> None:
    async with victim(replace(CONFIG, memory_bytes=1024 * SEGMENT)) as manager:
        before = lent(manager)
        partition = manager.create_partition("p", subpartitions=1)
        writer = RecordWriter(partition, buffer_timeout_s=None)
        async with dialled(manager, hello(), opening(0, "p", credit=2**31)) as raw:
            await raw.expect(HELLO)
            stuck = False
            for _ in range(1000):
                with trio.move_on_after(0.05) as scope:
                    for _ in range(200):
                        await writer.emit(bytes(SEGMENT - 4))
                if scope.cancelled_caught:
                    stuck = True
                    break
            assert stuck, "the writer never had to wait"
            assert lent(manager) - before <= partition.statistics().pool.size + 5
        partition.release()
        writer.close()
        await until(lambda: lent(manager) == before)


@attack
async def test_a_peer_that_closes_with_an_error() -> None:
    async with victim() as manager, dialled(manager, hello(), opening(0, "nowhere")) as raw:
        await raw.send(frame(CONNECTION_ERROR, b"\x00\x13on purpose"))
        await raw.until_closed()
        await until(lambda: len(manager.statistics().accepted) == 1)


@attack
async def test_a_goodbye_is_answered() -> None:
    """The victim ends its direction too, also when the other one stays open."""
    async with victim() as manager, dialled(manager, hello(), frame(GOODBYE)) as raw:
        assert [got.kind for got in await raw.until_closed()] == [HELLO, GOODBYE]
        await raw.stream.send_eof()


@attack
async def test_many_connections_that_say_nothing() -> None:
    async with victim(replace(CONFIG, handshake_timeout_s=SHORT_S)) as manager, contextlib.AsyncExitStack() as stack:
        before = lent(manager)
        raws = [await stack.enter_async_context(dialled(manager)) for _ in range(50)]
        for raw in raws:
            await raw.expect(HELLO)
            assert lent(manager) == before, "who only dials costs no buffer"
        for raw in raws:
            assert await raw.until_closed() == []


# 2. Producers that attack a consumer.


class Server:
    """A raw producer: a listening socket that accepts and then follows no rules."""

    def __init__(self, listener: trio.SocketListener) -> None:
        self._listener = listener
        self.address = f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"

    async def accept(self) -> Raw:
        return Raw(await self._listener.accept())


@asynccontextmanager
async def server() -> AsyncIterator[Server]:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        yield Server(listener)


Failure = TypeVar("Failure", ConnectionLost, RemoteProtocolError)


async def fails_to_open(manager: TaskManager, address: str, kind: type[Failure]) -> Failure:
    with pytest.raises(kind) as caught:
        await manager.open_gate([ChannelDescriptor(address, "p")])
    assert address in str(caught.value)
    return caught.value


@pytest.mark.parametrize("protocol", [*FOREIGN, "SMTP"])
@attack
async def test_dialling_another_protocol(protocol: str) -> None:
    greeting = FOREIGN.get(protocol, b"220 mail.example ESMTP\r\n")
    async with victim() as manager, server() as hostile, trio.open_nursery() as nursery:

        async def answer() -> None:
            async with (await hostile.accept()).stream as stream:
                await stream.send_all(greeting)
                code, _ = await Raw(stream).connection_error()
                assert code is ErrorCode.NOT_NETSTACK

        nursery.start_soon(answer)
        error = await fails_to_open(manager, hostile.address, RemoteProtocolError)
        assert error.code is ErrorCode.NOT_NETSTACK
        assert "check the address and port" in str(error)


@pytest.mark.parametrize(
    ("first", "expected", "hint"),
    [
        (hello(version=9), ErrorCode.VERSION_MISMATCH, "run the same netstack release"),
        (hello(segment=512), ErrorCode.SEGMENT_SIZE_MISMATCH, "set segment_size_bytes"),
        (b"", ErrorCode.TRUNCATED_STREAM, "in state greeting"),
        (hello()[:30], ErrorCode.TRUNCATED_STREAM, "in the middle of a frame"),
        (
            hello() + frame(CONNECTION_ERROR, b"\x00\x13no room"),
            ErrorCode.INTERNAL,
            "closed the connection: no room",
        ),
    ],
)
@attack
async def test_dialling_who_does_not_fit(first: bytes, expected: ErrorCode, hint: str) -> None:
    async with victim() as manager, server() as hostile, trio.open_nursery() as nursery:

        async def answer() -> None:
            async with (await hostile.accept()).stream as stream:
                await stream.send_all(first)
                await stream.send_eof()
                await Raw(stream).until_closed()

        nursery.start_soon(answer)
        error = await fails_to_open(manager, hostile.address, RemoteProtocolError)
        assert error.code is expected
        assert hint in str(error)


@pytest.mark.parametrize("setting", ["connect_timeout_s", "handshake_timeout_s"])
@attack
async def test_dialling_who_says_nothing(setting: str) -> None:
    config = replace(CONFIG, **{setting: SHORT_S})
    async with victim(config) as manager, server() as hostile:
        error = await fails_to_open(manager, hostile.address, ConnectionLost)
        assert f"within {SHORT_S:g} s" in str(error)
        raw = await hostile.accept()
        # A hello that comes now finds nobody, and costs nothing.
        with contextlib.suppress(trio.BrokenResourceError):
            await raw.send(hello())
        await raw.until_closed()
        await raw.stream.aclose()


@attack
async def test_dialling_nobody() -> None:
    async with victim() as manager:
        async with server() as hostile:
            pass
        error = await fails_to_open(manager, hostile.address, ConnectionLost)
        assert "Connection refused; is a TaskManager listening there?" in str(error)


class Attacked(NamedTuple):
    """A victim that reads the channels 0 and 1 of a raw producer."""

    raw: Raw
    manager: TaskManager
    gate: SingleInputGate
    reader: RecordReader
    address: str

    async def record_of(self, channel: int) -> Any:
        item = await anext(self.reader)
        assert self.reader.channel_index == channel
        return item

    async def other_channel_goes_on(self, sequence: int = 0) -> None:
        await self.raw.send(buffer(1, sequence, record(b"still here")))
        assert await self.record_of(1) == b"still here"

    async def channel_fails(self, kind: type[ChannelFailed] = ChannelFailed) -> ChannelFailed:
        with pytest.raises(kind) as caught:
            await anext(self.reader)
        assert f"channel 0 ('p' subpartition 0 at {self.address})" in str(caught.value)
        return caught.value


@asynccontextmanager
async def attacked(config: NetworkConfig = CONFIG, features: int = 1) -> AsyncIterator[Attacked]:
    async with victim(config) as manager, server() as hostile:
        before = lent(manager)
        gates: list[SingleInputGate] = []

        async def open_gate() -> None:
            gates.append(
                await manager.open_gate([ChannelDescriptor(hostile.address, "p", number) for number in range(2)])
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_gate)
            raw = await hostile.accept()
            await raw.send(hello(features=features))
            await raw.expect(HELLO)
            for number in range(2):
                got = await raw.expect(OPEN, number)
                assert got.payload == struct.pack(">IIB", number, CONFIG.exclusive_buffers_per_channel, 1) + b"p"
        async with raw.stream:
            reader = RecordReader(gates[0])
            yield Attacked(raw, manager, gates[0], reader, hostile.address)
            reader.close()
            await raw.until_closed()
        await until(lambda: lent(manager) == before)


@attack
async def test_data_without_credit() -> None:
    async with attacked() as rig:
        # More than there are buffers: exclusive ones, floating ones, and those read meanwhile.
        await rig.raw.send(*(buffer(0, number, record(b"%d" % number)) for number in range(40)))
        delivered = []

        async def read_on() -> None:
            while True:
                delivered.append(await rig.record_of(0))

        with pytest.raises(ChannelFailed, match=r"channel 0 \('p' subpartition 0 at ") as caught:
            await read_on()
        assert caught.value.code is ErrorCode.CREDIT_VIOLATION
        assert f"(sequence {len(delivered)}) although the producer had no credit left" in caught.value.text
        assert delivered == [b"%d" % number for number in range(len(delivered))], "what had a buffer is delivered"
        assert len(delivered) >= CONFIG.exclusive_buffers_per_channel
        await rig.raw.expect(CANCEL, 0)
        await rig.raw.send(*(buffer(0, 40 + number, bytes(SEGMENT)) for number in range(20)))  # dropped
        await rig.other_channel_goes_on()


@pytest.mark.parametrize("second", [0, 2, 2**32 - 1], ids=["repeated", "skipped", "far off"])
@pytest.mark.parametrize("data_type", [DATA, EVENT], ids=["data", "event"])
@attack
async def test_a_sequence_gap(second: int, data_type: int) -> None:
    async with attacked() as rig:
        payload = record(b"x") if data_type == DATA else encode_event(UserEvent("x"))
        await rig.raw.send(buffer(0, 0, payload, data_type), buffer(0, second, payload, data_type))
        await rig.record_of(0)
        error = await rig.channel_fails()
        assert error.code is ErrorCode.SEQUENCE_GAP
        assert f"expected buffer 1, got {second}" in error.text
        await rig.raw.expect(CANCEL, 0)
        await rig.other_channel_goes_on()


@attack
async def test_sequence_numbers_wrap() -> None:
    async with attacked() as rig:
        rig.gate.channels[0]._expected_sequence = 2**32 - 1  # type: ignore[attr-defined]  # 4 billion buffers later
        await rig.raw.send(buffer(0, 2**32 - 1, record(b"last")), buffer(0, 0, record(b"first")))
        assert [await rig.record_of(0) for _ in range(2)] == [b"last", b"first"]
        rig.gate.channels[1]._expected_sequence = 2**32 - 1  # type: ignore[attr-defined]
        event = encode_event(UserEvent("x"))
        await rig.raw.send(buffer(1, 2**32 - 1, event, EVENT), buffer(1, 0, event, EVENT))
        assert [await rig.record_of(1) for _ in range(2)] == [UserEvent("x")] * 2


@pytest.mark.parametrize("asks", ["consumer", "producer"])
@attack
async def test_a_wrong_checksum(asks: str) -> None:
    config = replace(CONFIG, checksum=asks == "consumer")
    async with attacked(config, features=1 if asks == "consumer" else 0x0001_0001) as rig:
        good = record(b"good")
        await rig.raw.send(buffer(0, 0, good, checksum=zlib.crc32(good)))
        assert await rig.record_of(0) == b"good"
        await rig.raw.send(buffer(0, 1, record(b"bad!"), checksum=zlib.crc32(good)))
        error = await rig.channel_fails()
        assert error.code is ErrorCode.CHECKSUM_MISMATCH
        assert f"buffer 1 of 8 bytes: CRC-32 {zlib.crc32(record(b'bad!')):08x}, announced" in error.text
        await rig.raw.expect(CANCEL, 0)
        await rig.raw.send(buffer(1, 0, good, checksum=zlib.crc32(good)))
        assert await rig.record_of(1) == b"good"


@attack
async def test_checksums_are_not_looked_at_unless_both_know_them() -> None:
    async with attacked(replace(CONFIG, checksum=True), features=0) as rig:
        await rig.raw.send(buffer(0, 0, record(b"x"), checksum=1234))
        assert await rig.record_of(0) == b"x"


GARBAGE = {
    "nothing": (b"", EVENT, "type -1, 0 bytes"),
    "unknown type": (b"\x63", EVENT, "type 99, 1 bytes"),
    "cut short": (encode_event(CheckpointBarrier(1))[:-1], ALIGNED, "type 1 with 33 bytes"),
    "priority": (b"\x63", PRIORITY, "type 99"),
    "an end that is a barrier": (
        encode_event(CheckpointBarrier(1)),
        END_OF_DATA,
        "CheckpointBarrier came under data type",
    ),
    "the wrong end": (encode_event(EndOfData()), END_OF_PARTITION, "EndOfData came under data type END_OF_PARTITION"),
    "a hidden end": (b"\x00", EVENT, "EndOfPartition came under data type EVENT"),
}


@pytest.mark.parametrize("name", GARBAGE)
@attack
async def test_garbage_events(name: str) -> None:
    payload, data_type, hint = GARBAGE[name]
    async with attacked() as rig:
        await rig.raw.send(buffer(0, 0, record(b"before")), buffer(0, 1, payload, data_type))
        assert await rig.record_of(0) == b"before"
        error = await rig.channel_fails()
        assert error.code is ErrorCode.MALFORMED_FRAME
        assert hint in error.text
        await rig.raw.expect(CANCEL, 0)
        await rig.other_channel_goes_on()


@attack
async def test_a_flood_of_events_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events cost no credit: a bound of their own stands between a producer and the consumer's memory."""
    monkeypatch.setattr("netstack.inbound.channel.MAX_WAITING_EVENT_BYTES", 20 * 1100)
    event = encode_event(UserEvent("x", bytes(997)))
    async with attacked() as rig:
        await rig.raw.send(*(buffer(0, number, event, EVENT) for number in range(20)))
        for _ in range(20):
            assert await rig.record_of(0) == UserEvent("x", bytes(997))
        await rig.raw.send(*(buffer(0, 20 + number, event, (EVENT, PRIORITY)[number % 2]) for number in range(200)))
        await rig.raw.expect(CANCEL, 0)
        for _ in range(20):
            await rig.record_of(0)
        error = await rig.channel_fails()
        assert error.code is ErrorCode.CREDIT_VIOLATION
        assert "bytes of events wait to be read" in error.text
        await rig.other_channel_goes_on()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.PRODUCER_FAILED, ProducerFailed),
        (ErrorCode.PARTITION_NOT_FOUND, PartitionNotFound),
        (ErrorCode.INTERNAL, ChannelFailed),
        (999, ChannelFailed),
    ],
)
@attack
async def test_the_producer_s_error_reaches_its_reader(code: int, kind: type[ChannelFailed]) -> None:
    async with attacked() as rig:
        await rig.raw.send(frame(CHANNEL_ERROR, code.to_bytes(2, "big") + b"division by zero", channel=0))
        error = await rig.channel_fails(kind)
        assert error.code == (code if code < 999 else ErrorCode.INTERNAL)
        assert error.text == "division by zero"
        await rig.other_channel_goes_on()


@attack
async def test_frames_for_channels_that_are_gone_or_never_were() -> None:
    """Errors and backlogs of nobody's channel change nothing."""
    async with attacked() as rig:
        for number in (0, 99):
            await rig.raw.send(
                frame(CHANNEL_ERROR, b"\x00\x0c!", channel=number), frame(BACKLOG, bytes(4), channel=number)
            )
        await rig.channel_fails()
        await rig.raw.send(buffer(0, 0, record(b"too late")), buffer(0, 77, b"\x63", EVENT))
        await rig.other_channel_goes_on()


async def granted(raw: Raw) -> int:
    """Credits for channel 0 in the next CREDIT frame."""
    pairs = list(struct.iter_unpack(">II", (await raw.expect(CREDIT)).payload))
    assert {number for number, _ in pairs} == {0}
    return sum(count for _, count in pairs)


@pytest.mark.parametrize("backlog", [1000, 2**32 - 1])
@attack
async def test_a_promise_that_is_too_large_gets_what_there_is(backlog: int) -> None:
    async with attacked() as rig:
        await rig.raw.send(buffer(0, 0, record(b"x"), backlog=backlog), frame(BACKLOG, b"\xff" * 4, channel=0))
        assert await rig.record_of(0) == b"x"
        assert CONFIG.floating_buffers_per_gate <= await granted(rig.raw) <= CONFIG.floating_buffers_per_gate + 1
        await rig.other_channel_goes_on()


@attack
async def test_empty_buffers_return_their_credit() -> None:
    """Nobody reads them, and still a producer that keeps to its credit is never stuck."""
    async with attacked() as rig:
        left = CONFIG.exclusive_buffers_per_channel
        for number, payload in enumerate([b""] * 20 + [record(b"x")]):
            while not left:
                left += await granted(rig.raw)
            await rig.raw.send(buffer(0, number, payload))
            left -= 1
        assert await rig.record_of(0) == b"x"


BROKEN = {
    "a buffer too long": (HEADER.pack(SEGMENT + 1, BUFFER, DATA, 0, 0, 0, 0, 0), ErrorCode.FRAME_TOO_LARGE),
    "a buffer of a channel never opened": (buffer(2, 0, b"x"), ErrorCode.UNKNOWN_CHANNEL),
    "an event of a channel never opened": (buffer(2, 0, b"\0", END_OF_PARTITION), ErrorCode.UNKNOWN_CHANNEL),
    "a consumer's frame": (opening(0, "p"), ErrorCode.UNEXPECTED_FRAME),
    "an unknown data type": (buffer(0, 0, b"x", 8), ErrorCode.MALFORMED_FRAME),
    "hello again": (hello(), ErrorCode.UNEXPECTED_FRAME),
    "another protocol all of a sudden": (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", ErrorCode.FRAME_TOO_LARGE),
}


@pytest.mark.parametrize("before", [[], [bytes(SEGMENT)]], ids=["small", "bulk"])
@pytest.mark.parametrize("name", BROKEN)
@attack
async def test_a_broken_stream_fails_every_channel_on_it(name: str, before: list[bytes]) -> None:
    data, expected = BROKEN[name]
    async with attacked() as rig:
        # An unfinished record of zeros: nothing to read yet, but the assembler expects full buffers now.
        start = record(bytes(2 * SEGMENT))[:SEGMENT] if before else b""
        await rig.raw.send(*([buffer(0, 0, start)] if before else []), data)
        for _ in range(2):
            with pytest.raises(ConnectionLost) as caught:
                await anext(rig.reader)
            assert rig.address in str(caught.value)
            assert isinstance(caught.value.__cause__, RemoteProtocolError)
            assert caught.value.__cause__.code is expected
        code, _ = await rig.raw.connection_error()
        assert code is expected


@pytest.mark.parametrize("cut", [1, 24, 25, 24 + SEGMENT - 1, 24 + SEGMENT, 24 + SEGMENT + 1, 2 * (24 + SEGMENT) - 1])
@pytest.mark.parametrize("how", ["end", "reset"])
@attack
async def test_a_producer_that_vanishes(cut: int, how: str) -> None:
    stream = buffer(0, 0, record(bytes(2 * SEGMENT))[:SEGMENT]) + buffer(1, 0, bytes(SEGMENT))
    async with attacked() as rig:
        await rig.raw.send(stream[:cut])
        if how == "end":
            await rig.raw.stream.send_eof()
        else:
            await until(lambda: rig.manager.statistics().dialled[-1].connection.bytes_received >= len(hello()) + cut)
            rig.raw.reset()
        for _ in range(2):
            with pytest.raises(ConnectionLost, match=r"subpartition [01] at tcp"):
                await anext(rig.reader)
        if how == "reset":
            rig.raw.stream.socket.close()


@attack
async def test_a_producer_that_leaves_properly_without_ending_its_channels() -> None:
    async with attacked() as rig:
        await rig.raw.send(buffer(0, 0, record(b"x")), frame(GOODBYE))
        await rig.raw.stream.send_eof()
        assert await rig.record_of(0) == b"x"
        for _ in range(2):
            with pytest.raises(ConnectionLost, match="was closed"):
                await anext(rig.reader)
        assert (await rig.raw.expect(GOODBYE)).payload == b""


@attack
async def test_a_producer_s_goodbye_is_answered() -> None:
    async with attacked() as rig:
        await rig.raw.send(frame(GOODBYE))
        assert [got.kind for got in await rig.raw.until_closed()] == [GOODBYE]


@attack
async def test_a_producer_that_shuts_down_says_what_became_of_its_channels() -> None:
    """The last frames of a closing TaskManager come before its goodbye."""
    async with victim() as manager:
        async with open_task_manager(ANY_PORT, CONFIG) as leaving:
            leaving.create_partition("p", subpartitions=1)
            gate = await manager.open_gate([ChannelDescriptor(leaving.address, "p")])
            await until(lambda: any(found.channels for found in leaving.statistics().accepted))
        with pytest.raises(PartitionNotFound, match="partition 'p' was released"), contextlib.closing(gate):
            await anext(RecordReader(gate))


@attack
async def test_reading_and_writing_in_the_same_instant_as_an_attack() -> None:
    """A flood of rubbish from ten peers while honest data flows through the same TaskManager."""
    async with victim() as manager, open_task_manager(ANY_PORT, CONFIG) as honest, trio.open_nursery() as nursery:
        gate = await honest.open_gate([ChannelDescriptor(manager.address, "busy")])
        done = trio.Event()

        async def rubbish(seed: int) -> None:
            chance = random.Random(seed)
            while not done.is_set():
                async with dialled(manager, hello() * chance.randrange(2), chance.randbytes(100)) as raw:
                    with contextlib.suppress(trio.BrokenResourceError):
                        await raw.stream.send_eof()
                    await raw.until_closed()

        for seed in range(10):
            nursery.start_soon(rubbish, seed)
        async with trio.open_nursery() as inner:
            inner.start_soon(write, manager, "busy", RECORDS * 10)
            assert await read(gate) == RECORDS * 10
        done.set()


# 3. Addresses that cannot be had.


@attack
async def test_a_port_in_use() -> None:
    async with victim() as manager:
        with pytest.raises(OSError, match="choose another port") as caught:
            async with open_task_manager(manager.address):
                pass
        assert caught.value.errno == errno.EADDRINUSE
        assert manager.address in str(caught.value)


@attack
async def test_a_path_that_is_too_long(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/{'x' * 200}"
    with pytest.raises(ConfigError, match="longer than 107 bytes"):
        async with open_task_manager(url):
            pass
    async with open_task_manager(ANY_PORT, CONFIG) as manager:
        with pytest.raises((ConfigError, ConnectionLost), match="longer than 107 bytes"):
            await manager.open_gate([ChannelDescriptor(url, "p")])
        assert lent(manager) == 0


@attack
async def test_a_stale_unix_socket(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{tmp_path}/s")
    async with open_task_manager(ANY_PORT, CONFIG) as manager:
        assert "Connection refused" in str(await fails_to_open(manager, url, ConnectionLost))
        async with open_task_manager(url, CONFIG) as other:
            gate = await manager.open_gate([ChannelDescriptor(other.address, "p")])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write, other, "p", RECORDS)
                assert await read(gate) == RECORDS
    assert not (tmp_path / "s").exists()


@attack
async def test_a_gate_that_cannot_be_opened_leaves_nothing_behind() -> None:
    async with victim() as manager, open_task_manager(ANY_PORT, CONFIG) as other:
        before = lent(manager)
        with pytest.raises(ConfigError, match="partition id '' has 0 bytes"):
            await manager.open_gate([ChannelDescriptor(other.address, "p"), ChannelDescriptor(other.address, "")])
        for number in (-1, 2**32):
            with pytest.raises(ConfigError, match=f"partition 'p' has no subpartition {number}"):
                await manager.open_gate([ChannelDescriptor(other.address, "p", number)])
        with pytest.raises(InsufficientBuffers):
            await manager.open_gate([ChannelDescriptor(other.address, "p")] * 200)
        with pytest.raises(ConnectionLost, match="Connection refused"):
            await manager.open_gate(
                [ChannelDescriptor(other.address, "p"), ChannelDescriptor("tcp://127.0.0.1:1", "p")]
            )
        await until(lambda: lent(manager) == before)


@attack
async def test_no_buffers_left_to_receive_with() -> None:
    """Refused before anybody is dialled, and nothing is kept."""
    async with victim() as manager, server() as hostile:
        pool = manager.statistics().pool
        free = pool.total_segments - pool.required_segments
        channels = (free - 1) // CONFIG.exclusive_buffers_per_channel
        with pytest.raises(
            InsufficientBuffers,
            match=f"the connection to {hostile.address} requires {LANDING_SEGMENTS} network buffers",
        ):
            await manager.open_gate([ChannelDescriptor(hostile.address, "p")] * channels)
        assert manager.statistics().pool.required_segments == pool.required_segments
        assert lent(manager) == pool.lent_segments
