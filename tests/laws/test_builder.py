"""Laws of a buffer that is read while it is written."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st

from netstack.exchange.buffer.buffer import Buffer
from netstack.exchange.buffer.builder import BufferBuilder, BufferConsumer
from netstack.exchange.buffer.lent import LentBuffer
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


lent_actions = st.lists(st.sampled_from(["build", "close", "recycle", "detach", "overwrite", "snapshot"]), max_size=12)


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=4).filter(any), lent_actions)
def test_lent_memory_is_the_lenders_again_when_it_says_so(pieces: list[bytes], script: list[str]) -> None:
    pool = NetworkBufferPool(1, 32).create_pool(1, 1)
    segment = pool.try_acquire()
    assert segment is not None
    expected = b"".join(pieces)
    memory = [bytearray(piece) for piece in pieces]
    reported: list[bool] = []
    lent = LentBuffer(tuple(map(memoryview, memory)), len(expected), segment, pool, 0)
    lent.on_returned = lambda: reported.append(lent.is_returned)
    buffer: Buffer | None = None
    built = closed = recycled = False
    for action in script:
        if action == "build" and not closed:
            again = lent.build()
            assert (again is None) == built
            buffer = again or buffer
            built = True
        elif action == "close":
            closed = True
            lent.close()
        elif action == "recycle" and buffer is not None and not recycled:
            recycled = True
            buffer.recycle()
        elif action == "detach":
            assert lent.detach() == (built and not lent.is_returned)
        elif action == "overwrite" and lent.is_returned:
            for piece in memory:
                piece[:] = b"\xee" * len(piece)
        elif action == "snapshot" and not closed:
            assert lent.snapshot() == (b"" if built else expected)
        if buffer is not None and not recycled:
            assert bytes(buffer.contiguous()) == expected
        lost = recycled or (closed and not built)
        assert pool.statistics().used == (not lost)
        assert lent.is_returned or not lost
        assert len(reported) <= 1
