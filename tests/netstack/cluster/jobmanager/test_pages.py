"""Answers that list the things of everybody: complete at any size, and large data of one hides nothing of others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import msgpack
import pytest
import trio
from click.testing import CliRunner, Result
from hypothesis import given, strategies as st
from jobmanager.scripted_taskmanager import ScriptedTaskManager, jobmanager, taskmanager
from served_pages import ask, pipeline

from netstack.base.errors import ConfigError, RequestRefused
from netstack.cli import cli
from netstack.cluster.control.frames import MAX_FRAME_BYTES
from netstack.cluster.jobmanager.client import JobClient, open_job_client
from netstack.cluster.jobmanager.datasets import DatasetRecord, KeptPartition
from netstack.cluster.jobmanager.peer_budget import PeerBudget
from netstack.cluster.jobmanager.resource_manager.taskmanagers import ConnectedTaskManager
from netstack.cluster.jobmanager.service import JobManager
from netstack.cluster.jobmanager.views import bounds
from netstack.cluster.jobmanager.views.bounds import fair_part, fit_job, packed_bytes
from netstack.cluster.jobmanager.views.cluster_snapshots import MAX_PARTS, MAX_SNAPSHOT_BYTES
from netstack.cluster.jobmanager.views.documents import taskmanagers_document
from netstack.cluster.web.serve import open_web
from netstack.schedule.descriptors.shuffle import TaskManagerLocation
from netstack.schedule.graph import job_file
from netstack.schedule.graph.stream_builder import StreamEnvironment

POSITIONS = st.tuples(st.floats(0, 9), st.text(max_size=2))


@given(
    st.dictionaries(POSITIONS, st.integers(0, 5000), max_size=30),
    st.dictionaries(POSITIONS, st.integers(0, 5000), max_size=30),
    st.data(),
)
def test_what_is_there_all_the_time_is_in_exactly_one_page(
    first: dict[Any, int], second: dict[Any, int], data: st.DataObject
) -> None:
    """Law: of two lists that change between the pages."""
    staying = {("first", each) for each in first} | {("second", each) for each in second}
    found: list[tuple[str, Any]] = []
    answer: dict[str, Any] = {"after": None}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(bounds, "PAGE_BYTES", 6000)
        while "after" in answer:
            lists = {
                name: [
                    (position, partial(lambda position, size: {"is": [*position], "x": "x" * size}, position, size))
                    for position, size in entries.items()
                ]
                for name, entries in (("first", first), ("second", second))
            }
            answer = bounds.page(answer, lists)
            assert packed_bytes(answer) < 6000 + 5000 + 500
            found += [(name, tuple(each["is"])) for name in ("first", "second") for each in answer[name]]
            if "after" in answer:
                for name, entries in (("first", first), ("second", second)):
                    if entries and data.draw(st.booleans()):
                        del entries[gone := data.draw(st.sampled_from(sorted(entries)))]
                        staying.discard((name, gone))
                    entries.setdefault(data.draw(POSITIONS), 100)
    assert found == sorted(set(found)), "none twice, and in order"
    assert staying <= set(found)


@given(st.lists(st.integers(0, 100)), st.integers(0, 500))
def test_only_the_largest_give_way(sizes: list[int], most: int) -> None:
    part = fair_part(sizes, most)
    assert sum(min(size, part) for size in sizes) <= most
    if any(size > part for size in sizes):
        assert sum(min(size, part + 1) for size in sizes) > most, "it is the largest such part"


def test_a_position_that_is_none_is_refused() -> None:
    for wrong in ("x", [1.0, "x"], ["other", 1.0, "x"], ["jobs", 1, "x"], ["jobs", 1.0, "x", 2], {}):
        with pytest.raises(ConfigError, match="is not where a page ended"):
            bounds.page({"after": wrong}, {"jobs": ()})


def wide(vertices: int, parallelism: int) -> StreamEnvironment:
    job = StreamEnvironment("x" * 256, parallelism=parallelism)
    stream = job.source("jobs:read", name="source")
    for number in range(vertices - 2):
        stream = stream.rebalance().map(
            "jobs:change", name=f"{number}".ljust(250 if vertices < 1000 else 0, "\U0001f4a5")
        )
    stream.rebalance().sink("jobs:keep", name="sink")
    return job


def add_taskmanagers(manager: JobManager, like: ConnectedTaskManager, count: int) -> None:
    """Registers TaskManagers with long addresses, which need no sockets."""
    for number in range(count):
        address = f"tcp://{number}.{'x' * 990}:1"
        location = TaskManagerLocation(f"{number}.other", address, "x" * 1000)
        manager.taskmanagers._connected[location.name] = ConnectedTaskManager(
            location, address, like.link, 1, {}, like.registered_at + 1 + number, 0.0, PeerBudget(location.name)
        )


@asynccontextmanager
async def crowd() -> AsyncIterator[tuple[JobManager, JobClient, ScriptedTaskManager, str]]:
    """A user with a running job, beside a third party with much of everything."""
    async with (
        jobmanager(listen="tcp://127.0.0.1:0") as manager,
        taskmanager(manager, name="honest") as honest,
        open_job_client(manager.address) as user,
    ):
        mine = await user.submit(pipeline())
        await honest.until(lambda: len(honest.tasks) == 4)
        for number in range(12):  # many small jobs would be as good
            await user.submit(wide(*((4, 5_000) if number < 4 else (300, 30))))
        for number in range(3000):
            partitions = tuple(KeptPartition("p", f"tcp://{each}.{'x' * 990}:1", 1, 1) for each in range(2))
            dataset = DatasetRecord(f"{number}".ljust(256, "x"), mine, "x" * 256, float(number), "str", partitions)
            manager.datasets._datasets[dataset.dataset_id] = dataset
            manager.datasets._at[dataset.key] = set()
        add_taskmanagers(manager, next(iter(manager.taskmanagers.all())), 3000)
        yield manager, user, honest, mine


@pytest.mark.slow
async def test_all_is_listed_however_much_others_have(monkeypatch: pytest.MonkeyPatch) -> None:
    async with crowd() as (manager, user, honest, mine):
        async with open_job_client(manager.address) as second:
            for each in (user, second):
                actual = await each.taskmanagers()
                assert actual == taskmanagers_document(manager.parts)
                assert len(msgpack.packb(actual)) > MAX_FRAME_BYTES, "it would have been refused"
                datasets = await each.datasets()
                assert len(msgpack.packb(datasets)) > MAX_FRAME_BYTES, "it would have been refused"
                assert [each["created_at"] for each in datasets] == [*map(float, range(3000))]
                assert len(await each.jobs()) == 13
        snapshot = await user.look()
        assert [each["name"] for each in snapshot["taskmanagers"]] == [each["name"] for each in actual]
        assert {*snapshot} == {*manager.snapshots.snapshot()}
        jobs = {each["job_id"]: each for each in snapshot["jobs"]}
        assert jobs[mine] == msgpack.unpackb(msgpack.packb(manager.snapshots.drawn(manager.dispatcher.records[mine])))
        assert "left_out" not in jobs[mine]
        assert packed_bytes({"jobs": snapshot["jobs"]}) < MAX_SNAPSHOT_BYTES
        listed = [sum(len(vertex["subtasks"]) for vertex in each["vertices"]) for each in snapshot["jobs"]]
        assert sum(listed) < MAX_PARTS < 4 * 20_000, "subtasks that another user asked for were left out"
        for job in jobs.values():
            counts = [len(each["subtasks"]) + sum(each.get("left_out", {}).values()) for each in job["vertices"]]
            assert counts == [each["parallelism"] for each in job["vertices"]]
            assert counts or job["left_out"] == ["vertices"]
        with pytest.raises(RequestRefused, match=r"existing datasets: .* and 2,984 more"):
            await user.release_dataset("none")
        async with open_web(manager, "127.0.0.1:0") as url:
            status, answer = await ask(f"{url}/taskmanagers")
            assert (status, len(answer["taskmanagers"])) == (200, 3001)
            status, answer = await ask(f"{url}/jobs/overview")
            assert (status, len(answer["jobs"])) == (200, 13)
            for job_id in (mine, *[*jobs][4:6]):
                assert (await ask(f"{url}/jobs/{job_id}"))[0] == (await ask(f"{url}/netstack/jobs/{job_id}"))[0] == 200
            status, answer = await ask(f"{url}/netstack/history")
            assert [each["job_id"] for each in answer[-1]["snapshot"]["jobs"]] == [*jobs]
        for words, count in (("jobs", 13), ("datasets", 3000)):
            result = await invoke([words, "--jobmanager", manager.address, "--json"])
            assert len(msgpack.packb(result.stdout)) > count * 100
            assert (result.exit_code, result.stderr) == (0, "")
        honest.finish()
        assert (await user.wait(mine)).state == "finished"


async def invoke(words: list[str]) -> Result:
    return await trio.to_thread.run_sync(CliRunner().invoke, cli, words)


def test_a_job_of_any_size_fits() -> None:
    text = {"text": "x" * 1000}
    parts: dict[str, Any] = {
        name: [text] * 1000
        for name in ("chaining", "log", "networks", "checkpoints", "failures", "blocked", "not_restored")
    }
    parts |= {"edges": [{"channels": [["x"] * 10] * 1000}] * 50, "results": {"x": "y" * 5_000_000}}
    parts |= {"vertices": [{"subtasks": [{"state": "running"}] * 500}] * 1000, "failures_left_out": 0}
    parts |= {"checkpoints_in_progress": [], "bottleneck": None, "reason": "x" * 500_000, "waits_for": ""}
    sizes = []
    for most in (1 << 30, 20 << 20, 8 << 20, 1 << 20, 1 << 16):
        document = dict(parts)
        assert fit_job(document, most) == packed_bytes(parts)
        sizes.append(packed_bytes(document))
        assert sizes[-1] <= most
        assert ("left_out" in document) is (sizes[-1] < packed_bytes(parts))
    assert all(one >= other for one, other in pairwise(sizes))
    assert sizes[0] == packed_bytes(parts) > sizes[-1]


@pytest.mark.parametrize(
    ("vertices", "parallelism", "text"),
    [(5000, 1, "5,000 operators; the maximum is 4,096"), (300, 1000, "300,000 subtasks; the maximum is 262,144")],
)
async def test_a_job_that_would_occupy_the_jobmanager_is_refused(vertices: int, parallelism: int, text: str) -> None:
    """1,000,000 subtasks blocked the JobManager for so long that it lost its TaskManagers."""
    job = wide(vertices, parallelism)
    async with (  # a busy machine takes more than the usual 10 s for it
        jobmanager(heartbeat_timeout_s=1000.0) as manager,
        open_job_client(manager.address, heartbeat_timeout_s=1000.0) as user,
    ):
        with pytest.raises(RequestRefused, match=text):
            await user.submit(job)
        assert await user.jobs() == []
    job_file.check_size(job_file.MAX_OPERATORS, [job_file.MAX_SUBTASKS])
