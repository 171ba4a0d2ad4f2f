"""`PlainColumns`: converts the columns of a DataFrame for `mapInArrow`, and back.

`mapInArrow` looks columns up by names that may have no dots, so the columns get plain names. Spark's Arrow batches have
no year-month intervals, so these become numbers of months.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, final

from ..base.errors import ConfigError

_NUMBERS: Final = ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double")
_MONTHS: Final = ("interval year to month", "interval year", "interval month")
_DAY_TIME: Final = ("interval day", "interval hour", "interval minute", "interval second")
_KEY_KINDS: Final = {*_NUMBERS, *_MONTHS, "string", "binary", "date", "timestamp", "timestamp_ntz", "void"}
_KEY_FAMILIES: Final = ("decimal", "varchar", "char", "time(", *_DAY_TIME)
_CALENDAR: Final = re.compile(r"(?<![\w`])interval(?=[,>]|$)")  # of make_interval: months, days and microseconds


@final
class PlainColumns:
    """The columns of one DataFrame.

    Args:
        schema: the schema of the DataFrame.

    Raises:
        ConfigError: a column has calendar intervals, or year-month intervals inside of another type.
    """

    def __init__(self, schema: Any) -> None:
        self._names = [str(field.name) for field in schema]
        self._kinds = [str(field.dataType.simpleString()) for field in schema]
        for name, kind in zip(self._names, self._kinds, strict=True):
            if kind not in _MONTHS and any(each in kind for each in _MONTHS):
                raise ConfigError(
                    f"exchange: column {name!r} has year-month intervals inside of {kind}, which Spark cannot pass to"
                    " Python: convert them to numbers of months"
                )
            if _CALENDAR.search(kind):
                raise ConfigError(
                    f"exchange: column {name!r} of type {kind} has calendar intervals, which Spark cannot pass to"
                    " Python: make them with make_dt_interval or make_ym_interval, or convert them to numbers"
                )

    def keys(self, keys: Sequence[str], *, is_case_sensitive: bool) -> tuple[str, ...]:
        """Returns the plain names of the key columns.

        Args:
            keys: names of columns, with or without backticks.
            is_case_sensitive: `spark.sql.caseSensitive`.

        Raises:
            ConfigError: there is no such column, there are several, or its type cannot be a key.
        """
        if not keys:
            raise ConfigError("exchange: give at least one column as the key")
        return tuple(self._key(key, is_case_sensitive) for key in keys)

    def plain(self, df: Any) -> Any:
        """Returns the DataFrame with plain names and numbers of months."""
        plain = df.toDF(*(f"c{place}" for place in range(len(self._names))))
        whole = f"cast({{0}} as {_MONTHS[0]})"
        return self._with_months(plain, f"int(extract(year from {whole}) * 12 + extract(month from {whole}))")

    def restored(self, plain: Any) -> Any:
        """Converts a DataFrame back from the form that `plain` returns."""
        return self._with_months(plain, "cast(make_ym_interval(0, {0}) as {1})").toDF(*self._names)

    def _with_months(self, plain: Any, expression: str) -> Any:
        """Replaces the year-month columns by an expression of their name and type."""
        if not set(self._kinds) & set(_MONTHS):
            return plain
        named = [(f"c{place}", kind) for place, kind in enumerate(self._kinds)]
        return plain.selectExpr(
            *(f"{expression.format(name, kind)} as {name}" if kind in _MONTHS else name for name, kind in named)
        )

    def _key(self, key: str, is_case_sensitive: bool) -> str:
        if not isinstance(key, str):
            raise ConfigError(f"exchange: key {key!r} is no name: give the names of columns")
        wanted = key[1:-1].replace("``", "`") if len(key) > 2 and key[0] == key[-1] == "`" else key
        places = [
            place
            for place, name in enumerate(self._names)
            if name == wanted or (not is_case_sensitive and name.casefold() == wanted.casefold())
        ]
        if not places:
            hint = "; to use a field of a struct, add it as a column (withColumn)" if "." in key else ""
            raise ConfigError(f"exchange: the DataFrame has no column {key!r}; it has {', '.join(self._names)}{hint}")
        if len(places) > 1:
            raise ConfigError(f"exchange: several columns are named {key!r}: rename all but one")
        kind = self._kinds[places[0]]
        if kind not in _KEY_KINDS and not kind.startswith(_KEY_FAMILIES):
            raise ConfigError(f"exchange: column {key!r} of type {kind} cannot be a key: add a column of a simple type")
        return f"c{places[0]}"
