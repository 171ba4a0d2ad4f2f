"""Gathering what an unaligned barrier overtook."""

from __future__ import annotations

import pytest

from netstack.base.errors import LocalProtocolError
from netstack.schedule.checkpoint.channel_state import ChannelState, ChannelStateCapture, ChannelStateStatistics

A, B = ("words-0", 0), ("words-1", 0)


class Task:
    """Holds captures as a task does, and counts which have ended."""

    def __init__(self) -> None:
        self.ended: list[int] = []

    def capture(self, checkpoint_id: int = 1, max_bytes: int = 100) -> ChannelStateCapture:
        return ChannelStateCapture(
            checkpoint_id, max_bytes=max_bytes, on_end=lambda capture: self.ended.append(capture.checkpoint_id)
        )


@pytest.fixture
def task() -> Task:
    return Task()


def test_pieces_are_joined_by_channel_in_order(task: Task) -> None:
    capture = task.capture()
    capture.add_input(A, b"one ")
    capture.add_input(B, b"other")
    capture.add_output(A, b"three")
    capture.add_input(A, b"two ")
    capture.finish_outputs()
    assert (capture.is_complete, capture.result(), task.ended) == (False, None, [])
    capture.finish_inputs()
    assert task.ended == [1]
    assert capture.result() == ChannelState({A: b"one two ", B: b"other"}, {A: b"three"})
    assert capture.result() is capture.result()
    assert capture.statistics() == ChannelStateStatistics(input_bytes=13, output_bytes=5)


def test_a_view_is_copied_and_nothing_is_left_out(task: Task) -> None:
    segment = bytearray(b"record")
    capture = task.capture()
    capture.add_input(A, memoryview(segment))
    segment[:] = b"reused"
    capture.add_output(A, b"")
    capture.finish_inputs()
    capture.finish_outputs()
    assert capture.result() == ChannelState({A: b"record"}, {})


def test_an_aborted_capture_drops_everything_and_takes_no_more(task: Task) -> None:
    capture = task.capture()
    capture.add_input(A, b"one")
    capture.abort()
    capture.add_input(A, b"two")
    capture.add_output(A, b"two")
    for _ in range(2):
        capture.finish_inputs()
        capture.finish_outputs()
        capture.abort()
    assert (capture.is_aborted, capture.is_complete, capture.result()) == (True, False, None)
    assert (task.ended, capture.failure) == ([], None)
    assert capture.statistics() == ChannelStateStatistics(3, 0)


def test_abort_after_the_end_takes_the_result_back(task: Task) -> None:
    capture = task.capture()
    capture.finish_inputs()
    capture.finish_outputs()
    assert capture.result() == ChannelState({}, {})
    capture.abort()
    assert capture.result() is None


def test_adding_to_a_finished_side_is_a_mistake(task: Task) -> None:
    capture = task.capture(7)
    capture.finish_inputs()
    with pytest.raises(LocalProtocolError, match=r"checkpoint 7: .* are finished"):
        capture.add_input(A, b"late")
    with pytest.raises(LocalProtocolError, match="finish_inputs"):
        capture.finish_inputs()
    capture.add_output(A, b"in time")
    capture.finish_outputs()
    with pytest.raises(LocalProtocolError, match="the outputs"):
        capture.add_output(A, b"late")
    assert capture.result() == ChannelState({}, {A: b"in time"})


def test_too_much_fails_the_capture_alone(task: Task) -> None:
    capture = task.capture(3, max_bytes=10)
    capture.add_input(A, b"12345")
    capture.add_output(A, b"12345")
    assert not capture.is_aborted
    capture.add_output(B, b"1")
    assert (capture.is_aborted, capture.result(), task.ended) == (True, None, [3])
    assert str(capture.failure).startswith("checkpoint 3: its channel state has at least 11 bytes, the maximum is 10")
    capture.add_output(B, b"1")
    capture.finish_inputs()
    capture.finish_outputs()
    assert task.ended == [3]


def test_an_old_checkpoint_is_aborted_while_the_next_one_begins(task: Task) -> None:
    old, new = task.capture(1), task.capture(2)
    old.add_input(A, b"one")
    new.add_input(A, b"two")
    old.abort()
    old.add_input(A, b"late")
    for capture in (new, old):
        capture.finish_inputs()
        capture.finish_outputs()
    assert task.ended == [2]
    assert new.result() == ChannelState({A: b"two"}, {})
    assert old.result() is None
