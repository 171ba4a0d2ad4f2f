"""One JobManager, scripted TaskManagers: what is deployed where, what restarts, what is told."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio
from jobmanager.scripted_taskmanager import ScriptedTaskManager, client, document, jobmanager, taskmanager
from trio.testing import MockClock

from netstack.base.errors import ConfigError
from netstack.cluster.control.messages import CloseJob, TriggerCheckpoint
from netstack.cluster.jobmanager import queries
from netstack.cluster.jobmanager.progress import checked_progress
from netstack.cluster.jobmanager.resource_manager.resource_manager import ORDER_PATIENCE_S
from netstack.schedule.checkpoint.instructions import CheckpointSettings
from netstack.schedule.graph.settings import RestartSettings
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import GlobalExchangeMode, StreamSettings


def pipeline(parallelism: int = 2, **settings: Any) -> StreamEnvironment:
    job = StreamEnvironment("pipeline", parallelism=parallelism, settings=StreamSettings(**settings))
    job.source("jobs:read", name="source").rebalance().map("jobs:change", name="map").sink("jobs:keep", name="sink")
    return job


def two_pipelines(**settings: Any) -> StreamEnvironment:
    job = StreamEnvironment("two", parallelism=1, settings=StreamSettings(**settings))
    for name in "ab":
        job.source("jobs:read", name=f"source-{name}").rebalance().sink("jobs:keep", name=f"sink-{name}")
    return job


FIXED = RestartSettings(kind="fixed_delay", delay_s=0.5, attempts=3)


async def test_from_submit_to_end(autojump_clock: MockClock) -> None:
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        tm.finishes = True
        job_id = (await user.ask("submit", document=document(pipeline())))["job_id"]
        end = await user.ask("wait", job_id=job_id)
        assert end == {"state": "finished", "reason": "", "results": {"sink": {"0": 0, "1": 1}}, "traceback": ""}
        assert tm.opened == [job_id]
        assert any(isinstance(message, CloseJob) for message in tm.said)
        (job,) = (await user.ask("jobs"))["jobs"]
        assert (job["state"], job["tasks"]) == ("finished", {"finished": 4})
        assert manager.slots.free == 2


async def test_latencies_of_all_hosts_are_put_together(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(pipeline(is_chaining_enabled=False))))["job_id"]
        await trio.sleep(1.0)
        master = manager.dispatcher.find(job_id).master
        assert master is not None
        lies = {"input 9": [1], "input x": [1], "source 77": [1], "source": [1], "input 0": 5}
        for name, rows in {
            "a": {"input 0": [30, 10], "source 0": [50]},
            "b": {"input 0": [20], "source 0": [70]},
            "c": lies,
        }.items():
            report = {"2": {"records_in": 1, "latencies": rows}}
            master.progress[name] = checked_progress(report, master.scheduler.topology)
        monkeypatch.setattr(master.tasks, "placed_vertices", lambda: {("a", 2), ("b", 2), ("c", 2)})
        _, middle, sink = (await user.ask("job", job_id=job_id))["vertices"]
        assert middle["latencies"] == []
        none = {"waiting": 0, "at_least": []}
        assert sink["latencies"] == [
            {"from": "map", "input": 0, "count": 3, "p50_us": 20, "p99_us": 30, "max_us": 30, **none},
            {"from": "source", "input": None, "count": 2, "p50_us": 50, "p99_us": 70, "max_us": 70, **none},
        ]
        tm.finish()


async def test_tasks_wait_for_slots_and_say_so(autojump_clock: MockClock) -> None:
    async with jobmanager() as manager, client(manager) as user, taskmanager(manager, slots=1) as first:
        job_id = (await user.ask("submit", document=document(pipeline(checkpoints=CheckpointSettings()))))["job_id"]
        await trio.sleep(1.0)
        actual = await user.ask("job", job_id=job_id)
        assert actual["missing_slots"] == 1
        assert "0 of 1 registered slots free" in actual["waits_for"]
        with pytest.raises(AssertionError, match="1 more slot; a savepoint needs"):
            await user.ask("savepoint", job_id=job_id, stop=False)
        async with taskmanager(manager, slots=1) as second:
            first.finishes = second.finishes = True
            assert (await user.ask("wait", job_id=job_id[:6]))["state"] == "finished"


async def test_a_job_without_checkpoints_has_no_savepoint_even_while_it_waits_for_slots(
    autojump_clock: MockClock,
) -> None:
    async with jobmanager() as manager, client(manager) as user, taskmanager(manager, slots=1) as only:
        job_id = (await user.ask("submit", document=document(pipeline())))["job_id"]
        await trio.sleep(1.0)
        with pytest.raises(AssertionError, match="set `checkpoints`"):
            await user.ask("savepoint", job_id=job_id, stop=False)
        await user.ask("cancel", job_id=job_id)
        only.finish()


async def test_when_all_have_opened_a_job_nobody_waits_for_others(autojump_clock: MockClock) -> None:
    async with (
        jobmanager() as manager,
        taskmanager(manager, slots=1) as first,
        taskmanager(manager, slots=1) as second,
        client(manager) as user,
    ):
        first.finishes = second.finishes = True
        began_s = trio.current_time()
        await user.ask("wait", job_id=(await user.ask("submit", document=document(pipeline())))["job_id"])
        assert first.opened == second.opened != []
        assert trio.current_time() - began_s < ORDER_PATIENCE_S


async def test_a_job_that_gets_no_slots_fails_and_says_what_there_was(autojump_clock: MockClock) -> None:
    async with (
        jobmanager(slot_timeout_s=5.0) as manager,
        taskmanager(manager, slots=1, name="small"),
        client(manager) as user,
    ):
        job_id = (await user.ask("submit", document=document(pipeline())))["job_id"]
        end = await user.ask("wait", job_id=job_id)
        assert end["state"] == "failed"
        assert "no slot within 5.0 s" in end["reason"]
        assert "needs 2 slots (2 of group default); 0 of 1 " in end["reason"]


async def test_a_slot_that_a_running_job_does_not_need_any_more_is_another_job_s(autojump_clock: MockClock) -> None:
    async with jobmanager(slot_idle_timeout_s=5.0) as manager, taskmanager(manager) as tm, client(manager) as user:
        first = (await user.ask("submit", document=document(pipeline())))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 4)
        tm.finish((0, 1, 0), (1, 1, 0))
        second = (await user.ask("submit", document=document(pipeline(1))))["job_id"]
        with trio.fail_after(10.0):
            await tm.until(lambda: tm.opened == [first, second])
        assert (await user.ask("job", job_id=first))["tasks"] == {"running": 2, "finished": 2}


async def test_a_failed_task_restarts_its_region_and_no_other(autojump_clock: MockClock) -> None:
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(two_pipelines(restart=FIXED))))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 4)
        tm.fail((0, 0, 0), "disk on fire")
        await tm.until(lambda: (0, 0, 1) in tm.tasks and (1, 0, 1) in tm.tasks)
        assert sorted(tm.tasks) == [(0, 0, 1), (1, 0, 1), (2, 0, 0), (3, 0, 0)]
        actual = await user.ask("job", job_id=job_id)
        assert actual["restarts"] == 1
        (why,) = [each["text"] for each in actual["log"] if each["what"] == "restart"]
        assert why.startswith("2 of 4 tasks, in the regions that the failure affects, restart (")
        assert any("disk on fire" in entry["text"] for entry in actual["log"])
        tm.finish()
        assert (await user.ask("wait", job_id=job_id))["state"] == "finished"


async def test_the_root_is_blamed_and_counted_once(autojump_clock: MockClock) -> None:
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(pipeline(restart=FIXED))))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 4)
        tm.fail((1, 0, 0), "the connection broke", is_secondary=True)
        tm.fail((1, 1, 0), "the connection broke", is_secondary=True)
        tm.fail((0, 1, 0), "the disk broke")
        await tm.until(lambda: len(tm.tasks) == 4)
        actual = await user.ask("job", job_id=job_id)
        failures = [entry["text"] for entry in actual["log"] if entry["what"] == "failure"]
        assert actual["restarts"] == 1
        assert "the disk broke" in failures[0]


async def test_a_lost_taskmanager_is_the_root_and_its_tasks_run_elsewhere(autojump_clock: MockClock) -> None:
    async with jobmanager() as manager, client(manager) as user, taskmanager(manager, slots=1, name="goes") as goes:
        job = pipeline(parallelism=2, restart=FIXED)
        job_id = (await user.ask("submit", document=document(job)))["job_id"]
        async with taskmanager(manager, slots=1) as stays:
            await stays.until(lambda: len(stays.tasks) == 2)
            goes.link.close()
            async with taskmanager(manager, slots=1) as comes:
                await comes.until(lambda: len(comes.tasks) == 2)
                await stays.until(lambda: {attempt for _, _, attempt in stays.tasks} == {1})
                actual = await user.ask("job", job_id=job_id)
                assert actual["restarts"] == 1
                assert any("goes is lost" in entry["text"] for entry in actual["log"])
                assert {task["attempt"] for vertex in actual["vertices"] for task in vertex["subtasks"]} == {1}


async def test_without_a_restart_strategy_the_root_is_the_reason(autojump_clock: MockClock) -> None:
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(pipeline())))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 4)
        tm.fail((0, 1, 0), "no such file")
        end = await user.ask("wait", job_id=job_id)
        assert end["state"] == "failed"
        assert re.match(r"source \(1\) on tm\d+: ValueError: no such file", end["reason"])
        assert (await user.ask("job", job_id=job_id))["restarts"] == 0


async def test_a_taskmanager_that_refuses_a_job_is_no_failure_and_is_asked_again(autojump_clock: MockClock) -> None:
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        tm.refuses, tm.finishes = "no memory", True
        job_id = (await user.ask("submit", document=document(pipeline())))["job_id"]
        await tm.until(lambda: tm.opened)
        await trio.sleep(1.0)
        actual = await user.ask("job", job_id=job_id)
        assert (actual["state"], actual["restarts"], actual["missing_slots"]) == ("running", 0, 2)
        assert any("rejected the job: no memory" in entry["text"] for entry in actual["log"])
        tm.refuses = ""
        assert (await user.ask("wait", job_id=job_id))["state"] == "finished"


async def test_cancel(autojump_clock: MockClock) -> None:
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(pipeline())))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 4)
        assert await user.ask("cancel", job_id=job_id) == {"state": "canceled"}
        assert not tm.tasks
        assert await user.ask("cancel", job_id=job_id) == {"state": "canceled"}


async def test_checkpoints_pause_while_a_region_restarts(autojump_clock: MockClock, tmp_path: Path) -> None:
    settings = CheckpointSettings(interval_s=10.0)
    job = two_pipelines(checkpoints=settings, restart=FIXED, checkpoint_folder=str(tmp_path))
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(job)))["job_id"]
        await tm.until(lambda: tm.triggered() == [1])
        tm.fail((0, 0, 0), "disk on fire")
        await tm.until(lambda: tm.aborted() == [1])
        await tm.until(lambda: 2 in tm.triggered())
        actual = await user.ask("job", job_id=job_id)
        assert actual["tasks"] == {"running": 4}
        assert [report["reason"] for report in actual["checkpoints"]] == ["task failed: not all tasks run"]


async def test_tasks_hear_of_a_complete_checkpoint_and_a_restart_goes_on_from_it(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    settings = CheckpointSettings(interval_s=10.0)
    job = pipeline(1, checkpoints=settings, restart=FIXED, checkpoint_folder=str(tmp_path))
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(job)))["job_id"]
        await tm.until(lambda: tm.triggered() == [1])
        assert {descriptor.restore for descriptor in tm.tasks.values()} == {None}
        tm.store(1, tmp_path)
        with trio.fail_after(60.0):
            await tm.until(lambda: tm.completed() == [1])
        assert (await user.ask("job", job_id=job_id))["last_checkpoint"]["checkpoint_id"] == 1
        tm.fail((0, 0, 0), "disk on fire")
        await tm.until(lambda: {attempt for _, _, attempt in tm.tasks} == {1})
        assert {descriptor.restore for descriptor in tm.tasks.values()} == {1}


async def test_a_job_without_checkpoints_for_too_long_is_restarted_and_takes_them_again(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    settings = CheckpointSettings(interval_s=10.0)
    job = pipeline(1, checkpoints=settings, restart=FIXED, checkpoint_folder=str(tmp_path))
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(job)))["job_id"]
        for number in range(1, 5):  # one more than are tolerated
            await tm.until(lambda number=number: number in tm.triggered())
            tm.decline(number, "the disk is full")
        await tm.until(lambda: {attempt for _, _, attempt in tm.tasks} == {1})
        await tm.until(lambda: 5 in tm.triggered())
        actual = await user.ask("job", job_id=job_id)
        assert (actual["state"], actual["restarts"]) == ("running", 1)
        reported = [entry["text"] for entry in actual["log"] if entry["what"] == "failure"]
        reason = "declined: source-0 declined: the disk is full"
        *aborted, last = reported
        assert aborted == [f"checkpoint {number} was aborted: {reason}" for number in range(1, 5)]
        assert re.match(rf"4 checkpoints failed .*; the last, 4: {reason}; restart 1 of 3", last)
        assert not [name for name in os.listdir(tmp_path) if name.startswith("chk-")]


async def test_a_job_that_ends_at_once_takes_its_last_checkpoint(autojump_clock: MockClock, tmp_path: Path) -> None:
    job = pipeline(checkpoints=CheckpointSettings(interval_s=10.0), checkpoint_folder=str(tmp_path))
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        tm.finishes, tm.leaves_finals = True, tmp_path
        began_s = trio.current_time()
        job_id = (await user.ask("submit", document=document(job)))["job_id"]
        assert (await user.ask("wait", job_id=job_id))["state"] == "finished"
        assert trio.current_time() - began_s < 10.0
        (report,) = (await user.ask("job", job_id=job_id))["checkpoints"]
        assert report["is_complete"]


async def test_of_a_wide_job_an_answer_tells_what_a_frame_holds(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "MAX_SUBTASKS", 7)
    job = StreamEnvironment("wide")
    for name, parallelism in (("a", 1), ("b", 9), ("c", 4)):
        job.source("jobs:read", name=name).set_parallelism(parallelism).rebalance().sink(
            "jobs:keep", name=f"{name}-end"
        )
    async with jobmanager() as manager, client(manager) as user:
        job_id = (await user.ask("submit", document=document(job)))["job_id"]
        vertices = {each["name"]: each for each in (await user.ask("job", job_id=job_id))["vertices"]}
        reported = {name: len(each["subtasks"]) for name, each in vertices.items()}
        left_out = {name: sum(each.get("left_out", {}).values()) for name, each in vertices.items()}
        assert sum(reported.values()) <= 7
        assert {name: reported[name] + left_out[name] for name in reported} == {
            name: each["parallelism"] for name, each in vertices.items()
        }
        assert reported["a"] == 1
        assert vertices["b"]["left_out"] == {"scheduled": left_out["b"]}


async def test_questions_that_make_no_sense_are_refused(autojump_clock: MockClock) -> None:
    async with jobmanager() as manager, client(manager) as user:
        for what, arguments, text in (
            ("sing", {}, "does not know the question 'sing'"),
            ("job", {"job_id": "abc"}, "there is no job 'abc'"),
            ("job", {"job_id": 7}, "job_id=7 of a request is not of type str"),
            ("submit", {"document": {"operators": []}}, "operators"),
            ("submit", {"document": {"operators": [{"name": "a"}]}}, "'a' has no function"),
            ("code", {"sha256": "0" * 64, "offset": 5, "total": 9, "data": b"x"}, "out of order"),
        ):
            with pytest.raises(AssertionError, match=text):
                await user.ask(what, **arguments)


def partitions_of(tm: ScriptedTaskManager) -> tuple[set[str], set[str]]:
    """What its tasks write, and what they read."""
    tasks = tm.tasks.values()
    written = {partition.name for task in tasks for partition in task.partitions}
    return written, {channel.partition_id for task in tasks for gate in task.gates for channel in gate.gate().channels}


async def test_jobs_go_on_after_the_jobmanager_died(autojump_clock: MockClock, tmp_path: Path) -> None:
    folder = str(tmp_path)
    async with jobmanager(folder=folder) as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(pipeline(restart=FIXED))))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 4)
        earlier = partitions_of(tm)
    async with jobmanager(folder=folder) as manager, taskmanager(manager) as tm, client(manager) as user:
        await tm.until(lambda: len(tm.tasks) == 4)
        assert tm.opened == [job_id]
        written, read = partitions_of(tm)
        assert written == read, "consumers find what this life's producers write"
        assert not written & earlier[0], "and what an earlier life left behind has other names"
        tm.finish()
        assert (await user.ask("wait", job_id=job_id))["state"] == "finished"
    async with jobmanager(folder=folder) as manager, client(manager) as user:
        (job,) = (await user.ask("jobs"))["jobs"]
        assert (job["job_id"], job["state"]) == (job_id, "finished")


async def test_a_batch_job_begins_again_after_the_jobmanager_died(autojump_clock: MockClock, tmp_path: Path) -> None:
    folder = str(tmp_path)
    async with jobmanager(folder=folder) as manager, taskmanager(manager) as tm, client(manager) as user:
        await user.ask("submit", document=document(pipeline(is_batch=True, restart=FIXED)))
        await tm.until(lambda: sorted(tm.tasks) == [(0, 0, 0), (0, 1, 0)])
        tm.finish()
        await tm.until(lambda: sorted(tm.tasks) == [(1, 0, 0), (1, 1, 0)])
    async with jobmanager(folder=folder) as manager, taskmanager(manager) as tm:
        await tm.until(lambda: sorted(tm.tasks) == [(0, 0, 0), (0, 1, 0)])


async def test_a_batch_job_that_asks_for_checkpoints_runs_without_them(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """State of a checkpoint and kept results that are read from their start counted the same records twice."""
    caplog.set_level("INFO", "netstack.jobmanager")
    asking = {"checkpoints": CheckpointSettings(interval_s=0.1), "checkpoint_folder": str(tmp_path / "own")}
    async with jobmanager(folder=str(tmp_path)) as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(pipeline(is_batch=True, **asking))))["job_id"]
        await tm.until(lambda: sorted(tm.tasks) == [(0, 0, 0), (0, 1, 0)])
        await trio.sleep(1.0)
        assert not any(isinstance(message, TriggerCheckpoint) for message in tm.said)
        assert not (tmp_path / "own").exists()
        assert f"job {job_id}: job 'pipeline' runs without" in caplog.text
        with pytest.raises(AssertionError, match="'pipeline' takes no checkpoints"):
            await user.ask("savepoint", job_id=job_id, stop=False)
        with pytest.raises(AssertionError, match="from a savepoint: job 'pipeline'"):
            await user.ask("submit", document=document(pipeline(is_batch=True, **asking)), from_savepoint="/chk")
        tm.finish()
        await tm.until(lambda: sorted(tm.tasks) == [(1, 0, 0), (1, 1, 0)])
        tm.finish()
        assert (await user.ask("wait", job_id=job_id))["state"] == "finished"


async def test_a_streaming_job_that_keeps_a_result_is_refused_checkpoints_when_it_is_submitted(
    autojump_clock: MockClock,
) -> None:
    kept = {"exchange_mode": GlobalExchangeMode.ALL_EDGES_HYBRID_FULL, "checkpoints": CheckpointSettings()}
    async with jobmanager() as manager, client(manager) as user:
        with pytest.raises(AssertionError, match="checkpoints: edge 'source' -> 'map'"):
            await user.ask("submit", document=document(pipeline(**kept)))
        assert not manager.dispatcher.records


async def test_one_jobmanager_a_folder(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with jobmanager(folder=str(tmp_path)):
        with pytest.raises(ConfigError, match="another JobManager"):
            async with jobmanager(folder=str(tmp_path)):
                pass


async def test_a_jobmanager_with_a_folder_makes_no_other_one(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    async with jobmanager(folder=str(tmp_path / "jobs")):
        assert not [*(tmp_path / "temporary").iterdir()], "kill -9 would leave it behind"
