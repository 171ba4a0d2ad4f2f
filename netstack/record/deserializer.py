"""Reads a channel record by record: finds the records in the buffers, gathers those that span several, decodes each.

Takes: the buffers of one channel, in order, cut anywhere, and a format. Gives: decoded elements, in order.

Rules: one `RecordDeserializer` per channel. A format is given exactly the bytes of one record. A declared length is
never trusted with memory: one out of bounds is refused before anything is asked for, one up to the spill threshold gets
memory whose pages are taken as bytes arrive, and a longer one goes to a file as it arrives.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NoReturn, final

import numpy as np

from ..errors import ConfigError, LocalProtocolError, RecordError
from .blocks import BlockCache
from .framing import BULK_LIMIT_BYTES, LENGTH, MAX_RECORD_BYTES, PREFIX_BYTES, template

if TYPE_CHECKING:
    from collections.abc import Callable

    from .formats import RecordFormat
    from .spill import SpillDirectory, SpillFile

UNIFORM_FROM_CELLS = 16
"""A run of this many equal lengths is worth decoding as an array: fixed costs of 3 us against 0.15 us a record."""

_COPY_FROM_CELLS = 8
"""When about this many records remain in a buffer, copying it once beats a memoryview for each of them."""

_NO_LENGTH = -1


@final
class RecordDeserializer:
    """Turns the buffers of one channel into elements.

    After an error (from the format, the framing or the spill directory) the position in the stream is lost: elements of
    the same buffer that came before the bad record are not returned, memory and files are given back, and further
    feeding raises `LocalProtocolError` until `clear`.

    Args:
        format: decodes one record. Two methods it may have beyond the protocol are used when present:
            `decode_owned(memory)` gets records gathered from several buffers, in memory it may keep;
            `decode_bytes(data)` gets small records as `bytes`, which costs less than a `memoryview` of each. If that is
            the type `bytes` itself, there is no call at all.
        spill: where records above the threshold are gathered.
        spill_threshold_bytes: longest record gathered in memory.
        max_record_bytes: longest record accepted.

    Raises:
        ConfigError: a bound is out of range.
    """

    # Between two buffers there is either a torn prefix (`_head`, `_length` unknown), or a torn record: `_length` is
    # known, and `_have` bytes of its payload are in `_gathered` or in `_file`.

    __slots__ = (
        "_blocks",
        "_decode",
        "_decode_bytes",
        "_decode_many",
        "_decode_owned",
        "_failed",
        "_file",
        "_gathered",
        "_have",
        "_head",
        "_length",
        "_max_record_bytes",
        "_records",
        "_spill",
        "_spill_threshold_bytes",
    )

    def __init__(
        self,
        format: RecordFormat,
        *,
        spill: SpillDirectory,
        spill_threshold_bytes: int,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        if not 0 <= max_record_bytes <= MAX_RECORD_BYTES:
            raise ConfigError(f"max_record_bytes={max_record_bytes}; give 0 to {MAX_RECORD_BYTES}")
        if spill_threshold_bytes < 0:
            raise ConfigError(f"spill_threshold_bytes={spill_threshold_bytes}; give at least 0")
        self._decode = format.decode
        self._decode_bytes: Callable[[bytes], Any] | None = getattr(format, "decode_bytes", None)
        self._decode_many = format.decode_many
        self._decode_owned: Callable[[memoryview], Any] | None = getattr(format, "decode_owned", None)
        self._spill = spill
        self._spill_threshold_bytes = spill_threshold_bytes
        self._max_record_bytes = max_record_bytes
        self._records = 0
        self._failed = False
        self._head = b""
        self._length = _NO_LENGTH
        self._have = 0
        self._gathered: memoryview | None = None
        self._blocks = BlockCache()
        self._file: SpillFile | None = None

    def feed(self, memory: memoryview) -> list[Any]:
        """Decodes everything that one more buffer completes; it may be reused as soon as this returns.

        Args:
            memory: the next bytes of the channel (one dimension, contiguous, format `B`).

        Returns:
            The elements, in order.

        Raises:
            RecordError: a length out of bounds, or bytes the format refuses.
            SpillError: a large record could not be kept.
            LocalProtocolError: fed again after an error.
        """
        if self._failed:
            raise LocalProtocolError(
                f"this deserializer failed after {self._records} records of the channel; drop the channel, or clear()"
                " it and feed it from a record boundary"
            )
        elements: list[Any] = []
        complete = False
        try:
            position = 0
            if self._head or self._length != _NO_LENGTH:
                position = self._resume(memory, elements)
            if position < len(memory):
                position = self._read_uniform(memory, position, elements)
                position = self._read_each(memory, position, elements)
                if position < len(memory):
                    self._begin(memory, position, elements)
            complete = True
        finally:  # whatever a format raises: the position is lost
            self._records += len(elements)
            if not complete:
                self._forget()
                self._failed = True
        return elements

    @property
    def pending_bytes(self) -> int:
        """Framed bytes of the torn record; at the end of the channel anything but 0 means that it was cut off."""
        return len(self._head) if self._length == _NO_LENGTH else PREFIX_BYTES + self._have

    def unconsumed(self) -> bytes:
        """The framed bytes not handed out yet, for a checkpoint.

        A new deserializer is fed these first, and goes on with the rest of the stream.

        Raises:
            SpillError: a spilled record cannot be read back.
        """
        if self._length == _NO_LENGTH:
            return self._head
        prefix = LENGTH.pack(self._length)
        if self._file is not None:
            return prefix + self._file.read()
        return prefix if self._gathered is None else b"".join((prefix, self._gathered[: self._have]))

    def clear(self) -> None:
        """Forgets the torn record and gives its memory or file back; the next buffer starts on a record boundary."""
        self._forget()
        self._failed = False

    def _read_uniform(self, memory: memoryview, position: int, elements: list[Any]) -> int:
        """Decodes the run of equally long records at `position` as one array, if it is long; returns where it ends."""
        prefix = bytes(memory[position : position + PREFIX_BYTES])
        if len(prefix) < PREFIX_BYTES:
            return position
        (length,) = LENGTH.unpack(prefix)
        cell_bytes = PREFIX_BYTES + length
        whole = (len(memory) - position) // cell_bytes
        # The second record is looked at first: where lengths differ, most buffers stop here.
        second = position + cell_bytes
        if (
            whole < UNIFORM_FROM_CELLS
            or not 0 < length <= min(BULK_LIMIT_BYTES, self._max_record_bytes)
            or memory[second : second + PREFIX_BYTES] != prefix
        ):
            return position
        same = template(length)
        while whole >= UNIFORM_FROM_CELLS:
            count = min(whole, same.chunk_cells)
            cells = same.cells(memory, position, count)
            run = same.count_uniform(cells)
            if run:
                rows = cells["p"][:run].copy().view(np.uint8).reshape(run, length)
                elements += self._decode_many(rows)
                position += run * cell_bytes
            if run < count:
                break
            whole -= count
        return position

    def _read_each(self, memory: memoryview, position: int, elements: list[Any]) -> int:
        """Decodes whole records one by one; returns where the first one that is not whole starts."""
        end = len(memory)
        last_prefix = end - PREFIX_BYTES
        limit = self._max_record_bytes
        unpack = LENGTH.unpack_from
        decode = self._decode
        append = elements.append
        if self._decode_bytes is not None and position <= last_prefix:
            (length,) = unpack(memory, position)
            if _COPY_FROM_CELLS * (PREFIX_BYTES + length) <= end - position:
                return position + self._read_copied(bytes(memory[position:]), self._decode_bytes, elements)
        while position <= last_prefix:
            (length,) = unpack(memory, position)
            start = position + PREFIX_BYTES
            stop = start + length
            if stop > end or length > limit:
                break
            append(decode(memory[start:stop]))
            position = stop
        return position

    def _read_copied(self, data: bytes, decode: Callable[[bytes], Any], elements: list[Any]) -> int:
        """Does the same for a copy of the buffer's rest."""
        end = len(data)
        last_prefix = end - PREFIX_BYTES
        limit = self._max_record_bytes
        unpack = LENGTH.unpack_from
        append = elements.append
        as_it_is = decode is bytes
        position = 0
        while position <= last_prefix:
            (length,) = unpack(data, position)
            start = position + PREFIX_BYTES
            stop = start + length
            if stop > end or length > limit:
                break
            append(data[start:stop] if as_it_is else decode(data[start:stop]))
            position = stop
        return position

    def _begin(self, memory: memoryview, position: int, elements: list[Any]) -> None:
        """Keeps the first part of a record that goes on in the next buffer."""
        start = position + PREFIX_BYTES
        self._head = bytes(memory[position:start])
        if len(self._head) == PREFIX_BYTES:
            self._gather(elements)
            self._keep(memory[start:])

    def _resume(self, memory: memoryview, elements: list[Any]) -> int:
        """Goes on with a torn prefix or record; returns the bytes used."""
        position = 0
        if self._length == _NO_LENGTH:
            position = min(PREFIX_BYTES - len(self._head), len(memory))
            self._head += memory[:position]
            if len(self._head) < PREFIX_BYTES:
                return position
            self._gather(elements)
        count = min(self._length - self._have, len(memory) - position)
        stop = position + count
        self._keep(memory if stop == count == len(memory) else memory[position:stop])
        if self._have == self._length:
            elements.append(self._finish())
        return stop

    def _gather(self, elements: list[Any]) -> None:
        """The length is known: checks it, and makes room for the payload."""
        (length,) = LENGTH.unpack(self._head)
        if length > self._max_record_bytes:
            self._refuse(length, self._records + len(elements))
        self._head = b""
        self._length = length
        self._have = 0
        if length > self._spill_threshold_bytes:
            self._file = self._spill.create(length)
        else:
            # Memory that is not touched until it is written: a peer that announces much and sends little costs nothing.
            self._gathered = self._blocks.take(length).data

    def _keep(self, piece: memoryview) -> None:
        """Adds to the payload."""
        have = self._have + len(piece)
        if self._file is not None:
            self._file.append(piece)
        elif self._gathered is not None:
            self._gathered[self._have : have] = piece
        self._have = have

    def _finish(self) -> Any:
        """Decodes the gathered record."""
        gathered, file = self._gathered, self._file
        self._gathered = None
        self._length = _NO_LENGTH
        if gathered is not None:
            return self._decode(gathered) if self._decode_owned is None else self._decode_owned(gathered)
        assert file is not None  # one of the two exists while a length is known
        mapped = file.map()
        self._file = None
        file.close()
        view = memoryview(mapped)
        if self._decode_owned is not None:
            return self._decode_owned(view)
        try:
            return self._decode(view)
        finally:
            # A format that kept a view of it keeps the map alive; otherwise disk space and descriptor come back now.
            with contextlib.suppress(BufferError):
                view.release()
                mapped.close()

    def _refuse(self, length: int, record: int) -> NoReturn:
        signed = f" ({length - 2**32} as a signed number)" if length > MAX_RECORD_BYTES else ""
        raise RecordError(
            f"record {record} of the channel declares {length} bytes{signed}, and {self._max_record_bytes} is the most"
            " accepted: the stream is not framed records, or bytes were lost; if records may be that long, raise"
            " max_record_bytes"
        )

    def _forget(self) -> None:
        """Drops the torn record."""
        self._head = b""
        self._length = _NO_LENGTH
        self._have = 0
        self._gathered = None
        file, self._file = self._file, None
        if file is not None:
            file.close()
