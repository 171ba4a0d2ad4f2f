"""The command `netstack stack`: prints the current Python stack of each task of a job.

Takes: a job and optionally one of its vertices. Gives: a Python stack for each task, or one JSON document.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from ..base.errors import ConfigError
from ..base.text.safe_text import safe_text
from ..cluster.jobmanager.client import Document
from .jobmanager_flags import call, jobmanager_flags, json_flag
from .json_document import print_document


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
