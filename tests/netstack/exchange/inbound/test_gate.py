"""One gate: fair among its channels, told on the edge, at its end when every channel is."""

from __future__ import annotations

from collections import Counter

import pytest
from exchange.gate_stage import Stage, turns

from netstack.base.errors import ConnectionLost, LocalProtocolError
from netstack.base.events import EndOfData, UserEvent

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
    assert [channel.log for channel in stage.channels] == [["acknowledge", "release"]] * 2
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
