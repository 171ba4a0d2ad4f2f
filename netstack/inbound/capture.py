"""What unaligned barriers overtake at one input channel: the data in front of them that was not processed yet.

Takes: the start and the end of a checkpoint here, barriers and data as they come. Gives: copies of the data, in order.

Rules: a channel captures for one checkpoint at a time. What counts is the place of the data on the channel, not the
time at which somebody reads it: data in front of the barrier of the checkpoint belongs to it, data behind it does not.
So that is asked of sequence numbers, which wrap around at 2^32.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from ..buffer.buffer import Buffer
from ..events import DataType


def is_before(sequence: int, other: int) -> bool:
    """Whether a number comes before another of the same channel; they are at most 2^31 apart."""
    return (other - sequence) & 0xFFFFFFFF < 1 << 31 and other != sequence


REMEMBERED_BARRIERS = 16
"""Barriers of one channel that wait to be read; a coordinator has one or two checkpoints under way."""


@final
class InputCapture:
    """The state of one channel. See the module."""

    __slots__ = ("_barriers", "_checkpoint_id", "_pieces", "is_open")

    def __init__(self) -> None:
        self._checkpoint_id = -1
        self._pieces: list[bytes] = []
        self._barriers: dict[int, int] = {}  # checkpoint -> place of its barrier, of the newest that have come
        self.is_open = False
        """Whether data that comes now belongs to the checkpoint: its barrier has not come yet."""

    def start(self, checkpoint_id: int, unconsumed: bytes, queued: Iterable[Buffer]) -> bool:
        """The checkpoint starts here.

        Args:
            checkpoint_id: a newer one than any before.
            unconsumed: the part of a record that its deserializer holds; it is in front of everything queued.
            queued: what has come and was not read yet, in order.

        Returns:
            False when a newer barrier has come and this one has not: it never will.
        """
        place = self._barriers.get(checkpoint_id)
        if place is None and any(other > checkpoint_id for other in self._barriers):
            return False
        self._checkpoint_id = checkpoint_id
        self.is_open = place is None
        self._pieces = [unconsumed] if unconsumed else []
        for buffer in queued:
            if buffer.data_type is not DataType.DATA:
                continue
            if place is not None and not is_before(buffer.sequence, place):
                break
            self._pieces.append(bytes(buffer.contiguous()))
        return True

    def on_barrier(self, checkpoint_id: int, sequence: int) -> None:
        """A barrier has come, with its number on the channel; a late one of an older checkpoint ends nothing."""
        self._barriers[checkpoint_id] = sequence
        if len(self._barriers) > REMEMBERED_BARRIERS:
            del self._barriers[min(self._barriers)]
        if checkpoint_id >= self._checkpoint_id:
            self.is_open = False

    def add(self, data: memoryview) -> None:
        """Data came (or, of a local channel, was read) while `is_open`."""
        self._pieces.append(bytes(data))

    def take(self, checkpoint_id: int) -> bytes:
        """Ends the capture of a checkpoint and gives what it holds; nothing if it is not the one."""
        if checkpoint_id != self._checkpoint_id:
            return b""
        pieces, self._pieces = self._pieces, []
        self._checkpoint_id = -1
        self.is_open = False
        self._barriers = {known: place for known, place in self._barriers.items() if known > checkpoint_id}
        return b"".join(pieces)
