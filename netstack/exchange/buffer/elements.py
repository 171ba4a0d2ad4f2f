"""The elements of a subpartition's queue: their interface, and the elements that hold events.

Takes: an event's bytes, or a barrier. Gives: its bytes as a `Buffer`, once. The elements that hold records are
`BufferConsumer` and `LentBuffers`. Three functions report what a whole queue holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol, final

from ...base.events import CheckpointBarrier, DataType, encode_event
from .buffer import Buffer


class QueueElement(Protocol):
    """An element of a subpartition's queue."""

    data_type: DataType

    @property
    def buffers(self) -> int:
        """How many network buffers or events it is: 1, or those of a run (`lent.LentBuffers`)."""

    @property
    def is_data(self) -> bool:
        """Whether it is a data buffer. A plain attribute in most classes, because it is read for every buffer."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will be appended."""

    @property
    def unread_bytes(self) -> int:
        """How many bytes `build` would return, for metrics."""

    def has_data(self) -> bool:
        """Whether `build` would return bytes."""

    def build(self) -> Buffer | None:
        """The bytes since the last call, or a run's next buffer, with its own reference; None if there are none."""

    def snapshot(self) -> bytes:
        """A copy of the bytes not yet built."""

    def close(self) -> None:
        """Drops this element's reference, once."""


@final
class EventBuffer:
    """An event: finished, in heap memory that all subpartitions share."""

    __slots__ = ("_built", "_memory", "data_type")
    buffers = 1
    is_data = False
    is_finished = True

    def __init__(self, data: bytes, data_type: DataType) -> None:
        self.data_type = data_type
        self._memory = memoryview(data)
        self._built = False

    @property
    def unread_bytes(self) -> int:
        """All its bytes until it is built, then 0."""
        return 0 if self._built else len(self._memory)

    def has_data(self) -> bool:
        """True until it is built."""
        return not self._built

    def build(self) -> Buffer | None:
        """All its bytes at the first call, then None."""
        if self._built:
            return None
        self._built = True
        return Buffer(self._memory, len(self._memory), self.data_type, None)

    def snapshot(self) -> bytes:
        """Its bytes."""
        return bytes(self._memory)

    def close(self) -> None:
        """Does nothing: heap memory is not returned."""


@final
class BarrierBuffer:
    """A barrier in a queue. It computes its age when it leaves, so that its time in the queue counts."""

    __slots__ = ("_added_s", "_built", "barrier", "data_type", "now")
    buffers = 1
    is_data = False
    is_finished = True

    def __init__(self, barrier: CheckpointBarrier, data_type: DataType, now: Callable[[], float]) -> None:
        """Queues `barrier`, whose age counts from now; `now` is a clock in monotonic seconds."""
        self.data_type = data_type
        self.barrier = barrier
        self.now = now
        self._added_s = now()
        self._built = False

    @property
    def unread_bytes(self) -> int:
        """All its bytes until it is built, then 0."""
        return 0 if self._built else len(self.snapshot())

    def has_data(self) -> bool:
        """True until it is built."""
        return not self._built

    def aged(self) -> CheckpointBarrier:
        """The barrier with its present age."""
        waited_ns = int((self.now() - self._added_s) * 1e9)
        return replace(self.barrier, elapsed_ns=self.barrier.elapsed_ns + max(0, waited_ns))

    def build(self) -> Buffer | None:
        """Its bytes at the first call, then None."""
        if self._built:
            return None
        self._built = True
        data = self.snapshot()
        return Buffer(memoryview(data), len(data), self.data_type, None)

    def snapshot(self) -> bytes:
        """Its bytes if it left now."""
        return encode_event(self.aged())

    def close(self) -> None:
        """Does nothing: heap memory is not returned."""


def copy_data(queue: Iterable[QueueElement], until: QueueElement | None = None) -> bytes:
    """Copies the data that was not yet taken from a queue, in front of the element `until` if given."""
    pieces = []
    for element in queue:
        if element is until:
            break
        if element.is_data:
            pieces.append(element.snapshot())
    return b"".join(pieces)


def queued_events(queue: Iterable[QueueElement]) -> list[tuple[bytes, int]]:
    """The events of a queue, each with the bytes of data in front of it; no announcements, which repeat barriers."""
    events, ahead_bytes = [], 0
    for element in queue:
        if element.is_data:
            ahead_bytes += element.unread_bytes
        elif element.data_type is not DataType.ANNOUNCEMENT:
            events.append((element.snapshot(), ahead_bytes))
    return events


def count_readable(queue: Iterable[QueueElement], *, flushed: bool) -> tuple[int, int]:
    """Counts the buffers and events, and their bytes, that a reader may take before an event blocks; O(queue).

    Args:
        queue: in order.
        flushed: whether the written bytes of an unfinished element may be taken.
    """
    count = size = 0
    for element in queue:
        unread = element.unread_bytes
        if unread and (element.is_finished or flushed):
            count += element.buffers
            size += unread
        if not element.is_data and element.data_type.blocks_upstream:
            break
    return count, size
