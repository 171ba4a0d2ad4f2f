"""What is kept is read as it was written: any kind, any sizes, any ranges, by readers that come and go at any time.

The disk is a list of jobs that are done when the law says so; the files are real.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import example, given, strategies as st
from record_streams import split_stream

from netstack.base.config import FLINK_DIALECT, NetworkConfig
from netstack.base.errors import ChannelFailed, ErrorCode, NetstackError
from netstack.base.events import DataType, UserEvent, decode_event
from netstack.base.ids import ResultPartitionType, partition_id
from netstack.exchange.buffer.buffer import Buffer
from netstack.exchange.buffer.pools import LocalBufferPool, NetworkBufferPool
from netstack.exchange.buffer.stored import Packaging, StoredBuffer, decompress
from netstack.exchange.credit.sending import SendCredit
from netstack.exchange.outbound.partition import ResultPartition
from netstack.exchange.outbound.selector import BroadcastSelector, ChannelSelector
from netstack.exchange.outbound.writer import PartitionWriter
from netstack.exchange.record.formats import format_named
from netstack.exchange.stored.files import ShuffleFolder
from netstack.exchange.stored.partition import KeptPartitionFactory

SEGMENT = 1024
HEAD = struct.Struct(">II")
KINDS = [
    ResultPartitionType.BLOCKING,
    ResultPartitionType.BLOCKING_PERSISTENT,
    ResultPartitionType.HYBRID_FULL,
    ResultPartitionType.HYBRID_SELECTIVE,
]


class Jobs:
    """A disk whose jobs are done when somebody says so, in any order."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any, NetstackError | None], None]]] = []

    def submit(self, work: Callable[[], Any], done: Callable[[Any, NetstackError | None], None]) -> None:
        self.waiting.append((work, done))

    def run(self, index: int = 0) -> bool:
        """One of them; False if there is none."""
        if not self.waiting:
            return False
        work, done = self.waiting.pop(index % len(self.waiting))
        try:
            result = work()
        except NetstackError as error:
            done(None, error)
        else:
            done(result, None)
        return True

    def run_all(self) -> None:
        while self.run():
            pass


class Host:
    def __init__(self, *, jumps: bool) -> None:
        """Its processor's clock stands, or jumps by anything from a nanosecond to a second."""
        self.random = random.Random(7) if jumps else None
        self.seconds = 0.0

    def now(self) -> float:
        return 0.0

    def ticks(self) -> float:
        if self.random is not None:
            self.seconds += 10 ** self.random.uniform(-9, 0)
        return self.seconds

    def flush_connections(self) -> None: ...

    settle = flush_connections

    def call_at(self, deadline_s: float, callback: Callable[[], None]) -> None:
        raise AssertionError("nothing that is kept is flushed")


class ByHead(ChannelSelector):
    """A record says where it goes."""

    def select(self, record: Any) -> int:
        return int(HEAD.unpack_from(record)[0])

    def select_batch(self, array: Any) -> int:
        raise NotImplementedError("these laws write records of many lengths, one by one")


class Refused(Exception):
    pass


class Reader:
    """One channel's view, taken as a connection or a local channel takes it."""

    def __init__(self, world: World, first: int, count: int, packaging: Packaging) -> None:
        self.first, self.count, self.packaging = first, count, packaging
        self.data: list[bytes] = []
        self.events: list[tuple[int, Any]] = []
        self.ended = 0
        self.sequence = 0
        self.told = 0
        self.has_left = False
        self.credit = SendCredit(2)
        self.held: list[Buffer] = []
        self.view = world.partition.create_view(first, self.notify, count, packaging)
        if packaging is not Packaging.PLAIN:
            self.view.attach_credit(self.credit)

    def notify(self) -> None:
        self.told += 1

    @property
    def is_done(self) -> bool:
        return self.ended == 2

    def poll(self, *, keep: bool = False) -> bool:
        """Takes a buffer, if it may. Returns whether it did."""
        is_remote = self.packaging is not Packaging.PLAIN
        if not self.view.is_available(has_credit=not is_remote or self.credit.available > 0):
            return False
        buffer = self.view.poll()
        assert buffer is not None
        assert buffer.sequence == self.sequence
        self.sequence += len(buffer.parts) if isinstance(buffer, StoredBuffer) else 1
        if buffer.data_type in (DataType.DATA, DataType.STORED_DATA):
            if is_remote:
                self.credit.available -= 1
            self.data.extend(self.bytes_of(buffer))
        else:
            memory = buffer.parts[0] if isinstance(buffer, StoredBuffer) else buffer.memory
            if buffer.data_type in (DataType.END_OF_DATA, DataType.END_OF_PARTITION):
                self.ended += 1
                assert buffer.data_type is (None, DataType.END_OF_DATA, DataType.END_OF_PARTITION)[self.ended]
                if self.packaging is Packaging.GLUED:
                    assert isinstance(buffer, StoredBuffer)
                    assert len(buffer.parts) == self.count
            else:
                assert not self.ended
                self.events.append((sum(map(len, self.data)), decode_event(memory)))
        if keep:
            self.held.append(buffer)
        else:
            buffer.recycle()
        return True

    def bytes_of(self, buffer: Buffer) -> Iterator[bytes]:
        assert buffer.length <= SEGMENT
        if not isinstance(buffer, StoredBuffer):
            yield bytes(buffer.contiguous())
            return
        assert self.packaging is not Packaging.PLAIN
        assert buffer.is_compressed or self.packaging is Packaging.GLUED
        for part in buffer.parts:
            yield decompress(part, SEGMENT) if buffer.is_compressed else bytes(part)

    def give_back(self) -> bool:
        """Recycles what it holds. Returns whether there was anything."""
        held, self.held = self.held, []
        for buffer in held:
            buffer.recycle()
        return bool(held)

    def leave(self) -> None:
        self.give_back()
        self.has_left = True
        self.view.release()

    def records(self) -> list[bytes]:
        return split_stream(b"".join(self.data))


class World:
    """One kept partition, its writer and its readers."""

    def __init__(self, kind: ResultPartitionType, subpartitions: int, folder: str, **settings: Any) -> None:
        broadcast = settings.pop("broadcast", False)
        jumps = settings.pop("jumps", True)
        self.config = NetworkConfig(
            segment_size_bytes=SEGMENT,
            memory_bytes=2048 * SEGMENT,
            sort_buffer_bytes=64 * 1024,
            dialect=FLINK_DIALECT,  # some of its readers are Flink's
            **settings,
        )
        self.network = NetworkBufferPool(self.config.total_segments, SEGMENT)
        self.disk = Jobs()
        self.folder = folder
        self.factory = KeptPartitionFactory(
            self.config, self.network, self.disk, ShuffleFolder(os.path.dirname(folder), os.path.basename(folder))
        )
        self.readable = 0
        self.partition = self.factory.create(
            partition_id("p"),
            kind,
            subpartitions,
            on_released=lambda partition: None,
            on_readable=self.on_readable,
            host=Host(jumps=jumps),
        )
        self.writer = PartitionWriter(
            self.partition,
            selector=BroadcastSelector() if broadcast else ByHead(),
            format=format_named("bytes"),
            buffer_timeout_s=None,
            refuse=Refused,
        )
        self.partition.on_release = self.writer.abandon
        self.partition.pool.on_available = self.on_available
        self.is_told = False
        self.other: LocalBufferPool | None = None
        self.written: list[list[bytes]] = [[] for _ in range(subpartitions)]
        self.numbers = itertools.count()
        self.readers: list[Reader] = []
        self.subpartitions = subpartitions
        self.is_broadcast = broadcast

    def on_readable(self, partition: ResultPartition) -> None:
        self.readable += 1

    def on_available(self) -> None:
        self.is_told = True

    def squeeze(self) -> None:
        """Another pool wants all memory that is not promised, or leaves it again."""
        if self.other is not None:
            self.other.destroy()
            self.other = None
        else:
            self.other = self.network.create_pool(
                self.config.total_segments - self.network.statistics().required_segments, None
            )
            assert self.other.size == self.other.required  # by now all pools have their new sizes

    def emit(self, subpartition: int, size: int, fill: bytes) -> None:
        record = HEAD.pack(subpartition, next(self.numbers)) + (fill * (size // len(fill) + 1))[:size]
        if not self.writer.try_emit(record):
            slot, write = self.writer.plan_record(record)
            while not self.tries(write.advance):
                while not self.is_told:
                    is_working = self.disk.run()
                    for reader in self.readers:  # what is read once is waited for, as any consumer is
                        is_working |= reader.give_back()
                    assert is_working, "the writer waits for memory, and nothing is under way that would bring any"
            self.writer.buffers.after_write(slot)
        for index in range(self.subpartitions) if self.is_broadcast else [subpartition]:
            self.written[index].append(record)

    def tries(self, step: Callable[[], bool]) -> bool:
        """Whether a step succeeds; who waits afterwards has to be told of memory."""
        self.is_told = False
        return step()

    def open(self, first: int, count: int, packaging: Packaging) -> Reader | None:
        try:
            reader = Reader(self, first, count, packaging)
        except ChannelFailed as error:
            if error.code not in (ErrorCode.PARTITION_NOT_FOUND, ErrorCode.SUBPARTITION_CONSUMED):
                raise
            return None
        self.readers.append(reader)
        return reader

    def finish(self) -> None:
        self.writer.end(drain=True)
        while not self.partition.all_acknowledged:
            assert self.disk.run()

    def read_out(self, reader: Reader) -> None:
        """Everything that is left, with a credit for each buffer that came."""
        for _ in range(1_000_000):
            if reader.is_done:
                break
            reader.credit.available = max(reader.credit.available, 2)
            if not reader.poll():
                is_working = self.disk.run()
                for other in self.readers:  # a connection sends what it has credit for
                    is_working |= other.give_back() or (not other.has_left and other.poll())
                assert is_working, "the reader waits, and nothing is being read"
        assert not reader.poll()

    def check(self, reader: Reader) -> None:
        """A reader that has read it all has read what was written."""
        actual = reader.records()
        if self.is_broadcast:
            assert sorted(actual) == sorted(self.written[reader.first] * reader.count)
            return
        by_subpartition: dict[int, list[bytes]] = {index: [] for index in range(self.subpartitions)}
        for record in actual:
            by_subpartition[HEAD.unpack_from(record)[0]].append(record)
        for index in range(self.subpartitions):
            inside = reader.first <= index < reader.first + reader.count
            assert by_subpartition[index] == (self.written[index] if inside else [])

    def close(self) -> None:
        """Everything comes back, and nothing is left."""
        for reader in self.readers:
            reader.leave()
        self.partition.release()
        self.disk.run_all()
        if self.other is not None:
            self.squeeze()
        assert os.listdir(self.folder) == []
        assert self.factory.quota.used_bytes == 0
        assert self.network.free_segments == self.config.total_segments


NOISE = random.Random(13).randbytes(200_000)  # no compression makes it smaller
packagings = st.sampled_from(Packaging)
fills = st.sampled_from(
    [b"a", b"abc", bytes(range(256)), os.urandom(0) or bytes((i * i * 7 + i * 13) & 255 for i in range(4096))]
)
sizes = st.one_of(st.integers(0, 100), st.integers(0, 3 * SEGMENT), st.integers(50_000, 150_000))


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    step = st.one_of(
        st.tuples(st.just("emit"), st.integers(0, 999), sizes, fills, st.integers(1, 40)),
        st.tuples(st.just("emit"), st.integers(0, 999), sizes, fills, st.integers(1, 40)),
        st.tuples(st.just("event"), st.integers(0, 999)),
        st.tuples(st.just("disk"), st.integers(0, 9)),
        st.tuples(st.just("open"), st.integers(0, 999), st.integers(1, 9), packagings),
        st.tuples(st.just("poll"), st.integers(0, 9), st.integers(1, 20), st.booleans()),
        st.tuples(st.just("grant"), st.integers(0, 9), st.integers(1, 4)),
        st.tuples(st.just("give back"), st.integers(0, 9)),
        st.tuples(st.just("leave"), st.integers(0, 9)),
        st.tuples(st.just("squeeze")),
    )
    return draw(st.lists(step, max_size=40))


@given(
    st.sampled_from(KINDS),
    st.sampled_from([1, 2, 3, 5, 9, 40, 200]),
    steps(),
    steps(),
    st.sampled_from(["auto", "lz4", "none"]),
    st.sampled_from([1, 4]),
    st.booleans(),
)
def test_what_is_read_is_what_was_written(
    kind: ResultPartitionType,
    subpartitions: int,
    before: list[tuple[Any, ...]],
    after: list[tuple[Any, ...]],
    compression: str,
    sort_min: int,
    broadcast: bool,
) -> None:
    folder = tempfile.mkdtemp()
    try:
        world = World(
            kind,
            subpartitions,
            folder,
            shuffle_compression=compression,
            sort_min_subpartitions=sort_min,
            broadcast=broadcast and subpartitions < 10,
        )
        events = 0
        for is_finished, step in [
            *((False, one) for one in before),
            (False, ("finish",)),
            *((True, one) for one in after),
        ]:
            match step:
                case ("finish",):
                    world.finish()
                    is_finished = True
                case ("emit", where, size, fill, times) if not is_finished:
                    for _ in range(times if size < 1000 else 1):
                        world.emit(where % subpartitions, size, fill)
                case ("event", number) if not is_finished:
                    world.writer.broadcast_event(UserEvent(str(number)))
                    events += 1
                case ("disk", index):
                    world.disk.run(index)
                case ("open", first, count, packaging):
                    first %= subpartitions
                    world.open(first, min(count, subpartitions - first), packaging)
                case ("poll", index, times, keep) if world.readers:
                    reader = world.readers[index % len(world.readers)]
                    for _ in range(times):
                        if reader.has_left or not reader.poll(keep=keep and len(reader.held) < 3):
                            break
                case ("grant", index, count) if world.readers:
                    world.readers[index % len(world.readers)].credit.available += count
                case ("give back", index) if world.readers:
                    world.readers[index % len(world.readers)].give_back()
                case ("leave", index) if world.readers:
                    world.readers[index % len(world.readers)].leave()
                case ("squeeze",):
                    world.squeeze()
        framed = [sum(len(record) + 4 for record in written) for written in world.written]
        assert list(world.partition.bytes_per_subpartition) == framed
        if not kind.is_blocking and not kind.is_reconsumable:
            taken = {i for reader in world.readers for i in range(reader.first, reader.first + reader.count)}
            for index in set(range(subpartitions)) - taken:
                world.open(index, 1, Packaging.COMPRESSED)
        else:
            world.open(0, subpartitions, Packaging.COMPRESSED)
            world.open(subpartitions // 2, 1, Packaging.PLAIN)
        for reader in world.readers:
            if not reader.has_left:
                world.read_out(reader)
                world.check(reader)
                assert len(reader.events) == events * reader.count
        assert world.readable == 1
        world.close()
    finally:
        shutil.rmtree(folder)


@given(
    st.sampled_from([1, 3, 8]),
    st.lists(st.tuples(st.integers(0, 999), sizes, fills), min_size=1, max_size=30),
    st.sampled_from(["auto", "lz4", "none"]),
    st.sampled_from([1, 4]),
    st.lists(
        st.tuples(st.sampled_from(["flip", "cut", "fill"]), st.integers(0, 1 << 30), st.integers(1, 255)), min_size=1
    ),
    st.booleans(),
)
@example(
    8, [(0, 0, b"a")], "lz4", 1, [("cut", 503, 1), ("flip", 89, 10)], True
)  # a number of regions beyond all memory
def test_what_was_damaged_is_never_taken_for_what_was_written(
    subpartitions: int,
    records: list[tuple[int, int, bytes]],
    compression: str,
    sort_min: int,
    damages: list[tuple[str, int, int]],
    of_index: bool,
) -> None:
    folder = tempfile.mkdtemp()
    try:
        world = World(
            ResultPartitionType.BLOCKING,
            subpartitions,
            folder,
            shuffle_compression=compression,
            sort_min_subpartitions=sort_min,
        )
        for where, size, fill in records:
            world.emit(where % subpartitions, size, fill)
        world.finish()
        actual = sorted(Path(folder).glob("*.index" if of_index else "*.data"))
        for how, place, value in damages:
            damage(actual[place % len(actual)], how, place, value)
        for first, count in [(0, subpartitions), *((index, 1) for index in range(subpartitions))]:
            for packaging in Packaging:
                reader = world.open(first, count, packaging)
                assert reader is not None
                while not (reader.is_done or reader.view.is_released):
                    reader.credit.available = 2
                    if not reader.poll():
                        assert world.disk.run()
                if reader.is_done:
                    world.check(reader)
                else:
                    assert reader.view.failure_code is ErrorCode.PARTITION_DAMAGED
                    assert folder in str(reader.view.failure)
                reader.leave()
        world.close()
    finally:
        shutil.rmtree(folder)


def damage(path: Path, how: str, place: int, value: int) -> None:
    data = bytearray(path.read_bytes())
    if not data:
        return
    place %= len(data)
    if how == "flip":
        data[place] ^= value
    elif how == "fill":
        data[place : place + value] = bytes(len(data[place : place + value]))
    else:
        del data[place:]
    path.write_bytes(data)


def test_a_pool_that_shrinks_by_what_is_written_does_not_leave_its_writer_waiting() -> None:
    """The writer waits in a record for the region that is being written, and another pool gets its memory."""
    folder = tempfile.mkdtemp()
    try:
        world = World(ResultPartitionType.BLOCKING, 1, folder)
        while not world.disk.waiting:
            world.emit(0, 1000, b"a")
        slot, write = world.writer.plan_record(HEAD.pack(0, next(world.numbers)) + bytes(100_000))
        assert not world.tries(write.advance)
        world.squeeze()
        while not world.tries(write.advance):
            while not world.is_told:
                assert world.disk.run(), "the writer waits for memory, and nothing is under way that would bring any"
        world.writer.buffers.after_write(slot)
        world.finish()
        world.close()
    finally:
        shutil.rmtree(folder)


def test_who_waits_for_a_block_gets_that_of_a_reader_whose_credit_is_used_up() -> None:
    """It was refused while the others had credit; then they send what they may, and everybody waits."""
    folder = tempfile.mkdtemp()
    try:
        world = World(ResultPartitionType.BLOCKING, 1, folder, read_memory_bytes=1 << 20)
        for start in range(0, 20_000, 1000):
            world.emit(0, 1000, NOISE[start : start + 1000])
        world.finish()
        while len(world.readers) < 20 and (not world.readers or world.readers[-1].told):
            world.open(0, 1, Packaging.COMPRESSED)
            world.disk.run_all()
        *others, last = world.readers
        assert 2 <= len(others) < 19
        for reader in others:
            while reader.poll():
                pass
        assert not last.told
        world.disk.run_all()
        assert last.told
        assert last.poll()
        world.close()
    finally:
        shutil.rmtree(folder)


def test_where_room_is_scarce_what_gets_smaller_is_compressed() -> None:
    """By its clock writing costs nothing; yet more than twice the quota finds room, and is read again."""
    folder = tempfile.mkdtemp()
    try:
        world = World(ResultPartitionType.BLOCKING, 4, folder, jumps=False, shuffle_disk_bytes=1_000_000)
        for index in range(190):
            world.emit(index % 4, 12_000, b"abc")
            world.disk.run_all()
        world.finish()
        data, compressed, stored = world.partition.kept_bytes
        assert data == 190 * (12_000 + HEAD.size + 4)
        assert 0.5 < compressed / data < 0.75
        assert stored == world.factory.quota.used_bytes < 1_000_000
        reader = world.open(0, 4, Packaging.GLUED)  # some frames of compressed buffers, some of others
        assert reader is not None
        world.read_out(reader)
        world.check(reader)
        world.close()
    finally:
        shutil.rmtree(folder)


@given(st.sampled_from([2, 9]), st.integers(1, 4))
def test_readers_who_take_nothing_keep_nobody_from_reading(subpartitions: int, stalled: int) -> None:
    """Two blocks for all: whoever has read ahead and takes nothing gives it up, and reads it again."""
    folder = tempfile.mkdtemp()
    try:
        world = World(ResultPartitionType.BLOCKING, subpartitions, folder, read_memory_bytes=1 << 20)
        for index in range(600):
            world.emit(index % subpartitions, 3000, NOISE)
        world.finish()
        world.factory.reads._unmade = 2
        for index in range(stalled):
            reader = world.open(index % subpartitions, 1, Packaging.COMPRESSED)
            assert reader is not None
            while world.disk.run():
                pass
            reader.credit.available = 0
        last = world.open(0, subpartitions, Packaging.COMPRESSED)
        assert last is not None
        for reader in (last, *world.readers[:-1]):
            world.read_out(reader)
            world.check(reader)
        assert world.factory.reads.memory_bytes <= 2 * world.factory.reads.block_bytes
        world.close()
    finally:
        shutil.rmtree(folder)
