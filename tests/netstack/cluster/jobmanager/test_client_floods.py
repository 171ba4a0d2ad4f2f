"""What one client submits and requests does not occupy a JobManager, nor use up its memory."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, strategies as st
from jobmanager.scripted_taskmanager import at_once, jobmanager

from netstack.base.errors import ConfigError, RequestRefused
from netstack.cluster.jobmanager import dispatcher, job_record
from netstack.cluster.jobmanager.client import JobClient, open_job_client
from netstack.cluster.jobmanager.config import JobManagerConfig
from netstack.cluster.jobmanager.job_master import checkpoints
from netstack.cluster.jobmanager.job_master.checkpoints import JobCheckpoints
from netstack.cluster.jobmanager.job_record import RememberedJobs
from netstack.cluster.jobmanager.service import open_jobmanager
from netstack.schedule.checkpoint.coordinator import CheckpointCoordinator
from netstack.schedule.checkpoint.instructions import CheckpointSettings, JobTask
from netstack.schedule.graph import job_file

LARGE_BYTES = 36 * 100_000


def definition(name: str, *, is_large: bool = False, edges: int = 1) -> dict[str, Any]:
    """A job; a large one has parameters that take 3.6 MB of memory."""
    source = {"name": "source", "kind": "source", "function": "jobs:read"}
    if is_large:
        source |= {"parameters": {"numbers": [1] * 100_000}}
    sink = {"name": "sink", "kind": "sink", "function": "jobs:keep", "inputs": [{"from": "source"}] * edges}
    return {"document": {"name": name, "operators": [source, sink]}, "code": {}, "builds": {}}


async def test_questions_and_small_jobs_do_not_wait_while_a_large_job_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of 4,000 operators took seconds of the event loop, one with 30,000 edges longer than a heartbeat."""
    read_job = dispatcher.read_job
    answers: list[Any] = []
    with trio.fail_after(60.0):
        config = JobManagerConfig(listen="tcp://127.0.0.1:0")
        async with open_jobmanager(config) as manager, open_job_client(manager.address) as user:

            async def meanwhile() -> None:
                answers.append(await user.jobs())
                answers.append(await user.resubmit(definition("small")))

            def reads(stored: Any, *rest: Any, **more: Any) -> Any:
                if stored.document["name"] == "large":
                    trio.from_thread.run(meanwhile)  # raises in the thread of the event loop
                return read_job(stored, *rest, **more)

            monkeypatch.setattr(dispatcher, "read_job", reads)
            large = await user.resubmit(definition("large", is_large=True))
            assert answers[0] == []
            assert {each["job_id"] for each in await user.jobs()} == {large, answers[1]}


async def test_a_job_of_many_edges_is_refused_before_anything_is_made_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jobmanager() as manager, open_job_client(manager.address) as user:
        await user.resubmit(definition("some", edges=100))
        monkeypatch.setattr(dispatcher, "read_job", None)
        with pytest.raises(RequestRefused, match="8,193 edges between operators; the maximum is 8,192"):
            await user.resubmit(definition("many", edges=job_file.MAX_EDGES + 1))


async def test_large_jobs_that_have_ended_are_forgotten_before_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 ended jobs of 25 MB each took 6 GB."""
    monkeypatch.setattr(job_record, "MAX_REMEMBERED_BYTES", 3 * LARGE_BYTES)
    async with jobmanager() as manager, open_job_client(manager.address) as user:
        small = await _ended(user, definition("small"))
        large = [await _ended(user, definition("large", is_large=True)) for _ in range(10)]
        assert len({*large}) == 10, "all of them were taken"
        left = [each["job_id"] for each in await user.jobs()]
        assert small in left
        assert large[-1] in left
        assert 1 <= len({*large} & {*left}) <= 3


async def test_a_job_that_ended_last_is_remembered_however_long_ago_it_was_submitted() -> None:
    async with jobmanager(max_ended_jobs=2) as manager, open_job_client(manager.address) as user:
        honest = await user.resubmit(definition("honest"))
        others = [await _ended(user, definition("other")) for _ in range(5)]
        await user.cancel(honest)
        assert {each["job_id"] for each in await user.jobs()} == {honest, others[-1]}


async def _ended(user: JobClient, job: dict[str, Any]) -> str:
    job_id = await user.resubmit(job)
    await user.cancel(job_id)
    return job_id


@given(st.lists(st.integers(0, 12), max_size=12), st.integers(1, 6))
def test_of_ended_jobs_the_newest_is_kept_and_the_others_fit(sizes: list[int], most_jobs: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(job_record, "MAX_REMEMBERED_BYTES", 20)
        remembered = RememberedJobs()
        there: dict[str, int] = {}
        for number, size in enumerate(sizes):
            there[str(number)] = size
            remembered.add(str(number), size)
            before = dict(there)
            for each in remembered.forget(most_jobs):
                del there[each]
            assert str(number) in there
            assert len(there) <= most_jobs
            assert sum(there.values()) <= max(20, size)
            if len(before) <= most_jobs and sum(before.values()) <= 20:
                assert there == before


class Commands:
    """Takes every command."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


async def test_so_many_savepoints_of_a_job_wait_and_no_more() -> None:
    """Requests of clients that had left delayed the savepoints of others, and the end of the job, by minutes."""
    coordinator = CheckpointCoordinator([JobTask("source", 1)], CheckpointSettings(), now_s=trio.current_time())
    refused = 0
    async with trio.open_nursery() as nursery:
        made: Any = JobCheckpoints
        taken: JobCheckpoints = made(coordinator, None, None, Commands(), nursery, at_once, [])

        async def leaves() -> None:
            nonlocal refused
            with trio.move_on_after(0.0):
                try:
                    await taken.take(savepoint=True, stops=False)
                except ConfigError:
                    refused += 1

        for _ in range(100):
            await leaves()
        with pytest.raises(ConfigError, match="16 savepoints of this job wait already"):
            await taken.take(savepoint=True, stops=False)
        assert refused == 100 - 1 - checkpoints.MAX_WAITING, "one is in progress"
        nursery.cancel_scope.cancel()
