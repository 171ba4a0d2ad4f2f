"""`netstack plan`: what a job becomes on a cluster, before anything runs.

Takes: a job and the size of a cluster as flags. Gives: its chains and why, slots, the TaskManager of every subtask,
channels, connections, buffers and regions; as a picture in text, one JSON document, Graphviz, or one HTML page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from ..config import NetworkConfig
from ..json_text import json_text
from ..schedule.plan.as_json import plan_document
from ..schedule.plan.html import plan_html
from ..schedule.plan.plan import Plan, make_plan
from ..schedule.plan.text import plan_text
from ..schedule.slots.slots import LoadBalanceMode
from .job import job_parameters, load_job, parameters_of
from .network_flags import buffer_flags, memory_flags
from .values import COUNT, COUNTS


def _document(plan: Plan) -> str:
    return json_text(plan_document(plan), indent=2) + "\n"


_FORMATS: Final = {"text": plan_text, "json": _document, "html": plan_html}


@click.command(short_help="What a job becomes on a cluster, before anything runs.")
@click.argument("job")
@click.option("--taskmanagers", type=COUNT, help="How many there are; as many as the job takes if not given.")
@click.option("--slots", type=COUNT, help="Of each TaskManager; 1, or with --taskmanagers as many as the job takes.")
@click.option(
    "--taken",
    type=COUNTS,
    default=(),
    help="Slots that other jobs have, of one TaskManager after the other in the order in which they register: 2,0,1.",
)
@click.option(
    "--load-balance",
    type=click.Choice([mode.value for mode in LoadBalanceMode]),
    help="none: exchanges stay local where they can; slots, tasks: spread these. none if not given.",
)
@click.option(
    "--evenly-spread-out-slots", is_flag=True, help="The older switch: slots, unless --load-balance is given."
)
@click.option("--format", "form", type=click.Choice(list(_FORMATS)), default="text", show_default=True)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="A file, instead of standard output.")
@job_parameters
@buffer_flags()
@memory_flags
def plan(
    job: str,
    input_file: Path | None,
    given: tuple[tuple[str, str], ...],
    taskmanagers: int | None,
    slots: int | None,
    taken: tuple[int, ...],
    load_balance: str | None,
    evenly_spread_out_slots: bool,
    form: str,
    output: Path | None,
    memory_bytes: int,
    segment_size_bytes: int,
    exclusive_buffers: int,
    floating_buffers: int,
    max_required: int | None,
) -> int:
    """Plans JOB: chains and why, slots, who runs where, channels, connections, buffers, regions.

    JOB is module:attribute (a StreamEnvironment, StreamGraph or JobGraph, or a function that returns one; the current
    directory is searched) or a JSON job file. Nothing is started. Exit code 1 when the job does not fit.
    """
    made = make_plan(
        load_job(job, parameters_of(input_file, given)),
        taskmanagers=taskmanagers,
        slots=slots,
        taken=taken,
        mode=LoadBalanceMode(load_balance or ("slots" if evenly_spread_out_slots else "none")),
        network=NetworkConfig(
            memory_bytes=memory_bytes,
            segment_size_bytes=segment_size_bytes,
            exclusive_buffers_per_channel=exclusive_buffers,
            floating_buffers_per_gate=floating_buffers,
            max_required_buffers_per_gate=max_required,
        ),
    )
    text = _FORMATS[form](made)
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, "utf-8")
    return 0 if made.is_possible else 1
