"""TaskManagers and those who adopt them in one process, for tests."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing
from adopter import Adopter, Ended, Failed, RemoteGate, RemoteJob, RemotePartition, RemoteTask, Said, adopt

from netstack.base.config import NetworkConfig
from netstack.cluster.taskmanager.client import open_client
from netstack.cluster.taskmanager.config import TaskManagerConfig
from netstack.cluster.taskmanager.runner import open_taskmanager
from netstack.cluster.taskmanager.service import TaskManager
from netstack.network.connection.authentication import Secret

MEMORY_BYTES = 4 << 20
CONFIG = NetworkConfig(segment_size_bytes=1024, memory_bytes=1 << 20)
EVERYTHING = NetworkConfig(segment_size_bytes=1024, memory_bytes=MEMORY_BYTES)

SECRET = Secret(b"a secret of all who belong")

SLOW_IMPORT_BEGAN = threading.Event()
SLOW_IMPORT_MAY_END = threading.Event()

_numbers = itertools.count(1)


def job_id() -> str:
    """A new one."""
    return f"{next(_numbers):016x}"


@asynccontextmanager
async def taskmanager_open(**settings: Any) -> AsyncIterator[TaskManager]:
    """A TaskManager of four slots that runs `userjobs`."""
    chosen = {
        "listen": f"memory://taskmanager{next(_numbers)}",
        "slots": 4,
        "memory_bytes": MEMORY_BYTES,
        "allow": ("userjobs.",),
    }
    async with open_taskmanager(TaskManagerConfig(**{**chosen, **settings})) as manager:
        yield manager


@asynccontextmanager
async def pair_open(**settings: Any) -> AsyncIterator[tuple[TaskManager, Adopter]]:
    """A TaskManager and a JobManager that has adopted it."""
    async with (
        taskmanager_open(**settings) as manager,
        adopt(manager.control_address, secret=manager.config.secret) as client,
    ):
        yield manager, client


async def open_job(client: Adopter, name: str = "test", **settings: Any) -> RemoteJob:
    """A job with buffers of 1 KiB."""
    return await client.open_job(
        settings.pop("job_id", None) or job_id(), name=name, network=settings.pop("network", CONFIG)
    )


def task(attribute: str, *, subtask: int = 0, name: str = "", **parts: Any) -> RemoteTask:
    """A task that runs `userjobs.jobs:attribute`."""
    return RemoteTask(name or attribute, subtask, f"userjobs.jobs:{attribute}", **parts)


def reads(*producers: tuple[RemoteJob, str, int], first: int = 0) -> tuple[RemoteGate, ...]:
    """One gate that reads a subpartition of each of these: (job on a TaskManager, name of the task, its subtask)."""
    return (
        RemoteGate(tuple(RemotePartition(job.data_address, name, number) for job, name, number in producers), first),
    )


async def until(condition: Callable[[], object]) -> None:
    """Waits until something holds; nothing to wait for says when."""
    while not condition():
        with contextlib.suppress(trio.TooSlowError), trio.fail_after(0.001):
            await trio.sleep_forever()


def is_empty(manager: TaskManager) -> bool:
    """Whether nothing of any job is left."""
    return (
        manager.is_idle
        and manager.memory.free_memory_bytes == manager.memory.memory_bytes
        and connections(manager) == len(manager._drivers)
    )


def connections(manager: TaskManager) -> int:
    """How many there are."""
    return manager._admission.statistics().connections


async def tasks_of(manager: TaskManager) -> dict[str, str]:
    """The states of the tasks of its first job."""
    tasks: dict[str, str] = (await manager.statistics())["jobs"][0]["tasks"]
    return tasks


async def count_words(*runs: RemoteJob, words: int = 100) -> None:
    """The next run works: a producer and a consumer on every daemon, all to all."""
    for number, run in enumerate(runs):
        await run.deploy(
            [
                task(
                    "words",
                    subtask=number,
                    parameters={"count": words},
                    subpartitions=len(runs),
                ),
                task(
                    "count",
                    subtask=number,
                    gates=reads(*((job, "words", index) for index, job in enumerate(runs)), first=number),
                ),
            ]
        )
    counted = 0
    for run in runs:
        for _ in range(2):
            event = await run.next_event()
            assert isinstance(event, Ended), event
            if event.task == "count":
                counted += event.result["words"]
    assert counted == words * len(runs)


async def ended(run: RemoteJob) -> Ended | Failed:
    """How its next task ends; what tasks say before is dropped."""
    while True:
        event = await run.next_event()
        if not isinstance(event, Said):
            return event


async def connect(address: str, **settings: Any) -> None:
    """Comes in, and goes."""
    async with open_client(address, **settings):
        raise AssertionError("nobody should be let in")
