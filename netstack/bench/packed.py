"""Rows in one file that is read at once: made where the user's data are, read by every process that replays them.

Takes: `Rows`. Gives: an Arrow file, and the same `Rows` from it; `keep` and `kept`, so that a process reads it once.

Instead of its key a row has the key's hash there: that is all the choice of a lane needs. Columnar batches are the
file's own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from netstack.errors import LocalProtocolError

from .inputs import Rows
from .rows import hashes_of
from .source import import_arrow

_RECORD: Final = "netstack.record"
_HASH: Final = "netstack.hash"
_CHUNK_RECORDS: Final = 64 * 1024
_kept: dict[str, Rows] = {}


@final
@dataclass(frozen=True, slots=True)
class PackedRows:
    """What a file of rows has.

    Attributes:
        name: of the file; equal exactly when the content is.
        rows: how many.
        payload_bytes: of all, as they travel.
        sha256: of the file.
    """

    name: str
    rows: int
    payload_bytes: int
    sha256: str


def write_packed(rows: Rows, folder: Path) -> PackedRows:
    """Writes the file into a folder, under a name that is made of its hash."""
    arrow = import_arrow()
    aside = folder / "rows.part"
    if rows.batches is not None:
        batches = rows.batches
    else:
        columns: dict[str, Any] = {_RECORD: arrow.array(rows.records, arrow.large_binary())}
        hashes = hashes_of(rows)
        if hashes is not None:
            columns[_HASH] = arrow.array(hashes, arrow.int32())
        batches = arrow.table(columns).to_batches(max_chunksize=_CHUNK_RECORDS)
    with arrow.OSFile(str(aside), "wb") as file, arrow.ipc.new_file(file, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    digest = hashlib.sha256(aside.read_bytes()).hexdigest()
    name = f"rows-{digest[:16]}.arrow"
    aside.rename(folder / name)
    return PackedRows(name, rows.count, rows.payload_bytes, digest)


def read_packed(path: Path) -> Rows:
    """The rows of such a file.

    Raises:
        OSError: it is not there.
    """
    arrow = import_arrow()
    with arrow.OSFile(str(path)) as file:
        table = arrow.ipc.open_file(file).read_all()
    if _RECORD not in table.column_names:
        return Rows([], None, table.to_batches())
    hashes = table.column(_HASH).to_numpy().astype(np.int32) if _HASH in table.column_names else None
    return Rows(table.column(_RECORD).to_pylist(), None, None, hashes)


def keep(name: str, path: Path) -> None:
    """Reads a file for all runs of this process, in place of what it has kept before."""
    if name not in _kept:
        _kept.clear()
        _kept[name] = read_packed(path)


def kept(name: str) -> Rows:
    """The rows under that name.

    Raises:
        LocalProtocolError: nobody has called `keep`.
    """
    found = _kept.get(name)
    if found is None:
        raise LocalProtocolError(f"the rows {name} are not here: they are kept by whoever starts the run")
    return found
