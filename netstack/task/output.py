"""Everything one task writes to: its partitions as one output that never waits inside a record if it can help it.

Takes: records and events of the task, buffers that come back. Gives: records to every consumer, waits between records.

Rules:
- What is emitted is staged, and written when the task has processed a slice of records (`flush`), or an error ends it.
- The task looks at `is_available` between two slices and waits there, where barriers are handled. Inside a slice the
  pools' overdraft serves. Only what needs more than that stays staged, and is written before anything else happens.
- Events go to every subpartition of every partition, when nothing is staged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, final

import numpy as np
import numpy.typing as npt

from ..buffer.local_pool import LocalBufferPool
from ..errors import NetstackError, PoolDestroyed, RecordError
from ..events import EndOfData, Event
from ..outbound.partition import ResultPartition
from ..outbound.selector import records_of
from ..record.formats import format_named
from ..runtime.record_writer import RecordWriter
from ..schedule.descriptors.information import OutputInformation
from ..waits import WaitMeter
from ..wakeup import Signal
from .fused import Records, Target
from .mailbox import Mailbox
from .permanent import operator_failed

STAGED_SHARE: Final = 8
"""Of a buffer: so much rarely needs more than a buffer of the overdraft, and what is done once costs less than it."""


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
        partitions: what is written to.
        room: tells whether the next record may be processed; with one partition without another call.
        staged_bytes: how much is to be staged before it is written.
        backpressured: how long the task has waited for room.
    """

    __slots__ = (
        "_is_finished",
        "_mailbox",
        "_now",
        "_returned",
        "_turn",
        "_writers",
        "backpressured",
        "edges",
        "partitions",
        "room",
        "staged_bytes",
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
        self.partitions: tuple[ResultPartition, ...] = tuple(writer.engine for writer in writers)
        self._writers = tuple(writers)
        for writer in writers:
            writer.overdraw()
        self.edges = tuple(Edge(writer, each) for writer, each in zip(writers, told, strict=True))
        pools = tuple(partition.pool for partition in self.partitions)
        self.room: HasRoom = pools[0] if len(pools) == 1 else _Pools(pools)
        self.staged_bytes = min((pool.segment_size_bytes // STAGED_SHARE for pool in pools), default=0)
        self.backpressured = WaitMeter(now())
        self._now = now
        self._mailbox = mailbox
        self._is_finished = False
        self._turn = 0
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
    def waits(self) -> int:
        """How often a writer has waited for a buffer so far."""
        return sum(each.soft_backpressured.count + each.hard_backpressured.count for each in self.partitions)

    @property
    def is_flushed(self) -> bool:
        """Whether nothing is staged."""
        return all(edge.is_empty for edge in self.edges)

    @property
    def written_bytes(self) -> int:
        """Of the records that were written so far; arrays do not count."""
        return sum(edge.slices.written_bytes for edge in self.edges)

    def flush(self) -> bool:
        """Writes what is staged, as far as there are buffers. Returns whether that is all.

        Raises:
            RecordError: a record does not fit; those in front of it are written.
            OperatorFailed: the key function or partitioner of an edge raised.
        """
        is_all = True
        for edge in self.edges:
            if not edge.flush():
                is_all = False
        return is_all

    async def drain(self) -> None:
        """Writes what is staged, waiting for buffers: hard back-pressure. Raises as `flush`."""
        if self.flush():
            return
        self.backpressured.begin(self._now())
        try:
            for edge in self.edges:
                await self._drain(edge)
        finally:
            self.backpressured.end(self._now())

    async def _drain(self, edge: Edge) -> None:
        partition = edge.writer.engine
        while not edge.flush():
            while not edge.arrays and not partition.pool.is_available:  # the writer would call it soft
                partition.hard_backpressured.begin(partition.host.now())
                try:
                    await self._returned.wait()
                finally:
                    partition.hard_backpressured.end(partition.host.now())
            await edge.write_next()

    async def wait(self) -> None:
        """Waits until there may be room, or something is urgent: soft back-pressure."""
        full = [partition for partition in self.partitions if not partition.pool.is_available]
        for partition in full:
            partition.host.flush_connections()
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

    def mark(self, event: bytes) -> None:
        """Has an event travel to one consumer of each partition as a record would; each time it is the next consumer's.

        Nothing happens while something is staged, which would stand behind it.
        """
        if not self._is_finished and self.is_flushed:
            for writer in self._writers:
                writer.mark(self._turn % len(writer.engine.subpartitions), event)
            self._turn += 1

    @property
    def barriers_missing(self) -> int:
        """How many subpartitions a barrier that was just broadcast has to leave."""
        return 0 if self._is_finished else sum(len(partition.subpartitions) for partition in self.partitions)

    def time_out_barrier(self, checkpoint_id: int) -> None:
        """Implements `ResultPartition.time_out_barrier`."""
        for partition in self.partitions:
            partition.time_out_barrier(checkpoint_id)

    def forget_barrier(self, checkpoint_id: int) -> None:
        """Implements `ResultPartition.forget_barrier`."""
        for partition in self.partitions:
            partition.forget_barrier(checkpoint_id)

    async def end_of_data(self, *, drain: bool) -> None:
        """Tells every consumer that there are no more records, and whether they were all. Events may still follow."""
        await self.broadcast(EndOfData(drain=drain))

    @property
    def is_consumed(self) -> bool:
        """Whether every consumer has processed every record; one that is gone has not, and is to run again."""
        return all(partition.is_processed or partition.is_released for partition in self.partitions)

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
            partition.host.flush_connections()

    def fail(self, cause: str) -> None:
        """Tells every consumer why there will be no more records."""
        for partition in self.partitions:
            partition.fail(cause)


@final
class Edge:
    """What operators emit to one partition.

    Attributes:
        arrays: staged, in front of all records.
        slices: records that are staged.
        target: takes both.
        writer: writes them.
    """

    __slots__ = ("_operators", "_takes_arrays", "arrays", "slices", "target", "writer")

    def __init__(self, writer: RecordWriter[Any], told: OutputInformation) -> None:
        """Takes over the writer."""
        self.writer = writer
        self.slices = writer.slices()
        self._operators = told.edge.source, told.edge.target
        format = format_named(told.format)
        self._takes_arrays = format.name == "bytes" or format.numpy_dtype is not None
        self.arrays: list[npt.NDArray[Any]] = []
        records = self.slices.records
        if self.slices.takes_records:
            self.target = Target(records.append, self._push_batch, extend=records.extend)
        else:
            self.target = Target(self._push, self._push_batch)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is staged."""
        return not self.arrays and self.slices.is_empty

    def flush(self) -> bool:
        """Implements `TaskOutput.flush`."""
        if self.arrays:
            return False
        try:
            return self.slices.flush()
        except RecordError as error:
            raise self._refused(error) from error
        except NetstackError:
            raise
        except (Exception, SystemExit) as error:  # the user's key function or partitioner
            raise operator_failed(self._operators[0], error) from error

    async def write_next(self) -> None:
        """Writes what is staged first, waiting for buffers."""
        try:
            if self.arrays:
                await self.writer.emit_batch(self.arrays[0])
                del self.arrays[0]
            else:
                await self.writer.emit_encoded(*self.slices.take())
        except RecordError as error:
            raise self._refused(error) from error

    def _push(self, record: Any) -> None:
        try:
            self.slices.stage(record)
        except RecordError as error:
            raise self._refused(error) from error

    def _push_batch(self, records: Records) -> None:
        if isinstance(records, np.ndarray):
            if self._takes_arrays and (self.slices.is_empty or (not self.arrays and self.flush())):
                self.arrays.append(records)
                return
            records = records_of(records)
        if self.slices.takes_records:
            self.slices.records += records
        else:
            for record in records:
                self._push(record)

    def _refused(self, error: RecordError) -> RecordError:
        """What the writer refused, with the names of those it was for."""
        source, target = self._operators
        return RecordError(f"operator {source!r} emits to {target!r}: {error}")


def _all(first: Callable[[], None] | None, *others: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        if first is not None:
            first()
        for other in others:
            other()

    return call
