"""Jobs of the disk: each ends with its result, or is told that it will not run."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import trio

from netstack import ChannelDescriptor, NetworkConfig, RecordReader, RecordWriter, ResultPartitionType, open_network
from netstack.base.errors import ConfigError, NetstackError
from netstack.network.environment import NetworkEnvironment
from netstack.network.kept_partitions import DiskDriver
from netstack.network.waiting.loop_lock import LoopLock


@pytest.mark.parametrize("stuck", ["prepare", "first"])
async def test_jobs_that_a_closing_network_does_not_run_are_told_so(stuck: str) -> None:
    """Whoever waits for the disk holds buffers, which come home when it is told."""
    begun, go_on = threading.Event(), threading.Event()
    reported: list[tuple[int, Any, str]] = []

    def wait() -> None:
        begun.set()
        go_on.wait(120)

    def submit(disk: DiskDriver, number: int) -> None:
        def done(result: int | None, error: NetstackError | None) -> None:
            reported.append((number, result, "" if error is None else str(error)))

        def work() -> int:
            if stuck == "first" and number == 0:
                wait()
            return number

        disk.submit(work, done)

    async with trio.open_nursery() as nursery:
        loop_lock = LoopLock(trio.current_time)
        disk = DiskDriver(nursery, wait if stuck == "prepare" else lambda: None, loop_lock)
        for number in range(20):
            submit(disk, number)
        await trio.to_thread.run_sync(begun.wait, 60)
        nursery.cancel_scope.cancel()
        go_on.set()
    submit(disk, 20)
    assert sorted(number for number, _, _ in reported) == list(range(21))
    assert all(result == number or "has closed" in error for number, result, error in reported)
    assert any(number == 20 and "has closed" in error for number, _, error in reported)


@pytest.mark.parametrize("jobs_before", [0, 1])
async def test_a_network_that_closed_while_the_disk_was_idle_tells_the_next_job_so(jobs_before: int) -> None:
    """No worker was there to be cancelled."""
    reported: list[str] = []
    async with trio.open_nursery() as nursery:
        disk = DiskDriver(nursery, lambda: None, LoopLock(trio.current_time))
        for _ in range(jobs_before):
            disk.submit(lambda: None, lambda _, error: reported.append(str(error)))
    for _ in range(2):
        disk.submit(lambda: None, lambda _, error: reported.append(str(error)))
    assert reported == ["None"] * jobs_before + ["the network environment has closed"] * 2


@pytest.mark.parametrize("kind", [ResultPartitionType.BLOCKING, ResultPartitionType.HYBRID_FULL])
async def test_more_local_readers_than_read_blocks_get_all_records(kind: ResultPartitionType) -> None:
    config = NetworkConfig(memory_bytes=64 << 20, read_memory_bytes=1 << 20)
    async with open_network("memory://few-read-blocks", config) as network:
        writer = RecordWriter[int](network.create_partition("p", subpartitions=12, kind=kind), format="int64")
        for number in range(120):
            await writer.emit(number)
        await writer.finish()
        gate = await network.open_gate([ChannelDescriptor(network.address, "p", index) for index in range(12)])
        with trio.fail_after(60):
            assert sorted([number async for number in RecordReader(gate, format="int64")]) == list(range(120))


async def test_networks_that_share_one_thread_all_make_progress() -> None:
    """What runs in a thread waits for no other thread."""
    limiter = trio.to_thread.current_default_thread_limiter()
    before, limiter.total_tokens = limiter.total_tokens, 1
    config = NetworkConfig(memory_bytes=8 << 20, read_memory_bytes=1 << 20, sort_buffer_bytes=1 << 20)

    async def one(number: int) -> None:
        async with open_network(f"memory://one-thread-{number}", config) as network:
            kind = ResultPartitionType.HYBRID_FULL if number % 2 else ResultPartitionType.BLOCKING
            writer = RecordWriter[bytes](network.create_partition("p", subpartitions=3, kind=kind))
            async with trio.open_nursery() as nursery:
                if kind is ResultPartitionType.HYBRID_FULL:
                    nursery.start_soon(read, network)
                for _ in range(300):
                    await writer.emit(os.urandom(10_000))
                await writer.finish()
                if kind is ResultPartitionType.BLOCKING:
                    nursery.start_soon(read, network)

    async def read(network: NetworkEnvironment) -> None:
        gate = await network.open_gate([ChannelDescriptor(network.address, "p", index) for index in range(3)])
        counts.append(len([None async for _ in RecordReader(gate)]))

    counts: list[int] = []
    try:
        with trio.fail_after(100):
            async with trio.open_nursery() as nursery:
                for number in range(6):
                    nursery.start_soon(one, number)
    finally:
        limiter.total_tokens = before
    assert counts == [300] * 6


async def test_read_memory_for_less_than_two_reads_is_refused_by_name() -> None:
    config = NetworkConfig(memory_bytes=64 << 20, segment_size_bytes=1 << 20, read_memory_bytes=4 << 20)
    async with open_network("memory://little-read-memory", config) as network:
        with pytest.raises(ConfigError, match=r"'p' is BLOCKING: read_memory_bytes=4194304 .* at least 4194368"):
            network.create_partition("p", subpartitions=1, kind=ResultPartitionType.BLOCKING)
        network.create_partition("p", subpartitions=1)
