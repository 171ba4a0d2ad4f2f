"""Consumers that attack a producer over real TCP: a typed error for them alone, everybody else goes on."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
import trio.testing
from system.hostile_rig import (
    ACKNOWLEDGE,
    ALIGNED,
    BACKLOG,
    BUFFER,
    CANCEL,
    CHANNEL_ERROR,
    CONFIG,
    CONNECTION_ERROR,
    CREDIT,
    END_OF_PARTITION,
    EVENT,
    FOREIGN,
    GOODBYE,
    HEADER,
    HELLO,
    OPEN,
    PING,
    PONG,
    RESUME,
    SEGMENT,
    SHORT_S,
    Raw,
    buffer,
    credit,
    dialled,
    frame,
    hello,
    lent,
    names_peer,
    opening,
    record,
    until,
    victim,
)

from netstack import (
    CheckpointBarrier,
    ConsumerLost,
    ErrorCode,
    NetworkEnvironment,
    RecordWriter,
)

pytestmark = pytest.mark.usefixtures("every_descriptor_back")


@asynccontextmanager
async def two_channels(manager: NetworkEnvironment) -> AsyncIterator[tuple[Raw, RecordWriter, RecordWriter]]:
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


@pytest.mark.parametrize("protocol", FOREIGN)
async def test_another_protocol(protocol: str) -> None:
    async with victim() as manager, dialled(manager, FOREIGN[protocol]) as raw:
        code, text = await raw.connection_error()
        assert code is ErrorCode.NOT_NETSTACK
        names_peer(text)
        assert protocol in text
        assert "check the address" in text


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


async def test_another_version() -> None:
    async with victim() as manager, dialled(manager, hello(version=1)) as raw:
        code, text = await raw.connection_error()
        assert code is ErrorCode.VERSION_MISMATCH
        names_peer(text)
        assert "version 1, this side uses 4" in text


async def test_another_segment_size() -> None:
    async with victim() as manager, dialled(manager, hello(segment=2 * SEGMENT)) as raw:
        code, text = await raw.connection_error()
        assert code is ErrorCode.SEGMENT_SIZE_MISMATCH
        assert "this side uses 1024" in text


@pytest.mark.parametrize("first", [b"", hello()[:40]], ids=["nothing", "half a hello"])
async def test_a_peer_that_says_no_hello(first: bytes) -> None:
    async with victim(replace(CONFIG, handshake_timeout_s=SHORT_S)) as manager, dialled(manager, first) as raw:
        assert (await raw.expect(HELLO)).kind == HELLO
        assert await raw.until_closed() == []


@pytest.mark.parametrize("length", [0, 3, 24, len(hello()) - 1, len(hello()), len(hello()) + 30])
async def test_a_stream_that_ends_too_early(length: int) -> None:
    async with victim() as manager, dialled(manager, (hello() + opening(0, "p"))[:length]) as raw:
        await raw.stream.send_eof()
        code, text = await raw.connection_error()
        assert code is ErrorCode.TRUNCATED_STREAM
        names_peer(text)


WRONG = {
    "a control frame too long": (frame(PING, length=20_000), ErrorCode.FRAME_TOO_LARGE, "20000 bytes"),
    "four gigabytes": (
        frame(CREDIT, length=2**32 - 1),
        ErrorCode.FRAME_TOO_LARGE,
        "at most 16384 bytes are allowed here",
    ),
    "an event too long": (
        HEADER.pack(20_000, BUFFER, EVENT, 0, 0, 0, 0, 0),
        ErrorCode.FRAME_TOO_LARGE,
        "event of 20000 bytes",
    ),
    "an unknown kind": (frame(77), ErrorCode.MALFORMED_FRAME, "type 77"),
    "credit for nobody": (frame(CREDIT), ErrorCode.MALFORMED_FRAME, "no channel in it"),
    "a name that is no text": (
        frame(OPEN, struct.pack(">IIIB", 0, 1, 1, 2) + b"\xff\xfe"),
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
        ("nowhere", 0, ErrorCode.PARTITION_NOT_FOUND, "'nowhere'"),
        ("p1", 7, ErrorCode.SUBPARTITION_OUT_OF_RANGE, "subpartitions 0 to 0"),
        ("p1", 0, ErrorCode.SUBPARTITION_CONSUMED, "read once"),
    ],
)
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
async def test_misuse_of_a_channel_fails_this_channel_only(name: str) -> None:
    data, expected, hint = MISUSE[name]
    async with victim() as manager, two_channels(manager) as (raw, first, _):
        await raw.send(data)
        code, text = (await raw.expect(CHANNEL_ERROR, 0)).error
        assert code is expected
        assert hint in text
        with pytest.raises(ConsumerLost):
            await first.emit(b"for nobody")  # its consumer is gone; nothing of it may reach the wire
        await raw.send(frame(PING, bytes(8)))
        await raw.expect(PONG)
        (sending,) = [
            actual
            for actual in manager.statistics().accepted
            if len(actual.channels) == 1 and actual.channels[0].partition_id == "p1"
        ]
        assert [channel.channel for channel in sending.channels] == [1]


@pytest.mark.parametrize("kind", [CREDIT, RESUME, ACKNOWLEDGE, CANCEL])
async def test_a_channel_number_that_was_never_opened(kind: int) -> None:
    async with victim() as manager, two_channels(manager) as (raw, _, _):
        await raw.send(credit(99, 1) if kind == CREDIT else frame(kind, channel=99))
        code, text = (await raw.expect(CHANNEL_ERROR, 99)).error
        assert code is ErrorCode.UNKNOWN_CHANNEL
        assert "channel 99" in text


@pytest.mark.parametrize("kind", [CREDIT, RESUME, ACKNOWLEDGE, CANCEL])
async def test_frames_that_crossed_a_cancel_are_ignored(kind: int) -> None:
    async with victim() as manager, two_channels(manager) as (raw, _, _):
        late = credit(0, 1) if kind == CREDIT else frame(kind, channel=0)
        await raw.send(frame(CANCEL, channel=0), late, late, frame(PING, bytes(8)))
        while (got := await raw.next()) is not None and got.kind != PONG:
            assert got.kind == BUFFER
        assert got is not None


async def test_more_channels_than_allowed() -> None:
    config = replace(CONFIG, max_channels_per_connection=2)
    async with victim(config) as manager, two_channels(manager) as (raw, _, _):
        await raw.send(opening(2, "p0"))
        code, text = (await raw.expect(CHANNEL_ERROR, 2)).error
        assert code is ErrorCode.CHANNEL_IN_USE
        assert "more than 2 channels" in text


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
        with contextlib.suppress(trio.WouldBlock):  # as many as there are buffers for
            for _ in range(8):
                writer.emit_nowait(bytes(900))
        await until(lambda: len(manager.statistics().accepted) == 1)
        partition.release()
        writer.close()
        await until(lambda: lent(manager) == before)


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


async def test_a_peer_that_closes_with_an_error() -> None:
    async with victim() as manager, dialled(manager, hello(), opening(0, "nowhere")) as raw:
        await raw.send(frame(CONNECTION_ERROR, b"\x00\x13on purpose"))
        await raw.until_closed()
        await until(lambda: len(manager.statistics().accepted) == 1)


async def test_a_goodbye_is_answered() -> None:
    """The victim ends its direction too, also when the other one stays open."""
    async with victim() as manager, dialled(manager, hello(), frame(GOODBYE)) as raw:
        assert [got.kind for got in await raw.until_closed()] == [HELLO, GOODBYE]
        await raw.stream.send_eof()


async def test_many_connections_that_say_nothing() -> None:
    async with victim(replace(CONFIG, handshake_timeout_s=SHORT_S)) as manager, contextlib.AsyncExitStack() as stack:
        before = lent(manager)
        raws = [await stack.enter_async_context(dialled(manager)) for _ in range(50)]
        for raw in raws:
            await raw.expect(HELLO)
            assert lent(manager) == before, "who only dials costs no buffer"
        for raw in raws:
            assert await raw.until_closed() == []
