"""TaskManagers that have proven the secret and lie, over real sockets: nobody but themselves is harmed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scripted_taskmanager import client, document, jobmanager, taskmanager

from netstack.checkpoint.coordinator import CheckpointSettings
from netstack.control.messages import CheckpointAcknowledged
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import StreamSettings

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
        monkeypatch.setattr("netstack.jobmanager.view.job_document", breaks)
        job_id = (await user.ask("submit", document=document(pipeline())))["job_id"]
        await tm.until(lambda: tm.tasks)
        tm.finish()
        assert (await user.ask("wait", job_id=job_id))["state"] == "finished"
        assert (await user.ask("jobs"))["jobs"][0]["state"] == "finished"
