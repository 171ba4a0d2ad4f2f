"""Packs the user's rows into one Arrow file, which every process that replays them reads once (`keep`, `kept`).

A packed row has the hash of its key instead of the key: channel selection needs no more.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from netstack.base.errors import LocalProtocolError

from .generator import import_arrow
from .rows import MOST_BYTES, InputError, Rows, hashes_of

_RECORD: Final = "netstack.exchange.record"
_HASH: Final = "netstack.hash"
_CHUNK_RECORDS: Final = 64 * 1024
_kept: dict[str, Rows] = {}


@final
@dataclass(frozen=True, slots=True)
class PackedRows:
    """A file of packed rows; its name is equal exactly if the content is."""

    name: str
    rows: int
    payload_bytes: int
    sha256: str


def write_packed(rows: Rows, folder: Path) -> PackedRows:
    """Writes the file into a folder; its name contains its hash."""
    return write_batches(packed_batches(rows), folder)


def packed_batches(rows: Rows) -> list[Any]:
    """The parts of such a file, as Arrow batches."""
    if rows.batches is not None:
        return rows.batches
    arrow = import_arrow()
    columns: dict[str, Any] = {_RECORD: arrow.array(rows.records, arrow.large_binary())}
    hashes = hashes_of(rows)
    if hashes is not None:
        columns[_HASH] = arrow.array(hashes, arrow.int32())
    batches: list[Any] = arrow.table(columns).to_batches(max_chunksize=_CHUNK_RECORDS)
    return batches


def write_batches(batches: Iterable[Any], folder: Path, name: str = "the rows") -> PackedRows:
    """Writes the file from `packed_batches` of one schema, one batch at a time in memory.

    Raises:
        InputError: there are no rows, or more than a process may hold.
        OSError: the file cannot be written.
    """
    arrow = import_arrow()
    aside = folder / "rows.part"
    count = size = 0
    batches = iter(batches)
    first = next(batches, None)
    if first is None:
        raise InputError(f"{name} has no rows; give one with at least one")
    with arrow.OSFile(str(aside), "wb") as file, arrow.ipc.new_file(file, first.schema) as writer:
        for batch in itertools.chain((first,), batches):
            writer.write_batch(batch)
            count += batch.num_rows
            size += _payload_bytes(batch)
            if size > MOST_BYTES:
                raise InputError(
                    f"{name} has more than {MOST_BYTES} bytes, the most that a process that replays them holds in"
                    " memory: give a part"
                )
    with aside.open("rb") as written:
        digest = hashlib.file_digest(written, "sha256").hexdigest()
    file_name = f"rows-{digest[:16]}.arrow"
    aside.rename(folder / file_name)
    return PackedRows(file_name, count, size, digest)


def _payload_bytes(batch: Any) -> int:
    if _RECORD not in batch.schema.names:
        return int(batch.serialize().size)
    import pyarrow.compute as pc

    return int(pc.sum(pc.binary_length(batch.column(_RECORD))).as_py() or 0)


def read_packed(path: Path) -> Rows:
    """The rows of such a file. Raises OSError if the file cannot be read."""
    arrow = import_arrow()
    with arrow.OSFile(str(path)) as file:
        table = arrow.ipc.open_file(file).read_all()
    if _RECORD not in table.column_names:
        return Rows([], None, table.to_batches())
    hashes = table.column(_HASH).to_numpy().astype(np.int32) if _HASH in table.column_names else None
    return Rows(table.column(_RECORD).to_pylist(), None, None, hashes)


def keep(name: str, path: Path) -> None:
    """Reads a file for all runs of this process and drops the file of an earlier call."""
    if name not in _kept:
        _kept.clear()
        _kept[name] = read_packed(path)


def kept(name: str) -> Rows:
    """The rows under that name. Raises LocalProtocolError if `keep` was not called."""
    rows = _kept.get(name)
    if rows is None:
        raise LocalProtocolError(f"the rows {name} are not kept in this process: call packed.keep before the run")
    return rows
