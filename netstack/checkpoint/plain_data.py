"""Where in a state something is that cannot be stored.

Takes: a state. Gives: the way to the first value in it that is no plain data, and what is wrong with it.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

from ..shown import shown

MAX_DEPTH: Final = 500
"""A way this long says nothing more; deeper states are refused as a whole."""

_LEAVES: Final = (type(None), bool, float, str, bytes, bytearray, memoryview, msgpack.Timestamp, msgpack.ExtType)


def misfit(state: Any) -> str:
    """The way to what cannot be stored, such as `['counts'][3]: {1, 2} is of type builtins.set`; else empty.

    Recurses nowhere: a state that contains itself is one that is nested too deep.
    """
    stack: list[tuple[Any, str, int]] = [(state, "", 0)]
    while stack:
        value, way, depth = stack.pop()
        if depth > MAX_DEPTH:
            return f"{way[:80]}... is nested too deep"
        if isinstance(value, dict):
            inside = []
            for key, inner in value.items():
                inside.append((inner, f"{way}[{shown(key)}]", depth + 1))
                if wrong := _wrong(key):
                    return f"a key of {way or 'it'}: {wrong}"
            stack += reversed(inside)
        elif type(value) in (list, tuple):
            stack += [(inner, f"{way}[{index}]", depth + 1) for index, inner in reversed([*enumerate(value)])]
        elif wrong := _wrong(value):
            return f"{way}: {wrong}" if way else wrong
    return ""


def _wrong(value: Any) -> str:
    if type(value) is tuple:
        return next((wrong for wrong in map(_wrong, value) if wrong), "")
    if type(value) is int:
        return "" if -(1 << 63) <= value < 1 << 64 else f"an int of {value.bit_length()} bits does not fit 64"
    if type(value) in _LEAVES:
        return ""
    kind = type(value)
    return f"{shown(value)} is of type {kind.__module__}.{kind.__qualname__}"
