"""Command-line flags of the adaptive batch scheduler, which chooses the parallelism that a job leaves open.

Takes: command-line arguments. Gives: `AdaptiveSettings`, or a job with them.

Each flag is named as Flink's option, without the prefix `execution.batch.adaptive.auto-parallelism.`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, Final, TypeVar

import click

from ..base.errors import ConfigError
from ..schedule.graph.settings import AdaptiveSettings
from ..schedule.graph.stream_graph import StreamGraph
from .values import COUNT, SIZE

_Command = TypeVar("_Command", bound=Callable[..., Any])

_DEFAULTS: Final = AdaptiveSettings()
_FLAGS: Final = (
    click.option(
        "--min-parallelism",
        type=COUNT,
        show_default=str(_DEFAULTS.min_parallelism),
        help="Adaptive batch jobs: fewest subtasks of a vertex.",
    ),
    click.option(
        "--max-parallelism",
        type=COUNT,
        show_default=str(_DEFAULTS.max_parallelism),
        help="Adaptive batch jobs: most subtasks of a vertex.",
    ),
    click.option(
        "--avg-data-volume-per-task",
        "data_volume_per_task_bytes",
        type=SIZE,
        show_default=f"{_DEFAULTS.data_volume_per_task_bytes >> 20}MiB",
        help="Adaptive batch jobs: how much data each subtask should read.",
    ),
    click.option(
        "--default-source-parallelism",
        type=COUNT,
        show_default="--max-parallelism",
        help="Adaptive batch jobs: most subtasks of a source; a source of unknown size gets exactly this many.",
    ),
)
_NAMES: Final = (
    "min_parallelism",
    "max_parallelism",
    "data_volume_per_task_bytes",
    "default_source_parallelism",
)


def adaptive_flags(command: _Command) -> _Command:
    """Adds `adaptive`: the settings of `AdaptiveSettings` that were given on the command line."""

    @wraps(command)
    def collected(*words: Any, **flags: Any) -> Any:
        given = {name: flags.pop(name) for name in _NAMES}
        return command(*words, adaptive={name: value for name, value in given.items() if value is not None}, **flags)

    made: Any = collected
    for flag in reversed(_FLAGS):
        made = flag(made)
    return made  # type: ignore[no-any-return]


def adaptive_settings(given: dict[str, int]) -> AdaptiveSettings:
    """The default settings with the given ones replaced. Raises ConfigError if the bounds contradict each other."""
    return replace(_DEFAULTS, **given)  # type: ignore[arg-type]


def with_adaptive(graph: StreamGraph, given: dict[str, int]) -> StreamGraph:
    """A job with the given settings replaced.

    Raises:
        ConfigError: the bounds contradict each other, or the job sets the parallelism of every vertex.
    """
    if not given:
        return graph
    if not graph.settings.is_dynamic:
        raise ConfigError(
            f"job {graph.name!r} is not dynamic: it sets the parallelism of every vertex, so the adaptive flags have no"
            " effect; omit them, or build the job with is_dynamic"
        )
    adaptive = replace(graph.settings.adaptive or _DEFAULTS, **given)  # type: ignore[arg-type]
    return replace(graph, settings=replace(graph.settings, adaptive=adaptive))
