"""Who is silent for too long is lost; whoever answered while we were busy is not (H1)."""

from __future__ import annotations

import pytest

from netstack.errors import ConfigError, LocalProtocolError
from netstack.schedule.events import HeartbeatReceived, Tick
from netstack.schedule.heartbeats import Heartbeats, HeartbeatSettings
from netstack.schedule.inbox import Inbox

SETTINGS = HeartbeatSettings(interval_s=10.0, timeout_s=50.0)


def test_a_silent_taskmanager_is_lost_once() -> None:
    heartbeats = Heartbeats(SETTINGS, 0.0)
    heartbeats.watch("a", 0.0)
    heartbeats.watch("b", 0.0)
    heartbeats.heard("b", 30.0)
    heartbeats.heard("nobody", 30.0)
    assert heartbeats.expired(49.9) == []
    assert heartbeats.expired(50.0) == ["a"]
    assert heartbeats.expired(79.0) == []
    assert heartbeats.expired(80.0) == ["b"]


def test_everybody_is_asked_once_an_interval() -> None:
    heartbeats = Heartbeats(SETTINGS, 0.0)
    heartbeats.watch("a", 0.0)
    assert heartbeats.next_deadline() == 10.0
    assert [heartbeats.to_ask(now_s) for now_s in (9.0, 10.0, 15.0, 20.0)] == [[], ["a"], [], ["a"]]
    heartbeats.unwatch("a")
    heartbeats.unwatch("a")
    assert heartbeats.to_ask(30.0) == []
    assert heartbeats.expired(100.0) == []
    assert heartbeats.next_deadline() == 40.0


def test_the_next_deadline_is_the_first_timeout_or_request() -> None:
    heartbeats = Heartbeats(HeartbeatSettings(interval_s=10.0, timeout_s=11.0), 0.0)
    heartbeats.watch("a", 0.0)
    heartbeats.to_ask(10.0)
    assert heartbeats.next_deadline() == 11.0


def test_requests_that_fail_in_a_row_are_a_loss() -> None:
    heartbeats = Heartbeats(SETTINGS, 0.0)
    heartbeats.watch("a", 0.0)
    assert not heartbeats.request_failed("a")
    heartbeats.heard("a", 1.0)
    assert not heartbeats.request_failed("a")
    assert heartbeats.request_failed("a")
    assert not heartbeats.request_failed("a")
    patient = Heartbeats(HeartbeatSettings(failure_threshold=None), 0.0)
    patient.watch("a", 0.0)
    assert not any(patient.request_failed("a") for _ in range(10))


def test_after_a_long_step_answers_are_heard_before_timers() -> None:
    heartbeats = Heartbeats(SETTINGS, 0.0)
    for name in ("a", "b"):
        heartbeats.watch(name, 0.0)
    inbox = Inbox()
    # The loop was busy for 100 s; the timer came first, then an answer of only one of the two.
    inbox.post(Tick(100.0))
    inbox.post(HeartbeatReceived(100.0, "a"))
    lost: list[str] = []
    while (event := inbox.take()) is not None:
        if isinstance(event, HeartbeatReceived):
            heartbeats.heard(event.taskmanager, event.now_s)
        else:
            lost += heartbeats.expired(event.now_s)
    assert lost == ["b"]


def test_misuse() -> None:
    heartbeats = Heartbeats(SETTINGS, 0.0)
    heartbeats.watch("a", 0.0)
    with pytest.raises(LocalProtocolError, match="registered"):
        heartbeats.watch("a", 0.0)
    with pytest.raises(ConfigError, match="give a longer timeout"):
        HeartbeatSettings(interval_s=10.0, timeout_s=10.0)
    with pytest.raises(ConfigError, match="failure_threshold=0"):
        HeartbeatSettings(failure_threshold=0)
