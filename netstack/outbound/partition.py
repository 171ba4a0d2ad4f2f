"""The subpartitions of one task's output, their buffers and their lifecycle.

Takes: finished and open buffers from a `RecordWriter`. Gives: read views to senders and local channels.

Life: created -> written -> `finish` (EndOfPartition queued everywhere) -> every subpartition consumed and the partition
closed -> released. `fail` and `release` cut it short. Each step is idempotent and safe in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, final

from ..buffer.buffer import BufferSource, Notify
from ..buffer.builder import BufferBuilder
from ..buffer.elements import BarrierBuffer, EventBuffer
from ..buffer.local_pool import LocalBufferPool
from ..buffer.stored import Packaging
from ..errors import ChannelFailed, ErrorCode, LocalProtocolError, NetstackError, PartitionNotFound
from ..events import CheckpointBarrier, EndOfData, EndOfPartition, Event, data_type_of, encode_event
from ..ids import PartitionId, ResultPartitionType
from ..record.framing import MAX_RECORD_BYTES
from ..waits import WaitMeter
from .statistics import ResultPartitionStatistics
from .subpartition import ResultSubpartition

if TYPE_CHECKING:
    from .staging import Staging


class StoredPartition(Protocol):
    """Where a partition is kept that outlives its writer: `shuffle.store`, or what it takes of it."""

    is_sealed: bool
    """Whether all of it is kept."""
    on_cut: Callable[[], None] | None
    """Called between two records: the writer finishes every open buffer."""

    @property
    def error(self) -> NetstackError | None:
        """Why it could not be kept."""

    @property
    def stored_bytes(self) -> int:
        """On disk."""

    @property
    def data_bytes(self) -> int:
        """Of records (framed), that went there; what all consumers get counts once."""

    @property
    def compressed_bytes(self) -> int:
        """Of these, in buffers that were compressed."""

    def on_boundary(self) -> None:
        """A record was written whole, and finished a buffer."""

    def seal(self, *, drain: bool) -> None:
        """Nothing more comes."""

    def fail(self, cause: str) -> None:
        """The producer failed."""

    def release(self) -> None:
        """Nobody wants it any more."""

    def create_view(self, first: int, count: int, notify: Notify, packaging: Packaging) -> BufferSource:
        """The read end of some subpartitions.

        Raises:
            ChannelFailed: it cannot be read now.
        """


class PartitionHost(Protocol):
    """What a partition and its writer need of the TaskManager they live in."""

    def now(self) -> float:
        """Monotonic seconds, for deadlines (virtual in tests)."""

    def ticks(self) -> float:
        """Seconds of the processor's clock: cheap enough to be read for every record."""

    def flush_connections(self) -> None:
        """Has every connection with something to send try to send it, without waiting."""

    def settle(self) -> None:
        """Has every connection copy what it is in the middle of sending, so that lent memory may change."""

    def call_at(self, deadline_s: float, callback: Callable[[], None]) -> None:
        """Calls back once, at `deadline_s` of `now`."""


@final
class OutputCounters:
    """What the writer counts, per buffer or per batch; read through `ResultPartition.statistics`."""

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
        """Records, without those that an open buffer counts: see `BufferBuilder.records`."""
        self.builders: list[BufferBuilder] = []
        """The open buffers."""
        self.buffers = 0
        self.bytes = 0
        self.events = 0
        self.flushes_full = 0
        self.flushes_timeout = 0
        self.flushes_event = 0
        self.slots = [0] * slots
        """Bytes of finished buffers by subpartition; the last ones are those of broadcasts."""

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
        store: StoredPartition | None = None,
        has_runs: bool = True,
        as_flink: bool = False,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        """Called by `NetworkEnvironment.create_partition`.

        Args:
            partition_id: its name.
            kind: how it is consumed.
            subpartitions: how many consumers it has.
            pool: its buffers; owned by the partition from now on.
            on_released: told once, when the partition is gone.
            host: the TaskManager's services.
            store: where it is kept, if it is of such a kind: then the store is its only consumer, and makes its views.
            has_runs: whether batches are written as runs, which Flink cannot read.
            as_flink: whether its writer flushes, frames and waits as Flink's (`NetworkConfig.flink`).
            max_record_bytes: the longest record that its writer takes.
        """
        self.partition_id = partition_id
        self.kind = kind
        self.pool = pool
        self.counters = OutputCounters(subpartitions + 1)
        self.store = store
        self.has_runs = has_runs
        self.as_flink = as_flink
        self.max_record_bytes = max_record_bytes
        self.host = host
        now = host.now()
        self.soft_backpressured = WaitMeter(now)
        """Its writer waits for output, and the record in hand has not taken a buffer."""
        self.hard_backpressured = WaitMeter(now)
        """Its writer waits inside a record that has taken a buffer and needs more."""
        self.on_acknowledged: Callable[[], None] | None = None
        """Told when a consumer has processed every record, or is gone."""
        self.on_task_event: Callable[[Event], None] | None = None
        """Told what a consumer says to the task, where a dialect lets it; None: nobody listens, which is its answer."""
        self.on_release: Callable[[], None] | None = None
        """Told before the partition is dropped: its writer gives its open buffers up."""
        self._staging: Staging | None = None
        self.listen: Callable[[], float] | None = None
        """Takes in what consumers have said, credit above all, without waiting; returns for how many seconds its writer
        may do so before it parks. None: nobody can be asked."""
        self._on_released = on_released
        self.on_barrier: Callable[[int, int, bytes], None] | None = None
        """Told once for each subpartition and barrier that is unaligned or has a timeout: (subpartition, checkpoint id,
        the data it overtook there)."""
        # One of each callback, not one a subpartition.
        callbacks = self._on_consumed, self._on_acknowledged, self._on_barrier
        self.subpartitions = tuple(ResultSubpartition(index, *callbacks) for index in range(subpartitions))
        self._consumed: set[int] = set()
        self._acknowledged: set[int] = set()
        self._end_of_data_sent = False
        self._drain = True
        self.is_finished = False
        self.is_closed = False
        self.is_released = False
        self._failure: str | None = None

    @property
    def failure(self) -> str | None:
        """Why the producer failed."""
        return self._failure

    @property
    def all_acknowledged(self) -> bool:
        """Whether every consumer has processed every record, or is gone; whether a kept one is sealed."""
        if self.store is not None:
            return self.store.is_sealed
        return len(self._acknowledged | self._consumed) == len(self.subpartitions)

    @property
    def is_processed(self) -> bool:
        """Whether every consumer has said that it has processed every record; whether a kept one is sealed."""
        return self.store.is_sealed if self.store is not None else len(self._acknowledged) == len(self.subpartitions)

    @property
    def is_readable(self) -> bool:
        """Whether it can be read by now: a blocking one when it is sealed."""
        return self.store is None or not self.kind.is_blocking or self.store.is_sealed

    @property
    def kept_bytes(self) -> tuple[int, ...]:
        """Of a kept partition: bytes of records, how many of these were compressed, bytes on disk; else nothing."""
        store = self.store
        return () if store is None else (store.data_bytes, store.compressed_bytes, store.stored_bytes)

    @property
    def bytes_per_subpartition(self) -> tuple[int, ...]:
        """Framed bytes finished so far for each consumer; of a finished partition what each will read."""
        *slots, broadcast = self.counters.slots
        return tuple(slot + broadcast for slot in slots)

    def stage(self, staging: Staging) -> None:
        """Its writer keeps records there, which are shared out before anybody looks."""
        self._staging = staging
        for subpartition in self.subpartitions:
            subpartition.staging = staging

    def create_view(
        self, subpartition: int, notify: Notify, count: int = 1, packaging: Packaging = Packaging.PLAIN
    ) -> BufferSource:
        """The read end of a subpartition, or of `count` from it on (only of what is kept).

        Raises:
            PartitionNotFound: no such subpartition, or the partition is released.
            ChannelFailed: it is consumed already, or the producer failed, or it is read one by one only, or a consumer
                of Flink asks for what is written in runs.
        """
        name = f"partition {self.partition_id!r} subpartition {subpartition}"
        if self._failure is not None:
            raise ChannelFailed(ErrorCode.PRODUCER_FAILED, self._failure, channel=name)
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
                f"{count} subpartitions in one channel; a {self.kind.name} partition is read one by one: ask for each"
                " in a channel of its own",
                channel=name,
            )
        try:
            return self.subpartitions[subpartition].create_view(notify)
        except LocalProtocolError as error:
            raise ChannelFailed(ErrorCode.SUBPARTITION_CONSUMED, str(error), channel=name) from error

    def broadcast_event(self, event: Event, *, priority: bool = False, is_last: bool = False) -> None:
        """Queues an event behind (with priority: in front of) everything, on every subpartition.

        The writer has finished its open buffers before. Never waits: events need no pool buffer.
        """
        self.check_writable()
        data_type = data_type_of(event, priority=priority)
        if self.store is not None and (data_type.blocks_upstream or data_type.has_priority):
            raise LocalProtocolError(
                f"partition {self.partition_id!r} is {self.kind.name}: nothing blocks in, or overtakes, what is kept"
                f" (a {type(event).__name__}); checkpoints need pipelined partitions"
            )
        if self.store is not None and isinstance(event, EndOfData):
            self.end_of_data(drain=event.drain)  # each reader gets it when it has read all
            return
        self.counters.events += 1
        if isinstance(event, CheckpointBarrier):
            for subpartition in self.subpartitions:
                subpartition.add_barrier(BarrierBuffer(event, data_type, self.host.now))
            return
        data = encode_event(event)
        for subpartition in self.subpartitions:
            subpartition.add(EventBuffer(data, data_type), is_last=is_last)

    def time_out_barrier(self, checkpoint_id: int) -> None:
        """The barrier of this checkpoint overtakes everything wherever it still waits."""
        for subpartition in self.subpartitions:
            subpartition.time_out_barrier(checkpoint_id)
        self.host.flush_connections()

    def forget_barrier(self, checkpoint_id: int) -> None:
        """The checkpoint was aborted: nobody wants to know any more what its barrier overtakes."""
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
        """Queues EndOfPartition, or has a kept partition sealed; nothing may be written afterwards. Idempotent."""
        if self.is_finished:
            return
        if self.store is None:
            self.broadcast_event(EndOfPartition(), is_last=True)
        else:
            self.check_writable()
            self.store.seal(drain=self._drain)
        self.is_finished = True

    def fail(self, cause: str) -> None:
        """The producer failed: consumers get the cause, a writer that waits for a buffer is cancelled."""
        if self._failure is None and not self.is_released:
            self._failure = cause
            for subpartition in self.subpartitions:
                subpartition.fail(cause)
            if self.store is not None:
                self.store.fail(cause)
            self._release()

    def close(self) -> None:
        """The task is done with the partition; it lives on until it is consumed. Idempotent."""
        self.is_closed = True
        if len(self._consumed) == len(self.subpartitions):
            self._release()

    def release(self) -> None:
        """Drops everything not yet consumed. Idempotent."""
        self._release()

    def flush_all(self) -> None:
        """Makes everything written available to the consumers; what is kept is available when its buffers are full."""
        if self.store is not None:
            return
        for subpartition in self.subpartitions:
            subpartition.flush()

    def statistics(self) -> ResultPartitionStatistics:
        """A snapshot; O(subpartitions and what they have queued)."""
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
        """Raises unless records may be written.

        Raises:
            LocalProtocolError: the partition is finished, closed or released.
            DiskFull, ShuffleStorageError: what was written could not be kept.
        """
        self.check_kept()
        if self.is_finished or self.is_closed or self.is_released:
            state = "released" if self.is_released else "finished" if self.is_finished else "closed"
            raise LocalProtocolError(
                f"partition {self.partition_id!r} is {state}; nothing can be written to it any more"
            )

    def check_kept(self) -> None:
        """Raises if what was written could not be kept.

        Raises:
            DiskFull, ShuffleStorageError: why.
        """
        if self.store is not None and self.store.error is not None:
            raise self.store.error

    def _on_consumed(self, subpartition: int) -> None:
        self._consumed.add(subpartition)
        if self.on_acknowledged is not None:
            self.on_acknowledged()
        if self.is_closed and len(self._consumed) == len(self.subpartitions):
            self._release()

    def _on_barrier(self, subpartition: int, checkpoint_id: int, overtaken: bytes) -> None:
        if self.on_barrier is not None:
            self.on_barrier(subpartition, checkpoint_id, overtaken)

    def _on_acknowledged(self, subpartition: int) -> None:
        self._acknowledged.add(subpartition)
        if self.on_acknowledged is not None:
            self.on_acknowledged()

    def _release(self) -> None:
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
