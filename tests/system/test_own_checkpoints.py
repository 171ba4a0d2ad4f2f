"""A program takes its own checkpoints.

When its worker is killed, the sources and the sink get an error, and after the restart each record counts once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from netstack import ChannelDescriptor, CheckpointBarrier, NetworkEnvironment, RecordReader, RecordWriter, open_network
from netstack.base.errors import ConnectionLost, ConsumerLost

pytestmark = pytest.mark.slow

RECORDS, EVERY, KEYS = 30_000, 1000, 7

WORKER = """
import json, os, sys
from pathlib import Path
from netstack import ChannelDescriptor, CheckpointBarrier, blocking

folder, start, address = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
saved = folder / f"worker-{start}"
counts = json.loads(saved.read_text()) if start >= 0 else {}
with blocking.open_network("tcp://127.0.0.1:0") as network:
    partition = network.create_partition("counts", subpartitions=1)
    print(network.address, flush=True)
    writer = blocking.RecordWriter(partition, format="msgpack", buffer_timeout_s=0.01)
    gate = network.open_gate([ChannelDescriptor(address, f"source-{index}") for index in (0, 1)], timeout_s=20)
    for element in blocking.RecordReader(gate, format="int64", aligns_barriers=True):
        if isinstance(element, CheckpointBarrier):
            (folder / f"worker-{element.checkpoint_id}").write_text(json.dumps(counts))
            writer.broadcast_event(element)
        else:
            counts[str(element)] = count = counts.get(str(element), 0) + 1
            writer.emit([element, count])
    writer.finish()
    writer.wait_consumed(timeout_s=20)
"""


class Run:
    """Two sources and a sink around a worker in a process of its own, from a checkpoint on."""

    def __init__(self, folder: Path, start: int, kill_at: int | None) -> None:
        self.folder = folder
        self.start = start
        self.kill_at = kill_at
        self.complete = start
        self.ends: Counter[str] = Counter()

    async def play(self) -> None:
        async with open_network("tcp://127.0.0.1:0") as network, trio.open_nursery() as nursery:
            for index in (0, 1):
                writer = RecordWriter(
                    network.create_partition(f"source-{index}", subpartitions=1), format="int64", buffer_timeout_s=0.01
                )
                nursery.start_soon(self.produce, writer, index)
            command = [sys.executable, "-c", WORKER, str(self.folder), str(self.start), network.address]
            worker = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
            assert worker.stdout is not None
            await self.consume(network, bytes(await worker.stdout.receive_some()).decode().strip(), worker)
            await worker.wait()
            await worker.stdout.aclose()

    async def produce(self, writer: RecordWriter[int], index: int) -> None:
        try:
            for number in range((self.start + 1) * EVERY, RECORDS):
                await writer.emit((number + index) % KEYS)
                if number % EVERY == EVERY - 1:
                    await writer.broadcast_event(CheckpointBarrier(number // EVERY))
            await writer.finish()
            await writer.wait_consumed()
        except ConsumerLost:
            self.ends["source"] += 1

    async def consume(self, network: NetworkEnvironment, address: str, worker: trio.Process) -> None:
        saved = self.folder / f"sink-{self.start}"
        seen = json.loads(saved.read_text()) if self.start >= 0 else []
        gate = await network.open_gate([ChannelDescriptor(address, "counts")])
        try:
            async for element in RecordReader[Any](gate, format="msgpack", aligns_barriers=True):
                if not isinstance(element, CheckpointBarrier):
                    seen.append(element)
                    continue
                self.complete = element.checkpoint_id
                (self.folder / f"sink-{self.complete}").write_text(json.dumps(seen))
                if self.complete == self.kill_at:
                    worker.kill()
        except ConnectionLost:
            self.ends["sink"] += 1


@pytest.mark.whole
def test_a_killed_worker_costs_no_record(tmp_path: Path) -> None:
    start = -1
    for kill_at in (4, 11, None):
        run = Run(tmp_path, start, kill_at)

        async def play(run: Run = run) -> None:
            with trio.fail_after(120):
                await run.play()

        trio.run(play)
        assert run.ends == ({"source": 2, "sink": 1} if kill_at is not None else {})
        assert run.complete > start
        start = run.complete
    assert start == RECORDS // EVERY - 1
    counts: dict[int, list[int]] = {}
    for key, count in json.loads((tmp_path / f"sink-{start}").read_text()):
        counts.setdefault(key, []).append(count)
    expected = Counter((number + index) % KEYS for index in (0, 1) for number in range(RECORDS))
    assert counts == {key: [*range(1, count + 1)] for key, count in expected.items()}
