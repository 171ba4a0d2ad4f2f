"""Jobs in real processes over real TCP: what one kill costs, and whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobworld
import pytest
import trio

from netstack.checkpoint.coordinator import CheckpointSettings
from netstack.jobmanager.local import LocalCluster, open_local_cluster
from netstack.schedule.graph.restart_settings import RestartSettings
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import StreamSettings

pytestmark = pytest.mark.slow

COUNT = 6_000
PER_S = 3_000.0


@pytest.fixture(autouse=True)
def jobworld_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def pipelines(*names: str, parallelism: int = 1, unaligned: bool = False) -> StreamEnvironment:
    """Independent pipelines, each in a slot sharing group of its own."""
    settings = StreamSettings(
        checkpoints=CheckpointSettings(interval_s=0.1, unaligned=unaligned),
        restart=RestartSettings(kind="fixed_delay", delay_s=0.05),
    )
    job = StreamEnvironment("pipelines", parallelism=parallelism, max_parallelism=128, settings=settings)
    for name in names:
        source = job.source("jobworld:Numbers", name=f"source-{name}", parameters={"count": COUNT, "per_s": PER_S})
        keyed = source.slot_sharing_group(name).key_by("jobworld:key_of")
        keyed.sink("jobworld:Count", name=f"count-{name}").slot_sharing_group(name)
    return job


async def until(cluster: LocalCluster, job_id: str, condition: Any) -> dict[str, Any]:
    with trio.fail_after(30):
        while not condition(found := await cluster.client.job(job_id)):  # noqa: ASYNC110  # another process
            await trio.sleep(0.02)
    return found


def attempts(found: dict[str, Any], name: str) -> set[int]:
    return {
        task["attempt"]
        for vertex in found["vertices"]
        if name in " ".join(vertex["operators"])
        for task in vertex["subtasks"]
    }


def counted(results: dict[str, Any], operator: str) -> list[list[int]]:
    return sorted(row for subtask in results[operator].values() for row in subtask["counts"])


def test_a_kill_costs_its_own_region_and_loses_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_local_cluster(taskmanagers=2, slots=1, folder=str(tmp_path)) as cluster:
            job_id = await cluster.client.submit(pipelines("a", "b"))
            found = await until(cluster, job_id, lambda found: found["checkpoints_completed"] >= 2)
            places = {
                operator: task["taskmanager"]
                for vertex in found["vertices"]
                for operator in vertex["operators"]
                for task in vertex["subtasks"]
            }
            assert places["source-a"] == places["count-a"] != places["source-b"] == places["count-b"]
            victims = [each for each in await cluster.client.taskmanagers() if each["name"] == places["source-a"]]
            (name,) = [name for name, pid in cluster.taskmanagers.pids.items() if pid == victims[0]["pid"]]
            cluster.taskmanagers.kill(name)
            found = await until(cluster, job_id, lambda found: attempts(found, "-a") == {1})
            assert attempts(found, "-b") == {0}
            end = await cluster.wait(job_id)
            assert end.state == "finished"
            for pipeline in "ab":
                assert counted(end.results, f"count-{pipeline}") == jobworld.expected(COUNT)
            (other,) = end.results["count-b"].values()
            assert other["attempt"] == 0
            assert other["pause_s"] < 1.0
            (killed,) = end.results["count-a"].values()
            assert killed["attempt"] == 1
            assert (await cluster.client.job(job_id))["restarts"] == 1

    trio.run(main)
