"""What a data buffer costs in each dialect's codec, measured in turns: `python -m netstack.bench.codec_cost`.

Takes: nothing. Gives: nanoseconds for each of 32 KiB, and Flink's dialect in relation to the native one.

*codec*: writing a header and reading it. *path*: that, and everything around it that a connection does with the
bytes of a buffer: gathering it for a write, taking it in where it landed; the copy from one to the other is not
counted, since the system makes it. The two dialects take turns of a few milliseconds, so that whatever else the machine
does hits both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

import click

from netstack.buffer.buffer import Buffer
from netstack.buffer.segment import Segment, allocate_segments
from netstack.events import DataType
from netstack.wire.assembler import FrameAssembler
from netstack.wire.codec import Codec, Inflate
from netstack.wire.dialects import FLINK, NATIVE, dialect_named
from netstack.wire.frames import Frame, OpenChannel
from netstack.wire.outgoing_batch import OutgoingBatch

BUFFER_BYTES: Final = 32 * 1024
BUFFERS: Final = 16
TURNS: Final = 400
LOOPS: Final = 20
_DATA: Final = DataType.DATA


@dataclass(frozen=True, slots=True)
class Cost:
    """Nanoseconds a buffer.

    Attributes:
        codec: writing its header and reading it.
        path: with gathering and taking in.
    """

    codec: float
    path: float


@final
class _Sink:
    """Takes what comes; nobody reads it."""

    def on_buffer(
        self, channel: int, sequence: int, backlog: int, segment: Segment, length: int, checksum: int
    ) -> Segment:
        return segment

    def on_small_buffer(self, channel: int, sequence: int, backlog: int, payload: bytes, checksum: int) -> None:
        raise AssertionError("there are whole buffers only")

    def on_event(self, channel: int, sequence: int, backlog: int, data_type: DataType, payload: bytes) -> None:
        raise AssertionError("there are data buffers only")

    def on_parts(
        self,
        channel: int,
        sequence: int,
        backlog: int,
        body: memoryview,
        sizes: tuple[int, ...],
        inflate: Inflate | None,
    ) -> None:
        raise AssertionError("there are whole buffers only")

    def on_frame(self, frame: Frame) -> None:
        raise AssertionError("there are data buffers only")


@final
class _Rig:
    """Both ends of one dialect, with one channel open."""

    def __init__(self, name: str) -> None:
        dialect = dialect_named(name, segment_size_bytes=BUFFER_BYTES, new_id=lambda: bytes(range(16)))
        self._producer: Codec = dialect.producer_codec()
        self._consumer: Codec = dialect.consumer_codec()
        request = self._consumer.encode_control(OpenChannel(0, "ab" * 60, 0, BUFFERS))
        view = memoryview(request)
        _, length, kind, channel, *_ = self._producer.parse_header(view, 0)
        self._producer.decode_control(kind, channel, request[len(request) - length :])
        self._assembler = FrameAssembler(
            self._consumer, _Sink(), allocate_segments(BUFFERS, BUFFER_BYTES), BUFFER_BYTES
        )
        self._memory = memoryview(bytes(BUFFER_BYTES))

    def codec_ns(self) -> int:
        """Writes the headers of some buffers, then reads them; in between the system would have moved them."""
        encode, parse = self._producer.encode_buffer_header, self._consumer.parse_header
        began = time.perf_counter_ns()
        headers = [encode(0, _DATA, sequence, 3, BUFFER_BYTES, 0) for sequence in range(BUFFERS)]
        spent = time.perf_counter_ns() - began
        landed = [memoryview(bytearray(header)) for header in headers]
        began = time.perf_counter_ns()
        for header in landed:
            parse(header, 0)
        return spent + time.perf_counter_ns() - began

    def path_ns(self) -> int:
        """Gathers a write, and takes it in as one read that was scattered over headers and segments."""
        encode = self._producer.encode_buffer_header
        began = time.perf_counter_ns()
        batch = OutgoingBatch()
        for sequence in range(BUFFERS):
            buffer = Buffer(self._memory, BUFFER_BYTES, _DATA, None)
            batch.add_buffer(encode(0, _DATA, sequence, 3, BUFFER_BYTES, 0), buffer)
        pieces, total = batch.pieces, batch.total_bytes
        batch.take(total)
        spent = time.perf_counter_ns() - began
        windows = self._assembler.windows()
        if len(windows) == 1:  # the first of all: in staging, one small read after the other
            self._take_in(b"".join(pieces))
        else:
            for window, piece in zip(windows[::2], pieces[::2], strict=False):
                window[:] = piece
            began = time.perf_counter_ns()
            self._assembler.windows()
            self._assembler.advance(total)
            spent += time.perf_counter_ns() - began
        return spent

    def _take_in(self, stream: bytes) -> None:
        """Reads of what the windows hold, copied."""
        rest = memoryview(stream)
        while rest:
            count = 0
            for window in self._assembler.windows():
                part = rest[: len(window)]
                window[: len(part)] = part
                rest = rest[len(part) :]
                count += len(part)
            self._assembler.advance(count)


def measure(turns: int = TURNS) -> dict[str, Cost]:
    """The cost in each dialect: medians over `turns`."""
    rigs = {name: _Rig(name) for name in (NATIVE, FLINK)}
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in rigs}
    for _ in range(turns):
        for name, rig in rigs.items():
            for place, run in enumerate((rig.codec_ns, rig.path_ns)):
                found[name][place].append(_best(run) / BUFFERS)
    return {name: Cost(statistics.median(codec), statistics.median(path)) for name, (codec, path) in found.items()}


def _best(run: Callable[[], int]) -> int:
    return min(run() for _ in range(LOOPS))


def main() -> None:
    """Prints the table."""
    costs = measure()
    native, flink = costs[NATIVE], costs[FLINK]
    click.echo(f"ns a buffer of {BUFFER_BYTES // 1024} KiB   {NATIVE:>10}   {FLINK:>12}   ratio")
    for what in ("codec", "path"):
        first, second = getattr(native, what), getattr(flink, what)
        click.echo(f"{what:<22} {first:10.0f}   {second:12.0f}   {second / first:5.2f}")


if __name__ == "__main__":
    main()
