"""Segments without a pool."""

from __future__ import annotations

from netstack.exchange.buffer.segment import Segment, SegmentReservation


def allocate_segments(count: int, size_bytes: int) -> list[Segment]:
    reservation = SegmentReservation(count, size_bytes)
    return [reservation.make() for _ in range(count)]
