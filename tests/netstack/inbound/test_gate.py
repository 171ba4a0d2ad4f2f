"""Gates: fair turns, one notification an edge, the end of everything, and unions of gates."""

from __future__ import annotations

from collections import Counter, deque

import pytest

from netstack.buffer.buffer import Buffer
from netstack.errors import ConnectionLost, LocalProtocolError
from netstack.events import DataType, EndOfData, EndOfPartition, Event, UserEvent, data_type_of, encode_event
from netstack.inbound.gate import InputChannel, SingleInputGate
from netstack.inbound.statistics import ChannelStatistics
from netstack.inbound.union import UnionInputGate


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
            is_finished=self.is_finished,
        )


class Stage:
    def __init__(self, count: int, told: list[str] | None = None, name: str = "gate") -> None:
        self.told = [] if told is None else told
        self.closed = 0
        self.gate = SingleInputGate(None, poke=lambda: self.told.append(f"{name} poked"), on_closed=self.on_closed)
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
    found: list[int] = []
    while len(found) < limit and (buffer := gate.poll()) is not None:
        found.append(buffer.channel_index)
    return found


# Fairness.


def test_counts_never_differ_by_more_than_one_while_all_have_data() -> None:
    stage = Stage(7)
    for channel in stage.channels:
        for _ in range(20):
            channel.put()
    counts: Counter[int] = Counter(dict.fromkeys(range(7), 0))
    for _ in range(7 * 20):
        buffer = stage.gate.poll()
        assert buffer is not None
        counts[buffer.channel_index] += 1
        assert max(counts.values()) - min(counts.values()) <= 1
    assert stage.gate.poll() is None


def test_a_busy_channel_does_not_keep_a_late_one_waiting() -> None:
    stage = Stage(2)
    for _ in range(10):
        stage.channels[0].put()
    assert turns(stage.gate, 4) == [0, 0, 0, 0]
    stage.channels[1].put()
    assert turns(stage.gate, 2) == [0, 1]


def test_a_priority_event_goes_first_and_the_line_stays() -> None:
    stage = Stage(3)
    for channel in stage.channels:
        channel.put()
    stage.channels[2].put_event(UserEvent("x"), priority=True)
    assert turns(stage.gate) == [2, 0, 1, 2]


def test_priority_events_keep_the_order_in_which_they_came() -> None:
    stage = Stage(4)
    for channel in stage.channels:
        channel.put()
    for index in (2, 0, 2):
        stage.channels[index].put_event(UserEvent("x"), priority=True)
    assert turns(stage.gate) == [2, 0, 2, 1, 3, 0, 2]


def test_whoever_does_something_else_is_told_of_the_first_priority_event() -> None:
    stage = Stage(3)
    stage.gate.on_priority = lambda: stage.told.append("priority")
    stage.channels[0].put()
    stage.channels[1].put_event(UserEvent("x"), priority=True)
    stage.channels[2].put_event(UserEvent("x"), priority=True)
    assert stage.told == ["available", "priority"]
    assert stage.gate.has_priority
    assert turns(stage.gate, 2) == [1, 2]
    assert not stage.gate.has_priority
    stage.channels[1].put_event(UserEvent("x"), priority=True)
    assert stage.told == ["available", "priority", "priority"]


def test_a_channel_that_ends_leaves_the_head_of_the_line() -> None:
    stage = Stage(3)
    stage.channels[0].error = ConnectionLost("gone")
    stage.channels[0].put_event(UserEvent("x"), priority=True)
    stage.channels[1].put_event(UserEvent("x"), priority=True)
    stage.channels[0].queue.clear()
    with pytest.raises(ConnectionLost):
        stage.gate.poll()
    stage.channels[2].put()
    stage.channels[2].put_event(UserEvent("x"), priority=True)
    assert turns(stage.gate) == [1, 2, 2]


# Availability.


def test_available_is_told_on_the_edge_only() -> None:
    stage = Stage(2)
    assert not stage.gate.is_available
    stage.channels[0].put()
    stage.channels[0].put()
    stage.channels[1].put()
    assert stage.told == ["available"]
    assert stage.gate.is_available
    turns(stage.gate)
    assert not stage.gate.is_available
    stage.channels[1].put_event(UserEvent("x"), priority=True)
    assert stage.told == ["available"] * 2


def test_a_spurious_notification_is_normal() -> None:
    stage = Stage(2)
    stage.gate.enqueue(stage.channels[0])
    stage.channels[1].put()
    assert turns(stage.gate) == [1]
    stage.gate.enqueue(stage.channels[0])
    assert stage.gate.poll() is None
    assert not stage.gate.is_available


def test_a_failed_channel_raises_and_the_others_go_on() -> None:
    stage = Stage(2)
    stage.channels[0].error = LocalProtocolError("broken")
    stage.gate.enqueue(stage.channels[0])
    stage.channels[1].put()
    with pytest.raises(LocalProtocolError, match="broken"):
        stage.gate.poll()
    assert turns(stage.gate) == [1]
    stage.channels[1].put()
    assert turns(stage.gate) == [1]


# The end.


def test_a_gate_ends_when_every_channel_has() -> None:
    stage = Stage(2)
    stage.channels[0].put()
    stage.end(0)
    assert turns(stage.gate) == [0, 0, 0]
    assert stage.channels[0].log == ["release"]
    assert (stage.gate.is_finished, stage.gate.is_available) == (False, False)
    stage.channels[0].put()  # nothing counts behind the end
    assert stage.gate.poll() is None
    stage.end(1)
    assert turns(stage.gate) == [1, 1]
    assert (stage.gate.is_finished, stage.gate.is_available) == (True, True)
    assert stage.gate.poll() is None
    assert stage.gate.statistics().is_finished


@pytest.mark.parametrize(
    ("drains", "expected"), [((True, True), True), ((True, False), False), ((False, False), False)]
)
def test_a_gate_has_drained_when_every_channel_says_so(drains: tuple[bool, bool], expected: bool) -> None:
    stage = Stage(2)
    for index, drain in enumerate(drains):
        assert stage.gate.ended_with_drain is None
        stage.channels[index].put_event(EndOfData(drain))
        turns(stage.gate)
    assert stage.gate.ended_with_drain is expected
    assert not stage.gate.is_finished


def test_resume_and_acknowledge_go_to_the_channel() -> None:
    stage = Stage(2)
    stage.gate.resume(1)
    stage.gate.acknowledge_end_of_data(1)
    assert stage.channels[1].log == ["resume", "acknowledge"]
    assert stage.channels[0].log == []
    stage.end(1)
    turns(stage.gate)
    with pytest.raises(LocalProtocolError, match="channel 1 has ended"):
        stage.gate.resume(1)


def test_close_releases_every_channel_once_and_wakes_whoever_waits() -> None:
    stage = Stage(2)
    stage.channels[0].put()
    stage.told.clear()
    stage.gate.close()
    stage.gate.close()
    assert [channel.log for channel in stage.channels] == [["release"], ["release"]]
    assert (stage.told, stage.closed) == (["available"], 1)
    assert stage.gate.is_closed
    assert stage.gate.is_available
    with pytest.raises(LocalProtocolError, match="the input gate is closed"):
        stage.gate.poll()
    stage.channels[0].put()
    stage.channels[0].put_event(UserEvent("x"), priority=True)
    assert stage.told == ["available"]
    with pytest.raises(LocalProtocolError):
        stage.gate.resume(0)


def test_statistics_hold_every_channel() -> None:
    stage = Stage(2)
    stage.channels[1].put()
    statistics = stage.gate.statistics()
    assert [channel.queued_buffers for channel in statistics.channels] == [0, 1]
    assert statistics.pool is None
    assert stage.gate.channel_count == len(stage.gate.channels) == 2


# Unions.


class Union:
    def __init__(self, *counts: int) -> None:
        self.told: list[str] = []
        self.parts = [Stage(count, self.told, f"gate {index}") for index, count in enumerate(counts)]
        self.gate = UnionInputGate([part.gate for part in self.parts])
        self.gate.on_available = lambda: self.told.append("available")


def test_a_union_is_fair_among_gates_and_shifts_indexes() -> None:
    union = Union(2, 1)
    for part in union.parts:
        for channel in part.channels:
            for _ in range(3):
                channel.put()
    assert turns(union.gate) == [0, 2, 1, 2, 0, 2, 1, 0, 1]
    assert union.told == ["available"]
    assert union.gate.channel_count == 3


def test_what_a_gate_had_before_the_union_is_not_forgotten() -> None:
    parts = [Stage(1), Stage(1)]
    parts[1].channels[0].put()
    union = UnionInputGate([part.gate for part in parts])
    assert union.is_available
    assert turns(union) == [1]


def test_a_union_is_told_again_after_it_ran_dry() -> None:
    union = Union(1, 1)
    for _ in range(3):
        union.told.clear()
        union.parts[1].channels[0].put()
        assert union.told == ["available"]
        assert turns(union.gate) == [1]
        assert not union.gate.is_available


def test_a_union_ends_when_every_gate_has() -> None:
    union = Union(1, 2)
    union.parts[0].end(0)
    assert turns(union.gate) == [0, 0]
    assert (union.gate.is_finished, union.gate.ended_with_drain) == (False, None)
    union.parts[1].end(0)
    union.parts[1].end(1, drain=False)
    assert turns(union.gate) == [1, 2, 1, 2]
    assert (union.gate.is_finished, union.gate.ended_with_drain, union.gate.is_available) == (True, False, True)
    assert union.gate.poll() is None
    assert union.gate.statistics().is_finished


def test_a_union_sends_orders_to_the_right_gate() -> None:
    union = Union(2, 1)
    union.gate.resume(2)
    union.gate.acknowledge_end_of_data(1)
    assert union.parts[1].channels[0].log == ["resume"]
    assert union.parts[0].channels[1].log == ["acknowledge"]
    union.gate.poke()
    assert union.told == ["gate 0 poked", "gate 1 poked"]
    assert len(union.gate.statistics().channels) == 3


def test_a_failing_gate_of_a_union_raises_and_the_other_goes_on() -> None:
    union = Union(1, 1)
    union.parts[0].channels[0].error = LocalProtocolError("broken")
    union.parts[0].gate.enqueue(union.parts[0].channels[0])
    union.parts[1].channels[0].put()
    with pytest.raises(LocalProtocolError, match="broken"):
        union.gate.poll()
    assert turns(union.gate) == [1]


def test_closing_a_union_closes_every_gate() -> None:
    union = Union(1, 1)
    union.gate.close()
    union.gate.close()
    assert [part.closed for part in union.parts] == [1, 1]
    with pytest.raises(LocalProtocolError, match="closed"):
        union.gate.poll()


def test_a_union_of_fewer_than_two_or_of_one_twice_is_refused() -> None:
    gate = Stage(1).gate
    for gates in ([gate], [gate, gate], []):
        with pytest.raises(LocalProtocolError, match="at least 2 distinct gates"):
            UnionInputGate(gates)


def test_an_index_out_of_range_is_refused() -> None:
    union = Union(2, 1)
    with pytest.raises(LocalProtocolError, match="channel index -1; the union has 0 to 2"):
        union.gate.resume(-1)


# Debloating.


def test_a_size_is_told_to_every_channel_that_has_not_ended() -> None:
    stage = Stage(3)
    stage.end(1)
    turns(stage.gate)
    for channel in stage.channels:
        channel.log.clear()
    stage.gate.announce_buffer_size(512)
    assert [channel.log for channel in stage.channels] == [["size 512"], [], ["size 512"]]


def test_a_gate_measures_all_its_channels() -> None:
    stage = Stage(3)
    assert stage.gate.measure() == (600, 0)
    for index in (0, 2, 2):
        stage.channels[index].put()
    assert stage.gate.measure() == (600, 3)


def test_whoever_waits_for_data_is_told_on_the_edge() -> None:
    stage = Stage(2)
    stage.told.clear()
    stage.gate.on_data = lambda: stage.told.append("data")
    assert not stage.gate.has_data
    stage.channels[0].put()
    stage.channels[1].put()
    assert stage.gate.has_data
    assert stage.told == ["data", "available"]
    turns(stage.gate)
    assert not stage.gate.has_data
    stage.told.clear()
    stage.channels[1].put_event(UserEvent("x"), priority=True)
    stage.channels[0].put()
    assert stage.told == ["data", "available"]


def test_without_debloating_there_is_nothing_to_say_of_it() -> None:
    statistics = Stage(1).gate.statistics()
    assert (statistics.debloated_buffer_bytes, statistics.estimated_time_to_consume_s) == (None, None)
