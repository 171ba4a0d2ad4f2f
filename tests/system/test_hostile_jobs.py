"""A hundred jobs whose code does its worst to its process, beside one that notices nothing; nothing is left of them."""

from __future__ import annotations

import itertools
import os
import secrets
from functools import partial
from pathlib import Path
from typing import Any

import cluster_jobs
import pytest
from system.cluster_rig import ClusterRig

from netstack.cluster.jobmanager.client import JobClient

pytestmark = pytest.mark.long
JOBS = 100
SLOTS = 5
ENDING = ["exit", "segfault", "kill", "close_descriptors", "keyboard_interrupt", "system_exit", "leak", "thread"]
SIGNALS = ["SIGTERM", "SIGINT", "SIGHUP", "SIGPIPE", "SIGUSR1", "SIGALRM", "SIGABRT", "SIGCHLD"]
FORKING = ["stays", "raises", "goes_on", "exits"]
HANGING = ["loop", "regex", "sleep", "SIGSTOP"]
MARK = "NETSTACK_TEST_OF_HOSTILE_JOBS"


def test_a_hundred_hostile_jobs_leave_an_honest_one_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = secrets.token_hex(8)
    monkeypatch.setenv(MARK, mark)
    forking = [f"forked_child_{each}" for each in FORKING]
    ways = [*ENDING, *SIGNALS, *forking, "forked_without_end", *HANGING]
    with ClusterRig(tmp_path / "cluster") as rig:
        rig.start_taskmanagers(SLOTS, flags=("--process-memory", "512MiB", "--cancellation-timeout", "1s"))
        rig.wait_until(lambda: len(marked(mark)) == 2 + 2 + SLOTS)  # two services, a fork server and its keeper, slots
        services = {process.pid: descriptors(process.pid) for process in rig.taskmanagers}
        done = tmp_path / "done"
        honest = rig.ask(lambda client: client.submit(cluster_jobs.honest(until=str(done))))
        rig.wait_running(honest)
        jobs: dict[str, str] = {}
        for number, how in zip(range(JOBS), itertools.cycle(ways)):
            folder = tmp_path / str(number)
            folder.mkdir()
            job = cluster_jobs.deadly(how=how, folder=str(folder))
            jobs[rig.ask(partial(JobClient.submit, job=job))] = how
        rig.wait_until(lambda: all_over(rig, jobs))
        ended = {job_id: rig.job(job_id) for job_id in jobs}
        for job_id, how in jobs.items():
            job = ended[job_id]
            if how in HANGING:
                assert job["state"] == "canceled", (how, job["log"])
            else:
                assert (job["state"], job["results"].get("deadly")) == ("finished", {"0": 3}), (how, job["log"])
        assert len(list(tmp_path.glob("*/done-*"))) == JOBS, "some never did it"
        done.touch()
        rig.wait_until(lambda: rig.job(honest)["state"] == "finished" and rig.job(honest)["ended_at"])
        job = rig.job(honest)
        assert job["restarts"] == 0
        assert job["results"]["count"]["0"] > 1000
        used = rig.ask(lambda client: client.submit(cluster_jobs.word_count(parallelism=SLOTS)))
        rig.wait_until(lambda: rig.job(used)["state"] == "finished" and rig.job(used)["ended_at"])
        assert rig.job(used)["results"]["result"]["0"] == cluster_jobs.expected_counts()
        rig.wait_until(lambda: len(marked(mark)) == 2 + 2 + SLOTS)
        rig.wait_until(lambda: {pid: descriptors(pid) for pid in services} == services)
        shared = [path for pid in marked(mark) for path in open_files(pid) if path.startswith("/memfd:netstack-shm")]
        assert shared == []
    rig.wait_until(lambda: marked(mark) == [])  # the fork server has to notice that its supervisor is gone


def all_over(rig: ClusterRig, jobs: dict[str, str]) -> bool:
    """Whether all jobs have ended; those whose code does not return are cancelled."""

    async def look(client: JobClient) -> bool:
        actual = {each["job_id"]: each for each in await client.jobs()}
        for job_id, how in jobs.items():
            if how in HANGING and actual[job_id]["state"] == "running" and (await client.job(job_id))["blocked"]:
                await client.cancel(job_id)
        return all(actual[job_id]["ended_at"] for job_id in jobs)

    return rig.ask(look)


def marked(mark: str) -> list[int]:
    """The processes that descend from this test's, whatever became of those between."""
    wanted = f"{MARK}={mark}".encode()
    actual = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0") and int(path.parent.name) != os.getpid():
                actual.append(int(path.parent.name))
        except OSError:
            continue
    return actual


def open_files(pid: int) -> list[str]:
    actual = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            actual.append(str(path.readlink()))
        except OSError:
            continue
    return actual


def descriptors(pid: int) -> dict[str, int]:
    """How many of each kind a process holds."""
    counts: dict[str, Any] = {}
    for path in open_files(pid):
        kind = path.partition(":[")[0]
        counts[kind] = counts.get(kind, 0) + 1
    return counts
