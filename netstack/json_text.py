"""Any value as JSON text: for the page, REST, recordings, and what commands print with `--json`.

Takes: documents that hold values of users and of peers. Gives: text that every JSON parser takes.

Rules: no value raises. Keys and bytes become text, with escapes where bytes are no UTF-8. NaN and the infinities become
null, as JSON has none. A list or dict deeper than `MAX_DEPTH` is shown in short. Everything else is shown as Python
would write it. A document of plain values only is written by `json` alone. What is looked at again and again is
`shortened` first: a result of a job may be as long as its user likes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Set
from typing import Any, Final, final

from .shown import shown

MAX_DEPTH: Final = 64
"""Of lists and dicts in each other; documents of peers have 32 at most."""

_MAX_INT_BITS: Final = 8192
"""Python refuses to write longer ints in decimal (4,300 digits)."""


def json_text(
    document: object, *, indent: int | None = None, compact: bool = False, most_characters: int | None = None
) -> str:
    """One JSON document, without a line end.

    Args:
        document: any value.
        indent: spaces for each level; None writes one line.
        compact: no spaces, and nothing but ASCII: for programs.
        most_characters: of a document whose text is longer, about so many are shown (`shortened`); None: all of it.
    """
    separators = (",", ":") if compact else None
    try:
        text = json.dumps(document, indent=indent, separators=separators, ensure_ascii=compact, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        document = _plain(document, MAX_DEPTH, _Room(math.inf))
        text = json.dumps(document, indent=indent, separators=separators, ensure_ascii=compact)
    if most_characters is not None and len(text) > most_characters:
        return json_text(shortened(document, most_characters // 2), indent=indent, compact=compact)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, which has no UTF-8
            text = json.dumps(document, indent=indent, separators=separators)
    return text


def shortened(value: object, characters: int) -> Any:
    """A copy of a value that `json` takes, of about so many characters at most; "..." stands for what was left out.

    Takes time and memory for what it gives, not for what it leaves out.
    """
    return _plain(value, MAX_DEPTH, _Room(characters))


@final
class _Room:
    """How many characters are left; each value takes some."""

    __slots__ = ("left",)

    def __init__(self, characters: float) -> None:
        self.left = characters

    def cut(self, text: str | bytes | bytearray) -> str | bytes | bytearray:
        """As much of a text as there is room for, and some more."""
        kept = text if len(text) <= self.left else text[: max(0, int(self.left))]
        self.left -= len(kept)
        return kept


_LEFT_OUT: Final = "..."
_OF_A_VALUE: Final = 4
"""Characters that each value takes at least, with what stands around it."""


def _plain(value: object, depth: int, room: _Room) -> Any:
    """A copy of a value that `json.dumps` takes, with at most `depth` lists and dicts in each other."""
    room.left -= _OF_A_VALUE
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str | bytes | bytearray):
        kept = room.cut(value)
        text = kept if isinstance(kept, str) else kept.decode(errors="backslashreplace")
        return text if len(kept) == len(value) else text + _LEFT_OUT
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MAX_INT_BITS else shown(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth and isinstance(value, Mapping):
        return _object(value, depth - 1, room)
    if depth and isinstance(value, list | tuple | Set):
        found = []
        for each in value:
            if room.left <= 0:
                found.append(_LEFT_OUT)
                break
            found.append(_plain(each, depth - 1, room))
        return found
    return shown(value)


def _object(mapping: Mapping[Any, Any], depth: int, room: _Room) -> dict[str, Any]:
    """A dict with texts as keys; of two keys with one text the second is shown as Python would write it."""
    found: dict[str, Any] = {}
    for key, value in mapping.items():
        if room.left <= 0:
            found[_LEFT_OUT] = _LEFT_OUT
            break
        text = _key(key, room)
        if text in found:
            text = shown(key)
        while text in found:
            text += "'"
        found[text] = _plain(value, depth, room)
    return found


def _key(key: object, room: _Room) -> str:
    if isinstance(key, str | bytes | bytearray):
        kept = room.cut(key)
        return kept if isinstance(kept, str) else kept.decode(errors="backslashreplace")
    return {None: "null", True: "true", False: "false"}[key] if key is None or isinstance(key, bool) else shown(key)
