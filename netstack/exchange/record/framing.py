"""Frames records with their lengths, one by one or a whole array at once.

Takes: payload bytes, or an array of fixed-width payloads. Gives: framed bytes, whole or any byte range of them.

The stream of one subpartition is a sequence of *cells* and *runs*, in any order. A cell is a big-endian int32, then as
many payload bytes. A run is several records of one length: a uint32 with the top bit set, whose other bits are their
number, then their length (uint32, at least 1), then their payloads without gaps. Buffers cut the stream anywhere, also
inside a length. Both ends share the dtypes defined here (`FrameTemplate`).

A batch is sent as runs: 8 bytes for all records of a buffer instead of 4 for each, and a plain copy at either end,
where cells need a strided copy and a check of every length. A single record is sent as a cell, which is shorter.
Flink's streams have no runs. Empty records are never in a run: its eight bytes could announce two billion of them.

How an array is framed fast: a strided copy costs 0.3 to 0.5 ns for each element of any size, so the number of passes
decides. Three details were measured; the first two are worth a factor of five each:

- payloads are moved as opaque items of n bytes (`V8`, not eight `u1`), all rows in one call;
- lengths are copied from an array of lengths: storing a scalar at unaligned places takes numpy's slow path;
- a few tens of KiB at a time, so that the second pass finds the bytes of the first in the cache.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Final, TypeAlias, final

import numpy as np

from ...base.errors import RecordError

if TYPE_CHECKING:
    import numpy.typing as npt

Rows: TypeAlias = "npt.NDArray[np.uint8]"
"""Payloads as an array of shape (records, bytes of a record)."""

LENGTH: Final = struct.Struct(">I")
PREFIX_BYTES: Final = 4
MAX_RECORD_BYTES: Final = 2**31 - 1
"""The length is an int32; a longer record would have a negative one."""

RUN: Final = struct.Struct(">II")
RUN_HEAD_BYTES: Final = 8
RUN_FLAG: Final = 2**31
"""The top bit marks a number of records instead of a length."""

PACKER_LIMIT_BYTES: Final = 1024
"""Above this, copying the payload costs more than the look-up saves, and each length would keep a Struct alive."""

BULK_LIMIT_BYTES: Final = 16 * 1024
"""Payloads up to this size are moved as arrays; above it, slice assignments are as fast and need no dtype."""

FEW_CELLS: Final = 3
"""Up to this many cells, slice assignments cost less than a strided copy (about 1 us)."""

_STAMP_LIMIT_BYTES: Final = 8
"""Up to this payload, copying prepared cells and overwriting their payloads is faster than scattering the lengths."""

_CHUNK_BYTES: Final = 64 * 1024
"""Size of the cells in one pair of passes: a fraction of a second-level cache."""


class _Packers(dict[int, struct.Struct]):
    """Structs by payload length; a hit needs one dictionary look-up."""

    def __missing__(self, payload_bytes: int) -> struct.Struct:
        made = struct.Struct(f">I{payload_bytes}s")
        if payload_bytes <= PACKER_LIMIT_BYTES:
            self[payload_bytes] = made
        return made


packer: Final = _Packers().__getitem__
"""`packer(n)` is the Struct that packs a length and n payload bytes in one call; cached up to `PACKER_LIMIT_BYTES`."""


_PREFIXES: Final = tuple(LENGTH.pack(size) for size in range(PACKER_LIMIT_BYTES))


def prefix_of(payload: bytes | bytearray | memoryview) -> bytes:
    """The length prefix of a record, which must not be too long."""
    size = len(payload)
    return _PREFIXES[size] if size < PACKER_LIMIT_BYTES else LENGTH.pack(size)


def texts_of(payloads: list[bytes]) -> list[str]:
    """Decodes UTF-8; here, because compiled code takes half the time."""
    return [payload.decode() for payload in payloads]


def payloads_of(texts: list[str]) -> list[bytes]:
    """Encodes text as UTF-8."""
    return [text.encode() for text in texts]


def frame(payload: bytes | bytearray | memoryview) -> bytes:
    """Frames one record. Raises RecordError if the payload is too long."""
    size_bytes = len(payload)
    check_record_bytes(size_bytes)
    return b"".join((LENGTH.pack(size_bytes), payload))


def head_of(records: int, record_bytes: int) -> bytes:
    """The head of the payloads of equally long records: the length for one record, the head of a run for several.

    Args:
        records: number of records, 1 to 2**31 - 1.
        record_bytes: length of each record; at least 1 if there are several.
    """
    return LENGTH.pack(record_bytes) if records == 1 else RUN.pack(RUN_FLAG | records, record_bytes)


def explain_run(records: int, record_bytes: int) -> str:
    """Describes what is wrong with the head of a run; empty if it is correct.

    Args:
        records: number of records, without the top bit.
        record_bytes: length of each record.
    """
    if not records:
        return "a run of 0 records"
    if not 0 < record_bytes <= MAX_RECORD_BYTES:
        return f"a run of {records} records of {record_bytes} bytes"
    return ""


def check_record_bytes(size_bytes: int, max_record_bytes: int = MAX_RECORD_BYTES) -> None:
    """Refuses a record that is too long.

    Raises:
        RecordError: below 0 or above `max_record_bytes`.
    """
    if 0 <= size_bytes <= max_record_bytes:
        return
    if max_record_bytes < MAX_RECORD_BYTES:
        raise RecordError(
            f"a record of {size_bytes} bytes is longer than max_record_bytes={max_record_bytes}: split it, or raise the"
            " limit of both the writer and the reader"
        )
    raise RecordError(
        f"a record of {size_bytes} bytes does not fit its int32 length, at most {MAX_RECORD_BYTES}: split the record"
    )


@final
class FrameTemplate:
    """The common parts of all cells of one payload length. Immutable; get it from `template`.

    Attributes:
        record_bytes: payload bytes of a cell.
        cell_bytes: bytes of payload and prefix.
        prefix: the length, as in the stream.
        payload_dtype: the payload as one opaque item; None above `BULK_LIMIT_BYTES` and for empty payloads.
        cell_dtype: one cell, fields `n` and, unless it is empty, `p`; None above `BULK_LIMIT_BYTES`.
        chunk_cells: number of cells in one strided copy.
        prefixes: the prefix, `chunk_cells` times.
        prefix_column: the same as an array of opaque items.
        stamp: `chunk_cells` cells with zeros as payload; None where scattering the lengths is faster.
    """

    __slots__ = (
        "cell_bytes",
        "cell_dtype",
        "chunk_cells",
        "payload_dtype",
        "prefix",
        "prefix_column",
        "prefixes",
        "record_bytes",
        "stamp",
    )

    def __init__(self, record_bytes: int) -> None:
        check_record_bytes(record_bytes)
        self.record_bytes = record_bytes
        self.cell_bytes = PREFIX_BYTES + record_bytes
        self.prefix = LENGTH.pack(record_bytes)
        self.payload_dtype: np.dtype[np.void] | None = None
        self.cell_dtype: np.dtype[np.void] | None = None
        if record_bytes <= BULK_LIMIT_BYTES:
            fields = [("n", f"V{PREFIX_BYTES}")]
            if record_bytes:
                fields.append(("p", f"V{record_bytes}"))
                self.payload_dtype = np.dtype(f"V{record_bytes}")
            self.cell_dtype = np.dtype(fields)
        self.chunk_cells = max(1, _CHUNK_BYTES // self.cell_bytes)
        self.prefixes = self.prefix * self.chunk_cells
        self.prefix_column = np.frombuffer(self.prefixes, f"V{PREFIX_BYTES}")
        self.stamp: memoryview | None = None
        if record_bytes <= _STAMP_LIMIT_BYTES:
            self.stamp = memoryview((self.prefix + bytes(record_bytes)) * self.chunk_cells)

    def cells(self, memory: memoryview, start: int, count: int) -> npt.NDArray[np.void]:
        """Views `count` cells of `memory` from byte `start` on; for payloads up to `BULK_LIMIT_BYTES`."""
        return np.ndarray((count,), self.cell_dtype, memory, start)

    def count_uniform(self, cells: npt.NDArray[np.void]) -> int:
        """Counts the first cells (at most `chunk_cells`) that have this template's length."""
        column = cells["n"].tobytes()
        if self.prefixes.startswith(column):
            return len(cells)
        lengths = np.frombuffer(column, np.uint32)
        return int(np.argmax(lengths != np.frombuffer(self.prefix, np.uint32)))


@functools.lru_cache(maxsize=64)  # a template keeps up to 128 KiB; a job has few widths
def template(record_bytes: int) -> FrameTemplate:
    """The template of a payload length, shared in the process."""
    return FrameTemplate(record_bytes)


@final
class FramedBatch:
    """The stream of cells of a batch of fixed-width records, of which any range can be written.

    A writer fills one buffer after another from it: bytes [0, room), then [room, 2 * room), and so on.

    Args:
        rows: the payloads, shape (k, n). They are not copied unless they are not contiguous, and must not change until
            the last `write`.

    Attributes:
        size_bytes: length of the stream, k * (n + 4).
        cell_bytes: n + 4.
    """

    __slots__ = ("_column", "_flat", "_template", "cell_bytes", "size_bytes")

    def __init__(self, rows: Rows) -> None:
        records, record_bytes = rows.shape
        self._template = same = template(record_bytes)
        self.cell_bytes = same.cell_bytes
        self.size_bytes = records * self.cell_bytes
        flat = rows.reshape(-1)
        self._flat = flat.data
        self._column = None if same.payload_dtype is None else flat.view(same.payload_dtype)

    def write(self, start_byte: int, stop_byte: int, out: memoryview) -> None:
        """Writes the bytes [start_byte, stop_byte) of the stream to the front of `out`.

        Args:
            start_byte: 0 to `size_bytes`; may be inside a cell, also inside its length.
            stop_byte: 0 to `size_bytes`, not below `start_byte`.
            out: at least `stop_byte - start_byte` writable bytes (one dimension, contiguous, format `B`).

        Raises:
            ValueError: the range is outside the stream, or `out` is too short.
        """
        if not 0 <= start_byte <= stop_byte <= self.size_bytes:
            raise ValueError(f"bytes [{start_byte}, {stop_byte}) of a framed batch of {self.size_bytes} bytes")
        if stop_byte - start_byte > len(out):
            raise ValueError(f"{stop_byte - start_byte} framed bytes do not fit into {len(out)}")
        position = 0
        first, low = divmod(start_byte, self.cell_bytes)
        last, high = divmod(stop_byte, self.cell_bytes)
        if low:
            if first == last:
                self._write_part(first, low, high, out, 0)
                return
            position = self._write_part(first, low, self.cell_bytes, out, 0)
            first += 1
        if first < last:
            position = self._write_cells(first, last, out, position)
        if high:
            self._write_part(last, 0, high, out, position)

    def _write_cells(self, first: int, last: int, out: memoryview, position: int) -> int:
        """Writes the cells [first, last) to byte `position` of `out`; returns the byte after them."""
        same = self._template
        if last - first <= FEW_CELLS or same.cell_dtype is None:
            for index in range(first, last):
                position = self._write_part(index, 0, self.cell_bytes, out, position)
            return position
        while first < last:
            stop = min(last, first + same.chunk_cells)
            count = stop - first
            end = position + count * self.cell_bytes
            cells = same.cells(out, position, count)
            if same.stamp is not None:
                out[position:end] = same.stamp[: end - position]
            else:
                cells["n"] = same.prefix_column[:count]
            if self._column is not None:
                cells["p"] = self._column[first:stop]
            first = stop
            position = end
        return position

    def _write_part(self, index: int, low: int, high: int, out: memoryview, position: int) -> int:
        """Writes the bytes [low, high) of one cell to byte `position` of `out`; returns the byte after them."""
        if low < PREFIX_BYTES:
            piece = self._template.prefix[low:high]
            end = position + len(piece)
            out[position:end] = piece
            position = end
            low = PREFIX_BYTES
        if low < high:
            end = position + high - low
            start = index * self._template.record_bytes - PREFIX_BYTES
            out[position:end] = self._flat[start + low : start + high]
            position = end
        return position


def framed_whole(rows: Rows) -> memoryview:
    """Frames all cells of a batch in new memory."""
    batch = FramedBatch(rows)
    framed = memoryview(bytearray(batch.size_bytes))
    batch.write(0, batch.size_bytes, framed)
    return framed
