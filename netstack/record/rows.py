"""Reads fixed-width records as arrays: payloads are copied once, from the network buffers to the place they stay in.

Takes: the buffers of one channel, in order, cut anywhere. Gives: arrays of shape (records, bytes of a record).

Rules: one `RowDeserializer` per channel. A row is written once and never again, so the arrays belong to the caller;
they are views of blocks, and a block is used again only when none of its rows is referenced any more. Every length
prefix is checked: a record of another width would otherwise shift everything after it without a sound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from ..errors import ConfigError, LocalProtocolError, RecordError
from .blocks import BlockCache
from .framing import BULK_LIMIT_BYTES, FEW_CELLS, LENGTH, MAX_RECORD_BYTES, PREFIX_BYTES, template

if TYPE_CHECKING:
    import numpy.typing as npt

    from .framing import Rows

DEFAULT_BLOCK_BYTES = 1024 * 1024
"""Large enough that making it is spread over 32 network buffers, small enough to stay in the cache until it is read."""

_NOTHING = memoryview(b"")

_MAX_BLOCK_ROWS = 1 << 20  # bounds a block of empty records, which needs no memory


@final
class RowDeserializer:
    """Gathers fixed-width records into blocks.

    Args:
        record_bytes: payload of every record.
        block_bytes: memory asked for at a time; a longer record gets a block of its own.

    Raises:
        ConfigError: `record_bytes` is not a length a record can have, or `block_bytes` is below 1.
    """

    # The torn record, if there is one, is row `_row`: `_have` bytes of its cell have come. Its prefix is in `_torn`,
    # its payload is already in the block. `_have` is -1 once a prefix was wrong.

    __slots__ = (
        "_block",
        "_block_rows",
        "_blocks",
        "_column",
        "_full",
        "_have",
        "_memory",
        "_records",
        "_row",
        "_taken",
        "_template",
        "_torn",
    )

    def __init__(self, record_bytes: int, *, block_bytes: int = DEFAULT_BLOCK_BYTES) -> None:
        if not 0 <= record_bytes <= MAX_RECORD_BYTES:
            raise ConfigError(f"record_bytes={record_bytes}; give 0 to {MAX_RECORD_BYTES}")
        if block_bytes < 1:
            raise ConfigError(f"block_bytes={block_bytes}; give at least 1")
        self._template = template(record_bytes)
        self._block_rows = min(max(1, block_bytes // max(1, record_bytes)), _MAX_BLOCK_ROWS)
        self._full: list[Rows] = []
        self._block: Rows | None = None
        self._column: npt.NDArray[np.void] | None = None
        self._memory = _NOTHING
        self._blocks = BlockCache()
        self._row = 0
        self._taken = 0
        self._have = 0
        self._torn = b""
        self._records = 0

    def feed(self, memory: memoryview) -> int:
        """Copies the payloads out of one buffer; it may be reused as soon as this returns.

        Args:
            memory: the next bytes of the channel (one dimension, contiguous, format `B`).

        Returns:
            How many records became complete.

        Raises:
            RecordError: a length differs from `record_bytes`. Records before it can still be taken; the stream cannot
                be followed any further.
            LocalProtocolError: fed again after that.
        """
        before = self._records
        end = len(memory)
        position = 0
        if self._have:
            position = self._resume(memory, end)
            if self._have:
                return 0
        same = self._template
        whole = (end - position) // same.cell_bytes
        if whole > FEW_CELLS and same.record_bytes <= BULK_LIMIT_BYTES:
            position = self._copy_cells(memory, position, whole)
        else:
            for _ in range(whole):
                position = self._copy_cell(memory, position)
        if position < end:
            self._begin(memory, position, end)
        return self._records - before

    def take(self) -> list[Rows]:
        """Everything completed since the last call, in order; the caller's own from now on.

        Returns:
            Contiguous arrays of shape (k, record_bytes), k >= 1: more than one where the records straddle blocks.
        """
        arrays, self._full = self._full, []
        if self._row > self._taken and self._block is not None:
            arrays.append(self._block[self._taken : self._row])
            self._taken = self._row
        return arrays

    @property
    def pending_bytes(self) -> int:
        """Framed bytes of the torn record; at the end of the channel anything but 0 means that it was cut off."""
        return max(self._have, 0)

    def unconsumed(self) -> bytes:
        """The framed bytes of the torn record, for a checkpoint.

        A new reader is fed these first, and goes on with the rest of the stream. Complete records are not among them:
        `take` those.
        """
        start = self._row * self._template.record_bytes
        return self._torn + bytes(self._memory[start : start + max(self._have - PREFIX_BYTES, 0)])

    def _resume(self, memory: memoryview, end: int) -> int:
        """Completes the torn record as far as `memory` goes; returns the bytes used."""
        have = self._have
        if have < 0:
            raise LocalProtocolError(
                f"this reader stopped at record {self._records} of the channel, whose length was wrong;"
                " drop the channel"
            )
        position = 0
        if have < PREFIX_BYTES:
            position = min(PREFIX_BYTES - have, end)
            self._torn += memory[:position]
            have += position
            if have < PREFIX_BYTES:
                self._have = have
                return position
            self._check(self._torn)
        same = self._template
        count = min(same.cell_bytes - have, end - position)
        start = self._row * same.record_bytes + have - PREFIX_BYTES
        stop = position + count
        self._memory[start : start + count] = memory if stop == count == end else memory[position:stop]
        have += count
        if have < same.cell_bytes:
            self._have = have
        else:
            self._have = 0
            self._torn = b""
            self._records += 1
            self._row += 1
            if self._row == self._block_rows:
                self._seal_block()
        return stop

    def _copy_cells(self, memory: memoryview, position: int, whole: int) -> int:
        """Takes `whole` complete cells, column-wise; returns the position after them."""
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
            self._records += good
            self._row = row + good
            if self._row == self._block_rows:
                self._seal_block()
            position += good * same.cell_bytes
            if good < count:
                self._check(bytes(memory[position : position + PREFIX_BYTES]))
            whole -= count
        return position

    def _copy_cell(self, memory: memoryview, position: int) -> int:
        """Takes one complete cell; returns the position after it."""
        same = self._template
        payload = position + PREFIX_BYTES
        if memory[position:payload] != same.prefix:
            self._check(bytes(memory[position:payload]))
        if self._block is None:
            self._new_block()
        start = self._row * same.record_bytes
        end = position + same.cell_bytes
        self._memory[start : start + same.record_bytes] = memory[payload:end]
        self._records += 1
        self._row += 1
        if self._row == self._block_rows:
            self._seal_block()
        return end

    def _begin(self, memory: memoryview, position: int, end: int) -> None:
        """Keeps the first part of a record that goes on in the next buffer."""
        payload = position + PREFIX_BYTES
        self._torn = torn = bytes(memory[position:payload])
        self._have = end - position
        if self._block is None:
            self._new_block()
        if len(torn) == PREFIX_BYTES:
            self._check(torn)
            start = self._row * self._template.record_bytes
            self._memory[start : start + end - payload] = memory[payload:end]

    def _check(self, prefix: bytes) -> None:
        """Raises unless it is the prefix of a record of the right width."""
        if prefix == self._template.prefix:
            return
        self._have = -1
        self._torn = b""
        expected = self._template.record_bytes
        (found,) = LENGTH.unpack(prefix)
        raise RecordError(
            f"record {self._records} of the channel is {found} bytes long by its length prefix, and this reader takes"
            f" records of {expected} bytes: the writer emits records of another width; read the channel record by"
            f" record, or write every record {expected} bytes wide"
        )

    def _seal_block(self) -> None:
        """Sets the full block aside."""
        if self._block is not None:
            self._full.append(self._block[self._taken :])
        self._block = None
        self._row = self._taken = 0

    def _new_block(self) -> None:
        """Asks for memory that no row was ever in, or that nobody looks at any more.

        Every array handed out refers to its block's memory. When only this reader does, the memory is used again: fresh
        memory costs a page fault every 4 KiB, a fifth of the whole reading.
        """
        same = self._template
        self._block = self._column = None
        self._memory = _NOTHING
        flat = self._blocks.take(self._block_rows * same.record_bytes)
        self._block = flat.reshape(self._block_rows, same.record_bytes)
        self._column = None if same.payload_dtype is None else flat.view(same.payload_dtype)
        self._memory = flat.data
