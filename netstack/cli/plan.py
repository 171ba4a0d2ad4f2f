"""The command `netstack plan`: shows how a job would be scheduled, without running it.

Takes: a job and the size of a cluster as flags. Gives: operator chains with reasons, slots, the TaskManager of every
subtask, channels, connections, buffers and regions; as text, one JSON document, or one HTML page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from ..base.config import NetworkConfig
from ..base.text.json_text import json_text
from ..schedule.plan.as_json import plan_document
from ..schedule.plan.html import plan_html
from ..schedule.plan.plan import Plan, SlotsIn, make_plan
from ..schedule.plan.text import plan_text
from ..schedule.slots.slots import LoadBalanceMode
from .job import job_parameters, load_job, parameters_of
from .network_flags import buffer_flags, load_balance_flag, memory_flags, slots_in_flag
from .values import COUNT, COUNTS


def _document(plan: Plan) -> str:
    return json_text(plan_document(plan), indent=2) + "\n"


_FORMATS: Final = {"text": plan_text, "json": _document, "html": plan_html}


@click.command(short_help="Show how a job would be scheduled, without running it.")
@click.argument("job")
@click.option("--taskmanagers", type=COUNT, show_default="as many as the job needs", help="Number of TaskManagers.")
@click.option(
    "--slots",
    type=COUNT,
    show_default="1; with --taskmanagers as many as the job needs",
    help="Slots of each TaskManager.",
)
@click.option(
    "--taken",
    type=COUNTS,
    default=(),
    help="Slots that other jobs use on each TaskManager, in the order of registration, such as 2,0,1.",
)
@slots_in_flag
@load_balance_flag
@click.option("--evenly-spread-out-slots", is_flag=True, hidden=True)  # the name of `--load-balance slots` in 0.3
@click.option(
    "--format", "form", type=click.Choice(list(_FORMATS)), default="text", show_default=True, help="Output format."
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write to FILE instead of standard output.",
)
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
    slots_in: str,
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
    """Show operator chains, slots, placement, channels, connections, network buffers and regions of JOB.

    JOB is MODULE:ATTRIBUTE or a JSON job file. The attribute is a StreamEnvironment, a StreamGraph, a JobGraph, or a
    function that returns one of them; the current directory is searched for the module. No process is started. The exit
    code is 1 if the job does not fit into the cluster.
    """
    made = make_plan(
        load_job(job, parameters_of(input_file, given)),
        taskmanagers=taskmanagers,
        slots=slots,
        taken=taken,
        slots_in=SlotsIn(slots_in),
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
