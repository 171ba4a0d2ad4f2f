"""TaskManagers that have proven the secret and lie, over real sockets: nobody but themselves is harmed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
from hypothesis import given, strategies as st
from jobmanager.scripted_taskmanager import client, document, jobmanager, taskmanager
from trio.testing import MockClock

from netstack.cluster.control.codec import Message
from netstack.cluster.control.reports import (
    BlobKept,
    CheckpointAcknowledged,
    CheckpointDeclined,
    JobOpened,
    JobProgress,
    JobRefused,
    PartitionConsumable,
    SlotEnded,
    TaskFailed,
    TaskFinished,
    TaskStates,
)
from netstack.cluster.jobmanager.progress import checked_progress, edges_at
from netstack.schedule.checkpoint.instructions import CheckpointSettings
from netstack.schedule.descriptors.blob_store import CODE_KEY
from netstack.schedule.graph.job_generator import generate_job
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import StreamSettings
from netstack.schedule.topology.execution_graph import ExecutionGraph

PORT = "tcp://127.0.0.1:0"


def pipeline(parallelism: int = 1, **settings: Any) -> StreamEnvironment:
    job = StreamEnvironment("pipeline", parallelism=parallelism, settings=StreamSettings(**settings))
    job.source("jobs:read", name="source").sink("jobs:keep", name="sink")
    return job


@pytest.mark.parametrize(
    "report", [{"alignment_s": "long"}, {"input_bytes": [1]}, {"alignment_s": float("nan")}, {"timed_out": 1}]
)
async def test_a_report_of_a_checkpoint_that_is_none_ends_its_teller_and_nobody_else(
    tmp_path: Path, report: dict[str, Any]
) -> None:
    job = pipeline(checkpoints=CheckpointSettings(interval_s=0.01))
    async with jobmanager(listen=PORT, folder=str(tmp_path)) as manager, client(manager) as user:
        async with taskmanager(manager, slots=1) as liar:
            job_id = (await user.ask("submit", document=document(job)))["job_id"]
            await liar.until(liar.triggered)
            (attempt,) = liar.tasks
            number = liar.triggered()[0]
            liar.link.send(CheckpointAcknowledged(job_id, attempt, number, 10, 10, {"write_s": 0.1, **report}))
            await liar.ended.wait()
        assert (await user.ask("job", job_id=job_id))["ended_at"] is None, "it waits for other slots"
        assert await user.ask("cancel", job_id=job_id) == {"state": "canceled"}
        assert (await user.ask("jobs"))["jobs"][0]["state"] == "canceled"


async def test_a_job_whose_details_cannot_be_made_ends_and_nobody_else_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def breaks(*_: object) -> None:
        raise TypeError("keys must be str")

    async with jobmanager(listen=PORT) as manager, taskmanager(manager) as tm, client(manager) as user:
        monkeypatch.setattr("netstack.cluster.jobmanager.views.documents.job_document", breaks)
        job_id = (await user.ask("submit", document=document(pipeline())))["job_id"]
        await tm.until(lambda: tm.tasks)
        tm.finish()
        assert (await user.ask("wait", job_id=job_id))["state"] == "finished"
        assert (await user.ask("jobs"))["jobs"][0]["state"] == "finished"


def _forged(job_id: str, kind: str) -> Message:
    attempt = (0, 0, 0)
    match kind:
        case "running":
            return TaskStates(job_id, "running", (attempt,))
        case "canceled":
            return TaskStates(job_id, "canceled", (attempt,))
        case "finished":
            return TaskFinished(job_id, attempt, (), {"sink": "forged"}, None)
        case "failed":
            return TaskFailed(job_id, attempt, "ValueError", "forged", False, "", False)
        case "acknowledged":
            return CheckpointAcknowledged(job_id, attempt, 1, 10, 10, {})
        case "declined":
            return CheckpointDeclined(job_id, attempt, 1, "forged")
        case "slot ended":
            return SlotEnded(job_id, 0, (attempt,), "forged")
    return PartitionConsumable(job_id, attempt, 0)


KINDS = ("running", "canceled", "finished", "failed", "acknowledged", "declined", "slot ended", "consumable")


@pytest.mark.parametrize("kind", KINDS)
async def test_who_never_got_a_task_cannot_report_it(tmp_path: Path, kind: str) -> None:
    job = pipeline(checkpoints=CheckpointSettings(interval_s=0.01))
    async with (
        jobmanager(listen=PORT, folder=str(tmp_path)) as manager,
        taskmanager(manager) as honest,
        client(manager) as user,
    ):
        job_id = (await user.ask("submit", document=document(job)))["job_id"]
        await honest.until(honest.triggered)
        async with taskmanager(manager) as liar:
            liar.link.send(_forged(job_id, kind))
            with trio.fail_after(120.0):
                await liar.ended.wait()
        actual = await user.ask("job", job_id=job_id)
        assert (actual["tasks"], actual["restarts"], actual["failures"]) == ({"running": 1}, 0, [])
        honest.finish()
        ended = await user.ask("wait", job_id=job_id)
        assert (ended["state"], ended["results"]) == ("finished", {"sink": {"0": 0}})


@pytest.mark.parametrize("kind", KINDS[:-1])
async def test_an_attempt_that_is_over_cannot_be_reported(autojump_clock: MockClock, tmp_path: Path, kind: str) -> None:
    """Not even by the TaskManager that had it, and has the next one."""
    job = pipeline(checkpoints=CheckpointSettings(interval_s=10.0), checkpoint_folder=str(tmp_path))
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(job)))["job_id"]
        await tm.until(lambda: tm.tasks)
        tm.fail((0, 0, 0), "why")
        await tm.until(lambda: (0, 0, 1) in tm.tasks and tm.triggered() == [1])
        tm.link.send(_forged(job_id, kind))
        await trio.sleep(5.0)
        actual = await user.ask("job", job_id=job_id)
        assert (actual["tasks"], actual["restarts"], len(actual["failures"])) == ({"running": 1}, 1, 1)
        assert (tm.completed(), tm.aborted()) == ([], [])
        tm.store(1, tmp_path)
        await tm.until(lambda: tm.completed() == [1])


async def test_a_slot_tells_of_the_end_of_its_own_attempts() -> None:
    async with (
        jobmanager(listen=PORT) as manager,
        taskmanager(manager, slots=2, has_processes=True) as tm,
        client(manager) as user,
    ):
        job_id = (await user.ask("submit", document=document(pipeline(2))))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 2)
        places = manager.dispatcher.running[job_id].tasks.places
        tm.link.send(SlotEnded(job_id, 1 - places[0].index, ((0, 0, 0),), "forged"))
        with trio.fail_after(120.0):
            await tm.ended.wait()
        (failure,) = (await user.ask("wait", job_id=job_id))["reason"].splitlines()
        assert "which was not deployed there" in failure


async def test_what_a_taskmanager_was_not_asked_is_not_kept(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Keys of blobs that nobody fetches, and answers about the job of another: 150 and 60 of them kept a gigabyte."""
    job = pipeline(checkpoints=CheckpointSettings(interval_s=10.0), checkpoint_folder=str(tmp_path))
    async with jobmanager() as manager, taskmanager(manager) as honest, client(manager) as user:
        job_id = (await user.ask("submit", document=document(job)))["job_id"]
        await honest.until(honest.triggered)
        before = await user.ask("job", job_id=job_id)
        async with taskmanager(manager) as liar:
            for number in range(200):
                for key in (f"{CODE_KEY}{number}", f"{number}"):
                    liar.link.send(BlobKept(key.ljust(8192, "x"), True))
                liar.link.send(JobOpened(job_id))
                liar.link.send(JobRefused(job_id, "\n\x1b[2J" * 8192))
            await liar.link.ping()  # all of it was heard
            assert manager.blob_server._spread == {}
            assert manager.blob_server._addresses == {}
            (connected,) = [each for each in manager.taskmanagers.all() if each.link.peer.startswith(liar.name)]
            assert (connected.jobs, connected.opening) == (set(), {})
        after = await user.ask("job", job_id=job_id)
        assert (after["tasks"], after["restarts"]) == (before["tasks"], 0)
        assert len(after["log"]) <= len(before["log"]) + 1, "only that it was lost"
        honest.finish()
        assert (await user.ask("wait", job_id=job_id))["state"] == "finished"
    assert sum(len(each.getMessage()) for each in caplog.records) < 20_000


async def test_a_reason_forges_no_line_of_the_log(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = pipeline(checkpoints=CheckpointSettings(interval_s=10.0), checkpoint_folder=str(tmp_path))
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(job)))["job_id"]
        await tm.until(tm.triggered)
        tm.decline(1, "no\nERROR forged \x1b[2J\u202e" + "x" * 8000)
        await tm.until(tm.aborted)
        details = await user.ask("job", job_id=job_id)
        texts = [each["text"] for each in details["log"]] + [each.getMessage() for each in caplog.records]
        assert any("forged" in text for text in texts), "it was heard"
        assert all(text.isprintable() and len(text) < 2000 for text in texts)


async def test_counts_of_a_vertex_come_from_where_its_tasks_run() -> None:
    """A TaskManager without tasks changes neither counts nor latencies."""
    async with jobmanager(listen=PORT) as manager, taskmanager(manager) as honest, client(manager) as user:
        job_id = (await user.ask("submit", document=document(pipeline())))["job_id"]
        await honest.until(lambda: honest.tasks)
        async with taskmanager(manager) as liar:
            honest.link.send(JobProgress(job_id, {"0": {"records_in": 3, "records_out": 2, "tasks": 1}}))
            lie = {"records_in": 1 << 40, "records_out": -5, "latencies": {"source 0": [1 << 40]}}
            lie["queued"] = {"markers": [[0, 0, 1, 1 << 40]], "barriers": [[0, 1, 1 << 40]]}
            liar.link.send(JobProgress(job_id, {str(number): lie for number in (0, 1, 2, "x")}))
            for each in (honest, liar):
                await each.link.ping()
            (actual,) = (await user.ask("job", job_id=job_id))["vertices"]
            assert (actual["records_in"], actual["records_out"], actual["latencies"]) == (3, 2, [])


BAD = st.lists(st.integers(-9, 9) | st.text(max_size=2) | st.just(1 << 70) | st.none() | st.booleans(), max_size=5)


@given(st.lists(BAD | st.integers(), max_size=9), st.lists(BAD | st.none(), max_size=9) | st.text())
def test_of_queued_events_only_those_of_the_vertexs_own_edges_are_kept(markers: list[Any], barriers: Any) -> None:
    job = generate_job(pipeline().stream_graph()).job
    report = {"records_in": 1, "queued": {"markers": markers, "barriers": barriers}}
    actual = checked_progress({str(number): report for number in range(9)}, ExecutionGraph(job))
    assert actual.keys() == set(range(len(job.vertices)))
    for number, row in actual.items():
        places = range(-len(job.outputs_of(number)), len(job.inputs_of(number)))
        for place, source, *ages in row["queued"]["markers"]:
            assert place in places
            assert source in range(len(job.vertices))
            assert min(ages) >= 0
            assert edges_at(job, number, place)
        for place, checkpoint_id, size in row["queued"]["barriers"]:
            assert place in places
            assert min(checkpoint_id, size) >= 0
