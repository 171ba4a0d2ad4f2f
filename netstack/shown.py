"""Values of strangers as text: bounded in length and depth, on one line, with nothing that a terminal would obey.

Takes: whatever a peer, a file or a user gave. Gives: text that may go into an error, a log line or a table.

Rules: no call recurses deeper than `_MAX_DEPTH`, takes longer than its limit asks for, or raises. Every character that
is not printable is escaped: line ends, so that no log line can be forged; escape sequences; marks that turn the
direction of writing; lone surrogates, which no stream takes. What was left out is said with `...`.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, Final

SHOWN_CHARACTERS: Final = 200
"""Of a value in an error text, unless the caller says otherwise."""

_MAX_DEPTH: Final = 3
_MAX_ITEMS: Final = 6
_MAX_INT_BITS: Final = 512
_CUT: Final = "..."
_BRACKETS: Final[dict[type, tuple[str, str]]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("{", "}"),
    dict: ("{", "}"),
}


def shown(value: object, limit: int = SHOWN_CHARACTERS) -> str:
    """A value as Python would write it, as far as there is room.

    Args:
        value: anything; of containers a few items of a few levels are shown.
        limit: of characters, the mark of what was left out included.
    """
    return _cut(_shown(value, limit, _MAX_DEPTH), limit)


def shown_text(text: str, limit: int = SHOWN_CHARACTERS) -> str:
    """A text as it is, without quotes, where it is printable; what is not is escaped as in a string of Python.

    Args:
        text: of a peer: a name, a reason, a version.
        limit: of characters, the mark of what was left out included.
    """
    head = text[: limit + 1]
    if not head.isprintable():
        head = "".join(each if each.isprintable() else _escaped(each) for each in head)
    return _cut(head, limit)


def shown_error(error: BaseException, limit: int = 4 * SHOWN_CHARACTERS) -> str:
    """An error as `Class: text`, whatever its text holds and whether it has one.

    Args:
        error: any; a group tells how many it holds.
        limit: of characters.
    """
    text = error_text(error)
    return shown_text(f"{type(error).__name__}: {text}" if text else type(error).__name__, limit)


def error_text(error: BaseException) -> str:
    """What an error says, as long as it is and unescaped, whatever its class does."""
    try:
        return str.__str__(str(error))  # exactly a str: a subclass may cut itself as it likes
    except BaseException:  # its own mistake, and no reason to fail here
        return "(its text cannot be made)"


def _shown(value: object, limit: int, depth: int) -> str:
    kind = type(value)
    if value is None or kind is bool or kind is float:
        return repr(value)
    if isinstance(value, int):
        if not isinstance(value, enum.Enum) and value.bit_length() > _MAX_INT_BITS:
            return f"an int of {value.bit_length()} bits"
        return _own(value, limit)
    if isinstance(value, str | bytes | bytearray):
        # A few characters more than fit, so that the cut is seen.
        return _own(value[: limit + 1], limit)
    if isinstance(value, memoryview):
        return f"<memory of {value.nbytes} bytes>"
    if isinstance(value, BaseException):
        return shown_error(value, limit)
    if isinstance(value, list | tuple | set | frozenset | dict):
        return _container(value, limit, depth)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _instance(value, limit, depth)
    return _own(value, limit)


def _container(value: Any, limit: int, depth: int) -> str:
    kind: type = next(each for each in _BRACKETS if isinstance(value, each))
    opening, closing = _BRACKETS[kind]
    if not value:
        return "set()" if kind in (set, frozenset) else opening + closing
    if not depth:
        return f"{opening}{_CUT}{closing}"
    parts: list[str] = []
    try:
        for item in value.items() if kind is dict else value:
            if len(parts) == _MAX_ITEMS or sum(map(len, parts)) > limit:
                parts.append(_CUT)
                break
            if kind is dict:
                parts.append(f"{_shown(item[0], limit, depth - 1)}: {_shown(item[1], limit, depth - 1)}")
            else:
                parts.append(_shown(item, limit, depth - 1))
    except Exception:  # a kind of list or dict with an order of its own
        parts.append(_CUT)
    comma = "," if kind is tuple and len(value) == 1 else ""
    return f"{opening}{', '.join(parts)}{comma}{closing}"


def _instance(value: Any, limit: int, depth: int) -> str:
    if not depth:
        return f"{type(value).__name__}({_CUT})"
    parts = [
        f"{field.name}={_shown(getattr(value, field.name, None), limit, depth - 1)}"
        for field in dataclasses.fields(value)[:_MAX_ITEMS]
        if field.repr
    ]
    return f"{type(value).__name__}({', '.join(parts)})"


def _own(value: object, limit: int) -> str:
    """The object's own description; it may be of any class, so it may raise whatever it likes."""
    try:
        return shown_text(repr(value), limit)
    except Exception:  # a mistake in its class, and no reason to fail here
        return f"<{type(value).__name__}>"


def _escaped(character: str) -> str:
    return repr(character)[1:-1]


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: max(limit - len(_CUT), 0)] + _CUT
