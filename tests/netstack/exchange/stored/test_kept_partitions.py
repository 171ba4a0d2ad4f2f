"""Partitions kept in files, from a writer to gates, over real sockets and files."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.lowlevel
from trio.testing import trio_test

from netstack import ChannelDescriptor, NetworkConfig, RecordReader, RecordWriter, open_network
from netstack.base.errors import ChannelFailed, DiskFull, PartitionDamaged, PartitionNotFound, ProducerFailed
from netstack.base.ids import ResultPartitionType
from netstack.exchange.outbound.selector import BroadcastSelector
from netstack.exchange.stored.files import ShuffleFolder
from netstack.network.environment import NetworkEnvironment

BLOCKING = ResultPartitionType.BLOCKING
HYBRIDS = [ResultPartitionType.HYBRID_FULL, ResultPartitionType.HYBRID_SELECTIVE]
HEX = "d0" * 60
INDEX_DAMAGES = ("flipped", "gone", "pipe", "link")


def settings(folder: Path, **more: Any) -> NetworkConfig:
    return NetworkConfig(**({"shuffle_directory": str(folder), "segment_size_bytes": 4096} | more))


@asynccontextmanager
async def two_ends(config: NetworkConfig) -> AsyncIterator[tuple[NetworkEnvironment, NetworkEnvironment]]:
    """A producer and a consumer, connected by TCP."""
    async with (
        open_network("tcp://127.0.0.1:0", config) as producer,
        open_network("tcp://127.0.0.1:0", config) as consumer,
    ):
        yield producer, consumer


async def read_all(manager: NetworkEnvironment, channels: list[ChannelDescriptor]) -> dict[int, list[bytes]]:
    gate = await manager.open_gate(channels)
    reader = RecordReader(gate)
    actual: dict[int, list[bytes]] = defaultdict(list)
    try:
        async for record in reader:
            actual[reader.channel_index].append(record)
    finally:
        reader.close()
    return actual


async def write(manager: NetworkEnvironment, name: str, subpartitions: int, records: list[bytes]) -> RecordWriter:
    writer = RecordWriter(manager.create_partition(name, subpartitions=subpartitions, kind=BLOCKING))
    await write_to(writer, records)
    return writer


async def write_to(writer: RecordWriter, records: list[bytes]) -> None:
    for record in records:
        await writer.emit(record)
    await writer.finish()


def records_of(count: int) -> list[bytes]:
    return [b"%06d" % index * (1 + index % 7) for index in range(count)]


def files_in(folder: Path) -> list[str]:
    return sorted(file for path in folder.iterdir() for file in os.listdir(path) if file != "lock")


async def until(condition: Callable[[], bool]) -> None:
    """What a thread, or a process, does."""
    with trio.fail_after(120):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await trio.sleep(0.001)


def sizes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*/*"))


async def no_files(folder: Path) -> None:
    """They are removed by a thread."""
    await until(lambda: not files_in(folder))


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("subpartitions", [1, 3, 4, 300])
@trio_test
async def test_it_is_written_sealed_and_read_any_number_of_times(
    tmp_path: Path, subpartitions: int, is_local: bool
) -> None:
    config = settings(tmp_path, sort_buffer_bytes=256 * 1024, shuffle_compression="lz4")
    async with two_ends(config) as (producer, other):
        records = records_of(6000)
        writer = await write(producer, "p", subpartitions, records)
        partition = writer.partition
        statistics = partition.statistics()
        assert statistics.is_sealed
        assert not statistics.pool.requested
        assert statistics.stored_bytes == sizes_in(tmp_path) < sum(map(len, records))
        assert statistics.compressed_bytes > sum(map(len, records)) / 2
        channels = [ChannelDescriptor(producer.address, "p", index) for index in range(subpartitions)]
        for _ in range(2):
            actual = await read_all(producer if is_local else other, channels)
            for index in range(subpartitions):
                assert actual[index] == records[index::subpartitions]
        assert sum(partition._engine.bytes_per_subpartition) == sum(map(len, records)) + 4 * len(records)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("is_local", [True, False])
@trio_test
async def test_readers_of_what_is_released_are_told(tmp_path: Path, is_local: bool) -> None:
    config = settings(tmp_path, partition_request_timeout_s=0.05, shuffle_compression="none")
    async with two_ends(config) as (producer, other):
        await write(producer, "p", 1, records_of(30_000))
        consumer = producer if is_local else other
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
        reader = RecordReader(gate)
        await reader.next_records()
        producer.release_partition("p")
        with pytest.raises(PartitionNotFound, match="was released"):
            await anext(record async for record in reader if not record)
        reader.close()
        with pytest.raises(PartitionNotFound, match="no partition 'p'"):
            await read_all(consumer, [ChannelDescriptor(producer.address, "p")])
        await no_files(tmp_path)


@pytest.mark.parametrize("dialect", ["netstack", "flink-2.3.0"])
@pytest.mark.parametrize("compression", ["lz4", "none"])
@trio_test
async def test_a_range_comes_through_one_channel(tmp_path: Path, dialect: str, compression: str) -> None:
    config = settings(
        tmp_path, dialect=dialect, shuffle_compression=compression, sort_buffer_bytes=128 * 1024, checksum=False
    )
    async with two_ends(config) as (producer, consumer):
        records = records_of(10_000)
        await write(producer, HEX, 16, records)
        ranges = [(0, 3), (3, 1), (4, 12)]
        actual = await read_all(
            consumer, [ChannelDescriptor(producer.address, HEX, first, count) for first, count in ranges]
        )
        for channel, (first, count) in enumerate(ranges):
            wanted = {record: index % 16 for index, record in enumerate(records)}
            for index in range(first, first + count):
                assert [record for record in actual[channel] if wanted[record] == index] == records[index::16]
            assert len(actual[channel]) == sum(len(records[index::16]) for index in range(first, first + count))


@trio_test
async def test_a_range_of_what_is_pipelined_is_refused(tmp_path: Path) -> None:
    async with two_ends(settings(tmp_path)) as (producer, consumer):
        producer.create_partition("p", subpartitions=4)
        with pytest.raises(ChannelFailed, match="serves one in each channel"):
            await read_all(consumer, [ChannelDescriptor(producer.address, "p", 0, 2)])


@trio_test
async def test_whoever_asks_before_it_is_sealed_waits(tmp_path: Path) -> None:
    async with two_ends(settings(tmp_path)) as (producer, consumer):
        writer = RecordWriter(producer.create_partition("p", subpartitions=1, kind=BLOCKING))
        actual: dict[int, list[bytes]] = {}

        async def read() -> None:
            actual.update(await read_all(consumer, [ChannelDescriptor(producer.address, "p")]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await writer.emit(b"one")
            await writer.finish()
        assert actual == {0: [b"one"]}


@trio_test
async def test_who_waits_too_long_is_told_that_it_is_still_written(tmp_path: Path) -> None:
    async with two_ends(settings(tmp_path, partition_request_timeout_s=0.05)) as (producer, consumer):
        producer.create_partition("p", subpartitions=1, kind=BLOCKING)
        with pytest.raises(PartitionNotFound, match="still being written"):
            await read_all(consumer, [ChannelDescriptor(producer.address, "p")])


@pytest.mark.parametrize("kind", HYBRIDS)
@trio_test
async def test_a_hybrid_one_is_read_while_it_is_written_and_by_who_is_slow(
    tmp_path: Path, kind: ResultPartitionType
) -> None:
    """One consumer keeps up, the other begins when everything was written."""
    config = settings(tmp_path, sort_buffer_bytes=64 * 1024, shuffle_compression="none")
    async with two_ends(config) as (producer, consumer):
        partition = producer.create_partition("p", subpartitions=2, kind=kind)
        writer = RecordWriter(partition)
        records = records_of(20_000)
        quick: list[bytes] = []

        async def read() -> None:
            reader = RecordReader(await consumer.open_gate([ChannelDescriptor(producer.address, "p", 0)]))
            async for record in reader:
                quick.append(record)
            reader.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for index, record in enumerate(records):
                await writer.emit(record)
                while len(quick) < index // 2 - 600:  # more than two buffers hold
                    await trio.lowlevel.checkpoint()
            await writer.finish()
        assert quick == records[::2]
        assert (await read_all(consumer, [ChannelDescriptor(producer.address, "p", 1)]))[0] == records[1::2]
        stored = partition.statistics().stored_bytes
        mine, others = partition._engine.bytes_per_subpartition
        if kind is ResultPartitionType.HYBRID_FULL:
            assert stored > mine + others
            assert (await read_all(consumer, [ChannelDescriptor(producer.address, "p", 0)]))[0] == records[::2]
        else:
            assert stored < mine + others  # what was read at once was not written
            with pytest.raises(ChannelFailed, match="read only once"):
                await read_all(consumer, [ChannelDescriptor(producer.address, "p", 0)])


@trio_test
async def test_who_pauses_in_the_middle_of_a_region_goes_on_behind_it_in_the_file(tmp_path: Path) -> None:
    config = settings(tmp_path, sort_buffer_bytes=256 * 1024, exclusive_buffers_per_channel=1)
    async with two_ends(config) as (producer, consumer):
        partition = producer.create_partition("p", subpartitions=1, kind=ResultPartitionType.HYBRID_FULL)
        writer = RecordWriter(partition)
        records = records_of(20_000)
        reader = RecordReader(await consumer.open_gate([ChannelDescriptor(producer.address, "p", 0)]))
        for record in records[:2000]:  # fewer than a region holds
            await writer.emit(record)
        read = [await anext(reader) for _ in range(100)]
        await write_to(writer, records[2000:])
        await until(lambda: partition.statistics().stored_bytes > 256 * 1024)
        async for record in reader:
            read.append(record)
        reader.close()
        assert read == records


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize(
    "damage", ["flipped", "cut", "gone", "index flipped", "index gone", "index pipe", "index link"]
)
@trio_test
async def test_damaged_files_are_told_to_the_consumer(tmp_path: Path, damage: str, is_local: bool) -> None:
    async with two_ends(settings(tmp_path)) as (producer, other):
        await write(producer, "p", 4, records_of(3000))
        do_damage(tmp_path, damage)
        channels = [ChannelDescriptor(producer.address, "p", index) for index in range(4)]
        with pytest.raises(PartitionDamaged, match=r"1\.(data|index)"):
            await read_all(producer if is_local else other, channels)


def do_damage(folder: Path, damage: str) -> None:
    (path,) = folder.glob("*/*.index" if "index" in damage else "*/*.data")
    data = bytearray(path.read_bytes())
    if "flipped" in damage:
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
    elif damage == "cut":
        os.truncate(path, len(data) // 2)
    elif damage == "gone":
        os.truncate(path, 0)
    else:
        path.unlink()
    if damage == "index pipe":  # nobody writes to it: a reader would wait for ever
        os.mkfifo(path)
    elif damage == "index link":
        (folder / "elsewhere").write_bytes(data)
        path.symlink_to(folder / "elsewhere")


@trio_test
async def test_a_quota_of_disk(tmp_path: Path) -> None:
    config = settings(tmp_path, shuffle_disk_bytes=200_000, sort_buffer_bytes=128 * 1024, shuffle_compression="none")
    async with two_ends(config) as (producer, consumer):
        await write(producer, "small", 1, records_of(4000))
        with pytest.raises(DiskFull, match="shuffle_disk_bytes"):
            await write(producer, "large", 2, records_of(40_000))
        with pytest.raises(ProducerFailed, match="shuffle_disk_bytes"):
            await read_all(consumer, [ChannelDescriptor(producer.address, "large", 1)])
        producer.release_partition("small")
        await no_files(tmp_path)
        assert producer.kept.factory.quota.used_bytes == 0
        await write(producer, "again", 1, records_of(4000))


@pytest.mark.parametrize("at_the_end", [True, False])
@trio_test
async def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_the_end: bool) -> None:
    def full(descriptor: int, pieces: list[bytes]) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("netstack.exchange.stored.files.os.writev", full)
    async with two_ends(settings(tmp_path, sort_buffer_bytes=64 * 1024)) as (producer, _):
        partition = producer.create_partition("p", subpartitions=4, kind=BLOCKING)
        writer = RecordWriter(partition)
        with pytest.raises(DiskFull, match=r"/1\.data: No space left on device: .*shuffle_directory"):
            await write_to(writer, [b"x" * 1000] * (1 if at_the_end else 1000))
        assert partition.is_released
        await no_files(tmp_path)
        assert producer.statistics().pool.lent_segments == 0


@trio_test
async def test_a_broadcast_is_on_disk_once(tmp_path: Path) -> None:
    async with two_ends(settings(tmp_path, shuffle_compression="none")) as (producer, consumer):
        partition = producer.create_partition("p", subpartitions=8, kind=BLOCKING)
        writer = RecordWriter(partition, selector=BroadcastSelector())
        records = records_of(3000)
        for record in records:
            await writer.emit(record)
        await writer.finish()
        size = sum(map(len, records)) + 4 * len(records)
        assert partition._engine.bytes_per_subpartition == (size,) * 8
        assert partition.statistics().stored_bytes < 1.1 * size
        actual = await read_all(consumer, [ChannelDescriptor(producer.address, "p", index) for index in range(8)])
        assert actual == dict.fromkeys(range(8), records)


@pytest.mark.parametrize("width", [8, 100, 20_000])
@trio_test
async def test_batches(tmp_path: Path, width: int) -> None:
    async with two_ends(settings(tmp_path, sort_buffer_bytes=128 * 1024)) as (producer, consumer):
        partition = producer.create_partition("p", subpartitions=5, kind=BLOCKING)
        writer = RecordWriter(partition)
        rows = np.arange(3_000_000 // width * width, dtype=np.uint32).astype(np.uint8).reshape(-1, width)
        await writer.emit_batch(rows)
        rows[:] = 0  # it is the caller's again
        await writer.finish()
        again = np.arange(rows.size, dtype=np.uint32).astype(np.uint8).reshape(-1, width)
        actual = await read_all(consumer, [ChannelDescriptor(producer.address, "p", index) for index in range(5)])
        for index in range(5):
            assert actual[index] == [bytes(row) for row in again[index::5]]


@trio_test
async def test_what_a_dead_process_left_is_removed(tmp_path: Path) -> None:
    script = f"""
import os, trio
from netstack import NetworkConfig, RecordWriter, open_network
from netstack.base.ids import ResultPartitionType
async def main():
    config = NetworkConfig(shuffle_directory={str(tmp_path)!r})
    async with open_network("tcp://127.0.0.1:0", config) as manager:
        writer = RecordWriter(manager.create_partition("p", subpartitions=2, kind=ResultPartitionType.BLOCKING))
        await writer.emit(b"x")
        await writer.finish()
        os.kill(os.getpid(), 9)
trio.run(main)
"""
    await trio.run_process([sys.executable, "-c", script], check=False, stderr=subprocess.DEVNULL)
    assert files_in(tmp_path) == ["1.0.data", "1.index"]
    (left,) = os.listdir(tmp_path)
    async with (
        open_network("tcp://127.0.0.1:0", settings(tmp_path)),
        open_network("tcp://127.0.0.1:0", settings(tmp_path)),
    ):
        await until(lambda: left not in os.listdir(tmp_path) and len(os.listdir(tmp_path)) == 2)
    assert os.listdir(tmp_path) == []


def open_files(folder: Path) -> list[str]:
    paths = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return [target for path in paths if os.path.exists(path) and (target := os.readlink(path)).startswith(str(folder))]


@pytest.mark.parametrize("how", ["in order", "cancelled", "by an error", "by Ctrl-C", "cancelled while it writes"])
@trio_test
async def test_every_orderly_end_removes_the_files(tmp_path: Path, how: str) -> None:
    config = settings(tmp_path, sort_buffer_bytes=64 * 1024)
    with trio.CancelScope() as scope:
        try:
            async with open_network("tcp://127.0.0.1:0", config) as manager:
                await write(manager, "p", 4, records_of(3000))
                assert files_in(tmp_path)
                assert open_files(tmp_path)
                match how:
                    case "cancelled":
                        scope.cancel()
                        await trio.lowlevel.checkpoint()
                    case "by an error":
                        raise ZeroDivisionError
                    case "by Ctrl-C":
                        raise KeyboardInterrupt
                    case "cancelled while it writes":
                        scope.cancel()
                        await write(manager, "q", 4, records_of(3000))
        except (ZeroDivisionError, KeyboardInterrupt):
            pass
    assert scope.cancelled_caught == how.startswith("cancelled")
    assert os.listdir(tmp_path) == []
    assert open_files(tmp_path) == []


@trio_test
async def test_a_folder_that_cannot_be_locked_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, *rest: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    folder = ShuffleFolder(str(tmp_path), "netstack-shuffle-1")
    monkeypatch.setattr("netstack.exchange.stored.files.os.open", full)
    with pytest.raises(DiskFull, match="No space left"):
        folder.make()
    assert os.listdir(tmp_path) == []


@trio_test
async def test_a_cancelled_writer_leaves_nothing(tmp_path: Path) -> None:
    async with two_ends(settings(tmp_path, sort_buffer_bytes=64 * 1024)) as (producer, _):
        partition = producer.create_partition("p", subpartitions=4, kind=BLOCKING)
        writer = RecordWriter(partition)
        with trio.move_on_after(0.05):
            while True:
                await writer.emit(b"x" * 5000)
                await trio.lowlevel.checkpoint()
        producer.release_partition("p")
        await no_files(tmp_path)
