"""Encodes messages as plain data and decodes them with a check of every field.

Takes: frozen dataclasses whose fields have one of the types in `_READERS`. Gives: lists for `frames`, and the
dataclasses again.

Rules: every text passes here, and is bounded where it is decoded: an honest peer's limits bind no other. A document is
the message's kind followed by all of its fields, each of exactly the annotated type. Nothing is pickled. A text that is
too long is cut when it is encoded. Error texts quote peers' data only through `shown`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias, final

from ...base.errors import ConfigError, ErrorCode, RemoteProtocolError
from ...base.text.safe_text import safe_repr, safe_text

TEXT_CHARACTERS: Final = 8192
"""Maximum length of names and texts; longer ones are cut when they are encoded, and refused when they are decoded."""

LINE_CHARACTERS: Final = 1024
"""Maximum length of a `Line`."""

Line: TypeAlias = str
"""A reason for people, which is logged and shown: one printable line when it is decoded, whatever the peer sent."""

Plain: TypeAlias = dict[str, Any]
"""A document inside a message; the handler of the message checks its contents."""

Attempt: TypeAlias = tuple[int, int, int]
"""One attempt of one subtask of a job: index of the job vertex, index of the subtask, number of the attempt from 0."""


class Message:
    """Base class of all messages: frozen dataclasses, identified on the wire by the class name."""

    __slots__ = ()


@final
class MessageCodec:
    """Encoder and decoder of a set of message classes."""

    def __init__(self, kinds: Iterable[type[Message]]) -> None:
        self.kinds = tuple(kinds)
        self._kinds: dict[str, tuple[type[Message], tuple[Callable[[Any], Any], ...]]] = {}
        self._fields: dict[type[Message], tuple[str, ...]] = {}
        for kind in self.kinds:
            fields = dataclasses.fields(kind)  # type: ignore[arg-type]  # `fields` raises for any other class
            self._kinds[kind.__name__] = kind, tuple(_READERS[str(field.type)] for field in fields)
            self._fields[kind] = tuple(field.name for field in fields)

    def encode(self, message: Message) -> list[Any]:
        """Returns a message as a document: its kind, then its fields."""
        kind = type(message)
        return [kind.__name__, *(_written(getattr(message, name)) for name in self._fields[kind])]

    def decode(self, document: list[Any]) -> Message:
        """Returns the message in a document. Raises RemoteProtocolError if the document is not a valid message."""
        name = document[0] if document else None
        kind_and_readers = self._kinds.get(name) if type(name) is str else None
        if kind_and_readers is None:
            raise RemoteProtocolError(ErrorCode.UNEXPECTED_FRAME, f"unknown control message {safe_repr(name)}")
        kind, readers = kind_and_readers
        if len(readers) != len(document) - 1:
            raise RemoteProtocolError(
                ErrorCode.MALFORMED_FRAME, f"{name}: {len(document) - 1} fields instead of {len(readers)}"
            )
        try:
            return kind(*(read(value) for read, value in zip(readers, document[1:], strict=True)))
        except (TypeError, ValueError) as error:
            raise RemoteProtocolError(ErrorCode.MALFORMED_FRAME, f"{name}: {error}") from error


def readable(text: str) -> str:
    """Returns a sendable form of a text: cut to `TEXT_CHARACTERS`, and without lone surrogates."""
    return text[:TEXT_CHARACTERS].encode("utf-8", "replace").decode()


def check_plain(message: Any) -> Plain:
    """Returns a message between operators and coordinators after a check of its type.

    Raises:
        ConfigError: it is not a dict. Whether its values are plain data is checked when it is sent.
    """
    if not isinstance(message, dict):
        raise ConfigError(f"{safe_repr(message, 80)} cannot be sent: give a dict of plain data")
    return message


def _written(value: Any) -> Any:
    return readable(value) if isinstance(value, str) else value


def _is(kind: type[Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"{safe_repr(value)} is not of type {kind.__name__}")
        return value

    return read


def _read_text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{safe_repr(value)} is not of type str")
    if len(value) > TEXT_CHARACTERS:
        raise ValueError(
            f"a text has {len(value)} characters ({safe_repr(value, 40)}); the maximum is {TEXT_CHARACTERS}"
        )
    return value


def _or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _each(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read_all(value: Any) -> Any:
        if type(value) is not list:
            raise TypeError(f"{safe_repr(value)} is not an array")
        return tuple([read(each) for each in value])

    return read_all


def _read_float(value: Any) -> float:
    if type(value) not in (int, float) or not value >= 0:
        raise TypeError(f"{safe_repr(value)} is not a number of seconds")
    try:
        return float(value)
    except OverflowError as error:
        raise TypeError(f"{safe_repr(value)} is not a number of seconds") from error


def _read_attempt(value: Any) -> Attempt:
    if type(value) is not list or len(value) != 3 or not all(type(each) is int and each >= 0 for each in value):
        raise TypeError(f"{safe_repr(value)} is not an attempt")
    return (value[0], value[1], value[2])


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "int": _is(int),
    "str": _read_text,
    "Line": lambda value: safe_text(_read_text(value), LINE_CHARACTERS),
    "bool": _is(bool),
    "bytes": _is(bytes),
    "float": _read_float,
    "Plain": _is(dict),
    "Plain | None": _or_none(_is(dict)),
    "Any": lambda value: value,
    "Attempt": _read_attempt,
    "tuple[Attempt, ...]": _each(_read_attempt),
    "tuple[str, ...]": _each(_read_text),
    "tuple[bytes, ...]": _each(_is(bytes)),
    "tuple[tuple[int, ...], ...]": _each(_each(_is(int))),
}
