"""Daemons and coordinators of one process, for tests."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from netstack.config import NetworkConfig
from netstack.daemon.client import DaemonClient, RemoteRun, open_daemon
from netstack.daemon.daemon import DaemonConfig, TaskManagerDaemon, open_taskmanager_daemon
from netstack.daemon.messages import TaskDescriptor
from netstack.ids import ChannelDescriptor
from netstack.schedule.descriptors.descriptors import PartitionDescriptor

MEMORY_BYTES = 4 << 20
CONFIG = NetworkConfig(segment_size_bytes=1024, memory_bytes=1 << 20)

SLOW_IMPORT_BEGAN = threading.Event()
SLOW_IMPORT_MAY_END = threading.Event()

_numbers = itertools.count(1)


def virtual(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs an async test in virtual time. What would hang fails; threads make the clock run far ahead."""
    return _running(test, 1e9, lambda: trio.testing.MockClock(autojump_threshold=0))


def real(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs an async test in real time; what would hang fails after thirty seconds."""
    return _running(test, 30, lambda: None)


def _running(test: Callable[..., Awaitable[None]], seconds: float, clock: Callable[[], Any]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **keywords: Any) -> None:
        async def main() -> None:
            with trio.fail_after(seconds):
                await test(*arguments, **keywords)

        trio.run(main, clock=clock())

    return run


def run_id() -> str:
    """A new one."""
    return f"{next(_numbers):016x}"


@asynccontextmanager
async def daemon_open(**settings: Any) -> AsyncIterator[TaskManagerDaemon]:
    """A daemon of four slots that runs `daemonjobs`."""
    chosen = {
        "listen": f"memory://daemon{next(_numbers)}",
        "slots": 4,
        "memory_bytes": MEMORY_BYTES,
        "allow": ("daemonjobs.",),
    }
    async with open_taskmanager_daemon(DaemonConfig(**{**chosen, **settings})) as daemon:
        yield daemon


@asynccontextmanager
async def pair_open(**settings: Any) -> AsyncIterator[tuple[TaskManagerDaemon, DaemonClient]]:
    """A daemon and a coordinator."""
    async with (
        daemon_open(**settings) as daemon,
        open_daemon(daemon.control_address, secret=daemon.config.secret) as client,
    ):
        yield daemon, client


async def open_run(client: DaemonClient, name: str = "test", *, slots: int = 1, **settings: Any) -> RemoteRun:
    """A run with buffers of 1 KiB."""
    timeout_s = settings.pop("slot_timeout_s", 5.0)
    return await client.open_run(
        settings.pop("run_id", None) or run_id(),
        name=name,
        slots=slots,
        config=settings.pop("config", CONFIG),
        slot_timeout_s=timeout_s,
    )


def job(attribute: str, *, subtask: int = 0, task: str = "", **parts: Any) -> TaskDescriptor:
    """A task that runs `daemonjobs.jobs:attribute`."""
    return TaskDescriptor(task or attribute, subtask, f"daemonjobs.jobs:{attribute}", **parts)


def output(name: str, subpartitions: int = 1) -> tuple[PartitionDescriptor, ...]:
    """One partition."""
    return (PartitionDescriptor(name, subpartitions),)


def inputs(*runs: RemoteRun, name: str, subpartition: int = 0) -> tuple[tuple[ChannelDescriptor, ...], ...]:
    """One gate that reads the partition of this name on every daemon."""
    return (tuple(ChannelDescriptor(run.data_address, name, subpartition) for run in runs),)


async def until(condition: Callable[[], object]) -> None:
    """Waits until something holds; nothing to wait for says when."""
    while not condition():
        with contextlib.suppress(trio.TooSlowError), trio.fail_after(0.001):
            await trio.sleep_forever()


def is_empty(daemon: TaskManagerDaemon) -> bool:
    """Whether nothing of any run is left."""
    found = daemon.statistics()
    return (
        not found["runs"]
        and daemon.slots.free_slots == daemon.slots.slots
        and daemon.slots.free_memory_bytes == daemon.slots.memory_bytes
        and found["connections"] == len(found["coordinators"])
    )
