"""Two real processes over real TCP: records arrive, and a killed producer is a lost connection, clearly told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import trio

from netstack.base.config import NetworkConfig
from netstack.base.errors import ConnectionLost
from netstack.base.ids import ChannelDescriptor
from netstack.network.environment import open_network
from netstack.network.reader import ArrayReader, RecordReader

pytestmark = pytest.mark.slow

CONFIG = NetworkConfig(memory_bytes=4 * 1024 * 1024)

PRODUCER = """
import sys
import numpy as np, trio
from netstack import NetworkConfig, RecordWriter, open_network

async def main(endless):
    config = NetworkConfig(memory_bytes=4 * 1024 * 1024)
    async with open_network("tcp://127.0.0.1:0", config) as manager:
        writer = RecordWriter(manager.create_partition("p", subpartitions=2), format="int64", buffer_timeout_s=0.01)
        print(manager.address, flush=True)
        value = 0
        while endless or value < 50_000:
            await writer.emit_batch(np.arange(value, value + 5000))
            value += 5000
        await writer.finish()
        await writer.wait_consumed()

trio.run(main, sys.argv[1] == "endless")
"""


@contextmanager
def producer(mode: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of its own, and the address it listens at."""
    with subprocess.Popen(
        [sys.executable, "-c", PRODUCER, mode], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address.startswith("tcp://127.0.0.1:"), process.communicate()[1]
            yield process, address
        finally:
            process.kill()


def in_time(test: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    async def main() -> Any:
        with trio.fail_after(120):
            return await test(*arguments)

    return trio.run(main)


def both(address: str) -> list[ChannelDescriptor]:
    return [ChannelDescriptor(address, "p", index) for index in (0, 1)]


def test_records_arrive_from_another_process() -> None:
    async def consume(address: str) -> list[list[int]]:
        received: list[list[int]] = [[], []]
        async with open_network("tcp://127.0.0.1:0", CONFIG) as manager:
            gate = await manager.open_gate(both(address))
            reader = ArrayReader(gate, "<i8")
            async for array in reader:
                received[reader.channel_index] += array.tolist()
            gate.close()
        assert manager.statistics().pool.lent_segments == 0
        return received

    with producer("finite") as (process, address):
        received = in_time(consume, address)
        assert process.wait(120) == 0, process.communicate()[1]
    expected = np.arange(50_000)
    assert received == [expected[0::2].tolist(), expected[1::2].tolist()]


def test_a_producer_that_is_killed_is_a_lost_connection() -> None:
    descriptors = len(os.listdir("/proc/self/fd"))

    async def consume(process: subprocess.Popen[str], address: str) -> None:
        async with open_network("tcp://127.0.0.1:0", CONFIG) as manager:
            gate = await manager.open_gate(both(address))
            reader = RecordReader(gate, format="int64")
            following = [0, 1]
            count = 0
            errors: list[ConnectionLost] = []
            while len(errors) < 2:
                try:
                    value = await reader.__anext__()
                except ConnectionLost as error:
                    errors.append(error)
                    continue
                assert value == following[reader.channel_index]
                following[reader.channel_index] += 2
                count += 1
                if count == 20_000:
                    process.send_signal(signal.SIGKILL)
            for error in errors:
                text = str(error)
                assert address in text  # which producer
                assert "'p' subpartition" in text  # which channel
                assert any(
                    message in text.lower() for message in ("ended the stream", "reset", "broken pipe")
                )  # what happened
            assert {int(str(error).split("subpartition ")[1].split()[0]) for error in errors} == {0, 1}
            gate.close()
            await trio.to_thread.run_sync(process.wait)  # until then its listener may still take a connection
            # The address is not remembered as a live connection.
            with pytest.raises(ConnectionLost, match="cannot reach"):
                await manager.open_gate(both(address))
        assert manager.statistics().pool.lent_segments == 0

    with producer("endless") as (process, address):
        in_time(consume, process, address)
        assert process.wait(120) == -signal.SIGKILL
    assert len(os.listdir("/proc/self/fd")) == descriptors
