"""A size announced over the wire holds for every buffer that is begun after it arrived, and for no earlier one."""

from __future__ import annotations

from hypothesis import given, strategies as st

from netstack.base.events import DataType
from netstack.exchange.outbound.selector import RebalanceSelector
from netstack.exchange.outbound.writer import PartitionWriter
from netstack.exchange.record.formats import format_named
from netstack.exchange.record.framing import frame
from netstack.testing.link import Link, Step

SEGMENT = 64
RECORD = b"x" * 3  # framed it fits the smallest size asked for


def writer_of(link: Link, subpartitions: int) -> PartitionWriter:
    return PartitionWriter(
        link.create_partition("p", subpartitions=subpartitions),
        selector=RebalanceSelector(),
        format=format_named("bytes"),
        buffer_timeout_s=None,
        refuse=BlockingIOError,
    )


def test_a_size_reaches_the_producer_whatever_the_pieces_it_comes_in() -> None:
    link = Link(segment_size_bytes=SEGMENT)
    partition = writer_of(link, 2).partition
    gate = link.open_gate([("p", 0), ("p", 1)])
    link.chunk = lambda available: 1
    link.run()
    gate.announce_buffer_size(20)
    gate.channels[1].announce_buffer_size(30)
    gate.channels[1].announce_buffer_size(10)
    link.run()
    assert [subpartition.buffer_size for subpartition in partition.subpartitions] == [20, 10]
    gate.announce_buffer_size(1 << 20)
    link.run()
    assert [subpartition.buffer_size for subpartition in partition.subpartitions] == [1 << 20, 1 << 20]
    link.close()


def test_a_size_may_come_before_the_partition() -> None:
    link = Link(segment_size_bytes=SEGMENT)
    gate = link.open_gate([("p", 0)])
    gate.announce_buffer_size(20)
    link.run()
    partition = writer_of(link, 1).partition
    assert partition.subpartitions[0].buffer_size == 20
    link.close()


actions = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 30)),
        st.tuples(st.just("announce"), st.integers(len(frame(RECORD)), SEGMENT)),
        st.tuples(st.just("step"), st.sampled_from(Step)),
        st.tuples(st.just("drain")),
    ),
    max_size=60,
)


@given(actions, st.integers(0, 2))
def test_no_buffer_begun_after_a_size_arrived_is_larger(script: list[tuple[object, ...]], exclusive: int) -> None:
    link = Link(segment_size_bytes=SEGMENT, exclusive_buffers=exclusive, floating_buffers=3)
    writer = writer_of(link, 1)
    (subpartition,) = writer.partition.subpartitions
    gate = link.open_gate([("p", 0)])
    allowed: list[int] = []  # for each buffer: the size when it was begun, and a record that ends there
    received: list[bytes] = []
    written = 0

    def write(count: int) -> None:
        nonlocal written
        for _ in range(count):
            had_open = subpartition.has_open_buffer
            added = subpartition.statistics().buffers_added
            if not writer.try_emit(RECORD):
                return
            written += 1
            begun = subpartition.statistics().buffers_added - added
            assert begun <= 1 + had_open
            allowed.extend([min(subpartition.buffer_size + len(frame(RECORD)), SEGMENT)] * begun)

    def drain() -> None:
        received.extend(taken.payload for taken in link.drain(gate) if taken.data_type is DataType.DATA)

    announced = None
    for name, *arguments in script:
        match name, arguments:
            case "write", [int(count)]:
                write(count)
            case "announce", [int(size)]:
                announced = size
                gate.announce_buffer_size(size)
            case "step", [Step() as step]:
                link.step(step)
            case _:
                drain()
    writer.end(drain=True)
    writer.partition.close()
    while link.run() or gate.has_data:
        drain()
    assert b"".join(received) == frame(RECORD) * written
    assert all(len(data) <= size for data, size in zip(received, allowed, strict=True))
    if announced is not None:
        assert subpartition.buffer_size == announced
    link.close()
