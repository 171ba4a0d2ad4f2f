"""One connection without a socket: what it accepts in which state, what it says, what it returns at its end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from exchange.landed_runs import TakesEach
from hypothesis import assume, given, strategies as st
from laws.flink_frames import composite
from partition_builders import open_builder
from segments import allocate_segments

from netstack.base.errors import ChannelFailed, ConnectionLost, ErrorCode, NetstackError, RemoteProtocolError
from netstack.base.events import DataType
from netstack.base.ids import ChannelDescriptor, PartitionId, ResultPartitionType
from netstack.exchange.buffer.buffer import Buffer, BufferSource, Notify
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.buffer.segment import Segment
from netstack.exchange.buffer.stored import Packaging
from netstack.exchange.inbound.channel import RemoteInputChannel
from netstack.exchange.inbound.gate import SingleInputGate
from netstack.exchange.inbound.receiver import ChannelReceiver
from netstack.exchange.outbound.partition import ResultPartition
from netstack.exchange.outbound.sender import ChannelSender
from netstack.exchange.wire.codec_native import PROOF_MAGIC, PROTOCOL_VERSION, NativeCodec
from netstack.exchange.wire.connection import MAX_PENDING_CONTROL, Connection
from netstack.exchange.wire.flink_consumer import FlinkConsumerCodec
from netstack.exchange.wire.flink_producer import FlinkProducerCodec
from netstack.exchange.wire.frames import (
    Acknowledge,
    AddCredit,
    BacklogAnnouncement,
    CancelChannel,
    ChannelError,
    Frame,
    Goodbye,
    Hello,
    OpenChannel,
    Ping,
    Pong,
    Resume,
)
from netstack.exchange.wire.greeting import FEATURE_CHECKSUM
from netstack.exchange.wire.outgoing_batch import GATHER_BYTES, GATHER_FRAMES, OutgoingBatch
from netstack.exchange.wire.states import TRANSITIONS, Input, State

CODEC = NativeCodec()
FULL = 256
HELLO = Hello(PROTOCOL_VERSION, FULL, FEATURE_CHECKSUM, "test 1")


def reads(data: bytes, size: int) -> Iterable[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


def feed_pieces(connection: Connection, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        feed(connection, piece)


def feed(connection: Connection, data: bytes, now: float = 0.0) -> None:
    """Stores `data` as a scattering read would."""
    rest = memoryview(data)
    while rest:
        count = 0
        for window in connection.windows():
            part = rest[: len(window)]
            window[: len(part)] = part
            rest = rest[len(part) :]
            count += len(part)
        connection.advance(count, now)


def collected(connection: Connection) -> bytes:
    data = bytearray()
    while (batch := connection.collect()) is not None:
        data += b"".join(batch.pieces)
        assert batch.take(batch.total_bytes)
    return bytes(data)


class Endpoint(TakesEach):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.features: int | None = None
        self.closed: list[Exception | None] = []
        self.to_send: list[bytes] = []

    def on_open(self, peer: Hello, features: int) -> None:
        self.features = features

    def on_frame(self, frame: Frame) -> None:
        self.told.append(frame)

    def on_buffer(
        self, channel: int, sequence: int, backlog: int, segment: Segment, length: int, checksum: int
    ) -> Segment:
        self.told.append(bytes(segment.memory[:length]))
        return segment

    def on_small_buffer(
        self, channel: int, sequence: int, backlog: int, payload: bytes | memoryview, checksum: int
    ) -> None:
        self.told.append(bytes(payload))

    def on_event(self, channel: int, sequence: int, backlog: int, data_type: DataType, payload: bytes) -> None:
        self.told.append((data_type, payload))

    def collect(self, batch: OutgoingBatch) -> None:
        while self.to_send and batch.has_room:
            batch.add_control(self.to_send.pop(0))

    def on_closed(self, error: Exception | None) -> None:
        self.closed.append(error)


class Rig:
    """A connection, what it tells its endpoint, and how often it wants to write."""

    def __init__(self, hello: Hello = HELLO, now: float = 0.0) -> None:
        self.endpoint = Endpoint()
        self.landing = allocate_segments(4, FULL)
        self.wanted = 0
        self.connection = Connection(
            CODEC,
            self.endpoint,
            hello=hello,
            landing=list(self.landing),
            peer="tcp://peer:1",
            on_write_wanted=self._want,
            now=now,
            sink=self.endpoint,  # type: ignore[arg-type]
        )

    def _want(self) -> None:
        self.wanted += 1

    def hear(self, *frames: Frame, now: float = 0.0) -> None:
        feed(self.connection, b"".join(map(CODEC.encode_control, frames)), now)


def rig_in(state: State) -> Rig:
    rig = Rig()
    if state is not State.GREETING:
        rig.hear(HELLO)
    if state in (State.FAREWELL, State.CLOSED):
        rig.hear(Goodbye())
    if state is State.CLOSED:
        rig.connection.end_of_stream()
    assert rig.connection.state is state
    return rig


# The table.

DATA_FRAME = CODEC.encode_buffer_header(0, DataType.DATA, 0, 0, 5, 0) + b"hello"
EVENT_FRAME = CODEC.encode_buffer_header(0, DataType.EVENT, 0, 0, 1, 0) + b"\x00"
OTHER_FRAMES = [
    OpenChannel(0, "p", 0, 1),
    AddCredit(((0, 1),)),
    Resume(0),
    Acknowledge(0),
    CancelChannel(0),
    BacklogAnnouncement(0, 1),
    ChannelError(0, ErrorCode.INTERNAL, ""),
    Ping(1),
    Pong(1),
]
STIMULI: dict[Input, list[Callable[[Rig], None]]] = {
    Input.HELLO: [lambda rig: rig.hear(HELLO)],
    Input.FRAME: [
        *[lambda rig, frame=frame: rig.hear(frame) for frame in OTHER_FRAMES],
        lambda rig: feed(rig.connection, DATA_FRAME),
        lambda rig: feed(rig.connection, EVENT_FRAME),
    ],
    Input.GOODBYE: [lambda rig: rig.hear(Goodbye())],
    Input.END_OF_STREAM: [lambda rig: rig.connection.end_of_stream()],
    Input.CLOSE: [lambda rig: [rig.connection.close(None), None][-1]],
}


@pytest.mark.parametrize("what", Input, ids=lambda what: what.name)
@pytest.mark.parametrize("state", State, ids=lambda state: state.name)
def test_every_state_and_input(state: State, what: Input) -> None:
    """The table's next state, or a protocol error: nothing third."""
    following = TRANSITIONS.get((state, what))
    for apply in STIMULI[what]:
        rig = rig_in(state)
        reported = len(rig.endpoint.told)
        if following is not None:
            apply(rig)
            assert rig.connection.state is following
            continue
        with pytest.raises(RemoteProtocolError) as caught:
            apply(rig)
        assert "tcp://peer:1" in caught.value.text
        assert rig.connection.state is state
        assert len(rig.endpoint.told) == reported, "a refused frame reached the endpoint"
        if what is Input.END_OF_STREAM:
            assert caught.value.code is ErrorCode.TRUNCATED_STREAM
            assert state.value in caught.value.text
        elif state is State.GREETING:
            assert caught.value.code is ErrorCode.NOT_NETSTACK
        else:
            assert caught.value.code is ErrorCode.UNEXPECTED_FRAME
            assert state.value in caught.value.text


def test_frames_reach_the_endpoint_while_open() -> None:
    rig = rig_in(State.OPEN)
    for frame in OTHER_FRAMES[:-2]:
        rig.hear(frame)
    feed(rig.connection, DATA_FRAME + EVENT_FRAME)
    assert rig.endpoint.told == [*OTHER_FRAMES[:-2], b"hello", (DataType.EVENT, b"\x00")]


# Greeting.


def test_our_hello_is_the_first_that_is_written() -> None:
    rig = Rig()
    rig.connection.send(Goodbye())
    rig.endpoint.to_send.append(b"not before both hellos")
    assert collected(rig.connection) == CODEC.encode_control(HELLO) + CODEC.encode_control(Goodbye())
    rig.hear(HELLO)
    assert collected(rig.connection) == b"not before both hellos"


@pytest.mark.parametrize("version", [0, PROTOCOL_VERSION + 1, 2**16 - 1])
def test_another_version_is_refused(version: int) -> None:
    rig = Rig()
    with pytest.raises(RemoteProtocolError, match="run the same netstack release on both sides") as caught:
        rig.hear(Hello(version, FULL, 0, "netstack 9.9"))
    assert caught.value.code is ErrorCode.VERSION_MISMATCH
    assert "netstack 9.9" in caught.value.text
    assert f"version {version}, this side uses {PROTOCOL_VERSION}" in caught.value.text
    assert rig.connection.state is State.GREETING


def test_another_segment_size_is_refused() -> None:
    rig = Rig()
    with pytest.raises(RemoteProtocolError, match="set segment_size_bytes to the same value") as caught:
        rig.hear(Hello(PROTOCOL_VERSION, 2 * FULL, 0, "x"))
    assert caught.value.code is ErrorCode.SEGMENT_SIZE_MISMATCH
    assert "512 bytes, this side uses 256" in caught.value.text


@pytest.mark.parametrize(
    ("ours", "theirs", "used"),
    [
        (0x0001_0001, 0x0000_0001, 1),
        (0x0000_0001, 0x0001_0001, 1),
        (0x0001_0001, 0x0001_0001, 1),
        (0x0000_0001, 0x0000_0001, 0),  # known to both, asked for by nobody
        (0x0001_0001, 0x0000_0000, 0),  # asked for, not known there
        (0x0001_0001, 0x0001_0000, 0),  # asked for by who does not know it
        (0x0001_0001, 0xFFFE_FFFF, 1),  # features of a later version change nothing
        (0x0000_0001, 0xFFFE_FFFE, 0),
    ],
)
def test_features(ours: int, theirs: int, used: int) -> None:
    rig = Rig(Hello(PROTOCOL_VERSION, FULL, ours, "x"))
    rig.hear(Hello(PROTOCOL_VERSION, FULL, theirs, "y"))
    assert rig.endpoint.features == used


# Foreign protocols, however their bytes are cut.

FOREIGN = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "TLS": bytes.fromhex("16030100c8010000c403035f") + bytes(32),
    "ZMTP": bytes.fromhex("ff00000000000000017f0300") + bytes(52),
    "Flink": bytes.fromhex("0000002abadc0ffe02") + bytes(33),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_protocols_are_recognised(name: str) -> None:
    rig = Rig()
    with pytest.raises(RemoteProtocolError, match="check the address and port") as caught:
        feed(rig.connection, FOREIGN[name])
    assert caught.value.code is ErrorCode.NOT_NETSTACK
    assert name in caught.value.text
    assert FOREIGN[name][:16].hex(" ") in caught.value.text


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_protocols_are_recognised_at_every_cut(name: str) -> None:
    stream = FOREIGN[name]
    for cut in range(1, len(stream)):
        rig = Rig()
        with pytest.raises(RemoteProtocolError) as caught:
            feed_pieces(rig.connection, (stream[:cut], stream[cut:]))
        assert caught.value.code is ErrorCode.NOT_NETSTACK, cut
    rig = Rig()
    with pytest.raises(RemoteProtocolError) as caught:
        feed_pieces(rig.connection, reads(stream, 1))
    assert caught.value.code is ErrorCode.NOT_NETSTACK


@pytest.mark.parametrize("piece", [1, 5, 36])
def test_a_peer_that_wants_a_secret_is_understood(piece: int) -> None:
    rig = Rig()
    with pytest.raises(RemoteProtocolError, match="requires proof of a shared secret") as caught:
        feed_pieces(rig.connection, reads(PROOF_MAGIC + bytes(32), piece))
    assert caught.value.code is ErrorCode.NOT_NETSTACK


@given(st.binary(min_size=5, max_size=64), st.integers(1, 64))
def test_random_bytes_are_not_netstack(data: bytes, piece: int) -> None:
    assume(data[4] != 0x6E)
    rig = Rig()
    with pytest.raises(RemoteProtocolError) as caught:
        feed_pieces(rig.connection, reads(data, piece))
    assert caught.value.code is ErrorCode.NOT_NETSTACK
    assert rig.connection.close(caught.value) == rig.landing


@given(st.data())
def test_any_damage_to_the_first_frame_is_an_error(data: st.DataObject) -> None:
    stream = bytearray(CODEC.encode_control(HELLO))
    position = data.draw(st.integers(0, len(stream) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda value: value != stream[position]))
    stream[position] = value
    harmless = range(CODEC.header_bytes + 14, len(stream))  # features are free, and so is the name of the software
    rig = Rig()
    try:
        feed(rig.connection, bytes(stream))
        rig.connection.end_of_stream()
    except RemoteProtocolError:
        assert rig.connection.state is not State.CLOSED
    if rig.connection.state is State.OPEN:
        assert position in harmless


# Errors in both directions.


def test_the_peer_is_told_why() -> None:
    rig = Rig()
    data = rig.connection.fail(RemoteProtocolError(ErrorCode.FRAME_TOO_LARGE, "x" * 5000))
    other = rig_in(State.OPEN)
    with pytest.raises(RemoteProtocolError, match=r"tcp://peer:1 closed the connection: x+$") as caught:
        feed(other.connection, data)
    assert caught.value.code is ErrorCode.FRAME_TOO_LARGE


def test_a_refused_hello_is_explained_to_whoever_sent_it() -> None:
    """Hello first, then the reason: so that the peer does not take us for another protocol."""
    mine, theirs = Rig(), Rig(Hello(PROTOCOL_VERSION, 2 * FULL, 0, "x"))
    stream = collected(mine.connection)
    with pytest.raises(RemoteProtocolError) as caught:
        feed(mine.connection, collected(theirs.connection))
    stream += mine.connection.fail(caught.value)
    with pytest.raises(RemoteProtocolError) as reported:
        feed(theirs.connection, stream)
    assert reported.value.code is ErrorCode.SEGMENT_SIZE_MISMATCH


def test_truncation_tells_how_much_came() -> None:
    rig = rig_in(State.OPEN)
    feed(rig.connection, DATA_FRAME[:-1])
    total = rig.connection.bytes_received
    with pytest.raises(RemoteProtocolError, match=f"in the middle of a frame, after {total} bytes") as caught:
        rig.connection.end_of_stream()
    assert caught.value.code is ErrorCode.TRUNCATED_STREAM


def test_close_returns_the_landing_segments_and_tells_once() -> None:
    rig = rig_in(State.OPEN)
    error = ConnectionLost("gone")
    assert rig.connection.close(error) == rig.landing
    assert rig.connection.close(None) == []
    assert rig.endpoint.closed == [error]
    rig.connection.send(Goodbye())
    assert rig.connection.collect() is None


# Heartbeat, in virtual time.


def test_a_silent_peer_is_pinged_and_then_lost() -> None:
    rig = Rig()
    rig.hear(HELLO, now=100.0)
    collected(rig.connection)
    rig.connection.heartbeat(109.9, 10.0, 50.0)
    assert collected(rig.connection) == b""
    rig.connection.heartbeat(110.0, 10.0, 50.0)
    rig.connection.heartbeat(120.0, 10.0, 50.0)
    assert collected(rig.connection) == CODEC.encode_control(Ping(1)), "one ping at a time"
    rig.connection.heartbeat(149.9, 10.0, 50.0)
    with pytest.raises(RemoteProtocolError, match=r"tcp://peer:1 did not answer for 50\.0 s") as caught:
        rig.connection.heartbeat(150.0, 10.0, 50.0)
    assert caught.value.code is ErrorCode.TIMED_OUT


def test_an_answer_gives_the_round_trip_and_a_new_ping_later() -> None:
    rig = Rig()
    rig.hear(HELLO)
    collected(rig.connection)
    rig.connection.heartbeat(10.0, 10.0, 50.0)
    collected(rig.connection)
    rig.hear(Pong(7), now=10.1)
    assert rig.connection.statistics().round_trip_s is None, "an answer to something else"
    rig.hear(Pong(1), now=10.25)
    assert rig.connection.statistics().round_trip_s == 0.25
    rig.hear(Pong(1), now=11.0)
    assert rig.connection.statistics().round_trip_s == 0.25
    rig.connection.heartbeat(22.0, 10.0, 50.0)
    assert collected(rig.connection) == CODEC.encode_control(Ping(2))


def test_any_byte_is_a_sign_of_life() -> None:
    rig = rig_in(State.OPEN)
    rig.connection.heartbeat(10.0, 10.0, 50.0)
    feed(rig.connection, DATA_FRAME[:1], now=59.0)
    rig.connection.heartbeat(60.0, 10.0, 50.0)
    with pytest.raises(RemoteProtocolError, match="did not answer"):
        rig.connection.heartbeat(109.0, 10.0, 50.0)


def test_who_takes_in_much_and_has_nothing_to_say_gives_a_sign_of_life() -> None:
    rig = rig_in(State.OPEN)
    collected(rig.connection)
    rig.connection.heartbeat(0.0, 10.0, 50.0)  # the hello was said since the last one
    assert collected(rig.connection) == b""
    for number in range(1, 7):  # the peer's ping stands behind a minute's work
        feed(rig.connection, DATA_FRAME, now=10.0 * number - 1)
        rig.connection.heartbeat(10.0 * number, 10.0, 50.0)
        message = CODEC.encode_control(Ping(number // 2 + 1))
        assert collected(rig.connection) == (message if number % 2 else b""), "the ping was said in between"
    rig.connection.send(CancelChannel(0))
    collected(rig.connection)
    feed(rig.connection, DATA_FRAME, now=64.0)
    rig.connection.heartbeat(70.0, 10.0, 50.0)
    assert collected(rig.connection) == b"", "something else was said"


@pytest.mark.parametrize("state", [State.GREETING, State.FAREWELL])
def test_only_an_open_connection_is_pinged(state: State) -> None:
    rig = rig_in(state)
    collected(rig.connection)
    rig.connection.heartbeat(1000.0, 10.0, 50.0)
    assert collected(rig.connection) == b""


def test_a_ping_is_answered() -> None:
    rig = rig_in(State.OPEN)
    collected(rig.connection)
    wanted = rig.wanted
    rig.hear(Ping(2**64 - 1))
    assert rig.wanted > wanted
    assert collected(rig.connection) == CODEC.encode_control(Pong(2**64 - 1))


def test_a_flood_of_pings_costs_nothing() -> None:
    """Only the newest is answered, so a peer that never reads cannot make us hoard answers."""
    rig = rig_in(State.OPEN)
    collected(rig.connection)
    flood = b"".join(CODEC.encode_control(Ping(token)) for token in range(5000))
    feed(rig.connection, flood)
    assert collected(rig.connection) == CODEC.encode_control(Pong(4999))


# Memory is bounded.


def test_control_frames_that_nobody_reads_are_bounded() -> None:
    rig = rig_in(State.OPEN)
    collected(rig.connection)
    for number in range(MAX_PENDING_CONTROL):
        rig.connection.send(ChannelError(number, ErrorCode.UNKNOWN_CHANNEL, ""))
    with pytest.raises(RemoteProtocolError, match="faster than it reads") as caught:
        rig.connection.send(ChannelError(1, ErrorCode.UNKNOWN_CHANNEL, ""))
    assert caught.value.code is ErrorCode.UNEXPECTED_FRAME
    one = len(CODEC.encode_control(ChannelError(0, ErrorCode.INTERNAL, "")))
    assert len(collected(rig.connection)) == MAX_PENDING_CONTROL * one


def test_one_write_is_bounded() -> None:
    rig = rig_in(State.OPEN)
    collected(rig.connection)
    rig.endpoint.to_send = [bytes(1000)] * 2000
    batch = rig.connection.collect()
    assert batch is not None
    assert GATHER_BYTES <= batch.total_bytes < GATHER_BYTES + 1000


class Owner:
    """Takes buffers back."""

    def __init__(self) -> None:
        self.back: list[int] = []

    def buffer(self, size: int, pieces: int = 1) -> Buffer:
        whole = memoryview(bytes(size))
        buffer = Buffer(whole[: size // pieces], size, DataType.DATA, self)
        buffer.sequence = size
        if pieces > 1:
            bounds = [size * part // pieces for part in range(pieces + 1)]
            buffer.pieces = tuple(whole[start:stop] for start, stop in itertools.pairwise(bounds))
        return buffer

    def reclaim(self, buffer: Buffer) -> None:
        self.back.append(buffer.sequence)


def batch_of(owner: Owner) -> tuple[OutgoingBatch, list[tuple[int, int]]]:
    """A batch, and for each of its buffers (its size, where it ends)."""
    batch = OutgoingBatch()
    ends = []
    batch.add_control(b"control")
    for size, pieces in ((100, 1), (7, 3), (50, 2)):
        batch.add_buffer(b"h" * 24, owner.buffer(size, pieces))
        ends.append((size, batch.total_bytes))
    batch.add_control(b"more")
    return batch, ends


def test_buffers_of_a_batch_return_as_soon_as_they_are_through_at_every_cut() -> None:
    whole = b"".join(batch_of(Owner())[0].pieces)
    for first, second in itertools.product(range(1, len(whole), 3), range(1, 60, 7)):
        if first + second >= len(whole):
            continue
        owner = Owner()
        batch, ends = batch_of(owner)
        for taken, total in ((first, first), (second, first + second)):
            assert not batch.take(taken)
            assert b"".join(batch.pieces) == whole[total:]
            assert owner.back == [size for size, end in ends if end <= total]
        assert batch.take(len(whole) - first - second)
        assert owner.back == [100, 7, 50]


def test_a_settled_batch_needs_its_buffers_no_more() -> None:
    owner = Owner()
    batch, _ = batch_of(owner)
    whole = b"".join(batch.pieces)
    assert not batch.take(40)
    batch.settle()
    assert owner.back == [100, 7, 50]
    assert b"".join(batch.pieces) == whole[40:]
    assert not batch.take(10)
    assert b"".join(batch.pieces) == whole[50:]
    assert batch.take(len(whole) - 50)


def test_releasing_a_batch_twice_returns_its_buffers_once() -> None:
    owner = Owner()
    batch, _ = batch_of(owner)
    batch.release()
    batch.release()
    assert owner.back == [100, 7, 50]


def test_a_batch_has_room_for_so_many_buffers() -> None:
    batch = OutgoingBatch()
    owner = Owner()
    count = 0
    while batch.has_room:
        batch.add_buffer(b"", owner.buffer(1))
        count += 1
    assert count == GATHER_FRAMES


def test_an_endpoint_that_fails_while_it_is_asked_loses_no_buffer() -> None:
    owner = Owner()

    class Failing(Endpoint):
        def collect(self, batch: OutgoingBatch) -> None:
            batch.add_buffer(b"", owner.buffer(9))
            raise RemoteProtocolError(ErrorCode.UNEXPECTED_FRAME, "in the middle")

    connection = Connection(
        CODEC, Failing(), hello=HELLO, landing=[], peer="peer", on_write_wanted=lambda: None, now=0.0
    )
    collected_hello = connection.collect()
    assert collected_hello is not None
    feed(connection, CODEC.encode_control(HELLO))
    with pytest.raises(RemoteProtocolError, match="in the middle"):
        connection.collect()
    assert owner.back == [9]


# A recorded exchange, cut at every byte.


class Host:
    """What a partition wants of its TaskManager; here nothing happens by itself."""

    def now(self) -> float:
        return 0.0

    ticks = now

    def flush_connections(self) -> None: ...

    settle = hold = flush_held = flush_connections

    def call_at(self, deadline_s: float, callback: Callable[[], None]) -> None: ...


class Producer:
    """A producer of one partition of three buffers and the end."""

    def __init__(self) -> None:
        self.pool = NetworkBufferPool(4, FULL)
        self.partition = ResultPartition(
            PartitionId("p"),
            ResultPartitionType.PIPELINED_BOUNDED,
            1,
            self.pool.create_pool(4, 4, subpartitions=1),
            on_released=lambda partition: None,
            host=Host(),
        )
        for part in (bytes(FULL), b"two", b"three"):
            builder = open_builder(self.partition, 0)
            builder.append(part)
            self.partition.subpartitions[0].add(builder.create_consumer())
            builder.finish()
            self.partition.subpartitions[0].on_buffer_finished()
            builder.close()
        self.partition.end_of_data()
        self.partition.finish()
        self.partition.close()
        sender = ChannelSender(
            CODEC, self, max_channels=1, on_write_wanted=lambda: None, send=lambda frame: self.connection.send(frame)
        )
        self.connection = Connection(
            CODEC, sender, hello=HELLO, landing=[], peer="the consumer", on_write_wanted=lambda: None, now=0.0
        )

    def open_view(
        self,
        partition_id: str,
        subpartition: int,
        notify: Notify,
        on_view: Callable[[BufferSource], None],
        on_failed: Callable[[ChannelFailed], None],
        subpartitions: int = 1,
        packaging: Packaging = Packaging.PLAIN,
    ) -> Callable[[], None]:
        on_view(self.partition.create_view(subpartition, notify))
        return lambda: None


class Consumer:
    """A consumer of that partition."""

    def __init__(self) -> None:
        self.pool = NetworkBufferPool(8, FULL)
        self.receiver = ChannelReceiver(
            CODEC,
            peer="the producer",
            on_write_wanted=lambda: None,
            send=lambda frame: self.connection.send(frame),
            on_empty=lambda: self.connection.send(Goodbye()),
            write_now=lambda: None,
        )
        self.connection = Connection(
            CODEC,
            self.receiver,
            hello=HELLO,
            landing=self.pool.take_unpooled(4),
            peer="the producer",
            on_write_wanted=lambda: None,
            now=0.0,
            sink=self.receiver,
        )
        floating = self.pool.create_pool(1, 1)
        self.gate = SingleInputGate(floating, read_connections=lambda: None, on_closed=lambda: None)
        self.channel = RemoteInputChannel(
            self.gate,
            0,
            ChannelDescriptor("the producer", "p", 0),
            exclusive=self.pool.take_unpooled(2),
            pool=floating,
            network=self.pool,
        )
        self.gate.add_channel(self.channel)
        self.receiver.open(self.channel)

    def read(self) -> tuple[list[bytes], NetstackError | None]:
        """What there is, and how it ended."""
        payloads = []
        try:
            while (buffer := self.gate.poll()) is not None:
                payloads.append(bytes(buffer.memory))
                if buffer.data_type is DataType.END_OF_DATA:
                    self.gate.acknowledge_end_of_data(0)
                buffer.recycle()
        except NetstackError as error:
            return payloads, error
        return payloads, None

    def close(self, error: Exception | None) -> None:
        self.pool.recycle_unpooled(self.connection.close(error))


def recorded() -> tuple[bytes, bytes]:
    """All bytes of a complete exchange: of the producer, of the consumer."""
    producer, consumer = Producer(), Consumer()
    streams = [b"", b""]
    for _ in range(4):
        part = collected(consumer.connection)
        feed(producer.connection, part)
        streams[1] += part
        part = collected(producer.connection)
        feed(consumer.connection, part)
        streams[0] += part
        consumer.read()
    producer.connection.send(Goodbye())
    return streams[0] + collected(producer.connection), streams[1]


FROM_PRODUCER, FROM_CONSUMER = recorded()


def test_the_recorded_exchange_is_complete() -> None:
    goodbye = CODEC.encode_control(Goodbye())
    assert FROM_PRODUCER.endswith(goodbye)
    assert FROM_CONSUMER.endswith(goodbye)
    assert FROM_PRODUCER.count(b"three") == 1


@pytest.mark.slow
@pytest.mark.parametrize("size", [1 << 20, 100], ids=["one read", "many reads"])
def test_a_producer_that_is_cut_off_at_any_byte(size: int) -> None:
    seen: set[int] = set()
    for cut in range(len(FROM_PRODUCER) + 1):
        consumer = Consumer()
        failed: RemoteProtocolError | None = None
        try:
            feed_pieces(consumer.connection, reads(FROM_PRODUCER[:cut], size))
            consumer.connection.end_of_stream()
        except RemoteProtocolError as error:
            failed = error
        assert (failed is None) is (cut == len(FROM_PRODUCER))
        if failed is not None:
            assert failed.code is ErrorCode.TRUNCATED_STREAM
            assert "producer ended" in failed.text
        consumer.close(failed)
        payloads, error = consumer.read()
        seen.add(len(payloads))
        if len(payloads) < 5:  # the channel had not read its end
            assert isinstance(error, ConnectionLost)
            assert "'p' subpartition 0 at the producer" in str(error)
        consumer.gate.close()
        assert consumer.pool.statistics().lent_segments == 0, cut
        assert collected(consumer.connection) == b""
    assert seen == {0, 1, 2, 3, 4, 5}


@pytest.mark.slow
@pytest.mark.parametrize("size", [1 << 20, 1], ids=["one read", "byte by byte"])
def test_a_consumer_that_is_cut_off_at_any_byte(size: int) -> None:
    for cut in range(len(FROM_CONSUMER) + 1):
        producer = Producer()
        failed: RemoteProtocolError | None = None
        sent = b""
        try:
            for piece in reads(FROM_CONSUMER[:cut], size):
                feed(producer.connection, piece)
                sent += collected(producer.connection)
            producer.connection.end_of_stream()
        except RemoteProtocolError as error:
            failed = error
        assert (failed is None) is (cut == len(FROM_CONSUMER))
        assert failed is None or failed.code is ErrorCode.TRUNCATED_STREAM
        assert FROM_PRODUCER.startswith(sent) or size > 1
        assert producer.connection.close(failed) == []
        producer.partition.release()
        assert producer.pool.statistics().lent_segments == 0, cut


# A dialect without hellos, pings and goodbyes.


class BareRig:
    """A connection that speaks as Flink does, with an endpoint that says how many channels it has."""

    def __init__(self, codec: FlinkConsumerCodec | FlinkProducerCodec) -> None:
        self.endpoint = Endpoint()
        self.endpoint.is_idle = False  # type: ignore[attr-defined]
        self.parts: list[object] = []
        self.endpoint.on_parts = lambda *told: self.parts.append(told)  # type: ignore[attr-defined]
        self.connection = Connection(
            codec,
            self.endpoint,  # type: ignore[arg-type]
            hello=HELLO,
            landing=allocate_segments(4, FULL),
            peer="tcp://peer:1",
            on_write_wanted=lambda: None,
            now=0.0,
            sink=self.endpoint,  # type: ignore[arg-type]
        )


def bare_pair() -> tuple[BareRig, FlinkProducerCodec]:
    consumer, producer = FlinkConsumerCodec(lambda: bytes(16), FULL), FlinkProducerCodec(FULL)
    request = consumer.encode_control(OpenChannel(0, "ab" * 60, 0, 2))
    producer.decode_control(2, 0, request[9:])
    return BareRig(consumer), producer


def test_a_connection_without_hellos_is_open_at_once() -> None:
    rig, producer = bare_pair()
    assert rig.connection.state is State.OPEN
    assert rig.endpoint.features == 0
    assert collected(rig.connection) == b""
    feed(rig.connection, producer.encode_buffer_header(0, DataType.DATA, 0, 0, 3, 0) + b"abc")
    feed(rig.connection, composite(producer, 0, DataType.DATA, 1, 0, [b"d", b"ef"]))
    assert rig.endpoint.told == [b"abc"]
    assert [reported[4] for reported in rig.parts] == [(1, 2)]  # type: ignore[index]


def test_a_connection_without_pings_waits() -> None:
    rig, _ = bare_pair()
    rig.connection.heartbeat(1000.0, 10.0, 50.0)
    rig.connection.heartbeat(2000.0, 10.0, 50.0)
    assert collected(rig.connection) == b""


@pytest.mark.parametrize("how", ["idle", "left"])
def test_without_goodbyes_the_end_of_an_idle_stream_is_regular(how: str) -> None:
    rig, _ = bare_pair()
    if how == "idle":
        rig.endpoint.is_idle = True  # type: ignore[attr-defined]
    else:
        rig.connection.send(Goodbye())
        assert collected(rig.connection) == bytes.fromhex("00000009badc0ffe05")
    rig.connection.end_of_stream()
    assert rig.connection.state is State.CLOSED


def test_without_goodbyes_the_end_of_a_stream_with_channels_is_a_loss() -> None:
    rig, _ = bare_pair()
    with pytest.raises(RemoteProtocolError, match="while channels were open") as caught:
        rig.connection.end_of_stream()
    assert caught.value.code is ErrorCode.TRUNCATED_STREAM


def test_a_close_request_is_a_goodbye() -> None:
    rig = BareRig(FlinkProducerCodec(FULL))
    feed(rig.connection, bytes.fromhex("00000009badc0ffe05"))
    assert rig.connection.state is State.FAREWELL
    rig.connection.end_of_stream()
    assert rig.connection.state is State.CLOSED


def test_a_consumer_has_no_words_for_a_failure_and_a_producer_has() -> None:
    error = RemoteProtocolError(ErrorCode.MALFORMED_FRAME, "bad")
    rig, _ = bare_pair()
    assert rig.connection.fail(error) == b""
    message = BareRig(FlinkProducerCodec(FULL)).connection.fail(error)
    assert message.endswith(b"MALFORMED_FRAME: badx\0")


def test_parts_before_a_hello_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="sent data buffers in state greeting"):
        Rig().connection.on_parts(0, 0, 0, memoryview(b""), (), None)


@pytest.mark.parametrize(
    ("send", "text"),
    [
        (
            lambda connection: feed(connection, b"".join(CODEC.encode_event(3, DataType.EVENT, 0, 0, b"x"))),
            "a consumer sent an event for channel 3",
        ),
        (
            lambda connection: feed(connection, CODEC.encode_buffer_header(3, DataType.DATA, 0, 0, 0, 0)),
            "data buffer of 0 bytes for channel 3",
        ),
        (
            lambda connection: connection.on_parts(3, 0, 0, memoryview(b""), (), None),
            "a consumer sent data buffers for channel 3",
        ),
    ],
)
def test_a_consumer_sends_no_data(send: Callable[[Connection], None], text: str) -> None:
    endpoint: Any = Endpoint()
    connection = Connection(
        CODEC, endpoint, hello=HELLO, landing=[], peer="peer", on_write_wanted=lambda: None, now=0.0
    )
    feed(connection, CODEC.encode_control(HELLO))
    with pytest.raises(RemoteProtocolError, match=text):
        send(connection)
    assert endpoint.told == []
