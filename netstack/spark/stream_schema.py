"""The columns of a stream, which stay: they are stored beside its rows with the first that come.

Takes: a folder, the Arrow schema of what is to be written. Gives: an error if it is another one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, final

from ..errors import RecordError
from ..shown import shown_error

_FILE: Final = "schema.arrow"


@final
class StreamSchema:
    """The schema of the stream whose folder it is; blocking.

    Args:
        folder: of the stream.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._known: list[tuple[str, str]] | None = None

    def check(self, schema: Any) -> None:
        """Compares names, types and order; not metadata, nor which columns may be null: Spark's queries differ in that.

        Raises:
            RecordError: rows that were written before have other columns, or what tells them is damaged.
        """
        import pyarrow as pa

        if self._known is None and self._path.exists():
            content = pa.py_buffer(self._path.read_bytes())
            try:
                self._known = _columns(pa.ipc.read_schema(content))
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                raise RecordError(f"{self._path} is damaged: {shown_error(error)}") from error
        change = None if self._known is None else _change(self._known, _columns(schema))
        if change is not None:
            raise RecordError(
                f"the columns of a stream stay: {change} in {self._path.parent}; write these rows to a stream with"
                " another name and folder"
            )

    def keep(self, schema: Any) -> None:
        """Checks it; the first one is stored, and on the disk when this returns.

        Raises:
            RecordError: as `check`.
        """
        self.check(schema)
        if self._known is None:
            aside = self._path.with_name(_FILE + ".part")
            aside.write_bytes(schema.serialize().to_pybytes())
            synchronise(aside)
            aside.rename(self._path)
            synchronise(self._path.parent)
            self._known = _columns(schema)


def synchronise(path: Path) -> None:
    """Has a file, or the names in a folder, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _columns(schema: Any) -> list[tuple[str, str]]:
    """Names and types."""
    return [(field.name, str(field.type).replace(" not null", "")) for field in schema]


def _change(before: list[tuple[str, str]], after: list[tuple[str, str]]) -> str | None:
    """The first column that is another one now, in words; None for the same columns in the same order."""
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
