"""InputCapture: keeps the unprocessed data in front of an unaligned barrier, for one input channel.

Takes: the start and the end of a checkpoint, barriers and data as they arrive. Gives: copies of the data, in order.

Rules: a channel captures for one checkpoint at a time. Data belongs to the checkpoint if it is in front of the barrier
on the channel, whenever it is read. Sequence numbers decide this; they wrap around at 2^32.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from ...base.events import DataType
from ..buffer.buffer import Buffer


def is_before(sequence: int, other: int) -> bool:
    """Whether a sequence number comes before another of the same channel; they are at most 2^31 apart."""
    return (other - sequence) & 0xFFFFFFFF < 1 << 31 and other != sequence


REMEMBERED_BARRIERS = 16
"""Remembered barriers of one channel; a coordinator runs one or two checkpoints at a time."""


@final
class InputCapture:
    """The capture state of one channel."""

    __slots__ = ("_barriers", "_checkpoint_id", "_pieces", "is_open")

    def __init__(self) -> None:
        self._checkpoint_id = -1
        self._pieces: list[bytes] = []
        self._barriers: dict[int, int] = {}  # checkpoint -> sequence number of its barrier; the newest ones
        self.is_open = False
        """Whether data that arrives now belongs to the checkpoint: its barrier has not arrived."""

    def start(self, checkpoint_id: int, unconsumed: bytes, queued: Iterable[Buffer]) -> bool:
        """Starts the capture of a checkpoint.

        Args:
            checkpoint_id: newer than all before.
            unconsumed: the partial record in the channel's deserializer, which precedes everything queued.
            queued: buffers that arrived and were not read, in order.

        Returns:
            False if a newer barrier arrived without this one, which then never comes.
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
        """Ends the capture at the barrier, by its sequence number. A late barrier of an older checkpoint is ignored."""
        self._barriers[checkpoint_id] = sequence
        if len(self._barriers) > REMEMBERED_BARRIERS:
            del self._barriers[min(self._barriers)]
        if checkpoint_id >= self._checkpoint_id:
            self.is_open = False

    def add(self, data: memoryview) -> None:
        """Captures data that arrives (of a local channel: is read) while `is_open`."""
        self._pieces.append(bytes(data))

    def take(self, checkpoint_id: int) -> bytes:
        """Ends the capture of a checkpoint and returns its data; empty for another checkpoint."""
        if checkpoint_id != self._checkpoint_id:
            return b""
        pieces, self._pieces = self._pieces, []
        self._checkpoint_id = -1
        self.is_open = False
        self._barriers = {known: place for known, place in self._barriers.items() if known > checkpoint_id}
        return b"".join(pieces)
