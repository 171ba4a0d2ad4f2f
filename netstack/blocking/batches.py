"""Batches on their way into a blocking writer's queue: checked, routed and copied in the caller's thread.

Takes: an array, or an Arrow RecordBatch; the format and the selector. Gives: `Work` that writes it whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import RecordError
from ..outbound.writer import rows_of
from ..record.formats import RecordFormat
from ..record.framing import check_record_bytes
from ..runtime.record_writer import RecordWriter
from .routing import ChosenSelector
from .work import Work


def array_work(array: npt.NDArray[Any], format: RecordFormat, selector: ChosenSelector, inner: RecordWriter) -> Work:
    """Writes a copy of an array of fixed-width records.

    Raises:
        RecordError: its elements are no records of the format.
    """
    wanted = format.numpy_dtype
    if format.name != "bytes" and array.dtype != wanted:
        raise RecordError(
            f"an array of {array.dtype} is no batch of {format.name} records:"
            + (f" give {wanted}" if wanted is not None else " their width varies; emit them one by one")
        )
    rows = rows_of(array)
    check_record_bytes(rows.shape[1], inner.partition.max_record_bytes)
    copy = np.array(array, order="C")
    chosen = selector.choose_batch(array, len(rows)) if len(rows) else None

    async def write() -> None:
        selector.chosen = chosen
        try:
            await inner.emit_batch(copy)
        finally:
            selector.chosen = None

    return Work(write, records=len(rows), bytes=copy.nbytes)


def columnar_work(batch: Any, format: RecordFormat, selector: ChosenSelector, inner: RecordWriter) -> Work:
    """Writes an Arrow RecordBatch as one record, from where it lies: it never changes.

    Raises:
        RecordError: it is none, or does not fit the format.
    """
    if format.name != "arrow":
        raise RecordError(
            f"emit_batch of a {type(batch).__name__} with format {format.name!r}: give a numpy array,"
            " or make the writer with format='arrow' for RecordBatches"
        )
    pieces = format.encode_pieces(batch)
    size = sum(map(len, pieces))
    check_record_bytes(size, inner.partition.max_record_bytes)
    item: Any = (selector.choose(batch) if selector.fixed is None else selector.fixed, pieces)

    async def write() -> None:
        await inner.emit_batch(item)

    return Work(write, records=1, bytes=size)
