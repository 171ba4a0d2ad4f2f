"""Checks a document against a JSON schema: the words of the language that our own schemas use.

Takes: a schema and a document, both as Python data. Gives: nothing, or an error that says where and what.

Rules: `type enum required properties additionalProperties items minItems minLength minimum` mean what JSON Schema says;
`title`, `description` and what begins with `$` mean nothing; any other word is refused, so a schema cannot ask for what
is not checked. It recurses as deep as the schema does, never as deep as the document.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Final

from ...errors import ConfigError

_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
_ARTICLES: Final = {"object": "an object", "array": "an array", "integer": "a whole number", "null": "null"}
_WORDS: Final = "type enum required properties additionalProperties items minItems minLength minimum title description"
_KNOWN: Final = frozenset(_WORDS.split(" "))
_MOST_SHOWN: Final = 60


def check(schema: Mapping[str, Any], document: Any, where: str = "") -> None:
    """Refuses a document that is not what the schema describes.

    Args:
        schema: of the document.
        document: as `json.loads` gives it.
        where: of the document, for messages, such as `operators[2].name`.

    Raises:
        ConfigError: it is not; the text says where, what is there and what would be accepted.
        ValueError: the schema has a word that is not known here.
    """
    unknown = {word for word in schema if not word.startswith("$")} - _KNOWN
    if unknown:
        raise ValueError(f"the schema of {where or 'the document'} has words not known here: {', '.join(unknown)}")
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(_TYPES[name](document) for name in types):
        raise _wrong(where, document, " or ".join(_ARTICLES.get(name, f"a {name}") for name in types))
    if "enum" in schema and document not in schema["enum"]:
        raise _wrong(where, document, "one of " + ", ".join(map(str, schema["enum"])))
    if _TYPES["number"](document) and document < schema.get("minimum", document):
        raise _wrong(where, document, f"at least {schema['minimum']}")
    if isinstance(document, str) and len(document) < schema.get("minLength", 0):
        raise _wrong(where, document, "a text that is not empty")
    if isinstance(document, list):
        if len(document) < schema.get("minItems", 0):
            raise _wrong(where, document, f"at least {schema['minItems']} of them")
        for index, item in enumerate(document if "items" in schema else ()):
            check(schema["items"], item, f"{where}[{index}]")
    if isinstance(document, dict):
        _check_object(schema, document, where)


def _check_object(schema: Mapping[str, Any], document: Mapping[str, Any], where: str) -> None:
    missing = [name for name in schema.get("required", ()) if name not in document]
    if missing:
        raise ConfigError(f"{where or 'the document'} has no {' and no '.join(map(repr, missing))}; add it")
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name, value in document.items():
        inside = f"{where}.{name}" if where else name
        if name in known:
            check(known[name], value, inside)
        elif others is False:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"{inside}: there is no such property; {hint}")
        elif isinstance(others, dict):
            check(others, value, inside)


def _wrong(where: str, document: Any, wanted: str) -> ConfigError:
    shown = repr(document)
    shown = shown if len(shown) <= _MOST_SHOWN else shown[:_MOST_SHOWN] + "..."
    return ConfigError(f"{where or 'the document'} is {shown}; give {wanted}")
