"""Jobs in real processes over real TCP: what one kill costs, and whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobworld
import pytest
import trio

from netstack import StreamEnvironment
from netstack.cluster.jobmanager.local import LocalCluster, open_local_cluster

pytestmark = pytest.mark.slow

COUNT = 6_000


async def until(cluster: LocalCluster, job_id: str, condition: Any) -> dict[str, Any]:
    with trio.fail_after(120):
        while not condition(actual := await cluster.client.job(job_id)):  # noqa: ASYNC110  # another process
            await trio.sleep(0.02)
    return actual


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
            job_id = await cluster.client.submit(jobworld.two_pipelines())
            actual = await until(cluster, job_id, lambda actual: actual["checkpoints_completed"] >= 2)
            places = {
                operator: task["taskmanager"]
                for vertex in actual["vertices"]
                for operator in vertex["operators"]
                for task in vertex["subtasks"]
            }
            assert places["source-a"] == places["count-a"] != places["source-b"] == places["count-b"]
            victims = [each for each in await cluster.client.taskmanagers() if each["name"] == places["source-a"]]
            (name,) = [name for name, pid in cluster.taskmanagers.pids.items() if pid == victims[0]["pid"]]
            cluster.taskmanagers.kill(name)
            actual = await until(cluster, job_id, lambda actual: attempts(actual, "-a") == {1})
            assert attempts(actual, "-b") == {0}
            end = await cluster.wait(job_id)
            assert end.state == "finished"
            for pipeline in "ab":
                assert counted(end.results, f"count-{pipeline}") == jobworld.expected(COUNT)
            (other,) = end.results["count-b"].values()
            assert other["attempt"] == 0
            (killed,) = end.results["count-a"].values()
            assert killed["attempt"] == 1
            assert (await cluster.client.job(job_id))["restarts"] == 1

    trio.run(main)


@pytest.mark.whole
def test_a_savepoint_starts_other_chains_and_another_parallelism(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_local_cluster(taskmanagers=2, slots=2, folder=str(tmp_path)) as cluster:
            first = await cluster.client.submit(jobworld.pipelines("a", parallelism=1))
            await until(cluster, first, lambda actual: actual["checkpoints_completed"] >= 2)
            kept = await cluster.client.savepoint(first)
            assert (await cluster.client.job(first))["state"] == "running"
            stopped = await cluster.client.savepoint(first, stop=True)
            actual = await cluster.client.job(first)
            assert actual["state"] == "finished"
            assert len(actual["vertices"]) == 2
            unfinished = counted(actual["results"], "count-a") if actual["results"] else []
            assert unfinished != jobworld.expected(COUNT), "it was stopped in the middle"
            for savepoint, parallelism in ((stopped["path"], 3), (kept["path"], 2)):
                job = jobworld.pipelines("a", parallelism=parallelism, is_chained=False)
                again = await cluster.client.submit(job, from_savepoint=savepoint)
                end = await cluster.wait(again)
                assert end.state == "finished"
                assert counted(end.results, "count-a") == jobworld.expected(COUNT)
                vertices = (await cluster.client.job(again))["vertices"]
                assert [vertex["parallelism"] for vertex in vertices] == [1, 1, parallelism]

    trio.run(main)


@pytest.mark.whole
def test_a_cancelled_job_leaves_nothing_running_and_the_next_one_gets_its_slots(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_local_cluster(taskmanagers=1, slots=2) as cluster:
            job_id = await cluster.client.submit(jobworld.pipelines("a", "b", count=10**6))
            await until(cluster, job_id, lambda actual: actual["tasks"].get("running") == 4)
            await cluster.client.cancel(job_id)
            assert (await cluster.client.job(job_id))["state"] == "canceled"
            (taskmanager,) = await cluster.client.taskmanagers()
            assert (taskmanager["free_slots"], taskmanager["jobs"]) == (2, {})
            end = await cluster.wait(await cluster.client.submit(jobworld.pipelines("a", count=200)))
            assert counted(end.results, "count-a") == jobworld.expected(200)

    trio.run(main)


@pytest.mark.whole
def test_a_job_meets_no_process_that_the_job_before_it_leaves(tmp_path: Path) -> None:
    """The narrow job's slot gets a new process while the wide one begins in it and beside it; nothing may fail of that:
    these jobs restart after nothing."""

    def job(parallelism: int) -> StreamEnvironment:
        made = StreamEnvironment("one after the other", parallelism=parallelism, max_parallelism=128)
        numbers = made.source("jobworld:Numbers", name="numbers", parameters={"count": 200, "per_s": 1e5})
        numbers.key_by("jobworld:key_of").sink("jobworld:Count", name="count")
        return made

    async def main() -> None:
        async with open_local_cluster(taskmanagers=1, slots=4, folder=str(tmp_path)) as cluster:
            for _ in range(10):
                await cluster.wait(await cluster.client.submit(job(1)))
                end = await cluster.wait(await cluster.client.submit(job(4)))
                assert counted(end.results, "count") == jobworld.expected(800)

    trio.run(main)
