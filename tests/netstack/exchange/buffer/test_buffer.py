"""A Buffer is counted, and returned exactly once."""

from __future__ import annotations

import pytest

from netstack.base.errors import LocalProtocolError
from netstack.base.events import DataType
from netstack.exchange.buffer.buffer import Buffer


class Owner:
    def __init__(self) -> None:
        self.reclaimed: list[Buffer] = []

    def reclaim(self, buffer: Buffer) -> None:
        self.reclaimed.append(buffer)


def buffer_of(data: bytes, owner: Owner | None = None) -> Buffer:
    return Buffer(memoryview(data), len(data), DataType.DATA, owner)


def test_the_last_recycle_returns_it_and_only_that_one() -> None:
    owner = Owner()
    buffer = buffer_of(b"abc", owner)
    assert buffer.retain() is buffer
    buffer.recycle()
    assert owner.reclaimed == []
    buffer.recycle()
    assert owner.reclaimed == [buffer]


def test_recycling_more_often_than_retained_is_an_error() -> None:
    owner = Owner()
    buffer = buffer_of(b"abc", owner)
    buffer.recycle()
    with pytest.raises(LocalProtocolError, match="recycled more often than retained"):
        buffer.recycle()
    assert owner.reclaimed == [buffer]


def test_retaining_a_recycled_buffer_is_an_error() -> None:
    buffer = buffer_of(b"abc")
    buffer.recycle()
    with pytest.raises(LocalProtocolError, match="already recycled"):
        buffer.retain()


def test_one_piece_is_contiguous_as_it_lies_and_several_are_joined() -> None:
    buffer = buffer_of(b"abc")
    assert buffer.contiguous() is buffer.memory
    buffer.pieces = (memoryview(b"ab"), memoryview(b""), memoryview(b"cd"))
    buffer.length = 4
    assert bytes(buffer.contiguous()) == b"abcd"


def test_it_shows_what_it_is() -> None:
    assert repr(buffer_of(b"abc").retain()) == "<Buffer DATA 3 bytes, 2 references>"
