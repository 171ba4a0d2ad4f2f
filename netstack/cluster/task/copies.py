"""Copies of data that somebody may change later: records that several operators get, state that a checkpoint stores.

Takes: an object. Gives: new dicts, lists and tuples, with the same immutable objects inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

FIXED: Final = frozenset({type(None), bool, int, float, str, bytes})
"""Immutable types that need no copy."""


def copied(value: Any, other: Callable[[Any], Any]) -> Any:
    """Copies dicts, lists and tuples, not their subclasses, at any depth.

    Args:
        value: any object.
        other: copies an object of any other type that is not in `FIXED`.

    Raises:
        RecursionError: the object is nested too deep.
    """
    kind = value.__class__
    if kind in FIXED:
        return value
    if kind is dict:
        return {key: inner if inner.__class__ in FIXED else copied(inner, other) for key, inner in value.items()}
    if kind is list:
        return [inner if inner.__class__ in FIXED else copied(inner, other) for inner in value]
    if kind is tuple:
        return tuple([inner if inner.__class__ in FIXED else copied(inner, other) for inner in value])
    return other(value)
