"""ResultPartition: the subpartitions of one task's output, their buffers and their lifecycle.

Takes: finished and open buffers from a `RecordWriter`. Gives: views to senders and local channels.

Life: created -> written -> `finish` (EndOfPartition queued everywhere) -> every subpartition consumed and the partition
closed -> released. `fail` and `release` end it early. Each step is idempotent and safe in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from ...base.config import NetworkConfig
from ...base.errors import ChannelFailed, ErrorCode, LocalProtocolError, PartitionNotFound, PoolDestroyed
from ...base.events import CheckpointBarrier, EndOfData, EndOfPartition, Event, data_type_of, encode_event
from ...base.ids import PartitionId, ResultPartitionType
from ...base.timing.waits import WaitMeter
from ..buffer.buffer import BufferSource, Notify
from ..buffer.builder import BufferBuilder
from ..buffer.elements import BarrierBuffer, EventBuffer
from ..buffer.pools import LocalBufferPool
from ..buffer.stored import Packaging
from .consumers import Consumers
from .host import PartitionHost, StoredPartition
from .statistics import ResultPartitionStatistics
from .subpartition import ResultSubpartition, StagedRecords

_DEFAULT: Final = NetworkConfig()


@final
class OutputCounters:
    """The writer's counters, per buffer or per batch; read them through `ResultPartition.statistics`."""

    __slots__ = (
        "buffers",
        "builders",
        "bytes",
        "counted",
        "events",
        "flushes_event",
        "flushes_full",
        "flushes_timeout",
        "slots",
    )

    def __init__(self, slots: int) -> None:
        self.counted = 0
        """Records, except those that open buffers count (`BufferBuilder.records`)."""
        self.builders: list[BufferBuilder] = []
        """The open buffers."""
        self.buffers = 0
        self.bytes = 0
        self.events = 0
        self.flushes_full = 0
        self.flushes_timeout = 0
        self.flushes_event = 0
        self.slots = [0] * slots
        """Bytes of finished buffers by subpartition; the last entry counts broadcasts."""

    @property
    def records(self) -> int:
        """Records written so far; O(open buffers)."""
        count = self.counted
        for builder in self.builders:
            count += builder.records + builder.pen.records
        return count


@final
class ResultPartition:
    """One task's output."""

    def __init__(
        self,
        partition_id: PartitionId,
        kind: ResultPartitionType,
        subpartitions: int,
        pool: LocalBufferPool,
        *,
        on_released: Callable[[ResultPartition], None],
        host: PartitionHost,
        config: NetworkConfig = _DEFAULT,
        store: StoredPartition | None = None,
    ) -> None:
        """Use `NetworkEnvironment.create_partition` instead.

        Args:
            partition_id: its name.
            kind: how it is consumed.
            subpartitions: number of consumers.
            pool: its buffers; the partition takes ownership.
            on_released: called once, when the partition is released.
            host: the TaskManager's services.
            config: how its writer flushes, frames and waits, and the size limit of a record.
            store: storage of a kept partition, which is then its only consumer and creates its views.
        """
        self.partition_id = partition_id
        self.kind = kind
        self.pool = pool
        self.counters = OutputCounters(subpartitions + 1)
        self.store = store
        self.has_runs = config.has_runs
        """Whether batches are written as runs, which Flink cannot read."""
        self.as_flink = config.as_flink
        self.max_record_bytes = config.max_record_bytes
        self.host = host
        now = host.now()
        self.soft_backpressured = WaitMeter(now)
        """Time its writer waited for output before the present record had taken a buffer."""
        self.hard_backpressured = WaitMeter(now)
        """Time its writer waited inside a record that had taken a buffer and needed more."""
        self.on_acknowledged: Callable[[], None] | None = None
        """Called when a consumer has processed every record or is closed."""
        self.on_task_event: Callable[[Event], None] | None = None
        """Called with a consumer's event for the task, where the dialect has those; None: the consumer gets a
        refusal."""
        self.on_release: Callable[[], None] | None = None
        """Called before the partition is dropped: its writer abandons its open buffers."""
        self._staging: StagedRecords | None = None
        self.listen: Callable[[], float] | None = None
        """Reads pending frames of the consumers, such as credit, without waiting; returns for how many seconds the
        writer may repeat that before it parks. None: it cannot."""
        self._on_released = on_released
        self.on_barrier: Callable[[int, int, bytes], None] | None = None
        """Called once for each subpartition and barrier that is unaligned or has a timeout, with (subpartition,
        checkpoint id, the data that the barrier overtook there)."""
        # One bound method of each, shared by all subpartitions.
        callbacks = self._on_consumed, self._on_acknowledged, self._on_barrier
        self.subpartitions = tuple(ResultSubpartition(index, *callbacks) for index in range(subpartitions))
        self.consumers = Consumers(partition_id, self.subpartitions)
        self._end_of_data_sent = False
        self._drain = True
        self.is_finished = False
        self.is_closed = False
        self.is_released = False
        self.failure: str | None = None
        """Why the producer failed; None without a failure."""

    @property
    def all_acknowledged(self) -> bool:
        """Whether every consumer has processed every record or is closed; of a kept partition: whether it is sealed."""
        if self.store is not None:
            return self.store.is_sealed
        return self.consumers.all_ended

    @property
    def is_deserted(self) -> bool:
        """Whether all consumers have left before the end: nobody will read what is written."""
        return self.store is None and not self.is_finished and self.consumers.all_left

    def check_consumers(self) -> None:
        """Raises ConsumerLost if a wait for a buffer would never end, because consumers have left before the end.

        All have left, or what one has not read has reached the quota, or what they have not read leaves at most one
        buffer to each other consumer: these may be open, so that no buffer becomes free.
        """
        left = self.consumers.left
        if not left:
            return
        pool, others = self.pool, len(self.subpartitions) - len(left)
        unread = [self.subpartitions[index].queued_buffers() for index in left]
        if not others:
            raise self.consumers.error("nobody reads", left)
        if sum(unread) + others >= pool.size or (pool.quota is not None and max(unread) >= pool.quota):
            raise self.consumers.error("no buffer becomes free for", left)

    def check_lost(self) -> None:
        """Raises ConsumerLost if a consumer left before it had processed every record, and not on purpose."""
        if lost := self.consumers.lost:
            raise self.consumers.error("not every record is processed of", lost)

    def check_processed(self) -> None:
        """Checks, when there is nothing more to wait for, that each record was processed or not needed.

        Raises:
            ConsumerLost: as `check_lost`.
            PoolDestroyed: the partition was released, or failed, before.
            DiskFull, ShuffleStorageError: storing failed.
        """
        self.check_kept()
        self.check_lost()
        if not self.all_acknowledged:
            raise PoolDestroyed(
                f"partition {self.partition_id!r} was released before"
                + (" its consumers had processed every record" if self.store is None else " it was sealed")
                + ("" if self.failure is None else f", because it failed: {self.failure}")
            )

    @property
    def is_processed(self) -> bool:
        """Whether every consumer has processed every record; of a kept partition: whether it is sealed."""
        return self.store.is_sealed if self.store is not None else self.consumers.all_acknowledged

    @property
    def is_readable(self) -> bool:
        """Whether it can be read now: a blocking partition when it is sealed."""
        return self.store is None or not self.kind.is_blocking or self.store.is_sealed

    @property
    def kept_bytes(self) -> tuple[int, ...]:
        """Of a kept partition: bytes of records, of these compressed, and on disk; else empty."""
        store = self.store
        return () if store is None else (store.data_bytes, store.compressed_bytes, store.stored_bytes)

    @property
    def bytes_per_subpartition(self) -> tuple[int, ...]:
        """Framed bytes finished so far for each consumer; once finished, the total that each reads."""
        *slots, broadcast = self.counters.slots
        return tuple(slot + broadcast for slot in slots)

    def stage(self, staging: StagedRecords) -> None:
        """Stores where its writer stages records; every reader distributes them first."""
        self._staging = staging
        for subpartition in self.subpartitions:
            subpartition.staging = staging

    def create_view(
        self, subpartition: int, notify: Notify, count: int = 1, packaging: Packaging = Packaging.PLAIN
    ) -> BufferSource:
        """Creates the read end of a subpartition, or of `count` consecutive ones (only of a kept partition).

        Raises:
            PartitionNotFound: no such subpartition, or the partition is released.
            ChannelFailed: the subpartition is already consumed, the producer failed, or Flink's dialect requests
                batches that were written as runs.
        """
        name = f"partition {self.partition_id!r} subpartition {subpartition}"
        if self.failure is not None:
            raise ChannelFailed(ErrorCode.PRODUCER_FAILED, self.failure, channel=name)
        if not 0 <= subpartition < subpartition + count <= len(self.subpartitions):
            raise PartitionNotFound(
                ErrorCode.SUBPARTITION_OUT_OF_RANGE,
                f"the partition has subpartitions 0 to {len(self.subpartitions) - 1}",
                channel=name,
            )
        if self.is_released:
            raise PartitionNotFound(ErrorCode.PARTITION_NOT_FOUND, "the partition was released", channel=name)
        if self.has_runs and packaging is Packaging.GLUED:
            raise ChannelFailed(
                ErrorCode.INTERNAL,
                "its batches are written as runs, which Flink cannot read: create the partition where the dialect is"
                " Flink's",
                channel=name,
            )
        if self.store is not None:
            return self.store.create_view(subpartition, count, notify, packaging)
        if count != 1:
            raise PartitionNotFound(
                ErrorCode.SUBPARTITION_OUT_OF_RANGE,
                f"a channel requests {count} subpartitions; a {self.kind.name} partition serves one in each channel:"
                " open a channel for each",
                channel=name,
            )
        try:
            return self.subpartitions[subpartition].create_view(notify)
        except LocalProtocolError as error:
            raise ChannelFailed(ErrorCode.SUBPARTITION_CONSUMED, str(error), channel=name) from error

    def broadcast_event(self, event: Event, *, priority: bool = False, is_last: bool = False) -> None:
        """Queues an event behind everything (with priority: in front of it), on every subpartition.

        The writer must have finished its open buffers. Never waits: events need no pool buffer.

        Raises:
            ConfigError: an attribute of the event cannot be sent.
        """
        self.check_writable()
        # A barrier too, which is encoded again as it leaves: an error there would end the connection.
        data = encode_event(event)
        data_type = data_type_of(event, priority=priority)
        if self.store is not None and (data_type.blocks_upstream or data_type.has_priority):
            raise LocalProtocolError(
                f"partition {self.partition_id!r} is {self.kind.name}, which takes no blocking or priority event"
                f" (a {type(event).__name__}); checkpoints need pipelined partitions"
            )
        if self.store is not None and isinstance(event, EndOfData):
            self.end_of_data(drain=event.drain)  # each reader gets it at the end
            return
        self.counters.events += 1
        if isinstance(event, CheckpointBarrier):
            for subpartition in self.subpartitions:
                subpartition.add_barrier(BarrierBuffer(event, data_type, self.host.now))
            return
        for subpartition in self.subpartitions:
            subpartition.add(EventBuffer(data, data_type), is_last=is_last)

    def time_out_barrier(self, checkpoint_id: int) -> None:
        """Makes the barrier of this checkpoint overtake everything wherever it still waits."""
        for subpartition in self.subpartitions:
            subpartition.time_out_barrier(checkpoint_id)
        self.host.flush_connections()

    def forget_barrier(self, checkpoint_id: int) -> None:
        """Stops reporting what the barrier of an aborted checkpoint overtakes."""
        for subpartition in self.subpartitions:
            subpartition.forget_barrier(checkpoint_id)

    def end_of_data(self, *, drain: bool = True) -> None:
        """Queues EndOfData once."""
        if not self._end_of_data_sent:
            self._end_of_data_sent = True
            self._drain = drain
            if self.store is None:
                self.broadcast_event(EndOfData(drain))

    def finish(self) -> None:
        """Queues EndOfPartition, or seals a kept partition; writing ends. Idempotent."""
        if self.is_finished:
            return
        if self.store is None:
            self.broadcast_event(EndOfPartition(), is_last=True)
        else:
            self.check_writable()
            self.store.seal(drain=self._drain)
        self.is_finished = True

    def fail(self, cause: str) -> None:
        """Fails the partition: consumers receive the cause, a writer that waits for a buffer is cancelled."""
        if self.failure is None and not self.is_released:
            self.failure = cause
            for subpartition in self.subpartitions:
                subpartition.fail(cause)
            if self.store is not None:
                self.store.fail(cause)
            self.release()

    def close(self) -> None:
        """Ends the task's use of the partition, which lives until it is consumed. Idempotent."""
        self.is_closed = True
        if self.consumers.all_left:
            self.release()

    def release(self) -> None:
        """Drops everything that is not consumed. Idempotent."""
        if self.is_released:
            return
        self.is_released = True
        if self.on_release is not None:
            self.on_release()
        for subpartition in self.subpartitions:
            subpartition.discard()
        if self.store is not None:
            self.store.release()
        self.pool.destroy()
        self._on_released(self)
        if self.on_acknowledged is not None:
            self.on_acknowledged()

    def flush_all(self) -> None:
        """Makes everything written available to the consumers. A kept partition is read only when buffers are full."""
        if self.store is not None:
            return
        for subpartition in self.subpartitions:
            subpartition.flush()

    def statistics(self) -> ResultPartitionStatistics:
        """A snapshot; O(subpartitions and their queued elements)."""
        if self._staging is not None:
            self._staging.close()
        counters = self.counters
        now = self.host.now()
        return ResultPartitionStatistics(
            partition_id=self.partition_id,
            records=counters.records,
            buffers=counters.buffers,
            bytes=counters.bytes,
            events=counters.events,
            flushes_full=counters.flushes_full,
            flushes_timeout=counters.flushes_timeout,
            flushes_event=counters.flushes_event,
            pool=self.pool.statistics(),
            subpartitions=tuple(subpartition.statistics() for subpartition in self.subpartitions),
            soft_backpressured=self.soft_backpressured.statistics(now),
            hard_backpressured=self.hard_backpressured.statistics(now),
            is_finished=self.is_finished,
            is_released=self.is_released,
            bytes_per_subpartition=self.bytes_per_subpartition,
            stored_bytes=0 if self.store is None else self.store.stored_bytes,
            compressed_bytes=0 if self.store is None else self.store.compressed_bytes,
            is_sealed=self.store is not None and self.store.is_sealed,
        )

    def check_writable(self) -> None:
        """Checks that records may be written.

        Raises:
            LocalProtocolError: the partition is finished, closed or released.
            DiskFull, ShuffleStorageError: storing earlier records failed.
        """
        self.check_kept()
        if self.is_finished or self.is_closed or self.is_released:
            state = "released" if self.is_released else "finished" if self.is_finished else "closed"
            raise LocalProtocolError(f"partition {self.partition_id!r} is {state}; it takes no more records or events")

    def check_kept(self) -> None:
        """Checks that storing succeeded so far. Raises DiskFull, ShuffleStorageError if storing failed."""
        if self.store is not None and self.store.error is not None:
            raise self.store.error

    def _on_consumed(self, subpartition: int) -> None:
        if self.is_released:  # the consumer leaves because of that
            return
        self.consumers.leave(subpartition)
        if self.on_acknowledged is not None:
            self.on_acknowledged()
        if self.is_closed and self.consumers.all_left:
            self.release()

    def _on_barrier(self, subpartition: int, checkpoint_id: int, overtaken: bytes) -> None:
        if self.on_barrier is not None:
            self.on_barrier(subpartition, checkpoint_id, overtaken)

    def _on_acknowledged(self, subpartition: int) -> None:
        self.consumers.acknowledged.add(subpartition)
        if self.on_acknowledged is not None:
            self.on_acknowledged()
