"""Decodes what a gate has ready to arrays, without a step of the interpreter for each buffer.

Takes: a gate's `poll`, and the `RowDeserializer` of each channel. Gives: rows in the deserializers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...base.events import DataType
from ..buffer.buffer import Buffer
from ..record.rows import RowDeserializer

_DATA: Final = DataType.DATA


def feed_rows(
    poll: Callable[[], Buffer | None],
    rows: list[RowDeserializer],
    first: Buffer,
    most: int,
    touched: dict[int, None],
) -> tuple[Buffer | None, int]:
    """Feeds data buffers to the deserializers of their channels and recycles them, until none is ready.

    Args:
        poll: returns the next buffer that is ready.
        rows: the deserializer of each channel.
        first: the first buffer.
        most: how many buffers are taken at most, at least 1; the last may be a run of more.
        touched: gets the channels that were fed.

    Returns:
        The event that ended the taking, for the caller to handle (None: no buffer is ready, or `most` were taken), and
        how many more may be taken.

    Raises:
        RecordError, ChannelFailed, ...: a buffer could not be decoded, or the channel whose turn it was has failed.
    """
    buffer: Buffer | None = first
    while buffer is not None:
        if buffer.data_type is not _DATA:
            return buffer, most
        channel = buffer.channel_index
        touched[channel] = None
        taken = buffer.buffers
        try:
            rows[channel].feed(buffer.memory if buffer.pieces is None else buffer.contiguous())
        finally:
            buffer.recycle()
        most -= taken
        buffer = poll() if most > 0 else None
    return None, max(0, most)
