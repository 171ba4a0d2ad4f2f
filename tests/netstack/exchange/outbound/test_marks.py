"""A mark travels as a record would that is written in its place."""

from __future__ import annotations

import pytest
from exchange.writer_stage import SIZE, Stage
from hypothesis import given, strategies as st

from netstack.base.events import DataType, UserEvent, encode_event
from netstack.exchange.outbound.selector import CustomSelector, RebalanceSelector

TIMEOUT_S = 0.16
EVENT = encode_event(UserEvent("latency", b"x"))


def taken(stage: Stage, subpartition: int = 0) -> list[bytes | None]:
    """What a reader gets: data as bytes, an event as None."""
    actual: list[bytes | None] = []
    while stage.visible(subpartition):
        buffer = stage.partition.subpartitions[subpartition].poll()
        if buffer is None:
            break
        actual.append(bytes(buffer.contiguous()) if buffer.data_type is DataType.DATA else None)
        buffer.recycle()
    return actual


@pytest.mark.parametrize("as_flink", [False, True])
@given(
    before=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=8),
    timeout_s=st.sampled_from([0.0, TIMEOUT_S]),
)
def test_it_leaves_with_a_record_written_then(as_flink: bool, before: list[tuple[int, int]], timeout_s: float) -> None:
    marked, plain = (Stage(timeout_s=timeout_s, as_flink=as_flink, segment_bytes=1024) for _ in range(2))
    for wait, size in before:
        for stage in (marked, plain):
            stage.host.advance(wait / 100)
            stage.read()
            stage.emit(bytes(size))
    marked.writer.mark(0, EVENT)
    plain.emit(b"Z")
    for _ in range(40):
        seen, came = (taken(stage) for stage in (marked, plain))
        assert (None in seen) == (b"Z" in b"".join(filter(None, came))), (seen, came)
        if None in seen:
            assert seen[-1] is None, "behind everything that was written"
            break
        for stage in (marked, plain):
            stage.host.advance(TIMEOUT_S / 16)
    assert None in seen


def test_it_stands_behind_the_full_buffer_and_only_one_waits() -> None:
    stage = Stage(buffers=(8, None))
    stage.emit(b"a")
    stage.writer.mark(0, EVENT)
    stage.writer.mark(0, EVENT)
    assert taken(stage) == []
    stage.emit(bytes(SIZE))
    actual = taken(stage)
    assert actual.count(None) == 1
    assert b"a" in (actual[0] or b"")


def test_a_broadcast_is_marked_for_all() -> None:
    stage = Stage(subpartitions=2, selector=CustomSelector(lambda record, channels: -1), timeout_s=TIMEOUT_S)
    stage.writer.buffers.switch(2)
    stage.writer.mark(0, EVENT)
    assert [taken(stage, index) for index in range(2)] == [[None], [None]]


def test_a_writer_in_a_hurry_sends_it_with_its_round() -> None:
    channels = 32
    stage = Stage(
        subpartitions=channels, timeout_s=TIMEOUT_S, segment_bytes=2048, segments=256, selector=RebalanceSelector()
    )
    for number in range(channels * 40):
        stage.emit(b"%8d" % number)
        if number % channels == 0:
            stage.host.advance(TIMEOUT_S / 16)
            for index in range(channels):
                taken(stage, index)
    stage.writer.mark(3, EVENT)
    actual: list[bytes | None] = []
    for number in range(channels * 40, channels * 80):
        stage.emit(b"%8d" % number)
        if number % channels == 0:
            stage.host.advance(TIMEOUT_S / 16)
            for index in range(channels):
                got = taken(stage, index)
                actual += got if index == 3 else []
    assert actual.count(None) == 1
    data = b"".join(each for each in actual if each is not None)
    assert data.count(b"%8d" % (channels * 40 + 3)) == 1


@pytest.mark.parametrize("kinds", [(0, 2), (2, 0)])
def test_what_waits_leaves_when_the_writer_turns_to_broadcasts_or_back(kinds: tuple[int, int]) -> None:
    """Else the event would stand behind a buffer that is still written, and the reader's poll would fail the task."""
    stage = Stage(subpartitions=2, selector=CustomSelector(lambda record, channels: 0), timeout_s=TIMEOUT_S)
    before, after = kinds
    stage.writer.buffers.switch(before)
    stage.writer.mark(0, EVENT)  # leaves at once
    stage.writer.mark(0, EVENT)  # waits for the timeout
    assert taken(stage) == [None]
    assert stage.writer.try_write(after, b"b")
    stage.host.advance(2 * TIMEOUT_S)
    assert taken(stage) == [None, b"\0\0\0\1b"]


def test_nothing_follows_the_end() -> None:
    stage = Stage(timeout_s=TIMEOUT_S)
    stage.writer.mark(0, EVENT)
    stage.writer.mark(0, EVENT)  # waits
    stage.writer.end(drain=True)
    assert taken(stage) == [None, None, None, None]  # both, the end of the data, the end of the partition
    stage.host.advance(2 * TIMEOUT_S)
    assert taken(stage) == []
