"""Limits of a submitted job: everybody who looks at a cluster receives its names, and one process schedules all jobs.

Takes: a job file's document. Gives: a `ConfigError` that names the first text that is too long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgpack

from ...base.errors import ConfigError
from ...base.text.safe_text import safe_repr
from ...base.units import format_size

MAX_NAME: Final = 256
"""Characters of a name: of the job, an operator, a uid, a slot sharing group, a side output, a key."""

MAX_TEXT: Final = 4096
"""Characters of any other text, such as a path."""

MAX_PARAMETERS_BYTES: Final = 1 << 20
"""Size of one operator's parameters, packed."""

MAX_OPERATORS: Final = 4096
"""Operators of a job."""

MAX_EDGES: Final = 8192
"""Edges between operators of a job. A JobManager needs about 0.3 ms for each before the job runs."""

MAX_SUBTASKS: Final = 1 << 18
"""Subtasks of a job. A JobManager needs about 200 bytes and 2 us for each before the job runs."""

_NAMES: Final = frozenset({"name", "uid", "from", "slot_sharing_group", "side_output", "tag"})


def check_limits(document: Mapping[str, Any]) -> None:
    """Checks every text of a job. Raises ConfigError for the first one that is too long."""
    waiting: list[tuple[str, str, Any]] = [("", "", document)]  # place, field, value
    while waiting:
        place, field, value = waiting.pop()
        if isinstance(value, str):
            most = MAX_NAME if field in _NAMES else MAX_TEXT
            if len(value) > most:
                raise ConfigError(
                    f"{place} has {len(value)} characters ({safe_repr(value, 40)}); the maximum is {most}"
                )
        elif isinstance(value, Mapping):
            for key, each in value.items():
                if not isinstance(key, str) or len(key) > MAX_NAME:
                    raise ConfigError(f"{place}: {safe_repr(key, 40)} is no name of at most {MAX_NAME} characters")
                inside = f"{place}.{key}" if place else key
                if key == "parameters":
                    _check_parameters(inside, each)
                else:
                    waiting.append((inside, key, each))
        elif isinstance(value, list | tuple):
            waiting += [(f"{place}[{number}]", field, each) for number, each in enumerate(value)]


def check_counts(document: Mapping[str, Any]) -> None:
    """Checks how many operators and edges a job file has, before anything is made of them; other values pass.

    Raises:
        ConfigError: there are too many.
    """
    operators = document.get("operators")
    if not isinstance(operators, list):
        return
    _check_operators(len(operators))
    inputs = (each.get("inputs") for each in operators if isinstance(each, Mapping))
    edges = sum(len(each) for each in inputs if isinstance(each, list))
    if edges > MAX_EDGES:
        raise ConfigError(f"the job has {edges:,} edges between operators; the maximum is {MAX_EDGES:,}")


def check_size(operators: int, parallelisms: Iterable[int]) -> int:
    """Checks how much a job makes a JobManager schedule.

    Args:
        operators: number of its operators.
        parallelisms: of its vertices; those that are decided at run time count as 1.

    Returns:
        The number of its subtasks.

    Raises:
        ConfigError: the job is too large.
    """
    _check_operators(operators)
    subtasks = sum(max(1, each) for each in parallelisms)
    if subtasks > MAX_SUBTASKS:
        raise ConfigError(
            f"the job has {subtasks:,} subtasks; the maximum is {MAX_SUBTASKS:,}: chain more operators, or give some a"
            " lower parallelism"
        )
    return subtasks


def _check_operators(count: int) -> None:
    if count > MAX_OPERATORS:
        raise ConfigError(f"the job has {count:,} operators; the maximum is {MAX_OPERATORS:,}")


def shortened_name(name: str) -> str:
    """Returns a name within the limit: jobs of earlier releases may have longer ones."""
    return name if len(name) <= MAX_NAME else name[: MAX_NAME - 3] + "..."


def _check_parameters(place: str, parameters: Any) -> None:
    try:
        size_bytes = len(msgpack.packb(parameters))
    except (ValueError, TypeError, OverflowError):
        return  # no plain data: the job is refused for that
    if size_bytes > MAX_PARAMETERS_BYTES:
        raise ConfigError(
            f"{place} have {format_size(size_bytes)}; the maximum is {format_size(MAX_PARAMETERS_BYTES)}: let the"
            " function read larger data from a file"
        )
