"""Connections that are cut between processes go on: every record once, in order, over the same gate; no restart."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jobworld
import numpy as np
import numpy.typing as npt
import pytest
import trio
from cutting import cutting_proxy
from system.cluster_rig import ClusterRig

from netstack.base.config import NetworkConfig
from netstack.base.ids import ChannelDescriptor
from netstack.cli import main
from netstack.cluster.jobmanager.client import JobClient
from netstack.network.environment import open_network
from netstack.network.reader import ArrayReader

pytestmark = pytest.mark.slow

CUTS = 50
CONFIG = NetworkConfig(memory_bytes=8 * 1024 * 1024, resume_grace_s=20.0)
CHANNELS = 3

PRODUCER = """
import itertools, sys
import numpy as np, trio
from netstack import NetworkConfig, RecordWriter, open_network

async def main():
    config = NetworkConfig(memory_bytes=8 * 1024 * 1024, resume_grace_s=20)
    async with open_network("tcp://127.0.0.1:0", config) as manager:
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


@pytest.mark.whole
async def test_fifty_cuts_lose_nothing_and_repeat_nothing(producer: tuple[subprocess.Popen[bytes], str]) -> None:
    process, target = producer
    assert process.stdin is not None
    assert process.stdout is not None
    received: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(CHANNELS)]
    async with (
        cutting_proxy(target) as (address, cut),
        open_network("tcp://127.0.0.1:0", CONFIG) as manager,
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


@pytest.mark.root
@pytest.mark.long
def test_a_job_whose_taskmanagers_lose_each_other_again_and_again_does_not_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ClusterRig(tmp_path) as rig:
        for name, value in rig.environment().items():
            monkeypatch.setenv(name, value)
        rig.start_taskmanagers(1, 1)
        ports = [each["address"].rpartition(":")[2] for each in rig.ask(JobClient.taskmanagers)]
        assert main(["submit", "jobworld:resumed_pipeline", "--json"]) == 0
        job_id = json.loads(capsys.readouterr().out)["job_id"]
        rig.wait_running(job_id)
        cuts = 0
        while rig.job(job_id)["state"] == "running":
            cuts += sum(kill_connections(port) for port in ports)
            time.sleep(0.1)
        job = rig.job(job_id)
    if not cuts:
        pytest.skip("the kernel does not let connections be ended from outside (CONFIG_INET_DIAG_DESTROY)")
    assert job["state"] == "finished", job["reason"]
    assert {subtask["attempt"] for vertex in job["vertices"] for subtask in vertex["subtasks"]} == {0}
    counted = sorted(row for subtask in job["results"]["count-a"].values() for row in subtask["counts"])
    assert counted == jobworld.expected(12_000)


def kill_connections(port: str) -> int:
    """Has the kernel reset all connections to a port; how many there were."""
    done = subprocess.run(
        ["ss", "-H", "-K", "state", "established", "sport", "=", f":{port}"], capture_output=True, text=True, check=True
    )
    return len(done.stdout.splitlines())
