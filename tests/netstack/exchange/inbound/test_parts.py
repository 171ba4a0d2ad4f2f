"""Buffers that share a segment: it returns when the last of them does."""

from __future__ import annotations

from hypothesis import given, strategies as st

from netstack.base.events import DataType
from netstack.exchange.buffer.buffer import Buffer
from netstack.exchange.inbound.parts import CompressedBuffer, buffers_of


class Owner:
    def __init__(self) -> None:
        self.reclaimed = 0

    def reclaim(self, buffer: Buffer) -> None:
        self.reclaimed += 1


def whole_of(data: bytes) -> tuple[Buffer, Owner]:
    owner = Owner()
    return Buffer(memoryview(data), len(data), DataType.DATA, owner), owner


@given(st.lists(st.binary(max_size=5), max_size=8), st.permutations(range(8)))
def test_the_whole_returns_once_after_its_last_part(parts: list[bytes], order: list[int]) -> None:
    whole, owner = whole_of(b"".join(parts))
    made = buffers_of(whole, 2**32 - 1, tuple(map(len, parts)), None)
    whole.recycle()
    expected = [(part, (2**32 - 1 + index) % 2**32) for index, part in enumerate(parts) if part]
    assert [(bytes(buffer.memory), buffer.sequence) for buffer in made] == expected
    for index in order:
        assert owner.reclaimed == int(not made)
        if index < len(expected):
            buffer = next(buffer for buffer in made if buffer.sequence == expected[index][1])
            made.remove(buffer)
            buffer.recycle()
    assert owner.reclaimed == 1


def test_a_compressed_part_is_replaced_with_its_share() -> None:
    whole, owner = whole_of(b"ab")
    (compressed,) = buffers_of(whole, 3, (2,), lambda data: bytes(data) * 3)
    whole.recycle()
    assert isinstance(compressed, CompressedBuffer)
    inflated = compressed.inflated()
    assert (bytes(inflated.memory), inflated.length, inflated.sequence) == (b"ababab", 6, 3)
    assert owner.reclaimed == 0
    inflated.recycle()
    assert owner.reclaimed == 1
