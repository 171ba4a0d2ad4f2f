"""Columns as `mapInArrow` takes them, and as they were.

Takes: a DataFrame. Gives: the same rows under plain names, since `mapInArrow` looks columns up by names that may have
no dots; years and months as a number of months, since Spark's Arrow batches have no such type. And the way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

from ..errors import ConfigError

_NUMBERS: Final = ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double")
_KEYS_MAY_BE: Final = {*_NUMBERS, "string", "binary", "date", "timestamp", "timestamp_ntz", "void"}
_MONTHS: Final = ("interval year to month", "interval year", "interval month")


@final
class PlainColumns:
    """The columns of one DataFrame.

    Args:
        schema: its.

    Raises:
        ConfigError: years and months are inside of another type.
    """

    def __init__(self, schema: Any) -> None:
        self._names = [str(field.name) for field in schema]
        self._kinds = [str(field.dataType.simpleString()) for field in schema]
        for name, kind in zip(self._names, self._kinds, strict=True):
            if kind not in _MONTHS and any(each in kind for each in _MONTHS):
                raise ConfigError(
                    f"exchange: column {name!r} has years and months inside of {kind}, which Spark cannot give to"
                    " Python: make them numbers of months"
                )

    def keys(self, keys: Sequence[str], *, is_case_sensitive: bool) -> tuple[str, ...]:
        """The plain names of columns.

        Args:
            keys: each a column's name, or that in backticks.
            is_case_sensitive: `spark.sql.caseSensitive`.

        Raises:
            ConfigError: there is no such column, there are several, or it cannot be a key.
        """
        if not keys:
            raise ConfigError("exchange: give at least one column as the key")
        return tuple(self._key(key, is_case_sensitive) for key in keys)

    def plain(self, df: Any) -> Any:
        """The DataFrame under plain names."""
        plain = df.toDF(*(f"c{place}" for place in range(len(self._names))))
        whole = f"cast({{0}} as {_MONTHS[0]})"
        return self._with_months(plain, f"int(extract(year from {whole}) * 12 + extract(month from {whole}))")

    def restored(self, plain: Any) -> Any:
        """What `plain` has made of a DataFrame, as that was."""
        return self._with_months(plain, "cast(make_ym_interval(0, {0}) as {1})").toDF(*self._names)

    def _with_months(self, plain: Any, made: str) -> Any:
        """The DataFrame with its columns of years and months made otherwise; `made` is of the column and its type."""
        if not set(self._kinds) & set(_MONTHS):
            return plain
        named = [(f"c{place}", kind) for place, kind in enumerate(self._kinds)]
        return plain.selectExpr(
            *(f"{made.format(name, kind)} as {name}" if kind in _MONTHS else name for name, kind in named)
        )

    def _key(self, key: str, is_case_sensitive: bool) -> str:
        wanted = key[1:-1].replace("``", "`") if len(key) > 2 and key[0] == key[-1] == "`" else key
        places = [
            place
            for place, name in enumerate(self._names)
            if name == wanted or (not is_case_sensitive and name.casefold() == wanted.casefold())
        ]
        if not places:
            raise ConfigError(f"exchange: the DataFrame has no column {key!r}; it has {', '.join(self._names)}")
        if len(places) > 1:
            raise ConfigError(f"exchange: two columns are called {key!r}: rename one of them")
        kind = self._kinds[places[0]]
        if kind not in _KEYS_MAY_BE and not kind.startswith(("decimal", "varchar", "char")):
            raise ConfigError(
                f"exchange: column {key!r} of type {kind} cannot be a key; make one of its fields a column"
            )
        return f"c{places[0]}"
