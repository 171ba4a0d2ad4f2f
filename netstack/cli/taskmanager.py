"""The command `netstack taskmanager`: a daemon that serves runs until it is stopped.

Takes: flags, or a TOML file with the same names. Gives: a line with the addresses on standard output when it listens;
what comes and goes on standard error. SIGINT and SIGTERM close every run and end it with exit code 0.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import signal
import tomllib
from pathlib import Path
from typing import Any, Final

import click
import trio

from ..daemon.daemon import DaemonConfig, TaskManagerDaemon, open_taskmanager_daemon
from ..errors import ConfigError
from ..runtime.authentication import Secret
from .values import COUNT, LENGTH, SIZE, Parsed

_KINDS: Final[dict[str, Parsed]] = {
    "slots": COUNT,
    "memory_bytes": SIZE,
    "max_connections": COUNT,
    "max_unproven": COUNT,
    "handshake_timeout_s": LENGTH,
    "heartbeat_timeout_s": LENGTH,
}
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "slots": (int,),
    "memory_bytes": (int,),
    "max_connections": (int,),
    "max_unproven": (int,),
    "handshake_timeout_s": (int, float),
    "heartbeat_timeout_s": (int, float),
    "allow": (str, list),
}
_FILE_NAMES: Final = {"memory": "memory_bytes", "handshake_timeout": "handshake_timeout_s"} | {
    "heartbeat_timeout": "heartbeat_timeout_s"
}


@click.command(short_help="A daemon that serves runs.")
@click.option("--listen", metavar="tcp://ADDR:PORT", help="Where it is reached; tcp://127.0.0.1:6121 if not given.")
@click.option("--control", metavar="ADDR:PORT", help="A port of its own for control; else control comes to --listen.")
@click.option("--slots", type=COUNT, help="Subtasks of each task it runs at once; the number of CPUs if not given.")
@click.option("--memory", "memory_bytes", type=SIZE, help="Network buffers of all runs together; 256MiB if not given.")
@click.option("--metrics", metavar="ADDR:PORT", help="Serve Prometheus metrics there.")
@click.option(
    "--secret-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Shared with everybody who may come in; needed for any address but loopback.",
)
@click.option("--allow", multiple=True, metavar="PACKAGE.", help="Run invokables of this package too; repeatable.")
@click.option(
    "--heartbeat-timeout", "heartbeat_timeout_s", type=LENGTH, help="Silence after which a peer is gone; 10s."
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML with these settings, and max_connections, max_unproven, handshake_timeout; flags go first.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one JSON document.")
def taskmanager(config_file: Path | None, as_json: bool, **flags: Any) -> int:
    """A long-lived daemon, one per host: serves any number of runs, several at once within its slots.

    Runs come from netstack-bench run|sweep --hosts, or from whoever uses netstack.daemon. A run whose coordinator dies
    is closed, and everything of it is released.
    """
    settings = {} if config_file is None else read_config(config_file)
    settings |= {name: value for name, value in flags.items() if value is not None and value != ()}
    metrics = settings.pop("metrics", None)
    config = daemon_config(settings)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    trio.run(_serve, config, metrics, as_json)
    return 0


def read_config(path: Path) -> dict[str, Any]:
    """Settings from a TOML file, named as the flags.

    Raises:
        ConfigError: it is no TOML, or names something else.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    known = {field.name for field in dataclasses.fields(DaemonConfig)} - {"secret"} | {"secret_file", "metrics"}
    settings = {}
    for name, value in found.items():
        field = _FILE_NAMES.get(name.replace("-", "_"), name.replace("-", "_"))
        if field not in known:
            names = ", ".join(sorted(known))
            raise ConfigError(f"{path}: there is no setting {name!r}; known are {names}")
        if field in _KINDS and isinstance(value, str):
            try:
                value = _KINDS[field].convert(value, None, None)
            except click.UsageError as error:
                raise ConfigError(f"{path}: {name}: {error.format_message()}") from error
        kinds = _TYPES.get(field, (str,))
        if type(value) not in kinds or (type(value) is list and not all(type(each) is str for each in value)):
            raise ConfigError(f"{path}: {name} = {value!r:.60} is of the wrong type")
        settings[field] = value
    return settings


def daemon_config(settings: dict[str, Any]) -> DaemonConfig:
    """The daemon's settings from those of flags and file.

    Raises:
        ConfigError: one of them cannot work.
    """
    chosen = dict(settings)
    secret_file = chosen.pop("secret_file", None)
    if secret_file is not None:
        chosen["secret"] = Secret.from_file(secret_file)
    for name in ("listen", "control"):
        if chosen.get(name) and "://" not in chosen[name]:
            chosen[name] = f"tcp://{chosen[name]}"
    allow = chosen.pop("allow", ())
    chosen["allow"] = (allow,) if isinstance(allow, str) else tuple(allow)
    return DaemonConfig(**chosen)


async def _serve(config: DaemonConfig, metrics: str | None, as_json: bool) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with open_taskmanager_daemon(config, metrics_address=metrics) as daemon:
            _announce(daemon, as_json)
            async for _ in signals:
                break


def _announce(daemon: TaskManagerDaemon, as_json: bool) -> None:
    addresses = {
        "address": daemon.address,
        "control": daemon.control_address,
        "metrics": daemon.metrics_address,
        "slots": daemon.slots.slots,
        "memory_bytes": daemon.slots.memory_bytes,
        "pid": daemon.facts()["pid"],
    }
    with contextlib.suppress(BrokenPipeError):
        if as_json:
            click.echo(json.dumps({"kind": "ready", **addresses}))
        else:
            shown = "".join(f", {name} at {addresses[name]}" for name in ("metrics",) if addresses[name])
            control = "" if daemon.control_address == daemon.address else f", control at {daemon.control_address}"
            click.echo(f"listening at {daemon.address}{control}{shown}; {daemon.slots.slots} slots")
