"""The command `netstack tune`: finds the bottleneck of a running job, proposes settings and can apply them.

Takes: a running job. Gives: its bottleneck and proposals, as text or as one JSON document; with `--apply` the same job
with changed settings, restarted from a savepoint.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
import trio

from ..base.config import NetworkConfig
from ..base.errors import ConfigError, RequestRefused
from ..base.text.safe_text import printable_lines
from ..base.units import format_count, format_duration
from ..cluster.jobmanager.client import Document, JobClient
from ..cluster.jobmanager.views.tuning import Proposal, changed, measured, proposals
from .jobmanager_flags import call, jobmanager_flags, json_flag
from .json_document import print_document
from .values import SECONDS

_LOOK_S: Final = 1.0
_START_S: Final = 60.0


@click.command(short_help="Find a running job's bottleneck and propose settings.")
@click.argument("job_id", metavar="ID")
@click.option("--seconds", type=SECONDS, default="5s", show_default=True, help="How long to measure.")
@click.option(
    "--apply", is_flag=True, help="Stop the job with a savepoint and restart it from there with the new settings."
)
@jobmanager_flags
@json_flag
def tune(job_id: str, seconds: float, apply: bool, jobmanager: str, secret_file: Path | None, as_json: bool) -> int:
    """Measure job ID for a while, report its bottleneck, and propose settings to change.

    With --apply the job is stopped with a savepoint, restarted from there under a new id with the proposed settings,
    and measured again. If the JobManager refuses the changed job, the old one is restarted from the savepoint.
    """
    if not seconds or seconds < 2 * _LOOK_S:
        raise ConfigError(f"--seconds {seconds:g}: give {2 * _LOOK_S:g}s or more; a rate needs two samples")

    async def request(client: JobClient) -> Document:
        return await tuned(client, job_id, seconds, apply)

    document = call(jobmanager, secret_file, request)
    if as_json:
        print_document(document)
    else:
        for line in tune_lines(document):
            click.echo(printable_lines(line))
    return 0


async def tuned(client: JobClient, job_id: str, seconds: float, apply: bool) -> Document:
    """Measures a job. Returns the JSON document: `before`, `proposals`, and with `apply` the results of the change.

    Raises:
        ConfigError: the job does not run, or its settings cannot be changed; the text says what to do.

    Cancellation: a job that was already stopped is not restarted; its savepoint stays.
    """
    definition = await client.definition(job_id)
    looks, columns = await _looks(client, definition["job_id"], seconds)
    before = measured(looks, columns)
    slots = await _slots_for(client, definition["job_id"])
    suggested = proposals(looks, definition["document"], columns, NetworkConfig(), slots)
    document: Document = {
        "job_id": definition["job_id"],
        "name": looks[-1][1]["name"],
        "before": asdict(before),
        "proposals": [asdict(each) for each in suggested],
        "new_job_id": None,
        "savepoint": None,
        "after": None,
    }
    if apply and suggested:
        document |= await _apply(client, definition, suggested, seconds)
    return document


async def _looks(client: JobClient, job_id: str, seconds: float) -> tuple[list[tuple[float, Document]], list[str]]:
    """Samples the job once a second, beginning with the first sample that has the load of its tasks."""
    looks: list[tuple[float, Document]] = []
    columns: list[str] = []
    with trio.move_on_after(_START_S + seconds):
        while not looks or looks[-1][0] - looks[0][0] < seconds:
            snapshot = await client.look()
            job = next((each for each in snapshot["jobs"] if each["job_id"] == job_id), None)
            if job is None or job["ended_at"] is not None:
                raise ConfigError(f"job {job_id} has ended; tune measures running jobs only")
            columns = snapshot["channel_columns"]
            running = [each["state"] == "running" for vertex in job["vertices"] for each in vertex["subtasks"]]
            if running and all(running) and _has_load(job):
                looks.append((trio.current_time(), job))
            await trio.sleep(_LOOK_S)
    if len(looks) < 2:
        raise ConfigError(
            f"not all tasks of job {job_id} ran for {seconds:g} s; `netstack jobs {job_id}` shows what it waits for"
        )
    return looks, columns


async def _slots_for(client: JobClient, job_id: str) -> int:
    """The number of slots that a job has or could get."""
    return sum(each["free_slots"] + len(each["jobs"].get(job_id, ())) for each in await client.taskmanagers())


def _has_load(job: Document) -> bool:
    return any(each.get("busy") is not None for vertex in job["vertices"] for each in vertex["subtasks"])


async def _apply(client: JobClient, definition: Document, suggested: list[Proposal], seconds: float) -> Document:
    document = changed(definition["document"], suggested)
    if definition["code"]:
        raise ConfigError(
            "this job was submitted with --ship, and its code is removed when it stops: stop it with `netstack"
            " savepoint ID --stop`, change the settings in your program, and submit it again with --ship and --from"
        )
    saved = await client.savepoint(definition["job_id"], stop=True)
    try:
        job_id = await client.resubmit({**definition, "document": document}, from_savepoint=saved["path"])
    except RequestRefused as error:
        old = await client.resubmit(definition, from_savepoint=saved["path"])
        raise ConfigError(f"the changed job was refused ({error}); the old job was restarted as {old}") from error
    await _looks(client, job_id, seconds)  # the records that were in flight are read first
    looks, columns = await _looks(client, job_id, seconds)
    return {"new_job_id": job_id, "savepoint": saved["path"], "after": asdict(measured(looks, columns))}


def tune_lines(document: Document) -> list[str]:
    """Formats the document as text."""
    lines = [f"{document['name']} ({document['job_id']}): {_measured_line(document['before'])}"]
    lines += [f"  bottleneck: {_bottleneck_text(document['before'])}"]
    for each in document["proposals"]:
        lines.append(f"  {each['setting']}: {_value(each, 'before')} -> {_value(each, 'after')}")
        lines.append(f"      {each['why']}")
    if not document["proposals"]:
        lines.append("  no setting would remove this bottleneck")
    elif document["after"] is None:
        lines.append(f"  to apply the proposals: netstack tune {document['job_id']} --apply")
    else:
        lines.append(
            f"restarted as {document['new_job_id']} from {document['savepoint']}: {_measured_line(document['after'])}"
        )
        lines.append(f"  bottleneck: {_bottleneck_text(document['after'])}")
    return lines


def _measured_line(document: Document) -> str:
    rate = format_count(round(document["records_per_s"]))
    return f"{rate} records/s read by operators after the sources, over {document['seconds']:.0f} s"


def _bottleneck_text(document: Document) -> str:
    return "unknown" if document["bottleneck"] is None else str(document["bottleneck"]["text"])


def _value(each: Document, side: str) -> str:
    value: Any = each[side]
    if value is None:
        return "none"
    return format_duration(value) if each["path"][-1].endswith("_s") else format_count(value)
