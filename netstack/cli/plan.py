"""`netstack plan`: what a job becomes on a cluster, before anything runs.

Takes: a job and the size of a cluster as flags. Gives: its chains and why, slots, the TaskManager of every subtask,
channels, connections, buffers and regions; as a picture in text, one JSON document, Graphviz, or one HTML page.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any, Final

import click

from ..config import NetworkConfig
from ..errors import ConfigError
from ..schedule.graph.job_file import read_job
from ..schedule.graph.job_graph import JobGraph
from ..schedule.graph.stream_builder import StreamEnvironment
from ..schedule.graph.stream_graph import StreamGraph
from ..schedule.plan.as_json import plan_document
from ..schedule.plan.dot import plan_dot
from ..schedule.plan.html import plan_html
from ..schedule.plan.plan import Plan, make_plan
from ..schedule.plan.text import plan_text
from ..schedule.slots.slots import LoadBalanceMode, load_balance_mode
from .network_flags import buffer_flags, memory_flags
from .values import COUNT


def _document(plan: Plan) -> str:
    return json.dumps(plan_document(plan), indent=2, ensure_ascii=False) + "\n"


_FORMATS: Final = {"text": plan_text, "json": _document, "dot": plan_dot, "html": plan_html}


@click.command(short_help="What a job becomes on a cluster, before anything runs.")
@click.argument("job")
@click.option("--taskmanagers", type=COUNT, help="How many there are; as many as the job takes if not given.")
@click.option("--slots", type=COUNT, help="Of each TaskManager; 1, or with --taskmanagers as many as the job takes.")
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
@buffer_flags()
@memory_flags
def plan(
    job: str,
    taskmanagers: int | None,
    slots: int | None,
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
        load_job(job),
        taskmanagers=taskmanagers,
        slots=slots,
        mode=load_balance_mode(LoadBalanceMode(load_balance) if load_balance else None, evenly_spread_out_slots),
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


def load_job(name: str) -> StreamGraph | JobGraph:
    """The job that a word of the command line stands for.

    Args:
        name: path of a job file, or `module:attribute`.

    Raises:
        ConfigError: there is no such file or attribute, or it is no job.
    """
    path = Path(name)
    if path.suffix == ".json" or path.is_file():
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"job file {name!r} cannot be read: {error}") from error
        try:
            return read_job(text, name=path.stem)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error
    return _as_graph(name, _imported(name))


def _imported(name: str) -> Any:
    module, separator, path = name.partition(":")
    if not separator or not module or not path:
        raise ConfigError(f"{name!r} is no job; give module:attribute, or the path of a JSON job file")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
        for attribute in path.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{name!r} is not there: {error}; run this where the module can be imported") from error
    return found


def _as_graph(name: str, found: Any) -> StreamGraph | JobGraph:
    if callable(found) and not isinstance(found, StreamEnvironment):
        try:
            inspect.signature(found).bind()
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{name!r} cannot be called without arguments: {error}") from error
        found = found()
    if isinstance(found, StreamEnvironment):
        found = found.stream_graph()
    if not isinstance(found, StreamGraph | JobGraph):
        raise ConfigError(
            f"{name!r} is a {type(found).__name__}; give a StreamEnvironment, a StreamGraph, a JobGraph, or a function"
            " that returns one"
        )
    return found
