"""LZO blocks, written by hand: every kind of instruction, and none that reads or writes where nothing is."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.wire.lzo import decompress

END = bytes.fromhex("110000")


def run(length: int) -> bytes:
    """The instruction of that many literals, four or more."""
    if length <= 18:
        return bytes((length - 3,))
    zeros, rest = divmod(length - 19, 255)
    return bytes(1 + zeros) + bytes((rest + 1,))


def short(length: int, code: int, most: int, distance: int) -> bytes:
    """A match with two bytes for the distance, whose length may not fit."""
    if length - 2 <= most:
        return bytes((code | length - 2,)) + (distance << 2).to_bytes(2, "little")
    zeros, rest = divmod(length - 2 - most - 1, 255)
    return bytes((code,)) + bytes(zeros) + bytes((rest + 1,)) + (distance << 2).to_bytes(2, "little")


@pytest.mark.parametrize("length", [4, 18, 19, 273, 274, 275, 600])
def test_literals(length: int) -> None:
    data = bytes(i % 251 for i in range(length))
    assert decompress(run(length) + data + END, length) == data
    if length <= 238:
        assert decompress(bytes((length + 17,)) + data + END, length) == data


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_few_literals_in_front(length: int) -> None:
    data = b"abc"[:length]
    # The next instruction is a match of two bytes then, one byte away.
    block = bytes((length + 17,)) + data + b"\0\0" + END
    assert decompress(block, length + 2) == data + data[-1:] * 2


@pytest.mark.parametrize("length", [3, 33, 34, 288, 289, 1000])
@pytest.mark.parametrize("distance", [1, 3, 1000])
def test_matches(length: int, distance: int) -> None:
    data = bytes(i % 251 for i in range(1000))
    expected = bytearray(data)
    for _ in range(length):
        expected.append(expected[-distance])
    block = run(1000) + data + short(length, 32, 31, distance - 1) + END
    assert decompress(block, 1000 + length) == expected


@pytest.mark.parametrize("length", [3, 9, 10, 300])
@pytest.mark.parametrize("distance", [16385, 32767, 32768, 40000])
def test_far_matches(length: int, distance: int) -> None:
    data = bytes(i % 251 for i in range(40000))
    high, low = divmod(distance - 16384, 16384)
    block = run(40000) + data + short(length, 16 | high << 3, 7, low) + END
    start = 40000 - distance
    assert decompress(block, 40000 + length) == data + data[start : start + length]


def test_near_matches_and_literals_between_them() -> None:
    data = bytes(range(200))
    # Three bytes, 9 ago, and one literal; eight bytes, 200 ago, and two; three bytes, 2049 ago, are too far.
    block = run(200) + data + bytes((0x40 | 0 << 2 | 1, 1)) + b"x" + bytes((0xE0 | 7 << 2 | 2, 24)) + b"yz" + END
    expected = data + data[-9:-6] + b"x"
    expected += expected[-200:-192] + b"yz"
    assert decompress(block, len(expected)) == expected
    with pytest.raises(ValueError, match="2049 bytes before, after 200"):
        decompress(run(200) + data + b"\0\0" + END, 203)


@pytest.mark.parametrize(
    ("block", "size", "text"),
    [
        (b"", 1, "ends early"),
        (b"\x15abc", 4, "ends early"),
        (b"\x15abcd", 4, "ends early"),
        (b"\x15abcd" + END, 3, "more than 3 bytes"),
        (b"\x15abcd" + END, 5, "with 4 of 5 bytes written"),
        (b"\x15abcd" + END + b"x", 4, "1 bytes early"),
        (b"\x15abcd\x21\0\0" + END, 6, "more than 6 bytes"),
        (b"\x15abcd\x21\x10\0" + END, 7, "5 bytes before, after 4"),
        (b"\0" * 100 + b"\1", 10, "ends early"),
    ],
)
def test_blocks_that_lie(block: bytes, size: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        decompress(block, size)


@given(st.binary(max_size=200), st.integers(1, 3000))
def test_any_bytes_are_read_within_bounds_or_refused(block: bytes, size: int) -> None:
    with contextlib.suppress(ValueError):
        assert len(decompress(block, size)) == size


@pytest.mark.parametrize("distance", [1, 2, 3, 100])
def test_a_long_repetition_of_a_short_pattern_is_no_work(distance: int) -> None:
    pattern = bytes(range(1, distance + 1))
    zeros, rest = divmod((8 << 20) - 31 - 2, 255)
    block = bytes([17 + distance]) + pattern if distance > 3 else bytes([0, 17]) + bytes(range(1, 36))
    if distance <= 3:
        pattern = bytes(range(36 - distance, 36))
        written = bytes(range(1, 36))
    else:
        written = pattern
    if not rest:
        zeros, rest = zeros - 1, 255
    block += bytes([32]) + bytes(zeros) + bytes([rest]) + ((distance - 1) << 2).to_bytes(2, "little")
    size = len(written) + (8 << 20)
    block += bytes([17, 0, 0])
    expected = written + (pattern * ((8 << 20) // distance + 1))[: 8 << 20]
    assert decompress(block, size) == expected
