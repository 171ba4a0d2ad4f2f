"""A JobManager with a job and a page, and how to ask it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from jobmanager.scripted_taskmanager import client, document, jobmanager, taskmanager

from netstack.cluster.jobmanager.service import JobManager
from netstack.cluster.web.serve import open_web
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import StreamSettings


def pipeline(**settings: Any) -> StreamEnvironment:
    job = StreamEnvironment("pipeline", parallelism=2, settings=StreamSettings(**settings))
    job.source("jobs:read", name="source").rebalance().map("jobs:change", name="map").sink("jobs:keep", name="sink")
    return job


async def ask(url: str, *, method: str = "GET", token: str = "") -> tuple[int, Any]:
    """Status and document."""

    def fetch() -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(url, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.loads(answer.read() or "null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    return await trio.to_thread.run_sync(fetch)


@asynccontextmanager
async def running(*, address: str = "127.0.0.1:0", **settings: Any) -> AsyncIterator[tuple[JobManager, str, str]]:
    """A JobManager with a job that runs on one TaskManager, its page, and the job's id."""
    async with jobmanager() as manager, taskmanager(manager, name="left"), client(manager) as user:
        job_id = (await user.ask("submit", document=document(pipeline())))["job_id"]
        async with open_web(manager, address, **settings) as url:
            await until_running(user)
            yield manager, url, job_id


async def until_running(user: Any) -> None:
    while (await user.ask("jobs"))["jobs"][0]["tasks"].get("running") != 4:  # noqa: ASYNC110  # asked over the network
        await trio.sleep(0.02)
