"""A world of kept partitions: writers, readers, real files, and a disk whose jobs are done when a law says so."""

from __future__ import annotations

import itertools
import os
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

from record_streams import split_stream

from netstack.base.config import FLINK_DIALECT, NetworkConfig
from netstack.base.errors import ChannelFailed, ErrorCode, NetstackError
from netstack.base.events import DataType, decode_event
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

    settle = hold = flush_held = flush_connections

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
        """Whether a step succeeds. If it fails, the writer waits for a notification of free memory."""
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
