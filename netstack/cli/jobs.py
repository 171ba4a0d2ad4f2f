"""The commands `netstack jobs`, `cancel`, `savepoint`, `submit`, `datasets` and `stack`: requests to a JobManager.

Takes: job ids, or any unique prefix of one. Gives: tables, stacks, or one JSON document.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import click
import trio
from rich.table import Table
from rich.text import Text

from ..base.errors import ConfigError, NetstackError
from ..base.text.safe_text import printable_lines, safe_text
from ..base.units import format_duration, format_size
from ..cluster.jobmanager.client import PATIENCE_S, Document, JobClient, JobResult, wait_for_job
from ..network.waiting.threads import background_tasks
from .adaptive_flags import adaptive_flags, with_adaptive
from .job import checked_savepoint, job_parameters, load_stream_graph, parameters_of, savepoint_flags
from .job_output import job_lines, jobs_table, news_lines, not_restored_line, print_all, print_results, result_document
from .jobmanager_flags import call, connected, jobmanager_flags, json_flag, secret_of
from .json_document import print_document
from .values import LENGTH, several

_WAITS_INTERVAL_S: Final = 3.0
"""Interval at which `submit --wait` checks what the job waits for."""


@click.command(short_help="List the jobs of a JobManager, or show one job.")
@click.argument("job_id", metavar="[ID]", required=False)
@jobmanager_flags
@json_flag
def jobs(job_id: str | None, jobmanager: str, secret_file: Path | None, as_json: bool) -> int:
    """List all jobs, the newest first; or show the tasks, placement, failures and log of job ID."""

    async def request(client: JobClient) -> Document:
        if job_id is not None:
            return await client.job(job_id)
        return {"jobs": await client.jobs(), "taskmanagers": await client.taskmanagers()}

    document = call(jobmanager, secret_file, request)
    if as_json:
        print_document(document)
    elif job_id is not None:
        print_all(job_lines(document))
    else:
        taskmanagers = document["taskmanagers"]
        free, slots = (sum(each[name] for each in taskmanagers) for name in ("free_slots", "slots"))
        plural = "" if len(taskmanagers) == 1 else "s"
        head = f"{len(taskmanagers)} TaskManager{plural}, {free} of {slots} slots free"
        print_all([head, jobs_table(document["jobs"])])
    return 0


@click.command(short_help="Cancel a job.")
@click.argument("job_id", metavar="ID")
@jobmanager_flags
@json_flag
def cancel(job_id: str, jobmanager: str, secret_file: Path | None, as_json: bool) -> int:
    """Cancel job ID and wait until all its tasks have ended. The exit code is 1 if it had finished or failed before."""
    state = call(jobmanager, secret_file, lambda client: client.cancel(job_id))
    if as_json:
        print_document({"job_id": job_id, "state": state})
    else:
        click.echo(printable_lines(state))
    return 0 if state == "canceled" else 1


@click.command(short_help="Take a savepoint of a job.")
@click.argument("job_id", metavar="ID")
@click.option("--stop", is_flag=True, help="Stop the job once the savepoint is complete.")
@jobmanager_flags
@json_flag
def savepoint(job_id: str, stop: bool, jobmanager: str, secret_file: Path | None, as_json: bool) -> int:
    """Take a savepoint of job ID and print its folder, for `netstack submit --from`.

    netstack never removes a savepoint.
    """

    async def request(client: JobClient) -> Document:
        async with background_tasks() as nursery:
            nursery.start_soon(tell_progress, client, job_id)
            return await client.savepoint(job_id, stop=stop)

    document = call(jobmanager, secret_file, request)
    if as_json:
        print_document(document)
    else:
        click.echo(printable_lines(str(document["path"])))
    return 0


async def tell_progress(client: JobClient, job_id: str) -> None:
    """Prints the checkpoints in progress on standard error while a savepoint takes long."""
    before = None
    while True:
        await trio.sleep(_WAITS_INTERVAL_S)
        try:
            job = await client.job(job_id)
        except (NetstackError, OSError):  # the savepoint reports it
            return
        pending = job["checkpoints_in_progress"]
        state = [{**each, "age_s": 0, "text": ""} for each in pending]
        if state != before:
            began = any(each["is_savepoint"] for each in pending)
            for each in pending:
                click.echo(printable_lines(("" if began else "the savepoint begins after ") + each["text"]), err=True)
            before = state


@click.command(short_help="Submit a job to a JobManager.")
@click.argument("job")
@job_parameters
@click.option("--wait", is_flag=True, help="Wait until the job has ended and print the results of its sinks.")
@click.option(
    "--patience",
    "patience_s",
    type=LENGTH,
    default=f"{PATIENCE_S:g}s",
    show_default=True,
    help="With --wait: how long to wait for a lost JobManager to be restarted on its folder.",
)
@savepoint_flags
@click.option(
    "--ship",
    **several(),
    metavar="PACKAGE,...",
    help="Send these packages (names or paths) with the job.",
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
    """Submit JOB to a JobManager and print the job's id.

    JOB is MODULE:ATTRIBUTE or a JSON job file, as for `netstack plan`. The job's functions must be importable on the
    TaskManagers; or send them with --ship to TaskManagers that run with --allow-submitted. The exit code is 1 if the
    job is refused, or with --wait if it fails or is cancelled. --wait continues when a failed JobManager is restarted.
    """
    graph = with_adaptive(load_stream_graph(job, parameters_of(input_file, given)), adaptive)
    from_savepoint = checked_savepoint(from_savepoint, allow_non_restored_state)

    async def request(client: JobClient) -> tuple[str, list[str]]:
        job_id = await client.submit(
            graph, from_savepoint=from_savepoint, allow_non_restored_state=allow_non_restored_state, ship=ship
        )
        return job_id, (await client.job(job_id))["not_restored"] if allow_non_restored_state else []

    job_id, not_restored = call(jobmanager, secret_file, request)
    if not_restored:
        click.echo(printable_lines(not_restored_line(not_restored)), err=True)
    if not wait:
        if as_json:
            print_document({"job_id": job_id})
        else:
            click.echo(printable_lines(job_id))
        return 0
    click.echo(printable_lines(f"job {job_id}"), err=True)
    waiting = partial(
        wait_for_job,
        job_id,
        jobmanager,
        secret=secret_of(secret_file),
        name="netstack",
        patience_s=patience_s,
        on_lost=lambda error: click.echo(
            printable_lines(f"lost the JobManager ({error}); waiting up to {patience_s:g} s for it to return"),
            err=True,
        ),
        on_found=lambda: click.echo("connected to a JobManager again", err=True),
    )
    result = trio.run(_wait_and_report, waiting, job_id, jobmanager, secret_file)
    if as_json:
        print_document(result_document(result))
    else:
        print_results(result.results)
    return 0 if result.state == "finished" else 1


async def _wait_and_report(
    waiting: Callable[[], Awaitable[JobResult]], job_id: str, jobmanager: str, secret_file: Path | None
) -> JobResult:
    """Waits for a job, and prints its failures and what it waits for, such as slots of a missing TaskManager."""
    outcome: JobResult | NetstackError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_print_waits, job_id, jobmanager, secret_file)
        try:
            outcome = await waiting()
        except NetstackError as error:  # keeps this nursery from wrapping it in a group
            outcome = error
        nursery.cancel_scope.cancel()
    if isinstance(outcome, NetstackError):
        raise outcome
    return outcome


async def _print_waits(job_id: str, jobmanager: str, secret_file: Path | None) -> None:
    before: Document | None = None
    await trio.sleep(_WAITS_INTERVAL_S)
    with contextlib.suppress(NetstackError, OSError):  # `waiting` reports these
        async with connected(jobmanager, secret_file) as client:
            while True:
                job = await client.job(job_id)
                for line in news_lines(job, before):
                    click.echo(printable_lines(line), err=True)
                before = job
                await trio.sleep(_WAITS_INTERVAL_S)


@click.command(short_help="List or release the datasets that jobs kept.")
@click.option("--release", multiple=True, metavar="NAME", help="Release this dataset; repeatable.")
@jobmanager_flags
@json_flag
def datasets(release: tuple[str, ...], jobmanager: str, secret_file: Path | None, as_json: bool) -> int:
    """List the datasets that jobs kept with `stream.persist(NAME)`, or release some of them.

    A later job reads a dataset with `job.dataset(NAME)`. The TaskManagers that wrote a dataset keep it. While one of
    them is missing, the dataset cannot be read.
    """

    async def request(client: JobClient) -> Document:
        for name in release:
            await client.release_dataset(name)
        return {"datasets": await client.datasets()}

    document = call(jobmanager, secret_file, request)
    if as_json:
        print_document(document)
    else:
        print_all([datasets_table(document["datasets"])])
    return 0


def datasets_table(datasets: Iterable[Document]) -> Table:
    """A table of datasets."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("dataset", "bytes", "partitions", "job", "age", ""):
        table.add_column(name, justify="right" if name in ("bytes", "partitions") else "left")
    for each in datasets:
        missing = len(each["missing"])
        table.add_row(
            each["dataset_id"],
            format_size(each["bytes"]),
            str(each["partitions"]),
            f"{each['job_name']} {each['job_id']}",
            format_duration(float(round(each["age_s"]))),
            Text(f"{missing} of its TaskManagers missing", "red") if missing else "",
        )
    return table


@click.command(short_help="Print the Python stacks of a job's tasks.")
@click.argument("job_id", metavar="ID")
@click.argument("vertex", metavar="[VERTEX]", required=False)
@jobmanager_flags
@json_flag
def stack(job_id: str, vertex: str | None, jobmanager: str, secret_file: Path | None, as_json: bool) -> int:
    """Print the Python stack of each task of job ID, or only of the tasks whose name contains VERTEX.

    A waiting task shows the line where it waits. If user code blocks the event loop of a slot, the stack is read from
    outside the process's interpreter, so this works even while a C extension holds the GIL.
    """
    document = call(jobmanager, secret_file, lambda client: client.stacks(job_id))
    if vertex is not None:
        document = {**document, "tasks": [row for row in document["tasks"] if vertex in str(row.get("task"))]}
        if not document["tasks"]:
            raise ConfigError(
                f"job {job_id} has no running task whose name contains {vertex!r}; omit VERTEX to see all tasks"
            )
    if as_json:
        print_document(document)
        return 0
    for line in stack_lines(document):
        click.echo(line)
    return 0


def stack_lines(document: Document) -> Iterator[str]:
    """Formats the stacks as Python formats tracebacks, with the outermost frame first."""
    if not document["tasks"] and not document["silent"]:
        yield "no task runs now; `netstack jobs ID` shows why"
    for row in document["tasks"]:
        task = f"{row.get('task')} ({row.get('subtask')})" if row.get("task") else "unknown task"
        slot = "" if row.get("slot") is None else f", slot {row['slot']}"
        state = ": blocked" if row.get("is_blocked") else ""
        yield safe_text(f"{task} on {row.get('taskmanager')}{slot}{state}", 400)
        frames = row.get("frames") or []
        if not frames:
            yield "  the stack could not be read"
        for frame in reversed(frames):
            yield safe_text(f'  File "{frame.get("file")}", line {frame.get("line")}, in {frame.get("function")}', 400)
            if frame.get("source"):
                yield safe_text(f"    {frame['source']}", 240)
        yield ""
    for name in document["silent"]:
        yield safe_text(f"{name} did not answer", 400)
