"""The command `netstack jobmanager`: the service that runs jobs on TaskManagers.

Takes: flags. Gives: a line with its address on standard output once it listens; the log on standard error. SIGINT and
SIGTERM end it with exit code 0. Unfinished jobs stay in its folder; the next JobManager on that folder resumes them.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import click
import trio

from ..base.transport import full_url
from ..cluster.jobmanager.client import DEFAULT_ADDRESS
from ..cluster.jobmanager.config import JobManagerConfig
from ..cluster.jobmanager.service import open_jobmanager
from ..cluster.jobmanager.views.metrics import serve_metrics
from ..network.connection.authentication import Secret
from ..schedule.descriptors.blob_store import OffloadRule
from ..schedule.slots.slots import LoadBalanceMode
from .adaptive_flags import adaptive_flags, adaptive_settings
from .jobmanager_flags import json_flag, secret_flag
from .json_document import print_document
from .logs import log_flag, set_up_logging
from .network_flags import load_balance_flag, metrics_flag
from .values import COUNT, LENGTH, SIZE, several

_DEFAULTS = JobManagerConfig()


@click.command(short_help="Start a JobManager, the service that runs jobs.")
@click.option(
    "--listen", metavar="tcp://ADDR:PORT", default=DEFAULT_ADDRESS, show_default=True, help="Address to listen on."
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    show_default="a temporary folder",
    help="Folder for jobs and their checkpoints. A JobManager that is started on it later resumes the jobs.",
)
@click.option(
    "--standby",
    "is_standby",
    is_flag=True,
    help="Wait until the JobManager that owns --folder has ended or been silent for 5 s, then take over its jobs.",
)
@secret_flag
@click.option(
    "--client-secret-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A second secret for clients: it allows them to submit and query jobs, but not to register a TaskManager.",
)
@click.option(
    "--shared",
    "is_shared",
    is_flag=True,
    help="Allow every client to cancel and save the jobs of other clients.",
)
@load_balance_flag
@click.option(
    "--slot-timeout",
    "slot_timeout_s",
    type=LENGTH,
    default=f"{_DEFAULTS.slot_timeout_s:g}s",
    show_default=True,
    help="How long a job waits for slots before it fails.",
)
@click.option(
    "--heartbeat-timeout",
    "heartbeat_timeout_s",
    type=LENGTH,
    default=f"{_DEFAULTS.heartbeat_timeout_s:g}s",
    show_default=True,
    help="Silence after which a TaskManager is declared lost.",
)
@click.option(
    "--datasets",
    "datasets_bytes",
    type=SIZE,
    show_default="no limit",
    help="Maximum size of all datasets that jobs keep; beyond it the oldest are released.",
)
@click.option(
    "--offload-size",
    "offload_bytes",
    type=SIZE,
    default=f"{_DEFAULTS.offload.min_size_bytes // 1024}KiB",
    show_default=True,
    help="Deployment data that tasks share is sent once per TaskManager if it has at least this size, else with each"
    " task.",
)
@click.option(
    "--offload-descriptors",
    type=COUNT,
    default=_DEFAULTS.offload.min_products,
    show_default=True,
    help="Partition locations of an exchange are sent once per TaskManager if producers times consumers is at least"
    " this number.",
)
@adaptive_flags
@click.option(
    "--require-tls", is_flag=True, help="Listen with TLS only, and refuse TaskManagers that exchange data without TLS."
)
@click.option(
    "--checkpoint-root",
    "checkpoint_roots",
    type=click.Path(file_okay=False, path_type=Path),
    multiple=True,
    show_default="any folder",
    help="Folder below which jobs may store checkpoints and savepoints; repeatable.",
)
@click.option(
    "--web",
    metavar="ADDR:PORT",
    help="Serve a live web page and a REST interface at this address; for TLS write tls+tcp://ADDR:PORT.",
)
@click.option(
    "--web-name",
    "web_names",
    metavar="NAME,...",
    **several(),
    help="Additional host names in the page's URL, besides the names of this host.",
)
@metrics_flag
@click.option(
    "--web-submit", is_flag=True, help="Allow the web page to cancel and save jobs; without it the page is read-only."
)
@log_flag
@json_flag
def jobmanager(
    listen: str,
    folder: Path | None,
    is_standby: bool,
    secret_file: Path | None,
    client_secret_file: Path | None,
    is_shared: bool,
    load_balance: str | None,
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
    """Start a JobManager. TaskManagers register their slots with it; clients submit jobs to it and query them.

    Ctrl-C or SIGTERM stops it. With --folder, unfinished jobs resume when a JobManager is started on that folder again.
    """
    config = JobManagerConfig(
        listen=full_url(listen),
        folder=None if folder is None else str(folder.absolute()),
        is_standby=is_standby,
        secret=None if secret_file is None else Secret.from_file(secret_file),
        client_secret=None if client_secret_file is None else Secret.from_file(client_secret_file),
        is_shared=is_shared,
        load_balance=LoadBalanceMode(load_balance or "none"),
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
                from ..cluster.web.serve import open_web  # without --web neither h11 nor starlette is needed

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
                    folder = config.folder or "a temporary folder"
                    addresses = f"; web page: {page}" if page else ""
                    addresses += f"; metrics: {scraped}" if scraped else ""
                    click.echo(f"listening at {manager.address}; jobs are stored in {folder}{addresses}")
            async for _ in signals:
                break
