"""Chunk boundaries are invisible: whole, byte by byte or cut at random, a stream gives the same bytes and events.

Where a buffer ends is not among it: what a flush finds in the open buffer depends on when credit had come.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from netstack.base.errors import ChannelFailed, ConnectionLost
from netstack.base.events import CheckpointBarrier, DataType, UserEvent
from netstack.exchange.inbound.gate import SingleInputGate
from netstack.exchange.outbound.selector import RebalanceSelector
from netstack.exchange.outbound.writer import PartitionWriter
from netstack.exchange.record.formats import format_named
from netstack.testing.link import Link, Taken
from netstack.testing.scripted import Chunk, everything, one_byte

SEGMENT = 40

orders = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 3 * SEGMENT)),
    st.tuples(st.just("write"), st.integers(0, 10)),
    st.tuples(st.sampled_from(["flush", "event", "priority", "barrier", "read", "read"])),
)


class Stage:
    """One partition of two subpartitions; between two orders everything under way arrives."""

    def __init__(self, chunk: Chunk, **options: Any) -> None:
        self.link = Link(segment_size_bytes=SEGMENT, chunk=chunk, **options)
        self.partition = self.link.create_partition("p", subpartitions=2)
        self.writer = PartitionWriter(
            self.partition,
            selector=RebalanceSelector(),
            format=format_named("bytes"),
            buffer_timeout_s=None,
            refuse=BlockingIOError,
        )
        self.gate: SingleInputGate = self.link.open_gate([("p", 0), ("p", 1)])
        self.taken: list[Taken] = []
        self.counter = 0

    def read(self) -> None:
        for taken in self.link.drain(self.gate):
            self.taken.append(taken)
            if taken.data_type.blocks_upstream:
                self.gate.resume(taken.channel_index)

    def follow(self, script: list[tuple[Any, ...]]) -> list[list[tuple[DataType, bytes]]]:
        """Carries the orders out; what each channel gave."""
        for name, *arguments in script:
            self.counter += 1
            match name:
                case "write":
                    record = bytes((self.counter + index) % 251 for index in range(arguments[0]))
                    while not self.writer.try_emit(record):
                        self.writer.flush()
                        self.link.run()
                        self.read()
                case "flush":
                    self.writer.flush()
                case "event" | "priority":
                    self.writer.broadcast_event(UserEvent(str(self.counter)), priority=name == "priority")
                case "barrier":
                    self.writer.broadcast_event(CheckpointBarrier(self.counter))
                case "read":
                    self.read()
            self.link.run()
        self.writer.end(drain=True)
        while not self.gate.is_finished:
            self.read()
            assert self.link.run() or self.gate.is_available
        return [stream_of(taken for taken in self.taken if taken.channel_index == channel) for channel in (0, 1)]


def stream_of(elements: Iterable[Taken]) -> list[tuple[DataType, bytes]]:
    """Events, and the bytes between two of them as one."""
    stream: list[tuple[DataType, bytes]] = []
    for taken in elements:
        payload = taken.payload
        if stream and stream[-1][0] is taken.data_type is DataType.DATA:
            payload = stream.pop()[1] + payload
        stream.append((taken.data_type, payload))
    return stream


@settings(max_examples=settings.default.max_examples * 2 // 3)
@example(
    [("barrier",), ("write", 68), ("write", 107), ("flush",), ("write", 7), ("read",), ("write", 65)], 98, 24, True
)  # a flush that finds credit, or not yet
@given(st.lists(orders, min_size=4, max_size=15), st.integers(0, 2**32 - 1), st.integers(24, 300), st.booleans())
def test_any_cuts_give_the_same(script: list[tuple[Any, ...]], seed: int, capacity_bytes: int, checksum: bool) -> None:
    rng = random.Random(seed)
    actual = []
    chunks: list[tuple[Chunk, int]] = [
        (everything, 1 << 20),
        (one_byte, 1 << 20),
        (lambda available: rng.randint(1, available), capacity_bytes),
    ]
    for chunk, capacity in chunks:
        stage = Stage(chunk, capacity_bytes=capacity, checksum=checksum)
        actual.append(stage.follow(script))
        stage.link.close()
    assert actual[0] == actual[1] == actual[2]


def whole_run() -> tuple[list[Taken], int]:
    stage = Stage(everything)
    stage.follow(SCRIPT)
    stage.link.close()
    return stage.taken, stage.link.bytes_to_consumer


SCRIPT: list[tuple[Any, ...]] = [("write", 100), ("event",), ("write", 3), ("flush",), ("write", 200), ("read",)]


def test_a_stream_cut_at_any_byte_delivers_what_came_before_and_then_says_so() -> None:
    expected, size = whole_run()
    streams = [[taken for taken in expected if taken.channel_index == channel] for channel in (0, 1)]
    for cut in range(1, size, 7):
        stage = Stage(everything, cut_at_byte=cut)
        errors = []
        for name, *arguments in SCRIPT:
            if name == "write":
                stage.writer.try_emit(bytes((stage.counter + 1 + index) % 251 for index in range(arguments[0])))
            elif name == "event":
                stage.writer.broadcast_event(UserEvent(str(stage.counter + 1)))
            elif name == "flush":
                stage.writer.flush()
            stage.counter += 1
            stage.link.run()
        stage.writer.end(drain=True)
        for _ in range(20):
            stage.link.run()
            while stage.gate.is_available and not stage.gate.is_finished:
                try:
                    stage.read()
                except (ConnectionLost, ChannelFailed) as error:
                    errors.append(error)
        for channel in (0, 1):
            received = [taken for taken in stage.taken if taken.channel_index == channel]
            assert received == streams[channel][: len(received)]
        assert stage.link.is_closed
        ended = sum(taken.data_type is DataType.END_OF_PARTITION for taken in stage.taken)
        assert len(errors) == 2 - ended
        assert stage.gate.is_finished  # whoever goes on reading does not wait for what is lost
        assert all(isinstance(error, ConnectionLost) for error in errors)
        stage.link.close()


def test_a_stream_that_is_not_cut_ends_without_an_error() -> None:
    taken, size = whole_run()
    stage = Stage(everything, cut_at_byte=size + 1)
    stage.follow(SCRIPT)
    assert stage.taken == taken
    assert not stage.link.is_closed
    stage.link.close()


@pytest.mark.parametrize("side", ["producer", "consumer"])
def test_a_half_that_breaks_the_protocol_closes_with_the_reason(side: str) -> None:
    stage = Stage(everything)
    stage.link.run()
    half = stage.link._consumer if side == "producer" else stage.link._producer
    half.outgoing.write(b"\xff" * 64)  # what no peer of ours sends
    stage.link.run()
    error = stage.link.producer_error if side == "producer" else stage.link.consumer_error
    assert error is not None
    assert "FRAME" in str(error)
    stage.link.close()
