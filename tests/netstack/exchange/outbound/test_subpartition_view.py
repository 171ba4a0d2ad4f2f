"""The reader of a subpartition: it is one, it is told, and it may leave. Snapshots."""

from __future__ import annotations

import pytest
from exchange.subpartition_stage import EVENT, Stage

from netstack.base.errors import LocalProtocolError
from netstack.base.events import (
    EndOfData,
    encode_event,
)


@pytest.fixture
def stage() -> Stage:
    return Stage()


# The view.


def test_a_view_is_told_at_once_of_what_is_there() -> None:
    stage = Stage(view=False)
    stage.add_finished(b"a")
    assert stage.told == 0
    view = stage.open_view()
    assert stage.told == 1
    assert view.poll() is not None


def test_there_is_one_view_ever(stage: Stage) -> None:
    with pytest.raises(LocalProtocolError, match="subpartition 3 is consumed already"):
        stage.subpartition.create_view(stage.notify)
    assert stage.view is not None
    stage.view.release()
    with pytest.raises(LocalProtocolError, match="consumed already"):
        stage.subpartition.create_view(stage.notify)


def test_a_released_subpartition_has_no_view() -> None:
    stage = Stage(view=False)
    stage.subpartition.discard()
    with pytest.raises(LocalProtocolError, match="subpartition 3 is released"):
        stage.open_view()


def test_releasing_the_view_says_so_once_and_keeps_the_queue(stage: Stage) -> None:
    stage.add_finished(b"a")
    assert stage.view is not None
    assert not stage.view.is_released
    stage.view.release()
    stage.view.release()
    assert stage.log == ["consumed 3"]
    assert stage.view.is_released
    reported = stage.told
    stage.add_finished(b"b")
    stage.subpartition.flush()
    assert stage.told == reported
    statistics = stage.subpartition.statistics()
    assert (statistics.queued_buffers, statistics.is_consumed) == (2, True)


def test_acknowledgement_reaches_the_partition(stage: Stage) -> None:
    assert stage.view is not None
    stage.add_event(EndOfData())
    stage.view.acknowledge_end_of_data()
    assert stage.subpartition.is_dismissed
    assert stage.log == []
    stage.poll()
    stage.view.acknowledge_end_of_data()
    assert stage.log == ["acknowledged 3"]


def test_statistics(stage: Stage) -> None:
    stage.add_finished(b"abc")
    stage.add_event()
    stage.add_open(b"d")
    stage.poll()
    statistics = stage.subpartition.statistics()
    assert (statistics.queued_buffers, statistics.buffers_added, statistics.buffers_sent) == (2, 3, 1)
    assert (statistics.bytes_sent, statistics.backlog_buffers) == (3, 0)
    assert (statistics.is_blocked, statistics.is_finished, statistics.is_consumed) == (False, False, False)
    assert stage.subpartition.queued_buffers() == 2
    assert stage.subpartition.has_open_buffer


def test_bytes_in_the_queue_are_those_written_and_not_taken(stage: Stage) -> None:
    stage.add_finished(b"abc")
    stage.add_event()
    stage.add_open(b"de")
    event_bytes = len(encode_event(EVENT))
    assert stage.subpartition.statistics().queued_bytes == 5 + event_bytes
    assert stage.subpartition.readable() == (2, 3 + event_bytes)
    stage.poll()
    stage.poll()
    assert stage.subpartition.statistics().queued_bytes == 2
    assert stage.subpartition.readable() == (0, 0)
    stage.subpartition.flush()
    assert stage.view is not None
    assert stage.view.readable() == (1, 2)
    stage.poll()
    statistics = stage.subpartition.statistics()
    assert (statistics.queued_buffers, statistics.queued_bytes) == (1, 0)  # still open, and empty
