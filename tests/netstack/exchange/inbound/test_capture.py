"""InputCapture: the data in front of a barrier, by its place on the channel and whoever comes first."""

from __future__ import annotations

import pytest

from netstack.base.events import DataType
from netstack.exchange.buffer.buffer import Buffer
from netstack.exchange.inbound.capture import InputCapture, is_before


def buffer(sequence: int, data: bytes, data_type: DataType = DataType.DATA) -> Buffer:
    made = Buffer(memoryview(data), len(data), data_type, None)
    made.sequence = sequence
    return made


@pytest.mark.parametrize(
    ("sequence", "other", "before"),
    [(1, 2, True), (2, 2, False), (3, 2, False), (0xFFFFFFFF, 0, True), (0, 0xFFFFFFFF, False), (0, 0x7FFFFFFF, True)],
)
def test_numbers_wrap_around(sequence: int, other: int, before: bool) -> None:
    assert is_before(sequence, other) is before


def test_all_that_waits_and_all_that_comes_until_the_barrier() -> None:
    capture = InputCapture()
    assert not capture.is_open
    queued = [buffer(3, b"ab"), buffer(4, b"event", DataType.EVENT), buffer(5, b"cd")]
    capture.start(7, b"torn", queued)
    assert capture.is_open
    capture.add(memoryview(b"ef"))
    capture.on_barrier(7, 8)
    assert not capture.is_open
    assert capture.take(7) == b"torn" + b"ab" + b"cd" + b"ef"
    assert capture.take(7) == b""


def test_a_barrier_that_came_before_the_start_ends_it_at_its_place() -> None:
    capture = InputCapture()
    capture.on_barrier(7, 0)
    capture.start(7, b"", [buffer(0xFFFFFFFE, b"ab"), buffer(0xFFFFFFFF, b"cd"), buffer(1, b"behind")])
    assert not capture.is_open
    assert capture.take(7) == b"abcd"


def test_a_late_barrier_of_an_older_checkpoint_ends_nothing() -> None:
    capture = InputCapture()
    capture.start(7, b"", [])
    capture.on_barrier(6, 1)
    assert capture.is_open
    capture.add(memoryview(b"ab"))
    assert capture.take(6) == b""
    assert capture.take(7) == b"ab"


def test_a_barrier_of_a_newer_one_ends_it_too() -> None:
    capture = InputCapture()
    capture.start(7, b"", [])
    capture.on_barrier(8, 1)
    assert not capture.is_open


def test_several_barriers_may_wait() -> None:
    capture = InputCapture()
    capture.on_barrier(1, 0)
    capture.on_barrier(2, 3)
    queued = [buffer(1, b"ab"), buffer(2, b"cd"), buffer(4, b"ef")]
    assert capture.start(1, b"", queued)
    assert capture.take(1) == b""
    assert capture.start(2, b"", queued)
    assert capture.take(2) == b"abcd"


def test_a_checkpoint_whose_barrier_never_comes_cannot_be_had() -> None:
    capture = InputCapture()
    capture.on_barrier(2, 3)
    assert not capture.start(1, b"torn", [])
    assert capture.take(1) == b""


def test_barriers_of_long_ago_are_forgotten() -> None:
    capture = InputCapture()
    for checkpoint_id in range(100):
        capture.on_barrier(checkpoint_id, checkpoint_id)
    assert capture.start(99, b"", [buffer(98, b"ab")])
    assert capture.take(99) == b"ab"
