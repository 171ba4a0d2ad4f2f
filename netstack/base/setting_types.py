"""Checks the types of settings that a program gives to a dataclass, before they reach the code that uses them.

Takes: a new object of a dataclass. Gives: nothing, or a `ConfigError` that names the field and what it accepts.

Values that other libraries make are converted: an integer of numpy to int, a path to str. Fields whose annotation is
not a class, or a union of classes, are not checked.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import numbers
import os
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

from .errors import ConfigError

_WORDS: Final[Mapping[type, str]] = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "text",
    type(None): "None",
}
_CONVERSIONS: Final[tuple[tuple[type, type, Callable[[Any], Any]], ...]] = (
    (int, numbers.Integral, int),
    (float, numbers.Real, float),
    (str, os.PathLike, os.fspath),
)
"""For a field of the first type: objects of the second become the first."""


def check_types(settings: Any, whose: str = "") -> None:
    """Checks all fields; call it first in `__post_init__`.

    Args:
        settings: the object.
        whose: begins the text of an error.

    Raises:
        ConfigError: a value has the wrong type.
    """
    kind: Any = type(settings)
    for name, accepted in _fields(kind):
        value = getattr(settings, name)
        if type(value) in accepted:
            continue
        converted = _converted(value, accepted)
        if converted is _REFUSED:
            words = " or ".join(map(_word, accepted))
            raise ConfigError(f"{whose}{name}={value!r}; give {words}")
        if converted is not value:
            object.__setattr__(settings, name, converted)


_REFUSED: Final = object()


def _converted(value: Any, accepted: tuple[type, ...]) -> Any:
    if not isinstance(value, bool):
        if isinstance(value, int) and float in accepted:
            return value
        for wanted, given, convert in _CONVERSIONS:
            if wanted in accepted and isinstance(value, given):
                return convert(value)
    simple = tuple(kind for kind in accepted if kind not in (int, float))
    return value if isinstance(value, simple) else _REFUSED


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, tuple[type, ...]], ...]:
    hints = typing.get_type_hints(kind)
    checked = []
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        parts = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
        if field.init and all(isinstance(part, type) and typing.get_origin(part) is None for part in parts):
            checked.append((field.name, parts))
    return tuple(checked)


def _word(kind: type) -> str:
    if issubclass(kind, enum.Enum):
        return ", ".join(str(each) for each in kind)
    return _WORDS.get(kind, f"a {kind.__name__}")
