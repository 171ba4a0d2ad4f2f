"""Parses Flink's SQL types to an Arrow schema: `schema_of("id BIGINT NOT NULL, at TIMESTAMP(3)")`.

Takes: columns as in `CREATE TABLE` and `DESCRIBE`. Gives: the schema for `FlinkRows`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NoReturn, final

from ...base.errors import ConfigError

_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|(\w+)|([<>(),]))")

_PLAIN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "BOOLEAN": "bool_",
        "TINYINT": "int8",
        "SMALLINT": "int16",
        "INT": "int32",
        "INTEGER": "int32",
        "BIGINT": "int64",
        "FLOAT": "float32",
        "DOUBLE": "float64",
        "DATE": "date32",
        "CHAR": "string",
        "VARCHAR": "string",
        "STRING": "string",
        "BINARY": "binary",
        "VARBINARY": "binary",
        "BYTES": "binary",
    }
)
_OTHERS: Final = "DECIMAL, TIME, TIMESTAMP, TIMESTAMP_LTZ, ARRAY, MAP, MULTISET, ROW"
_DEEPEST: Final = 50


def schema_of(columns: str) -> Any:
    """Parses columns, separated by commas, each a name and one of Flink's types.

    Raises:
        ConfigError: unknown type, or one without a counterpart in Arrow; pyarrow is missing.
    """
    try:
        pa = importlib.import_module("pyarrow")
    except ImportError as error:
        raise ConfigError(f"rows of Flink need pyarrow ({error}); install it: pip install 'pyarrow>=16'") from error
    reader = _Reader(pa, columns)
    fields = reader.fields("")
    return pa.schema(fields)


@final
class _Reader:
    """A parser for one text."""

    def __init__(self, pa: Any, text: str) -> None:
        self._pa = pa
        self._text = text
        self._tokens: list[str] = []
        self._at = self._depth = 0
        end = 0
        while text[end:].strip():
            match = _TOKEN.match(text, end)
            if match is None:
                raise ConfigError(f"columns {text!r}: {text[end:].strip()[:20]!r} is neither a name nor a type")
            self._tokens.append(match[0].strip())
            end = match.end()

    def fields(self, closing: str) -> list[Any]:
        """Parses columns up to a closing bracket, or to the end if that is empty."""
        fields: list[Any] = []
        while True:
            name = self._next()
            if not name or name in "<>(),":
                self._refuse("a column's name")
            if name.startswith("`"):
                name = name[1:-1].replace("``", "`")
            if name in [field.name for field in fields]:
                raise ConfigError(f"columns {self._text!r}: two columns have the name {name!r}")
            fields.append(self._pa.field(name, *self._type()))
            token = self._next()
            if token == closing:
                return fields
            if token != ",":
                self._refuse(f"a comma or {closing or 'the end'}")

    def _type(self) -> tuple[Any, bool]:
        """Parses a type, and whether its values may be null."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ConfigError(f"columns {self._text[:80]!r}...: types are nested deeper than {_DEEPEST}")
        type_ = self._bare_type(self._next().upper())
        self._depth -= 1
        if self._takes("NOT"):
            self._expect("NULL")
            return type_, False
        self._takes("NULL")
        return type_, True

    def _bare_type(self, name: str) -> Any:
        pa = self._pa
        if name in _PLAIN:
            self._takes("PRECISION")
            self._numbers(0)
            return getattr(pa, _PLAIN[name])()
        if name in ("DECIMAL", "DEC", "NUMERIC"):
            digits, scale = self._numbers(10, 0)
            if not (1 <= digits <= 38 and 0 <= scale <= digits):
                raise ConfigError(
                    f"DECIMAL({digits}, {scale}): give 1 to 38 digits, and 0 to that many behind the point"
                )
            return pa.decimal128(digits, scale)
        if name == "TIME":
            self._numbers(0)
            self._without_zone()
            return pa.time32("ms")
        if name in ("TIMESTAMP", "TIMESTAMP_LTZ"):
            (digits,) = self._numbers(6)
            if digits > 9:
                raise ConfigError(f"TIMESTAMP({digits}): give 0 to 9 digits")
            is_local = self._without_zone() or name == "TIMESTAMP_LTZ"
            return pa.timestamp("ms" if digits <= 3 else "us" if digits <= 6 else "ns", "UTC" if is_local else None)
        if name == "ARRAY":
            self._expect("<")
            element = pa.field("item", *self._type())
            self._expect(">")
            return pa.list_(element)
        if name in ("MAP", "MULTISET"):
            self._expect("<")
            key, _ = self._type()
            item: tuple[Any, bool] = (pa.int32(), False)
            if name == "MAP":
                self._expect(",")
                item = self._type()
            self._expect(">")
            return pa.map_(pa.field("key", key, nullable=False), pa.field("value", *item))
        if name == "ROW":
            opening = self._next()
            if opening not in ("<", "("):
                self._refuse("<")
            return pa.struct(self.fields(">" if opening == "<" else ")"))
        raise ConfigError(f"type {name or '(none)'} is not supported; give one of {', '.join(_PLAIN)}, {_OTHERS}")

    def _numbers(self, *defaults: int) -> list[int]:
        """Parses optional numbers in brackets."""
        numbers = list(defaults)
        if not self._takes("("):
            return numbers
        for index in range(len(numbers)):
            if index:
                self._expect(",")
            token = self._next()
            if not token.isdecimal():
                self._refuse("a number")
            numbers[index] = int(token)
            if self._takes(")"):
                return numbers
        return self._refuse(")")

    def _without_zone(self) -> bool:
        """Whether a time is in the local zone; a type with its own zone is refused."""
        if self._takes("WITHOUT"):
            pass
        elif not self._takes("WITH"):
            return False
        elif not self._takes("LOCAL"):
            raise ConfigError("TIMESTAMP WITH TIME ZONE is not supported: Flink's rows have none")
        else:
            self._expect("TIME")
            self._expect("ZONE")
            return True
        self._expect("TIME")
        self._expect("ZONE")
        return False

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1] if self._at <= len(self._tokens) else ""

    def _takes(self, word: str) -> bool:
        is_next = self._at < len(self._tokens) and self._tokens[self._at].upper() == word
        self._at += is_next
        return is_next

    def _expect(self, word: str) -> None:
        if not self._takes(word):
            self._at += 1
            self._refuse(word)

    def _refuse(self, wanted: str) -> NoReturn:
        token = self._tokens[self._at - 1] if self._at <= len(self._tokens) else "the end"
        raise ConfigError(f"columns {self._text!r}: {wanted} was expected instead of {token}")
