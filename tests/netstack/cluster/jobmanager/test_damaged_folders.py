"""A folder with damaged or odd documents: the JobManager starts, says what is wrong, and loses nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import trio
from jobmanager.scripted_taskmanager import client, document, jobmanager
from served_pages import pipeline
from trio.testing import MockClock

from netstack.cluster.control.link import TASKMANAGER, dial
from netstack.cluster.control.messages import DropDataset
from netstack.cluster.jobmanager import dispatcher as jobs
from netstack.cluster.jobmanager.stored_files import FORMAT, write_document

ODD: list[Any] = [{"name": 5, "operators": 7}, {"operators": [[]]}, {"name": "x", "operators": [{"function": {}}]}, {}]


def write_job(folder: Path, job_id: str, job: Any) -> None:
    stored = {"job_id": job_id, "document": job, "submitted_at": 1, "restore": None, "code": {}, "builds": {}}
    write_document(folder / "jobs" / job_id / "job.json", {"format": FORMAT, **stored})


@pytest.mark.parametrize("odd", ODD)
async def test_a_job_that_cannot_be_read_stops_neither_the_others_nor_the_start(
    autojump_clock: MockClock, tmp_path: Path, odd: Any
) -> None:
    write_job(tmp_path, "0" * 16, odd)
    write_job(tmp_path, "1" * 16, document(pipeline()))
    async with jobmanager(folder=str(tmp_path)) as manager, client(manager) as user:
        assert (await user.ask("wait", job_id="0" * 16))["state"] == "failed"
        states = {each["job_id"]: each["state"] for each in (await user.ask("jobs"))["jobs"]}
        assert (states.keys(), states["0" * 16]) == ({"0" * 16, "1" * 16}, "failed")
        assert manager.dispatcher.running.keys() == {"1" * 16}


async def test_a_bug_of_ours_in_one_job_stops_neither_the_others_nor_the_start(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_job = jobs.read_job

    def breaks(stored: Any, *rest: Any, **more: Any) -> Any:
        if stored.job_id == "0" * 16:
            raise KeyError("a bug")
        return read_job(stored, *rest, **more)

    monkeypatch.setattr(jobs, "read_job", breaks)
    for job_id in ("0" * 16, "1" * 16):
        write_job(tmp_path, job_id, document(pipeline()))
    async with jobmanager(folder=str(tmp_path)) as manager, client(manager) as user:
        ended = await user.ask("wait", job_id="0" * 16)
        assert (ended["state"], "KeyError" in ended["reason"]) == ("failed", True)
        assert manager.dispatcher.running.keys() == {"1" * 16}


async def test_datasets_stay_while_their_record_cannot_be_read(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "datasets" / f"{hashlib.sha256(b'a/set').hexdigest()}.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{")
    facts = {"slots": 1, "data": "memory://holder", "hostname": "holder", "pid": 1, "datasets": ["job/a/set", "job/b"]}
    async with jobmanager(folder=str(tmp_path)) as manager:
        link, _ = await dial(manager.address, role=TASKMANAGER, name="holder", facts=facts)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            dropped = await link.receive()
            assert dropped == DropDataset("job/b"), "there is no record of this one"
            with trio.move_on_after(5.0) as waited:
                await link.receive()
            assert waited.cancelled_caught
            link.close()
            nursery.cancel_scope.cancel()
    assert str(path) in caplog.text
