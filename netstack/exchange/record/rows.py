"""RowDeserializer: reads fixed-width records as arrays, copying payloads once, out of the network buffers.

Takes: the buffers of one channel, in order, cut anywhere. Gives: arrays of shape (records, bytes of a record).

Rules: one `RowDeserializer` for each channel. A row is written once, so the arrays belong to the caller; they are views
of blocks, and a block is reused only when none of its rows is referenced. Every length is checked: a record of another
width would otherwise shift everything after it unnoticed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, final

import numpy as np

from ...base.errors import ConfigError, LocalProtocolError, RecordError
from .blocks import BlockCache
from .fast_path import copy_runs
from .framing import (
    BULK_LIMIT_BYTES,
    FEW_CELLS,
    LENGTH,
    MAX_RECORD_BYTES,
    PREFIX_BYTES,
    RUN_FLAG,
    RUN_HEAD_BYTES,
    explain_run,
    head_of,
    template,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from .framing import Rows

DEFAULT_BLOCK_BYTES = 1024 * 1024
"""Large enough to spread its cost over 32 network buffers, small enough to stay in the cache until it is read."""

_NOTHING = memoryview(b"")

_MAX_BLOCK_ROWS = 1 << 20  # limits a block of empty records, which needs no memory


@final
class RowDeserializer:
    """Gathers fixed-width records into blocks.

    Args:
        record_bytes: payload bytes of every record.
        block_bytes: memory allocated at a time; a longer record gets its own block.
        accepts_runs: whether the stream may have runs; Flink's streams have none.

    Raises:
        ConfigError: `record_bytes` is out of range, or `block_bytes` is below 1.
    """

    # Between two buffers there is either a partial head (`_head`), or a cell or run with `_rest` missing payload bytes;
    # `_part` bytes of its partial record, which is row `_row`, are in the block.

    __slots__ = (
        "_accepts_runs",
        "_block",
        "_block_rows",
        "_blocks",
        "_column",
        "_failed",
        "_full",
        "_head",
        "_memory",
        "_part",
        "_records",
        "_rest",
        "_row",
        "_taken",
        "_template",
    )

    def __init__(self, record_bytes: int, *, block_bytes: int = DEFAULT_BLOCK_BYTES, accepts_runs: bool = True) -> None:
        if not 0 <= record_bytes <= MAX_RECORD_BYTES:
            raise ConfigError(f"record_bytes={record_bytes}; give 0 to {MAX_RECORD_BYTES}")
        if block_bytes < 1:
            raise ConfigError(f"block_bytes={block_bytes}; give at least 1")
        self._accepts_runs = accepts_runs
        self._template = template(record_bytes)
        self._block_rows = min(max(1, block_bytes // max(1, record_bytes)), _MAX_BLOCK_ROWS)
        self._full: list[Rows] = []
        self._block: Rows | None = None
        self._column: npt.NDArray[np.void] | None = None
        self._memory = _NOTHING
        self._blocks = BlockCache()
        self._row = 0
        self._taken = 0
        self._part = 0
        self._rest = 0
        self._head = b""
        self._failed = False
        self._records = 0

    def feed(self, memory: memoryview) -> int:
        """Copies the payloads out of one buffer; its memory may be reused afterwards.

        Args:
            memory: the next bytes of the channel (one dimension, contiguous, format `B`).

        Returns:
            The number of records that became complete.

        Raises:
            RecordError: a length differs from `record_bytes`. Earlier records can still be taken; the stream cannot be
            read further.
            LocalProtocolError: an earlier call raised.
        """
        if self._failed:
            raise LocalProtocolError(
                f"this reader failed: record {self._records} of the channel has a wrong length; close the channel"
            )
        before = self._records
        end = len(memory)
        position = 0
        same = self._template
        cell = same.cell_bytes
        copies_runs = copy_runs is not None and self._accepts_runs and same.record_bytes > 0
        while position < end:
            if self._rest:
                position = self._copy(memory, position, end)
            elif self._head:
                position = self._read_head(memory, position, end)
            elif copies_runs and memory[position] & 0x80:  # the top bit of a run's head
                position = self._copy_runs(memory, position, end)
            elif memory[position : position + PREFIX_BYTES] != same.prefix:
                position = self._read_head(memory, position, end)
            else:
                whole = (end - position) // cell
                second = position + cell  # checked first: there may be few cells between runs
                if (
                    whole > FEW_CELLS
                    and same.record_bytes <= BULK_LIMIT_BYTES
                    and memory[second : second + PREFIX_BYTES] == same.prefix
                ):
                    position = self._copy_cells(memory, position, whole)
                else:
                    position = self._read_head(memory, position, end)
        return self._records - before

    def take(self) -> list[Rows]:
        """Takes all records completed since the last call, in order; the caller owns them.

        Returns:
            Contiguous arrays of shape (k, record_bytes), k >= 1; several if the records are in several blocks.
        """
        arrays, self._full = self._full, []
        if self._row > self._taken and self._block is not None:
            arrays.append(self._block[self._taken : self._row])
            self._taken = self._row
        return arrays

    def room(self, least_bytes: int) -> memoryview | None:
        """The memory where the next bytes of the record or run in progress belong, all that is contiguous.

        `feed` does not copy the bytes of a buffer that already lie there. Returns None if fewer than `least_bytes`
        belong there, or if the length of the next record is not known yet.
        """
        if self._rest < least_bytes or self._failed:
            return None
        if self._block is None:
            self._new_block()
        width = self._template.record_bytes
        start = self._row * width + self._part
        count = min(self._rest, self._block_rows * width - start)
        return self._memory[start : start + count] if count >= least_bytes else None

    @property
    def pending_bytes(self) -> int:
        """Framed bytes of the partial record; other than 0 at the end of the channel, the stream was truncated."""
        if not self._rest:
            return len(self._head)
        one = self._rest + self._part <= self._template.record_bytes
        return (PREFIX_BYTES if one else RUN_HEAD_BYTES) + self._part

    def unconsumed(self) -> bytes:
        """The framed bytes of incomplete records, for a checkpoint; inside a run the head announces all that remain.

        A new reader continues after `feed` with these bytes. Complete records are not included: `take` them.
        """
        if not self._rest:
            return self._head
        width = self._template.record_bytes
        start = self._row * width
        return head_of((self._rest + self._part) // width, width) + bytes(self._memory[start : start + self._part])

    def _read_head(self, memory: memoryview, position: int, end: int) -> int:
        """Continues the head of a cell or a run; returns the position after it, or `end`."""
        have = len(self._head)
        head = self._head + bytes(memory[position : position + RUN_HEAD_BYTES - have])
        self._head = b""
        if len(head) < PREFIX_BYTES:
            self._head = head
            return end
        width = self._template.record_bytes
        (first,) = LENGTH.unpack_from(head)
        if first < RUN_FLAG or not self._accepts_runs:
            if first != width:
                self._refuse(first, "its length prefix")
            self._rest = width
            if not width:
                self._add_empty()
            return position + PREFIX_BYTES - have
        if len(head) < RUN_HEAD_BYTES:
            self._head = head
            return end
        (declared,) = LENGTH.unpack_from(head, PREFIX_BYTES)
        records = first - RUN_FLAG
        wrong = explain_run(records, declared)
        if wrong:
            self._failed = True
            raise RecordError(
                f"record {self._records} of the channel: {wrong}; its producer is faulty, close the channel"
            )
        if declared != width:
            self._refuse(declared, "the head of its run")
        self._rest = records * width
        return position + RUN_HEAD_BYTES - have

    def _copy_runs(self, memory: memoryview, position: int, end: int) -> int:
        """Copies complete runs that fit, or reads at least one head; returns the position after them."""
        if self._block is None:
            self._new_block()
        assert copy_runs is not None
        position, records = copy_runs(memory, position, self._template.record_bytes, self._memory, self._row)
        if not records:
            return self._read_head(memory, position, end)
        self._add(records)
        return position

    def _copy(self, memory: memoryview, position: int, end: int) -> int:
        """Copies payload of the cell or run, limited by `memory` and the block; returns the position after it."""
        if self._block is None:
            self._new_block()
        width = self._template.record_bytes
        start = self._row * width + self._part
        count = min(self._rest, end - position, self._block_rows * width - start)
        stop = position + count
        self._memory[start : start + count] = memory if count == len(memory) else memory[position:stop]
        self._rest -= count
        part = self._part + count
        done = part // width
        self._part = part - done * width
        self._add(done)
        return stop

    def _copy_cells(self, memory: memoryview, position: int, whole: int) -> int:
        """Copies complete cells of equal length, at most `whole`; returns the position after them."""
        same = self._template
        while whole:
            if self._block is None:
                self._new_block()
            row = self._row
            count = self._block_rows - row
            if whole < count:
                count = whole
            if same.chunk_cells < count:
                count = same.chunk_cells
            cells = same.cells(memory, position, count)
            good = same.count_uniform(cells)
            if good < count:
                cells = cells[:good]
            if self._column is not None:
                self._column[row : row + good] = cells["p"]
            self._add(good)
            position += good * same.cell_bytes
            if good < count:
                break
            whole -= count
        return position

    def _add(self, count: int) -> None:
        """Counts completed rows of the block."""
        self._records += count
        self._row += count
        if self._row == self._block_rows:
            self._seal_block()

    def _add_empty(self) -> None:
        """Adds an empty record."""
        if self._block is None:
            self._new_block()
        self._add(1)

    def _refuse(self, declared: int, source: str) -> NoReturn:
        self._failed = True
        expected = self._template.record_bytes
        raise RecordError(
            f"record {self._records} of the channel has {declared} bytes according to {source}, and this reader takes"
            f" records of {expected} bytes: the writer emits records of another width; read the channel record by"
            f" record, or write every record {expected} bytes wide"
        )

    def _seal_block(self) -> None:
        """Finishes the full block."""
        if self._block is not None:
            self._full.append(self._block[self._taken :])
        self._block = None
        self._row = self._taken = 0

    def _new_block(self) -> None:
        """Takes memory of a new or unreferenced block.

        Every returned array refers to its block's memory. If only this reader does, the memory is reused: fresh memory
        costs a page fault every 4 KiB, a fifth of the time of reading.
        """
        same = self._template
        self._block = self._column = None
        self._memory = _NOTHING
        flat = self._blocks.take(self._block_rows * same.record_bytes)
        self._block = flat.reshape(self._block_rows, same.record_bytes)
        self._column = None if same.payload_dtype is None else flat.view(same.payload_dtype)
        self._memory = flat.data
