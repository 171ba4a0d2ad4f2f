"""The command `netstack jobmanager`: the service that runs jobs on TaskManagers, until it is stopped.

Takes: flags. Gives: a line with its address on standard output when it listens; what happens to jobs on standard error.
SIGINT and SIGTERM end it with exit code 0; jobs that have not ended stay in its folder, for the next one to go on with.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import click
import trio

from ..jobmanager.client import DEFAULT_ADDRESS
from ..jobmanager.config import JobManagerConfig
from ..jobmanager.metrics import serve_metrics
from ..jobmanager.service import open_jobmanager
from ..runtime.authentication import Secret
from ..schedule.descriptors.blob_store import OffloadRule
from ..schedule.slots.slots import LoadBalanceMode
from .adaptive_flags import adaptive_flags, adaptive_settings
from .jobmanager_flags import json_flag, secret_flag
from .json_document import print_document
from .logs import log_flag, set_up_logging
from .values import COUNT, LENGTH, SIZE

_DEFAULTS = JobManagerConfig()


@click.command(short_help="A service that runs jobs on TaskManagers.")
@click.option(
    "--listen", metavar="tcp://ADDR:PORT", default=DEFAULT_ADDRESS, show_default=True, help="Where it is reached."
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Jobs and their checkpoints; the next JobManager on it goes on with them. If not given, they go with it.",
)
@click.option(
    "--standby",
    "is_standby",
    is_flag=True,
    help="Wait until the JobManager that has --folder is dead, or silent for 5 s; then go on with its jobs.",
)
@secret_flag
@click.option(
    "--client-secret-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Another secret, for those who submit and ask: whoever has only this is no TaskManager.",
)
@click.option(
    "--shared",
    "is_shared",
    is_flag=True,
    help="Whoever has the clients' secret may cancel and save the jobs of others, too.",
)
@click.option(
    "--load-balance",
    type=click.Choice([mode.value for mode in LoadBalanceMode]),
    default=LoadBalanceMode.NONE.value,
    show_default=True,
    help="none: exchanges stay local where they can; slots, tasks: spread these.",
)
@click.option(
    "--slot-timeout",
    "slot_timeout_s",
    type=LENGTH,
    default=f"{_DEFAULTS.slot_timeout_s:g}s",
    show_default=True,
    help="How long tasks wait for slots before they fail.",
)
@click.option(
    "--heartbeat-timeout",
    "heartbeat_timeout_s",
    type=LENGTH,
    default=f"{_DEFAULTS.heartbeat_timeout_s:g}s",
    show_default=True,
    help="Silence after which a TaskManager is lost.",
)
@click.option(
    "--datasets",
    "datasets_bytes",
    type=SIZE,
    help="Most bytes of all datasets that jobs leave; then the oldest go. If not given, as the disks allow.",
)
@click.option(
    "--offload-size",
    "offload_bytes",
    type=SIZE,
    default=f"{_DEFAULTS.offload.min_size_bytes // 1024}KiB",
    show_default=True,
    help="What the tasks of a job or of a vertex share goes once to each TaskManager if it is at least so long, and"
    " else with each task.",
)
@click.option(
    "--offload-descriptors",
    type=COUNT,
    default=_DEFAULTS.offload.min_products,
    show_default=True,
    help="So do the places of what tasks read, where producers times consumers are at least so many.",
)
@adaptive_flags
@click.option(
    "--require-tls", is_flag=True, help="Refuse TaskManagers whose data go without TLS, and to listen without."
)
@click.option(
    "--checkpoint-root",
    "checkpoint_roots",
    type=click.Path(file_okay=False, path_type=Path),
    multiple=True,
    help="Folders that jobs name for checkpoints, and savepoints, have to lie below; repeat it for more. If not given,"
    " they lie anywhere.",
)
@click.option(
    "--web",
    metavar="ADDR:PORT",
    help="Serve a live page and a REST interface there; tls+tcp://ADDR:PORT: over TLS.",
)
@click.option(
    "--web-name",
    "web_names",
    metavar="NAME",
    multiple=True,
    help="A name under which the page is asked, beside those of this host.",
)
@click.option("--metrics", metavar="ADDR:PORT", help="Serve Prometheus metrics there; tls+tcp://ADDR:PORT: over TLS.")
@click.option("--web-submit", is_flag=True, help="Jobs may be cancelled and saved from the page; else it only shows.")
@log_flag
@json_flag
def jobmanager(
    listen: str,
    folder: Path | None,
    is_standby: bool,
    secret_file: Path | None,
    client_secret_file: Path | None,
    is_shared: bool,
    load_balance: str,
    slot_timeout_s: float,
    heartbeat_timeout_s: float,
    datasets_bytes: int | None,
    offload_bytes: int,
    offload_descriptors: int,
    adaptive: dict[str, int],
    require_tls: bool,
    checkpoint_roots: tuple[Path, ...],
    web: str | None,
    web_names: tuple[str, ...],
    metrics: str | None,
    web_submit: bool,
    log_kind: str,
    as_json: bool,
) -> int:
    """A JobManager: TaskManagers dial it and offer their slots, clients submit jobs and ask how they are."""
    config = JobManagerConfig(
        listen=listen if "://" in listen else f"tcp://{listen}",
        folder=None if folder is None else str(folder.absolute()),
        is_standby=is_standby,
        secret=None if secret_file is None else Secret.from_file(secret_file),
        client_secret=None if client_secret_file is None else Secret.from_file(client_secret_file),
        is_shared=is_shared,
        load_balance=LoadBalanceMode(load_balance),
        slot_timeout_s=slot_timeout_s,
        heartbeat_timeout_s=heartbeat_timeout_s,
        require_tls=require_tls,
        datasets_bytes=datasets_bytes,
        offload=OffloadRule(offload_bytes, offload_descriptors),
        adaptive=adaptive_settings(adaptive),
        checkpoint_roots=tuple(str(root.absolute()) for root in checkpoint_roots),
    )
    set_up_logging(log_kind)
    trio.run(_serve, config, web, web_names, web_submit, metrics, as_json)
    return 0


async def _serve(
    config: JobManagerConfig,
    web: str | None,
    web_names: tuple[str, ...],
    may_change: bool,
    metrics: str | None,
    as_json: bool,
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with open_jobmanager(config) as manager, contextlib.AsyncExitStack() as stack:
            page = scraped = None
            if metrics is not None:
                scraped = await stack.enter_async_context(serve_metrics(manager, metrics))
            if web is not None:
                from ..web.serve import open_web  # without --web neither hypercorn nor starlette is needed

                served = open_web(
                    manager,
                    web,
                    secret=config.secret,
                    client_secret=config.client_secret,
                    may_change=may_change,
                    names=web_names,
                )
                page = await stack.enter_async_context(served)
            with contextlib.suppress(BrokenPipeError):
                if as_json:
                    ready = {"kind": "ready", "address": manager.address, "folder": config.folder, "pid": os.getpid()}
                    ready |= {"web": page, "metrics": scraped}
                    print_document(ready)
                else:
                    where = config.folder or "a folder that goes with it"
                    addresses = f"; the page is {page}" if page else ""
                    addresses += f"; metrics are at {scraped}" if scraped else ""
                    click.echo(f"listening at {manager.address}; jobs are kept in {where}{addresses}")
            async for _ in signals:
                break
