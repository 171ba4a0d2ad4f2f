"""Segments are cut from one reservation and do not overlap."""

from __future__ import annotations

from segments import allocate_segments


def test_every_segment_has_its_own_bytes_and_both_views_are_the_same() -> None:
    segments = allocate_segments(5, 7)
    for index, segment in enumerate(segments):
        assert segment.size_bytes == len(segment.memory) == len(segment.array) == 7
        segment.memory[:] = bytes([index]) * 7
    for index, segment in enumerate(segments):
        assert segment.array.tolist() == [index] * 7
