"""Untrusted values as safe text: bounded in length and depth, on one line, without control characters.

Takes: values from peers, files or users. Gives: text for errors, log lines and tables.

Rules: no function recurses deeper than `_MAX_DEPTH`, takes time beyond its limit, or raises. Every character that is
not printable is escaped: newlines, which could forge log lines; terminal escape sequences; marks that change the
writing direction; lone surrogates, which no stream can encode. `...` marks omissions.
"""

from __future__ import annotations

import dataclasses
import enum
import io
import sys
from typing import Any, Final

SAFE_CHARACTERS: Final = 200
"""The default length limit of a value in an error text."""

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


def safe_repr(value: object, limit: int = SAFE_CHARACTERS) -> str:
    """Returns a value's Python representation, abbreviated to the limit.

    Args:
        value: any value; of containers, a few items of a few levels are included.
        limit: characters, including the mark of an omission.
    """
    return _cut(_safe_repr(value, limit, _MAX_DEPTH), limit)


def safe_text(text: str, limit: int = SAFE_CHARACTERS) -> str:
    """Returns a text without quotes; characters that are not printable are escaped as in a Python string.

    Args:
        text: a name, reason or version from a peer.
        limit: characters, including the mark of an omission.
    """
    head = text[: limit + 1]
    if not head.isprintable():
        head = "".join(each if each.isprintable() else _escaped(each) for each in head)
    return _cut(head, limit)


def is_utf8(text: str) -> bool:
    """Whether a text, such as a path from the command line, can be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable_lines(text: str) -> str:
    r"""Returns a text whose characters can be printed; others, except line ends and tabs, are written as `\u202e`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else _as_json_escape(each) for each in text)


def escape_unencodable() -> None:
    """Lets standard output and standard error escape what their encoding lacks: a locale may be ASCII or Latin-1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def type_text(value: object) -> str:
    """Returns the type of a value with its article, such as `an int`."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def safe_error(error: BaseException, limit: int = 4 * SAFE_CHARACTERS) -> str:
    """Returns an error as `Class: text`, or as `Class` if it has no text.

    Args:
        error: any error; the text of a group includes the number of its errors.
        limit: characters.
    """
    text = error_text(error)
    return safe_text(f"{type(error).__name__}: {text}" if text else type(error).__name__, limit)


def error_text(error: BaseException) -> str:
    """Returns an error's text, complete and unescaped; never raises."""
    try:
        return str.__str__(str(error))  # a plain str: a subclass could override slicing
    except BaseException:  # a bug in the error's class must not cause another failure
        return "(its text is not available)"


def _safe_repr(value: object, limit: int, depth: int) -> str:
    kind = type(value)
    if value is None or kind is bool or kind is float:
        return repr(value)
    if isinstance(value, int):
        if not isinstance(value, enum.Enum) and value.bit_length() > _MAX_INT_BITS:
            return f"an int of {value.bit_length()} bits"
        return _own(value, limit)
    if isinstance(value, str | bytes | bytearray):
        # One character more than fits, so that the omission is detected.
        return _own(value[: limit + 1], limit)
    if isinstance(value, memoryview):
        return f"<memory of {value.nbytes} bytes>"
    if isinstance(value, BaseException):
        return safe_error(value, limit)
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
                parts.append(f"{_safe_repr(item[0], limit, depth - 1)}: {_safe_repr(item[1], limit, depth - 1)}")
            else:
                parts.append(_safe_repr(item, limit, depth - 1))
    except Exception:  # a subclass of list or dict whose iteration raises
        parts.append(_CUT)
    comma = "," if kind is tuple and len(value) == 1 else ""
    return f"{opening}{', '.join(parts)}{comma}{closing}"


def _instance(value: Any, limit: int, depth: int) -> str:
    if not depth:
        return f"{type(value).__name__}({_CUT})"
    parts = [
        f"{field.name}={_safe_repr(getattr(value, field.name, None), limit, depth - 1)}"
        for field in dataclasses.fields(value)[:_MAX_ITEMS]
        if field.repr
    ]
    return f"{type(value).__name__}({', '.join(parts)})"


def _own(value: object, limit: int) -> str:
    """Returns the object's own `repr`; its class may raise anything."""
    try:
        return safe_text(repr(value), limit)
    except Exception:  # a bug in its class must not cause another failure
        return f"<{type(value).__name__}>"


def _as_json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{int.from_bytes(units[at : at + 2], 'big'):04x}" for at in range(0, len(units), 2))


def _escaped(character: str) -> str:
    return repr(character)[1:-1]


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: max(limit - len(_CUT), 0)] + _CUT
