"""JSON text of any value: for the web page, REST, recordings, and the output of commands with `--json`.

Takes: documents with values from users and peers. Gives: text that every JSON parser accepts.

Rules: no value raises. Keys and bytes become text; bytes that are not UTF-8 are escaped. NaN and infinities become
null, because JSON has neither. Lists and dicts deeper than `MAX_DEPTH`, and all other values, become their abbreviated
Python representation. A document of plain values is written by `json` alone. Callers that render a document repeatedly
apply `shortened` first, because the result of a job can have any size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Set
from typing import Any, Final, final

from .safe_text import safe_repr

MAX_DEPTH: Final = 64
"""The deepest nesting of lists and dicts; documents from peers have at most 32 levels."""

_MAX_INT_BITS: Final = 8192
"""Python refuses to convert larger ints to decimal (4,300 digits)."""


def json_text(
    document: object, *, indent: int | None = None, compact: bool = False, most_characters: int | None = None
) -> str:
    """Returns a value as one JSON document, without a trailing newline.

    Args:
        document: any value.
        indent: spaces for each level; None writes one line.
        compact: no spaces, ASCII only: for programs.
        most_characters: a longer text is shortened to about this length (`shortened`); None means no limit.
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
        except UnicodeEncodeError:  # half of a surrogate pair has no UTF-8 encoding
            text = json.dumps(document, indent=indent, separators=separators)
    return text


def shortened(value: object, characters: int) -> Any:
    """Returns a copy of a value that `json` accepts, of about `characters` at most; "..." marks omissions.

    Time and memory grow with the size of the result, not of the value.
    """
    return _plain(value, MAX_DEPTH, _Room(characters))


@final
class _Room:
    """The remaining number of characters; each value uses some of it."""

    __slots__ = ("left",)

    def __init__(self, characters: float) -> None:
        self.left = characters

    def cut(self, text: str | bytes | bytearray) -> str | bytes | bytearray:
        """Returns the part of a text that still fits."""
        kept = text if len(text) <= self.left else text[: max(0, int(self.left))]
        self.left -= len(kept)
        return kept


_LEFT_OUT: Final = "..."
_OF_A_VALUE: Final = 4
"""Characters counted for each value, including its punctuation."""


def _plain(value: object, depth: int, room: _Room) -> Any:
    """Returns a copy of a value that `json.dumps` accepts, with at most `depth` nested lists and dicts."""
    room.left -= _OF_A_VALUE
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str | bytes | bytearray):
        kept = room.cut(value)
        text = kept if isinstance(kept, str) else kept.decode(errors="backslashreplace")
        return text if len(kept) == len(value) else text + _LEFT_OUT
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MAX_INT_BITS else safe_repr(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth and isinstance(value, Mapping):
        return _object(value, depth - 1, room)
    if depth and isinstance(value, list | tuple | Set):
        items = []
        for each in value:
            if room.left <= 0:
                items.append(_LEFT_OUT)
                break
            items.append(_plain(each, depth - 1, room))
        return items
    return safe_repr(value)


def _object(mapping: Mapping[Any, Any], depth: int, room: _Room) -> dict[str, Any]:
    """Returns a dict with text keys; if two keys have the same text, the second gets its Python representation."""
    entries: dict[str, Any] = {}
    for key, value in mapping.items():
        if room.left <= 0:
            entries[_LEFT_OUT] = _LEFT_OUT
            break
        text = _key(key, room)
        if text in entries:
            text = safe_repr(key)
        while text in entries:
            text += "'"
        entries[text] = _plain(value, depth, room)
    return entries


def _key(key: object, room: _Room) -> str:
    if isinstance(key, str | bytes | bytearray):
        kept = room.cut(key)
        return kept if isinstance(kept, str) else kept.decode(errors="backslashreplace")
    return {None: "null", True: "true", False: "false"}[key] if key is None or isinstance(key, bool) else safe_repr(key)
