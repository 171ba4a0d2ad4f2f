"""FrameAssembler: splits a byte stream into frames, and receives payloads directly in their memory.

Takes: the count of bytes that arrived in the windows it lent. Gives: buffers in pool segments, events and control
frames to a `FrameSink`.

It receives in one of two ways, chosen by the previous frame:

- *staging*: one window into a slab. Frames are parsed in place and payloads copied out. This is best for small frames,
  of which one read brings many. The tail of a large payload is read straight into its segment. A frame other than a
  plain buffer is taken from the slab when it is complete. A payload up to `SMALL_BYTES` is copied to the heap instead
  of a segment: recently freed heap memory is in the processor's cache, the next segment of one of many channels is not.
- *bulk*: after a full buffer the next frames are probably full buffers too. The windows are the rest of this payload, a
  header, a whole segment, a header, a whole segment, ...: one system call receives many buffers in place. If a header
  is different, the bytes behind it are moved to the slab and parsed there, at the cost of one slower read.

In bulk a reader that gathers a long record or run may lend the memory where its next bytes belong (`place`). Then the
windows of the next payloads are there: no copy follows, and no segment is touched. What one read brought there is
delivered as one run, and each buffer of it also occupies a free segment of the channel. Another frame than a full
buffer of this channel ends it.
The buffer behind has the rest of the record and the head of the next: no read goes past it, so that the reader can lend
memory for that one first.

Ownership: the channel of a payload is known only after its header, so payloads are received in segments of the
connection, and the sink *swaps*: it keeps the filled segment as the channel's buffer and returns a free one of that
channel. Credit guarantees that there is one. Bytes for a closed channel are dropped by returning the filled segment
itself. A small payload also occupies a free segment of the channel, which only stands for its credit.
"""

from __future__ import annotations

import mmap
from typing import Any, Final, Protocol, final

from ...base.errors import ErrorCode, RemoteProtocolError
from ...base.events import DataType
from ..buffer.segment import Segment
from .codec import Codec, FrameKind, HeaderFields, Inflate
from .frames import Frame

STAGING_BYTES = 64 * 1024  # a few hundred small frames; larger ones are received directly in segments

SMALL_BYTES: Final = 4 * 1024
"""Payloads up to this, and below a segment, are copied to the heap: at most an eighth more memory with 32 KiB
segments."""

_BUFFER: Final = FrameKind.BUFFER  # looking up an enum's attribute takes 50 ns
_CONTROL: Final = FrameKind.CONTROL
_DATA: Final = int(DataType.DATA)
_NOWHERE: Final = memoryview(b"")


class BufferSink(Protocol):
    """Receives data buffers."""

    def on_buffer(
        self, channel: int, sequence: int, backlog: int, segment: Segment, length: int, checksum: int
    ) -> Segment:
        """Takes a data buffer in `segment`. Returns the segment to fill next in exchange (the same one: dropped)."""

    def on_small_buffer(
        self, channel: int, sequence: int, backlog: int, payload: bytes | memoryview, checksum: int
    ) -> None:
        """Takes a data buffer that is not in a segment: a small one, or one in memory that its reader lent."""

    def on_landed(
        self, channel: int, sequence: int, backlogs: list[int], memory: memoryview, checksums: list[int]
    ) -> None:
        """Takes a run of data buffers of equal length, one behind the other in memory that their reader lent.

        Args:
            channel: of all of them.
            sequence: that of the first; the others follow.
            backlogs: the backlog in each header.
            memory: all payloads.
            checksums: the checksum in each header.
        """


class DataSink(BufferSink, Protocol):
    """Receives data buffers and in-band events: the consuming half of a connection."""

    def on_event(self, channel: int, sequence: int, backlog: int, data_type: DataType, payload: bytes) -> None:
        """Takes an in-band event."""

    def on_parts(
        self,
        channel: int,
        sequence: int,
        backlog: int,
        body: memoryview,
        sizes: tuple[int, ...],
        inflate: Inflate | None,
    ) -> None:
        """Takes the data buffers of one frame (`Parts`), which used one credit; `sequence` is that of the first."""


class FrameSink(DataSink, Protocol):
    """Receives all frames."""

    def on_frame(self, frame: Frame) -> None:
        """Takes a control frame."""


@final
class FrameAssembler:
    """Parses one direction of one connection."""

    def __init__(self, codec: Codec, sink: FrameSink, landing: list[Segment], max_buffer_bytes: int) -> None:
        """Starts in staging.

        Args:
            codec: parses headers and control frames.
            sink: receives the frames.
            landing: segments for payloads, owned by the assembler until `take_landing`; empty if this side receives no
            buffers.
            max_buffer_bytes: longest payload of a data buffer; a longer one is a protocol error.
        """
        self._codec = codec
        self._sink = sink
        self.deliver_to(sink)
        self._header_bytes = codec.header_bytes
        self._shortest = codec.control_header_bytes
        self._max_buffer = max_buffer_bytes
        self._landing = landing
        self._full = len(landing[0].memory) if landing else 0
        self._small = min(SMALL_BYTES, self._full - 1)
        bulk_bytes = len(landing) * (self._full + self._header_bytes)
        longest = self._header_bytes + max(
            codec.max_control_bytes, codec.max_event_bytes + codec.max_split_bytes, bulk_bytes
        )
        if codec.max_split_bytes and landing:
            longest = max(longest, self._header_bytes + codec.max_split_bytes + max_buffer_bytes)
        # The slack lets a codec read a full header where a shorter one is.
        size = max(STAGING_BYTES, longest) + self._header_bytes
        self._slab: Any = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared pages would stay
        self._slab_view: memoryview = memoryview(self._slab)
        self._stop = STAGING_BYTES
        self._window = self._slab_view[:STAGING_BYTES]
        self._filled = 0  # staging: unparsed bytes in the slab
        self._headers = [memoryview(bytearray(self._header_bytes)) for _ in landing]
        cells: list[memoryview] = []
        for header, segment in zip(self._headers, landing, strict=True):
            cells += (header, segment.memory)
        self._ring = cells + cells  # twice, so that the cells that follow any cell are one slice
        self._cell = 0  # bulk and landing: index of the segment being filled
        self._in_payload = False
        self._in_bulk = False
        self._have = 0  # bytes of the current header or payload
        self._place = _NOWHERE  # where the next full buffers of the channel below belong, from `_placed` on
        self._place_channel = -1
        self._placed = 0
        self._target = _NOWHERE  # in such a payload: its memory; else nothing
        self._target_place = _NOWHERE  # of which it is a part, from here on
        self._target_start = 0
        # The run of such buffers that this `advance` has completed: the last one, and what their headers say.
        self._landed: tuple[memoryview, int, int, int] = (_NOWHERE, 0, 0, 0)  # place, end in it, channel, sequence
        self._landed_backlogs: list[int] = []
        self._landed_checksums: list[int] = []
        self._is_place_full = False  # until the buffer behind has arrived
        self.awaits_place = False
        """Whether that buffer was the last that arrived: its reader will probably lend memory for the next record."""
        self._is_advancing = False
        self._fields: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)  # length, channel, sequence, backlog, checksum

    def deliver_to(self, sink: BufferSink) -> None:
        """Sets the receiver of data buffers; an open connection passes its endpoint, to shorten their way."""
        self._on_buffer = sink.on_buffer
        self._on_small_buffer = sink.on_small_buffer
        self._on_landed = sink.on_landed

    @property
    def mid_frame(self) -> bool:
        """Whether the stream would be truncated if it ended now."""
        return self._filled > 0 or self._in_payload or (self._in_bulk and self._have > 0)

    @property
    def unparsed(self) -> bytes:
        """The bytes that are not yet a frame, for error texts."""
        return bytes(self._slab_view[: self._filled])

    def rest(self) -> None:
        """Returns the slab's memory to the system until bytes arrive again; for an idle connection.

        A partial frame is kept. Landing segments are network buffers and stay.
        """
        if not self._filled:
            self._slab.madvise(mmap.MADV_DONTNEED)

    def take_landing(self) -> list[Segment]:
        """Returns the landing segments to the caller; the assembler is finished."""
        landing, self._landing = self._landing, []
        self._ring = []
        self._place = self._target = self._target_place = _NOWHERE
        return landing

    def place(self, channel: int, memory: memoryview) -> None:
        """Receives the next full buffers of a channel in `memory`, if the next frames are probably such buffers.

        Args:
            channel: its reader has read everything that was delivered so far.
            memory: where the next bytes of its data belong; written until the next call, or `on_event` or a shorter
                buffer of the channel is delivered. Empty: ends the lending.
        """
        if self._is_advancing:
            return
        # A payload of the channel that has begun comes first.
        begun = self._full if self._in_payload and self._fields[1] == channel else 0
        place = self._place
        if (
            place
            and channel == self._place_channel
            and memory.obj is place.obj
            and len(memory) == len(place) - self._placed + begun
        ):
            return  # the rest of what was lent already
        self._placed = begun
        is_used = self._in_bulk and self._placed + self._full <= len(memory)
        self._place = memory if is_used else _NOWHERE
        self._place_channel = channel
        self._is_place_full = self.awaits_place = False

    def windows(self) -> list[memoryview]:
        """The memory for the next bytes, in order. Valid until `advance`."""
        if self._in_bulk:
            first = 2 * self._cell
            have = self._have
            if self._in_payload:
                windows = self._ring[first + 1 : first + len(self._ring) // 2]
                windows[0] = (self._target or self._landing[self._cell].memory)[have:]
                payload = 2
            else:
                windows = self._ring[first : first + len(self._ring) // 2]
                if have:
                    windows[0] = windows[0][have:]
                payload = 1
            full = self._full
            placed = self._placed
            while placed + full <= len(self._place) and payload < len(windows):
                windows[payload] = self._place[placed : placed + full]
                placed += full
                payload += 2
            if self._place:
                del windows[payload + 1 :]
            elif self._is_place_full:
                del windows[1 if self._in_payload and not self._target else payload + 1 :]
            return windows
        if self._in_payload:
            # A payload shorter than a segment: its rest, and the slab for whatever follows.
            return [self._landing[self._cell].memory[self._have : self._fields[0]], self._window]
        return [self._slab_view[self._filled : self._stop]]

    def advance(self, count: int) -> None:
        """Parses `count` bytes that were stored in the windows.

        Raises:
            RemoteProtocolError: they are not a frame of this protocol. The stream is unusable.
        """
        if self._in_bulk:
            self._is_advancing = True
            try:
                self._advance_bulk(count)
            finally:
                if self._landed_backlogs:
                    self._deliver_landed()
            self._is_advancing = False
        elif self._in_payload:
            length = self._fields[0]
            missing = length - self._have
            if count < missing:
                self._have += count
                return
            self._deliver()
            self._filled = count - missing
            if self._filled:
                self._parse_slab()
        else:
            self._filled += count
            self._parse_slab()

    def _advance_bulk(self, count: int) -> None:
        header_bytes = self._header_bytes
        full = self._full
        cells = len(self._landing)
        while count:
            if self._in_payload:
                missing = self._fields[0] - self._have
                if count < missing:
                    self._have += count
                    return
                count -= missing
                self._deliver()
                continue
            missing = header_bytes - self._have
            if count < missing:
                have = self._have = self._have + count
                header = self._headers[self._cell]
                if have >= self._shortest and have >= self._codec.header_length(header, 0):
                    # A shorter header than expected; more bytes may never arrive.
                    self._place = _NOWHERE
                    self._is_place_full = self.awaits_place = False
                    self._slab_view[:have] = header[:have]
                    self._have = 0
                    self._in_bulk = False
                    self._filled = have
                    if self._landed_backlogs:
                        self._deliver_landed()
                    self._parse_slab()
                return
            count -= missing
            self._have = 0
            kind, length, data_type, channel, sequence, backlog, checksum = self._codec.parse_header(
                self._headers[self._cell], 0
            )
            is_placed = self._placed + full <= len(self._place)
            if (
                kind is _BUFFER
                and data_type == _DATA
                and length == full
                and (not is_placed or channel == self._place_channel)
            ):
                self._fields = (length, channel, sequence, backlog, checksum)
                self._in_payload = True
                if is_placed:
                    start = self._placed
                    self._target_place = self._place
                    self._target_start = start
                    self._target = self._place[start : start + full]
                    self._placed = start + full
                    if self._placed + full > len(self._place):
                        self._place = _NOWHERE  # the block of a record that was read may be used again
                        self._is_place_full = True
                continue
            # Another frame than expected: gather its header and everything behind it in the slab.
            slab = self._slab_view
            slab[:header_bytes] = self._headers[self._cell]
            filled = header_bytes
            cell = self._cell
            place, placed = self._place, self._placed
            self._place = _NOWHERE
            self._is_place_full = self.awaits_place = False
            while count:
                take = min(count, full)
                if placed + full <= len(place):
                    slab[filled : filled + take] = place[placed : placed + take]
                    placed += full
                else:
                    slab[filled : filled + take] = self._landing[cell].memory[:take]
                filled += take
                count -= take
                cell = (cell + 1) % cells
                take = min(count, header_bytes)
                slab[filled : filled + take] = self._headers[cell][:take]
                filled += take
                count -= take
            self._in_bulk = False
            self._filled = filled
            if self._landed_backlogs:
                self._deliver_landed()
            self._parse_slab()
            return

    def _deliver(self) -> None:
        length, channel, sequence, backlog, checksum = self._fields
        cell = self._cell
        self._in_payload = False
        self._have = 0
        landing = self._landing
        ring = self._ring
        target = self._target
        if target:
            self._target = _NOWHERE
            self._land(channel, sequence, backlog, checksum)
            self._cell = cell + 1 if cell + 1 < len(landing) else 0
            return
        if self._landed_backlogs:
            self._deliver_landed()
        self.awaits_place, self._is_place_full = self._is_place_full, False
        segment = landing[cell] = self._on_buffer(channel, sequence, backlog, landing[cell], length, checksum)
        ring[2 * cell + 1] = ring[2 * cell + 1 + len(ring) // 2] = segment.memory
        self._cell = cell + 1 if cell + 1 < len(landing) else 0
        self._in_bulk = length == self._full

    def _land(self, channel: int, sequence: int, backlog: int, checksum: int) -> None:
        """Adds the buffer in the target to the run, or begins another with it."""
        place, start = self._target_place, self._target_start
        self._target_place = _NOWHERE
        if self._landed_backlogs:
            last_place, end, last_channel, last_sequence = self._landed
            if (
                place is not last_place
                or start != end
                or channel != last_channel
                or sequence != (last_sequence + 1) & 0xFFFFFFFF
            ):
                self._deliver_landed()
        self._landed = (place, start + self._full, channel, sequence)
        self._landed_backlogs.append(backlog)
        self._landed_checksums.append(checksum)

    def _deliver_landed(self) -> None:
        backlogs, checksums = self._landed_backlogs, self._landed_checksums
        place, end, channel, last_sequence = self._landed
        self._landed = (_NOWHERE, 0, 0, 0)
        self._landed_backlogs, self._landed_checksums = [], []
        count = len(backlogs)
        memory = place[end - count * self._full : end]
        if count == 1:
            self._on_small_buffer(channel, last_sequence, backlogs[0], memory, checksums[0])
        else:
            self._on_landed(channel, (last_sequence - count + 1) & 0xFFFFFFFF, backlogs, memory, checksums)

    def _parse_slab(self) -> None:
        slab = self._slab_view
        filled = self._filled
        header_bytes = self._header_bytes
        shortest = self._shortest
        parse = self._codec.parse_header
        small = self._small
        self._stop = STAGING_BYTES
        position = 0
        while True:
            here = filled - position
            if here < header_bytes and (here < shortest or here < self._codec.header_length(slab, position)):
                break
            fields = parse(slab, position)
            kind, length, data_type, channel, sequence, backlog, checksum = fields
            if kind is _BUFFER and data_type == _DATA:
                start = position + header_bytes
                here -= header_bytes
                if length > self._max_buffer or not self._landing:
                    raise self._too_large("data buffer", channel, length, self._max_buffer if self._landing else 0)
                if length <= small and length <= here:
                    position = start + length
                    self._in_bulk = False
                    self._on_small_buffer(channel, sequence, backlog, bytes(slab[start:position]), checksum)
                    continue
                self._fields = (length, channel, sequence, backlog, checksum)
                memory = self._landing[self._cell].memory
                if here < length:
                    memory[:here] = slab[start:filled]
                    self._have = here
                    self._in_payload = True
                    self._in_bulk = length == self._full
                    self._filled = 0
                    return
                position = start + length
                memory[:length] = slab[start:position]
                self._deliver()
                continue
            start = position + (shortest if kind is _CONTROL else header_bytes)
            self._check_length(fields)
            if filled - start < length:
                self._stop = max(STAGING_BYTES, start - position + length)
                break
            position = start + length
            self._take_staged(fields, slab[start:position])
        left = filled - position
        if left and position:
            slab[:left] = bytes(slab[position:filled])
        self._filled = left
        # Only an empty slab may switch to bulk: the rest of a header precedes the next bytes.
        if left:
            self._in_bulk = False

    def _check_length(self, fields: HeaderFields) -> None:
        """Refuses a frame that is too long, from its header alone."""
        kind, length, data_type, channel, _, _, _ = fields
        codec = self._codec
        if kind is _CONTROL:
            what, limit = "control frame", codec.max_control_bytes
        elif data_type != _DATA:
            what, limit = "event", codec.max_event_bytes
        elif self._landing:
            what, limit = "data buffer", self._max_buffer
        else:
            what, limit = "data buffer", 0
        if kind is FrameKind.COMPOSITE and limit:
            limit += codec.max_split_bytes
        if length > limit:
            raise self._too_large(what, channel, length, limit)

    def _take_staged(self, fields: HeaderFields, payload: memoryview) -> None:
        """Delivers a complete frame that is not a plain buffer."""
        kind, _, data_type, channel, sequence, backlog, described = fields
        if kind is _CONTROL:
            frame = self._codec.decode_control(data_type, channel, bytes(payload))
            if frame is not None:
                self._sink.on_frame(frame)
        elif kind is _BUFFER:
            self._sink.on_event(channel, sequence, backlog, DataType(data_type), bytes(payload))
        else:
            parts = self._codec.split(described, payload)
            if data_type == _DATA:
                if len(parts.body) > self._max_buffer:
                    raise self._too_large("data buffer", channel, len(parts.body), self._max_buffer)
                self._sink.on_parts(channel, sequence, backlog, parts.body, parts.sizes, parts.inflate)
                return
            start = 0
            for index, size in enumerate(parts.sizes):
                event = bytes(parts.body[start : start + size])
                start += size
                number = (sequence + index) & 0xFFFFFFFF  # 32 bits on the wire
                self._sink.on_event(channel, number, backlog, DataType(data_type), event)

    def _too_large(self, what: str, channel: int, length: int, limit: int) -> RemoteProtocolError:
        return RemoteProtocolError(
            ErrorCode.FRAME_TOO_LARGE if limit else ErrorCode.UNEXPECTED_FRAME,
            f"{what} of {length} bytes for channel {channel}; at most {limit} bytes are allowed here",
        )
