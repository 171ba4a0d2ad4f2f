"""Stand-ins for the environment of the data path: a manual clock and a manual pipe.

Takes: calls of `Link` or of a test. Gives: a `PartitionHost` without a TaskManager, and a connection's two ends without
a stream.

The pipe parses the bytes: it derives the data buffers and credits in flight from them, not from the code under test.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import final

from ..base.errors import RemoteProtocolError
from ..base.events import DataType
from ..exchange.buffer.segment import Segment
from ..exchange.wire.codec import FrameKind
from ..exchange.wire.codec_native import NativeCodec
from ..exchange.wire.connection import Connection
from ..exchange.wire.frames import AddCredit
from ..exchange.wire.outgoing_batch import OutgoingBatch

Chunk = Callable[[int], int]
"""How many of the available bytes a call moves; the result is clamped to 1 .. the argument."""


def everything(available_bytes: int) -> int:
    """A `Chunk`: all bytes."""
    return available_bytes


def one_byte(available_bytes: int) -> int:
    """A `Chunk`: one byte at a time."""
    return 1


@final
class VirtualHost:
    """A `PartitionHost` whose clock only moves when told to."""

    def __init__(self, settle: Callable[[], None]) -> None:
        """Args: what copies a write that is half done."""
        self.settle = settle
        self.kicks = 0
        """How often a writer asked the connections to send."""
        self.is_held = False
        """Whether a writer has announced `flush_held`."""
        self.on_kick: Callable[[], None] | None = None
        """What such a request does; nothing, if not given: steps do the sending."""
        self._now_s = 0.0
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        """Virtual seconds."""
        return self._now_s

    ticks = now

    def flush_connections(self) -> None:
        """Implements `PartitionHost.flush_connections`."""
        self.kicks += 1
        if self.on_kick is not None:
            self.on_kick()

    def hold(self) -> None:
        """Implements `PartitionHost.hold`."""
        self.is_held = True

    def flush_held(self) -> None:
        """Implements `PartitionHost.flush_held`; sends nothing, because `flush_connections` has sent all data."""
        self.is_held = False

    def call_at(self, deadline_s: float, callback: Callable[[], None]) -> None:
        """Implements `PartitionHost.call_at`."""
        heapq.heappush(self._calls, (deadline_s, next(self._order), callback))

    def advance(self, seconds: float) -> None:
        """Lets time pass; deadlines are called in order, each at its own time."""
        until = self._now_s + seconds
        while self._calls and self._calls[0][0] <= until:
            deadline, _, callback = heapq.heappop(self._calls)
            self._now_s = max(self._now_s, deadline)
            callback()
        self._now_s = until

    @property
    def pending_calls(self) -> int:
        """Deadlines still to come."""
        return len(self._calls)


@final
class Pipe:
    """One direction: bytes under way, and which frames they are (counted here, not by the code under test).

    A frame is under way from when it is collected for a write (a write may carry a part of it only) until its last byte
    is read.
    """

    def __init__(self, codec: NativeCodec, capacity_bytes: int) -> None:
        self.under_way = bytearray()
        self.capacity_bytes = capacity_bytes
        self.written_bytes = 0
        self.read_bytes = 0
        self.cut_at: int | None = None
        self.data: dict[int, int] = {}
        """Data buffers under way, by channel; no entry: none."""
        self.credits: dict[int, int] = {}
        """Credits under way, by channel; no entry: none."""
        self._codec = codec
        self._collected_bytes = 0
        self._frames: deque[tuple[int, int, int]] = (
            deque()
        )  # end of the frame in the stream, channel, credits (0: data)

    @property
    def room_bytes(self) -> int:
        """What it still takes."""
        return self.capacity_bytes - len(self.under_way)

    @property
    def is_cut(self) -> bool:
        """Whether everything before the break was read."""
        return self.cut_at is not None and self.read_bytes >= self.cut_at

    def expect(self, frames: bytes) -> None:
        """Takes note of whole frames that are about to be written, perhaps in parts."""
        start = 0
        view = memoryview(frames)
        while start < len(frames):
            kind, length, data_type, channel, *_ = self._codec.parse_header(view, start)
            body = start + self._codec.header_bytes
            start = body + length
            end = self._collected_bytes + start
            if kind is FrameKind.BUFFER:
                if data_type == DataType.DATA:
                    self._note(end, channel, 0)
            else:
                frame = self._codec.decode_control(data_type, channel, frames[body:start])
                if isinstance(frame, AddCredit):
                    for number, count in frame.pairs:
                        self._note(end, number, count)
        self._collected_bytes += len(frames)

    def write(self, data: bytes) -> None:
        """Takes bytes in."""
        self.under_way += data
        self.written_bytes += len(data)

    def read_into(self, windows: Sequence[memoryview], count: int) -> None:
        """Moves the next `count` bytes into `windows`, in order."""
        left = memoryview(bytes(self.under_way[:count]))
        del self.under_way[:count]
        self.read_bytes += count
        for window in windows:
            part = min(len(window), len(left))
            window[:part] = left[:part]
            left = left[part:]
            if not left:
                break
        frames = self._frames
        while frames and frames[0][0] <= self.read_bytes:
            _, channel, credits = frames.popleft()
            counts = self.credits if credits else self.data
            counts[channel] -= credits or 1
            if not counts[channel]:
                del counts[channel]

    def _note(self, end: int, channel: int, credits: int) -> None:
        self._frames.append((end, channel, credits))
        counts = self.credits if credits else self.data
        counts[channel] = counts.get(channel, 0) + (credits or 1)


@final
class Half:
    """One end of the pipe: a connection, and the write it is in the middle of."""

    def __init__(self, outgoing: Pipe, incoming: Pipe) -> None:
        self.outgoing = outgoing
        self.incoming = incoming
        self.batch: OutgoingBatch | None = None
        self.is_closed = False
        self.error: Exception | None = None
        self.connection: Connection
        self.on_closed: Callable[[list[Segment]], None] | None = None
        self.is_write_wanted = True  # a connection starts with a hello
        """Whether a pump would ask for something to write."""
        self._rest = b""  # of the incomplete write

    def want_write(self) -> None:
        """Notes that the connection has something to write (`on_write_wanted`)."""
        self.is_write_wanted = True

    def write(self, chunk: Chunk) -> int:
        """Performs one write of ready data. Returns the bytes that the pipe accepted.

        Raises:
            AssertionError: there is data to write without a notification, so a pump would have slept; or an incomplete
                write continued with other bytes.
        """
        room = self.outgoing.room_bytes
        if self.is_closed or room <= 0:
            return 0
        batch = self.batch
        if batch is None:
            was_wanted, self.is_write_wanted = self.is_write_wanted, False
            batch = self.connection.collect()
            if batch is None:
                return 0
            assert was_wanted, f"{self.connection.peer}: {batch.total_bytes} bytes to write, and no write was requested"
            self.is_write_wanted = True  # as a pump does, ask until there is nothing more
            self.batch = batch
            self._rest = b"".join(batch.pieces)
            self.outgoing.expect(self._rest)
        stream = b"".join(batch.pieces)
        assert stream == self._rest, f"{self.connection.peer}: a write that was half done goes on with other bytes"
        count = _clamp(chunk, min(len(stream), room))
        self.outgoing.write(stream[:count])
        self._rest = stream[count:]
        if batch.take(count):
            self.batch = None
        return count

    def read(self, chunk: Chunk, now_s: float) -> int:
        """Performs one read; a protocol violation closes this end. Returns the number of bytes."""
        if self.is_closed or not self.incoming.under_way:
            return 0
        windows = self.connection.windows()
        limit = min(len(self.incoming.under_way), sum(map(len, windows)))
        count = _clamp(chunk, limit)
        if self.incoming.cut_at is not None:
            count = min(count, self.incoming.cut_at - self.incoming.read_bytes)
        self.incoming.read_into(windows, count)
        try:
            self.connection.advance(count, now_s)
        except RemoteProtocolError as error:
            self.close(error)
        return count

    def settle(self) -> None:
        """Copies the rest of an incomplete write, as `PartitionHost.settle` documents."""
        if self.batch is not None:
            self.batch.settle()

    def close(self, error: Exception | None) -> None:
        """Ends the connection; idempotent."""
        if not self.is_closed:
            self.is_closed = True
            self.error = error
            batch, self.batch = self.batch, None
            if batch is not None:
                batch.release()
            segments = self.connection.close(error)
            if self.on_closed is not None:
                self.on_closed(segments)


def _clamp(chunk: Chunk, limit: int) -> int:
    return max(1, min(chunk(limit), limit))
