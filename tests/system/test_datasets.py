"""What a job leaves under a name: read by others, however often, until it is released; on real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import batch_jobs
import pytest
import trio
from kept_files import kept_files
from process_tree import slots_of
from system.cluster_rig import ClusterRig
from trio.testing import trio_test

from netstack.base.errors import RequestRefused
from netstack.cluster.jobmanager.children import TaskManagerSettings, open_local_taskmanagers
from netstack.cluster.jobmanager.client import JobClient, open_job_client
from netstack.cluster.jobmanager.config import JobManagerConfig
from netstack.cluster.jobmanager.local import open_local_cluster
from netstack.cluster.jobmanager.service import open_jobmanager
from netstack.schedule.graph.stream_builder import StreamEnvironment

pytestmark = pytest.mark.slow
PATIENCE_S = 120.0


async def run(client: JobClient, job: StreamEnvironment) -> object:
    return (await client.wait(await client.submit(job))).results["result"]


async def netstack_datasets(*words: str) -> str:
    command = [sys.executable, "-m", "netstack.cli", "datasets", *words]
    return (await trio.run_process(command, capture_stdout=True)).stdout.decode()


async def wait_files(folder: Path, count: int) -> None:
    """So many partitions are there; TaskManagers drop others in their own time."""
    while len(kept_files(folder, "*.index")) != count:  # noqa: ASYNC110
        await trio.sleep(0.02)


@pytest.mark.whole
@trio_test
async def test_another_job_reads_it_until_it_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with trio.fail_after(PATIENCE_S):
        async with open_local_cluster(taskmanagers=2, slots=2) as cluster:
            client = cluster.client
            with pytest.raises(RequestRefused, match="no dataset 'numbers'"):
                await client.submit(batch_jobs.reads("numbers"))
            await run(client, batch_jobs.keeps("numbers"))
            await wait_files(tmp_path, 3)  # a partition for each of the subtasks that wrote it
            (actual,) = await client.datasets()
            assert (actual["dataset_id"], actual["partitions"], actual["missing"]) == ("numbers", 3, [])
            assert actual["bytes"] == sum(4 + len(batch_jobs.packed(number)) for number in range(batch_jobs.NUMBERS))
            volume = actual["bytes"] // 5 + 1
            job_id = await client.submit(batch_jobs.reads_adaptively("numbers", volume))
            assert (await client.wait(job_id)).results["result"] == {0: batch_jobs.expected()}
            assert (await client.job(job_id))["vertices"][0]["parallelism"] == 5
            for parallelism in (1, 4, 9):  # fewer and more than its pieces, and again
                assert await run(client, batch_jobs.reads("numbers", parallelism)) == {0: batch_jobs.expected()}
            await run(client, batch_jobs.keeps("numbers", count=10))
            await wait_files(tmp_path, 3)  # those of the older one are gone
            ones = [[digit, digit] for digit in range(10)]
            assert await run(client, batch_jobs.reads("numbers")) == {0: ones}
            await client.release_dataset("numbers")
            await wait_files(tmp_path, 0)
            with pytest.raises(RequestRefused, match="no dataset"):
                await client.release_dataset("numbers")


@pytest.mark.whole
def test_a_taskmanager_that_is_told_to_stop_leaves_no_file(tmp_path: Path) -> None:
    """SIGTERM while it keeps a dataset: its shuffle folder goes with it."""
    folder = tmp_path / "shuffle"
    folder.mkdir()
    with ClusterRig(tmp_path / "cluster") as rig:
        rig.start_taskmanagers(4, flags=("--shuffle-directory", str(folder)))
        rig.ask(lambda client: run(client, batch_jobs.keeps("numbers")))
        assert len(kept_files(folder, "*.index")) >= 3
        (taskmanager,) = rig.taskmanagers
        taskmanager.terminate()
        assert taskmanager.wait(PATIENCE_S) == 0, rig.log()
        assert list(folder.iterdir()) == []


@pytest.mark.whole
def test_a_dataset_outlives_the_slots_that_wrote_it(tmp_path: Path) -> None:
    """All slots of the TaskManager are killed; it serves the dataset all the same, and removes it when it is told."""
    folder = tmp_path / "shuffle"
    folder.mkdir()
    with ClusterRig(tmp_path / "cluster") as rig:
        rig.start_taskmanagers(4, flags=("--shuffle-directory", str(folder)))
        rig.ask(lambda client: run(client, batch_jobs.keeps("numbers")))
        slots = slots_of(rig.taskmanagers[0].pid)
        for pid in slots:
            with contextlib.suppress(ProcessLookupError):  # it has ended since it was listed
                os.kill(pid, signal.SIGKILL)
        rig.wait_until(lambda: not slots & slots_of(rig.taskmanagers[0].pid))
        actual = rig.ask(lambda client: run(client, batch_jobs.reads("numbers")))
        assert actual == {0: batch_jobs.expected()}
        rig.ask(lambda client: client.release_dataset("numbers"))
        rig.wait_until(lambda: not kept_files(folder))


@pytest.mark.whole
@trio_test
async def test_it_outlives_the_jobmanager_and_dies_with_its_taskmanager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next JobManager knows it, and its TaskManagers say that they have it; then one of these is killed."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = str(tmp_path / "jobs")
    settings = TaskManagerSettings(slots=2, memory_bytes=32 << 20, is_restarting=False)
    with trio.fail_after(PATIENCE_S):
        async with open_jobmanager(JobManagerConfig(listen="tcp://127.0.0.1:0")) as manager:
            address = manager.address
        async with open_local_taskmanagers(address, ["1", "2"], settings):
            config = JobManagerConfig(listen=address, folder=folder)
            async with open_jobmanager(config), open_job_client(address) as client:
                await run(client, batch_jobs.keeps("numbers"))
            config = JobManagerConfig(listen=address, folder=folder, datasets_bytes=30_000)
            async with open_jobmanager(config), open_job_client(address) as client:
                while (await client.datasets())[0]["missing"]:  # noqa: ASYNC110 - they dial again
                    await trio.sleep(0.05)
                assert await run(client, batch_jobs.reads("numbers")) == {0: batch_jobs.expected()}
                # Both would be more than may be: the older one goes.
                await run(client, batch_jobs.keeps("others"))
                assert [each["dataset_id"] for each in await client.datasets()] == ["others"]
                await wait_files(tmp_path, 3)
                (actual,) = await client.datasets()
                pids = {each["address"]: each["pid"] for each in await client.taskmanagers()}
                listed = await netstack_datasets("--jobmanager", address, "--json")
                assert [each["dataset_id"] for each in json.loads(listed)["datasets"]] == ["others"]
                assert "others" in await netstack_datasets("--jobmanager", address)
                os.kill(pids[actual["taskmanagers"][0]], signal.SIGKILL)
                while not (await client.datasets())[0]["missing"]:  # noqa: ASYNC110
                    await trio.sleep(0.05)
                with pytest.raises(RequestRefused, match="cannot be read: 1 of its TaskManagers"):
                    await client.submit(batch_jobs.reads("others"))
                assert "others" not in await netstack_datasets("--jobmanager", address, "--release", "others")
                assert not await client.datasets()
