"""BatchFormat: reads records as arrays, for readers that take arrays.

Takes: a format whose records are bytes or numbers; elements of its deserializer. Gives: arrays of shape (records, bytes
of a record) or (records,); a list if records differ in length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from .blocks import BlockCache
from .formats import Encoded, RecordFormat, rows_as_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray


def can_batch(format: RecordFormat) -> bool:
    """Whether records of a format can be read as arrays: bytes, or numbers."""
    return format.name == "bytes" or format.numpy_dtype is not None


@final
class BatchFormat(RecordFormat):
    """A format for `RecordDeserializer` that keeps records of equal length as arrays."""

    def __init__(self, format: RecordFormat) -> None:
        """Takes the format of the records, for which `can_batch` is true."""
        self.name = format.name
        self.fixed_width_bytes = format.fixed_width_bytes
        self.numpy_dtype = format.numpy_dtype
        self._format = format
        self._blocks = BlockCache()

    def encode(self, record: Any) -> Encoded:
        """Encodes a record with the format."""
        return self._format.encode(record)

    def decode(self, view: memoryview) -> Any:
        """Decodes one record with the format."""
        return self._format.decode(view)

    def decode_many(self, rows: NDArray[np.uint8]) -> list[Any]:
        """Returns the rows as one element."""
        if self.fixed_width_bytes is not None and rows.shape[1] != self.fixed_width_bytes:
            return self._format.decode_many(rows)  # raises
        return [rows]

    def joined(self, elements: Sequence[Any]) -> list[Any] | NDArray[Any]:
        """Joins the records of several elements, in order.

        Returns:
            An array that the caller owns as long as it refers to it; a list if records differ in length.
        """
        dtype = self.numpy_dtype
        if len(elements) == 1 and isinstance(elements[0], np.ndarray):
            rows = elements[0]
            return rows if dtype is None else rows.view(dtype)[:, 0]
        if dtype is not None:
            return np.concatenate([_numbers(each, dtype) for each in elements])
        widths = {each.shape[1] if isinstance(each, np.ndarray) else len(each) for each in elements}
        if len(widths) != 1 or 0 in widths:
            records: list[Any] = []
            for each in elements:
                records += rows_as_bytes(each) if isinstance(each, np.ndarray) else (each,)
            return records
        (width,) = widths
        count = sum(len(each) if isinstance(each, np.ndarray) else 1 for each in elements)
        gathered = self._blocks.take(count * width).reshape(count, width)
        start = 0
        for each in elements:
            if isinstance(each, np.ndarray):
                gathered[start : start + len(each)] = each
                start += len(each)
            else:
                gathered[start] = np.frombuffer(each, np.uint8)
                start += 1
        return gathered


def _numbers(element: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    return element.view(dtype)[:, 0] if isinstance(element, np.ndarray) else np.array([element], dtype)
