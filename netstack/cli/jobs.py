"""The commands that ask a JobManager about jobs: `netstack jobs`, `cancel`, `savepoint`, `submit`.

Takes: ids of jobs, or any beginning of one that no other id has. Gives: tables, or one JSON document.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

import click
import trio

from ..errors import ConfigError, NetstackError
from ..jobmanager.client import PATIENCE_S, Document, JobClient, JobResult, wait_for_job
from .adaptive_flags import adaptive_flags, with_adaptive
from .job import job_parameters, load_stream_graph, parameters_of
from .job_output import job_lines, jobs_table, not_restored_line, print_all, print_results, result_document
from .jobmanager_flags import ask, connected, jobmanager_flags, json_flag, secret_of
from .json_document import print_document
from .values import LENGTH

_LACKS_S: Final = 3.0
"""Between two looks at what a job waits for."""


@click.command(short_help="The jobs of a JobManager, or one of them.")
@click.argument("job_id", metavar="[ID]", required=False)
@jobmanager_flags
@json_flag
def jobs(job_id: str | None, jobmanager: str, secret_file: Path | None, as_json: bool) -> int:
    """Lists jobs, the newest first; or tells all about one job: its tasks, where they run, its log."""

    async def question(client: JobClient) -> Document:
        if job_id is not None:
            return await client.job(job_id)
        return {"jobs": await client.jobs(), "taskmanagers": await client.taskmanagers()}

    document = ask(jobmanager, secret_file, question)
    if as_json:
        print_document(document)
    elif job_id is not None:
        print_all(job_lines(document))
    else:
        taskmanagers = document["taskmanagers"]
        free, slots = (sum(each[name] for each in taskmanagers) for name in ("free_slots", "slots"))
        print_all([f"{len(taskmanagers)} TaskManagers, {free} of {slots} slots free", jobs_table(document["jobs"])])
    return 0


@click.command(short_help="Ends a job.")
@click.argument("job_id", metavar="ID")
@jobmanager_flags
@json_flag
def cancel(job_id: str, jobmanager: str, secret_file: Path | None, as_json: bool) -> int:
    """Cancels a job, and waits until nothing of it runs. Exit code 1 if it had ended otherwise before."""
    state = ask(jobmanager, secret_file, lambda client: client.cancel(job_id))
    if as_json:
        print_document({"job_id": job_id, "state": state})
    else:
        click.echo(state)
    return 0 if state == "canceled" else 1


@click.command(short_help="Saves the state of a job.")
@click.argument("job_id", metavar="ID")
@click.option("--stop", is_flag=True, help="End the job with it.")
@jobmanager_flags
@json_flag
def savepoint(job_id: str, stop: bool, jobmanager: str, secret_file: Path | None, as_json: bool) -> int:
    """Takes a savepoint and prints its folder, for `netstack submit --from`. It stays until somebody removes it."""
    document = ask(jobmanager, secret_file, lambda client: client.savepoint(job_id, stop=stop))
    if as_json:
        print_document(document)
    else:
        click.echo(document["path"])
    return 0


@click.command(short_help="Has a JobManager run a job.")
@click.argument("job")
@job_parameters
@click.option("--wait", is_flag=True, help="Until it has ended; print what its sinks returned.")
@click.option(
    "--patience",
    "patience_s",
    type=LENGTH,
    default=f"{PATIENCE_S:g}s",
    show_default=True,
    help="How long --wait waits for a JobManager that is gone to be started again on its folder.",
)
@click.option(
    "--from", "from_savepoint", metavar="SAVEPOINT", help="Begin from this savepoint or checkpoint, a folder."
)
@click.option(
    "--allow-non-restored-state", is_flag=True, help="With --from: leave behind state of operators JOB does not have."
)
@click.option(
    "--ship", multiple=True, metavar="PACKAGE", help="Send this package, a name or a path, along; repeatable."
)
@adaptive_flags
@jobmanager_flags
@json_flag
def submit(
    job: str,
    input_file: Path | None,
    given: tuple[tuple[str, str], ...],
    wait: bool,
    patience_s: float,
    from_savepoint: str | None,
    allow_non_restored_state: bool,
    ship: tuple[str, ...],
    adaptive: dict[str, int],
    jobmanager: str,
    secret_file: Path | None,
    as_json: bool,
) -> int:
    """Submits JOB, named as for `netstack plan`, and prints its id.

    Its functions are found where TaskManagers run, or sent with --ship to those started with --allow-submitted. Exit
    code 1 if it is refused, or with --wait fails or is canceled. --wait outlives the JobManager's death.
    """
    graph = with_adaptive(load_stream_graph(job, parameters_of(input_file, given)), adaptive)
    if allow_non_restored_state and from_savepoint is None:
        raise ConfigError("--allow-non-restored-state goes with --from; give that too")
    if from_savepoint is not None and os.path.exists(from_savepoint):
        from_savepoint = os.path.abspath(from_savepoint)

    async def question(client: JobClient) -> tuple[str, list[str]]:
        job_id = await client.submit(
            graph, from_savepoint=from_savepoint, allow_non_restored_state=allow_non_restored_state, ship=ship
        )
        return job_id, (await client.job(job_id))["not_restored"] if allow_non_restored_state else []

    job_id, not_restored = ask(jobmanager, secret_file, question)
    if not_restored:
        click.echo(not_restored_line(not_restored), err=True)
    if not wait:
        if as_json:
            print_document({"job_id": job_id})
        else:
            click.echo(job_id)
        return 0
    click.echo(f"job {job_id}", err=True)
    waiting = partial(
        wait_for_job,
        job_id,
        jobmanager,
        secret=secret_of(secret_file),
        name="netstack",
        patience_s=patience_s,
        on_lost=lambda error: click.echo(
            f"lost the JobManager ({error}); waiting for it up to {patience_s:g} s", err=True
        ),
        on_found=lambda: click.echo("a JobManager answers again", err=True),
    )
    result = trio.run(_told_meanwhile, waiting, job_id, jobmanager, secret_file)
    if as_json:
        print_document(result_document(result))
    else:
        print_results(result.results)
    return 0 if result.state == "finished" else 1


async def _told_meanwhile(
    waiting: Callable[[], Awaitable[JobResult]], job_id: str, jobmanager: str, secret_file: Path | None
) -> JobResult:
    """Waits for a job, and says what that waits for itself: else who has no TaskManager waits and knows not why."""
    outcome: JobResult | NetstackError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_print_what_it_lacks, job_id, jobmanager, secret_file)
        try:
            outcome = await waiting()
        except NetstackError as error:  # leaves as it is, not inside this nursery's group
            outcome = error
        nursery.cancel_scope.cancel()
    if isinstance(outcome, NetstackError):
        raise outcome
    return outcome


async def _print_what_it_lacks(job_id: str, jobmanager: str, secret_file: Path | None) -> None:
    printed = ""
    await trio.sleep(_LACKS_S)
    with contextlib.suppress(NetstackError, OSError):  # waiting for the job reports that
        async with connected(jobmanager, secret_file) as client:
            while True:
                lacks = (await client.job(job_id))["waits_for"]
                if lacks and lacks != printed:
                    click.echo(f"it waits for {lacks}", err=True)
                printed = lacks
                await trio.sleep(_LACKS_S)
