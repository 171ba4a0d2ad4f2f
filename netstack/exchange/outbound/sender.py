"""ChannelSender, the producing half of a connection: which channel sends next, given credit, backlog and fairness.

Takes: the consumer's control frames (open, credit, resume, acknowledge, cancel) and notifications of subpartitions.
Gives: buffer frames to a gathering write, whenever the socket has room.

Rules:
- A data buffer costs one credit. An event costs none and is sent in order, unless it has priority.
- Round robin among the channels that may send, one buffer each; channels with a priority event go first.
- A channel that waits for credit announces more buffers than its backlog while it keeps sending (`credit.boost`).
- A channel that was opened without credit announces its backlog when it has data and no credit.
- A frame for a channel that was closed crossed the close on its way, and is ignored. A frame for a channel number that
  was never opened fails that channel only; where the dialect blames the connection (`Codec.blames_connection`), all
  of its channels fail, and later requests are served as before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, final

from ...base import crc
from ...base.errors import ChannelFailed, ErrorCode, LocalProtocolError, RemoteProtocolError
from ...base.events import DataType
from ..buffer.buffer import Buffer, BufferSource
from ..buffer.lent import LentPart
from ..buffer.stored import StoredBuffer
from ..credit.boost import CreditBoost
from ..credit.sending import MAX_CREDIT
from ..wire.codec import Codec
from ..wire.frames import (
    Acknowledge,
    AddCredit,
    BacklogAnnouncement,
    CancelChannel,
    ChannelError,
    ConnectionFailure,
    Frame,
    Hello,
    NewBufferSize,
    OpenChannel,
    Resume,
    SegmentRequest,
    TaskEvent,
    UnknownChannel,
)
from ..wire.greeting import FEATURE_CHECKSUM, FEATURE_EXPECTED
from ..wire.outgoing_batch import GATHER_BYTES, OutgoingBatch
from .sending_channel import SendingChannel
from .statistics import SendingChannelStatistics
from .views import ViewProvider

_DATA: Final = DataType.DATA
_STORED: Final = DataType.STORED_DATA
_WRONG_REQUESTS: Final = (ErrorCode.SUBPARTITION_OUT_OF_RANGE, ErrorCode.SUBPARTITION_CONSUMED)


@final
class ChannelSender:
    """All channels of one accepted connection (an `Endpoint`)."""

    def __init__(
        self,
        codec: Codec,
        views: ViewProvider,
        *,
        max_channels: int,
        on_write_wanted: Callable[[], None],
        send: Callable[[Frame], None],
        call_later: Callable[[float, Callable[[], None]], None] | None = None,
    ) -> None:
        """Starts without channels.

        Args:
            codec: encodes frames.
            views: opens partitions.
            max_channels: limit on the channels that one peer may open.
            on_write_wanted: called when there is something to write.
            send: queues a control frame.
            call_later: calls back once, after a delay in seconds; None: channels are not boosted.
        """
        self._codec = codec
        self._credit_boost: CreditBoost | None = None
        if call_later is not None and codec.takes_credit_back:
            self._credit_boost = CreditBoost(codec, call_later, on_write_wanted)
        self._views = views
        self._max_channels = max_channels
        self._on_write_wanted = on_write_wanted
        self._send = send
        self._channels: dict[int, SendingChannel] = {}
        self._highest_number = -1
        self._ready: deque[SendingChannel] = deque()
        self._first: deque[SendingChannel] = deque()  # channels with a priority event
        self._to_announce: dict[SendingChannel, None] = {}  # channels with a backlog and no credit
        self._blamed: ConnectionFailure | None = None  # only the newest, so that endless mistakes cost nothing
        self._checksum = False
        self._closed = False
        self._enqueue, self._to_front = self._enqueue_if_ready, self._move_first  # made once: 72 bytes each a channel

    # From the connection.

    def on_open(self, peer: Hello, features: int) -> None:
        """Stores the features that both hellos agree on."""
        self._checksum = bool(features & FEATURE_CHECKSUM)
        if not features & FEATURE_EXPECTED:
            self._credit_boost = None

    def on_frame(self, frame: Frame) -> None:
        """Handles a consumer's frame."""
        match frame:
            case OpenChannel():
                self._open(frame)
            case AddCredit(pairs):
                is_reported = False
                for number, count in pairs:
                    channel = self._channels.get(number)
                    if channel is None:
                        if number > self._highest_number and not is_reported:
                            is_reported = True  # one answer per frame: 8 bytes of credit would cause 80 bytes each
                            self._find(number)
                    else:
                        credit = channel.credit
                        try:
                            credit.grant(count)
                        except RemoteProtocolError as error:
                            self._fail(channel, error.code, error.text)
                        else:
                            channel.on_data_available()
                            if credit.gives_back and self._credit_boost is not None:
                                self._credit_boost.on_credit(channel)
            case Resume(number):
                channel = self._find(number)
                if channel is not None and channel.view is not None:
                    credit = channel.credit
                    before = credit.available, credit.granted
                    if credit.is_on_demand:
                        credit.forget()
                    try:
                        channel.view.resume()
                    except LocalProtocolError as error:
                        credit.available, credit.granted = before  # nothing was blocked, so the credit stays valid
                        if self._codec.blames_connection:
                            self._blame(ErrorCode.UNEXPECTED_FRAME, str(error))
                        else:
                            self._fail(channel, ErrorCode.UNEXPECTED_FRAME, str(error))
            case Acknowledge(number):
                channel = self._find(number)
                if channel is not None and channel.view is not None:
                    channel.view.acknowledge_end_of_data()
            case NewBufferSize(number, size_bytes):
                channel = self._find(number)
                if channel is None:
                    return
                if size_bytes < 1:
                    self._fail(
                        channel, ErrorCode.MALFORMED_FRAME, "a buffer size of 0 bytes was requested; request 1 or more"
                    )
                    return
                channel.credit.wants_smaller_buffers = True
                channel.credit.expected = 0
                if channel.view is None:
                    channel.buffer_size = size_bytes
                else:
                    channel.view.set_buffer_size(size_bytes)
            case CancelChannel(number):
                channel = self._find(number)
                if channel is not None:
                    self._drop(channel)
            case TaskEvent(number, partition_id, event):
                if not self._views.take_task_event(partition_id, event):
                    self._refuse(number, ErrorCode.UNEXPECTED_FRAME, f"no task of {partition_id!r} takes events")
            case UnknownChannel(text):
                self._blame(ErrorCode.UNKNOWN_CHANNEL, text)
            case SegmentRequest():
                pass  # for tiered storage; pipelined segments are sent in order anyway
            case _:
                raise RemoteProtocolError(
                    ErrorCode.UNEXPECTED_FRAME, f"a consumer does not send {type(frame).__name__} frames"
                )

    @property
    def is_idle(self) -> bool:
        """Whether no channel is open."""
        return not self._channels

    def on_closed(self, error: Exception | None) -> None:
        """Releases every view: the connection has ended."""
        self._closed = True
        for channel in list(self._channels.values()):
            self._drop(channel)

    def collect(self, batch: OutgoingBatch) -> None:
        """Adds the frames of the channels that may send."""
        if self._to_announce:
            self._announce_backlogs(batch)
        credit_boost = self._credit_boost
        if self._blamed is not None:
            batch.add_control(self._codec.encode_control(self._blamed))
            self._blamed = None
        ready, first = self._ready, self._first
        codec, checks = self._codec, self._checksum
        encode = codec.encode_buffer_header
        has_room = batch.has_room
        while (ready or first) and has_room:
            channel = first.popleft() if first else ready.popleft()
            channel.is_registered = channel.is_first = False
            view = channel.view
            if view is None:
                continue
            credit = channel.credit
            if ready or first or checks:
                buffer = view.poll()
            else:  # nobody else waits for a turn
                most = min(credit.available, batch.frames_left)
                buffer = view.poll(max(1, most), GATHER_BYTES - batch.total_bytes)
            if buffer is None:
                if view.is_released:
                    self._report_released(channel, view)
                continue
            if buffer.data_type is _DATA or buffer.data_type is _STORED:
                if credit.available < buffer.buffers:
                    buffer.recycle()
                    raise credit.exceeded()
                credit.available -= buffer.buffers
            if buffer.more_available:
                if credit.available > 0 or buffer.next_is_event:
                    channel.is_registered = True
                    if buffer.next_is_event and view.has_priority:
                        channel.is_first = True
                        first.append(channel)
                    else:
                        ready.append(channel)
                elif credit_boost is not None and not credit.expected:
                    credit_boost.add(channel, len(self._channels), batch)
            if buffer.data_type is not _DATA:
                if isinstance(buffer, StoredBuffer):
                    pieces = self._codec.encode_stored(channel.number, buffer.sequence, buffer.backlog, buffer)
                    has_room = batch.add_pieces(pieces, buffer)
                    continue
                event = bytes(buffer.memory)
                buffer.recycle()
                header, payload = self._codec.encode_event(
                    channel.number, buffer.data_type, buffer.sequence, buffer.backlog, event
                )
                batch.add_control(header)
                batch.add_control(payload)
                has_room = batch.has_room
                continue
            if buffer.buffers > 1 and isinstance(buffer, LentPart):
                count = buffer.buffers
                headers = codec.encode_run_headers(
                    channel.number, buffer.sequence, buffer.backlog, buffer.length // count, count
                )
                has_room = batch.add_run(headers, buffer)
                continue
            has_room = batch.add_buffer(
                encode(
                    channel.number,
                    buffer.data_type,
                    buffer.sequence,
                    buffer.backlog,
                    buffer.length,
                    _crc32(buffer) if checks else 0,
                ),
                buffer,
            )
        if credit_boost is not None and credit_boost.has_silent:
            credit_boost.collect(batch)

    def _enqueue_if_ready(self, channel: SendingChannel) -> None:
        """Queues a channel if it may send."""
        view = channel.view
        if view is None or self._closed:
            return
        is_first = view.has_priority
        if view.is_released or view.is_available(has_credit=channel.credit.available > 0):
            channel.is_registered = True
            channel.is_first = is_first
            (self._first if channel.is_first else self._ready).append(channel)
            self._on_write_wanted()
        elif channel.credit.is_on_demand and channel.credit.available <= 0 and view.backlog_buffers():
            self._to_announce[channel] = None
            self._on_write_wanted()

    def _move_first(self, channel: SendingChannel) -> None:
        """Moves a queued channel to the front: it has a priority event."""
        self._ready.remove(channel)
        channel.is_first = True
        self._first.append(channel)

    @property
    def channel_count(self) -> int:
        """Number of open channels."""
        return len(self._channels)

    def statistics(self) -> tuple[SendingChannelStatistics, ...]:
        """A snapshot of every channel; O(channels)."""
        return tuple(
            SendingChannelStatistics(
                channel=channel.number,
                partition_id=channel.partition_id,
                subpartition=channel.subpartition,
                credit=channel.credit.available,
                credits_granted=channel.credit.granted,
                buffers=channel.credit.spent,
                backlog_announcements=channel.backlog_announcements,
            )
            for channel in self._channels.values()
        )

    def _open(self, frame: OpenChannel) -> None:
        number = frame.channel
        if number in self._channels:
            text = f"channel {number} was opened twice; every channel needs a number of its own"
            if self._codec.blames_connection:
                self._blame(ErrorCode.CHANNEL_IN_USE, text)
            else:
                self._fail(self._channels[number], ErrorCode.CHANNEL_IN_USE, text)
            return
        self._highest_number = max(self._highest_number, number)
        if len(self._channels) >= self._max_channels:
            self._send(ChannelError(number, ErrorCode.CHANNEL_IN_USE, f"more than {self._max_channels} channels"))
            return
        if frame.credit > MAX_CREDIT:
            self._send(
                ChannelError(
                    number, ErrorCode.CREDIT_VIOLATION, f"initial credit {frame.credit}; the most is {MAX_CREDIT}"
                )
            )
            return
        channel = SendingChannel(
            number, frame.partition_id, frame.subpartition, frame.credit, self._enqueue, self._to_front
        )
        self._channels[number] = channel

        def on_view(view: BufferSource) -> None:
            channel.withdraw = None
            channel.view = view
            view.attach_credit(channel.credit)
            if channel.buffer_size:
                view.set_buffer_size(channel.buffer_size)
            if not channel.is_registered:
                self._enqueue_if_ready(channel)

        def on_failed(error: ChannelFailed) -> None:
            channel.withdraw = None
            if self._codec.blames_connection and error.code in _WRONG_REQUESTS:
                self._drop(channel)
                self._blame(error.code, f"partition {frame.partition_id!r}: {error.text}")
            else:
                self._fail(channel, error.code, error.text)

        withdraw = self._views.open_view(
            frame.partition_id,
            frame.subpartition,
            channel.on_data_available,
            on_view,
            on_failed,
            frame.subpartitions,
            self._codec.packaging,
        )
        if channel.view is None and number in self._channels:
            channel.withdraw = withdraw

    def _announce_backlogs(self, batch: OutgoingBatch) -> None:
        """Announces the backlog of each waiting channel that still has one and no credit."""
        waiting, self._to_announce = self._to_announce, {}
        for channel in waiting:
            backlog = 0 if channel.view is None else channel.view.backlog_buffers()
            if backlog and channel.credit.available <= 0:
                channel.backlog_announcements += 1
                batch.add_control(self._codec.encode_control(BacklogAnnouncement(channel.number, backlog)))

    def _find(self, number: int) -> SendingChannel | None:
        channel = self._channels.get(number)
        if channel is None and number > self._highest_number:
            self._send(
                ChannelError(number, ErrorCode.UNKNOWN_CHANNEL, f"channel {number} was never opened on this connection")
            )
        return channel

    def _blame(self, code: ErrorCode, text: str) -> None:
        """Sends a failure of the whole connection; the peer closes its channels."""
        self._blamed = ConnectionFailure(code, text)
        self._on_write_wanted()

    def _refuse(self, number: int, code: ErrorCode, text: str) -> None:
        """Fails a channel, whether or not it is open."""
        channel = self._channels.get(number)
        if channel is not None:
            self._fail(channel, code, text)
        else:
            self._send(ChannelError(number, code, text))

    def _fail(self, channel: SendingChannel, code: ErrorCode, text: str) -> None:
        if channel.number in self._channels:
            self._drop(channel)
            self._send(ChannelError(channel.number, code, text))

    def _report_released(self, channel: SendingChannel, view: BufferSource) -> None:
        failure = view.failure
        if failure is not None:
            self._fail(channel, view.failure_code, failure)
        else:
            self._fail(channel, ErrorCode.PARTITION_NOT_FOUND, f"partition {channel.partition_id!r} was released")

    def _drop(self, channel: SendingChannel) -> None:
        del self._channels[channel.number]
        if channel.withdraw is not None:
            channel.withdraw()
            channel.withdraw = None
        if channel.is_registered:
            (self._first if channel.is_first else self._ready).remove(channel)
            channel.is_registered = channel.is_first = False
        self._to_announce.pop(channel, None)
        if self._credit_boost is not None:
            self._credit_boost.forget(channel)
        view, channel.view = channel.view, None
        if view is not None:
            view.release()


def _crc32(buffer: Buffer) -> int:
    if buffer.pieces is None:
        return crc.crc32(buffer.memory)
    value = 0
    for piece in buffer.pieces:
        value = crc.crc32(piece, value)
    return value
