"""The model of a shaped line: frames arrive in order, after its delay, at its rate, or are lost."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given, strategies as st

from netstack.testing.shaped_line import (
    FRAME_BYTES,
    LEAST_QUEUE_BYTES,
    Shape,
    ShapedDirection,
    burst_bytes,
    bytes_on_line,
)

FRAME = 1514 + FRAME_BYTES
shapes = st.builds(
    Shape,
    round_trip_s=st.floats(0, 0.2),
    rate_bytes_per_s=st.none() | st.integers(1000, 125_000_000),
    queue_bytes=st.none() | st.integers(FRAME, 10**6),
    loss=st.sampled_from([0.0, 0.1]),
    jitter_s=st.sampled_from([0.0, 0.01]),
)
pieces = st.lists(st.tuples(st.floats(0, 0.01), st.integers(1, 40)), min_size=1, max_size=60)


@given(shape=shapes, pieces=pieces)
def test_what_arrives_is_in_order_late_enough_and_no_faster_than_the_rate(
    shape: Shape, pieces: list[tuple[float, int]]
) -> None:
    line = ShapedDirection(shape, seed=3)
    now, entered = 0.0, 0
    arrived: list[tuple[float, int]] = []
    for pause_s, frames in pieces:
        now += pause_s
        size = frames * FRAME
        entered += size
        at = line.enter(now, size, frames)
        if at is None:
            continue
        least = now + shape.round_trip_s / 2
        if shape.rate_bytes_per_s is not None:
            least += size / shape.rate_bytes_per_s
            longest = now + shape.queue / shape.rate_bytes_per_s + shape.round_trip_s / 2 + shape.jitter_s
            if not shape.jitter_s:
                assert at <= longest + 1e-9, "more waited than the queue holds"
        assert at >= least - 1e-9
        assert not arrived or at >= arrived[-1][0]
        arrived.append((at, size))
    assert line.sent_bytes == sum(size for _, size in arrived)
    assert line.sent_bytes + line.lost_bytes == entered
    if shape.rate_bytes_per_s is not None and not shape.jitter_s:
        for (before, _), (after, size) in itertools.pairwise(arrived):
            assert after - before >= size / shape.rate_bytes_per_s - 1e-9


@given(shape=shapes)
def test_an_idle_line_adds_nothing_else(shape: Shape) -> None:
    line = ShapedDirection(Shape(shape.round_trip_s, shape.rate_bytes_per_s), seed=1)
    sending = 0.0 if shape.rate_bytes_per_s is None else FRAME / shape.rate_bytes_per_s
    assert line.enter(5.0, FRAME) == pytest.approx(5.0 + sending + shape.round_trip_s / 2)


def test_losses_are_as_frequent_as_asked() -> None:
    line = ShapedDirection(Shape(loss=0.02), seed=7)
    lost = sum(line.enter(0.0, FRAME) is None for _ in range(50_000))
    assert lost == pytest.approx(1000, rel=0.1)
    assert sum(line.enter(0.0, 10 * FRAME, 10) is None for _ in range(5000)) == pytest.approx(5000 * 0.183, rel=0.1)


@pytest.mark.parametrize(("size", "frames"), [(0, 1), (1448, 1), (1449, 2), (30 * 1448, 30), (30 * 1448 + 1, 31)])
def test_a_burst_takes_the_headers_of_all_of_its_frames(size: int, frames: int) -> None:
    headers = bytes(14 + 20) + bytes(12) + bytes([8 << 4]) + bytes(19)
    piece = struct.pack("<BBHHHH", 1, 1, 0, 1448, 34, 16) + headers + bytes(size)
    assert bytes_on_line(piece) == (size + frames * (66 + FRAME_BYTES), frames)
    single = struct.pack("<BBHHHH", 0, 0, 0, 0, 0, 0) + bytes(42)
    assert bytes_on_line(single) == (60 + FRAME_BYTES, 1), "short frames are padded"


def test_the_queue_holds_a_round_trip_and_bursts_are_short() -> None:
    assert Shape(0.04, 12_500_000).queue == 500_000
    assert Shape(0.001, 1_250_000).queue == LEAST_QUEUE_BYTES
    assert Shape(0.04, 12_500_000, 70_000).queue == 70_000
    assert burst_bytes(Shape(0.04, 12_500_000)) == 6250
    assert burst_bytes(Shape(0.04, 1_250_000)) == 1500
    assert burst_bytes(Shape()) == 65_536
