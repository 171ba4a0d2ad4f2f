"""How parallelism is decided that nobody set: flags with the names of Flink's options.

Takes: words of the command line. Gives: `AdaptiveSettings`, or a job with them.

Flink's options are `execution.batch.adaptive.auto-parallelism.` and the name of the flag.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, Final, TypeVar

import click

from ..errors import ConfigError
from ..schedule.graph.settings import AdaptiveSettings
from ..schedule.graph.stream_graph import StreamGraph
from .values import COUNT, SIZE

_Command = TypeVar("_Command", bound=Callable[..., Any])

_DEFAULTS: Final = AdaptiveSettings()
_FLAGS: Final = (
    click.option("--min-parallelism", type=COUNT, help=f"Fewest subtasks of a vertex; {_DEFAULTS.min_parallelism}."),
    click.option("--max-parallelism", type=COUNT, help=f"Most subtasks of a vertex; {_DEFAULTS.max_parallelism}."),
    click.option(
        "--avg-data-volume-per-task",
        "data_volume_per_task_bytes",
        type=SIZE,
        help=f"What a subtask should read; {_DEFAULTS.data_volume_per_task_bytes >> 20}MiB.",
    ),
    click.option(
        "--default-source-parallelism",
        type=COUNT,
        help="Most subtasks of a source, and as many as one has that cannot tell its size; --max-parallelism.",
    ),
)
_NAMES: Final = (
    "min_parallelism",
    "max_parallelism",
    "data_volume_per_task_bytes",
    "default_source_parallelism",
)


def adaptive_flags(command: _Command) -> _Command:
    """Adds `adaptive`: of the settings of `AdaptiveSettings` those that were given, for adaptive batch jobs."""

    @wraps(command)
    def collected(*words: Any, **flags: Any) -> Any:
        given = {name: flags.pop(name) for name in _NAMES}
        return command(*words, adaptive={name: value for name, value in given.items() if value is not None}, **flags)

    made: Any = collected
    for flag in reversed(_FLAGS):
        made = flag(made)
    return made  # type: ignore[no-any-return]


def adaptive_settings(given: dict[str, int]) -> AdaptiveSettings:
    """What was given, and else the defaults.

    Raises:
        ConfigError: bounds that nothing fits.
    """
    return replace(_DEFAULTS, **given)  # type: ignore[arg-type]


def with_adaptive(graph: StreamGraph, given: dict[str, int]) -> StreamGraph:
    """A job with what was given; the rest is as the job says.

    Raises:
        ConfigError: bounds that nothing fits, or a job that has every parallelism already.
    """
    if not given:
        return graph
    if not graph.settings.is_dynamic:
        raise ConfigError(
            f"job {graph.name!r} is not dynamic: its parallelism is set, and there is nothing to decide; leave these"
            " flags out, or write the job with is_dynamic"
        )
    adaptive = replace(graph.settings.adaptive or _DEFAULTS, **given)  # type: ignore[arg-type]
    return replace(graph, settings=replace(graph.settings, adaptive=adaptive))
