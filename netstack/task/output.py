"""Everything one task writes to: its partitions as one output that never waits inside a record if it can help it.

Takes: records and events of the task, buffers that come back. Gives: records to every consumer, waits between records.

Rules:
- The task looks at `is_available` between two records and waits there, where barriers are handled. Inside a record the
  pools' overdraft serves. Only what needs more than that is kept, and written before anything else happens.
- Events go to every subpartition of every partition, when nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, final

import numpy as np
import numpy.typing as npt
import trio

from ..buffer.local_pool import LocalBufferPool
from ..errors import PoolDestroyed, RecordError
from ..events import EndOfData, Event
from ..outbound.partition import ResultPartition
from ..outbound.selector import records_of
from ..record.formats import format_named
from ..runtime.record_writer import RecordWriter
from ..runtime.signal import Signal
from ..schedule.descriptors.information import OutputInformation
from ..waits import WaitMeter
from .mailbox import Mailbox

Records: TypeAlias = "list[Any] | npt.NDArray[Any]"
"""Several records: one by one in a list, or as an array."""


class Target(NamedTuple):
    """Whom records are handed to.

    Attributes:
        push: takes one.
        push_batch: takes several, in order.
    """

    push: Callable[[Any], None]
    push_batch: Callable[[Records], None]


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
    """The output of one task: an edge for each of its partitions.

    Attributes:
        edges: what operators emit to, one for each partition.
        kept: what found no buffer, in order: the writer, whether it is an array, and the record or array.
        partitions: what is written to.
        room: tells whether the next record may be processed; with one partition without another call.
        backpressured: how long the task has waited for room.
    """

    __slots__ = (
        "_is_finished",
        "_mailbox",
        "_now",
        "_returned",
        "_told",
        "_writers",
        "backpressured",
        "edges",
        "kept",
        "partitions",
        "room",
    )

    def __init__(
        self,
        writers: Sequence[RecordWriter[Any]],
        told: Sequence[OutputInformation],
        mailbox: Mailbox,
        now: Callable[[], float],
    ) -> None:
        """Takes over the writers.

        Args:
            writers: one for each partition.
            told: what goes into each.
            mailbox: whom to wake when there is room.
            now: monotonic seconds.
        """
        self.partitions: tuple[ResultPartition, ...] = tuple(writer.partition for writer in writers)
        self.kept: list[tuple[RecordWriter[Any], bool, Any]] = []
        self._writers = tuple(writers)
        self._told = tuple(told)
        for writer in writers:
            writer.overdraw()
        self.edges = tuple(_edge(writer, self.kept, each) for writer, each in zip(writers, told, strict=True))
        pools = tuple(partition.pool for partition in self.partitions)
        self.room: HasRoom = pools[0] if len(pools) == 1 else _Pools(pools)
        self.backpressured = WaitMeter(now())
        self._now = now
        self._mailbox = mailbox
        self._is_finished = False
        self._returned = Signal()
        for partition in self.partitions:  # their writers want to know, too
            partition.pool.on_available = _all(partition.pool.on_available, self._returned.wake, mailbox.wake)
            partition.on_acknowledged = _all(partition.on_acknowledged, mailbox.wake)

    # For the task.

    @property
    def is_available(self) -> bool:
        """Whether the next record may be processed: every partition has a buffer at hand."""
        return self.room.is_available

    @property
    def is_sink(self) -> bool:
        """Whether there is no partition, so that it is always available."""
        return not self.partitions

    @property
    def waits(self) -> int:
        """How often a writer has waited for a buffer so far."""
        return sum(each.soft_backpressured.count + each.hard_backpressured.count for each in self.partitions)

    async def drain(self) -> None:
        """Writes what is kept, waiting for buffers: hard back-pressure."""
        self.backpressured.begin(self._now())
        try:
            await self._drain()
        finally:
            self.backpressured.end(self._now())

    async def _drain(self) -> None:
        kept = self.kept
        while kept:
            writer, is_array, record = kept[0]
            partition = writer.partition
            while not is_array and not partition.pool.is_available:  # the writer would call it soft
                partition.hard_backpressured.begin(partition.host.now())
                try:
                    await self._returned.wait()
                finally:
                    partition.hard_backpressured.end(partition.host.now())
            try:
                if is_array:
                    await writer.emit_batch(record)
                else:
                    await writer.emit(record)
            except RecordError as error:
                raise _refused(self._told[self._writers.index(writer)], error) from error
            del kept[0]

    async def wait(self) -> None:
        """Waits until there may be room, or something is urgent: soft back-pressure."""
        full = [partition for partition in self.partitions if not partition.pool.is_available]
        for partition in full:
            partition.host.kick()
        if self.is_available or self._mailbox.is_urgent:
            return
        self.backpressured.begin(self._now())
        for partition in full:
            partition.soft_backpressured.begin(partition.host.now())
        try:
            await self._mailbox.wait()
        finally:
            self.backpressured.end(self._now())
            for partition in full:
                partition.soft_backpressured.end(partition.host.now())

    async def broadcast(self, event: Event) -> None:
        """Sends an event to every consumer: behind everything, or in front of it if it is an unaligned barrier.

        Behind `finish` nobody is left who would want it.
        """
        if not self._is_finished:
            for writer in self._writers:
                await writer.broadcast_event(event)

    @property
    def barriers_missing(self) -> int:
        """How many subpartitions a barrier that was just broadcast has to leave."""
        return 0 if self._is_finished else sum(len(partition.subpartitions) for partition in self.partitions)

    def time_out_barrier(self, checkpoint_id: int) -> None:
        """See `ResultPartition.time_out_barrier`."""
        for partition in self.partitions:
            partition.time_out_barrier(checkpoint_id)

    def forget_barrier(self, checkpoint_id: int) -> None:
        """See `ResultPartition.forget_barrier`."""
        for partition in self.partitions:
            partition.forget_barrier(checkpoint_id)

    async def end_of_data(self, *, drain: bool) -> None:
        """Tells every consumer that there are no more records, and whether they were all. Events may still follow."""
        await self.broadcast(EndOfData(drain=drain))

    @property
    def is_consumed(self) -> bool:
        """Whether every consumer has processed every record."""
        return all(partition.all_acknowledged or partition.is_released for partition in self.partitions)

    @property
    def is_sealed(self) -> bool:
        """Whether everything that is kept in files is there, or cannot be; true of what is not kept."""
        return all(
            partition.store is None or partition.store.is_sealed or partition.is_released
            for partition in self.partitions
        )

    def check_kept(self) -> None:
        """Raises if something could not be kept.

        Raises:
            DiskFull, ShuffleStorageError: why.
            PoolDestroyed: a partition was released before it was sealed.
        """
        for partition in self.partitions:
            partition.check_kept()
            if partition.store is not None and not partition.store.is_sealed:
                raise PoolDestroyed(f"partition {partition.partition_id!r} was released before it was sealed")

    def finish(self) -> None:
        """Ends every partition; they live on until their ends were read.

        Raises:
            LocalProtocolError: a partition was released: its consumers failed, or the TaskManager is closing.
        """
        self._is_finished = True
        for partition in self.partitions:
            partition.finish()
            partition.close()
            partition.host.kick()

    def fail(self, cause: str) -> None:
        """Tells every consumer why there will be no more records."""
        for partition in self.partitions:
            partition.fail(cause)


def _edge(
    writer: RecordWriter[Any], kept: list[tuple[RecordWriter[Any], bool, Any]], told: OutputInformation
) -> Target:
    """Functions, because an attribute less is to be looked up for every record."""
    format = format_named(told.format)
    takes_arrays = format.name == "bytes" or format.numpy_dtype is not None
    emit_nowait, keep = writer.emit_nowait, kept.append

    def push(record: Any) -> None:
        if kept:
            keep((writer, False, record))
            return
        try:
            emit_nowait(record)
        except trio.WouldBlock:
            keep((writer, False, record))
        except RecordError as error:
            raise _refused(told, error) from error

    def push_batch(records: Records) -> None:
        if isinstance(records, np.ndarray):
            if takes_arrays:
                keep((writer, True, records))
                return
            records = records_of(records)
        for record in records:
            push(record)

    return Target(push, push_batch)


def _refused(told: OutputInformation, error: RecordError) -> RecordError:
    """What a writer refused, with the names of those it was for."""
    return RecordError(f"operator {told.edge.source!r} emits to {told.edge.target!r}: {error}")


def _all(first: Callable[[], None] | None, *others: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        if first is not None:
            first()
        for other in others:
            other()

    return call
