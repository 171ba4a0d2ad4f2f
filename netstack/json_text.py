"""Any value as JSON text: for the page, REST, recordings, and what commands print with `--json`.

Takes: documents that hold values of users and of peers. Gives: text that every JSON parser takes.

Rules: no value raises. Keys and bytes become text, with escapes where bytes are no UTF-8. NaN and the infinities become
null, as JSON has none. A list or dict deeper than `MAX_DEPTH` is shown in short. Everything else is shown as Python
would write it. A document of plain values only is written by `json` alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Set
from typing import Any, Final

from .shown import shown

MAX_DEPTH: Final = 64
"""Of lists and dicts in each other; documents of peers have 32 at most."""

_MAX_INT_BITS: Final = 8192
"""Python refuses to write longer ints in decimal (4,300 digits)."""


def json_text(document: object, *, indent: int | None = None, compact: bool = False) -> str:
    """One JSON document, without a line end.

    Args:
        document: any value.
        indent: spaces for each level; None writes one line.
        compact: no spaces, and nothing but ASCII: for programs.
    """
    separators = (",", ":") if compact else None
    try:
        text = json.dumps(document, indent=indent, separators=separators, ensure_ascii=compact, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        document = _plain(document, MAX_DEPTH)
        text = json.dumps(document, indent=indent, separators=separators, ensure_ascii=compact)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, which has no UTF-8
            text = json.dumps(document, indent=indent, separators=separators)
    return text


def _plain(value: object, depth: int) -> Any:
    """A copy of a value that `json.dumps` takes, with at most `depth` lists and dicts in each other."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MAX_INT_BITS else shown(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, bytes | bytearray):
        return value.decode(errors="backslashreplace")
    if depth and isinstance(value, Mapping):
        return _object(value, depth - 1)
    if depth and isinstance(value, list | tuple | Set):
        return [_plain(each, depth - 1) for each in value]
    return shown(value)


def _object(mapping: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    """A dict with texts as keys; of two keys with one text the second is shown as Python would write it."""
    found: dict[str, Any] = {}
    for key, value in mapping.items():
        text = _key(key)
        if text in found:
            text = shown(key)
        while text in found:
            text += "'"
        found[text] = _plain(value, depth)
    return found


def _key(key: object) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, bytes | bytearray):
        return key.decode(errors="backslashreplace")
    return {None: "null", True: "true", False: "false"}[key] if key is None or isinstance(key, bool) else shown(key)
