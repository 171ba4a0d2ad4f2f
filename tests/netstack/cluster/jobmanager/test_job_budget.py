"""How many jobs a JobManager takes at a time."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given, strategies as st
from jobmanager.scripted_taskmanager import jobmanager

from netstack.base.errors import ConfigError, RequestRefused
from netstack.cluster.jobmanager import job_record
from netstack.cluster.jobmanager.client import open_job_client
from netstack.cluster.jobmanager.job_record import JobBudget, JobSize
from netstack.schedule.checkpoint.instructions import CheckpointSettings
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import StreamSettings


def job(name: str) -> StreamEnvironment:
    job = StreamEnvironment(name, settings=StreamSettings(checkpoints=CheckpointSettings()))
    job.source("jobs:read", name="source").rebalance().sink("jobs:keep", name="sink")
    return job


SIZES = st.builds(JobSize, st.integers(1, 9), st.integers(1, 9))


@given(st.lists(st.one_of(SIZES, st.integers(0, 9)), max_size=40), st.integers(0, 3))
def test_no_more_is_admitted_than_fits_and_what_has_left_counts_no_more(
    steps: list[JobSize | int], recovered: int
) -> None:
    """Law: over jobs that come and leave in any order, some of them twice or unknown."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(job_record, "MAX_SUBTASKS_OF_ALL", 20)
        monkeypatch.setattr(job_record, "MAX_DEFINITIONS_BYTES", 25)
        budget = JobBudget(5)
        there = {f"old {number}": JobSize(9, 9) for number in range(recovered)}
        for job_id, size in there.items():
            budget.take_up(job_id, size)
        for number, step in enumerate(steps):
            if isinstance(step, int):
                name = list(there)[step % len(there)] if there and step else "unknown"
                budget.leave(name)
                budget.leave(name)
                there.pop(name, None)
                continue
            after = [*there.values(), step]
            fits = (
                len(after) <= 5
                and sum(each.subtasks for each in after) <= 20
                and sum(each.definition_bytes for each in after) <= 25
            )
            try:
                budget.admit(str(number), step)
            except ConfigError:
                assert not fits
            else:
                assert fits
                there[str(number)] = step


async def test_a_jobmanager_takes_so_many_jobs_and_others_when_one_has_ended() -> None:
    async with jobmanager(max_jobs=2) as manager, open_job_client(manager.address) as user:
        first = await user.submit(job("first"))
        await user.submit(job("second"))
        with pytest.raises(RequestRefused, match="has 2 jobs that have not ended"):
            await user.submit(job("third"))
        assert len(await user.jobs()) == 2
        await user.cancel(first)
        third = await user.submit(job("third"))
        assert [each["job_id"] for each in await user.jobs()][-1] == third


async def test_jobs_that_are_submitted_at_once_do_not_pass_the_limit_together() -> None:
    """The limit holds while the first ones are still being stored."""
    refused = 0

    async with jobmanager(max_jobs=3) as manager, open_job_client(manager.address) as user:

        async def submit(name: str) -> None:
            nonlocal refused
            try:
                await user.submit(job(name))
            except RequestRefused:
                refused += 1

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(submit, f"job {number}")
        assert (refused, len(await user.jobs())) == (7, 3)


async def test_jobs_that_were_refused_for_another_reason_leave_their_room() -> None:
    async with jobmanager(max_jobs=1) as manager, open_job_client(manager.address) as user:
        for _ in range(2):
            with pytest.raises(RequestRefused, match="savepoint"):
                await user.submit(job("with a savepoint"), from_savepoint="/nonexistent")
        await user.submit(job("last"))
