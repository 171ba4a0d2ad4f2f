"""Formats what commands print about jobs: results, lists, details.

Takes: documents of a JobManager. Gives: text, or one JSON document.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ..base.text.json_text import json_text
from ..base.text.safe_text import printable_lines, safe_text
from ..base.units import counted, format_count, format_latency
from ..cluster.jobmanager.client import Document, JobResult

_SHOWN_SUBTASKS = 16

ENDED = frozenset({"finished", "canceled", "failed"})

_STYLES = {
    "running": "green",
    "finished": "dim",
    "failed": "red",
    "canceled": "yellow",
    "restarting": "yellow",
    "failing": "red",
    "cancelling": "yellow",
}


def result_document(result: JobResult) -> Document:
    """The result of a job as plain data."""
    return {"job_id": result.job_id, "state": result.state, "reason": result.reason, "results": result.results}


def print_results(results: Mapping[str, Mapping[int, Any]]) -> None:
    """Prints the results of sinks: a line per value, or per item of a list; with headings if several sinks returned."""
    returned = {
        operator: {subtask: value for subtask, value in sorted(values.items()) if value is not None}
        for operator, values in results.items()
    }
    returned = {operator: values for operator, values in returned.items() if values}
    for operator, values in returned.items():
        if len(returned) > 1:
            click.echo(f"{safe_text(operator)}:")
        for value in values.values():
            for item in value if isinstance(value, list) else [value]:
                click.echo(printable_lines(item if isinstance(item, str) else json_text(item)))


def jobs_table(jobs: Iterable[Document]) -> Table:
    """A table of jobs, the newest first."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("id", "job", "state", "tasks", "restarts", "checkpoints", "since", ""):
        table.add_column(name, justify="right" if name in ("restarts", "checkpoints") else "left", no_wrap=name != "")
    for job in reversed([*jobs]):
        table.add_row(
            Text(job["job_id"]),
            Text(job["name"]),
            state_text(job["state"]),
            states_text(job["tasks"]),
            str(job["restarts"]),
            str(job["checkpoints_completed"]),
            _ago(job["age_s"]),
            Text(f"waits for {counted(job['missing_slots'], 'slot')}" if job["missing_slots"] else job["reason"]),
        )
    return table


def job_lines(job: Document) -> list[RenderableType]:
    """The details of one job: state, vertices, failures, checkpoints, log."""
    lines: list[RenderableType] = [
        Text.assemble(
            (job["name"], "bold"),
            f"  {job['job_id']}  ",
            state_text(job["state"]),
            f"  restarts {job['restarts']}  checkpoints {job['checkpoints_completed']}",
        )
    ]
    if job["reason"]:
        lines.append(Text(job["reason"], style=_STYLES.get(job["state"], "")))
    if job["waits_for"]:
        lines.append(Text(f"waits for {job['waits_for']}", style="yellow"))
    if job.get("not_restored"):
        lines.append(Text(not_restored_line(job["not_restored"])))
    for blocked in job.get("blocked", ()):
        lines.append(Text(f"{blocked['taskmanager']}, slot {blocked['slot']}: {blocked['text']}", style="yellow"))
    if job["vertices"]:
        lines.append(vertices_table(job["vertices"]))
        lines += map(Text, decided_lines(job["vertices"]))
        lines += map(Text, kept_lines(job["vertices"]))
        lines += map(Text, latency_lines(job["vertices"]))
        uids = [f"{name} is {uid!r}" for each in job["vertices"] for name, uid in each.get("uids", {}).items()]
        if uids:
            lines.append(Text(f"uids in checkpoints: {', '.join(uids)}"))
    for pending in job["checkpoints_in_progress"]:
        lines.append(Text(pending["text"], style="yellow"))
    lines += failure_lines(job["failures"], job["failures_left_out"])
    if job["last_checkpoint"]:
        last = job["last_checkpoint"]
        lines.append(Text(f"checkpoint {last['checkpoint_id']}: {last['path']}"))
    if job.get("left_out"):
        lines.append(Text(f"the job is too large to show all: without {', '.join(job['left_out'])}", style="yellow"))
    for entry in job["log"][-8:]:
        lines.append(Text(f"{time.strftime('%H:%M:%S', time.localtime(entry['at']))} {entry['text']}", "dim"))
    return lines


def news_lines(job: Document, before: Document | None) -> list[str]:
    """Lists what is new since `before`: failures that led to restarts, and what the job waits for."""
    last = max((each["at"] for each in before["failures"]), default=0.0) if before else 0.0
    is_ending = job["state"] in ("failing", "failed")  # its last failure is reported at the end
    lines = [f"{each['text']}; {each['led_to']}" for each in job["failures"] if each["at"] > last and not is_ending]
    if job["waits_for"] and (before is None or before["waits_for"] != job["waits_for"]):
        lines.append(f"the job waits for {job['waits_for']}")
    return lines


def not_restored_line(left: Sequence[str]) -> str:
    """Lists operators of the savepoint whose state was not restored."""
    return f"state not restored, because the job does not have these operators: {', '.join(left)}"


def failure_lines(failures: Sequence[Document], left_out: int) -> list[Text]:
    """One line per failure, and the traceback of the newest."""
    lines = []
    for number, each in enumerate(failures):
        at = time.strftime("%H:%M:%S", time.localtime(each["at"]))
        lines.append(Text(f"{at} {each['text']}; result: {each['led_to']}", "red"))
        if not number and left_out:
            lines.append(Text(f"({left_out} more failures were dropped from the log)", "dim"))
    if failures and failures[-1]["traceback"]:
        lines.append(Text(failures[-1]["traceback"]))
    return lines


def decided_lines(vertices: Iterable[Document]) -> list[str]:
    """The decisions of the adaptive batch scheduler: parallelism, steps of the formula, and each subtask's input."""
    lines = []
    for vertex in vertices:
        decided = vertex.get("decided")
        if decided is None:
            continue
        lines.append(f"{vertex['name']}: parallelism {vertex['parallelism']}, chosen at run time")
        lines += [f"  {step}" for step in decided["steps"]]
        sizes = [f"{size:,}" for size in decided["bytes_per_subtask"]]
        if sizes:  # empty for a source, whose size is unknown
            lines.append(f"  bytes read by each subtask: {' '.join(sizes[:_SHOWN_SUBTASKS])}{_more(len(sizes))}")
        for given in decided["inputs"]:
            reads = [
                "+".join(f"{piece['subpartitions'][0]}-{piece['subpartitions'][1]}" for piece in pieces)
                for pieces in given["reads"]
            ]
            numbers = " ".join(reads[:_SHOWN_SUBTASKS])
            lines.append(f"  subpartitions of {given['dataset']} read by each subtask: {numbers}{_more(len(reads))}")
    return lines


def kept_lines(vertices: Iterable[Document]) -> list[str]:
    """The size of the partitions that vertices stored in files, and the compressed share."""
    lines = []
    for vertex in vertices:
        kept = vertex.get("kept")
        if kept is not None and kept["bytes"]:
            share = kept["compressed_bytes"] / kept["bytes"]
            lines.append(
                f"{vertex['name']}: {kept['bytes']:,} bytes stored as {kept['stored_bytes']:,} bytes, {share:.0%} of"
                " them compressed"
            )
    return lines


def latency_lines(vertices: Iterable[Document]) -> list[str]:
    """The latency of records from sources and from upstream vertices to each vertex; `>=` marks lower bounds."""

    def text(row: Document, name: str) -> str:
        return f"{'>= ' if name in row['at_least'] else ''}{format_latency(row[name])}"

    def markers(row: Document) -> str:
        return counted(row["count"], "marker") + (f" and {row['waiting']:,} in queues" if row["waiting"] else "")

    return [
        f"latency from {each['from']} to {vertex['name']}: p50 {text(each, 'p50_us')}, p99 {text(each, 'p99_us')}, max"
        f" {text(each, 'max_us')} of {markers(each)}"
        for vertex in vertices
        for each in vertex.get("latencies", ())
    ]


def _more(count: int) -> str:
    return "" if count <= _SHOWN_SUBTASKS else f" and {count - _SHOWN_SUBTASKS} more"


def vertices_table(
    vertices: Iterable[Document], rates: Mapping[str, tuple[float, float]] | None = None, *, places: bool = True
) -> Table:
    """A table of job vertices.

    Args:
        vertices: the vertices of a job's document.
        rates: records per second, in and out, by vertex; None omits the columns.
        places: whether to list the TaskManagers of the subtasks.
    """
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("task", overflow="fold")
    table.add_column("subtasks")
    for name in ("in", "out") if rates is None else ("in", "in/s", "out", "out/s"):
        table.add_column(name, justify="right", no_wrap=True)
    if places:
        table.add_column("where", overflow="fold")
    for vertex in vertices:
        numbers = [format_count(vertex["records_in"]), format_count(vertex["records_out"])]
        if rates is not None:
            in_rate, out_rate = rates.get(vertex["name"], (0.0, 0.0))
            numbers = [numbers[0], format_count(round(in_rate)), numbers[1], format_count(round(out_rate))]
        row: list[str | Text] = [Text(vertex["name"]), _subtasks_text(vertex), *numbers]
        if places:
            row.append(Text(_places(vertex["subtasks"])))
        table.add_row(*row)
    return table


def state_text(state: str) -> Text:
    """A state in the colour of its kind."""
    return Text(state, style=_STYLES.get(state, ""))


def states_text(states: Mapping[str, int]) -> Text:
    """The number of tasks in each state."""
    return Text(", ").join(Text(f"{count} {state}", style=_STYLES.get(state, "")) for state, count in states.items())


def print_all(lines: Iterable[RenderableType]) -> None:
    """Prints lines on standard output; a pipe gets lines of up to 200 characters without wrapping.

    Names and reasons are other users' texts: they are printed as they are, without rich's markup, and without
    characters that a terminal would obey.
    """
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=200)
    for line in lines:
        console.print(_Printable(line))


@final
class _Printable:
    """What rich draws, with its unprintable characters escaped."""

    def __init__(self, drawn: RenderableType) -> None:
        self._drawn = drawn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for text, style, control in console.render(self._drawn, options):
            yield Segment(text if control else printable_lines(text), style, control)


def _subtasks_text(vertex: Document) -> Text:
    states: dict[str, int] = dict(vertex.get("left_out", {}))
    for subtask in vertex["subtasks"]:
        states[subtask["state"]] = states.get(subtask["state"], 0) + 1
    return states_text(states)


def _places(subtasks: Iterable[Document]) -> str:
    by_taskmanager: dict[str, list[str]] = {}
    for subtask in subtasks:
        if subtask["taskmanager"] is not None:
            by_taskmanager.setdefault(subtask["taskmanager"], []).append(str(subtask["subtask"]))
    return ", ".join(f"{name}: {_ranges(numbers)}" for name, numbers in by_taskmanager.items())


def _ranges(numbers: list[str]) -> str:
    return " ".join(numbers) if len(numbers) <= 8 else f"{numbers[0]}..{numbers[-1]} ({len(numbers)})"


def _ago(age_s: float) -> str:
    seconds = round(age_s)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
