"""Fifty cuts in one transfer between two processes: every record once, in order, over the same gate."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import trio
from cutting import cutting_proxy

from netstack.config import NetworkConfig
from netstack.ids import ChannelDescriptor
from netstack.runtime.network_environment import open_task_manager
from netstack.runtime.record_reader import ArrayReader

pytestmark = pytest.mark.slow

CUTS = 50
CONFIG = NetworkConfig(memory_bytes=8 * 1024 * 1024, resume_grace_s=20.0)
CHANNELS = 3

PRODUCER = """
import itertools, sys
import numpy as np, trio
from netstack import NetworkConfig, RecordWriter, open_task_manager

async def main():
    config = NetworkConfig(memory_bytes=8 * 1024 * 1024, resume_grace_s=20)
    async with open_task_manager("tcp://127.0.0.1:0", config) as manager:
        writer = RecordWriter(manager.create_partition("p", subpartitions=3), format="int64", buffer_timeout_s=0.005)
        print(manager.address, flush=True)
        line = trio.lowlevel.FdStream(0)
        stop = trio.Event()

        async def hear():
            await line.receive_some()
            stop.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hear)
            value = 0
            while not stop.is_set():
                await writer.emit_batch(np.arange(value, value + 30_000))
                value += 30_000
        await writer.finish()
        await writer.wait_consumed()
        print(value, flush=True)

trio.run(main)
"""


@pytest.fixture
def producer() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A process that produces until its input ends, and its address."""
    with subprocess.Popen([sys.executable, "-c", PRODUCER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().decode().strip()
        finally:
            process.kill()


async def test_fifty_cuts_lose_nothing_and_repeat_nothing(producer: tuple[subprocess.Popen[bytes], str]) -> None:
    process, target = producer
    assert process.stdin is not None
    assert process.stdout is not None
    received: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(CHANNELS)]
    async with (
        cutting_proxy(target) as (address, cut),
        open_task_manager("tcp://127.0.0.1:0", CONFIG) as manager,
    ):
        gate = await manager.open_gate([ChannelDescriptor(address, "p", index) for index in range(CHANNELS)])
        reader = ArrayReader(gate, "<i8")
        done = cuts = 0
        async for array in reader:
            received[reader.channel_index].append(array.copy())
            done += len(array)
            if cuts < CUTS and done > 20_000 * (cuts + 1):
                (dialled,) = manager.connections()
                assert dialled.connection.session is not None
                if dialled.connection.session.resumed == cuts:  # the last one is over
                    cuts += cut()
                    if cuts == CUTS:
                        process.stdin.close()
    assert cuts == CUTS
    produced = int(await trio.to_thread.run_sync(process.stdout.readline))
    assert await trio.to_thread.run_sync(process.wait) == 0
    whole = [np.concatenate(arrays) for arrays in received]
    assert all((np.diff(each) > 0).all() for each in whole)  # in order, none twice
    assert (np.sort(np.concatenate(whole)) == np.arange(produced)).all()
