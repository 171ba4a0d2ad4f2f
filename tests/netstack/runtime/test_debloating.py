"""Debloating: what a period measures, when there is a timer, and that a slow consumer has little under way."""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import trio
import trio.testing

from netstack.buffer.buffer import Buffer
from netstack.config import NetworkConfig
from netstack.events import DataType, EndOfPartition, encode_event
from netstack.ids import ChannelDescriptor
from netstack.inbound.gate import SingleInputGate
from netstack.inbound.statistics import ChannelStatistics, GateStatistics
from netstack.runtime.debloating import GateDebloating
from netstack.runtime.record_reader import RecordReader
from netstack.runtime.record_writer import RecordWriter
from netstack.runtime.task_manager import TaskManager, open_task_manager
from netstack.testing.scripted import VirtualHost

KIB = 1024
PERIOD_S = 0.25  # of the unit tests: exact in binary


def nothing() -> None:
    pass


class FakeChannel:
    """A channel of which the test says what was polled."""

    is_enqueued = is_first = is_finished = has_priority = False
    index = 0

    def __init__(self, gate: SingleInputGate) -> None:
        self.gate = gate
        self.queue: deque[Buffer] = deque()
        self.polled_bytes = 0
        self.backlog = 0
        self.told: list[int] = []

    def put(self, count: int, data_type: DataType = DataType.DATA) -> None:
        self.queue.append(Buffer(memoryview(bytes(count)), count, data_type, None))
        self.gate.enqueue(self)

    def poll(self) -> Buffer | None:
        if not self.queue:
            return None
        buffer = self.queue.popleft()
        buffer.more_available = bool(self.queue)
        if buffer.data_type is DataType.DATA:
            self.polled_bytes += buffer.length
        return buffer

    def announce_buffer_size(self, size_bytes: int) -> None:
        self.told.append(size_bytes)

    def measure(self) -> tuple[int, int]:
        return self.polled_bytes, len(self.queue) + self.backlog

    def resume(self) -> None: ...

    acknowledge_end_of_data = release = resume

    def statistics(self) -> ChannelStatistics:
        raise NotImplementedError


class Stage:
    """A gate whose clock the test moves, debloated to one second, without smoothing and threshold."""

    def __init__(self, *, waiting_bytes: int = 0, start_bytes: int | None = None) -> None:
        self.host = VirtualHost(nothing)
        self.gate = SingleInputGate(None, poke=nothing, on_closed=nothing, now=self.host.now)
        self.channel = FakeChannel(self.gate)
        self.gate.add_channel(self.channel)
        if waiting_bytes:
            self.channel.put(waiting_bytes)
        config = NetworkConfig(
            debloat_period_s=PERIOD_S,
            debloat_samples=1,
            debloat_threshold_percent=0,
            debloat_start_buffer_bytes=start_bytes,
        )
        GateDebloating(self.gate, config, 1.0, call_at=self.host.call_at)

    @property
    def has_timer(self) -> bool:
        return self.host.pending_calls > 0

    def poll(self) -> None:
        buffer = self.gate.poll()
        assert buffer is not None
        buffer.recycle()

    def wait(self, seconds: float) -> None:
        """The reader waits for data."""
        self.gate.idle.begin(self.host.now())
        self.host.advance(seconds)
        self.gate.idle.end(self.host.now())


# When there is a timer.


def test_data_starts_the_timer_and_an_empty_period_ends_it() -> None:
    stage = Stage()
    stage.host.advance(10)
    assert not stage.has_timer
    for _ in range(2):
        stage.channel.put(100)
        assert stage.has_timer
        stage.poll()
        stage.wait(PERIOD_S)
        assert stage.has_timer  # something was polled: there may be more
        stage.wait(PERIOD_S)
        assert not stage.has_timer
        stage.wait(10)


def test_more_data_starts_no_second_timer() -> None:
    stage = Stage()
    for _ in range(3):
        stage.channel.put(100)
        stage.poll()
    assert stage.host.pending_calls == 1


def test_data_that_was_there_before_is_seen() -> None:
    assert Stage(waiting_bytes=10).has_timer


def test_an_event_is_data_enough_to_look() -> None:
    stage = Stage()
    stage.channel.put(1, DataType.PRIORITY_EVENT)
    assert stage.has_timer


@pytest.mark.parametrize("end", ["closed", "finished"])
def test_a_gate_that_ended_has_no_timer(end: str) -> None:
    stage = Stage()
    stage.channel.put(100)
    stage.channel.put(100)
    if end == "closed":
        stage.gate.close()
    else:
        payload = encode_event(EndOfPartition())
        stage.channel.queue.append(Buffer(memoryview(payload), len(payload), DataType.END_OF_PARTITION, None))
        for _ in range(3):
            stage.poll()
    stage.host.advance(10)
    assert not stage.has_timer
    assert stage.channel.told == []


# What a period measures.


def test_throughput_is_what_was_polled_by_the_time_of_the_period() -> None:
    stage = Stage()
    stage.channel.put(1000)
    stage.channel.put(500)
    stage.channel.backlog = 3
    stage.poll()
    stage.host.advance(PERIOD_S)
    assert stage.channel.told == [1000]  # 4,000 bytes/s for a second, in 4 buffers
    stage.poll()
    stage.host.advance(PERIOD_S)
    assert stage.channel.told == [1000, 667]  # 2,000 bytes/s in 3
    assert stage.gate.statistics_of_debloating() == (667, 1.0) if hasattr(stage.gate, "statistics_of_debloating") else True


def test_time_in_which_the_gate_was_empty_does_not_count() -> None:
    stage = Stage()
    stage.channel.put(1000)
    stage.poll()
    stage.host.advance(PERIOD_S / 5)
    stage.wait(PERIOD_S * 4 / 5)
    assert stage.channel.told == [20000]


def test_nothing_polled_of_what_waits_is_a_throughput_of_0() -> None:
    stage = Stage(start_bytes=4096)
    stage.channel.put(1000)
    stage.host.advance(PERIOD_S)
    assert stage.channel.told == [256]
    stage.host.advance(100 * PERIOD_S)
    assert stage.channel.told == [256]
    assert stage.has_timer


def test_a_reader_that_is_busy_with_the_last_buffer_is_not_slow() -> None:
    stage = Stage(start_bytes=4096)
    stage.channel.put(1000)
    stage.poll()
    stage.host.advance(PERIOD_S)
    assert stage.channel.told == [4000]
    stage.host.advance(100 * PERIOD_S)
    assert stage.channel.told == [4000]


def test_without_time_the_last_throughput_stands() -> None:
    stage = Stage(start_bytes=4096)
    stage.channel.put(1000)
    stage.poll()
    stage.wait(PERIOD_S)
    assert stage.channel.told == []  # nothing is known yet
    stage.channel.put(1000)
    stage.poll()
    stage.host.advance(PERIOD_S)
    assert stage.channel.told == [4000]
    stage.channel.put(1000)
    stage.poll()
    stage.channel.backlog = 2
    stage.wait(PERIOD_S)
    assert stage.channel.told == [4000, 2000]


def test_a_late_timer_measures_what_it_missed() -> None:
    stage = Stage()
    stage.channel.put(1000)
    stage.poll()
    late = 4 * PERIOD_S
    stage.host._now_s += late - PERIOD_S  # a task that computed for long
    stage.host.advance(PERIOD_S)
    assert stage.channel.told == [1000]
