"""`emit_batch(array)`, and slices, write what emitting each record alone would, to the same subpartitions."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import trio
import trio.testing
from hypothesis import given, settings, strategies as st
from record_streams import split_stream
from trio_runs import run_virtual

from netstack.base.errors import RecordError
from netstack.base.events import DataType
from netstack.base.ids import PartitionId, ResultPartitionType
from netstack.exchange.buffer.buffer import Buffer
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.outbound.batches import LEND_BYTES
from netstack.exchange.outbound.partition import ResultPartition
from netstack.exchange.outbound.selector import (
    BroadcastSelector,
    ChannelSelector,
    CustomSelector,
    ForwardSelector,
    GlobalSelector,
    KeyGroupSelector,
    RebalanceSelector,
    RescaleSelector,
    ShuffleSelector,
    records_of,
)
from netstack.network.handles import ResultPartition as Handle
from netstack.network.writer import RecordWriter
from netstack.testing.scripted import VirtualHost

SELECTORS: dict[str, Callable[[], ChannelSelector]] = {
    "forward": ForwardSelector,
    "global": GlobalSelector,
    "rescale": RescaleSelector,
    "rebalance": lambda: RebalanceSelector(random.Random(7)),
    "shuffle": lambda: ShuffleSelector(random.Random(7)),
    "key group": KeyGroupSelector,
    "broadcast": BroadcastSelector,
    "custom": lambda: CustomSelector(lambda key, channels: len(repr(key)) % channels),
    "custom by batch": lambda: CustomSelector(
        lambda key, channels: 1 % channels, None, lambda array, channels: 1 % channels
    ),
}


def nothing() -> None:
    pass


class Stage:
    """A writer over a pool of its own, and readers that take what they are told of."""

    def __init__(
        self,
        selector: ChannelSelector,
        *,
        subpartitions: int,
        segment_bytes: int,
        segments: int,
        format: str = "bytes",
        buffer_timeout_s: float | None = None,
    ) -> None:
        self.network = NetworkBufferPool(segments, segment_bytes)
        self.host = VirtualHost(nothing)
        self.partition = ResultPartition(
            PartitionId("p"),
            ResultPartitionType.PIPELINED,
            subpartitions,
            self.network.create_pool(subpartitions + 1, None, subpartitions=subpartitions),
            on_released=lambda partition: None,
            host=self.host,
        )
        self.writer = RecordWriter(
            Handle(self.partition), selector=selector, format=format, buffer_timeout_s=buffer_timeout_s
        )
        self.received = [bytearray() for _ in range(subpartitions)]
        self.views = [self.partition.create_view(index, nothing) for index in range(subpartitions)]

    def read(self, limit: int = 1_000_000) -> int:
        """Takes at most `limit` buffers in turn; returns how many it took."""
        taken = 0
        for index, view in enumerate(self.views):
            while taken < limit and view.is_available(has_credit=True):
                buffer = view.poll()
                if buffer is None:
                    break
                taken += 1
                if buffer.data_type is DataType.DATA:
                    self.received[index] += buffer.contiguous()
                buffer.recycle()
        return taken

    async def read_forever(self, pause_s: float = 1.0) -> None:
        """A slow reader: one buffer a virtual second."""
        while True:
            await trio.sleep(pause_s)
            self.read(1)

    def finish(self) -> list[list[bytes]]:
        """The records of each subpartition: a batch is written in runs, which are shorter than its records alone."""
        self.writer.close()
        self.read()
        assert self.partition.pool.statistics().used == 0
        return [split_stream(bytes(part)) for part in self.received]


def run(test: Callable[[], Any]) -> Any:
    """Runs an async test in virtual time."""
    return run_virtual(test)


def emit_each(stage: Stage, records: list[Any]) -> list[list[bytes]]:
    for record in records:
        stage.writer.emit_nowait(record)
    return stage.finish()


@st.composite
def arrays(draw: st.DrawFn) -> npt.NDArray[Any]:
    width = draw(st.sampled_from([0, 1, 3, 8, 100, LEND_BYTES - 1, LEND_BYTES, LEND_BYTES + 5]))
    count = draw(st.integers(0, 60 if width < 1000 else 9))
    seed = draw(st.integers(0, 2**32 - 1))
    return np.random.default_rng(seed).integers(0, 256, (count, width), np.uint8)


@pytest.mark.parametrize("name", SELECTORS)
@settings(max_examples=settings.default.max_examples // 4)
@given(
    st.lists(arrays(), min_size=1, max_size=3),
    st.integers(1, 4),
    st.sampled_from([16, 64, 4096, 32768]),
    st.sampled_from([None, 0.0, 0.1]),
)
def test_a_batch_is_its_records(
    name: str, batches: list[Any], subpartitions: int, segment_bytes: int, timeout_s: float | None
) -> None:
    records = [record for batch in batches for record in records_of(batch)]
    size = sum(len(record) + 4 for record in records)
    ample = subpartitions * (size // segment_bytes + 8) + size // LEND_BYTES
    options: dict[str, Any] = {"subpartitions": subpartitions, "segment_bytes": segment_bytes}
    one_by_one = emit_each(Stage(SELECTORS[name](), segments=ample, **options), records)

    async def in_batches(segments: int) -> list[list[bytes]]:
        stage = Stage(SELECTORS[name](), segments=segments, buffer_timeout_s=timeout_s, **options)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.read_forever, 1e-4)
            for batch in batches:
                lent = batch.copy()
                await stage.writer.emit_batch(lent)
                lent[:] = 0xEE  # the caller's memory again
            nursery.cancel_scope.cancel()
        assert stage.partition.statistics().records == len(records)
        return stage.finish()

    assert run(lambda: in_batches(ample)) == one_by_one
    assert run(lambda: in_batches(subpartitions + 1)) == one_by_one


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 300)), min_size=1, max_size=4),
    st.sampled_from([16, 32, 64]),
    st.integers(3, 40),
    st.sampled_from([None, 0.0, 0.1]),
)
def test_long_arrays_of_short_records_keep_their_order(
    shapes: list[tuple[int, int]], segment_bytes: int, segments: int, timeout_s: float | None
) -> None:
    """They are sent from their own memory where they fill buffers."""
    expected: list[bytes] = []

    async def emit() -> list[list[bytes]]:
        stage = Stage(
            GlobalSelector(),
            subpartitions=1,
            segment_bytes=segment_bytes,
            segments=segments,
            buffer_timeout_s=timeout_s,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.read_forever, 1e-4)
            for number, (width, count) in enumerate(shapes):
                rows = np.random.default_rng(number).integers(0, 256, (count, width), np.uint8)
                expected.extend(row.tobytes() for row in rows)
                await stage.writer.emit_batch(rows)
                rows[:] = 0xEE
                await stage.writer.emit(b"one")
                expected.append(b"one")
            nursery.cancel_scope.cancel()
        assert stage.partition.statistics().records == len(expected)
        return stage.finish()

    assert run(emit) == [expected]


@pytest.mark.slow
@pytest.mark.parametrize("name", SELECTORS)
@settings(max_examples=settings.default.max_examples // 4)
@given(
    st.lists(arrays(), min_size=1, max_size=3),
    st.integers(1, 4),
    st.sampled_from([16, 64, 4096, 32768]),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40_000) | st.integers(1, 60)), min_size=1, max_size=12),
    st.booleans(),
)
def test_the_sizes_that_consumers_ask_for_change_no_byte(
    name: str, batches: list[Any], subpartitions: int, segment_bytes: int, wishes: list[tuple[int, int]], ample: bool
) -> None:
    """Nor where a record goes: debloating moves only the cuts between buffers, whatever is asked for and when."""
    records = [record for batch in batches for record in records_of(batch)]
    size = sum(len(record) + 4 for record in records)
    enough = subpartitions * (size // segment_bytes + 8) + len(records)
    options: dict[str, Any] = {"subpartitions": subpartitions, "segment_bytes": segment_bytes}
    plain = emit_each(Stage(SELECTORS[name](), segments=enough, **options), records)

    async def kept_small(emit: Callable[[RecordWriter, Any], Any]) -> list[list[bytes]]:
        stage = Stage(SELECTORS[name](), segments=enough if ample else subpartitions + 1, **options)
        asked = itertools.cycle(wishes)

        def ask() -> None:
            index, size_bytes = next(asked)
            stage.views[index % subpartitions].set_buffer_size(size_bytes)

        stage.host.on_kick = ask  # in the middle of a spanning write too

        async def read() -> None:
            while True:
                ask()
                await trio.sleep(1e-4)
                stage.read(1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for batch in batches:
                await emit(stage.writer, batch)
            nursery.cancel_scope.cancel()
        return stage.finish()

    async def one_by_one(writer: RecordWriter, batch: Any) -> None:
        for record in records_of(batch):
            await writer.emit(record)
        await trio.lowlevel.checkpoint()

    assert run(lambda: kept_small(RecordWriter.emit_batch)) == plain
    assert run(lambda: kept_small(one_by_one)) == plain


TYPED = {
    "int64": np.array([0, 1, -1, 2**62, -(2**63)] * 4, "<i8"),
    "float64": np.array([0.0, -0.0, 1.5, float("inf")] * 5, "<f8"),
    "bytes of S": np.array([b"a", b"abc", b"a\0", b"", b"\0\0b"] * 4, "S3"),
    "bytes of V": np.arange(20, dtype="<u4").view("V4"),
    "bytes of rows": np.arange(60, dtype=np.uint8).reshape(20, 3),
}


@pytest.mark.parametrize("what", TYPED)
@pytest.mark.parametrize("count", [1, 2, 20])
@pytest.mark.parametrize("subpartitions", [1, 3])
@pytest.mark.parametrize("name", ["rebalance", "key group", "custom", "broadcast"])
def test_elements_that_are_records_of_the_format(what: str, count: int, subpartitions: int, name: str) -> None:
    array = TYPED[what][:count]
    options: dict[str, Any] = {"subpartitions": subpartitions, "segment_bytes": 32, "segments": 200}
    options["format"] = what.split()[0]
    one_by_one = emit_each(Stage(SELECTORS[name](), **options), records_of(array))

    async def in_a_batch() -> list[list[bytes]]:
        stage = Stage(SELECTORS[name](), **options)
        await stage.writer.emit_batch(array)
        return stage.finish()

    assert run(in_a_batch) == one_by_one


@pytest.mark.parametrize("dtype", ["<i8", "<u2", ">i4", "<f4", "i4,f4", "<M8[ns]", "?"])
@pytest.mark.parametrize("count", [1, 3, 40])
def test_the_bytes_of_an_element_are_its_record_however_few_there_are(dtype: str, count: int) -> None:
    """The default format is bytes: an element of any width is its own bytes, in a small batch as in a large one."""
    width = np.dtype(dtype).itemsize
    array = np.resize(np.arange(250, dtype=np.uint8), count * width).view(dtype)

    async def in_a_batch() -> list[list[bytes]]:
        stage = Stage(RebalanceSelector(), subpartitions=2, segment_bytes=64, segments=100)
        await stage.writer.emit_batch(array)
        return stage.finish()

    rows = array.view(np.uint8).reshape(count, width)
    expected = [[row.tobytes() for row in rows[index::2]] for index in (0, 1)]
    assert run(in_a_batch) == expected


@pytest.mark.parametrize(
    ("format", "array"),
    [
        ("int64", np.arange(100, dtype="<i4")),
        ("int64", np.arange(100, dtype=">i8")),
        ("float64", np.arange(100, dtype="<f4")),
        ("float64", np.arange(100, dtype="<i8")),
        ("msgpack", np.arange(100, dtype="<i8")),
        ("str", np.array(["a", "bc"] * 50)),
    ],
)
def test_an_array_of_another_type_than_the_format_is_treated_alike_however_few_there_are(
    format: str, array: npt.NDArray[Any]
) -> None:
    """Either refused, or written as its records would be: never as bytes that the format cannot read."""

    def outcome(count: int) -> str:
        stage = Stage(RebalanceSelector(), subpartitions=2, segment_bytes=64, segments=100, format=format)
        try:
            run(lambda: stage.writer.emit_batch(array[:count]))
        except RecordError:
            return "refused"
        one_by_one = Stage(RebalanceSelector(), subpartitions=2, segment_bytes=64, segments=100, format=format)
        same = stage.finish() == emit_each(one_by_one, records_of(array[:count]))
        return "its records" if same else "something else"

    outcomes = {outcome(3), outcome(100)}
    assert outcomes in ({"refused"}, {"its records"})


def test_an_array_that_is_not_contiguous_is_read_as_it_looks() -> None:
    whole = np.arange(600, dtype=np.uint8).reshape(20, 30)

    async def in_a_batch() -> list[list[bytes]]:
        stage = Stage(ForwardSelector(), subpartitions=1, segment_bytes=64, segments=100)
        await stage.writer.emit_batch(whole[::2, 3:9])
        await stage.writer.emit_batch(whole[:, 0].view("V1")[::3])
        return stage.finish()

    expected = [row.tobytes() for row in whole[::2, 3:9]] + [row.tobytes() for row in whole[::3, :1]]
    assert run(in_a_batch) == [expected]


# Lent memory, on every path.


@given(st.data(), st.integers(1, 3), st.sampled_from([512, 4096, 16384]))
def test_memory_of_a_batch_may_change_when_the_call_returned(
    data: st.DataObject, subpartitions: int, segment_bytes: int
) -> None:
    """Sent at once, detached from the queue, half sent and settled, or cancelled: what arrives is what was lent."""
    pauses = data.draw(st.lists(st.sampled_from([0.0, 1e-4, 1e-2, 1.0]), min_size=1, max_size=8))
    deadlines = data.draw(st.lists(st.sampled_from([1e-4, 1e-3, 1.0, 1e9]), min_size=1, max_size=6))
    count = data.draw(st.integers(1, 4))

    async def scenario() -> None:
        stage = Stage(
            CustomSelector(lambda key, channels: 0, None, lambda array, channels: 0),
            subpartitions=subpartitions,
            segment_bytes=segment_bytes,
            segments=subpartitions + 4,
        )
        sending: list[Buffer] = []
        copied: list[bytes] = []

        def settle() -> None:
            """The connection copies what it is in the middle of sending."""
            copied.extend(bytes(buffer.contiguous()) for buffer in sending)
            for buffer in sending:
                buffer.recycle()
            sending.clear()

        async def send() -> None:
            """A connection that takes a buffer, and reads its bytes only some time later."""
            view = stage.views[0]
            turn = 0
            ended = False
            while not ended:
                turn += 1
                await trio.sleep(pauses[turn % len(pauses)] + 1e-4)
                buffer = view.poll() if view.is_available(has_credit=True) else None
                if buffer is None:
                    continue
                ended = buffer.data_type is DataType.END_OF_PARTITION
                sending.append(buffer)
                await trio.sleep(pauses[(turn + 1) % len(pauses)])
                settle()
                if buffer.data_type is DataType.DATA:
                    stage.received[0] += copied.pop()
                copied.clear()

        stage.host.settle = settle
        finished = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            for number, deadline in enumerate(deadlines):
                rows = np.full((count, LEND_BYTES), number + 1, np.uint8)
                with trio.move_on_after(deadline) as scope:  # a timeout is short, or so long that it never comes
                    await stage.writer.emit_batch(rows)
                rows[:] = 0xEE
                finished.append(not scope.cancelled_caught)
            await stage.writer.finish()
        received = stage.finish()[0]
        actual = [record[0] for record in received]
        assert received == [bytes([number]) * LEND_BYTES for number in actual], "memory was read after it changed"
        assert actual == sorted(actual)
        for number, complete in enumerate(finished):
            sent = actual.count(number + 1)
            assert sent == count if complete else sent <= count

    run(scenario)


@given(st.data(), st.integers(1, 4), st.sampled_from([32, 64, 1024, 4096]))
def test_a_batch_that_is_cancelled_leaves_the_first_of_its_records_and_counts_them(
    data: st.DataObject, subpartitions: int, segment_bytes: int
) -> None:
    """Also where it stood inside a run, whatever is written next."""
    attempts = data.draw(
        st.lists(
            st.tuples(
                st.sampled_from([3e-5, 1e-4, 3e-4, 1e-3, 1e-2, 1e9]),  # until it is cancelled
                st.sampled_from([5, 8, 100]),
                st.integers(1, 300),
            ),
            min_size=1,
            max_size=5,
        )
    )
    alone = data.draw(st.lists(st.booleans(), min_size=len(attempts), max_size=len(attempts)))
    is_keyed = data.draw(st.booleans())

    async def scenario() -> None:
        stage = Stage(
            KeyGroupSelector() if is_keyed else RebalanceSelector(random.Random(3)),
            subpartitions=subpartitions,
            segment_bytes=segment_bytes,
            segments=subpartitions + 2,
            buffer_timeout_s=data.draw(st.sampled_from([None, 0.0, 0.1])),
        )
        complete: list[bool] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.read_forever, 1e-4)
            for number, (deadline_s, width, count) in enumerate(attempts):
                rows = np.full((count, width), number, np.uint8)
                rows[:, :4] = np.arange(count, dtype=">u4").view(np.uint8).reshape(count, 4)
                with trio.move_on_after(deadline_s) as scope:
                    await stage.writer.emit_batch(rows)
                rows[:] = 0xEE
                complete.append(not scope.cancelled_caught)
                if alone[number]:
                    await stage.writer.emit(b"alone")
            await stage.writer.finish()
            nursery.cancel_scope.cancel()
        counted = stage.partition.statistics().records
        received = stage.finish()
        assert counted == sum(map(len, received))
        assert sum(part.count(b"alone") for part in received) == sum(alone)
        for number, (_, _, count) in enumerate(attempts):
            actual = [
                [int.from_bytes(record[:4], "big") for record in part if record != b"alone" and record[4] == number]
                for part in received
            ]
            if complete[number]:
                assert sorted(itertools.chain(*actual)) == [*range(count)]
            for indices in actual:
                if is_keyed:
                    assert indices == sorted(set(indices))
                elif indices:
                    assert indices == [*range(indices[0], indices[-1] + 1, subpartitions)]
                    assert indices[0] < subpartitions

    run(scenario)


RECORDS: dict[str, tuple[st.SearchStrategy[Any], list[Any]]] = {
    "str": (st.text(max_size=12), ["\ud800", 3, b"no text", "a"]),
    "int64": (st.integers(-(1 << 63), (1 << 63) - 1), [1 << 63, "no number", 7]),
    "float64": (st.floats(allow_nan=False), ["no number", 7]),
    "bytes": (st.binary(max_size=12), ["no bytes", b"a"]),
    "msgpack": (st.lists(st.integers(0, 300), max_size=3) | st.text(max_size=9), [{1, 2}, "a", 7]),
}
"""Records, and such as do not fit the format, or the selector."""


class CountingSelector(CustomSelector):
    """Asked once a record, or it tells."""

    def __init__(self) -> None:
        self.asked = 0
        super().__init__(self._choose)

    def _choose(self, key: Any, channels: int) -> int:
        self.asked += 1
        return self.asked * 7 // 3 % channels


def key_of(record: Any) -> Any:
    """Refuses some records."""
    if record in ("a", 7, b"a"):
        raise LookupError(record)
    return tuple(record) if isinstance(record, list | set) else record


SLICED: dict[str, Callable[[], ChannelSelector]] = {
    **{name: SELECTORS[name] for name in ("forward", "rebalance", "shuffle", "broadcast")},
    "key group": lambda: KeyGroupSelector(key_of),
    "key group of text": lambda: KeyGroupSelector(key_of, key_type=str),
    "custom": CountingSelector,
}


def outcome(stage: Stage, emit: Callable[[Stage], None]) -> tuple[str, int, list[list[bytes]]]:
    """How it ended, how many records were counted, and what came."""
    ended = ""
    try:
        emit(stage)
    except (RecordError, LookupError) as error:
        ended = repr(error)
    counted = stage.partition.counters.records
    return ended, counted, stage.finish()


@pytest.mark.parametrize("name", SLICED)
@pytest.mark.parametrize("format", RECORDS)
@settings(max_examples=settings.default.max_examples // 2)
@given(
    st.data(),
    st.integers(1, 4),
    st.sampled_from([40, 64, 4096]),
    st.lists(st.integers(1, 20), min_size=1, max_size=5),
    st.sampled_from([None, 0, 0.1]),
)
def test_slices_write_what_records_alone_would(
    name: str, format: str, data: st.DataObject, channels: int, segment_bytes: int, parts: list[int], timeout_s: float
) -> None:
    channels = 1 if name == "forward" else channels
    fitting, others = RECORDS[format]
    count = data.draw(st.integers(0, 60))
    records = data.draw(st.lists(fitting, min_size=count, max_size=count))
    if data.draw(st.booleans()):
        records.insert(data.draw(st.integers(0, count)), data.draw(st.sampled_from(others)))

    def stage(segments: int) -> Stage:
        return Stage(
            SLICED[name](),
            subpartitions=channels,
            segment_bytes=segment_bytes,
            segments=segments,
            format=format,
            buffer_timeout_s=timeout_s,
        )

    def each(stage: Stage) -> None:
        emit = stage.writer.emit_nowait
        for record in records:
            emit(record)

    def sliced(stage: Stage) -> None:
        slices = stage.writer.slices()
        push = slices.records.append if slices.takes_records else slices.stage
        left = copy.deepcopy(records)
        for part in itertools.cycle(parts):
            try:
                for record in left[:part]:
                    push(record)
                    if isinstance(record, list):
                        record.append("changed afterwards")
            finally:
                while not slices.flush():
                    assert stage.read(), "it waits for a buffer, and all are here"
            assert slices.is_empty
            del left[:part]
            if not left:
                break

    expected = outcome(stage(4000), each)
    assert outcome(stage(channels + 1), sliced) == expected
