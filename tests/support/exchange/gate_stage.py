"""A gate over channels that say what a test tells them to."""

from __future__ import annotations

from collections import deque

from netstack.base.events import DataType, EndOfData, EndOfPartition, Event, data_type_of, encode_event
from netstack.exchange.buffer.buffer import Buffer
from netstack.exchange.inbound.gate import InputChannel, SingleInputGate
from netstack.exchange.inbound.statistics import ChannelStatistics
from netstack.exchange.inbound.union import UnionInputGate


def nothing() -> None:
    pass


class FakeChannel:
    """A channel whose content the test puts there."""

    def __init__(self, gate: SingleInputGate, index: int) -> None:
        self.index = index
        self.is_enqueued = False
        self.is_first = False
        self.is_finished = False
        self.gate = gate
        self.queue: deque[Buffer] = deque()
        self.error: Exception | None = None
        self.log: list[str] = []

    def put(self, data: bytes = b"x") -> None:
        self.queue.append(Buffer(memoryview(data), len(data), DataType.DATA, None))
        self.gate.enqueue(self)

    def put_event(self, event: Event, *, priority: bool = False) -> None:
        data = encode_event(event)
        buffer = Buffer(memoryview(data), len(data), data_type_of(event, priority=priority), None)
        if priority:
            self.queue.appendleft(buffer)
            self.gate.enqueue_first(self)
        else:
            self.queue.append(buffer)
            self.gate.enqueue(self)

    @property
    def has_priority(self) -> bool:
        return bool(self.queue) and self.queue[0].data_type.has_priority

    def poll(self) -> Buffer | None:
        if not self.queue:
            if self.error is not None:
                raise self.error
            return None
        buffer = self.queue.popleft()
        buffer.more_available = bool(self.queue)
        buffer.next_is_event = bool(self.queue) and self.queue[0].data_type is not DataType.DATA
        return buffer

    def resume(self) -> None:
        self.log.append("resume")

    def announce_buffer_size(self, size_bytes: int) -> None:
        self.log.append(f"size {size_bytes}")

    def widen(self, window: int) -> None:
        self.log.append(f"window {window}")

    def measure(self) -> tuple[int, int]:
        return 100 * (self.index + 1), len(self.queue)

    def acknowledge_end_of_data(self) -> None:
        self.log.append("acknowledge")

    def release(self) -> None:
        self.log.append("release")

    def statistics(self) -> ChannelStatistics:
        return ChannelStatistics(
            channel_index=self.index,
            is_local=True,
            partition_id="p",
            subpartition=self.index,
            queued_buffers=len(self.queue),
            queued_bytes=sum(buffer.length for buffer in self.queue),
            buffers=0,
            bytes=0,
            polled_buffers=0,
            polled_bytes=0,
            exclusive=0,
            free_exclusive=0,
            free_floating=0,
            unannounced_credit=0,
            announced_credit=0,
            announcements=0,
            backlog_announcements=0,
            sender_backlog=0,
            sender_expected=0,
            is_finished=self.is_finished,
        )


class Stage:
    def __init__(self, count: int, told: list[str] | None = None, name: str = "gate") -> None:
        self.told = [] if told is None else told
        self.closed = 0
        self.gate = SingleInputGate(
            None, read_connections=lambda: self.told.append(f"{name} poked"), on_closed=self.on_closed
        )
        self.channels = [FakeChannel(self.gate, index) for index in range(count)]
        for channel in self.channels:
            checked: InputChannel = channel
            self.gate.add_channel(checked)
        self.gate.on_available = lambda: self.told.append("available")

    def on_closed(self) -> None:
        self.closed += 1

    def end(self, index: int, *, drain: bool = True) -> None:
        self.channels[index].put_event(EndOfData(drain))
        self.channels[index].put_event(EndOfPartition())


def turns(gate: SingleInputGate | UnionInputGate, limit: int = 1000) -> list[int]:
    """The channel of each buffer until there is none."""
    actual: list[int] = []
    while len(actual) < limit and (buffer := gate.poll()) is not None:
        actual.append(buffer.channel_index)
    return actual
