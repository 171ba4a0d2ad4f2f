"""The output of a task: all its partitions, written so that the task rarely waits in the middle of a record.

Takes: records and events of the task, returned buffers. Gives: records to every consumer; waits between records.

Rules:
- Emitted records are staged. They are written after each slice of records (`flush`), and when an error ends the task.
- The task checks `is_available` between two slices and waits there, where it can handle barriers. Within a slice it
  uses the overdraft buffers of its pools. Records that need more stay staged, and are written before anything else.
- Events go to every subpartition of every partition, when nothing is staged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, final

import numpy as np
import numpy.typing as npt

from ...base.errors import NetstackError, PoolDestroyed, RecordError
from ...base.events import EndOfData, Event
from ...base.timing.waits import WaitMeter
from ...base.timing.wakeup import Signal
from ...exchange.buffer.pools import LocalBufferPool
from ...exchange.outbound.partition import ResultPartition
from ...exchange.outbound.selector import records_of
from ...exchange.record.formats import format_named
from ...network.writer import RecordWriter
from ...schedule.descriptors.information import OutputInformation
from .fused import Records, Target
from .mailbox import Mailbox
from .operators import operator_failed
from .queued import QueuedEvents, output_place

STAGED_SHARE: Final = 8
"""A task stages up to an eighth of a buffer: that rarely needs more than one overdraft buffer, and spreads the fixed
cost of a flush over many records."""


class HasRoom(Protocol):
    """One buffer pool, or several."""

    @property
    def is_available(self) -> bool:
        """Whether every pool has a free buffer."""


@final
class _Pools:
    def __init__(self, pools: Sequence[LocalBufferPool]) -> None:
        self._pools = pools

    @property
    def is_available(self) -> bool:
        return all(pool.is_available for pool in self._pools)


@final
class TaskOutput:
    """The output of one task, with one edge per partition.

    Attributes:
        edges: the targets of operators, one per partition.
        room: the pools of all partitions; the single pool itself if there is only one partition, which saves a call.
        staged_bytes: number of bytes to stage before they are written.
        backpressured: time that the task has waited for buffers.
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
        outputs: Sequence[OutputInformation],
        mailbox: Mailbox,
        now: Callable[[], float],
    ) -> None:
        """Takes ownership of the writers.

        Args:
            writers: one per partition.
            outputs: the description of each partition's edge.
            mailbox: woken when buffers are available.
            now: clock in monotonic seconds.
        """
        self.partitions: tuple[ResultPartition, ...] = tuple(writer._partition for writer in writers)
        self._writers = tuple(writers)
        for writer in writers:
            writer.overdraw()
            writer.outwait_consumers()
        self.edges = tuple(Edge(writer, each) for writer, each in zip(writers, outputs, strict=True))
        pools = tuple(partition.pool for partition in self.partitions)
        self.room: HasRoom = pools[0] if len(pools) == 1 else _Pools(pools)
        self.staged_bytes = min((pool.segment_size_bytes // STAGED_SHARE for pool in pools), default=0)
        self.backpressured = WaitMeter(now())
        self._now = now
        self._mailbox = mailbox
        self._is_finished = False
        self._turn = 0
        self._returned = Signal()
        for partition in self.partitions:  # keeps the callbacks of the writers
            partition.pool.on_available = _all(partition.pool.on_available, self._returned.wake, mailbox.wake)
            partition.on_acknowledged = _all(partition.on_acknowledged, mailbox.wake)

    # For the task.

    @property
    def is_available(self) -> bool:
        """Whether the next record may be processed: every partition has a free buffer."""
        return self.room.is_available

    @property
    def waits(self) -> int:
        """How often writers have waited for a buffer."""
        return sum(each.soft_backpressured.count + each.hard_backpressured.count for each in self.partitions)

    @property
    def is_flushed(self) -> bool:
        """Whether nothing is staged."""
        return all(edge.is_empty for edge in self.edges)

    @property
    def written_bytes(self) -> int:
        """Size of the records written so far, without arrays."""
        return sum(edge.slices.written_bytes for edge in self.edges)

    def flush(self) -> bool:
        """Writes staged records as far as there are buffers. Returns whether nothing is left.

        Raises:
            RecordError: a record does not fit its format; the records before it are written.
            OperatorFailed: the key function or partitioner of an edge raised.
        """
        is_all = True
        for edge in self.edges:
            if not edge.flush():
                is_all = False
        return is_all

    async def drain(self) -> None:
        """Writes all staged records, waiting for buffers: hard back-pressure. Raises as `flush`."""
        if self.flush():
            return
        self.backpressured.begin(self._now())
        try:
            for edge in self.edges:
                await self._drain(edge)
        finally:
            self.backpressured.end(self._now())

    async def _drain(self, edge: Edge) -> None:
        partition = edge.writer._partition
        while not edge.flush():
            while not edge.arrays and not partition.pool.is_available:  # the writer would count this as soft
                partition.hard_backpressured.begin(partition.host.now())
                try:
                    await self._returned.wait()
                finally:
                    partition.hard_backpressured.end(partition.host.now())
            await edge.write_next()

    async def wait(self) -> None:
        """Waits until buffers may be available or the mailbox is urgent: soft back-pressure."""
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
        """Sends an event to every consumer, after all records; an unaligned barrier overtakes them.

        After `finish` events are dropped.
        """
        if not self._is_finished:
            for writer in self._writers:
                await writer.broadcast_event(event)

    def mark(self, event: bytes) -> None:
        """Sends an event to one consumer of each partition, in turn, at the time at which a record would be sent.

        Does nothing while records are staged, since the event would overtake them.
        """
        if not self._is_finished and self.is_flushed:
            for writer in self._writers:
                writer.mark(self._turn % len(writer._partition.subpartitions), event)
            self._turn += 1

    def count_queued(self, queued: QueuedEvents) -> None:
        """Adds the markers and barriers that no consumer has taken; O(subpartitions and their queues)."""
        for index, writer in enumerate(self._writers):
            queued.add(output_place(index), writer.queued_events())

    @property
    def barriers_missing(self) -> int:
        """The number of subpartitions that a barrier still has to leave right after its broadcast."""
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
        """Sends EndOfData: no more records follow, and the data is complete if `drain`. Events may still follow."""
        await self.broadcast(EndOfData(drain=drain))

    @property
    def is_consumed(self) -> bool:
        """Whether every consumer has processed every record, or the partition was released."""
        return all(partition.is_processed or partition.is_released for partition in self.partitions)

    @property
    def is_sealed(self) -> bool:
        """Whether every partition that is stored in files is complete or released; true for other partitions."""
        return all(
            partition.store is None or partition.store.is_sealed or partition.is_released
            for partition in self.partitions
        )

    def check_kept(self) -> None:
        """Checks that every partition in files was stored.

        Raises:
            DiskFull, ShuffleStorageError: a partition could not be stored.
            PoolDestroyed: a partition was released before it was sealed.
        """
        for partition in self.partitions:
            partition.check_kept()
            if partition.store is not None and not partition.store.is_sealed:
                raise PoolDestroyed(f"partition {partition.partition_id!r} was released before it was sealed")

    def finish(self) -> None:
        """Ends every partition. The partitions live until their consumers have read the end.

        Raises:
            LocalProtocolError: a partition was released, because its consumers failed or the TaskManager is closing.
        """
        self._is_finished = True
        for partition in self.partitions:
            partition.finish()
            partition.close()
            partition.host.flush_connections()

    def fail(self, cause: str) -> None:
        """Fails every partition; consumers receive the cause."""
        for partition in self.partitions:
            partition.fail(cause)


@final
class Edge:
    """Stages the records that operators emit to one partition.

    Attributes:
        arrays: staged arrays; they precede all staged records.
        target: receives records and arrays from operators.
    """

    __slots__ = ("_operators", "_takes_arrays", "arrays", "slices", "target", "writer")

    def __init__(self, writer: RecordWriter[Any], output: OutputInformation) -> None:
        self.writer = writer
        self.slices = writer.slices()
        self._operators = output.edge.source, output.edge.target
        format = format_named(output.format)
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
        except (Exception, SystemExit) as error:  # raised by the user's key function or partitioner
            raise operator_failed(self._operators[0], error) from error

    async def write_next(self) -> None:
        """Writes the first staged array or all staged records, waiting for buffers."""
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
        source, target = self._operators
        return RecordError(f"operator {source!r} emits to {target!r}: {error}")


def _all(first: Callable[[], None] | None, *others: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        if first is not None:
            first()
        for other in others:
            other()

    return call
