"""Fuses consecutive operators into one generated function; a record passes all of them before the next one starts.

Takes: user functions with the kinds of their operators, and the target after the last one. Gives: a `Target`.

The function is generated with one line per operator. Six trivial operators then cost 1.1 times as much as a handwritten
loop, but 1.8 times with a closure per operator. A list of records per operator would be as fast, but operators would no
longer see one record after the other, and an operator that emits the same object again after changing it would emit its
last state only. The source contains no text of the user. The line number of an error identifies its operator
(`error_place`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import AsyncGeneratorType, CodeType, CoroutineType, GeneratorType, MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...base.errors import ConfigError
from ...base.text.safe_text import safe_repr, safe_text
from ...exchange.outbound.selector import records_of
from ...schedule.graph.job_graph import OperatorKind

Records: TypeAlias = "list[Any] | npt.NDArray[Any]"
"""Several records: a list, or an array."""

OPERATORS: Final = "__operators__"
"""The global of a generated function that maps line numbers to names of operators."""

MOST_STEPS: Final = 16
"""Maximum number of operators in one function; Python allows twenty nested loops."""

_LINES: Final[Mapping[OperatorKind, str]] = MappingProxyType(
    {
        OperatorKind.MAP: "record = function_{}(record)",
        OperatorKind.FILTER: "if function_{}(record):",
        OperatorKind.FLAT_MAP: "for record in function_{}(record):",
        OperatorKind.PROCESS: "returned = function_{0}(record, out_{0})",
        OperatorKind.SINK: "returned = function_{}(record)",
    }
)
_ENDS: Final = frozenset({OperatorKind.PROCESS, OperatorKind.SINK})
_WARNED: Final[set[str]] = set()
_NEVER_RUN: Final = (CoroutineType, GeneratorType, AsyncGeneratorType)


class FusedOperator(NamedTuple):
    """One operator of a fused function.

    Attributes:
        kind: how its function is called: PROCESS with an output, SINK without one.
        function: the user's function.
        out: the output of a PROCESS.
    """

    name: str
    kind: OperatorKind
    function: Callable[..., Any]
    out: Any = None


class Target(NamedTuple):
    """A receiver of records.

    Attributes:
        push_batch: takes several records, in order.
        steps: the operators that these functions are generated from, if any.
        end: the receiver after the last of these steps.
        extend: takes all records of an iterable, as calling `end` (without steps: `push`) for each would; None if there
            is no faster way.
    """

    push: Callable[[Any], None]
    push_batch: Callable[[Records], None]
    steps: tuple[FusedOperator, ...] = ()
    end: Callable[[Any], None] | None = None
    extend: Callable[[Iterable[Any]], None] | None = None


@lru_cache(maxsize=256)
def _compiled(text: str, name: str) -> CodeType:
    """The code of a generated function: the same object for all subtasks of a chain."""
    return compile(text, name, "exec")


def fused(step: FusedOperator, behind: Target | None = None) -> Target:
    """Puts an operator in front of the operators it emits to.

    Args:
        step: the operator.
        behind: the target of its records; None for a process or a sink, which return no records.
    """
    steps: tuple[FusedOperator, ...] = (step,)
    end = extend = None
    if behind is not None:
        if 0 < len(behind.steps) < MOST_STEPS:
            steps, end, extend = steps + behind.steps, behind.end, behind.extend
        else:
            end, extend = behind.push, None if behind.steps else behind.extend
    text, operators = _source(steps, extend is not None)
    names: dict[str, Any] = {"__name__": __name__, OPERATORS: operators, "listed": listed, "end": end, "extend": extend}
    names |= {"check_returned": check_returned, "last": steps[-1].name}
    for index, each in enumerate(steps):
        names[f"function_{index}"], names[f"out_{index}"] = each.function, each.out
    exec(_compiled(text, f"<{' -> '.join(safe_text(each.name) for each in steps)}>"), names)
    return Target(names["push"], names["push_batch"], steps, end, extend)


def check_returned(operator: str, returned: object, emits: bool = False) -> None:
    """Checks what a sync process or sink returned: a coroutine or a generator would never run.

    With `emits` (a process) it also warns of any other value, once for each operator: it is not emitted.

    Raises:
        ConfigError: it is one.
    """
    if isinstance(returned, _NEVER_RUN):
        name = returned.__qualname__
        if isinstance(returned, CoroutineType):
            returned.close()  # Python would warn that nothing awaited it
            what, instead = "coroutine", "define the operator with `async def` and await it there"
        else:
            what, instead = "generator", "use flat_map for it, or call out.collect(record) instead of `yield record`"
        raise ConfigError(f"operator {operator!r} returned a {what} of {name}, which nothing runs; {instead}")
    if emits and operator not in _WARNED:
        _WARNED.add(operator)
        text = "what a process returns is not emitted; call out.collect(record), or use map"
        warnings.warn(f"operator {operator!r} returned {safe_repr(returned, 60)}: {text}", RuntimeWarning, stacklevel=2)


def listed(records: Records) -> Iterable[Any]:
    """The records as an iterable of single records."""
    return records_of(records) if isinstance(records, np.ndarray) else records


def _source(steps: tuple[FusedOperator, ...], can_extend: bool) -> tuple[str, dict[int, str]]:
    """The source of both functions, and the operator of each line. A flat_map at the end may use `extend`."""
    lines: list[str] = []
    operators: dict[int, str] = {}
    for head in (["def push(record):"], ["def push_batch(records):", "    for record in listed(records):"]):
        lines += head
        depth = len(head)
        extends = can_extend and steps[-1].kind is OperatorKind.FLAT_MAP
        for index, step in enumerate(steps[: len(steps) - extends]):
            lines.append("    " * depth + _LINES[step.kind].format(index))
            operators[len(lines)] = step.name
            depth += step.kind in (OperatorKind.FILTER, OperatorKind.FLAT_MAP)
        if extends:
            lines.append("    " * depth + f"extend(function_{len(steps) - 1}(record))")
            operators[len(lines)] = steps[-1].name
        elif steps[-1].kind not in _ENDS:
            lines.append("    " * depth + "end(record)")
        else:
            emits = steps[-1].kind is OperatorKind.PROCESS
            lines.append("    " * depth + f"if returned is not None: check_returned(last, returned, {emits})")
    return "\n".join(lines), operators
