"""`RowConverter`: converts records to Arrow batches of exactly Spark's schema, for the readers of the data source.

Columns are found by name in batches and maps, by the case rule of the session (`spark.sql.caseSensitive`), and by
position in lists. A record that lacks a column, or has a value of another type, does not fit: with the mode FAILFAST it
fails the task, with PERMISSIVE its values that do not fit are NULL and its text is in the column for corrupt records.
More columns than the schema has are dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, final

from ..base.errors import ConfigError, RecordError
from ..base.text.safe_text import safe_error, safe_repr, safe_text

_ROWS_AT_ONCE: Final = 1000
_SCHEMA_CHARACTERS: Final = 600
_CASE: Final = "spark.sql.caseSensitive"


@final
class RowConverter:
    """Converts the records of one task.

    Args:
        schema: Spark's schema of the rows.
        corrupt: the column that gets the text of records that do not fit; None to raise an error.
        is_case_sensitive: whether names that differ only in case are different; None for the session's setting, which
            is known in a task.
    """

    def __init__(self, schema: Any, *, corrupt: str | None = None, is_case_sensitive: bool | None = None) -> None:
        self._schema = schema
        self._target = arrow_schema(schema)
        self._corrupt = corrupt
        self._fields = [field for field in self._target if field.name != corrupt]
        self._is_case_sensitive = _session_is_case_sensitive() if is_case_sensitive is None else is_case_sensitive

    def batches(self, records: Iterable[Any]) -> Iterator[Any]:
        """Converts records: Arrow batches, maps, sequences, or the values of a single column.

        Raises:
            RecordError: a record does not fit the schema, and there is no column for it; names both schemas.
        """
        import pyarrow as pa

        rows: list[Any] = []
        for record in records:
            if isinstance(record, pa.RecordBatch):
                yield from self._of_batch(record)
                continue
            rows.append(record)
            if len(rows) == _ROWS_AT_ONCE:
                yield self._of_rows(rows)
                rows = []
        if rows:
            yield self._of_rows(rows)

    def _of_batch(self, batch: Any) -> Iterator[Any]:
        import pyarrow as pa

        names = _Names(batch.schema.names, self._is_case_sensitive)
        try:
            inputs = [batch.column(names.place(field.name)) for field in self._fields]
            if all(_has_all(each.type, field.type) for each, field in zip(inputs, self._fields, strict=True)):
                columns = {field.name: _cast(each, field) for each, field in zip(inputs, self._fields, strict=True)}
                if self._corrupt is not None:
                    columns[self._corrupt] = pa.nulls(batch.num_rows, self._target.field(self._corrupt).type)
                yield self._assembled(columns)
                return
        except _Misfit as error:
            if self._corrupt is None:
                raise self._error(error, _columns_of(batch.schema)) from error
        records = iter(batch.to_pylist())  # row by row: by the case rule in nested columns too
        while rows := list(islice(records, _ROWS_AT_ONCE)):
            yield self._of_rows(rows, _columns_of(batch.schema))

    def _assembled(self, columns: Mapping[str, Any]) -> Any:
        import pyarrow as pa

        return pa.RecordBatch.from_arrays([columns[name] for name in self._target.names], schema=self._target)

    def _of_rows(self, records: Sequence[Any], columns_of_batch: str | None = None) -> Any:
        import pyarrow as pa

        texts: list[str | None] = [None] * len(records)

        def reject(at: int, error: _Misfit) -> None:
            if self._corrupt is None:
                raise self._error(error, columns_of_batch or _described(records[at])) from error
            texts[at] = texts[at] or _text_of(records[at])

        rows = []
        for at, record in enumerate(records):
            row = [None] * len(self._fields)
            try:
                values = self._values(record)
            except _Misfit as error:
                reject(at, error)
            else:
                for place, (field, value) in enumerate(zip(self._fields, values, strict=True)):
                    try:
                        row[place] = self._fitted(value() if isinstance(value, _Absent) else value, field)
                    except _Misfit as error:
                        reject(at, error)
            rows.append(row)
        columns = {}
        for place, field in enumerate(self._fields):
            values = [row[place] for row in rows]
            try:
                columns[field.name] = pa.array(values, field.type)
            except _CONVERSION_ERRORS:
                for at, value in enumerate(values):
                    try:
                        pa.array([value], field.type)
                    except _CONVERSION_ERRORS as error:
                        reject(at, _misfit(field, error))
                        values[at] = None
                columns[field.name] = pa.array(values, field.type)
        if self._corrupt is not None:
            columns[self._corrupt] = pa.array(texts, self._target.field(self._corrupt).type)
        return self._assembled(columns)

    def _values(self, record: Any) -> list[Any]:
        """The values of a record by column; an `_Absent` for a column that it lacks."""
        fields = self._fields
        if isinstance(record, Mapping):
            keys = list(record)
            names = _Names([key for key in keys if isinstance(key, str)], self._is_case_sensitive)
            return [names.value(record, field.name) for field in fields]
        row = record if isinstance(record, (list, tuple)) else (record,)
        if len(row) != len(fields):
            raise _Misfit(f"a record has {len(row)} values and the schema {len(fields)} columns")
        return list(row)

    def _fitted(self, value: Any, field: Any) -> Any:
        """A value in the form in which pyarrow accepts it for a field, without any silent loss."""
        from pyarrow import types

        kind = field.type
        if value is None:
            if not field.nullable:
                raise _Misfit(f"column {field.name!r} is NULL, and not nullable in the schema")
            return None
        if types.is_struct(kind):
            return self._struct(value, field)
        if types.is_list(kind) or types.is_large_list(kind):
            if not isinstance(value, (list, tuple)):
                raise _Misfit(f"column {field.name!r} is a list, and has {safe_repr(value)}")
            return [self._fitted(each, kind.value_field) for each in value]
        if types.is_map(kind):
            if not isinstance(value, (Mapping, list, tuple)):
                raise _Misfit(f"column {field.name!r} is a map, and has {safe_repr(value)}")
            pairs = value.items() if isinstance(value, Mapping) else value
            return [(self._fitted(key, kind.key_field), self._fitted(each, kind.item_field)) for key, each in pairs]
        if types.is_integer(kind) and isinstance(value, float) and not value.is_integer():
            raise _Misfit(f"column {field.name!r} of type {kind} has {value}")
        return value

    def _struct(self, value: Any, field: Any) -> dict[str, Any]:
        inner = [field.type.field(at) for at in range(field.type.num_fields)]
        if isinstance(value, Mapping):
            names = _Names([key for key in value if isinstance(key, str)], self._is_case_sensitive)
            entries = [names.value(value, each.name) for each in inner]
            values = [each() if isinstance(each, _Absent) else each for each in entries]
        elif isinstance(value, (list, tuple)) and len(value) == len(inner):
            values = list(value)
        else:
            raise _Misfit(f"column {field.name!r} is a struct of {len(inner)} fields, and has {safe_repr(value)}")
        return {each.name: self._fitted(one, each) for each, one in zip(inner, values, strict=True)}

    def _error(self, misfit: _Misfit, columns: str) -> RecordError:
        schema = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in self._schema)
        reason = safe_text(str(misfit), _SCHEMA_CHARACTERS)
        return RecordError(
            f"{reason}; the records have ({safe_text(columns, _SCHEMA_CHARACTERS)}), the schema is"
            f" ({safe_text(schema, _SCHEMA_CHARACTERS)}): correct .schema(...), or read with the option mode=PERMISSIVE"
            " and a column _corrupt_record string, which gets the records that do not fit"
        )


def arrow_schema(schema: Any) -> Any:
    """Returns Spark's Arrow schema of rows.

    Raises:
        ConfigError: Spark cannot pass a column to Python.
    """
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    fields = []
    for field in schema:
        try:
            (one,) = to_arrow_schema(StructType([field]), timezone="UTC")
        except Exception as error:  # pyspark's errors have no common type
            raise ConfigError(
                f"column {field.name!r} of type {field.dataType.simpleString()}: Spark cannot pass it to Python:"
                f" {safe_error(error)}"
            ) from error
        fields.append(one)
    return pa.schema(fields)


class _Misfit(Exception):
    """A record, or one of its values, does not fit the schema."""


def _misfit(field: Any, error: Exception) -> _Misfit:
    return _Misfit(f"column {field.name!r} of type {field.type}: {error}")


def _cast(column: Any, field: Any) -> Any:
    """A column of a batch as the type of a field; raises _Misfit if a value would change."""
    if column.null_count and not field.nullable:
        raise _Misfit(f"column {field.name!r} is NULL, and not nullable in the schema")
    try:
        return column.cast(field.type)
    except _CONVERSION_ERRORS as error:
        raise _misfit(field, error) from error


class _Absent:
    """Stands for the value of a column that a record lacks; raises when it is used."""

    def __init__(self, error: _Misfit) -> None:
        self._error = error

    def __call__(self) -> Any:
        raise self._error


_CONVERSION_ERRORS: Final = (ValueError, TypeError, ArithmeticError, NotImplementedError, AttributeError)


class _Names:
    """Finds columns by name."""

    def __init__(self, names: Sequence[str], is_case_sensitive: bool) -> None:
        self._names = names
        self._fold = str if is_case_sensitive else str.casefold

    def place(self, name: str) -> int:
        """Returns the index of a column; raises _Misfit if there is none, or several."""
        wanted = self._fold(name)
        places = [at for at, each in enumerate(self._names) if self._fold(each) == wanted]
        if len(places) == 1:
            return places[0]
        if places:
            raise _Misfit(f"several columns are named {name!r}: {', '.join(self._names[at] for at in places)}")
        raise _Misfit(f"column {name!r} is missing")

    def value(self, record: Mapping[Any, Any], name: str) -> Any:
        """Returns the value of a column, or an `_Absent`."""
        if self._fold is str and name in record:
            return record[name]
        try:
            return record[self._names[self.place(name)]]
        except _Misfit as error:
            return _Absent(error)


def _has_all(source: Any, target: Any) -> bool:
    """Whether a cast finds each nested field by its exact name; it would fill others with NULL."""
    from pyarrow import types

    if types.is_struct(source) and types.is_struct(target):
        return all(
            len(source.get_all_field_indices(each.name)) == 1 and _has_all(source.field(each.name).type, each.type)
            for each in map(target.field, range(target.num_fields))
        )
    if types.is_map(source) and types.is_map(target):
        return _has_all(source.key_type, target.key_type) and _has_all(source.item_type, target.item_type)
    if hasattr(source, "value_type") and hasattr(target, "value_type"):
        return _has_all(source.value_type, target.value_type)
    return True


def _session_is_case_sensitive() -> bool:
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.getLocalProperty(_CASE) == "true"


def _columns_of(schema: Any) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _described(record: Any) -> str:
    if isinstance(record, Mapping):
        return ", ".join(f"{key} {type(value).__name__}" for key, value in record.items())
    row = record if isinstance(record, (list, tuple)) else (record,)
    return ", ".join(type(value).__name__ for value in row)


def _text_of(record: Any) -> str:
    try:
        return json.dumps(record, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        return repr(record)
