"""1 GiB through TaskManagers with 64 MiB of network memory: memory stays bounded, nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys, trio
import numpy as np
from netstack import ArrayReader, ChannelDescriptor, NetworkConfig, RecordWriter, ResultPartitionType, open_network

MIB = 1 << 20
folder, kind, total = sys.argv[1], ResultPartitionType[sys.argv[2]], int(sys.argv[3])
SUBPARTITIONS, BATCH = 64, 100_000

def peak():
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("VmHWM")).split()[1]) * 1024

async def main():
    config = NetworkConfig(
        memory_bytes=64 * MIB, shuffle_directory=folder, sort_buffer_bytes=16 * MIB, read_memory_bytes=16 * MIB
    )
    address = "tcp://127.0.0.1:0"
    async with open_network(address, config) as manager, open_network(address, config) as other:
        partition = manager.create_partition("p", subpartitions=SUBPARTITIONS, kind=kind)
        before = peak()

        async def read(found):
            channels = [ChannelDescriptor(manager.address, "p", first, 16) for first in range(0, SUBPARTITIONS, 16)]
            reader = ArrayReader(await other.open_gate(channels), "<u8")
            async for array in reader:
                found[0] += len(array)
                found[1] += int(np.add.reduce(array))
                found[2] ^= int(np.bitwise_xor.reduce(array))
            reader.close()

        async def write():
            rng = np.random.default_rng(1)
            count = total_sum = xor = 0
            async with RecordWriter(partition, format="int64") as writer:
                while count * 8 < total:
                    batch = rng.integers(0, 1 << 40, BATCH).astype("<i8")
                    await writer.emit_batch(batch)
                    count, total_sum = count + BATCH, total_sum + int(batch.sum())
                    xor ^= int(np.bitwise_xor.reduce(batch))
            return [count, total_sum, xor]

        found = [0, 0, 0]
        if kind.is_blocking:
            written = await write()
            await read(found)
        else:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read, found)
                written = await write()
        print(json.dumps({"written": written, "read": found, "growth": peak() - before,
                          "stored": partition.statistics().stored_bytes}))

trio.run(main)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "size"), [("BLOCKING", 1 << 30), ("HYBRID_FULL", 1 << 28), ("HYBRID_SELECTIVE", 1 << 28)]
)
def test_a_shuffle_larger_than_memory(tmp_path: Path, kind: str, size: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), kind, str(size)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["written"] == document["read"]
    # The sort buffer, what is read ahead, both ends' network buffers; not a twentieth of what went through.
    assert document["growth"] < 64 << 20, document
    assert [*tmp_path.iterdir()] == []
