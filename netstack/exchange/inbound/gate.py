"""SingleInputGate: fair choice among input channels with data.

Takes: notifications of channels. Gives: buffers and events, one at a time, to a reader.

Rules:
- A channel delivers one buffer, then moves to the end of the line: round robin among the channels with data. Channels
  with a priority event go first, in the order of arrival.
- The gate is available while a channel is in line; `on_available` is called when it becomes available. A poll may
  return nothing.
- A channel that ended leaves the line for good. When all have ended, the gate is finished and stays available, so that
  waiters notice it.
- While its reader waits for data, the gate may get spare floating buffers (`credit.spare`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, final

from ...base.config import NetworkConfig
from ...base.errors import LocalProtocolError, NetstackError
from ...base.events import DataType, EndOfData, decode_event
from ...base.timing.waits import WaitMeter
from ..buffer.buffer import Buffer
from ..buffer.pools import LocalBufferPool
from ..credit.spare import FIRST_REVIEW_BUFFERS, REVIEW_BUFFERS, SpareBuffers
from .closing import ClosingContext
from .debloat import BufferDebloater
from .statistics import ChannelStatistics, GateStatistics

_DATA: Final = DataType.DATA


def _no_time() -> float:
    return 0.0


class InputChannel(Protocol):
    """One input channel, as its gate uses it."""

    index: int
    partition_id: str
    subpartition: int
    is_enqueued: bool
    is_first: bool
    is_finished: bool

    @property
    def has_priority(self) -> bool:
        """Whether the next buffer is a priority event."""

    def poll(self) -> Buffer | None:
        """The next buffer; raises the channel's error after a failure."""

    def resume(self) -> None:
        """Lets the producer continue after a blocking event."""

    def start_capture(self, checkpoint_id: int, unconsumed: bytes) -> bool:
        """Keeps the unprocessed data in front of a barrier. Returns False if that barrier never comes."""

    def take_capture(self, checkpoint_id: int) -> bytes:
        """Ends the capture; returns the data."""

    def prioritize(self, sequence: int) -> None:
        """Makes an announced barrier overtake the data in front of it."""

    def acknowledge_end_of_data(self) -> None:
        """Sends to the producer that every record was processed."""

    def announce_buffer_size(self, size_bytes: int) -> None:
        """Requests this size for new buffers from the producer."""

    def widen(self, window: int) -> None:
        """Keeps more buffers free if its producer expects to send some: its share of a window of so many buffers."""

    def measure(self) -> tuple[int, int]:
        """Returns the bytes of data polled so far, and the filled and unpolled buffers, here or at the producer."""

    def queued_events(self) -> tuple[list[tuple[bytes, int]], int]:
        """The received and unpolled events, each with the bytes of data in front of it; and the bytes of all data."""

    def release(self) -> None:
        """Returns all buffers and cancels the channel at the producer. Idempotent."""

    def statistics(self) -> ChannelStatistics:
        """A snapshot."""


@final
class SingleInputGate(ClosingContext):
    """All channels of one input. `with gate:` closes it, with a warning if channels have not ended."""

    def __init__(
        self,
        pool: LocalBufferPool | None,
        *,
        read_connections: Callable[[], None],
        on_closed: Callable[[], None],
        now: Callable[[], float] = _no_time,
        name: str = "",
    ) -> None:
        """Use `NetworkEnvironment.open_gate`, which adds the channels.

        Args:
            pool: floating buffers; None if every channel is local.
            read_connections: reads and writes the gate's connections without waiting.
            on_closed: called once.
            now: monotonic seconds, to measure waits; by default they take no time.
            name: for metrics.
        """
        self.pool = pool
        self.name = name
        self.now = now
        self.idle = WaitMeter(now())
        """Time its reader waited because nothing was available; shared by the gates of a union."""
        self.records = 0
        self.config: NetworkConfig | None = None
        """Settings of its NetworkEnvironment: the defaults of its readers."""
        self.debloater: BufferDebloater | None = None
        """Computes the size of its producers' buffers; None without debloating."""
        self._spare: SpareBuffers | None = None
        self._until_review = FIRST_REVIEW_BUFFERS
        self.on_data: Callable[[], None] | None = None
        """Called when a channel enters the empty line."""
        self.on_available: Callable[[], None] | None = None
        self._held: Buffer | None = None
        self.on_priority: Callable[[], None] | None = None
        """Called when a priority event arrives and none was waiting: the reader should poll soon."""
        self.read_connections = read_connections
        self.spin_s = 0.0
        """Seconds for which its reader may call `read_connections` before it parks; 0 where that is useless."""
        self._on_closed = on_closed
        self._channels: list[InputChannel] = []
        self._line: deque[InputChannel] = deque()
        self._first_in_line = 0  # channels with a priority event, at the front of the line
        self._acknowledged: set[int] = set()
        self._finished_channels = 0
        self._drain = True
        self._end_of_data: set[int] = set()
        self._closed = False

    def add_channel(self, channel: InputChannel) -> None:
        """Appends a channel, at the next index."""
        self._channels.append(channel)

    def allow_spare(self, buffers: int, round_trip_s: Callable[[], float]) -> None:
        """Allows this number of spare floating buffers while its reader waits for data (`credit.spare`)."""
        if self.pool is not None:
            self._spare = SpareBuffers(self.pool, buffers, now=self.now, round_trip_s=round_trip_s)

    @property
    def channels(self) -> Sequence[InputChannel]:
        """All channels, by index."""
        return self._channels

    @property
    def channel_count(self) -> int:
        """Number of channels."""
        return len(self._channels)

    @property
    def is_available(self) -> bool:
        """Whether `poll` may return something or raise."""
        return bool(self._line) or self._closed or self.is_finished

    @property
    def has_data(self) -> bool:
        """Whether a channel has data."""
        return bool(self._line)

    @property
    def is_finished(self) -> bool:
        """Whether every channel has ended."""
        return self._finished_channels == len(self._channels)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def ended_with_drain(self) -> bool | None:
        """Whether all channels sent EndOfData with drain; None until every channel has sent EndOfData."""
        return self._drain if len(self._end_of_data) == len(self._channels) else None

    def enqueue(self, channel: InputChannel) -> None:
        """Puts a channel that has data or has failed in line, once."""
        if channel.is_enqueued or channel.is_finished or self._closed:
            return
        channel.is_enqueued = True
        self._line.append(channel)
        if len(self._line) == 1:
            self._notify_reader()

    def enqueue_first(self, channel: InputChannel) -> None:
        """Puts a channel with a priority event at the front of the line, behind others with one."""
        if channel.is_finished or channel.is_first or self._closed:
            return
        if channel.is_enqueued:
            self._line.remove(channel)
        self._insert_first(channel)
        if len(self._line) == 1:
            self._notify_reader()
        if self._first_in_line == 1 and self.on_priority is not None:
            self.on_priority()

    def poll(self) -> Buffer | None:
        """The next buffer or event, of the channel at the front of the line.

        Raises:
            ChannelFailed, ConnectionLost, RemoteProtocolError: that channel has failed.
            LocalProtocolError: the gate is closed.
        """
        if self._closed:
            raise LocalProtocolError("the input gate is closed; open a new one")
        line = self._line
        while line:
            channel = line.popleft()
            channel.is_enqueued = False
            if self._first_in_line:
                channel.is_first = False
                self._first_in_line -= 1
            try:
                buffer = channel.poll()
            except NetstackError:
                # The channel ends with its error, so that a reader of the other channels does not wait for it.
                self._end(channel)
                raise
            if buffer is None:
                continue
            if buffer.more_available:
                if buffer.next_is_event and channel.has_priority:
                    self._insert_first(channel)
                else:
                    channel.is_enqueued = True
                    line.append(channel)
            buffer.channel_index = channel.index
            if buffer.data_type is _DATA:
                if self._spare is not None:
                    self._until_review -= buffer.buffers
                    if self._until_review <= 0:
                        self._until_review += REVIEW_BUFFERS
                        self._review_spare(self._spare)
                return buffer
            if buffer.data_type is DataType.END_OF_DATA:
                event = decode_event(buffer.memory)
                assert isinstance(event, EndOfData)
                self._drain = self._drain and event.drain
                self._end_of_data.add(channel.index)
            elif buffer.data_type is DataType.END_OF_PARTITION:
                self._end(channel)
            return buffer
        return None

    def _review_spare(self, spare: SpareBuffers) -> None:
        window = spare.window
        spare.review(self.idle.count)
        if spare.window != window:
            for channel in self._channels:
                channel.widen(spare.window)

    def _notify_reader(self) -> None:
        if self.on_data is not None:
            self.on_data()
        if self.on_available is not None:
            self.on_available()

    def _insert_first(self, channel: InputChannel) -> None:
        channel.is_enqueued = channel.is_first = True
        self._line.insert(self._first_in_line, channel)
        self._first_in_line += 1

    def _end(self, channel: InputChannel) -> None:
        if channel.is_enqueued:
            if self._line[-1] is channel:  # usual: its poll has just put it there
                self._line.pop()
            else:
                self._line.remove(channel)
            channel.is_enqueued = False
            if channel.is_first:
                channel.is_first = False
                self._first_in_line -= 1
        if not channel.is_finished:
            channel.is_finished = True
            self._finished_channels += 1
        channel.release()

    def count_records(self, channel_index: int, count: int) -> None:
        """Counts records that the reader has decoded from a channel."""
        self.records += count

    def acknowledge_end_of_data(self, channel_index: int) -> None:
        """Sends that every record of a channel was processed (after its EndOfData)."""
        self._acknowledged.add(channel_index)
        self._channels[channel_index].acknowledge_end_of_data()

    def resume(self, channel_index: int) -> None:
        """Lets a channel continue after a blocking event."""
        channel = self._channels[channel_index]
        if channel.is_finished or self._closed:
            raise LocalProtocolError(f"channel {channel_index} has ended and cannot resume")
        channel.resume()

    def announce_buffer_size(self, size_bytes: int) -> None:
        """Requests this size for new buffers from every producer that has not ended."""
        for channel in self._channels:
            if not channel.is_finished:
                channel.announce_buffer_size(size_bytes)

    def measure(self) -> tuple[int, int]:
        """Returns the bytes of data polled so far and the buffers in use, of all channels; O(their queues)."""
        bytes_polled = buffers_in_use = 0
        for channel in self._channels:
            polled, in_use = channel.measure()
            bytes_polled += polled
            buffers_in_use += in_use
        return bytes_polled, buffers_in_use

    @property
    def has_priority(self) -> bool:
        """Whether the next poll returns a priority event (a barrier that overtakes, or the announcement of one)."""
        return self._first_in_line > 0

    def channel_key(self, channel_index: int) -> tuple[str, int]:
        """The partition id and subpartition that a channel reads."""
        channel = self._channels[channel_index]
        return channel.partition_id, channel.subpartition

    def start_capture(self, channel_index: int, checkpoint_id: int, unconsumed: bytes) -> bool:
        """Keeps the unprocessed data in front of a channel's barrier. Returns False if that barrier never comes."""
        return self._channels[channel_index].start_capture(checkpoint_id, unconsumed)

    def take_capture(self, channel_index: int, checkpoint_id: int) -> bytes:
        """Ends the capture of a channel; returns the data."""
        return self._channels[channel_index].take_capture(checkpoint_id)

    def prioritize(self, channel_index: int, sequence: int) -> None:
        """Makes an announced barrier of a channel overtake the data in front of it."""
        self._channels[channel_index].prioritize(sequence)

    def hold(self, buffer: Buffer) -> None:
        """Keeps a buffer whose records are being read, until `recycle_held`, or the end of the gate."""
        self.recycle_held()
        self._held = buffer
        if self._closed:
            self.recycle_held()

    def recycle_held(self) -> None:
        """Recycles the buffer that is held, if there is one."""
        held, self._held = self._held, None
        if held is not None:
            held.recycle()

    def close(self) -> None:
        """Ends reading on purpose: the producers learn that no more records are needed. Idempotent."""
        if not self._closed:
            for index, channel in enumerate(self._channels):
                if not channel.is_finished and index not in self._acknowledged:
                    channel.acknowledge_end_of_data()
        self.abandon()

    def abandon(self) -> None:
        """Releases every channel, returns every buffer, wakes the readers. Idempotent.

        A producer whose end was not acknowledged counts this consumer as lost.
        """
        if self._closed:
            return
        self._closed = True
        self._line.clear()
        self._first_in_line = 0
        self.recycle_held()
        for channel in self._channels:
            channel.is_enqueued = channel.is_first = False
            channel.release()
        if self.pool is not None:
            self.pool.destroy()
        self._on_closed()
        if self.on_available is not None:
            self.on_available()

    def _describe_unread(self) -> str:
        if self._closed or self.is_finished:
            return ""
        return f"{len(self._channels) - self._finished_channels} of {len(self._channels)} channels that have not ended"

    def statistics(self) -> GateStatistics:
        """A snapshot; O(channels and their queued elements)."""
        debloater = self.debloater
        return GateStatistics(
            name=self.name,
            channels=tuple(channel.statistics() for channel in self._channels),
            pool=None if self.pool is None else self.pool.statistics(),
            records=self.records,
            idle=self.idle.statistics(self.now()),
            is_finished=self.is_finished,
            debloated_buffer_bytes=None if debloater is None else debloater.announced_bytes,
            estimated_time_to_consume_s=None if debloater is None else debloater.estimated_time_to_consume_s,
        )
