"""The command `netstack taskmanager`: the service that runs the tasks of jobs.

Takes: flags, or a TOML file with the same names. Gives: a line with the addresses on standard output once it listens;
the log on standard error. SIGINT and SIGTERM close every job and end the TaskManager with exit code 0.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import threading
import time
import tomllib
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import trio

from ..base.config import NetworkConfig
from ..base.errors import ConfigError
from ..base.tls.tls_files import dial_as
from ..base.transport import full_url
from ..base.units import counted
from ..cluster.taskmanager.config import CONNECT_TIMEOUT_S, TaskManagerConfig
from ..cluster.taskmanager.fork_server import start_fork_server
from ..cluster.taskmanager.memory import short_collections
from ..cluster.taskmanager.runner import open_taskmanager
from ..cluster.taskmanager.service import TaskManager
from ..cluster.taskmanager.slot_main import check_process_memory, limit_memory, slot_main
from ..cluster.taskmanager.slot_pool import SlotProcesses, counted_up
from ..cluster.taskmanager.slot_settings import SlotSettings
from ..network.connection.authentication import Secret
from .jobmanager_flags import ADDRESS_VARIABLE, SECRET_VARIABLE
from .json_document import print_document
from .logs import log_flag, set_up_logging
from .network_flags import acts_as_flag, max_record_flag, metrics_flag
from .values import COUNT, LENGTH, SIZE, Parsed, several

_IDLE_CHECK_S: Final = 10.0
_GRACE_S: Final = 5.0
"""Time that an orphaned process has to end by itself; user code may be blocking its event loop."""

_KINDS: Final[dict[str, Parsed]] = {
    "slots": COUNT,
    "memory_bytes": SIZE,
    "max_connections": COUNT,
    "max_unproven": COUNT,
    "handshake_timeout_s": LENGTH,
    "heartbeat_timeout_s": LENGTH,
    "cancellation_timeout_s": LENGTH,
    "segment_size_bytes": SIZE,
    "shuffle_disk_bytes": SIZE,
    "max_record_bytes": SIZE,
    "process_memory_bytes": SIZE,
    "blob_cache_bytes": SIZE,
}
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    name: (int, float) if kind is LENGTH else (int,) for name, kind in _KINDS.items()
} | {"allow": (str, list), "allow_submitted": (bool,), "shared_memory": (bool,)}
PROCESSES: Final = "processes"
LOOP: Final = "loop"
_NETWORK: Final = ("acts_as", "segment_size_bytes", "max_record_bytes", "shuffle_directory", "shuffle_disk_bytes")
_FILE_NAMES: Final = {
    "as": "acts_as",
    "memory": "memory_bytes",
    "segment_size": "segment_size_bytes",
    "process_memory": "process_memory_bytes",
    "blob_cache": "blob_cache_bytes",
    "cancellation_timeout": "cancellation_timeout_s",
    "handshake_timeout": "handshake_timeout_s",
} | {"heartbeat_timeout": "heartbeat_timeout_s", "shuffle_disk": "shuffle_disk_bytes", "max_record": "max_record_bytes"}


@click.command(short_help="Start a TaskManager, the service that runs tasks.")
@click.option("--listen", metavar="tcp://ADDR:PORT", show_default="tcp://127.0.0.1:6121", help="Address to listen on.")
@click.option(
    "--control", metavar="ADDR:PORT", show_default="--listen", help="Separate address for control connections."
)
@click.option(
    "--jobmanager",
    metavar="ADDR:PORT",
    show_default=f"${ADDRESS_VARIABLE}",
    help="JobManager to register with; without one, wait for a JobManager to connect.",
)
@click.option("--name", show_default="the host name", help="Name of this TaskManager in reports.")
@click.option("--slots", type=COUNT, show_default="number of CPUs", help="Number of slots.")
@click.option(
    "--memory", "memory_bytes", type=SIZE, show_default="256MiB", help="Memory for the network buffers of all jobs."
)
@metrics_flag
@click.option(
    "--secret-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    show_default=f"${SECRET_VARIABLE}",
    help="File with the secret that all processes of the cluster share. Required for every address but loopback.",
)
@click.option(
    "--allow",
    **several(),
    metavar="PACKAGE.|MODULE:,...",
    help="Also run functions of these packages (shop.) or of these modules (words: or shop.daily:). '*' allows every"
    " package.",
)
@click.option("--allow-submitted", is_flag=True, default=None, help="Run packages that clients send with --ship.")
@click.option(
    "--segment-size",
    "segment_size_bytes",
    type=SIZE,
    show_default="32KiB",
    help="Size of one network buffer.",
)
@acts_as_flag
@max_record_flag
@click.option(
    "--shuffle-directory",
    type=click.Path(exists=True, file_okay=False),
    show_default="the system's temporary folder",
    help="Folder for the partitions that batch jobs store between stages.",
)
@click.option(
    "--shuffle-disk",
    "shuffle_disk_bytes",
    type=SIZE,
    show_default="no limit",
    help="Maximum size of the partitions in --shuffle-directory.",
)
@click.option(
    "--blob-cache",
    "blob_cache_bytes",
    type=SIZE,
    show_default="100MiB",
    help="Maximum size of the files in which each process caches shared deployment data and packages of jobs.",
)
@click.option(
    "--heartbeat-timeout",
    "heartbeat_timeout_s",
    type=LENGTH,
    show_default="10s",
    help="Silence after which a peer is declared lost.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file with these settings and max_connections, max_unproven, handshake_timeout. Flags override the file.",
)
@click.option(
    "--slots-in",
    type=click.Choice([PROCESSES, LOOP]),
    show_default=PROCESSES,
    help="processes: each slot is a process, so slots run in parallel and are isolated from each other; loop: all slots"
    " share one process and one event loop.",
)
@click.option(
    "--cancellation-timeout",
    "cancellation_timeout_s",
    type=LENGTH,
    show_default="30s",
    help="Time that cancelled tasks have to stop before the process of their slot is killed.",
)
@click.option(
    "--process-memory",
    "process_memory_bytes",
    type=SIZE,
    show_default="no limit",
    help="Memory limit of the process of each slot; an operator that exceeds it gets a MemoryError.",
)
@click.option(
    "--shared-memory/--no-shared-memory",
    default=None,
    show_default="shared-memory",
    help="Whether slot processes of one host exchange data through shared memory instead of TCP.",
)
@click.option("--until-eof", is_flag=True, help="End when standard input is closed; for parent processes.")
@log_flag
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one JSON document.")
def taskmanager(config_file: Path | None, until_eof: bool, log_kind: str, as_json: bool, **flags: Any) -> int:
    """Start a TaskManager, which runs tasks of any number of jobs in its slots. Usually one runs on each host.

    It registers with the JobManager of --jobmanager. Without --jobmanager it waits for one to connect, as
    `netstack-bench run --hosts` and `netstack-bench sweep --hosts` do. If the JobManager of a job is lost, the
    TaskManager cancels the job's tasks and releases everything they hold. Ctrl-C or SIGTERM stops it.
    """
    settings = from_environment()
    if config_file is not None:
        settings |= read_config(config_file)
    settings |= {name: value for name, value in flags.items() if value is not None and value != ()}
    metrics = settings.pop("metrics", None)
    slots_in = settings.pop("slots_in", None)
    process_memory_bytes = settings.pop("process_memory_bytes", None)
    config = taskmanager_config(settings)
    dial_as(config.listen)  # before the slot processes start
    set_up_logging(log_kind)
    processes = None
    if slots_in not in (None, PROCESSES, LOOP):
        raise ConfigError(f"slots_in = {slots_in!r:.60} is unknown; give {PROCESSES} or {LOOP}")
    if slots_in != LOOP:
        if process_memory_bytes is not None:
            check_process_memory(process_memory_bytes)
        slots = SlotSettings(config=config, process_memory_bytes=process_memory_bytes)
        processes = SlotProcesses(slots, start_fork_server(partial(slot_main, slots)), metrics)
        metrics = None if metrics is None else counted_up(metrics, config.slots)
    else:
        if process_memory_bytes is not None:
            limit_memory(process_memory_bytes)
        if "" not in sys.path:
            sys.path.append("")  # finds the modules of jobs in the current directory, as `netstack submit` does
    try:
        trio.run(_serve, config, metrics, processes, as_json, until_eof)
    finally:
        if processes is not None:
            processes.close()
    return 0


def from_environment() -> dict[str, Any]:
    """Settings from environment variables; the file and the flags override them."""
    settings = {"jobmanager": os.environ.get(ADDRESS_VARIABLE), "secret_file": os.environ.get(SECRET_VARIABLE)}
    return {name: value for name, value in settings.items() if value}


def read_config(path: Path) -> dict[str, Any]:
    """Reads settings, named as the flags, from a TOML file.

    Raises:
        ConfigError: the file is no TOML, or contains an unknown setting.
    """
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    known = {field.name for field in dataclasses.fields(TaskManagerConfig)} - {
        "secret",
        "network",
        "link_in_thread",
        "in_slot",
        "kept_folder",
        "kept_prefix",
    }
    known |= {"secret_file", "metrics", "slots_in", "process_memory_bytes", *_NETWORK}
    settings = {}
    for name, value in given.items():
        field = _FILE_NAMES.get(name.replace("-", "_"), name.replace("-", "_"))
        if field not in known:
            flags = {field: flag for flag, field in _FILE_NAMES.items()}
            names = ", ".join(sorted(flags.get(field, field).replace("_", "-") for field in known))
            raise ConfigError(f"{path}: unknown setting {name!r}; the settings are {names}")
        if _KINDS.get(field) is LENGTH and type(value) in _TYPES[field] and value and not name.endswith("_s"):
            raise ConfigError(f'{path}: {name} = {value} has no unit: write "{value}ms" or "{value}s"')
        if field in _KINDS and isinstance(value, str):
            try:
                value = _KINDS[field].convert(value, None, None)
            except click.UsageError as error:
                raise ConfigError(f"{path}: {name}: {error.format_message()}") from error
        kinds = _TYPES.get(field, (str,))
        if type(value) not in kinds or (type(value) is list and not all(type(each) is str for each in value)):
            types = " or ".join(kind.__name__ for kind in kinds)
            raise ConfigError(f"{path}: {name} = {value!r:.60} has the wrong type; give {types}")
        settings[field] = value
    return settings


def taskmanager_config(settings: dict[str, Any]) -> TaskManagerConfig:
    """Builds the TaskManager's configuration from the settings of flags, file and environment.

    Raises:
        ConfigError: a setting has an invalid value.
    """
    chosen = dict(settings)
    secret_file = chosen.pop("secret_file", None)
    if secret_file is not None:
        chosen["secret"] = Secret.from_file(secret_file)
    network = {name: chosen.pop(name) for name in _NETWORK if name in chosen}
    if network:
        profile = network.pop("acts_as", "netstack")
        least = 4 * network.get("segment_size_bytes", NetworkConfig().segment_size_bytes)
        chosen["network"] = NetworkConfig.acting_as(
            profile, memory_bytes=least, connect_timeout_s=CONNECT_TIMEOUT_S, **network
        )
    for name in ("listen", "control"):
        if chosen.get(name):
            chosen[name] = full_url(chosen[name])
    allow = chosen.pop("allow", ())
    chosen["allow"] = (allow,) if isinstance(allow, str) else tuple(allow)
    return TaskManagerConfig(**chosen)


async def _serve(
    config: TaskManagerConfig,
    metrics: str | None,
    processes: SlotProcesses | None,
    as_json: bool,
    until_eof: bool,
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals, trio.CancelScope() as scope:
        async with (
            open_taskmanager(config, metrics_address=metrics, processes=processes) as manager,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_keep_collections_short, manager)
            if until_eof:
                _end_when_left(scope)
            if as_json or not until_eof:  # a child's standard output carries only what its operators print
                nursery.start_soon(_announce, manager, processes, as_json)
            async for _ in signals:
                break
            nursery.cancel_scope.cancel()


async def _keep_collections_short(manager: TaskManager) -> None:
    with short_collections() as release:
        while True:
            await trio.sleep(_IDLE_CHECK_S)
            if manager.is_idle:
                release()


def _end_when_left(scope: trio.CancelScope) -> None:
    token = trio.lowlevel.current_trio_token()
    threading.Thread(target=_end_at_eof, args=(token, scope), name="until eof", daemon=True).start()


def _end_at_eof(token: trio.lowlevel.TrioToken, scope: trio.CancelScope) -> None:
    """Ends the process when standard input is closed. Runs in a thread, since user code may block the event loop."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    with contextlib.suppress(trio.RunFinishedError):
        token.run_sync_soon(scope.cancel)
    time.sleep(_GRACE_S)
    os._exit(1)


async def _announce(manager: TaskManager, processes: SlotProcesses | None, as_json: bool) -> None:
    metrics: str | None = manager.metrics_address
    if processes is not None:
        await processes.wait_ready()
        served = [*(slot.metrics for slot in processes.slots), metrics]
        metrics = ", ".join(each for each in served if each is not None) or None
    addresses = {
        "address": manager.address,
        "control": manager.control_address,
        "metrics": metrics,
        "slots": manager.config.slots,
        "memory_bytes": manager.memory.memory_bytes,
        "pid": manager.facts()["pid"],
    }
    with contextlib.suppress(BrokenPipeError):
        if as_json:
            print_document({"kind": "ready", **addresses})
        else:
            others = "".join(f", {name} at {addresses[name]}" for name in ("metrics",) if addresses[name])
            control = "" if manager.control_address == manager.address else f", control at {manager.control_address}"
            slots = counted(manager.config.slots, "slot")
            click.echo(f"listening at {manager.address}{control}{others}; {slots}")
