"""The ring by itself: it is a queue of bytes, no wake-up is lost in any order of steps, and no position is believed."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from types import TracebackType

import pytest
from hypothesis import given, strategies as st

from netstack.testing.contracts import pattern_of
from netstack_transports.shm.ring import (
    ENDED,
    HEADER_BYTES,
    READ,
    READER_SLEEPS,
    WRITER_SLEEPS,
    WRITTEN,
    RingBroken,
    RingReader,
    RingWriter,
)

SMALL = 64
"""A capacity whose end is reached soon."""


def new_ring() -> tuple[RingWriter, RingReader, memoryview]:
    mapping = mmap.mmap(-1, HEADER_BYTES + SMALL)
    view = memoryview(mapping)
    words = view[:HEADER_BYTES].cast("Q")
    return RingWriter(mapping, words, 0, SMALL), RingReader(view, words, 0, SMALL), words


def read(reader: RingReader, *sizes: int) -> bytes | None:
    windows = [memoryview(bytearray(size)) for size in sizes]
    count = reader.read_into(windows)
    return None if count is None else b"".join(windows)[:count]


Sizes = st.lists(st.integers(0, SMALL + 5), min_size=1, max_size=4)


@given(st.lists(st.tuples(st.booleans(), Sizes), max_size=60))
def test_it_is_a_bounded_queue_of_bytes(steps: list[tuple[bool, list[int]]]) -> None:
    writer, reader, _ = new_ring()
    pattern = pattern_of(60 * 4 * (SMALL + 5))
    sent = received = 0
    for writes, sizes in steps:
        if writes:
            ends = [sent + sum(sizes[: index + 1]) for index in range(len(sizes))]
            pieces = [pattern[end - size : end] for end, size in zip(ends, sizes, strict=True)]
            taken = writer.write(pieces)
            assert taken == min(sum(sizes), SMALL - (sent - received))
            sent += taken
        else:
            actual = read(reader, *sizes)
            if sent == received:
                assert actual is None
            else:
                assert actual == pattern[received : received + min(sum(sizes), sent - received)]
                received += len(actual)
        assert reader.has_more() == (sent > received)
        assert writer.has_room() == (SMALL - (sent - received) >= SMALL // 4)


class Between:
    """Stands for a fence: another process takes its steps there."""

    def __init__(self, steps: Callable[[], None]) -> None:
        self._steps = steps

    def __enter__(self) -> None:
        self._steps()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


@pytest.mark.parametrize("when", ["before", "between", "after"])
@pytest.mark.parametrize("ends", [False, True])
def test_a_reader_that_sleeps_is_woken(when: str, ends: bool) -> None:
    """Whenever the writer takes its two steps, one of the two sees the other."""
    writer, reader, _ = new_ring()
    woken: list[bool] = []

    def write() -> None:
        if ends:
            writer.end()
        else:
            assert writer.write([b"x"]) == 1
        woken.append(writer.must_wake_reader())

    if when == "before":
        write()
    if when == "between":
        reader._fence = Between(write)  # type: ignore[assignment]
    sleeps = reader.may_sleep()
    if when == "after":
        write()
    assert sleeps == (when == "after")
    assert not sleeps or woken == [True]
    assert not writer.must_wake_reader(), "woken once"


def test_whether_to_wake_is_looked_at_behind_the_fence() -> None:
    """The other side's flag may become visible as late as that."""
    writer, reader, words = new_ring()
    writer._fence = Between(lambda: words.__setitem__(READER_SLEEPS, 1))  # type: ignore[assignment]
    writer.write([b"x"])
    assert writer.must_wake_reader()
    read(reader, 1)
    reader._fence = Between(lambda: words.__setitem__(WRITER_SLEEPS, 1))  # type: ignore[assignment]
    assert reader.must_wake_writer()


@pytest.mark.parametrize("ends", [False, True])
def test_a_writer_sees_the_reader_that_falls_asleep_behind_its_position(ends: bool) -> None:
    writer, reader, _ = new_ring()
    sleeps: list[bool] = []
    writer._fence = Between(lambda: sleeps.append(reader.may_sleep()))  # type: ignore[assignment]
    if ends:
        writer.end()
    else:
        writer.write([b"x"])
    writer.must_wake_reader()
    assert sleeps == [False], "its position is published before it looks whether to wake"


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_a_writer_that_sleeps_is_woken(when: str) -> None:
    writer, reader, _ = new_ring()
    writer.write([bytes(SMALL)])
    woken: list[bool] = []

    def take() -> None:
        assert read(reader, SMALL // 4) == bytes(SMALL // 4)
        woken.append(reader.must_wake_writer())

    if when == "before":
        take()
    if when == "between":
        writer._fence = Between(take)  # type: ignore[assignment]
    sleeps = writer.may_sleep()
    if when == "after":
        take()
    assert sleeps == (when == "after")
    assert not sleeps or woken == [True]
    assert not reader.must_wake_writer(), "woken once"


def test_a_writer_is_not_woken_for_a_few_bytes() -> None:
    writer, reader, _ = new_ring()
    writer.write([bytes(SMALL)])
    assert writer.may_sleep()
    read(reader, SMALL // 4 - 1)
    assert not reader.must_wake_writer()
    read(reader, 1)
    assert reader.must_wake_writer()


def test_nothing_follows_a_piece_that_was_cut() -> None:
    """Though the reader makes room meanwhile."""
    writer, reader, _ = new_ring()
    writer.write([b"0" * 8])

    class Pieces(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            yield b"a" * SMALL
            assert read(reader, 8) == b"0" * 8
            yield b"b"

    assert writer.write(Pieces()) == SMALL - 8
    assert read(reader, 2 * SMALL) == b"0" * 8 + b"a" * (SMALL - 8)


class LastMoment:
    """The words as a reader sees them whose writer writes, and ends, just before it looks for the end."""

    def __init__(self, words: memoryview, writer: RingWriter) -> None:
        self._words = words
        self._writer = writer

    def __getitem__(self, index: int) -> int:
        if index == ENDED and not self._words[ENDED]:
            self._writer.write([b"last"])
            self._writer.end()
        return int(self._words[index])

    def __setitem__(self, index: int, value: int) -> None:
        self._words[index] = value


def test_what_was_written_while_the_reader_looks_for_the_end_is_read() -> None:
    writer, reader, words = new_ring()
    reader._words = LastMoment(words, writer)  # type: ignore[assignment]
    assert read(reader, 10) == b"last"
    assert read(reader, 10) == b""


def test_what_was_written_before_the_end_is_read_before_it() -> None:
    writer, reader, _ = new_ring()
    writer.write([b"last"])
    writer.end()
    assert [read(reader, 3), read(reader, 3), read(reader, 3), read(reader, 3)] == [b"las", b"t", b"", b""]


@pytest.mark.parametrize("already_read", [3, 10])
@pytest.mark.parametrize("written", [0, 9, 11 + SMALL, 1 << 63])
def test_a_writer_s_position_is_checked(written: int, already_read: int) -> None:
    """10 bytes were written: it went back, or more is there than the ring holds."""
    writer, reader, words = new_ring()
    writer.write([bytes(10)])
    read(reader, already_read)
    words[WRITTEN] = written
    assert reader.has_more(), "so that whoever waits is told"
    with pytest.raises(RingBroken, match=f"says that it has written {written} bytes, after 10"):
        read(reader, 1)


@pytest.mark.parametrize("position", [0, 1, SMALL + 3, 1 << 63])
def test_a_reader_s_position_is_checked(position: int) -> None:
    writer, reader, words = new_ring()
    writer.write([bytes(SMALL)])
    read(reader, 2)
    assert writer.write([b"ab"]) == 2
    words[READ] = position
    assert writer.has_room(), "so that whoever waits is told"
    with pytest.raises(RingBroken, match=rf"says that it has read {position} bytes, after 2 of {SMALL + 2}"):
        writer.write([b"x"])
