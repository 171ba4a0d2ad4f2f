"""StreamRecords: frames records as Flink's streaming jobs do, with a tag and a timestamp in front of every value.

Takes: a format for values. Gives: a format whose records are nine bytes longer, so that a buffer holds as many as in
Flink: 1,560 of 8 bytes in 32 KiB. (`flink.StreamElementFormat` reads and writes everything that Flink may send.)

The timestamp is the one that Flink's sources assign to records without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast, final

import numpy as np

from ...base.errors import RecordError
from .formats import Encoded, RecordFormat

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEAD: Final = b"\0" + (1 << 63).to_bytes(8, "big")
HEAD_BYTES: Final = len(HEAD)
_TAG: Final = HEAD[0]


@final
class StreamRecords(RecordFormat):
    """Values of another format, each behind a head.

    Attributes:
        values: the format of the values.
    """

    def __init__(self, values: RecordFormat) -> None:
        """Takes the format of the values."""
        self.name = values.name
        self.numpy_dtype = values.numpy_dtype
        if values.fixed_width_bytes is not None:
            self.fixed_width_bytes = HEAD_BYTES + values.fixed_width_bytes
        self.values = values
        self._decode_owned = cast(Any, getattr(values, "decode_owned", values.decode))

    def encode(self, record: Any) -> bytes:
        """Encodes the head and the value."""
        return b"".join((HEAD, self.values.encode(record)))

    def encode_pieces(self, record: Any) -> list[Encoded]:
        """Encodes the head, then the pieces of the value."""
        return [HEAD, *self.values.encode_pieces(record)]

    def decode(self, view: memoryview) -> Any:
        """Decodes the value."""
        return self.values.decode(_behind_head(view))

    def decode_many(self, rows: NDArray[np.uint8]) -> list[Any]:
        """Decodes the value in every row."""
        return self.values.decode_many(without_heads(rows))

    def decode_owned(self, view: memoryview) -> Any:
        """Decodes the value, which may keep the memory if its format supports that."""
        return self._decode_owned(_behind_head(view))


def with_heads(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Copies rows of values, each behind a head."""
    made = np.empty((len(rows), HEAD_BYTES + rows.shape[1]), np.uint8)
    made[:, :HEAD_BYTES] = np.frombuffer(HEAD, np.uint8)
    made[:, HEAD_BYTES:] = rows
    return made


def without_heads(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Views the values of rows without their heads. Raises RecordError if a row does not begin with a head."""
    if len(rows) and (rows.shape[1] < HEAD_BYTES or (rows[:, 0] != _TAG).any()):
        raise _headless()
    return rows[:, HEAD_BYTES:]


def _behind_head(view: memoryview) -> memoryview:
    if len(view) < HEAD_BYTES or view[0] != _TAG:
        raise _headless()
    return view[HEAD_BYTES:]


def _headless() -> RecordError:
    return RecordError("a record has no tag and timestamp: its producer does not write as Flink; configure both alike")
