"""What tests of whole TaskManagers share: clocks, addresses, and that nothing is left."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import trio
import trio.testing

from netstack.base.config import NetworkConfig
from netstack.base.ids import ChannelDescriptor
from netstack.network.environment import NetworkEnvironment
from netstack.network.handles import InputGate
from netstack.network.reader import RecordReader
from netstack_transports.shm import unsupported

CONFIG = NetworkConfig(segment_size_bytes=1024, memory_bytes=64 * 1024, heartbeat_interval_s=None)
SCHEMES = ["memory", "tcp", "unix", *(() if unsupported() else ("shm",))]
numbers = itertools.count()


def url(scheme: str = "memory", folder: Path | None = None) -> str:
    match scheme:
        case "tcp":
            return "tcp://127.0.0.1:0"
        case "unix":
            return f"unix://{folder}/{next(numbers)}.sock"
        case "shm":
            return f"shm://task-manager-{os.getpid()}-{next(numbers)}"
        case _:
            return f"memory://task-manager-{next(numbers)}"


def channels(manager: NetworkEnvironment, name: str = "p", count: int = 1) -> list[ChannelDescriptor]:
    return [ChannelDescriptor(manager.address, name, index) for index in range(count)]


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def read_all(gate: InputGate, into: list[list[Any]]) -> None:
    reader = RecordReader(gate)
    while (records := await reader.next_records()) is not None:
        into[reader.channel_index] += records


def assert_nothing_left(*managers: NetworkEnvironment) -> None:
    for manager in managers:
        statistics = manager.statistics()
        assert statistics.pool.lent_segments == 0
        assert (statistics.partitions, statistics.accepted, statistics.dialled, statistics.gates) == ((), (), (), ())
