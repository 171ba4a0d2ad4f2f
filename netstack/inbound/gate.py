"""Fair choice among the input channels that have something: SingleInputGate, and UnionInputGate over several.

Takes: notifications of channels. Gives: buffers and events, one at a time, to a reader.

Rules:
- One buffer a turn, then the channel goes to the tail: round robin among the channels with data. Channels with a
  priority event go first, in the order in which theirs came.
- Available is "some channel is in line"; `on_available` is called on that edge only. A poll that finds nothing is
  normal.
- A channel that ended leaves the line for good; when all have, the gate is finished and stays available, so that
  waiters see it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol, final

from ..buffer.buffer import Buffer
from ..buffer.pool import LocalBufferPool, LocalBufferPoolStatistics
from ..errors import LocalProtocolError, NetstackError
from ..events import DataType, EndOfData, decode_event
from ..waits import WaitMeter
from .debloat import BufferDebloater
from .statistics import ChannelStatistics, GateStatistics

_DATA: Final = DataType.DATA


def _no_time() -> float:
    return 0.0


class InputChannel(Protocol):
    """One logical channel as its gate sees it."""

    index: int
    is_enqueued: bool
    is_first: bool
    is_finished: bool

    @property
    def has_priority(self) -> bool:
        """Whether the next buffer is a priority event."""

    def poll(self) -> Buffer | None:
        """The next buffer; raises the channel's error if it failed."""

    def resume(self) -> None:
        """Lets the producer go on after a blocking event."""

    def acknowledge_end_of_data(self) -> None:
        """Every record of the channel was processed."""

    def announce_buffer_size(self, size_bytes: int) -> None:
        """Asks the producer to fill new buffers to this size."""

    def measure(self) -> tuple[int, int]:
        """Bytes of data polled so far, and buffers in use: filled and not polled, here or at the producer."""

    def release(self) -> None:
        """Gives everything back and tells the producer; idempotent."""

    def statistics(self) -> ChannelStatistics:
        """A snapshot."""


@final
class SingleInputGate:
    """All channels of one input."""

    def __init__(
        self,
        pool: LocalBufferPool | None,
        *,
        poke: Callable[[], None],
        on_closed: Callable[[], None],
        now: Callable[[], float] = _no_time,
        name: str = "",
    ) -> None:
        """Called by `TaskManager.open_gate`, which adds the channels.

        Args:
            pool: floating buffers, None when every channel is local.
            poke: drives the connections of the gate without waiting.
            on_closed: told once.
            now: monotonic seconds, to measure waits; without it none takes time.
            name: for metrics.
        """
        self.pool = pool
        self.name = name
        self.now = now
        self.idle = WaitMeter(now())
        """Its reader waits because there is nothing to poll; shared by the gates of a union."""
        self.records = 0
        self.debloater: BufferDebloater | None = None
        """What sizes its producers' buffers, if anything does."""
        self.on_data: Callable[[], None] | None = None
        """Told when a channel gets in line and no other was."""
        self.on_available: Callable[[], None] | None = None
        self.poke = poke
        self._on_closed = on_closed
        self._channels: list[InputChannel] = []
        self._line: deque[InputChannel] = deque()
        self._first_in_line = 0  # channels with a priority event: a prefix of the line
        self._finished_channels = 0
        self._drain = True
        self._end_of_data: set[int] = set()
        self._closed = False

    def add_channel(self, channel: InputChannel) -> None:
        """Appends a channel; its index is its place."""
        self._channels.append(channel)

    @property
    def channels(self) -> Sequence[InputChannel]:
        """In order of their index."""
        return self._channels

    @property
    def channel_count(self) -> int:
        """Number of channels."""
        return len(self._channels)

    @property
    def is_available(self) -> bool:
        """Whether `poll` is worth calling."""
        return bool(self._line) or self._closed or self.is_finished

    @property
    def has_data(self) -> bool:
        """Whether a channel is in line."""
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
        """None until every channel has sent EndOfData; then whether all of them said drain."""
        return self._drain if len(self._end_of_data) == len(self._channels) else None

    def enqueue(self, channel: InputChannel) -> None:
        """A channel has something (or has failed): it gets in line, once."""
        if channel.is_enqueued or channel.is_finished or self._closed:
            return
        channel.is_enqueued = True
        self._line.append(channel)
        if len(self._line) == 1:
            self._tell()

    def enqueue_first(self, channel: InputChannel) -> None:
        """A channel has a priority event: it goes to the head of the line, behind others that have one."""
        if channel.is_finished or channel.is_first or self._closed:
            return
        if channel.is_enqueued:
            self._line.remove(channel)
        self._insert_first(channel)
        if len(self._line) == 1:
            self._tell()

    def poll(self) -> Buffer | None:
        """The next buffer or event of the channel whose turn it is.

        Raises:
            ChannelFailed, ConnectionLost, RemoteProtocolError: the channel whose turn it is has failed.
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
                # It has said all it will: whoever goes on with the other channels must not wait for this one.
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

    def _tell(self) -> None:
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
            if self._line[-1] is channel:  # as a rule: it has just had its turn
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
        """The reader has decoded records of a channel."""
        self.records += count

    def acknowledge_end_of_data(self, channel_index: int) -> None:
        """Every record of a channel was processed (follows its EndOfData)."""
        self._channels[channel_index].acknowledge_end_of_data()

    def resume(self, channel_index: int) -> None:
        """Lets a channel go on after a blocking event."""
        channel = self._channels[channel_index]
        if channel.is_finished or self._closed:
            raise LocalProtocolError(f"channel {channel_index} has ended; there is nothing to resume")
        channel.resume()

    def announce_buffer_size(self, size_bytes: int) -> None:
        """Asks every producer that has not ended to fill new buffers to this size."""
        for channel in self._channels:
            if not channel.is_finished:
                channel.announce_buffer_size(size_bytes)

    def measure(self) -> tuple[int, int]:
        """Bytes of data polled so far, and buffers in use, over all channels; O(channels and what they have queued)."""
        bytes_polled = buffers_in_use = 0
        for channel in self._channels:
            polled, in_use = channel.measure()
            bytes_polled += polled
            buffers_in_use += in_use
        return bytes_polled, buffers_in_use

    def close(self) -> None:
        """Releases every channel, returns every buffer, wakes whoever waits. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._line.clear()
        self._first_in_line = 0
        for channel in self._channels:
            channel.is_enqueued = channel.is_first = False
            channel.release()
        if self.pool is not None:
            self.pool.destroy()
        self._on_closed()
        if self.on_available is not None:
            self.on_available()

    def statistics(self) -> GateStatistics:
        """A snapshot; O(channels and what they have queued)."""
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


@final
class UnionInputGate:
    """Several gates as one input.

    Fair among gates, one buffer a turn; channel indexes follow each other gate by gate.
    """

    def __init__(self, gates: Sequence[SingleInputGate]) -> None:
        """Args: at least two distinct gates.

        Raises:
            LocalProtocolError: fewer than two, or one of them twice.
        """
        if len(gates) < 2 or len(set(map(id, gates))) != len(gates):
            raise LocalProtocolError(f"a UnionInputGate needs at least 2 distinct gates, got {len(gates)}")
        self.on_available: Callable[[], None] | None = None
        self.now = gates[0].now
        self.idle = gates[0].idle
        """Its reader waits because there is nothing to poll in any gate: the time of each of them."""
        self._gates = tuple(gates)
        self._offsets = [sum(gate.channel_count for gate in gates[:index]) for index in range(len(gates))]
        self._line: deque[int] = deque()
        for index, gate in enumerate(gates):
            gate.idle = self.idle
            gate.on_available = self._notifier(index)
            if gate.is_available:
                self._line.append(index)

    @property
    def channel_count(self) -> int:
        """Over all gates."""
        return sum(gate.channel_count for gate in self._gates)

    @property
    def is_available(self) -> bool:
        """Whether `poll` is worth calling."""
        return bool(self._line) or self.is_finished

    @property
    def is_finished(self) -> bool:
        """Whether every gate is."""
        return all(gate.is_finished for gate in self._gates)

    @property
    def ended_with_drain(self) -> bool | None:
        """None until every gate has seen the end of its data; then whether all of them said drain."""
        states = [gate.ended_with_drain for gate in self._gates]
        return None if None in states else all(states)

    def poll(self) -> Buffer | None:
        """The next buffer or event of the gate whose turn it is; raises what that gate raises."""
        line = self._line
        while line:
            index = line.popleft()
            gate = self._gates[index]
            try:
                buffer = gate.poll()
            finally:
                if gate.is_available and not gate.is_finished and not gate.is_closed:
                    line.append(index)
            if buffer is not None:
                buffer.channel_index += self._offsets[index]
                return buffer
        return None

    def poke(self) -> None:
        """Before waiting: has every gate announce what is due and look whether more has arrived."""
        for gate in self._gates:
            gate.poke()

    def count_records(self, channel_index: int, count: int) -> None:
        """The reader has decoded records of a channel."""
        gate, _ = self._locate(channel_index)
        gate.records += count

    def acknowledge_end_of_data(self, channel_index: int) -> None:
        """Every record of a channel was processed."""
        gate, local = self._locate(channel_index)
        gate.acknowledge_end_of_data(local)

    def resume(self, channel_index: int) -> None:
        """Lets a channel go on after a blocking event."""
        gate, local = self._locate(channel_index)
        gate.resume(local)

    def close(self) -> None:
        """Closes every gate; idempotent."""
        for gate in self._gates:
            gate.close()

    def statistics(self) -> GateStatistics:
        """The channels of all gates, numbered through; their pools as one."""
        parts = [gate.statistics() for gate in self._gates]
        channels = [channel for part in parts for channel in part.channels]
        return GateStatistics(
            name=" and ".join(part.name for part in parts),
            channels=tuple(replace(channel, channel_index=index) for index, channel in enumerate(channels)),
            pool=LocalBufferPoolStatistics.sum_of([part.pool for part in parts if part.pool is not None]),
            records=sum(part.records for part in parts),
            idle=self.idle.statistics(self.now()),
            is_finished=self.is_finished,
        )

    def _locate(self, channel_index: int) -> tuple[SingleInputGate, int]:
        for gate, offset in zip(reversed(self._gates), reversed(self._offsets), strict=True):
            if channel_index >= offset:
                return gate, channel_index - offset
        raise LocalProtocolError(f"channel index {channel_index}; the union has 0 to {self.channel_count - 1}")

    def _notifier(self, index: int) -> Callable[[], None]:
        def on_available() -> None:
            was_empty = not self._line
            if index not in self._line:
                self._line.append(index)
            if was_empty and self.on_available is not None:
                self.on_available()

        return on_available
