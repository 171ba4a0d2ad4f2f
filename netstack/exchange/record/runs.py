"""FramedRuns: writes a batch as runs. Each has a head, then its payloads.

Takes: an array of fixed-width payloads, and how long a run may be when it begins. Gives: the bytes of the runs in
order, cut anywhere.

A run begins when there is room for it, and ends with its buffer. So one copy fills a buffer, and a writer that stops
between two buffers leaves no incomplete run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from .framing import RUN_HEAD_BYTES, head_of, template

if TYPE_CHECKING:
    from .framing import Rows


@final
class FramedRuns:
    """A batch of fixed-width records that is written into buffers.

    Args:
        rows: the payloads, shape (k, n), contiguous, n from 1 to `BULK_LIMIT_BYTES`. They are not copied, and must not
        change until the last `write`.
        first: index of the row of the first record.
        step: distance between the rows of two records.

    Attributes:
        least_bytes: framed bytes of a run of two records.
        left: number of records in no run yet.
        begun: number of records in a run.
    """

    __slots__ = ("_flat", "_head", "_items", "_low", "_start", "_width", "begun", "least_bytes", "left")

    def __init__(self, rows: Rows, first: int = 0, step: int = 1) -> None:
        width: int = rows.shape[1]
        self._width = width
        dtype = template(width).payload_dtype
        assert dtype is not None  # n is small enough
        flat = rows.reshape(-1)
        self._flat = flat.data if step == 1 and not first else None
        self._items = flat.view(dtype)[first::step]
        self.least_bytes = RUN_HEAD_BYTES + 2 * width
        self.left: int = len(self._items)
        self.begun = 0
        self._start = 0
        self._head = b""
        self._low = 0

    def begin(self, most_bytes: int) -> int:
        """Begins the next run, after the previous one is complete.

        Args:
            most_bytes: maximum length. If two records do not fit, the run is a cell, of any length.

        Returns:
            Its framed bytes.
        """
        count = min((most_bytes - RUN_HEAD_BYTES) // self._width, self.left)
        if count < 1:
            count = 1
        self._head = head_of(count, self._width)
        self._low = 0
        self._start = self.begun
        self.begun += count
        self.left -= count
        return len(self._head) + count * self._width

    def write(self, out: memoryview) -> None:
        """Writes the next bytes of the run, which has at least `len(out)` left."""
        low = self._low
        end = len(out)
        self._low = low + end
        low -= len(self._head)
        position = 0
        if low < 0:
            position = min(-low, end)
            out[:position] = self._head[low : position + low or None]
            low = 0
        if position == end:
            return
        if self._flat is not None:
            start = self._start * self._width + low
            out[position:] = self._flat[start : start + end - position]
        else:
            self._gather(low, out, position, end)

    def _gather(self, low: int, out: memoryview, position: int, end: int) -> None:
        """Writes payloads of the run, from byte `low` of all payloads on, to bytes [position, end) of `out`."""
        width, items = self._width, self._items
        index = self._start + low // width
        part = low % width
        if part:
            piece = items[index].tobytes()[part : part + end - position]
            out[position : position + len(piece)] = piece
            position += len(piece)
            index += 1
        whole = (end - position) // width
        if whole:
            there = np.ndarray((whole,), items.dtype, out, position)
            there[:] = items[index : index + whole]
            position += whole * width
        if position < end:
            out[position:] = items[index + whole].tobytes()[: end - position]
