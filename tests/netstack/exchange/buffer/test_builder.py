"""A builder and its consumers: what was committed is read once, and the segment returns once."""

from __future__ import annotations

import pytest

from netstack.base.errors import LocalProtocolError
from netstack.base.events import DataType
from netstack.exchange.buffer.builder import BufferBuilder, BufferConsumer
from netstack.exchange.buffer.pools import LocalBufferPool, NetworkBufferPool

SIZE = 16


@pytest.fixture
def network() -> NetworkBufferPool:
    return NetworkBufferPool(4, SIZE)


@pytest.fixture
def pool(network: NetworkBufferPool) -> LocalBufferPool:
    return network.create_pool(2, 4, subpartitions=2, max_buffers_per_channel=3)


def builder_of(pool: LocalBufferPool, subpartition: int = 0) -> BufferBuilder:
    segment = pool.try_acquire(subpartition)
    assert segment is not None
    return BufferBuilder(segment, pool, subpartition)


def built(consumer: BufferConsumer) -> bytes | None:
    """What `build` gives, recycled at once."""
    buffer = consumer.build()
    if buffer is None:
        return None
    data = bytes(buffer.memory)
    assert len(data) == buffer.length
    assert buffer.data_type is DataType.DATA
    buffer.recycle()
    return data


# 3.5 (1) to (3): what was appended can be read, and no more; a source that is too long is cut.


def test_appended_bytes_are_read_once(pool: LocalBufferPool) -> None:
    builder = builder_of(pool)
    consumer = builder.create_consumer()
    assert not consumer.has_data()
    assert built(consumer) is None
    assert builder.append(b"abc") == 3
    assert consumer.has_data()
    assert built(consumer) == b"abc"
    assert not consumer.has_data()
    assert built(consumer) is None
    builder.append(memoryview(b"de"))
    assert built(consumer) == b"de"


def test_a_source_that_is_too_long_is_cut(pool: LocalBufferPool) -> None:
    builder = builder_of(pool)
    consumer = builder.create_consumer()
    assert builder.append(b"x" * 10) == 10
    assert builder.capacity - builder.written_bytes == 6
    assert builder.append(b"y" * 10) == 6
    assert builder.capacity - builder.written_bytes == 0
    assert builder.append(b"z") == 0
    assert built(consumer) == b"x" * 10 + b"y" * 6


def test_written_in_place_and_committed_by_position(pool: LocalBufferPool) -> None:
    builder = builder_of(pool)
    consumer = builder.create_consumer()
    builder.memory[0:4] = b"abcd"
    assert built(consumer) is None
    builder.position = 3
    assert built(consumer) == b"abc"


# 3.5 (4) to (6): finish.


@pytest.mark.parametrize("count", [0, 5, SIZE])
def test_finish_says_how_much_was_written_and_is_idempotent(pool: LocalBufferPool, count: int) -> None:
    builder = builder_of(pool)
    consumer = builder.create_consumer()
    builder.append(b"x" * count)
    assert not consumer.is_finished
    assert builder.finish() == count
    assert builder.finish() == count
    assert consumer.is_finished
    assert (built(consumer) or b"") == b"x" * count
    with pytest.raises(LocalProtocolError, match="append to a finished"):
        builder.append(b"y")


def test_an_empty_build_is_allowed_before_the_finish(pool: LocalBufferPool) -> None:
    builder = builder_of(pool)
    consumer = builder.create_consumer()
    assert built(consumer) is None
    assert not consumer.is_finished
    builder.append(b"a")
    builder.finish()
    assert built(consumer) == b"a"


# The limit of the per-record path: full once read, so that the next record arms a flush.


def test_reading_an_open_buffer_sends_the_next_record_the_slow_way(pool: LocalBufferPool) -> None:
    builder = builder_of(pool)
    consumer = builder.create_consumer()
    assert builder.limit == builder.capacity == SIZE
    builder.append(b"abc")
    assert builder.limit == SIZE
    built(consumer)
    assert builder.limit == 3
    builder.finish()
    assert builder.limit == -1
    built(consumer)
    assert builder.limit == -1


# 3.5 (7): trim.


def test_trim_keeps_what_is_written_and_stays_in_the_segment(pool: LocalBufferPool) -> None:
    builder = builder_of(pool)
    builder.append(b"abcde")
    for wish, capacity in ((-1, 5), (3, 5), (9, 9), (100, SIZE)):
        builder.trim(wish)
        assert builder.capacity == builder.limit == capacity
    builder.trim(7)
    assert builder.append(b"xyz") == 2


def test_trim_does_not_arm_a_buffer_that_was_read(pool: LocalBufferPool) -> None:
    builder = builder_of(pool)
    consumer = builder.create_consumer()
    builder.append(b"abcde")
    built(consumer)
    builder.trim(10)
    assert (builder.capacity, builder.limit) == (10, 5)


# 3.5 (8) to (10): consumers, copies, and the way home.


def test_a_second_consumer_is_refused(pool: LocalBufferPool) -> None:
    builder = builder_of(pool)
    builder.create_consumer()
    with pytest.raises(LocalProtocolError, match="already has a consumer"):
        builder.create_consumer()


def test_copies_read_on_their_own(pool: LocalBufferPool) -> None:
    builder = builder_of(pool)
    consumer = builder.create_consumer()
    builder.append(b"ab")
    assert built(consumer) == b"ab"
    copy = consumer.copy()
    builder.append(b"cd")
    assert built(copy) == b"cd"
    builder.append(b"ef")
    assert consumer.snapshot() == b"cdef"
    assert consumer.unread_bytes == 4
    assert built(consumer) == b"cdef"
    assert copy.snapshot() == b"ef"
    assert built(copy) == b"ef"


@pytest.mark.parametrize("order", ["builder first", "consumers first", "slices last"])
def test_the_segment_returns_once_when_everybody_is_done(
    network: NetworkBufferPool, pool: LocalBufferPool, order: str
) -> None:
    builder = builder_of(pool)
    consumer = builder.create_consumer()
    copy = consumer.copy()
    builder.append(b"abc")
    slices = [consumer.build(), copy.build()]
    builder.finish()
    used = pool.statistics().used

    def close_builder() -> None:
        builder.close()

    def close_consumers() -> None:
        consumer.close()
        consumer.close()
        copy.close()

    def recycle_slices() -> None:
        for buffer in slices:
            assert buffer is not None
            buffer.recycle()

    steps = {
        "builder first": [close_builder, close_consumers, recycle_slices],
        "consumers first": [close_consumers, recycle_slices, close_builder],
        "slices last": [close_consumers, close_builder, recycle_slices],
    }[order]
    for step in steps[:-1]:
        step()
        assert pool.statistics().used == used
    steps[-1]()
    assert pool.statistics().used == used - 1
    pool.destroy()
    assert network.statistics().lent_segments == 0


def test_a_builder_that_never_got_a_consumer_returns_its_segment(pool: LocalBufferPool) -> None:
    builder = builder_of(pool)
    builder.append(b"lost")
    builder.finish()
    builder.close()
    assert pool.statistics().used == 0
    with pytest.raises(LocalProtocolError, match="released twice"):
        builder.close()


def test_a_closed_consumer_builds_no_more(pool: LocalBufferPool) -> None:
    builder = builder_of(pool)
    consumer = builder.create_consumer()
    builder.append(b"abc")
    consumer.close()
    with pytest.raises(LocalProtocolError, match="closed BufferConsumer"):
        consumer.build()


def test_the_segment_returns_under_the_subpartition_it_was_charged_to(pool: LocalBufferPool) -> None:
    builders = [builder_of(pool, 1) for _ in range(3)]  # 3 is the quota of a subpartition
    spare = builder_of(pool, 0)
    spare.close()
    assert not pool.is_available
    builders[0].close()
    assert pool.is_available
