"""The status of a pending checkpoint: of a job, at the REST path, in the log, and in `netstack savepoint`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from jobmanager.scripted_taskmanager import client, document, jobmanager, taskmanager
from trio.testing import MockClock

from netstack.cli.jobs import tell_progress
from netstack.cluster.control.reports import CheckpointAcknowledged, JobProgress
from netstack.cluster.task.queued import output_place
from netstack.cluster.web.flink import checkpoints
from netstack.schedule import StreamEnvironment, StreamSettings
from netstack.schedule.checkpoint.instructions import CheckpointSettings


async def test_a_pending_savepoint_is_told_with_the_task_and_the_data_that_it_waits_for(
    autojump_clock: MockClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the job's document, as in Flink's REST interface, and while `netstack savepoint` waits."""
    job = StreamEnvironment("pipeline", settings=StreamSettings(checkpoints=CheckpointSettings()))
    job.source("jobs:read", name="source").rebalance().sink("jobs:keep", name="sink")
    async with (
        jobmanager(folder=str(tmp_path)) as manager,
        taskmanager(manager, slots=1) as tm,
        client(manager) as user,
        trio.open_nursery() as nursery,
    ):
        job_id = (await user.ask("submit", document=document(job)))["job_id"]
        await trio.sleep(1.0)
        assert (await user.ask("job", job_id=job_id))["checkpoints_in_progress"] == []
        master = manager.dispatcher.find(job_id).master
        assert master is not None
        nursery.start_soon(partial(master.savepoint, stop=False))

        class Client:
            async def job(self, job_id: str) -> Any:
                return await user.ask("job", job_id=job_id)

        nursery.start_soon(tell_progress, Client(), job_id)  # type: ignore[arg-type]
        await tm.until(tm.triggered)
        report = {"records_in": 1, "queued": {"markers": [], "barriers": [[output_place(0), 1, 5_000]]}}
        tm.link.send(JobProgress(job_id, {"0": report}))
        await trio.sleep(20.0)
        actual = await user.ask("job", job_id=job_id)
        (pending,) = actual["checkpoints_in_progress"]
        assert (pending["acknowledged"], pending["subtasks"], pending["is_savepoint"]) == (0, 2, True)
        assert (pending["waits_for"], pending["ahead_bytes"]) == (["source-0"], 0)
        assert any(each["text"].startswith("savepoint 1 in progress") for each in actual["log"])
        source = next(attempt for attempt in tm.tasks if attempt[1] == 0)
        tm.link.send(CheckpointAcknowledged(job_id, source, 1, 10, 10, {}))
        await trio.sleep(20.0)
        actual = checkpoints(await user.ask("job", job_id=job_id))
        assert actual["counts"] == {"total": 1, "in_progress": 1, "completed": 0, "failed": 0, "restored": 0}
        (displayed,) = actual["history"]
        assert (displayed["status"], displayed["num_subtasks"], displayed["num_acknowledged_subtasks"]) == (
            "IN_PROGRESS",
            2,
            1,
        )
        assert (displayed["waits_for"], displayed["ahead_bytes"]) == (["sink-0"], 5_000)
        nursery.cancel_scope.cancel()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2, "a line only if something changed"
    assert "waiting for source-0" in lines[0]
    assert "waiting for sink-0, with 5 kB queued in front of its barrier" in lines[1]
