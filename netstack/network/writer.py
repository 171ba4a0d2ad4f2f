"""RecordWriter: writes records, arrays and events into a partition, and waits when there is no buffer.

Takes: a partition, a selector, a format, the buffer timeout. Gives: `emit_nowait`, `emit`, `emit_batch`,
`broadcast_event`, `flush`, `finish`, `wait_consumed`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, final

import numpy as np
import numpy.typing as npt
import trio

from ..base.errors import LocalProtocolError, PoolDestroyed, RecordError
from ..base.events import Event
from ..base.text.safe_text import type_text
from ..base.timing.waits import WaitMeter
from ..exchange.buffer.lent import LentBuffers, last_on_loan, take_back
from ..exchange.outbound.flush_times import check_buffer_timeout
from ..exchange.outbound.selector import ChannelSelector, RebalanceSelector, checked
from ..exchange.outbound.slices import SliceWriter
from ..exchange.outbound.spanning_write import Payload, SpanningWrite
from ..exchange.outbound.writer import PartitionWriter
from ..exchange.record.fast_path import eager
from ..exchange.record.formats import RecordFormat, as_format, rows_as_bytes
from .handles import ResultPartition, check_handle
from .waiting.parking import Parking, TaskParking

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:  # defaults are 3.13's; type checkers bring theirs
    from typing import TypeVar

    T = TypeVar("T")

LEND_GRACE_S: Final = 0.002
"""How long a batch waits for its own memory to be sent before the rest is copied."""


@final
class RecordWriter(Generic[T]):
    """Writes to one result partition. A partition has one writer, used by one task at a time.

    `RecordWriter[str](partition, format="str")` declares the record type to a type checker. `async with
    RecordWriter(...) as writer:` finishes the partition at the end of the block. If the block raises or is cancelled,
    the partition fails, so that consumers do not mistake a part of the data for all of it.

    `emit_nowait` and `emit` check for room per record and let other tasks run only when they wait for a buffer. A task
    that emits without ever waiting should call `trio.lowlevel.checkpoint()` every few thousand records, as in any trio
    program.
    """

    def __init__(
        self,
        partition: ResultPartition,
        *,
        selector: ChannelSelector | None = None,
        format: RecordFormat | str = "bytes",
        buffer_timeout_s: float | None = 0.1,
        parking: Parking | None = None,
    ) -> None:
        """Takes ownership of the partition.

        Args:
            partition: from `NetworkEnvironment.create_partition`.
            selector: chooses the subpartition of a record; round robin by default.
            format: the encoding of records: bytes, str, int64, float64, msgpack, arrow, or a `RecordFormat`.
            buffer_timeout_s: the longest time that a record waits for its buffer to fill. The first record on a channel
                that was quiet for this long is sent at once (`exchange/outbound/flush_times`). 0 sends every record at
                once; None sends only full buffers, and the rest at events and at the end. Partitions in files always
                write full buffers.
            parking: internal: how the writer waits; None waits in the event loop.

        Raises:
            LocalProtocolError: the partition has a writer already.
            ConfigError: the timeout is negative, the format is unknown, or an argument has the wrong type.
        """
        check_handle(partition, ResultPartition, "create_partition")
        check_buffer_timeout(buffer_timeout_s)
        engine = partition._engine
        if engine.on_release is not None:
            raise LocalProtocolError(f"partition {engine.partition_id!r} already has a writer; a partition has one")
        if engine.store is not None:
            buffer_timeout_s = None  # consumers read only full buffers
        self._core = PartitionWriter(
            engine,
            selector=RebalanceSelector() if selector is None else checked(selector),
            format=as_format(format),
            buffer_timeout_s=buffer_timeout_s,
            refuse=trio.WouldBlock,
        )
        self._handle = partition
        self._partition = engine
        self._pool = engine.pool
        self._now = engine.host.now
        self._is_returned = False
        self._outwaits_consumers = False
        self._parking: Parking = TaskParking() if parking is None else parking
        engine.pool.on_available = self._on_returned
        engine.on_acknowledged = self._on_acknowledged  # also noticed if `listen` finds a consumer that has left
        engine.on_release = self._core.abandon
        self._try_emit = self._core.try_emit
        self.emit = eager(self._try_emit, self.emit)  # type: ignore[assignment, method-assign]
        self.try_emit = self._core.try_emit
        """`PartitionWriter.try_emit`."""
        self.forget_refused = self._core.forget_refused
        """`PartitionWriter.forget_refused`: the record that was refused last will not be retried."""
        self.check_batch = self._core.batches.rows_of_batch
        """`BatchPlanner.rows_of_batch`."""
        # Bound here, because another call would add a quarter to its cost.
        self.emit_nowait = self._core.emit_nowait  # type: ignore[method-assign,assignment]

    def emit_nowait(self, record: T, /) -> None:
        """Writes a record without waiting; no other task runs.

        Raises:
            trio.WouldBlock: there is no room; nothing was written. A record larger than all free buffers never fits:
                continue with `await emit(record)`, which writes it piece by piece.
            RecordError: the record does not fit the format.
            LocalProtocolError: the partition is finished or released.
        """
        self._core.emit_nowait(record)

    @property
    def partition(self) -> ResultPartition:
        """The partition it writes to."""
        return self._handle

    async def emit(self, record: T) -> None:
        """Writes a record; waits for a buffer if necessary.

        A checkpoint only if it waits, because a checkpoint costs more than a record. See the class about long loops.

        Raises:
            RecordError, LocalProtocolError: as `emit_nowait`.
            ConsumerLost: all consumers have left before the end, or it would wait for ever, because the unread buffers
                of those that left fill the pool or have reached `max_buffers_per_channel`. The record was not written.
            PoolDestroyed: the partition was released or failed meanwhile.

        Cancellation: either nothing was written, or, if the first part of the record was already written, the next call
        on this writer completes it. The stream is never torn.
        """
        if self._try_emit(record):
            return
        await self._make_whole()
        pool = self._pool
        while self._core.buffers.waits_early and not self._tries(lambda: pool.is_available):
            await self._wait_for_buffer(self._partition.soft_backpressured)
        await self._emit_spanning(record)

    async def emit_batch(self, batch: npt.NDArray[Any] | pa.RecordBatch) -> None:
        """Writes an array of fixed-width records, or an Arrow RecordBatch as one record (format "arrow").

        The consumers receive the same records as if each element (each row of a two-dimensional uint8 array) had been
        emitted alone. The records are encoded as runs, so a buffer is filled by one copy.

        Args:
            batch: lent until the call returns; the caller may change it afterwards. Large records, and many small ones,
                are sent directly from its memory.

        Raises:
            RecordError: it is not a batch of fixed-width records.
            LocalProtocolError, ConsumerLost, PoolDestroyed: as `emit`; the records are written as after a cancellation.

        Cancellation: each subpartition got, or gets with the next call, a prefix of its part of the batch, in whole
        records; the counter of records says how many in total.
        """
        if not isinstance(batch, np.ndarray):
            await self._emit_columnar(batch)
            return
        await self._make_whole()
        core = self._core
        if not batch.ndim:
            raise RecordError(f"an array without a dimension is not a batch of records; emit {batch!r} alone")
        if core.batches.is_small_batch(len(batch)):
            await self._emit_few(batch)
            return
        lent: list[LentBuffers] = []
        try:
            for part in core.batches.portions(batch):
                if core.batches.is_scattered_batch(part):
                    await self._share_out(part)
                    continue
                for slot, count, write in core.batches.plan_batch(part, lent):
                    await self._drive(slot, write, count)
            await self._parking.checkpoint()
            if last_on_loan(lent) is not None:
                await self._wait_sent(lent)
        finally:
            if take_back(lent):
                self._partition.host.settle()

    def slices(self) -> SliceWriter:
        """Returns a writer for the output of a task, one slice at a time, as an alternative to `emit`."""
        return SliceWriter(self._core)

    async def emit_encoded(self, slot: int, payload: Payload) -> None:
        """Writes a payload for which a `SliceWriter` had no buffer; waits for one. Cancellation: as `emit`."""
        await self._make_whole()
        await self._write_payload(slot, payload)

    async def broadcast_event(self, event: Event, *, priority: bool = False) -> None:
        """Sends an event on every subpartition, after (with `priority`: ahead of) everything written so far.

        Waits only if a cancelled `emit` left a record to be completed. A checkpoint. Cancellation: the event was not
        sent.
        """
        await self._make_whole()
        await self._parking.checkpoint()
        self._core.broadcast_event(event, priority=priority)

    def mark(self, subpartition: int, event: bytes) -> None:
        """Sends an event to one consumer, in order with the records; not for partitions in files."""
        self._core.mark(subpartition, event)

    def queued_events(self) -> list[tuple[bytes, int]]:
        """The events that no consumer has taken, each with the bytes of data in front of it; O(queues)."""
        return self._core.queued_events()

    async def flush(self) -> None:
        """Makes everything written available to the consumers now, regardless of the buffer timeout. A checkpoint."""
        self._core.flush()
        await self._parking.checkpoint()

    async def finish(self, *, drain: bool = True) -> None:
        """Sends EndOfData and EndOfPartition on every subpartition; nothing can be written afterwards.

        For a partition in files it returns when all data is on disk and readable.

        Raises:
            ConsumerLost: a consumer was lost before; the others got the end.
            DiskFull, ShuffleStorageError: the data could not be written to disk; the partition has failed.
            PoolDestroyed: the partition was released meanwhile.

        Cancellation: the end was not sent; a partition in files is sealed nevertheless.
        """
        await self._complete_torn()
        await self._parking.checkpoint()
        partition = self._partition
        self._core.end(drain=drain)
        partition.close()
        if partition.store is not None:
            await self.wait_consumed()
        elif not self._outwaits_consumers:
            partition.check_lost()

    async def wait_consumed(self) -> None:
        """Waits until every consumer has processed every record, or has closed its gate. Call `finish` first.

        For a partition in files it waits until the partition is sealed, not for consumers.

        Raises:
            ConsumerLost: a consumer was lost before it had processed every record.
            LocalProtocolError: the partition is not finished: it would wait for ever.
            PoolDestroyed: the partition was released, or failed, meanwhile.
            DiskFull, ShuffleStorageError: as `finish`.

        Cancellation: no effect on the partition.
        """
        await self._parking.checkpoint()
        partition = self._partition
        if not (partition.is_finished or partition.is_released):
            raise LocalProtocolError(f"partition {partition.partition_id!r} has no end yet; await `finish()` first")
        while not (partition.all_acknowledged or partition.is_released):
            await self._parking.wait(0.0, self._look)
        partition.check_processed()

    def close(self) -> None:
        """Closes the writer: written data stays queued, and open buffers are finished. Idempotent."""
        self._core.abandon()

    async def __aenter__(self) -> Self:
        """Returns itself. No checkpoint."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Calls `finish`, or fails the partition if the block raised; nothing if it has ended already."""
        partition = self._partition
        if partition.is_finished or partition.is_released:
            return
        if kind is None:
            await self.finish()
            return
        self.close()
        partition.fail(f"its producer stopped: {kind.__name__}" + (f": {error}" if str(error) else ""))

    def overdraw(self) -> None:
        """Lets records begin with overdraft buffers: for a task that waits for room before each input."""
        self._core.overdraws = True

    def outwait_consumers(self) -> None:
        """Lets calls wait although a consumer has left: for an owner that then restarts or ends this writer's task."""
        self._outwaits_consumers = True

    async def wait_room(self) -> None:
        """Waits until a buffer is available, so that at least the first part of the next record can be written.

        Raises:
            ConsumerLost, PoolDestroyed: as `emit`.

        Cancellation: no effect.
        """
        await self._make_whole()
        pool = self._pool
        while not self._tries(lambda: pool.is_available and not pool.is_destroyed):
            await self._wait_for_buffer(self._partition.soft_backpressured)

    async def _emit_few(self, batch: npt.NDArray[Any]) -> None:
        """Writes a batch with few records per subpartition one by one, because array operations would cost more."""
        rows = self._core.batches.rows_of_batch(batch)
        for slot, payload in zip(self._core.batches.slots_of_batch(batch, len(rows)), rows_as_bytes(rows), strict=True):
            await self._write_payload(slot, payload)
        await self._parking.checkpoint()

    async def _write_payload(self, slot: int, payload: Payload) -> None:
        core = self._core
        if not core.try_write(slot, payload):
            await self._drive(slot, core.plan_payload(slot, payload), 1)

    async def _share_out(self, batch: npt.NDArray[Any]) -> None:
        """Writes a batch with little data for each of many subpartitions; it is framed as a whole."""
        core = self._core
        for shares in core.batches.plan_shares(batch):
            while not core.batches.write_shares(shares):
                slot, count, write = core.batches.write_of_share(shares)
                await self._drive(slot, write, count)

    async def _emit_spanning(self, record: Any) -> None:
        """Emits one record of any size, piece by piece as there are buffers."""
        slot, write = self._core.plan_record(record)
        await self._drive(slot, write, 1)

    async def _make_whole(self) -> None:
        """Completes a record that a cancelled call left torn. Raises ConsumerLost if nobody reads any more."""
        if self._core.is_deserted:
            self._partition.check_consumers()
        await self._complete_torn()

    async def _complete_torn(self) -> None:
        if self._core.is_emitting:
            raise trio.BusyResourceError("another task is emitting to this RecordWriter; one task at a time")
        while not self._tries(self._core.complete_torn):
            await self._wait_for_buffer(self._partition.hard_backpressured)

    async def _drive(self, slot: int, write: SpanningWrite, records: int) -> None:
        """Runs a spanning write to its end; on cancellation the record or run in progress is kept for later."""
        core, partition = self._core, self._partition
        core.is_emitting = True
        try:
            while True:
                self._is_returned = False  # what is returned from here on ends the wait
                if core.advance(slot, write, records):
                    return
                await self._wait_for_buffer(
                    partition.hard_backpressured if write.has_taken_buffer else partition.soft_backpressured
                )
        finally:
            if core.is_emitting:
                core.is_emitting = False
                if not partition.is_released:
                    core.tear(slot, write)

    async def _wait_for_buffer(self, meter: WaitMeter) -> None:
        if not self._pool.is_destroyed:
            if not self._outwaits_consumers:
                self._partition.check_consumers()
            await self._wait(meter)
        if self._pool.is_destroyed:
            self._partition.check_kept()
            raise PoolDestroyed(
                f"partition {self._partition.partition_id!r} was released while its writer waited"
                + ("" if self._partition.failure is None else f", because it failed: {self._partition.failure}")
            )

    async def _emit_columnar(self, batch: Any) -> None:
        if self._core.format_name != "arrow":
            raise RecordError(
                f"emit_batch of {type_text(batch)} with format {self._core.format_name!r}: give a numpy array,"
                " or make the writer with format='arrow' for RecordBatches"
            )
        await self._make_whole()
        await self._emit_spanning(batch)
        await self._parking.checkpoint()

    async def _wait_sent(self, lent: list[LentBuffers]) -> None:
        """Lets the connections send from the batch's memory for a moment, which is cheaper than copying the rest."""
        meter = self._partition.soft_backpressured
        meter.begin(self._now())
        try:
            listen = self._partition.listen
            spin_s = 0.0 if listen is None else listen()  # credit that has arrived often suffices
            element = last_on_loan(lent)
            if element is None:
                return
            with self._parking.move_on_after(LEND_GRACE_S):
                while element is not None:
                    element.on_returned = self._on_returned
                    self._is_returned = False
                    await self._parking.wait(spin_s, self._look)
                    element = last_on_loan(lent)
        finally:
            meter.end(self._now())

    async def _wait(self, meter: WaitMeter) -> None:
        """Waits until a buffer or lent memory has been returned since `_tries`; `meter` records the time."""
        meter.begin(self._now())
        try:
            listen = self._partition.listen
            spin_s = 0.0 if listen is None else listen()
            if not self._is_returned:  # reading the credit, or looking for lost consumers, may have freed a buffer
                await self._parking.wait(spin_s, self._look)
        finally:
            meter.end(self._now())

    def _tries(self, step: Callable[[], bool]) -> bool:
        """Whether a step succeeds; what is returned from here on ends the next wait."""
        self._is_returned = False
        return step()

    def _look(self) -> bool:
        listen = self._partition.listen
        if listen is not None and not self._is_returned:
            listen()
        return self._is_returned

    def _on_returned(self) -> None:
        self._is_returned = True
        self._parking.wake()

    def _on_acknowledged(self) -> None:
        """Handles that a consumer has acknowledged the end, or left."""
        if self._partition.is_deserted and not self._outwaits_consumers:
            self._core.desert()
        self._on_returned()
