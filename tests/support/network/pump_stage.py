"""A pump over a stream that reads and writes as a test tells it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import trio
import trio.testing
from exchange.landed_runs import TakesEach
from segments import allocate_segments

from netstack.base.errors import ConnectionLost
from netstack.base.events import DataType
from netstack.base.transport import ByteStream, Piece
from netstack.exchange.buffer.buffer import Buffer
from netstack.exchange.buffer.segment import Segment
from netstack.exchange.wire.codec_native import PROTOCOL_VERSION, NativeCodec
from netstack.exchange.wire.connection import Connection
from netstack.exchange.wire.frames import Frame, Hello
from netstack.exchange.wire.outgoing_batch import OutgoingBatch
from netstack.network.connection.pump import Pump
from netstack.network.waiting.loop_lock import LoopLock

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


class FakeEndpoint(TakesEach):
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

    def on_small_buffer(
        self, channel: int, sequence: int, backlog: int, payload: bytes | memoryview, checksum: int
    ) -> None:
        self.heard += 1
        self.on_data()

    def on_event(self, channel: int, sequence: int, backlog: int, data_type: DataType, payload: bytes) -> None:
        pass

    def collect(self, batch: OutgoingBatch) -> None:
        for buffer in self.buffers:
            batch.add_buffer(CODEC.encode_buffer_header(0, buffer.data_type, 0, 0, buffer.length, 0), buffer)
        self.buffers = []

    def on_closed(self, error: Exception | None) -> None:
        self.closed.append(error)


class Stage:
    """A pump; of a producer, or (`answers=False`) of a consumer."""

    def __init__(self, *, answers: bool = True, segment_bytes: int = 64) -> None:
        self.stream = ScriptedStream()
        self.endpoint = FakeEndpoint()
        self.unsent: dict[Pump, None] = {}
        self.loop_lock = LoopLock(trio.current_time)
        self.closed: list[Exception | None] = []
        self.wanted: Callable[[], None]
        self.hello = replace(HELLO, segment_size_bytes=segment_bytes)
        self.mistakes: list[str] = []
        self.pump = Pump(
            self.stream,
            self.connect,
            unsent=self.unsent,
            on_closed=self.on_closed,
            on_mistake=lambda text, error: self.mistakes.append(text),
            on_continue=None,
            answers=answers,
            loop_lock=self.loop_lock,
        )

    def connect(self, on_write_wanted: Callable[[], None]) -> Connection:
        self.wanted = on_write_wanted
        return Connection(
            CODEC,
            self.endpoint,
            hello=self.hello,
            landing=allocate_segments(2, self.hello.segment_size_bytes),
            peer="script://peer",
            on_write_wanted=on_write_wanted,
            now=0.0,
            sink=self.endpoint,  # type: ignore[arg-type]
        )

    def on_closed(self, pump: Pump, error: Exception | None) -> None:
        self.closed.append(error)

    def hear(self, *frames: Frame) -> None:
        self.stream.incoming += b"".join(map(CODEC.encode_control, frames))
        self.stream.change()

    def open(self) -> None:
        self.hear(self.hello)
        self.pump.read_now()
        assert self.pump.opened.is_set()

    def told(self) -> list[Frame]:
        """The control frames that were sent."""
        actual, data = [], bytes(self.stream.sent)
        while data:
            _, length, kind, channel, *_ = CODEC.parse_header(memoryview(data), 0)
            end = CODEC.header_bytes + length
            if kind != DataType.DATA:
                actual.append(CODEC.decode_control(kind, channel, data[CODEC.header_bytes : end]))
            data = data[end:]
        return actual
