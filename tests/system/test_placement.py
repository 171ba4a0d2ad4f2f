"""What runs is what was planned: jobs on real TaskManagers are where `netstack plan` has put them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from netstack.cluster.jobmanager.local import LocalCluster, open_local_cluster
from netstack.examples import word_count
from netstack.schedule import LoadBalanceMode, StreamEnvironment, StreamGraph, make_plan

pytestmark = pytest.mark.slow


async def places(cluster: LocalCluster, job_id: str) -> dict[tuple[str, int], str]:
    """The TaskManager of every subtask."""
    with trio.fail_after(120):
        while True:
            actual = await cluster.client.job(job_id)
            tasks = {
                (vertex["name"], task["subtask"]): task for vertex in actual["vertices"] for task in vertex["subtasks"]
            }
            if all(task["taskmanager"] for task in tasks.values()):
                return {key: task["taskmanager"] for key, task in tasks.items()}
            await trio.sleep(0.02)


def together(where: dict[tuple[str, int], Any]) -> set[frozenset[tuple[str, int]]]:
    """Who runs in one place, whatever it is called."""
    actual: dict[Any, set[tuple[str, int]]] = {}
    for key, place in where.items():
        actual.setdefault(place, set()).add(key)
    return {frozenset(keys) for keys in actual.values()}


def planned(graph: StreamGraph, taskmanagers: int, slots: int, mode: LoadBalanceMode) -> dict[tuple[str, int], int]:
    plan = make_plan(graph, taskmanagers=taskmanagers, slots=slots, mode=mode)
    assert plan.placement is not None
    return {
        (vertex.name, subtask): int(place)
        for number, vertex in enumerate(plan.job.vertices)
        for subtask, place in enumerate(plan.placement.taskmanagers_of(number))
    }


@pytest.mark.whole
@pytest.mark.parametrize(
    ("mode", "tasks"),
    [(LoadBalanceMode.TASKS, [3, 3, 3]), pytest.param(LoadBalanceMode.NONE, [2, 3, 4], marks=pytest.mark.long)],
)
def test_six_and_three_on_three_taskmanagers(mode: LoadBalanceMode, tasks: list[int]) -> None:
    job = StreamEnvironment("A6 B3")
    numbers = job.source("jobworld:Numbers", name="A", parameters={"count": 10**9, "per_s": 100.0}).set_parallelism(6)
    numbers.key_by("jobworld:key_of").sink("jobworld:Count", name="B").set_parallelism(3)
    graph = job.stream_graph()

    async def main() -> None:
        async with open_local_cluster(taskmanagers=3, slots=2, load_balance=mode) as cluster:
            job_id = await cluster.client.submit(graph)
            where = await places(cluster, job_id)
            assert sorted(Counter(where.values()).values()) == tasks
            assert together(where) == together(planned(graph, 3, 2, mode))
            await cluster.client.cancel(job_id)

    trio.run(main)


def test_words_are_counted_over_four_taskmanagers() -> None:
    readme = Path(__file__).parents[2] / "README.md"
    graph = word_count.job(str(readme), parallelism=4, most=10**6).stream_graph()

    async def main() -> None:
        async with open_local_cluster(taskmanagers=4, slots=1) as cluster:
            job_id = await cluster.client.submit(graph)
            where = await places(cluster, job_id)
            end = await cluster.wait(job_id)
            assert len(set(where.values())) == 4
            assert together(where) == together(planned(graph, 4, 1, LoadBalanceMode.NONE))
            assert dict(end.results["top"][0]) == Counter(word_count.split(readme.read_text("utf-8")))

    trio.run(main)
