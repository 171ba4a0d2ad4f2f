"""The duration that `netstack run --json` shows: that of the job, without the start and the end of its cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from netstack.base.errors import JobFailed
from netstack.cli.run import _Run
from netstack.cluster.jobmanager.client import JobResult

START_S, QUEUE_S, JOB_S, END_S = 1.0, 20.0, 300.0, 4000.0


@pytest.mark.parametrize("fails", [False, True])
async def test_it_lasts_from_submission_to_the_end_of_the_job(autojump_clock: MockClock, *, fails: bool) -> None:
    async def submit(*_: Any, **__: Any) -> str:
        await trio.sleep(QUEUE_S)
        return "job"

    async def wait(job_id: str) -> JobResult:
        await trio.sleep(JOB_S)
        if fails:
            raise JobFailed("no more paper")
        return JobResult(job_id, "finished", "", {})

    async def show(_job_id: str) -> dict[str, Any]:
        return {"restarts": 2, "checkpoints_completed": 3, "vertices": []}

    record = SimpleNamespace(stored=SimpleNamespace(not_restored=()), master=None)
    dispatcher = SimpleNamespace(find=lambda _: record)
    cluster: Any = SimpleNamespace(
        client=SimpleNamespace(submit=submit, job=show), jobmanager=SimpleNamespace(dispatcher=dispatcher), wait=wait
    )

    @asynccontextmanager
    async def open_cluster() -> AsyncIterator[Any]:
        await trio.sleep(START_S)
        try:
            yield cluster
        finally:
            await trio.sleep(END_S)

    graph: Any = SimpleNamespace(name="words")
    run = _Run(graph, None)
    if fails:
        with pytest.raises(JobFailed):
            await run.main(open_cluster)
    else:
        assert (await run.main(open_cluster)).state == "finished"
        assert (run.restarts, run.checkpoints) == (2, 3)
    assert run.duration_s == pytest.approx(QUEUE_S + JOB_S)
