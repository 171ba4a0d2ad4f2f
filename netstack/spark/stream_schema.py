"""The schema of a stream, fixed by its first rows and stored beside them; and files that are written whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, final

from ..base.errors import RecordError
from ..base.text.safe_text import safe_error

PART: Final = ".part"
"""The suffix of a file that is not complete."""

_FILE: Final = "schema.arrow"


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file in one step: after a crash it has either its old content or all of the new."""
    part = path.with_name(path.name + PART)
    part.write_bytes(data)
    put_in_place(part, path)


def put_in_place(part: Path, path: Path) -> None:
    """Gives a complete file its name; file and name are on the disk when this returns."""
    synchronise(part)
    part.rename(path)
    synchronise(path.parent)


def synchronise(path: Path) -> None:
    """Flushes a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@final
class StreamSchema:
    """The schema of the stream that a folder belongs to. Blocking."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._columns: list[tuple[str, str]] | None = None

    def check(self, schema: Any) -> None:
        """Compares names, types and order with those of the stream.

        Metadata and nullability may differ, as they do between Spark's queries.

        Raises:
            RecordError: the stream has other columns, or its stored schema is damaged.
        """
        import pyarrow as pa

        if self._columns is None and self._path.exists():
            content = pa.py_buffer(self._path.read_bytes())
            try:
                self._columns = _columns(pa.ipc.read_schema(content))
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                raise RecordError(f"{self._path} is damaged: {safe_error(error)}") from error
        change = None if self._columns is None else _change(self._columns, _columns(schema))
        if change is not None:
            raise RecordError(
                f"the columns of a stream are fixed: {change} in {self._path.parent}; write these rows to a stream with"
                " another name and folder"
            )

    def keep(self, schema: Any) -> None:
        """Checks the schema; stores it if it is the first. It is on the disk when this returns.

        Raises:
            RecordError: as for `check`.
        """
        self.check(schema)
        if self._columns is None:
            write_whole(self._path, schema.serialize().to_pybytes())
            self._columns = _columns(schema)


def _columns(schema: Any) -> list[tuple[str, str]]:
    """(name, type) of each column."""
    return [(field.name, str(field.type).replace(" not null", "")) for field in schema]


def _change(before: list[tuple[str, str]], after: list[tuple[str, str]]) -> str | None:
    """Describes the first column that differs; None if names, types and order are equal."""
    if before == after:
        return None
    known, now = dict(before), dict(after)
    for name in known | now:
        if name not in now:
            return f"column {name!r}, {known[name]}, is not in these rows, and is"
        if name not in known:
            return f"column {name!r}, {now[name]}, is in these rows, and not"
        if known[name] != now[name]:
            return f"column {name!r} is {now[name]} in these rows, and {known[name]}"
    return f"the order is {', '.join(now)}, and another one"
