"""Recorded halves of exchanges between Flink processes, played against whoever takes the place of the other half.

A half says what was recorded, frame by frame, but no frame before its time: data waits for credit, credit for a first
answer, and so on, as section by section of the protocol has it. What it hears it keeps, and complains of what no Flink
peer would say.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
from collections import Counter
from collections.abc import Callable, Iterator

import trio

from laws.flink_vectors import Vector, frames_in, partition_requests
from netstack.base.errors import ConnectionLost
from netstack.base.transport import ByteStream
from netstack.exchange.wire.flink_compression import inflate

DATA_TYPES = (1, 8)
BLOCKING = (4, 5, 6, 12)
END_OF_DATA, END_OF_PARTITION = 9, 10
BUFFER, ERROR, REQUEST, TASK_EVENT, CANCEL, CLOSE, CREDIT, RESUME, ACK, BACKLOG, NEW_SIZE = range(11)


class Mouth:
    """Writes to a stream, cut into pieces that arrive one after the other."""

    def __init__(self, stream: ByteStream, sizes: tuple[int, ...]) -> None:
        """Args: where to; sizes of the pieces, repeated; 0 is all there is."""
        self._stream = stream
        self._sizes = itertools.cycle(sizes)

    async def say(self, data: bytes) -> None:
        """All of it, or what the peer takes before it closes."""
        with contextlib.suppress(ConnectionLost):
            await self._say(data)

    async def _say(self, data: bytes) -> None:
        while data:
            size = next(self._sizes) or len(data)
            piece, data = data[:size], data[size:]
            while piece:
                taken = self._stream.try_send([piece])
                piece = piece[taken:]
                if piece:
                    await self._stream.wait_writable()
            await trio.sleep(0.0001)  # virtual: whoever reads has read it


class Half:
    """What both halves do: hear frames."""

    def __init__(self, vector: Vector, stream: ByteStream, sizes: tuple[int, ...] = (0,)) -> None:
        self.vector = vector
        self.heard: list[bytes] = []
        self.complaints: list[str] = []
        self.has_ended = False
        """Whether the other side has closed its direction."""
        self._stream = stream
        self._mouth = Mouth(stream, sizes)
        self._rest = b""
        self._window = memoryview(bytearray(65536))

    def on_frame(self, frame: bytes) -> None:
        """A frame came."""

    async def hear(self) -> bool:
        """Takes in what comes next; False at the end of the stream."""
        if self.has_ended:
            return False
        while (count := self._stream.try_receive_into([self._window])) is None:
            await self._stream.wait_readable()
        if not count:
            self.has_ended = True
            return False
        self._rest += bytes(self._window[:count])
        while len(self._rest) >= 4 and len(self._rest) >= (length := int.from_bytes(self._rest[:4], "big")):
            frame, self._rest = self._rest[:length], self._rest[length:]
            assert frame[4:8] == bytes.fromhex("badc0ffe")
            self.heard.append(frame)
            self.on_frame(frame)
        return True

    async def hear_until(self, condition: Callable[[], bool]) -> bool:
        """False if the stream ended before."""
        while not condition():
            if not await self.hear():
                return False
        return True

    def kinds(self) -> list[int]:
        """Of what was heard."""
        return [frame[8] for frame in self.heard]


def asked_of(request: bytes) -> tuple[bytes, bytes]:
    """Partition and range of a request."""
    return request[9:69], request[69:77]


class RecordedProducer(Half):
    """Serves what a Flink producer served."""

    def __init__(self, vector: Vector, stream: ByteStream, sizes: tuple[int, ...] = (0,)) -> None:
        super().__init__(vector, stream, sizes)
        recorded = {asked_of(frame): frame[77:93] for frame in partition_requests(vector.requests)}
        self._recorded = recorded
        self._awaits_ack = "--await-ack" in vector.settings["serve"]
        self._ours: dict[bytes, bytes] = {}  # by recorded id
        self._requests: Counter[bytes] = Counter()  # by our id, as the rest
        self._credit: Counter[bytes] = Counter()
        self._on_demand: set[bytes] = set()
        self._answered: set[bytes] = set()
        self._blocked: set[bytes] = set()
        self._acknowledged: set[bytes] = set()
        self._left: set[bytes] = set()
        self.granted: Counter[bytes] = Counter()
        """Credit beyond the initial one, by channel."""

    def on_frame(self, frame: bytes) -> None:
        kind = frame[8]
        if kind == REQUEST:
            channel = frame[77:93]
            self._ours[self._recorded[asked_of(frame)]] = channel
            self._requests[channel] += 1
            (credit,) = struct.unpack(">i", frame[93:])
            self._credit[channel] = credit
            if not credit:
                self._on_demand.add(channel)
            return
        if kind == CLOSE:
            self._left.update(self._requests)
            return
        channel = frame[-16:]
        if channel not in self._requests or (channel not in self._answered and kind != CANCEL):
            self.complaints.append(f"kind {kind} for a channel without an answer")
        if kind == CREDIT:
            (credit,) = struct.unpack(">i", frame[9:13])
            self._credit[channel] += credit
            self.granted[channel] += credit
        elif kind == RESUME:
            if channel not in self._blocked:
                self.complaints.append("a resume of what is not blocked")
            self._blocked.discard(channel)
            if channel in self._on_demand:
                self._credit[channel] = 0
        elif kind == ACK:
            self._acknowledged.add(channel)
        elif kind == CANCEL:
            self._left.add(channel)

    async def blurt(self) -> None:
        """Says everything at once and closes, whatever credit there is and whoever still listens."""
        await self.hear_until(lambda: len(self._ours) == len(self._recorded))
        data = self.vector.responses
        for theirs, ours in self._ours.items():
            data = data.replace(theirs, ours)
        await self._mouth.say(data)
        self._stream.close()

    async def play(self) -> None:
        """Says everything, then waits for the consumer to leave, and closes; a producer that failed closes at once."""
        await self.hear_until(lambda: len(self._ours) == len(self._recorded))
        errors = 0
        for frame in frames_in(self.vector.responses):
            if frame[8] == ERROR:
                errors += 1
                if not await self.hear_until(lambda: min(self._requests.values()) >= errors):  # noqa: B023 - run at once
                    break
            theirs = next(known for known in self._ours if known in frame)
            ours = self._ours[theirs]
            if frame[8] == BUFFER and not await self._may_send(ours, frame[41]):
                break
            self._answered.add(ours)
            await self._mouth.say(frame.replace(theirs, ours))
        if "--fail-at" not in self.vector.settings["serve"]:
            await self.hear_until(lambda: len(self._left) == len(self._requests))
        self._stream.close()

    async def _may_send(self, channel: bytes, data_type: int) -> bool:
        def may() -> bool:
            if channel in self._blocked or (data_type in DATA_TYPES and self._credit[channel] <= 0):
                return False
            return not (data_type == END_OF_PARTITION and self._awaits_ack) or channel in self._acknowledged

        if not await self.hear_until(lambda: may() or channel in self._left):
            return False
        if data_type in DATA_TYPES:
            self._credit[channel] -= 1
        if data_type in BLOCKING:
            self._blocked.add(channel)
        return True


def parts_of(frame: bytes) -> list[bytes]:
    """The buffers, or events, in a BufferResponse, decompressed."""
    (count,) = struct.unpack_from(">i", frame, 29)
    body = frame[47 + 4 * count :]
    ends = list(itertools.accumulate(struct.unpack_from(f">{count}i", frame, 47) or [len(body)], initial=0))
    pieces = [body[start:end] for start, end in itertools.pairwise(ends)]
    return [inflate(memoryview(piece), 1 << 20) for piece in pieces] if frame[42] else pieces


class RecordedConsumer(Half):
    """Asks for what a Flink consumer asked for."""

    def __init__(self, vector: Vector, stream: ByteStream, sizes: tuple[int, ...] = (0,)) -> None:
        super().__init__(vector, stream, sizes)
        self.data: dict[bytes, bytes] = {}
        """Bytes in data buffers, by channel."""
        self.buffers: Counter[bytes] = Counter()
        """Of data, by channel."""
        self.events: dict[bytes, list[tuple[int, bytes]]] = {}
        """Data type and bytes, by channel."""
        self.errors: list[bytes] = []
        """Their bodies."""
        self._announced: Counter[bytes] = Counter()
        self._sequence: Counter[bytes] = Counter()
        self._credit: Counter[bytes] = Counter()
        self._is_blocked: set[bytes] = set()

    def on_frame(self, frame: bytes) -> None:
        kind = frame[8]
        if kind == ERROR:
            self.errors.append(frame[9:])
        elif kind == BACKLOG:
            self._announced[frame[13:29]] += 1
        else:
            assert kind == BUFFER
            channel, _, parts, sequence, backlog, data_type, _, size = struct.unpack_from(">16siiiiBBi", frame, 9)
            assert len(frame) == 47 + 4 * parts + size
            if sequence != self._sequence[channel]:
                self.complaints.append(f"sequence {sequence} after {self._sequence[channel]}")
            self._sequence[channel] += max(parts, 1)
            pieces = parts_of(frame)
            if channel in self._is_blocked:
                self.complaints.append("something follows a blocking event")
            if data_type in DATA_TYPES:
                self._credit[channel] -= 1
                if self._credit[channel] < 0:
                    self.complaints.append("data without credit")
                self.buffers[channel] += 1
                self.data[channel] = self.data.get(channel, b"") + b"".join(pieces)
            else:
                self.events.setdefault(channel, []).extend((data_type, piece) for piece in pieces)
                if data_type in BLOCKING:
                    self._is_blocked.add(channel)
                    if backlog:
                        self.complaints.append("a blocking event with a backlog")

    async def play(self) -> None:
        """Says everything, each in its time, then hears what else comes until a second has passed, and closes."""
        frames = frames_in(self.vector.requests)
        for frame, is_due in zip(frames, self._conditions(frames), strict=True):
            if not await self.hear_until(is_due):
                break
            if frame[8] == REQUEST:
                self._credit[frame[77:93]] = int.from_bytes(frame[93:], "big")
            elif frame[8] == CREDIT:
                self._credit[frame[13:]] += int.from_bytes(frame[9:13], "big")
            elif frame[8] == RESUME:
                self._is_blocked.discard(frame[9:])
                if not int.from_bytes(frames[0][93:], "big"):
                    self._credit[frame[9:]] = 0
            await self._mouth.say(frame)
        with trio.move_on_after(1):
            while await self.hear():
                pass
        self._stream.close()

    def _conditions(self, frames: list[bytes]) -> Iterator[Callable[[], bool]]:
        is_raw = self.vector.case.startswith("raw-")
        resumes: Counter[bytes] = Counter()
        requests = 0
        for frame in frames:
            kind, channel = frame[8], frame[-16:]
            if kind == REQUEST:
                requests += 1
                yield self._after(lambda n: len(self.errors) >= n, requests - self._channel_count(frames))
            elif kind == RESUME and not is_raw:
                resumes[channel] += 1
                yield self._after(lambda c, n: self._count(c, *BLOCKING) >= n, channel, resumes[channel])
            elif is_raw and kind == RESUME:
                yield self._after(lambda c: self._count(c, END_OF_PARTITION) > 0, channel)
            elif is_raw and self.vector.case != "raw-no-initial-credit":
                yield lambda: True
            elif kind == ACK:
                yield self._after(lambda c: self._count(c, END_OF_DATA) > 0, channel)
            elif kind == CANCEL and self.vector.case == "partition-not-found":
                yield lambda: len(self.errors) == 2
            elif kind == CANCEL:
                yield self._after(lambda c: self._count(c, END_OF_PARTITION) > 0, channel)
            elif kind == CLOSE and "--close-after-buffers 3" in self.vector.settings["consume"]:
                yield lambda: sum(self.buffers.values()) >= 3
            elif kind == CLOSE:
                yield lambda: any(self._count(channel, END_OF_PARTITION) for channel in self.events)
            else:
                yield self._after(lambda c: self.buffers[c] + self._announced[c] + self._count(c) > 0, channel)

    def _after(self, condition: Callable[..., bool], *arguments: object) -> Callable[[], bool]:
        return lambda: condition(*arguments)

    def _channel_count(self, frames: list[bytes]) -> int:
        return len({frame[77:93] for frame in frames if frame[8] == REQUEST})

    def _count(self, channel: object, *types: int) -> int:
        assert isinstance(channel, bytes)
        return sum(not types or data_type in types for data_type, _ in self.events.get(channel, ()))
