"""Limits the size of compressed Arrow batches before they are decompressed.

Takes: a message of an Arrow IPC stream. Gives: a `ValueError` if its buffers announce too many bytes.

Arrow allocates what each compressed buffer announces, and 33 KB may announce 1 GiB. The announcements are read from the
message itself: Arrow's columnar format, "Compression of record batch buffers", and its flatbuffers schema
`Message.fbs`. We never write compressed batches; other writers may.
"""

from __future__ import annotations

import struct
from typing import Any, Final

MAX_INFLATED_BYTES: Final = 64 << 20
"""Limit for all compressed buffers of one message together."""

_DICTIONARY: Final = 2
_RECORD_BATCH: Final = 3
_BUFFER_BYTES: Final = 16


def check_inflated(message: Any) -> None:
    """Checks the sizes that compressed buffers announce; a message without compressed buffers passes at once.

    Args:
        message: a `pyarrow.ipc.Message`, whose metadata structure Arrow has verified.

    Raises:
        ValueError: more than `MAX_INFLATED_BYTES`, or metadata that points outside itself.
    """
    metadata, body = memoryview(message.metadata), message.body
    try:
        header = _Table(metadata, _u32(metadata, 0))
        kind = header.byte(1)
        batch = header.table(2)
        if kind == _DICTIONARY and batch is not None:
            batch = batch.table(1)
        elif kind != _RECORD_BATCH:
            return
        if batch is None or batch.table(3) is None:
            return
        announced = 0
        data = memoryview(b"" if body is None else body)
        for offset, length in batch.pairs(2):
            if length >= 8:
                (plain_bytes,) = struct.unpack_from("<q", data, offset)
                announced += max(plain_bytes, 0)  # -1: not compressed
    except struct.error as error:
        raise ValueError(f"its metadata point outside the message: {error}") from error
    if announced > MAX_INFLATED_BYTES:
        raise ValueError(
            f"its compressed buffers announce {announced} bytes; at most {MAX_INFLATED_BYTES} are allowed:"
            " send smaller batches"
        )


class _Table:
    """A flatbuffers table, whose fields are addressed by number."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - struct.unpack_from("<i", data, at)[0]
        if self._fields < 0:
            raise struct.error("a table before the start")
        (self._fields_bytes,) = struct.unpack_from("<H", data, self._fields)

    def _place(self, field: int) -> int | None:
        at = 4 + 2 * field
        if at + 2 > self._fields_bytes:
            return None
        (offset,) = struct.unpack_from("<H", self._data, self._fields + at)
        return self._at + offset if offset else None

    def byte(self, field: int) -> int:
        place = self._place(field)
        return 0 if place is None else struct.unpack_from("<B", self._data, place)[0]

    def table(self, field: int) -> _Table | None:
        place = self._place(field)
        return None if place is None else _Table(self._data, place + _u32(self._data, place))

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """Reads a vector of pairs of 64-bit numbers."""
        place = self._place(field)
        if place is None:
            return []
        start = place + _u32(self._data, place)
        count = _u32(self._data, start)
        if count * _BUFFER_BYTES > len(self._data):
            raise struct.error("a vector longer than the message")
        return list(struct.iter_unpack("<qq", self._data[start + 4 : start + 4 + count * _BUFFER_BYTES]))


def _u32(data: memoryview, at: int) -> int:
    value: int = struct.unpack_from("<I", data, at)[0]
    return value
