"""One output of an operator that several operators or edges read.

Takes: the targets of the readers. Gives: one target.

Rules: operators in a chain get the same object, and may change it. So each reader but the last gets its own copy of a
record of lists, tuples, dicts, sets, bytearrays, numpy arrays and dataclasses, as in Flink; other objects are shared.
Edges to other tasks come first: they encode records at once, and stage arrays.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from typing import Any, Final

import numpy as np

from .copies import FIXED, copied
from .fused import Records, Target

_CHANGED: Final = (dict, list, tuple, set, bytearray, np.ndarray)


def _discard(record: Any) -> None:
    """Drops a record that no operator reads."""


_NO_READER: Final = Target(_discard, _discard)


def joined(edges: Sequence[Target], operators: Sequence[Target]) -> Target:
    """All readers of one output, as one target.

    Args:
        edges: those in other tasks.
        operators: those of the same chain.
    """
    if len(edges) + len(operators) < 2:
        return (*edges, *operators, _NO_READER)[0]
    targets = [*edges, *map(_with_copies, operators[:-1]), *operators[-1:]]
    pushes = [target.push for target in targets]
    batches = [target.push_batch for target in targets]
    if edges and operators:
        batches[-1] = copying_arrays(batches[-1])
    first, second = pushes[:2]

    def push_two(record: Any) -> None:
        first(record)
        second(record)

    def push_each(record: Any) -> None:
        for push in pushes:
            push(record)

    def push_batch(records: Records) -> None:
        for push in batches:
            push(records)

    return Target(push_two if len(pushes) == 2 else push_each, push_batch)


def copying_arrays(push_batch: Callable[[Records], None]) -> Callable[[Records], None]:
    """Copies arrays, which are staged, so that the operator may change its own at once."""

    def push_copy(records: Records) -> None:
        push_batch(records.copy() if isinstance(records, np.ndarray) else records)

    return push_copy


def _with_copies(target: Target) -> Target:
    push, push_batch = target.push, target.push_batch

    def push_copy(record: Any) -> None:
        push(record if record.__class__ in FIXED else _copy(record))

    def push_copies(records: Records) -> None:
        if isinstance(records, np.ndarray):
            push_batch(records.copy())
        else:
            push_batch([record if record.__class__ in FIXED else _copy(record) for record in records])

    return Target(push_copy, push_copies)


def _copy(record: Any) -> Any:
    """A copy of everything in a record that can be changed in place, unless it cannot be copied."""
    try:
        return copied(record, _other)
    except Exception:  # a part of it cannot be copied, as its class says
        return record


def _other(value: Any) -> Any:
    return copy.deepcopy(value) if isinstance(value, _CHANGED) or is_dataclass(value) else value
