"""Streams of records, written and read by nothing but what SPEC.md says of them (section 12)."""

from __future__ import annotations

import itertools
import struct

from hypothesis import strategies as st


def cell(record: bytes) -> bytes:
    return struct.pack(">I", len(record)) + record


def run(records: list[bytes]) -> bytes:
    (width,) = {len(record) for record in records}
    return struct.pack(">II", 2**31 + len(records), width) + b"".join(records)


def split_stream(stream: bytes) -> list[bytes]:
    """The records of a whole stream."""
    actual: list[bytes] = []
    position = 0
    while position < len(stream):
        (first,) = struct.unpack_from(">I", stream, position)
        position += 4
        count, width = 1, first
        if first >= 2**31:
            count = first - 2**31
            (width,) = struct.unpack_from(">I", stream, position)
            position += 4
            assert count
            assert 0 < width < 2**31
        assert position + count * width <= len(stream)
        for _ in range(count):
            actual.append(stream[position : position + width])
            position += width
    return actual


@st.composite
def streams_of(draw: st.DrawFn, records: list[bytes]) -> bytes:
    """The records in cells and runs, as chance has it; a run may be of one."""
    parts: list[bytes] = []
    for width, group in itertools.groupby(records, len):
        same = list(group)
        while same:
            if not width or draw(st.booleans()):
                count = draw(st.integers(1, len(same)))
                parts += map(cell, same[:count])
            else:
                count = draw(st.integers(1, len(same)))
                parts.append(run(same[:count]))
            del same[:count]
    return b"".join(parts)
