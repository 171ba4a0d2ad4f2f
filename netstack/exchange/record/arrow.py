"""ArrowFormat: an Arrow RecordBatch as one record, in the form of one self-contained Arrow IPC stream.

Takes: `pyarrow.RecordBatch`es, or the bytes of one. Gives: pieces over the columns' own memory; batches.

Rules: a record is the schema message, then dictionaries if there are any, then one batch message. The end-of-stream
marker is not written, but accepted. Column memory is never copied when writing. Received bytes are fully validated,
offsets and UTF-8 included, because Arrow's kernels trust them afterwards (no cost for numbers, about 4 GB/s for text).

pyarrow is an extra, so it is imported when the first `ArrowFormat` is created.
"""

from __future__ import annotations

import importlib
import struct
from typing import TYPE_CHECKING, Any, TypeAlias, final

from ...base.errors import ConfigError, RecordError
from .arrow_bounds import check_inflated

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

RecordBatch: TypeAlias = Any  # pyarrow has no annotations, and may be missing

# Copying this much costs less than another piece (about 0.2 us each in later steps).
MERGE_BELOW_BYTES = 2048
# A stream repeats its schema. A reader caches this many different ones, then clears the cache, so a peer that keeps
# inventing schemas slows its reader down but does not use up its memory.
MAX_CACHED_SCHEMAS = 16

PIECE_BYTES = 4 * 1024 * 1024
"""Approximate size of the pieces in which a batch is sent; smaller than what readers gather in a file."""

_MESSAGE_START = struct.Struct("<Ii")  # continuation marker, length of the metadata that follows
_CONTINUATION = 0xFFFFFFFF
_END_OF_STREAM = _MESSAGE_START.pack(_CONTINUATION, 0)


class _Sink:
    """A file object as Arrow's stream writer needs it, which keeps the written pieces instead of copying them."""

    closed = False

    def __init__(self) -> None:
        self.pieces: list[Any] = []

    def write(self, piece: Any) -> None:
        self.pieces.append(piece)


@final
class ArrowFormat:
    """Arrow RecordBatches, each as one record.

    An object serves one writer or one reader at a time.
    """

    name = "arrow"
    fixed_width_bytes: int | None = None
    numpy_dtype: np.dtype[Any] | None = None

    def __init__(self) -> None:
        try:
            self._pa = importlib.import_module("pyarrow")
        except ImportError as error:
            raise ConfigError(
                f"record format arrow needs pyarrow ({error}); install it: pip install 'pyarrow>=16'"
            ) from error
        self._sink = _Sink()
        self._schema: Any = None
        self._schema_message = b""
        self._writer: Any = None
        self._schemas: dict[bytes, Any] = {}

    def encode(self, record: RecordBatch) -> bytes:
        """Encodes a batch in one piece, which copies it; `encode_pieces` does not."""
        return b"".join(self.encode_pieces(record))

    def encode_pieces(self, record: RecordBatch) -> list[bytes | memoryview]:
        """Encodes a batch as an IPC stream in pieces.

        Returns:
            Small pieces, merged, and views of the columns' own buffers. A view keeps its buffer alive; the contents
            must not change until the pieces are written (Arrow memory is immutable by convention, a numpy array wrapped
            as a column is not).

        Raises:
            RecordError: the record is not a RecordBatch, or Arrow cannot write it.
        """
        pa = self._pa
        if not isinstance(record, pa.RecordBatch):
            raise RecordError(
                f"record of type {type(record).__name__} does not fit format arrow: emit a pyarrow.RecordBatch"
                " (a Table has to_batches())"
            )
        try:
            pieces = self._written(record)
        except (pa.ArrowException, OSError, MemoryError) as error:
            raise RecordError(
                f"RecordBatch of {record.num_rows} rows cannot be written as Arrow IPC: {error}"
            ) from error
        return _merged(pieces)

    def decode(self, view: memoryview) -> RecordBatch:
        """Decodes a batch over a copy of its bytes.

        Raises:
            RecordError: the bytes are not exactly one schema and one batch.
        """
        return self.decode_owned(bytes(view))

    def decode_many(self, rows: NDArray[np.uint8]) -> list[Any]:
        """Decodes the batch of every row."""
        return [self.decode_owned(row.tobytes()) for row in rows]

    def decode_owned(self, buffer: bytes | bytearray | memoryview) -> RecordBatch:
        """Decodes a batch over that very memory, without a copy.

        Args:
            buffer: the bytes of one record, in any object that exports memory. The batch keeps it; the caller must
                never change or recycle it.

        Raises:
            RecordError: the bytes are not exactly one schema and one batch.
        """
        pa = self._pa
        data = pa.py_buffer(buffer)
        try:
            batch = self._read(data)
            batch.validate(full=True)
        except (pa.ArrowException, OSError, EOFError, MemoryError, ValueError, IndexError, StopIteration) as error:
            reason = str(error) or type(error).__name__
            raise RecordError(
                f"{data.size} bytes are not one Arrow schema and one RecordBatch: {reason};"
                " does the producer write format arrow?"
            ) from error
        return batch

    def _written(self, batch: RecordBatch) -> list[Any]:
        """The pieces that Arrow's writer writes for a whole stream."""
        schema = batch.schema
        if self._schema is None or not schema.equals(self._schema, check_metadata=True):
            # Dictionaries are written only before the first batch that uses them, and every record is its own stream,
            # so with dictionaries each record needs a new writer. Otherwise the writer is kept (3 us a batch instead of
            # 14), and an empty batch makes it write its schema first.
            self._schema = None
            self._writer = None
            if not _has_dictionaries(schema):
                self._sink, self._writer = self._open_writer(schema)
                self._writer.write_batch(batch.slice(0, 0))
                self._schema_message = schema.serialize().to_pybytes()
            self._schema = schema
        if self._writer is None:
            sink, writer = self._open_writer(schema)
            writer.write_batch(batch)
            return sink.pieces
        self._sink.pieces = [self._schema_message]
        self._writer.write_batch(batch)
        pieces, self._sink.pieces = self._sink.pieces, []
        return pieces

    def _open_writer(self, schema: Any) -> tuple[_Sink, Any]:
        sink = _Sink()
        return sink, self._pa.ipc.new_stream(self._pa.PythonFile(sink, mode="w"), schema)

    def _read(self, data: Any) -> RecordBatch:
        """Reads the batch of a stream; raises Arrow's errors."""
        pa = self._pa
        head = memoryview(data)
        if len(head) < _MESSAGE_START.size:
            raise ValueError(f"{len(head)} bytes are shorter than the head of a message")
        marker, metadata_bytes = _MESSAGE_START.unpack_from(head)
        end = _MESSAGE_START.size + metadata_bytes
        if marker != _CONTINUATION or metadata_bytes <= 0 or end > len(head):
            raise ValueError(f"it starts with marker {marker:#x} and length {metadata_bytes}")
        key = bytes(head[:end])
        if key in self._schemas:
            schema = self._schemas[key]
        else:
            schema = pa.ipc.read_schema(pa.py_buffer(key))
            if _has_dictionaries(schema):
                schema = None
            if len(self._schemas) >= MAX_CACHED_SCHEMAS:
                self._schemas.clear()
            self._schemas[key] = schema
        source = pa.BufferReader(data)
        if schema is None:
            source.seek(end)
            while source.tell() < len(head) and bytes(head[source.tell() :]) != _END_OF_STREAM:
                check_inflated(pa.ipc.read_message(source))
            source.seek(0)
            reader = pa.ipc.open_stream(source)
            batch = reader.read_next_batch()
        else:
            source.seek(end)
            message = pa.ipc.read_message(source)
            check_inflated(message)
            batch = pa.ipc.read_record_batch(message, schema)
        used = source.tell()
        if used != len(head) and bytes(head[used:]) != _END_OF_STREAM:
            raise ValueError(f"{len(head) - used} bytes follow the batch")
        return batch


def slices(batch: RecordBatch, size_bytes: int) -> Iterator[RecordBatch]:
    """Cuts a batch into pieces of about `size_bytes` at most; a larger row is a piece of its own."""
    rows = max(1, batch.num_rows * size_bytes // max(1, batch.nbytes))
    if batch.num_rows <= rows + rows // 4:
        yield batch
        return
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _has_dictionaries(schema: Any) -> bool:
    """Whether a column is dictionary-encoded, at any depth.

    Raises:
        UnicodeDecodeError: a name in the schema is not UTF-8. Arrow does not check it, so the user of the batch would
        fail later.
    """
    # Every name must be read, even if the first column decides.
    types = [data_type for field in schema for _, data_type in _walk(field.name, field.type)]
    return any(hasattr(data_type, "index_type") for data_type in types)


def _walk(name: str, data_type: Any) -> Iterator[tuple[str, Any]]:
    """Yields a type and those inside it, with their names, depth first."""
    # Reading a timestamp's zone checks that it is UTF-8.
    yield getattr(data_type, "tz", None) or name, data_type
    if hasattr(data_type, "storage_type"):  # an extension type
        yield from _walk(name, data_type.storage_type)
    elif hasattr(data_type, "index_type"):  # a dictionary
        yield from _walk(name, data_type.value_type)
    for at in range(data_type.num_fields):
        child = data_type.field(at)
        yield from _walk(child.name, child.type)


def _merged(pieces: list[Any]) -> list[bytes | memoryview]:
    """Joins small neighbours; views the others as bytes."""
    merged: list[bytes | memoryview] = []
    small: list[Any] = []
    for piece in pieces:
        if len(piece) < MERGE_BELOW_BYTES:
            small.append(piece)
            continue
        if small:
            merged.append(b"".join(small))
            small = []
        merged.append(memoryview(piece).cast("B").toreadonly())
    if small:
        merged.append(b"".join(small))
    return merged
