"""The pump: whatever the stream does, buffers come back, the end is told once, and no exception escapes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import pytest
import trio
import trio.testing

from netstack.buffer.buffer import Buffer
from netstack.buffer.segment import Segment, allocate_segments
from netstack.errors import ConnectionLost, ErrorCode, NetstackError, RemoteProtocolError
from netstack.events import DataType
from netstack.runtime.pump import Pump
from netstack.transport import ByteStream, Piece
from netstack.wire.codec_native import PROTOCOL_VERSION, NativeCodec
from netstack.wire.connection import Connection, OutgoingBatch
from netstack.wire.frames import AddCredit, ConnectionFailure, Frame, Goodbye, Hello

CODEC = NativeCodec()
HELLO = Hello(PROTOCOL_VERSION, 64, 0, "test")


class ScriptedStream(ByteStream):
    """Takes as many bytes as it has room for; gives what the test puts in."""

    def __init__(self) -> None:
        self.peer = "script://peer"
        self.room = 1 << 20
        self.sent = bytearray()
        self.incoming = bytearray()
        self.ended = False
        self.eof_sent = False
        self.broken: ConnectionLost | None = None
        self.broken_for_writes: ConnectionLost | None = None
        self.closed = 0
        self._changed = trio.lowlevel.ParkingLot()

    def change(self) -> None:
        self._changed.unpark_all()

    def try_send(self, pieces: Sequence[Piece]) -> int:
        broken = self.broken or self.broken_for_writes
        if broken is not None:
            raise broken
        data = b"".join(pieces)[: self.room]
        self.room -= len(data)
        self.sent += data
        return len(data)

    def try_receive_into(self, windows: Sequence[memoryview]) -> int | None:
        if self.broken is not None:
            raise self.broken
        if not self.incoming:
            return 0 if self.ended else None
        taken = 0
        for window in windows:
            part = self.incoming[: len(window)]
            window[: len(part)] = part
            del self.incoming[: len(part)]
            taken += len(part)
        return taken

    async def wait_writable(self) -> None:
        while not self.room and not self.closed:
            await self._changed.park()
        self._check()

    async def wait_readable(self) -> None:
        while not self.incoming and not self.ended and self.broken is None and not self.closed:
            await self._changed.park()
        self._check()

    def send_eof(self) -> None:
        self.eof_sent = True

    def close(self) -> None:
        self.closed += 1
        self.change()

    def _check(self) -> None:
        if self.closed:
            raise trio.ClosedResourceError


class FakeEndpoint:
    """Has buffers to send, and keeps what it hears."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.recycled = 0
        self.closed: list[Exception | None] = []
        self.heard = 0
        self.on_data: Callable[[], None] = lambda: None

    def add(self, data: bytes) -> None:
        self.buffers.append(Buffer(memoryview(data), len(data), DataType.DATA, self))

    def reclaim(self, buffer: Buffer) -> None:
        self.recycled += 1

    def on_open(self, peer: Hello, features: int) -> None:
        pass

    def on_frame(self, frame: Frame) -> None:
        pass

    def on_buffer(
        self, channel: int, sequence: int, backlog: int, segment: Segment, length: int, checksum: int
    ) -> Segment:
        self.heard += 1
        self.on_data()
        return segment

    def on_event(self, channel: int, sequence: int, backlog: int, data_type: DataType, payload: bytes) -> None:
        pass

    def collect(self, batch: OutgoingBatch) -> None:
        for buffer in self.buffers:
            batch.add_buffer(CODEC.encode_buffer_header(0, buffer.data_type, 0, 0, buffer.length, 0), buffer)
        self.buffers = []

    def on_closed(self, error: Exception | None) -> None:
        self.closed.append(error)


class Stage:
    def __init__(self) -> None:
        self.stream = ScriptedStream()
        self.endpoint = FakeEndpoint()
        self.dirty = 0
        self.closed: list[Exception | None] = []
        self.wanted: Callable[[], None]
        self.pump = Pump(self.stream, self.connect, on_dirty=self.on_dirty, on_closed=self.on_closed, answers=True)

    def connect(self, on_write_wanted: Callable[[], None]) -> Connection:
        self.wanted = on_write_wanted
        return Connection(
            CODEC,
            self.endpoint,
            hello=HELLO,
            landing=allocate_segments(2, 64),
            peer="script://peer",
            on_write_wanted=on_write_wanted,
            now=0.0,
        )

    def on_dirty(self, pump: Pump) -> None:
        self.dirty += 1

    def on_closed(self, pump: Pump, error: Exception | None) -> None:
        self.closed.append(error)

    def hear(self, *frames: Frame) -> None:
        self.stream.incoming += b"".join(map(CODEC.encode_control, frames))
        self.stream.change()

    def open(self) -> None:
        self.hear(HELLO)
        self.pump.read_now()
        assert self.pump.opened.is_set()

    def told(self) -> list[Frame]:
        """The control frames that were sent."""
        found, data = [], bytes(self.stream.sent)
        while data:
            _, length, kind, channel, *_ = CODEC.parse_header(memoryview(data), 0)
            end = CODEC.header_bytes + length
            if kind != DataType.DATA:
                found.append(CODEC.decode_control(kind, channel, data[CODEC.header_bytes : end]))
            data = data[end:]
        return found


@pytest.fixture
def stage() -> Stage:
    return Stage()


# Without tasks: the calls anybody may make.


def in_trio(test: Callable[[Stage], None]) -> Callable[[Stage], None]:
    """Runs a test where trio's clock can be read."""

    @functools.wraps(test)
    def run(stage: Stage) -> None:
        async def main() -> None:
            test(stage)

        trio.run(main)

    return run


@in_trio
def test_a_hello_is_wanted_from_the_start_and_sent_first(stage: Stage) -> None:
    assert (stage.pump.is_dirty, stage.dirty) == (True, 1)
    stage.pump.write_now()
    assert stage.told() == [HELLO]
    assert not stage.pump.is_dirty


@in_trio
def test_buffers_come_back_when_they_were_sent(stage: Stage) -> None:
    stage.open()
    stage.endpoint.add(b"x" * 10)
    stage.wanted()
    assert stage.pump.is_dirty
    stage.pump.write_now()
    assert stage.endpoint.recycled == 1
    assert stage.stream.sent.endswith(b"x" * 10)


@in_trio
def test_buffers_of_a_write_that_fails_come_back(stage: Stage) -> None:
    stage.open()
    stage.endpoint.add(b"x" * 10)
    stage.endpoint.add(b"y" * 10)
    stage.stream.broken = ConnectionLost("reset by peer")
    stage.wanted()
    stage.pump.write_now()
    assert stage.endpoint.recycled == 2
    assert stage.closed == [stage.stream.broken]
    assert stage.endpoint.closed == [stage.stream.broken]
    assert stage.stream.closed == 1
    assert len(stage.pump.landing) == 2


@in_trio
def test_buffers_of_a_write_that_is_half_done_come_back_at_the_end(stage: Stage) -> None:
    stage.open()
    stage.endpoint.add(b"x" * 10)
    stage.endpoint.add(b"y" * 10)
    stage.stream.room = 24 + 10 + 5
    stage.wanted()
    stage.pump.write_now()
    assert stage.endpoint.recycled == 1
    stage.pump.abort(None)
    assert stage.endpoint.recycled == 2


@in_trio
def test_settling_lets_lent_memory_change(stage: Stage) -> None:
    stage.open()
    memory = bytearray(b"x" * 10)
    stage.endpoint.buffers.append(Buffer(memoryview(memory), 10, DataType.DATA, stage.endpoint))
    stage.stream.room = 24 + 5
    stage.wanted()
    stage.pump.write_now()
    stage.pump.settle()
    assert stage.endpoint.recycled == 1
    memory[:] = b"y" * 10
    stage.stream.room = 100
    stage.pump._is_full = False  # what the pump's own task does once the stream is writable
    stage.pump.write_now()
    assert stage.stream.sent.endswith(b"x" * 10)
    assert stage.endpoint.recycled == 1


@in_trio
def test_a_peer_that_breaks_the_protocol_is_told_why(stage: Stage) -> None:
    stage.pump.write_now()
    stage.hear(Goodbye())  # no hello before
    stage.pump.read_now()
    (error,) = stage.closed
    assert isinstance(error, RemoteProtocolError)
    failure = stage.told()[-1]
    assert isinstance(failure, ConnectionFailure)
    assert failure.code is error.code
    assert stage.pump.opened.is_set()
    assert stage.pump.error is error


@in_trio
def test_an_end_without_a_goodbye_is_a_loss(stage: Stage) -> None:
    stage.open()
    stage.stream.ended = True
    stage.pump.read_now()
    (error,) = stage.closed
    assert isinstance(error, NetstackError)
    assert isinstance(error, RemoteProtocolError)
    assert error.code is ErrorCode.TRUNCATED_STREAM
    assert "script://peer ended the stream without a goodbye" in str(error)


@in_trio
def test_an_end_after_a_goodbye_is_none(stage: Stage) -> None:
    stage.open()
    stage.hear(Goodbye())
    stage.stream.ended = True
    stage.pump.read_now()
    stage.pump.read_now()
    assert stage.closed == [None]
    assert stage.pump.error is None


@in_trio
def test_a_broken_read_closes(stage: Stage) -> None:
    stage.open()
    stage.stream.broken = ConnectionLost("reset by peer")
    stage.pump.read_now()
    assert stage.closed == [stage.stream.broken]


@pytest.mark.parametrize("cut", [0, 10], ids=["whole", "torn"])
def test_a_write_in_the_middle_of_a_read_waits_for_its_end(stage: Stage, cut: int) -> None:
    """Credit is announced while data is taken in, and the peer has just died: the read keeps its memory."""

    @in_trio
    def run(stage: Stage) -> None:
        stage.open()
        stage.pump.write_now()

        def announce() -> None:
            stage.stream.broken_for_writes = ConnectionLost("reset by peer")
            stage.pump.connection.send(AddCredit(((0, 1),)))
            stage.pump.write_between_reads()

        stage.endpoint.on_data = announce
        frame = CODEC.encode_buffer_header(0, DataType.DATA, 0, 0, 40, 0) + bytes(40)
        stage.stream.incoming += (frame * 3)[: len(frame) * 3 - cut]
        stage.pump.read_now()
        assert stage.endpoint.heard == (2 if cut else 3)
        assert stage.closed == [stage.stream.broken_for_writes]  # told when the read was over
        assert len(stage.pump.landing) == 2
        assert len(set(map(id, stage.pump.landing))) == 2

    run(stage)


@in_trio
def test_nothing_happens_after_the_end(stage: Stage) -> None:
    stage.pump.abort(None)
    stage.pump.abort(ConnectionLost("again"))
    stage.pump.leave()
    stage.wanted()
    stage.pump.write_now()
    stage.hear(HELLO)
    assert not stage.pump.read_now()
    assert stage.closed == [None]
    assert stage.endpoint.closed == [None]
    assert stage.stream.sent == b""


# With its tasks.


def with_tasks(scenario: Callable[[Stage], Callable[[], None] | None]) -> Stage:
    """Runs the pump's tasks, the scenario, and then (after everything has settled) what the scenario returned."""
    stages: list[Stage] = []

    async def main() -> None:
        stage = Stage()
        stages.append(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.pump.run, None, 1.0)
            await trio.testing.wait_all_tasks_blocked()
            check = scenario(stage)
            await trio.testing.wait_all_tasks_blocked()
            if check is not None:
                check()
                await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main)
    return stages[0]


def test_a_full_stream_is_gone_on_with_when_it_has_room() -> None:
    def scenario(stage: Stage) -> Callable[[], None]:
        stage.open()
        stage.stream.room = 30
        stage.endpoint.add(b"x" * 40)
        stage.wanted()
        stage.pump.write_now()

        def more() -> None:
            assert stage.endpoint.recycled == 0
            stage.stream.room = 1000
            stage.stream.change()

        return more

    stage = with_tasks(scenario)
    assert stage.endpoint.recycled == 1
    assert stage.stream.sent.endswith(b"x" * 40)


def test_data_that_comes_while_nobody_asks_is_read() -> None:
    def scenario(stage: Stage) -> None:
        stage.hear(HELLO)

    assert with_tasks(scenario).pump.connection.peer_hello == HELLO


def test_leaving_says_goodbye_behind_everything_and_then_ends() -> None:
    def scenario(stage: Stage) -> Callable[[], None]:
        stage.open()
        stage.stream.room = 30
        stage.endpoint.add(b"x" * 40)
        stage.wanted()
        stage.pump.write_now()
        stage.pump.leave()
        stage.pump.leave()

        def more() -> None:
            assert not stage.stream.eof_sent
            stage.stream.room = 1000
            stage.stream.change()

        return more

    stage = with_tasks(scenario)
    assert stage.stream.eof_sent
    assert stage.stream.sent.endswith(b"x" * 40 + CODEC.encode_control(Goodbye()))
    assert stage.endpoint.recycled == 1


def test_a_goodbye_is_answered_with_one() -> None:
    def scenario(stage: Stage) -> None:
        stage.open()
        stage.hear(Goodbye())

    stage = with_tasks(scenario)
    assert stage.told()[-1] == Goodbye()
    assert stage.stream.eof_sent


def test_cancellation_closes() -> None:
    stage = with_tasks(lambda stage: stage.open())
    (error,) = stage.closed
    assert isinstance(error, ConnectionLost)
    assert "script://peer was closed by this TaskManager" in str(error)
    assert stage.stream.closed == 1


def test_a_silent_peer_is_declared_lost() -> None:
    async def main() -> None:
        stage = Stage()
        stage.hear(HELLO)
        with trio.fail_after(100):
            await stage.pump.run(1.0, 3.0)
        (error,) = stage.closed
        assert isinstance(error, ConnectionLost)
        assert "did not answer" in str(error)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
