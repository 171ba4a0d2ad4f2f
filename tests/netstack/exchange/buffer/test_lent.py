"""Memory that is lent: built where it lies, copied when its owner wants it back."""

from __future__ import annotations

import pytest

from netstack.exchange.buffer.lent import LentBuffers
from netstack.exchange.buffer.pools import LocalBufferPool, NetworkBufferPool

SIZE = 16


@pytest.fixture
def network() -> NetworkBufferPool:
    return NetworkBufferPool(4, SIZE)


@pytest.fixture
def pool(network: NetworkBufferPool) -> LocalBufferPool:
    return network.create_pool(2, 4, subpartitions=2, max_buffers_per_channel=3)


# Lent memory.


def run_of(pool: LocalBufferPool, memory: bytearray, size: int) -> LentBuffers:
    return LentBuffers((memoryview(memory),), size, pool.try_acquire_many(len(memory) // size), pool, 0)


def lent_of(pool: LocalBufferPool, *pieces: bytes | bytearray, told: list[str] | None = None) -> LentBuffers:
    segment = pool.try_acquire(0)
    assert segment is not None
    lent = LentBuffers(tuple(map(memoryview, pieces)), sum(map(len, pieces)), [segment], pool, 0)
    if told is not None:
        lent.on_returned = lambda: told.append("back")
    return lent


def test_a_lent_buffer_is_built_once_where_it_lies(pool: LocalBufferPool) -> None:
    memory = bytearray(b"abcdef")
    reported: list[str] = []
    lent = lent_of(pool, memory, told=reported)
    assert (lent.is_finished, lent.has_data(), lent.is_returned) == (True, True, False)
    assert lent.snapshot() == b"abcdef"
    assert lent.unread_bytes == 6
    buffer = lent.build()
    assert buffer is not None
    assert buffer.length == 6
    assert buffer.pieces is None
    memory[0:1] = b"X"
    assert bytes(buffer.memory) == b"Xbcdef"  # not a copy
    assert not lent.has_data()
    assert lent.build() is None
    assert lent.snapshot() == b""
    assert lent.unread_bytes == 0
    lent.close()
    assert (lent.is_returned, reported) == (False, [])
    buffer.recycle()
    assert (lent.is_returned, reported) == (True, ["back"])
    assert pool.statistics().used == 0


def test_several_pieces_travel_as_they_are(pool: LocalBufferPool) -> None:
    lent = lent_of(pool, b"ab", b"cde")
    buffer = lent.build()
    assert buffer is not None
    assert buffer.pieces is not None
    assert [bytes(piece) for piece in buffer.pieces] == [b"ab", b"cde"]
    assert buffer.length == 5
    assert bytes(buffer.contiguous()) == b"abcde"
    lent.close()
    buffer.recycle()
    assert pool.statistics().used == 0


def test_detach_copies_what_is_not_yet_built(pool: LocalBufferPool) -> None:
    memory = bytearray(b"cdefgh")
    lent = lent_of(pool, b"ab", memory)
    assert lent.detach() is False
    assert lent.is_returned
    memory[:] = b"XXXXXX"
    assert lent.snapshot() == b"abcdefgh"
    assert lent.detach() is False
    buffer = lent.build()
    assert buffer is not None
    assert bytes(buffer.contiguous()) == b"abcdefgh"
    assert buffer.length == 8
    lent.close()
    buffer.recycle()
    assert pool.statistics().used == 0


def test_detach_says_when_the_bytes_are_on_their_way(pool: LocalBufferPool) -> None:
    lent = lent_of(pool, bytearray(b"abc"))
    buffer = lent.build()
    assert lent.detach() is True
    assert not lent.is_returned
    lent.close()
    assert buffer is not None
    buffer.recycle()
    assert lent.detach() is False


def test_a_lent_buffer_dropped_from_the_queue_gives_everything_back(pool: LocalBufferPool) -> None:
    reported: list[str] = []
    lent = lent_of(pool, b"abc", told=reported)
    lent.close()
    lent.close()
    assert (lent.is_returned, reported) == (True, ["back"])
    assert pool.statistics().used == 0


def test_a_run_is_taken_in_parts_as_credit_and_room_allow(pool: LocalBufferPool) -> None:
    run = run_of(pool, bytearray(b"aabbccdd"), 2)
    assert (run.buffers, run.unread_bytes) == (4, 8)
    first = run.take(3, 3)  # of which the second begins in the room
    assert (first.buffers, bytes(first.memory)) == (2, b"aabb")
    second = run.take(1, 100)
    assert (second.buffers, bytes(second.memory)) == (1, b"cc")
    assert run.snapshot() == b"dd"
    third = run.take(4, 0)
    assert (third.buffers, bytes(third.memory)) == (1, b"dd")
    assert run.build() is None
    for part in (third, first, second):
        assert not run.is_returned
        part.recycle()
    assert run.is_returned
    assert pool.statistics().used == 0


def test_the_segments_of_a_part_return_as_its_buffers_are_sent(pool: LocalBufferPool) -> None:
    run = run_of(pool, bytearray(b"aabbcc"), 2)
    part = run.take(3, 100)
    used = []
    for count in (1, 1, 2):
        part.give_back(count)
        used.append(pool.statistics().used)
    assert used == [2, 2, 1]
    part.recycle()
    assert (run.is_returned, pool.statistics().used) == (True, 0)


def test_what_is_queued_of_a_run_is_copied_while_the_rest_is_on_its_way(pool: LocalBufferPool) -> None:
    memory = bytearray(b"aabbcc")
    run = run_of(pool, memory, 2)
    part = run.take(1, 0)
    assert run.detach() is True
    assert run.detach() is True
    memory[2:] = b"XXXX"
    assert run.snapshot() == b"bbcc"
    part.recycle()
    assert run.is_returned
    rest = run.take(2, 100)
    assert bytes(rest.contiguous()) == b"bbcc"
    rest.recycle()
    assert pool.statistics().used == 0
