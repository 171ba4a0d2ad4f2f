"""Fair choice among the input channels that have something: SingleInputGate, and UnionInputGate over several.

Takes: notifications of channels. Gives: buffers and events, one at a time, to a reader.

Rules:
- One buffer a turn, then the channel goes to the tail: round robin among the channels with data. Priority events go
  first.
- Available is "some channel is in line"; `on_available` is called on that edge only. A poll that finds nothing is
  normal.
- A channel that ended leaves the line for good; when all have, the gate is finished and stays available, so that
  waiters see it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final

from ..buffer.buffer import Buffer
from ..buffer.pool import LocalBufferPool, LocalBufferPoolStatistics
from ..errors import LocalProtocolError, NetstackError
from ..events import DataType, EndOfData, decode_event

_DATA: Final = DataType.DATA


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """A snapshot of one input channel.

    Attributes:
        channel_index: its place in the gate.
        is_local: whether it reads a partition of its own TaskManager.
        partition_id: what it reads.
        subpartition: which of it.
        queued_buffers: received and not yet polled.
        buffers: data buffers received.
        bytes: of data received, length prefixes included.
        free_exclusive: exclusive buffers at hand (0 for local channels).
        free_floating: floating buffers at hand.
        unannounced_credit: reserved but not yet told to the producer.
        announced_credit: ever told, the initial credit included.
        announcements: credit announcements sent.
        sender_backlog: as last told by the producer.
        is_finished: whether its end was polled.
    """

    channel_index: int
    is_local: bool
    partition_id: str
    subpartition: int
    queued_buffers: int
    buffers: int
    bytes: int
    free_exclusive: int
    free_floating: int
    unannounced_credit: int
    announced_credit: int
    announcements: int
    sender_backlog: int
    is_finished: bool


class InputChannel(Protocol):
    """One logical channel as its gate sees it."""

    index: int
    is_enqueued: bool
    is_finished: bool

    def poll(self) -> Buffer | None:
        """The next buffer; raises the channel's error if it failed."""

    def resume(self) -> None:
        """Lets the producer go on after a blocking event."""

    def acknowledge_end_of_data(self) -> None:
        """Every record of the channel was processed."""

    def release(self) -> None:
        """Gives everything back and tells the producer; idempotent."""

    def statistics(self) -> ChannelStatistics:
        """A snapshot."""


@dataclass(frozen=True, slots=True)
class GateStatistics:
    """A snapshot of one gate.

    Attributes:
        channels: each of them.
        pool: its floating buffers.
        is_finished: whether every channel has ended.
    """

    channels: tuple[ChannelStatistics, ...]
    pool: LocalBufferPoolStatistics | None
    is_finished: bool


@final
class SingleInputGate:
    """All channels of one input."""

    def __init__(
        self, pool: LocalBufferPool | None, *, poke: Callable[[], None], on_closed: Callable[[], None]
    ) -> None:
        """Called by `TaskManager.open_gate`, which adds the channels.

        Args:
            pool: floating buffers, None when every channel is local.
            poke: drives the connections of the gate without waiting.
            on_closed: told once.
        """
        self.pool = pool
        self.on_available: Callable[[], None] | None = None
        self.poke = poke
        self._on_closed = on_closed
        self._channels: list[InputChannel] = []
        self._line: deque[InputChannel] = deque()
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
        if len(self._line) == 1 and self.on_available is not None:
            self.on_available()

    def enqueue_first(self, channel: InputChannel) -> None:
        """A channel has a priority event: it goes to the head of the line."""
        if channel.is_finished or self._closed:
            return
        if channel.is_enqueued:
            self._line.remove(channel)
        channel.is_enqueued = True
        self._line.appendleft(channel)
        if len(self._line) == 1 and self.on_available is not None:
            self.on_available()

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
            try:
                buffer = channel.poll()
            except NetstackError:
                # It has said all it will: whoever goes on with the other channels must not wait for this one.
                self._end(channel)
                raise
            if buffer is None:
                continue
            if buffer.more_available:
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

    def _end(self, channel: InputChannel) -> None:
        if channel.is_enqueued:
            self._line.remove(channel)
            channel.is_enqueued = False
        if not channel.is_finished:
            channel.is_finished = True
            self._finished_channels += 1
        channel.release()

    def acknowledge_end_of_data(self, channel_index: int) -> None:
        """Every record of a channel was processed (follows its EndOfData)."""
        self._channels[channel_index].acknowledge_end_of_data()

    def resume(self, channel_index: int) -> None:
        """Lets a channel go on after a blocking event."""
        channel = self._channels[channel_index]
        if channel.is_finished or self._closed:
            raise LocalProtocolError(f"channel {channel_index} has ended; there is nothing to resume")
        channel.resume()

    def close(self) -> None:
        """Releases every channel, returns every buffer, wakes whoever waits. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._line.clear()
        for channel in self._channels:
            channel.is_enqueued = False
            channel.release()
        if self.pool is not None:
            self.pool.destroy()
        self._on_closed()
        if self.on_available is not None:
            self.on_available()

    def statistics(self) -> GateStatistics:
        """A snapshot; O(channels)."""
        return GateStatistics(
            channels=tuple(channel.statistics() for channel in self._channels),
            pool=None if self.pool is None else self.pool.statistics(),
            is_finished=self.is_finished,
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
        self._gates = tuple(gates)
        self._offsets = [sum(gate.channel_count for gate in gates[:index]) for index in range(len(gates))]
        self._line: deque[int] = deque()
        for index, gate in enumerate(gates):
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
        """The channels of all gates, numbered through; `pool` is None, ask each gate for its own."""
        return GateStatistics(
            channels=tuple(channel for gate in self._gates for channel in gate.statistics().channels),
            pool=None,
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
