"""Everything one task writes to: its partitions as one output that never waits inside a record if it can help it.

Takes: records and events of the task, buffers that come back. Gives: records to every consumer, waits between records.

Rules:
- The task looks at `is_available` between two records and waits there, where barriers are handled. Inside a record the
  pools' overdraft serves. Only what needs more than that is kept, and written before anything else happens.
- Events go to every subpartition of every partition, when nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

import numpy.typing as npt
import trio

from ..buffer.local_pool import LocalBufferPool
from ..errors import LocalProtocolError
from ..events import EndOfData, Event
from ..outbound.partition import ResultPartition
from ..runtime.record_writer import RecordWriter
from ..runtime.signal import Signal
from .mailbox import Mailbox


class HasRoom(Protocol):
    """A pool, or several."""

    @property
    def is_available(self) -> bool:
        """Whether every one of them has a buffer at hand."""


@final
class _Pools:
    def __init__(self, pools: Sequence[LocalBufferPool]) -> None:
        self._pools = pools

    @property
    def is_available(self) -> bool:
        return all(pool.is_available for pool in self._pools)


@final
class TaskOutput:
    """The output of one task (an `Output`).

    Attributes:
        kept: records that found no buffer, each with its writer, in order.
        partitions: what is written to.
        room: tells whether the next record may be processed; with one partition without another call.
    """

    __slots__ = ("_mailbox", "_returned", "_targets", "_writers", "kept", "partitions", "room")

    def __init__(self, writers: Sequence[RecordWriter], mailbox: Mailbox) -> None:
        """Args: one writer for every task that reads this one; whom to wake when there is room."""
        self.partitions: tuple[ResultPartition, ...] = tuple(writer.partition for writer in writers)
        self.kept: list[tuple[RecordWriter, Any]] = []
        self._writers = tuple(writers)
        self._targets = tuple((writer, writer.emit_nowait) for writer in writers)
        pools = tuple(partition.pool for partition in self.partitions)
        self.room: HasRoom = pools[0] if len(pools) == 1 else _Pools(pools)
        self._mailbox = mailbox
        self._returned = Signal()
        for partition in self.partitions:  # their writers want to know, too
            partition.pool.on_available = _all(partition.pool.on_available, self._returned.wake, mailbox.wake)
            partition.on_acknowledged = _all(partition.on_acknowledged, mailbox.wake)

    # For the operator.

    def collect(self, record: Any) -> None:
        """See `Output.collect`."""
        kept = self.kept
        for writer, emit_nowait in self._targets:
            if kept:
                kept.append((writer, record))
                continue
            try:
                emit_nowait(record)
            except trio.WouldBlock:
                kept.append((writer, record))
        if not self._targets:
            raise self._no_consumer()

    async def emit(self, record: Any) -> None:
        """See `Output.emit`."""
        self.collect(record)
        if self.kept:
            await self.drain()

    async def emit_batch(self, array: npt.NDArray[Any]) -> None:
        """See `Output.emit_batch`."""
        if not self._writers:
            raise self._no_consumer()
        if self.kept:
            await self.drain()
        for writer in self._writers:
            await writer.emit_batch(array)

    # For the task.

    @property
    def is_available(self) -> bool:
        """Whether the next record may be processed: every partition has a buffer at hand."""
        return self.room.is_available

    @property
    def is_sink(self) -> bool:
        """Whether there is no partition, so that it is always available."""
        return not self.partitions

    async def drain(self) -> None:
        """Writes what is kept, waiting for buffers: hard back-pressure."""
        kept = self.kept
        while kept:
            writer, record = kept[0]
            partition = writer.partition
            while not partition.pool.is_available:  # the writer would count this as soft, since it took no buffer yet
                partition.hard_backpressured.begin(partition.host.now())
                try:
                    await self._returned.wait()
                finally:
                    partition.hard_backpressured.end(partition.host.now())
            await writer.emit(record)
            kept.pop(0)

    async def wait(self) -> None:
        """Waits until there may be room, or something is urgent: soft back-pressure."""
        full = [partition for partition in self.partitions if not partition.pool.is_available]
        for partition in full:
            partition.host.kick()
        if self.is_available or self._mailbox.is_urgent:
            return
        for partition in full:
            partition.soft_backpressured.begin(partition.host.now())
        try:
            await self._mailbox.wait()
        finally:
            for partition in full:
                partition.soft_backpressured.end(partition.host.now())

    async def broadcast(self, event: Event) -> None:
        """Sends an event to every consumer: behind everything, or in front of it if it is an unaligned barrier."""
        for writer in self._writers:
            await writer.broadcast_event(event)

    def time_out_barrier(self, checkpoint_id: int) -> None:
        """See `ResultPartition.time_out_barrier`."""
        for partition in self.partitions:
            partition.time_out_barrier(checkpoint_id)

    def forget_barrier(self, checkpoint_id: int) -> None:
        """See `ResultPartition.forget_barrier`."""
        for partition in self.partitions:
            partition.forget_barrier(checkpoint_id)

    async def end_of_data(self) -> None:
        """Tells every consumer that there are no more records. Events may still follow."""
        await self.broadcast(EndOfData())

    @property
    def is_consumed(self) -> bool:
        """Whether every consumer has processed every record."""
        return all(partition.all_acknowledged or partition.is_released for partition in self.partitions)

    def finish(self) -> None:
        """Ends every partition; they live on until their ends were read.

        Raises:
            LocalProtocolError: a partition was released: its consumers failed, or the TaskManager is closing.
        """
        for partition in self.partitions:
            partition.finish()
            partition.close()
            partition.host.kick()

    def fail(self, cause: str) -> None:
        """Tells every consumer why there will be no more records."""
        for partition in self.partitions:
            partition.fail(cause)

    def _no_consumer(self) -> LocalProtocolError:
        return LocalProtocolError("no task of the job reads this one, so it has nowhere to emit to; is it an input?")


def _all(first: Callable[[], None] | None, *others: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        if first is not None:
            first()
        for other in others:
            other()

    return call
