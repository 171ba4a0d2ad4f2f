"""The command `netstack stack`: where the code of a job's tasks is at this moment.

Takes: a job, perhaps one of its vertices. Gives: a Python stack for each task, or one JSON document.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from ..errors import ConfigError
from ..jobmanager.client import Document
from ..shown import shown_text
from .jobmanager_flags import ask, jobmanager_flags, json_flag
from .json_document import print_document


@click.command(short_help="The Python stacks of a job's tasks.")
@click.argument("job_id", metavar="JOB")
@click.argument("vertex", metavar="[VERTEX]", required=False)
@jobmanager_flags
@json_flag
def stack(job_id: str, vertex: str | None, jobmanager: str, secret_file: Path | None, as_json: bool) -> int:
    """Prints the Python stack of each task of JOB, or of each task whose name contains VERTEX.

    A task that waits shows where it waits. Of a slot whose code keeps the event loop from turning the stack is taken
    from outside, also while a C extension holds the interpreter.
    """
    document = ask(jobmanager, secret_file, lambda client: client.stacks(job_id))
    if vertex is not None:
        document = {**document, "tasks": [row for row in document["tasks"] if vertex in str(row.get("task"))]}
        if not document["tasks"]:
            raise ConfigError(
                f"no task of job {job_id} whose name contains {vertex!r} runs now; leave it out to see all"
            )
    if as_json:
        print_document(document)
        return 0
    for line in stack_lines(document):
        click.echo(line)
    return 0


def stack_lines(document: Document) -> Iterator[str]:
    """The stacks as text, the outermost frame first, as Python prints tracebacks."""
    for row in document["tasks"]:
        task = f"{row.get('task')} ({row.get('subtask')})" if row.get("task") else "a task that is not known"
        slot = "" if row.get("slot") is None else f", slot {row['slot']}"
        state = ": blocked" if row.get("is_blocked") else ""
        yield shown_text(f"{task} on {row.get('taskmanager')}{slot}{state}", 400)
        frames = row.get("frames") or []
        if not frames:
            yield "  its stack could not be read"
        for frame in reversed(frames):
            yield shown_text(f'  File "{frame.get("file")}", line {frame.get("line")}, in {frame.get("function")}', 400)
            if frame.get("source"):
                yield shown_text(f"    {frame['source']}", 240)
        yield ""
    for name in document["silent"]:
        yield shown_text(f"{name} did not answer", 400)
