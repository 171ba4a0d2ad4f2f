"""How a job ends: after its last checkpoint, or commit; told when that is stored, once, and never taken back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import trio
from jobmanager.scripted_taskmanager import Client, client, document, jobmanager, taskmanager
from trio.testing import MockClock

from netstack.base.errors import CheckpointStorageError
from netstack.cluster.control.reports import JobProgress
from netstack.cluster.jobmanager.job_master import checkpoints
from netstack.cluster.jobmanager.store import JobStore
from netstack.cluster.jobmanager.stored_files import JobStoreError
from netstack.schedule.checkpoint.finals import NO_CHECKPOINT
from netstack.schedule.checkpoint.instructions import CheckpointSettings
from netstack.schedule.checkpoint.storage import CheckpointStorage
from netstack.schedule.commit_phase import COMMITTED
from netstack.schedule.graph.settings import RestartSettings
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import StreamSettings


def pipeline(**settings: Any) -> StreamEnvironment:
    restart = RestartSettings(kind="fixed_delay", delay_s=0.5, attempts=3)
    job = StreamEnvironment("pipeline", parallelism=2, settings=StreamSettings(restart=restart, **settings))
    job.source("jobs:read", name="source").rebalance().sink("jobs:keep", name="sink")
    return job


def with_checkpoints(folder: Path) -> StreamEnvironment:
    settings = CheckpointSettings(interval_s=None, tolerable_failures=0)
    return pipeline(checkpoints=settings, checkpoint_folder=str(folder))


def full(write: Callable[..., None], times: int, error: type[Exception]) -> Callable[..., None]:
    """A call that finds the disk full a few times."""
    left = [times]

    def tried(*arguments: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise error("no space left on device")
        write(*arguments)

    return tried


def complete_ids(folder: Path) -> list[int]:
    return sorted(int(path.parent.name[4:]) for path in folder.glob("chk-*/manifest.json"))


async def states(user: Client, job_id: str, seen: list[str]) -> None:
    while True:
        document = await user.ask("job", job_id=job_id)
        seen.append(document["state"])
        await trio.sleep(0.05)


async def test_the_last_checkpoint_is_taken_at_once_and_once(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(with_checkpoints(tmp_path))))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 4)
        began_s = trio.current_time()
        tm.leaves_finals = tmp_path
        tm.finish((0, 0, 0), (0, 1, 0))
        tm.wait((1, 0, 0))
        await trio.sleep(1.0)
        assert tm.triggered() == [], "sink-1 still works"
        tm.wait((1, 1, 0))
        await tm.until(tm.triggered)
        tm.store(1, tmp_path)
        await tm.until(tm.completed)
        assert trio.current_time() < began_s + 1.5
        assert (await user.ask("job", job_id=job_id))["state"] == "running"
        tm.finish()
        assert (await user.ask("wait", job_id=job_id))["state"] == "finished"
        assert tm.triggered() == [1]
        assert (await user.ask("job", job_id=job_id))["checkpoints_completed"] == 1


async def test_a_disk_that_is_full_makes_the_end_wait_and_fails_nothing(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = full(CheckpointStorage.complete, 3, CheckpointStorageError)
    monkeypatch.setattr(CheckpointStorage, "complete", lambda *arguments: tried(*arguments))
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(with_checkpoints(tmp_path))))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 4)
        tm.wait()
        for checkpoint_id in (1, 2, 3, 4):
            await tm.until(lambda number=checkpoint_id: tm.triggered()[-1:] == [number])
            tm.store(checkpoint_id, tmp_path)
            await trio.sleep(0.1)
            actual = await user.ask("job", job_id=job_id)
            assert (actual["state"], actual["restarts"]) == ("running", 0)
            assert ("no space left" in actual["waits_for"]) == (checkpoint_id < 4)
        assert trio.current_time() > 1 + 2 + 4, "it is tried less and less often"
        tm.leaves_finals = tmp_path
        tm.finish()
        assert (await user.ask("wait", job_id=job_id))["state"] == "finished"


async def test_a_task_that_cannot_store_its_final_state_is_shown_and_restarts_nothing(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(with_checkpoints(tmp_path))))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 4)
        for _ in range(5):
            tm.decline(NO_CHECKPOINT, "no space left on device")
            await trio.sleep(1.0)
        actual = await user.ask("job", job_id=job_id)
        assert (actual["state"], actual["restarts"]) == ("running", 0)
        assert actual["waits_for"].startswith("source-0 ")
        assert "source-0 waits to store its final state: no space left on device" in str(actual["log"])
        tm.leaves_finals = tmp_path
        tm.finish((0, 0, 0))
        await trio.sleep(0.1)
        assert (await user.ask("job", job_id=job_id))["waits_for"] == ""


async def test_a_restart_waits_anew(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(with_checkpoints(tmp_path))))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 4)
        tm.wait((0, 0, 0), (0, 1, 0), (1, 0, 0))
        await trio.sleep(0.1)
        tm.fail((1, 1, 0), "why")
        await tm.until(lambda: (1, 1, 1) in tm.tasks)
        tm.wait((1, 1, 1))
        await trio.sleep(1.0)
        assert tm.triggered() == [], "the others run again, and do not wait"
        tm.wait()
        await tm.until(tm.triggered)
        tm.store(1, tmp_path)
        await tm.until(tm.completed)
        tm.leaves_finals = tmp_path
        tm.finish()
        assert (await user.ask("wait", job_id=job_id))["state"] == "finished"


async def test_an_end_is_told_when_it_is_stored_and_never_taken_back(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = full(JobStore.put_end, 3, JobStoreError)
    monkeypatch.setattr(JobStore, "put_end", lambda *arguments: tried(*arguments))
    seen: list[str] = []
    async with (
        jobmanager(folder=str(tmp_path)) as manager,
        taskmanager(manager) as tm,
        client(manager) as user,
        client(manager) as other,
        trio.open_nursery() as nursery,
    ):
        job_id = (await user.ask("submit", document=document(pipeline())))["job_id"]
        nursery.start_soon(states, other, job_id, seen)
        await tm.until(lambda: len(tm.tasks) == 4)
        tm.finish()
        await trio.sleep(0.5)
        actual = await user.ask("job", job_id=job_id)
        assert actual["state"] == "running"
        assert "storing its end (finished): no space left on device" in actual["waits_for"]
        nursery.start_soon(manager.dispatcher.cancel, manager.dispatcher.find(job_id))  # too late to be another end
        end = await user.ask("wait", job_id=job_id)
        assert trio.current_time() >= 1 + 2 + 4
        assert (end["state"], end["results"]) == ("finished", {"sink": {"0": 0, "1": 1}})
        await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    assert [state for state, _ in groupby(seen)] in (["created", "running", "finished"], ["running", "finished"])


async def test_a_jobmanager_that_is_stopped_before_an_end_is_stored_runs_the_job_again(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = full(JobStore.put_end, 1, JobStoreError)
    monkeypatch.setattr(JobStore, "put_end", lambda *arguments: tried(*arguments))
    async with jobmanager(folder=str(tmp_path)) as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(pipeline())))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 4)
        tm.finish()
        await trio.sleep(0.5)
    async with jobmanager(folder=str(tmp_path)) as manager, client(manager) as user:
        assert (await user.ask("job", job_id=job_id))["state"] in ("restarting", "running"), "not created again"
        async with taskmanager(manager) as tm:
            tm.finishes = True
            assert (await user.ask("wait", job_id=job_id))["state"] == "finished"


async def test_without_checkpoints_a_region_commits_when_nothing_can_run_again(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with jobmanager(folder=str(tmp_path)) as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(pipeline())))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 4)
        tm.wait((1, 0, 0), (1, 1, 0))
        tm.finish((0, 0, 0))
        await trio.sleep(1.0)
        assert tm.committing() == [], "a failure of source-1 would have all run again"
        tm.finish((0, 1, 0))
        await tm.until(tm.committing)
        assert tm.committing() == [(1, 0, 0), (1, 1, 0)]
        tm.finish()
        assert (await user.ask("wait", job_id=job_id))["state"] == "finished"


async def test_what_has_begun_to_commit_never_runs_again(autojump_clock: MockClock) -> None:
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(pipeline())))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 4)
        tm.finish((0, 0, 0), (0, 1, 0))
        tm.wait()
        await tm.until(tm.committing)
        tm.fail((1, 0, 0), "the disk of the results is gone")
        end = await user.ask("wait", job_id=job_id)
        assert end["state"] == "failed"
        assert "the disk of the results is gone" in end["reason"]
        assert COMMITTED in end["reason"]


async def test_nor_does_it_in_the_next_jobmanager(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = full(JobStore.put_committing, 2, JobStoreError)
    monkeypatch.setattr(JobStore, "put_committing", lambda *arguments: tried(*arguments))
    async with jobmanager(folder=str(tmp_path)) as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(pipeline())))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 4)
        tm.finish((0, 0, 0), (0, 1, 0))
        tm.wait()
        await trio.sleep(0.5)
        assert tm.committing() == [], "it would not be known after a crash"
        assert "no space left on device" in (await user.ask("job", job_id=job_id))["waits_for"]
        await tm.until(tm.committing)
    async with jobmanager(folder=str(tmp_path)) as manager, taskmanager(manager) as tm, client(manager) as user:
        end = await user.ask("wait", job_id=job_id)
        assert end["state"] == "failed"
        assert COMMITTED in end["reason"]
        assert tm.opened == []


@pytest.mark.parametrize(
    ("retain", "state", "kept"),
    [
        ("unless_finished", "finished", [2]),
        ("unless_finished", "canceled", [1, 2, 3]),
        ("unless_finished", "failed", [1, 2, 3]),
        ("always", "finished", [1, 2, 3, 4]),  # and that of its end
        ("never", "canceled", [2]),
        ("never", "failed", [2]),
    ],
)
async def test_which_ends_leave_checkpoints_and_savepoints_always_stay(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retain: str, state: str, kept: list[int]
) -> None:
    monkeypatch.setattr(checkpoints, "HISTORY", 3)  # reports; all checkpoints are counted
    settings = CheckpointSettings(interval_s=10.0)
    job = pipeline(checkpoints=settings, checkpoint_folder=str(tmp_path), retain=retain)
    jobs = str(tmp_path / "jobs")
    async with jobmanager(folder=jobs) as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(job)))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 4)
        for checkpoint_id in (1, 2, 3):
            async with trio.open_nursery() as nursery:
                if checkpoint_id == 2:
                    nursery.start_soon(partial(user.ask, "savepoint", job_id=job_id, stop=False))
                await tm.until(lambda number=checkpoint_id: tm.triggered()[-1:] == [number])
                tm.store(checkpoint_id, tmp_path)
                with trio.fail_after(60.0):
                    await tm.until(lambda number=checkpoint_id: number in complete_ids(tmp_path))
        if state == "finished":
            tm.leaves_finals = tmp_path
            tm.finish()
        elif state == "failed":
            tm.fail((0, 0, 0), "not there", is_recoverable=False)
        else:
            await user.ask("cancel", job_id=job_id)
        assert (await user.ask("wait", job_id=job_id))["state"] == state
        ended = await user.ask("job", job_id=job_id)
    assert complete_ids(tmp_path) == kept
    assert ended["checkpoints_completed"] == (4 if state == "finished" else 3)
    assert ended["last_checkpoint"] == {"checkpoint_id": kept[-1], "path": str(tmp_path / f"chk-{kept[-1]:08}")}
    async with jobmanager(folder=jobs) as manager, client(manager) as user:
        after = await user.ask("job", job_id=job_id)
        for name in ("tasks", "restarts", "checkpoints_completed", "checkpoints_failed", "last_checkpoint"):
            assert after[name] == ended[name]


async def test_a_savepoint_of_a_running_job_commits_nothing_and_no_restart_begins_from_it(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    job = pipeline(checkpoints=CheckpointSettings(interval_s=10.0), checkpoint_folder=str(folder))
    jobs = str(tmp_path / "jobs")
    async with jobmanager(folder=jobs) as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(job)))["job_id"]
        await tm.until(lambda: tm.triggered() == [1])
        tm.store(1, folder)
        await tm.until(lambda: tm.completed() == [1])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(user.ask, "savepoint", job_id=job_id, stop=False))
            await tm.until(lambda: tm.triggered() == [1, 2])
            tm.store(2, folder)
        assert complete_ids(folder) == [1, 2]
        tm.fail((0, 0, 0), "why")
        await tm.until(lambda: len(tm.tasks) == 4 and (0, 0, 1) in tm.tasks)
        assert {descriptor.restore for descriptor in tm.tasks.values()} == {1}
        assert tm.completed() == [1]
    async with jobmanager(folder=jobs) as manager, taskmanager(manager) as tm:
        await tm.until(lambda: len(tm.tasks) == 4)
        assert {descriptor.restore for descriptor in tm.tasks.values()} == {1}
        await tm.until(lambda: tm.triggered() == [3])
        tm.store(3, folder)
        await tm.until(lambda: tm.completed() == [3])


async def test_a_job_begins_anew_in_the_folder_of_an_earlier_job_also_after_a_restart_of_the_jobmanager(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    folder, jobs = tmp_path / "checkpoints", str(tmp_path / "jobs")
    job = pipeline(checkpoints=CheckpointSettings(interval_s=10.0), checkpoint_folder=str(folder))
    async with jobmanager(folder=jobs) as manager, taskmanager(manager) as tm, client(manager) as user:
        earlier = (await user.ask("submit", document=document(job)))["job_id"]
        await tm.until(lambda: tm.triggered() == [1])
        tm.store(1, folder)
        await tm.until(lambda: tm.completed() == [1])
        await user.ask("cancel", job_id=earlier)
        ends = (await user.ask("submit", document=document(job)))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 4)
        tm.finish()
        await user.ask("wait", job_id=ends)
        assert complete_ids(folder) == [1], "the end of a job removes its own"
        await user.ask("submit", document=document(job))
        await tm.until(lambda: len(tm.tasks) == 4)
    assert complete_ids(folder) == [1]
    async with jobmanager(folder=jobs) as manager, taskmanager(manager) as tm, client(manager) as user:
        await tm.until(lambda: len(tm.tasks) == 4)
        assert {descriptor.restore for descriptor in tm.tasks.values()} == {None}
        await tm.until(lambda: tm.triggered() == [2])
        tm.store(2, folder)
        await tm.until(lambda: tm.completed() == [2])
    async with jobmanager(folder=jobs) as manager, taskmanager(manager) as tm, client(manager) as user:
        await tm.until(lambda: len(tm.tasks) == 4)
        assert {descriptor.restore for descriptor in tm.tasks.values()} == {2}
        tm.finish()
        (job_id,) = manager.dispatcher.running
        await user.ask("wait", job_id=job_id)
    assert complete_ids(folder) == [1], "it is the earlier job's"


async def test_a_cluster_of_one_run_ends_what_an_earlier_run_left_and_names_its_checkpoint(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "checkpoints"
    settings = CheckpointSettings(interval_s=10.0)
    with_folder = pipeline(checkpoints=settings, checkpoint_folder=str(folder))
    left: list[str] = []
    async with (
        jobmanager(folder=str(tmp_path)) as manager,
        taskmanager(manager, slots=4) as tm,
        client(manager) as user,
    ):
        for each in (with_folder, pipeline(checkpoints=settings)):
            left.append((await user.ask("submit", document=document(each)))["job_id"])
            await tm.until(lambda: tm.triggered()[-1:] == [1])
            if each is with_folder:
                tm.store(1, folder)
                await tm.until(lambda: tm.completed() == [1])
    async with jobmanager(folder=str(tmp_path), takes_up_jobs=False) as manager, client(manager) as user:
        assert [(await user.ask("job", job_id=job_id))["state"] for job_id in left] == ["canceled", "canceled"]
        ends = [await user.ask("job", job_id=job_id) for job_id in left]
        assert ends[0]["reason"].endswith(f"start it from {folder}/chk-00000001")
        assert ends[1]["reason"].endswith("it has no checkpoint")
        assert f"job {left[0]} (pipeline) is not continued: " in caplog.text
        assert complete_ids(folder) == [1]
        async with taskmanager(manager) as tm:
            again = await user.ask("submit", document=document(with_folder), from_savepoint=f"{folder}/chk-00000001")
            await tm.until(lambda: len(tm.tasks) == 4)
            assert tm.opened == [again["job_id"]]
            assert {descriptor.restore for descriptor in tm.tasks.values()} == {1}


async def test_a_task_that_has_finished_still_counts_and_one_that_runs_again_does_not(
    autojump_clock: MockClock,
) -> None:
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(pipeline())))["job_id"]

        async def counts() -> list[tuple[int, int]]:
            await trio.sleep(0.1)
            actual = await user.ask("job", job_id=job_id)
            return [(each["records_in"], each["records_out"]) for each in actual["vertices"]]

        await tm.until(lambda: len(tm.tasks) == 4)
        tm.link.send(JobProgress(job_id, {"0": {"records_in": 3, "records_out": 2, "tasks": 1}}))
        tm.finish((0, 0, 0))
        assert await counts() == [(10, 7), (0, 0)]
        tm.fail((1, 0, 0), "no more paper")
        await trio.sleep(1.0)
        assert await counts() == [(3, 2), (0, 0)]
        tm.link.send(JobProgress(job_id, {}))
        await tm.until(lambda: len(tm.tasks) == 4)
        tm.finish()
        await user.ask("wait", job_id=job_id)
        assert await counts() == [(14, 10), (14, 10)]
