"""What is sent once for many: packages and offloaded parts of descriptors, on real processes."""

from __future__ import annotations

import os
from pathlib import Path

import batch_jobs
import cluster_jobs
import pytest
import trio
from trio.testing import trio_test

from netstack.base.config import MIB
from netstack.cluster.jobmanager.config import JobManagerConfig
from netstack.cluster.jobmanager.local import LocalCluster, open_local_cluster
from netstack.cluster.jobmanager.shipping import zip_package
from netstack.cluster.taskmanager.client import open_client
from netstack.schedule.descriptors.blob_store import OffloadRule

pytestmark = pytest.mark.slow
PATIENCE_S = 120.0


async def blobs(cluster: LocalCluster) -> list[dict[str, int]]:
    """What each TaskManager says of its blobs."""
    actual = []
    for each in cluster.jobmanager.taskmanagers.all():
        async with open_client(each.location.address, secret=cluster.jobmanager.config.secret) as client:
            actual.append((await client.statistics())["blobs"])
    return actual


@pytest.mark.long
@pytest.mark.parametrize(("is_folder_shared", "most_read"), [(False, 1.1), (True, 0.0)])
@trio_test
async def test_eight_taskmanagers_get_a_package_that_is_read_once(
    tmp_path: Path, is_folder_shared: bool, most_read: float
) -> None:
    package = tmp_path / "sent_large"
    package.mkdir()
    (package / "__init__.py").write_text("def same(item):\n    return item\n")
    (package / "data.bin").write_bytes(os.urandom(3 * MIB))
    zipped = zip_package(str(package))
    config = JobManagerConfig(is_folder_shared=is_folder_shared)
    with trio.fail_after(PATIENCE_S):
        async with open_local_cluster(
            taskmanagers=8, slots=1, slots_in="loop", flags=("--allow-submitted",), jobmanager=config
        ) as cluster:
            job = cluster_jobs.with_code_of("sent_large", parallelism=8).stream_graph()
            await cluster.wait(await cluster.client.submit(job, ship=[str(package)]))
            assert cluster.jobmanager.blob_server.read_bytes <= most_read * len(zipped.data)
            assert [each["kept_bytes"] for each in await blobs(cluster)] == [len(zipped.data)] * 8


@pytest.mark.whole
@pytest.mark.parametrize("slots_in", ["loop", "processes"])
@trio_test
async def test_everything_is_offloaded_into_caches_that_are_too_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots_in: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with trio.fail_after(PATIENCE_S):
        async with open_local_cluster(
            taskmanagers=2,
            slots=2,
            slots_in=slots_in,
            flags=("--blob-cache", "300"),
            jobmanager=JobManagerConfig(offload=OffloadRule(0, 0)),
        ) as cluster:
            result = await cluster.wait(await cluster.client.submit(batch_jobs.sums(4).stream_graph()))
            assert result.results["result"] == {0: batch_jobs.expected()}
            for each in await blobs(cluster) if slots_in == "loop" else ():
                assert each["fetched"] > each["evicted"] > 0
                assert each["kept_bytes"] == 0, "the job has left"
