"""`netstack taskmanager --isolate`: a process for each slot: what user code does to its process it does to its slot.

Takes: the settings of one TaskManager. Gives: as many processes of one slot each, started again when they die, until
cancelled.

An operator that calls `os._exit`, crashes the interpreter or eats memory ends what runs in its slot: one subtask of
each vertex of one job. The JobManager loses a TaskManager of one slot, and restarts the regions that were there; tasks
of other slots and jobs go on. Between slots of one host records go over loopback, and not by reference.
"""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import trio

from ..config import MIB
from ..errors import ConfigError
from ..jobmanager.children import LocalTaskManagers, TaskManagerSettings, open_local_taskmanagers
from ..taskmanager.service import TaskManagerConfig
from ..transport import url_parts

LOGGER: Final = logging.getLogger("netstack.taskmanager")

_LAST_PORT: Final = 65_535


def check_isolated(config: TaskManagerConfig, metrics: str | None) -> None:
    """Refuses what a process for each slot cannot do.

    Raises:
        ConfigError: it says which flag, and what to do.
    """
    if config.jobmanager is None:
        raise ConfigError("--isolate goes with --jobmanager: the process of each slot registers there by itself")
    if config.control is not None:
        raise ConfigError("--isolate with --control: nobody dials in to control a slot; drop it")
    if config.memory_bytes // config.slots < MIB:
        raise ConfigError(
            f"--isolate: {config.slots} slots share {config.memory_bytes} bytes of --memory; give at least"
            f" {config.slots}MiB"
        )
    for flag, address in (("--listen", config.listen), ("--metrics", metrics and _url(metrics))):
        port = address and url_parts(address).port
        if port and port + config.slots - 1 > _LAST_PORT:
            raise ConfigError(f"--isolate {flag}: {config.slots} ports from {port} on are wanted, one for each slot")


def slot_flags(
    config: TaskManagerConfig, slot: int, metrics: str | None, process_memory_bytes: int | None, file: Path | None
) -> tuple[str, ...]:
    """What the process of a slot is started with, beside its share of what all have."""
    name = config.name or socket.gethostname()
    words = ["--no-isolate", "--name", f"{name}/{slot}", "--listen", counted_up(config.listen, slot)]
    words += ["--heartbeat-timeout", f"{config.heartbeat_timeout_s:g}s"]
    words += ["--segment-size", str(config.network.segment_size_bytes)]
    if config.network.shuffle_directory is not None:
        words += ["--shuffle-directory", config.network.shuffle_directory]
    if config.network.shuffle_disk_bytes is not None:
        words += ["--shuffle-disk", str(config.network.shuffle_disk_bytes // config.slots)]
    if config.allow_submitted:
        words.append("--allow-submitted")
    if metrics is not None:
        words += ["--metrics", counted_up(_url(metrics), slot).removeprefix("tcp://")]
    if process_memory_bytes is not None:
        words += ["--process-memory", str(process_memory_bytes)]
    if file is not None:
        words += ["--config", str(file)]
    return tuple(words)


def counted_up(address: str, slot: int) -> str:
    """The address of a slot: the port is counted up from that of slot 0; 0 stays 0."""
    parts = url_parts(address)
    if not parts.port:
        return address
    host = parts.netloc.rpartition(":")[0]
    return parts._replace(netloc=f"{host}:{parts.port + slot}").geturl()


def _url(metrics: str) -> str:
    return metrics if "://" in metrics else f"tcp://{metrics}"


async def serve_isolated(
    config: TaskManagerConfig,
    metrics: str | None,
    process_memory_bytes: int | None,
    file: Path | None,
    *,
    task_status: trio.TaskStatus[LocalTaskManagers] = trio.TASK_STATUS_IGNORED,
) -> None:
    """A process for each slot, until cancelled; `task_status` is told when they are started."""
    assert config.jobmanager is not None
    settings = TaskManagerSettings(
        slots=1,
        memory_bytes=config.memory_bytes // config.slots,
        allow=config.allow,
        flags_of=lambda name: slot_flags(config, int(name), metrics, process_memory_bytes, file),
    )
    async with open_local_taskmanagers(
        config.jobmanager,
        [str(slot) for slot in range(config.slots)],
        settings,
        secret=config.secret,
        on_printed=_pass_on,
        on_logged=_log,
        on_death=_tell_death,
    ) as found:
        task_status.started(found)
        await trio.sleep(math.inf)


def _pass_on(_slot: str, line: str) -> None:
    click.echo(line)


def _log(slot: str, line: str) -> None:
    click.echo(f"slot {slot}: {line}", err=True)


def _tell_death(slot: str, how: str) -> None:
    LOGGER.warning("slot %s: %s; another process takes its place", slot, how)


def announced(found: LocalTaskManagers, config: TaskManagerConfig) -> dict[str, Any]:
    """What is said when the processes are started."""
    return {"isolated": True, "slots": config.slots, "jobmanager": config.jobmanager, "pids": _sorted(found.pids)}


def _sorted(pids: dict[str, int]) -> Sequence[int]:
    return [pids[name] for name in sorted(pids, key=int)]
