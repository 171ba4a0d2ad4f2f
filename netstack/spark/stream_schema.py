"""The columns of a stream, which stay: they are stored beside its rows with the first that come.

Takes: a folder, the Arrow schema of what is to be written. Gives: an error if it is another one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, final

from ..errors import RecordError

_FILE: Final = "schema.arrow"


@final
class StreamSchema:
    """The schema of the stream whose folder it is; blocking.

    Args:
        folder: of the stream.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._known: Any = None

    def check(self, schema: Any) -> None:
        """Compares names, types and order; not metadata, nor which columns may be null: Spark's queries differ in that.

        Raises:
            RecordError: rows that were written before have other columns.
        """
        import pyarrow as pa

        if self._known is None and self._path.exists():
            self._known = pa.ipc.read_schema(pa.py_buffer(self._path.read_bytes()))
        if self._known is None or _columns(schema) == _columns(self._known):
            return
        raise RecordError(
            f"the columns of a stream stay: {_columns(self._known)} in {self._path.parent}, and now {_columns(schema)};"
            " write these to a stream with another name and folder"
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
            self._known = schema


def synchronise(path: Path) -> None:
    """Has a file, or the names in a folder, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _columns(schema: Any) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema).replace(" not null", "")
