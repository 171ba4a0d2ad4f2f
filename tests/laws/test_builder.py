"""Laws of a buffer that is read while it is written."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, strategies as st

from netstack.exchange.buffer.buffer import Buffer
from netstack.exchange.buffer.builder import BufferBuilder, BufferConsumer
from netstack.exchange.buffer.lent import LentBuffers, LentPart
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.record.framing import PREFIX_BYTES, frame

SIZE = 24

actions = st.one_of(
    st.tuples(st.just("append"), st.binary(max_size=SIZE + 4)),
    st.tuples(st.just("run"), st.sampled_from([0, 1, 3]), st.integers(1, 4), st.integers(1, 6)),
    st.tuples(st.just("build"), st.integers(0, 5)),
    st.tuples(st.just("copy"), st.integers(0, 5)),
    st.tuples(st.just("close"), st.integers(0, 5)),
    st.tuples(st.just("trim"), st.integers(-2, SIZE + 4)),
    st.tuples(st.just("recycle"), st.integers(0, 20)),
    st.tuples(st.sampled_from(["finish", "close builder"])),
)


class Reader:
    """A consumer, and what it should give next."""

    def __init__(self, consumer: BufferConsumer, position: int) -> None:
        self.consumer = consumer
        self.position = position


@given(st.lists(actions, min_size=10, max_size=60))
def test_what_is_built_is_what_was_appended_and_the_segment_returns_once(script: list[tuple[Any, ...]]) -> None:
    pool = NetworkBufferPool(1, SIZE).create_pool(1, 1)
    segment = pool.try_acquire()
    assert segment is not None
    builder = BufferBuilder(segment, pool, 0)
    readers = [Reader(builder.create_consumer(), 0)]
    written = bytearray()
    capacity = SIZE
    finished = closed = False
    records = 0
    out: list[tuple[Buffer, bytes]] = []
    for name, *arguments in script:
        alive = not closed or bool(readers) or bool(out)
        assert pool.statistics().used == alive
        if not alive:
            break
        match name:
            case "append" if not finished:
                (source,) = arguments
                taken = builder.append(source)
                assert taken == min(len(source), capacity - len(written))
                written += source[:taken]
                assert builder.capacity - builder.written_bytes == capacity - len(written)
            case "run":
                size, most, count = arguments
                for number in range(count):
                    record = bytes([number]) * size
                    fits = len(written) + size + PREFIX_BYTES < builder.limit
                    is_written = builder.pen.put(record, most)
                    if not is_written:
                        is_written = builder.open_pen(record, most)
                    assert is_written == fits
                    if not fits:
                        break
                    records += 1
                    written += frame(record)
                assert builder.records + builder.pen.records == records
                assert builder.capacity - builder.written_bytes == capacity - len(written)
            case "trim" if not finished:
                builder.trim(arguments[0])
                capacity = min(max(arguments[0], len(written)), SIZE)
                assert builder.capacity == capacity
            case "finish":
                assert builder.finish() == len(written)
                finished = True
            case "close builder" if not closed:
                finished = closed = True
                builder.finish()
                builder.close()
            case "recycle" if out:
                buffer, data = out.pop(arguments[0] % len(out))
                assert bytes(buffer.memory) == data
                buffer.recycle()
            case "build" | "copy" | "close" if readers:
                reader = readers[arguments[0] % len(readers)]
                if name == "copy":
                    readers.append(Reader(reader.consumer.copy(), reader.position))
                elif name == "close":
                    readers.remove(reader)
                    reader.consumer.close()
                else:
                    fresh = bytes(written[reader.position :])
                    assert reader.consumer.has_data() == bool(fresh)
                    assert reader.consumer.snapshot() == fresh
                    built = reader.consumer.build()
                    assert (built is None) == (not fresh)
                    if built is not None:
                        assert bytes(built.memory) == fresh
                        out.append((built, fresh))
                        reader.position = len(written)
                    if not finished:
                        assert builder.limit == len(written)  # the next record has to arm a flush
        for reader in readers:
            assert reader.consumer.is_finished == finished
        assert builder.limit <= builder.capacity
    for reader in readers:
        reader.consumer.close()
    for buffer, data in out:
        assert bytes(buffer.memory) == data
        buffer.recycle()
    if not closed:
        assert pool.statistics().used == 1
        builder.finish()
        builder.close()
    assert pool.statistics().used == 0


lent_actions = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 5)),
        st.tuples(st.sampled_from(["give back", "recycle"]), st.integers(0, 4)),
        st.tuples(st.sampled_from(["build", "detach", "overwrite", "snapshot"]), st.just(0)),
        st.tuples(st.sampled_from(["close", "detach", "build"]), st.just(0)),
    ),
    min_size=5,
    max_size=20,
)


class Taken:
    """What the model knows of buffers that were taken together."""

    def __init__(self, part: Buffer, expected: bytes) -> None:
        self.part = part
        self.expected = expected
        self.back = 0
        self.is_over = False


@given(st.integers(1, 5), st.integers(1, 8), st.lists(st.integers(0, 40), max_size=3), lent_actions)
def test_lent_memory_is_the_lenders_again_when_it_says_so(
    count: int, size: int, cuts: list[int], script: list[tuple[str, int]]
) -> None:
    pool = NetworkBufferPool(count, 32).create_pool(count, count)
    expected = bytes(range(1, count * size + 1))
    ends = [0, *sorted(min(cut, len(expected)) for cut in cuts), len(expected)]
    memory = [bytearray(expected[start:end]) for start, end in pairwise(ends)]
    reported: list[bool] = []
    lent = LentBuffers(tuple(map(memoryview, memory)), size, pool.try_acquire_many(count), pool, 0)
    lent.on_returned = lambda: reported.append(lent.is_returned)
    taken: list[Taken] = []
    queued, at, is_copied, is_returned = count, 0, False, False
    for action, number in script:
        one = taken[number % len(taken)] if taken else None
        if action in ("take", "build"):
            most = number or 1
            buffer = (lent.take(most, most * size) if number else lent.build()) if queued else None
            assert (buffer is None) == (not queued)
            if buffer is not None:
                assert buffer.buffers == min(most, queued)
                end = at + buffer.buffers * size
                taken.append(Taken(buffer, expected[at:end]))
                queued, at = queued - buffer.buffers, end
        elif action == "close":
            queued = 0
            lent.close()
        elif action == "give back" and one is not None and not one.is_over and isinstance(one.part, LentPart):
            one.back = max(one.back, min(number, one.part.buffers))
            one.part.give_back(one.back)
        elif action == "recycle" and one is not None and not one.is_over:
            one.is_over, one.back = True, one.part.buffers
            one.part.recycle()
        elif action == "detach":
            way = any(each.back < each.part.buffers for each in taken)
            assert lent.detach() == (way and not is_returned)
            is_copied = True
        elif action == "overwrite" and lent.is_returned:
            for piece in memory:
                piece[:] = b"\xee" * len(piece)
        elif action == "snapshot":
            assert lent.snapshot() == (expected[at:] if queued else b"")
        for each in taken:
            if not each.back:
                assert bytes(each.part.contiguous()) == each.expected
        on_the_way = sum(each.part.buffers - each.back for each in taken)
        assert (lent.buffers, lent.unread_bytes) == (queued, queued * size)
        assert pool.statistics().used == queued + on_the_way
        is_returned = is_returned or (not on_the_way and (is_copied or not queued))
        assert lent.is_returned == is_returned
        assert len(reported) <= 1
