"""What a JobManager tells Prometheus, while a job waits for slots, takes checkpoints, fails and ends."""

from __future__ import annotations

import re
import urllib.request
from functools import partial
from pathlib import Path

import pytest
import trio
from jobmanager.scripted_taskmanager import client, document, jobmanager, taskmanager
from served_pages import pipeline
from trio.testing import MockClock

from netstack.cluster.control.reports import JobProgress
from netstack.cluster.jobmanager.views import metrics
from netstack.cluster.jobmanager.views.metrics import CATALOGUE, serve_metrics, statistics
from netstack.network.metrics.samples import samples
from netstack.schedule.checkpoint.instructions import CheckpointSettings
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import StreamSettings


def with_checkpoints(folder: Path) -> StreamEnvironment:
    settings = StreamSettings(checkpoints=CheckpointSettings(interval_s=10.0), checkpoint_folder=str(folder))
    job = StreamEnvironment("saves", settings=settings)
    job.source("jobs:read", name="source").sink("jobs:keep", name="sink")
    return job


async def test_a_job_is_followed_to_its_end(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with jobmanager() as manager, client(manager) as user:
        job_id = (await user.ask("submit", document=document(with_checkpoints(tmp_path))))["job_id"]
        await trio.sleep(1.0)
        before = statistics(manager)
        assert (before.taskmanagers, before.slots, before.jobs["running"]) == (0, 0, 1)
        assert [each.missing_slots for each in before.running] == [1]
        assert before.running[0].checkpoint_age_s is None
        async with taskmanager(manager, slots=3) as tm:
            await tm.until(lambda: tm.triggered() == [1])
            tm.store(1, tmp_path)
            await tm.until(lambda: tm.completed() == [1])
            await tm.until(lambda: tm.triggered() == [1, 2])
            tm.decline(2, "the disk is full")
            await tm.until(tm.aborted)
            tm.fail((0, 0, 0), "why")
            await tm.until(lambda: (0, 0, 1) in tm.tasks)
            now = statistics(manager)
            assert (now.taskmanagers, now.slots, now.free_slots) == (1, 3, 2)
            (job,) = now.running
            assert (job.job_id, job.name, job.restarts, job.missing_slots) == (job_id, "saves", 1, 0)
            assert (job.checkpoints_completed, job.checkpoints_failed, job.blocked_s) == (1, 1, 0.0)
            assert job.checkpoint_age_s is not None
            assert job.checkpoint_age_s >= 10.0
            actual = {sample.metric.name: sample.value for sample in samples(now, catalogue=CATALOGUE) if sample.labels}
            assert actual["netstack_job_failed_checkpoints_total"] == 1
            await user.ask("cancel", job_id=job_id)
        after = statistics(manager)
        assert (after.running, after.jobs["canceled"], after.jobs["running"]) == ((), 1, 0)


async def test_latencies_are_quantiles_of_each_edge_and_source_and_as_many_as_are_said(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(pipeline(is_chaining_enabled=False))))["job_id"]
        await trio.sleep(1.0)
        master = manager.dispatcher.find(job_id).master
        assert master is not None
        latencies = {"input 0": [30, 10, 20], "source 0": [50]}
        tm.link.send(JobProgress(job_id, {"2": {"records_in": 1, "latencies": latencies}}))
        await tm.link.ping()
        actual = {
            tuple(sample.labels.values())[2:]: sample.value
            for sample in samples(statistics(manager), catalogue=CATALOGUE)
            if sample.metric.name == "netstack_job_latency_seconds"
        }
        assert actual == {
            ("map", "sink", "edge", "0.5"): 20e-6,
            ("map", "sink", "edge", "0.99"): 30e-6,
            ("map", "sink", "edge", "1"): 30e-6,
            ("source", "sink", "source", "0.5"): 50e-6,
            ("source", "sink", "source", "0.99"): 50e-6,
            ("source", "sink", "source", "1"): 50e-6,
        }
        monkeypatch.setattr(metrics, "MOST_LATENCIES", 1)
        assert len(statistics(manager).latencies) == 3
        tm.finish()


async def test_prometheus_reads_them() -> None:
    async with jobmanager() as manager, client(manager) as user, serve_metrics(manager, "127.0.0.1:0") as address:
        job_id = (await user.ask("submit", document=document(pipeline())))["job_id"]
        answer = await trio.to_thread.run_sync(partial(urllib.request.urlopen, f"http://{address}/metrics", timeout=30))
        with answer:
            text = (await trio.to_thread.run_sync(answer.read)).decode()
        assert re.search(r'^netstack_jobmanager_jobs\{state="running"\} 1.0$', text, re.M)
        assert re.search(rf'^netstack_job_missing_slots\{{job="{job_id}",name="pipeline"\}} [1-9]', text, re.M)
        assert "netstack_job_checkpoint_age_seconds{" not in text, "there is none yet"
