"""RecordDeserializer: reads a channel record by record.

It finds the records in the buffers, gathers those that span several buffers, and decodes each.

Takes: the buffers of one channel, in order, cut anywhere, and a format. Gives: decoded elements, in order.

Rules: one `RecordDeserializer` for each channel. A format receives exactly the bytes of one record. A declared length
never allocates memory by itself: one out of bounds is refused, one up to the spill threshold gets memory whose pages
are taken when bytes arrive, and a longer record goes to a file as it arrives.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

import numpy as np

from ...base.errors import ConfigError, LocalProtocolError, RecordError
from .blocks import BlockCache
from .fast_path import split_cells, split_run
from .formats import kind_of
from .framing import (
    BULK_LIMIT_BYTES,
    LENGTH,
    MAX_RECORD_BYTES,
    PREFIX_BYTES,
    RUN,
    RUN_FLAG,
    RUN_HEAD_BYTES,
    explain_run,
    head_of,
    template,
)
from .stream_records import HEAD_BYTES, StreamRecords

if TYPE_CHECKING:
    from collections.abc import Callable

    from .formats import RecordFormat
    from .spill import SpillDirectory, SpillFile

UNIFORM_FROM_CELLS = 16
"""From this many equal lengths on, decoding an array pays: fixed costs of 3 us against 0.15 us for each record."""

_COPY_FROM_CELLS = 8
"""With about this many records left in a buffer, one copy is faster than a memoryview for each of them."""

_BOUNDARY: Final = (b"", 0, 0, 0)
"""The state at a record boundary."""

_NOTHING: Final = memoryview(b"")


@final
class RecordDeserializer:
    """Decodes the buffers of one channel to elements.

    After an error (of the format, the framing or the spill directory) the position in the stream is lost. Elements of
    the same buffer in front of the bad record are not returned, memory and files are released, and `feed` raises
    `LocalProtocolError` until `clear`.

    Args:
        format: decodes one record. Two optional methods are used if it has them: `decode_owned(memory)` receives
            records gathered from several buffers, in memory it may keep; `decode_list(payloads)` receives small records
            as a list of `bytes`, which costs less than a `memoryview` and a call for each.
        spill: where records above the threshold are gathered.
        spill_threshold_bytes: longest record that is gathered in memory.
        accepts_runs: whether the stream may have runs; Flink's streams have none.

    Raises:
        ConfigError: a limit is out of range.
    """

    # Between two buffers there is either a partial head (`_head`), or a cell or run with `_left` incomplete records of
    # `_width` bytes. `_have` bytes of the first of them have arrived, and are in `_gathered` or in `_file`.

    __slots__ = (
        "_accepts_runs",
        "_before",
        "_blocks",
        "_decode",
        "_decode_list",
        "_decode_many",
        "_decode_owned",
        "_failed",
        "_file",
        "_gathered",
        "_have",
        "_head",
        "_head_bytes",
        "_kind",
        "_left",
        "_max_record_bytes",
        "_records",
        "_spill",
        "_spill_threshold_bytes",
        "_width",
    )

    def __init__(
        self,
        format: RecordFormat,
        *,
        spill: SpillDirectory,
        spill_threshold_bytes: int,
        max_record_bytes: int = MAX_RECORD_BYTES,
        accepts_runs: bool = True,
    ) -> None:
        if not 0 <= max_record_bytes <= MAX_RECORD_BYTES:
            raise ConfigError(f"max_record_bytes={max_record_bytes}; give 0 to {MAX_RECORD_BYTES}")
        if spill_threshold_bytes < 0:
            raise ConfigError(f"spill_threshold_bytes={spill_threshold_bytes}; give at least 0")
        self._decode = format.decode
        self._decode_list: Callable[[list[bytes]], list[Any]] | None = getattr(format, "decode_list", None)
        self._decode_many = format.decode_many
        self._decode_owned: Callable[[memoryview], Any] | None = getattr(format, "decode_owned", None)
        self._head_bytes = HEAD_BYTES if isinstance(format, StreamRecords) else 0
        self._kind = kind_of(format.values if isinstance(format, StreamRecords) else format)
        self._spill = spill
        self._spill_threshold_bytes = spill_threshold_bytes
        self._max_record_bytes = max_record_bytes
        self._accepts_runs = accepts_runs
        self._records = 0
        self._failed = False
        self._head = b""
        self._left = 0
        self._width = 0
        self._have = 0
        self._before: tuple[bytes, int, int, int] = _BOUNDARY
        self._gathered: memoryview | None = None
        self._blocks = BlockCache()
        self._file: SpillFile | None = None

    def feed(self, memory: memoryview) -> list[Any]:
        """Decodes the records that another buffer completes; its memory may be reused afterwards.

        Args:
            memory: the next bytes of the channel (one dimension, contiguous, format `B`).

        Returns:
            The decoded elements, in order.

        Raises:
            RecordError: a length out of bounds, or bytes that the format refuses.
            SpillError: a large record could not be stored.
            LocalProtocolError: an earlier call raised.
        """
        if self._failed:
            raise LocalProtocolError(
                f"this deserializer failed after {self._records} records of the channel; close the channel, or clear()"
                " the deserializer and feed it from a record boundary"
            )
        elements: list[Any] = []
        complete = False
        torn = self._left or self._head
        self._before = (self._head, self._left, self._width, self._have) if torn else _BOUNDARY
        try:
            end = len(memory)
            position = 0
            copied_from = end
            copied = b""  # a copy of the buffer from there on
            while position < end:
                if self._left:
                    position = self._read_run(memory, position, elements)
                    continue
                if not self._head:
                    if self._kind and split_cells is not None:
                        position = split_cells(
                            memory, position, self._max_record_bytes, self._kind, elements, self._head_bytes
                        )
                    position = self._read_uniform(memory, position, elements)
                    if self._decode_list is None:
                        position = self._read_each(memory, position, elements)
                    else:
                        if not copied and self._is_worth_copying(memory, position):
                            copied, copied_from = bytes(memory[position:]), position
                        if copied:
                            position = copied_from + self._read_copied(
                                copied, position - copied_from, self._decode_list, elements
                            )
                        else:
                            position = self._read_each(memory, position, elements)
                if position < end:
                    position = self._read_head(memory, position, elements)
            complete = True
        finally:  # after any exception of a format the position is lost
            self._records += len(elements)
            if not complete:
                self._forget()
                self._failed = True
        return elements

    def room(self, least_bytes: int) -> memoryview | None:
        """The memory where the next bytes of the partial record belong (`RowDeserializer.room`)."""
        if self._gathered is None or self._width - self._have < least_bytes:
            return None
        return self._gathered[self._have : self._width]

    @property
    def pending_bytes(self) -> int:
        """Framed bytes of the partial record; other than 0 at the end of the channel, the stream was truncated."""
        if not self._left:
            return len(self._head)
        return (PREFIX_BYTES if self._left == 1 else RUN_HEAD_BYTES) + self._have

    def unconsumed(self) -> bytes:
        """The framed bytes of incomplete records, for a checkpoint; inside a run the head announces all that remain.

        A new deserializer continues after `feed` with these bytes.

        Raises:
            SpillError: a spilled record cannot be read.
        """
        if not self._left:
            return self._head
        head = head_of(self._left, self._width)
        if self._file is not None:
            return head + self._file.read()
        return head if self._gathered is None else b"".join((head, self._gathered[: self._have]))

    def unprocessed(self, memory: memoryview, done: int) -> bytes:
        """The framed bytes behind some records of a buffer, for a checkpoint, including the partial record.

        Args:
            memory: the last buffer passed to `feed`, unchanged.
            done: number of completed records of the buffer to leave out; at least 1, since the bytes of the first
                record may no longer be complete.
        """
        head, left, width, have = self._before
        position = 0
        while True:
            if not left:
                size = PREFIX_BYTES - len(head)
                (first,) = LENGTH.unpack_from(head + bytes(memory[position : position + max(size, 0)]))
                if first < RUN_FLAG:
                    left, width = 1, first
                else:
                    size = RUN_HEAD_BYTES - len(head)
                    count, width = RUN.unpack(head + bytes(memory[position : position + size]))
                    left = count - RUN_FLAG
                position += size
                head = b""
            step = min(done, left)
            position += step * width - have
            have = 0
            left -= step
            done -= step
            if not done:
                break
        rest = bytes(memory[position:])
        return head_of(left, width) + rest if left else rest

    def clear(self) -> None:
        """Drops the partial record with its memory or file; the next buffer must start at a record boundary."""
        self._forget()
        self._failed = False

    def _read_uniform(self, memory: memoryview, position: int, elements: list[Any]) -> int:
        """Decodes records of equal length at `position` as one array, if there are many; returns where they end."""
        prefix = bytes(memory[position : position + PREFIX_BYTES])
        if len(prefix) < PREFIX_BYTES:
            return position
        (length,) = LENGTH.unpack(prefix)
        cell_bytes = PREFIX_BYTES + length
        whole = (len(memory) - position) // cell_bytes
        # The second record is checked first: where lengths differ, this ends most calls.
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
        """Decodes complete records one by one; returns where the first incomplete one starts."""
        end = len(memory)
        last_prefix = end - PREFIX_BYTES
        limit = self._max_record_bytes
        unpack = LENGTH.unpack_from
        decode = self._decode
        append = elements.append
        while position <= last_prefix:
            (length,) = unpack(memory, position)
            start = position + PREFIX_BYTES
            stop = start + length
            if stop > end or length > limit:
                break
            append(decode(memory[start:stop]))
            position = stop
        return position

    def _is_worth_copying(self, memory: memoryview, position: int) -> bool:
        """Whether enough records of about the first one's length follow that copying all is faster than views."""
        left = len(memory) - position
        if left < PREFIX_BYTES:
            return False
        (length,) = LENGTH.unpack_from(memory, position)
        cells: int = _COPY_FROM_CELLS * (PREFIX_BYTES + length)
        return cells <= left

    def _read_copied(
        self, data: bytes, position: int, decode: Callable[[list[bytes]], list[Any]], elements: list[Any]
    ) -> int:
        """Does the same as `_read_each` in a copy of the rest of the buffer."""
        end = len(data)
        last_prefix = end - PREFIX_BYTES
        limit = self._max_record_bytes
        unpack = LENGTH.unpack_from
        payloads: list[bytes] = []
        if split_cells is not None:
            position = split_cells(data, position, limit, "bytes", payloads, 0)
        while position <= last_prefix:
            (length,) = unpack(data, position)
            start = position + PREFIX_BYTES
            stop = start + length
            if stop > end or length > limit:
                break
            payloads.append(data[start:stop])
            position = stop
        elements += decode(payloads)
        return position

    def _read_head(self, memory: memoryview, position: int, elements: list[Any]) -> int:
        """Continues the head of a cell or a run; returns where it ends, or the end of the buffer."""
        have = len(self._head)
        head = self._head + bytes(memory[position : position + RUN_HEAD_BYTES - have])
        if len(head) < PREFIX_BYTES:
            self._head = head
            return len(memory)
        (first,) = LENGTH.unpack_from(head)
        if first <= self._max_record_bytes:
            self._head = b""
            if first:
                self._left, self._width = 1, first
            else:
                elements.append(self._decode(_NOTHING))
            return position + PREFIX_BYTES - have
        if first < RUN_FLAG or not self._accepts_runs:
            self._refuse(first, len(elements))
        if len(head) < RUN_HEAD_BYTES:
            self._head = head
            return len(memory)
        (width,) = LENGTH.unpack_from(head, PREFIX_BYTES)
        records = first - RUN_FLAG
        wrong = explain_run(records, width)
        if wrong:
            raise RecordError(
                f"record {self._records + len(elements)} of the channel: {wrong}; the stream is not framed records, or"
                " bytes were lost"
            )
        if width > self._max_record_bytes:
            self._refuse(width, len(elements))
        self._head = b""
        self._left, self._width = records, width
        return position + RUN_HEAD_BYTES - have

    def _read_run(self, memory: memoryview, position: int, elements: list[Any]) -> int:
        """Continues the payloads of a cell or a run; returns where it stopped."""
        width = self._width
        available = len(memory) - position
        if not self._have:
            whole = min(self._left, available // width)
            if whole:
                stop = position + whole * width
                self._read_rows(memory[position:stop], whole, elements)
                self._left -= whole
                return stop
            self._make_room(width)
        count = min(width - self._have, available)
        stop = position + count
        self._keep(memory if count == len(memory) else memory[position:stop])
        if self._have == width:
            self._left -= 1
            self._have = 0
            elements.append(self._finish())
        return stop

    def _read_rows(self, payloads: memoryview, count: int, elements: list[Any]) -> None:
        """Decodes the complete records of a run."""
        width = self._width
        if self._kind and split_run is not None and not self._head_bytes:
            start = split_run(payloads, 0, width, self._kind, elements)
            if start == len(payloads):
                return
            payloads, count = payloads[start:], count - start // width
        if count >= UNIFORM_FROM_CELLS:
            elements += self._decode_many(np.frombuffer(payloads, np.uint8).copy().reshape(count, width))
            return
        decode = self._decode
        for start in range(0, count * width, width):
            elements.append(decode(payloads[start : start + width]))

    def _make_room(self, length: int) -> None:
        """Prepares memory, or a file, for a record that the buffer's end cuts."""
        if length > self._spill_threshold_bytes:
            self._file = self._spill.create(length)
        else:
            # Memory that is not touched until it is written: a peer that announces much and sends little costs nothing.
            self._gathered = self._blocks.take(length).data

    def _keep(self, piece: memoryview) -> None:
        have = self._have + len(piece)
        if self._file is not None:
            self._file.append(piece)
        elif self._gathered is not None:
            self._gathered[self._have : have] = piece
        self._have = have

    def _finish(self) -> Any:
        gathered, file = self._gathered, self._file
        self._gathered = None
        if gathered is not None:
            return self._decode(gathered) if self._decode_owned is None else self._decode_owned(gathered)
        assert file is not None  # either memory or a file exists
        mapped = file.map()
        self._file = None
        file.close()
        view = memoryview(mapped)
        if self._decode_owned is not None:
            return self._decode_owned(view)
        try:
            return self._decode(view)
        finally:
            # A view that the format kept keeps the map alive; otherwise disk space and descriptor are released now.
            with contextlib.suppress(BufferError):
                view.release()
                mapped.close()

    def _refuse(self, length: int, found: int) -> NoReturn:
        record = self._records + found
        signed = f" ({length - 2**32} as a signed number)" if length > MAX_RECORD_BYTES else ""
        raise RecordError(
            f"record {record} of the channel declares {length} bytes{signed}, above max_record_bytes"
            f"={self._max_record_bytes}: raise it if records may be that long; else the stream is not framed records,"
            " or bytes were lost"
        )

    def _forget(self) -> None:
        self._head = b""
        self._left = 0
        self._have = 0
        self._gathered = None
        file, self._file = self._file, None
        if file is not None:
            file.close()
