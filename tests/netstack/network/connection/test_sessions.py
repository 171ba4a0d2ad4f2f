"""A connection that is cut goes on over another line: nothing lost, nothing repeated; or it fails as it did before."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import trio
from cutting import CutLines, cut_lines
from network.network_environments import assert_nothing_left, settle
from trio.testing import MockClock

from netstack.base.config import NetworkConfig
from netstack.base.errors import ConfigError, ConnectionLost, ErrorCode, NetstackError
from netstack.base.ids import ChannelDescriptor
from netstack.base.transport import ByteStream, transport_for
from netstack.exchange.wire.codec_native import PROTOCOL_VERSION, NativeCodec
from netstack.exchange.wire.frames import (
    AddCredit,
    ConnectionFailure,
    Continue,
    Frame,
    Goodbye,
    Hello,
    OpenChannel,
    Received,
    SessionOffer,
)
from netstack.exchange.wire.greeting import FEATURE_SESSION
from netstack.exchange.wire.session import WINDOW_BYTES, SessionStatistics
from netstack.network.connection.authentication import Secret
from netstack.network.connection.handshake import Handshake
from netstack.network.connection.session_stream import SessionStream
from netstack.network.environment import NetworkEnvironment, open_network
from netstack.network.reader import RecordReader
from netstack.network.writer import RecordWriter

GRACE_S = 5.0
CONFIG = NetworkConfig(segment_size_bytes=256, memory_bytes=64 * 256, resume_grace_s=GRACE_S, heartbeat_interval_s=None)
CODEC = NativeCodec()
FEATURES = FEATURE_SESSION | FEATURE_SESSION << 16
HELLO = Hello(PROTOCOL_VERSION, CONFIG.segment_size_bytes, FEATURES, "a peer made of bytes")
numbers = itertools.count()


def url() -> str:
    return f"cut+memory://sessions-{next(numbers)}"


@pytest.fixture
def lines() -> Iterator[CutLines]:
    with cut_lines() as made:
        yield made


async def write(manager: NetworkEnvironment, count: int, *, name: str = "p", pause_s: float = 0.0) -> None:
    writer = RecordWriter(manager.create_partition(name, subpartitions=1), format="int64", buffer_timeout_s=0.01)
    for value in range(count):
        await writer.emit(value)
        if pause_s:
            await trio.sleep(pause_s)
    await writer.finish()
    await writer.wait_consumed()


async def read(manager: NetworkEnvironment, address: str, into: list[int], *, name: str = "p") -> None:
    gate = await manager.open_gate([ChannelDescriptor(address, name, 0)])
    async for record in RecordReader(gate, format="int64"):
        into.append(record)


def session_of(manager: NetworkEnvironment) -> SessionStatistics:
    (connection,) = manager.connections()
    assert connection.connection.session is not None
    return connection.connection.session


async def test_one_channel_goes_on_after_a_cut(autojump_clock: MockClock, lines: CutLines) -> None:
    received: list[int] = []
    async with (
        open_network(url(), CONFIG) as producer,
        open_network(url(), CONFIG) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(write, producer, 5000)
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, "p", 0)])
        async for record in RecordReader(gate, format="int64"):
            received.append(record)
            if len(received) == 2000:
                lines.cut()
            if len(received) == 4000:
                for session in (session_of(consumer), session_of(producer)):
                    assert (session.cuts, session.resumed) == (1, 1)
                    assert session.suspended_s < 1
    assert received == list(range(5000))
    assert_nothing_left(producer, consumer)


async def test_channels_are_opened_and_left_while_the_line_is_down(autojump_clock: MockClock, lines: CutLines) -> None:
    old: list[int] = []
    new: list[int] = []
    async with (
        open_network(url(), CONFIG) as producer,
        open_network(url(), CONFIG) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(lambda: write(producer, 500, pause_s=0.005))
        nursery.start_soon(read, consumer, producer.address, old)
        unwanted = producer.create_partition("unwanted", subpartitions=1)
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, "unwanted", 0)])
        await trio.sleep(0.005)
        lines.is_down = True
        lines.cut()
        await settle()
        gate.close()
        nursery.start_soon(lambda: write(producer, 700, name="later"))
        nursery.start_soon(lambda: read(consumer, producer.address, new, name="later"))
        await trio.sleep(GRACE_S / 2)
        assert not new
        lines.is_down = False
        await trio.sleep(GRACE_S)
        assert (old, new) == ([*range(500)], [*range(700)])
        assert unwanted.statistics().subpartitions[0].is_consumed
        unwanted.release()
    assert_nothing_left(producer, consumer)


async def test_after_the_grace_time_it_fails_as_it_would_have_at_once(
    autojump_clock: MockClock, lines: CutLines
) -> None:
    async with open_network(url(), CONFIG) as producer, open_network(url(), CONFIG) as consumer:
        partition = producer.create_partition("p", subpartitions=1)
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, "p", 0)])
        await settle()
        lines.is_down = True
        lines.cut()
        before = trio.current_time()
        with pytest.raises(ConnectionLost, match=r"the line to .* was cut"):
            await RecordReader(gate, format="int64").__anext__()
        assert GRACE_S <= trio.current_time() - before < GRACE_S + 1
        await settle()
        assert partition.statistics().subpartitions[0].is_consumed
        assert not producer.connections()
        gate.close()
        partition.release()
    assert_nothing_left(producer, consumer)


async def test_who_says_goodbye_to_one_that_goes_on_is_dialled_again(
    autojump_clock: MockClock, lines: CutLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that is being closed is lost for the moment; it was given up at once, as one that breaks the protocol."""
    received: list[int] = []
    leaving = url()
    listener = await transport_for(leaving).listen(leaving)
    async with (
        open_network(url(), CONFIG) as producer,
        open_network(url(), CONFIG) as consumer,
        trio.open_nursery() as nursery,
    ):
        sessions = consumer._endpoint._sessions
        dial = sessions._dial

        async def dial_who_leaves(_: str) -> ByteStream:
            monkeypatch.setattr(sessions, "_dial", dial)  # the producer again, the next time
            stream = await transport_for(leaving).connect(leaving)
            (await listener.accept()).try_send([frames(HELLO, Goodbye())])
            return stream

        nursery.start_soon(lambda: write(producer, 500, pause_s=0.005))
        nursery.start_soon(read, consumer, producer.address, received)
        await trio.sleep(0.5)
        monkeypatch.setattr(sessions, "_dial", dial_who_leaves)
        lines.cut()
        await trio.sleep(1.0)
        assert sessions._dial is dial
        assert session_of(consumer).resumed == 1
    assert received == [*range(500)]
    listener.close()
    assert_nothing_left(producer, consumer)


@pytest.mark.parametrize("without", ["producer", "consumer"])
async def test_where_one_end_knows_no_sessions_a_cut_fails_at_once(
    without: str, autojump_clock: MockClock, lines: CutLines
) -> None:
    older = dataclasses.replace(CONFIG, resume_grace_s=0.0)
    async with (
        open_network(url(), older if without == "producer" else CONFIG) as producer,
        open_network(url(), older if without == "consumer" else CONFIG) as consumer,
    ):
        producer.create_partition("p", subpartitions=1)
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, "p", 0)])
        await settle()
        assert [each.connection.session for each in (*producer.connections(), *consumer.connections())] == [None, None]
        before = trio.current_time()
        lines.cut()
        with pytest.raises(ConnectionLost):
            await RecordReader(gate, format="int64").__anext__()
        assert trio.current_time() == before
        gate.close()


async def test_who_leaves_on_purpose_is_not_waited_for(autojump_clock: MockClock, lines: CutLines) -> None:
    async with open_network(url(), CONFIG) as consumer:
        async with open_network(url(), CONFIG) as producer:
            producer.create_partition("p", subpartitions=1)
            gate = await consumer.open_gate([ChannelDescriptor(producer.address, "p", 0)])
            await settle()
        before = trio.current_time()
        with pytest.raises(NetstackError):
            await RecordReader(gate, format="int64").__anext__()
        assert trio.current_time() - before < 1
        gate.close()
    assert_nothing_left(consumer)


async def test_another_process_at_the_same_address_knows_nothing_of_it(
    autojump_clock: MockClock, lines: CutLines
) -> None:
    address = url()
    async with open_network(url(), CONFIG) as consumer:
        with trio.CancelScope() as scope:  # no goodbyes
            async with open_network(address, CONFIG) as producer:
                producer.create_partition("p", subpartitions=1)
                gate = await consumer.open_gate([ChannelDescriptor(address, "p", 0)])
                await settle()
                lines.is_down = True
                scope.cancel()
                await trio.lowlevel.checkpoint()
        async with open_network(address, CONFIG):
            lines.is_down = False
            before = trio.current_time()
            with pytest.raises(ConnectionLost):
                await RecordReader(gate, format="int64").__anext__()
            assert trio.current_time() - before < 1
        gate.close()


async def test_who_cannot_prove_the_secret_any_more_does_not_go_on(
    autojump_clock: MockClock, lines: CutLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = Secret.generate()
    async with (
        open_network(url(), CONFIG, secret=secret) as producer,
        open_network(url(), CONFIG, secret=secret) as consumer,
    ):
        producer.create_partition("p", subpartitions=1)
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, "p", 0)])
        await settle()
        other = Handshake(secret=Secret.generate()).dial
        monkeypatch.setattr(consumer._endpoint._sessions, "_dial", other)
        lines.cut()
        with pytest.raises(ConnectionLost):
            await RecordReader(gate, format="int64").__anext__()
        assert not streams(consumer)
        gate.close()


def streams(manager: NetworkEnvironment) -> list[SessionStream]:
    return [pump.stream for pump in manager._endpoint.pumps() if isinstance(pump.stream, SessionStream)]


async def test_a_line_that_swallows_everything_is_given_up_by_the_heartbeat(
    autojump_clock: MockClock, lines: CutLines
) -> None:
    config = dataclasses.replace(CONFIG, heartbeat_interval_s=1.0, heartbeat_timeout_s=3.0)
    received: list[int] = []
    async with (
        open_network(url(), config) as producer,
        open_network(url(), config) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(lambda: write(producer, 2000, pause_s=0.01))
        nursery.start_soon(read, consumer, producer.address, received)
        await trio.sleep(2)
        assert received
        lines.swallow()
        await trio.sleep(1)
        assert session_of(consumer).cuts == 0
        await trio.sleep(7)
        assert session_of(consumer).resumed == 1
    assert received == list(range(2000))


# Peers that lie.


def frames(*said: Frame) -> bytes:
    return b"".join(map(CODEC.encode_control, said))


async def hear(stream: ByteStream) -> Frame | None:
    """The next control frame of a stream; None at its end."""
    header = await exactly(stream, CODEC.header_bytes)
    if len(header) < CODEC.header_bytes:
        return None
    _, length, kind, channel, *_ = CODEC.parse_header(memoryview(header), 0)
    return CODEC.decode_control(kind, channel, await exactly(stream, length))


async def exactly(stream: ByteStream, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        window = memoryview(bytearray(count - len(data)))
        try:
            arrived = stream.try_receive_into([window])
        except ConnectionLost:
            break
        if arrived is None:
            await stream.wait_readable()
        elif arrived == 0:
            break
        else:
            data += window[:arrived]
    return bytes(data)


@asynccontextmanager
async def a_session(address: str, hello: Hello = HELLO) -> AsyncIterator[tuple[ByteStream, bytes]]:
    """A stream with one open channel, as a consumer made of bytes has it; and the id of its session."""
    stream = await transport_for(address).connect(address)
    stream.try_send([frames(hello)])
    assert isinstance(await hear(stream), Hello)
    offer = await hear(stream)
    assert isinstance(offer, SessionOffer)
    assert offer.grace_ms == GRACE_S * 1000
    stream.try_send([frames(OpenChannel(0, "p", 0, 2))])
    await settle()
    yield stream, offer.session
    stream.close()


async def asked(address: str, frame: Frame) -> list[Frame]:
    """What a producer answers to who wants to go on."""
    stream = await transport_for(address).connect(address)
    stream.try_send([frames(HELLO, frame)])
    answers: list[Frame] = []
    with trio.move_on_after(1):
        while (received := await hear(stream)) is not None:
            if not isinstance(received, Hello | SessionOffer):
                answers.append(received)
    stream.close()
    return answers


def mine() -> int:
    """Bytes that a session's consumer has sent."""
    return len(frames(HELLO, OpenChannel(0, "p", 0, 2)))


def theirs(producer: NetworkEnvironment) -> int:
    """Bytes that its producer has sent."""
    return max(stream.session.sent.sent for stream in streams(producer))


async def test_a_session_is_gone_on_with_by_its_id(autojump_clock: MockClock, lines: CutLines) -> None:
    async with open_network(url(), CONFIG) as producer:
        producer.create_partition("p", subpartitions=1)
        async with a_session(producer.address) as (_, session):
            answer = await asked(producer.address, Continue(session, 1, theirs(producer)))
            assert answer == [Continue(session, 1, mine())]
            assert session_of(producer).cuts >= 1  # its first line was still there
            assert producer.connections()[0].channels == 1


@pytest.mark.parametrize("foreign", [b"\0" * 16, b"x" * 16])
async def test_a_foreign_session_is_unknown(foreign: bytes, autojump_clock: MockClock, lines: CutLines) -> None:
    async with open_network(url(), CONFIG) as producer:
        producer.create_partition("p", subpartitions=1)
        async with a_session(producer.address) as (stream, _):
            (answer,) = await asked(producer.address, Continue(foreign, 1, 100))
            assert isinstance(answer, ConnectionFailure)
            assert answer.code is ErrorCode.SESSION_UNKNOWN
            assert session_of(producer).cuts == 0
            assert stream.try_receive_into([memoryview(bytearray(1))]) is None  # nothing was said, and it is open


async def test_one_that_was_given_up_is_unknown(autojump_clock: MockClock, lines: CutLines) -> None:
    async with open_network(url(), CONFIG) as producer:
        producer.create_partition("p", subpartitions=1)
        async with a_session(producer.address) as (_, session):
            lines.cut()
            await trio.sleep(GRACE_S + 1)
            (answer,) = await asked(producer.address, Continue(session, 1, 100))
            assert isinstance(answer, ConnectionFailure)
            assert answer.code is ErrorCode.SESSION_UNKNOWN


async def test_an_attempt_that_was_delayed_takes_nothing_over(autojump_clock: MockClock, lines: CutLines) -> None:
    async with open_network(url(), CONFIG) as producer:
        producer.create_partition("p", subpartitions=1)
        async with a_session(producer.address) as (_, session):
            position = theirs(producer)
            assert await asked(producer.address, Continue(session, 2, position))
            for late in (0, 1, 2):
                (answer,) = await asked(producer.address, Continue(session, late, position))
                assert isinstance(answer, ConnectionFailure)
                assert answer.code is ErrorCode.UNEXPECTED_FRAME
            assert await asked(producer.address, Continue(session, 3, position)) == [Continue(session, 3, mine())]


@pytest.mark.parametrize("by", [1, -1, 1 << 40])
async def test_who_cannot_be_where_it_says_loses_the_session(
    by: int, autojump_clock: MockClock, lines: CutLines
) -> None:
    async with open_network(url(), CONFIG) as producer:
        partition = producer.create_partition("p", subpartitions=1)
        async with a_session(producer.address) as (stream, session):
            position = theirs(producer)
            stream.try_send([frames(Received(position))])
            await settle()
            (answer,) = await asked(producer.address, Continue(session, 1, position + by))
            assert isinstance(answer, ConnectionFailure)
            assert answer.code is ErrorCode.UNEXPECTED_FRAME
            await settle()
            assert partition.statistics().subpartitions[0].is_consumed
            assert not producer.connections()


async def test_who_has_received_more_than_was_sent_loses_the_connection(
    autojump_clock: MockClock, lines: CutLines
) -> None:
    async with open_network(url(), CONFIG) as producer:
        producer.create_partition("p", subpartitions=1)
        async with a_session(producer.address) as (stream, _):
            stream.try_send([frames(Received(3)), frames(Received(theirs(producer) + 1))])
            answer = await hear(stream)
            assert isinstance(answer, ConnectionFailure)
            assert answer.code is ErrorCode.UNEXPECTED_FRAME
            await settle()
            assert not producer.connections()


async def test_a_stream_that_had_channels_carries_no_other_session(autojump_clock: MockClock, lines: CutLines) -> None:
    async with open_network(url(), CONFIG) as producer:
        producer.create_partition("p", subpartitions=1)
        async with a_session(producer.address) as (stream, session):
            stream.try_send([frames(Continue(session, 1, 100))])
            answer = await hear(stream)
            assert isinstance(answer, ConnectionFailure)
            assert answer.code is ErrorCode.UNEXPECTED_FRAME


async def test_who_never_tells_where_it_is_holds_up_itself_alone(autojump_clock: MockClock, lines: CutLines) -> None:
    config = dataclasses.replace(CONFIG, segment_size_bytes=32 * 1024, memory_bytes=2 * 1024 * 1024)
    hello = dataclasses.replace(HELLO, segment_size_bytes=config.segment_size_bytes)
    async with open_network(url(), config) as producer, trio.open_nursery() as nursery:
        partition = producer.create_partition("p", subpartitions=1)
        writer = RecordWriter(partition, format="bytes", buffer_timeout_s=0.0)

        async def endless() -> None:
            while True:
                await writer.emit(bytes(60_000))

        async with a_session(producer.address, hello) as (stream, _):
            nursery.start_soon(endless)
            stream.try_send([frames(AddCredit(((0, 1_000_000),)))])
            (line,) = streams(producer)

            async def drain() -> int:
                """Reads until nothing more comes."""
                window = memoryview(bytearray(1 << 20))
                while True:
                    await settle()
                    if stream.try_receive_into([window]) is None:
                        return line.session.sent.kept_bytes

            kept = await drain()
            assert WINDOW_BYTES <= kept < 2 * WINDOW_BYTES
            stream.try_send([frames(Received(kept // 2))])
            await settle()
            assert line.session.sent.sent > kept
            assert WINDOW_BYTES <= await drain() < 2 * WINDOW_BYTES
            nursery.cancel_scope.cancel()


def test_a_grace_time_is_a_time_and_flink_has_none() -> None:
    for wrong in (-1.0, float("nan"), 1e9):
        with pytest.raises(ConfigError, match="resume_grace_s"):
            NetworkConfig(resume_grace_s=wrong)
    with pytest.raises(ConfigError, match="resume_grace_s"):
        NetworkConfig(resume_grace_s=1, dialect="flink-2.3.0")
