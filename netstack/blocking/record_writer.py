"""RecordWriter for a thread that blocks: writes and sends by itself, or through the door.

Takes: a partition, a selector, a format, the buffer timeout. Gives: the calls of `netstack.RecordWriter`, which take
`timeout_s` and block.

Directly (`direct_writer`): the calling thread encodes, fills buffers and sends. Through the door (`queued_writer`): it
encodes, and the TaskManager's thread does the rest; so it is where files keep what is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, final

import numpy.typing as npt

from ..errors import ConfigError
from ..events import Event
from ..outbound.selector import ChannelSelector
from ..record.formats import RecordFormat
from .direct_writer import DirectWriter
from .network_environment import ResultPartition
from .queued_writer import QueuedWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:  # defaults are 3.13's; type checkers bring theirs
    from typing import TypeVar

    T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WriterStatistics:
    """A snapshot of how a writer writes; what it has written is in its partition's statistics.

    Attributes:
        is_direct: the calling thread fills buffers and sends; else the TaskManager's thread does.
        waits: how often the calling thread waited for a buffer, after having looked; 0 where it does not write.
        unwritten_records: that were taken and are not in the partition.
    """

    is_direct: bool
    waits: int
    unwritten_records: int


@final
class RecordWriter(Generic[T]):
    """Writes to one result partition; one writer a partition, used by one thread at a time.

    The calls are those of `netstack.RecordWriter`. "Taken" means: it is written, in order, however long that takes.
    `timeout_s` is how long a call may wait; with TimeoutError nothing of it was done, and it can be made again.
    `with` finishes the partition at the end of the block, or fails it.

    Errors of a record (RecordError, what a selector raises) are raised by its call, and the writer goes on. What fails
    later, because the partition failed, was released, or the TaskManager was closed, is raised by the next call with a
    note of how many records that had been taken were not written (`unwritten_records`); every call after that raises
    LocalProtocolError.

    The selector and the format work in the caller's thread (but see `queued_writer` for an `AdaptiveRebalanceSelector`)
    and must call nothing of the same TaskManager.
    """

    def __init__(
        self,
        partition: ResultPartition,
        *,
        selector: ChannelSelector | None = None,
        format: RecordFormat | str = "bytes",
        buffer_timeout_s: float | None = 0.1,
        direct: bool | None = None,
    ) -> None:
        """Takes over the partition; arguments and errors of `netstack.RecordWriter`, and `direct`.

        Args:
            partition: from `NetworkEnvironment.create_partition`.
            selector: which subpartition gets a record; round robin when not given.
            format: how a record becomes bytes.
            buffer_timeout_s: as of `netstack.RecordWriter`.
            direct: whether the calling thread fills buffers and sends by itself; None where it can, True insists.

        Raises:
            ConfigError: a negative timeout, or an unknown format; or it cannot write directly, and must.
        """
        self._partition = partition
        parking = partition.park_writer() if direct is None or direct else None
        if direct and parking is None:
            raise ConfigError(
                f"direct=True: partition {partition.partition_id!r} is kept in files; leave it out to write through the"
                " TaskManager's thread then"
            )
        settings: dict[str, Any] = {"selector": selector, "format": format, "buffer_timeout_s": buffer_timeout_s}
        self._way: DirectWriter | QueuedWriter = (
            QueuedWriter(partition, **settings) if parking is None else DirectWriter(partition, parking, **settings)
        )
        # Bound here, because a second call would cost a record a tenth of what it does.
        self.emit = self._way.emit  # type: ignore[method-assign]
        self.emit_nowait = self._way.emit_nowait  # type: ignore[method-assign]

    @property
    def partition(self) -> ResultPartition:
        """What it writes to."""
        return self._partition

    @property
    def unwritten_records(self) -> int:
        """Records that were taken and are not in the partition (a batch until all of it is); after a failure: lost."""
        return self._way.unwritten_records

    def statistics(self) -> WriterStatistics:
        """A snapshot; O(records that were taken and not written)."""
        way = self._way
        return WriterStatistics(way.is_direct, way.waits, way.unwritten_records)

    def __repr__(self) -> str:
        """Says which way it writes."""
        way = "directly" if self._way.is_direct else "through the TaskManager's thread"
        return f"<RecordWriter of partition {self._partition.partition_id!r}, {way}>"

    def emit(self, record: T, *, timeout_s: float | None = None) -> None:
        """Takes a record; waits when there is no room.

        Raises:
            TimeoutError: there was none within `timeout_s`; the record was not taken.
            RecordError: the record does not fit the format; it was not taken.
            LocalProtocolError: the partition is finished, or another thread is in a call of this writer.
            PoolDestroyed, ...: see the class.
        """
        self._way.emit(record, timeout_s=timeout_s)

    def emit_nowait(self, record: T) -> None:
        """Takes a record now; errors as `emit`.

        Raises:
            WouldBlock: there is no room; the record was not taken.
        """
        self._way.emit_nowait(record)

    def emit_batch(self, batch: npt.NDArray[Any] | pa.RecordBatch, *, timeout_s: float | None = None) -> None:
        """Takes an array of fixed-width records, or an Arrow RecordBatch as one record; waits when there is no room.

        The whole batch is taken, or nothing of it.

        Args:
            batch: copied (a RecordBatch, which never changes, is not); it may be changed afterwards.
            timeout_s: as in `emit`.

        Raises:
            TimeoutError, LocalProtocolError, ...: as `emit`.
            RecordError: not a batch of fixed-width records of the format.
        """
        self._way.emit_batch(batch, timeout_s=timeout_s)

    def broadcast_event(self, event: Event, *, priority: bool = False, timeout_s: float | None = None) -> None:
        """Sends an event on every subpartition, behind (with priority: in front of) everything written so far.

        Either way it waits until everything that was taken before is written: an event that overtakes does so in the
        partition's queues, where what it overtakes can become part of a checkpoint.

        Raises:
            TimeoutError: its turn did not come within `timeout_s`; it was not sent.
            LocalProtocolError, ...: as `emit`.
        """
        self._way.broadcast_event(event, priority=priority, timeout_s=timeout_s)

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Makes everything that was taken available to the consumers now, whatever the buffer timeout.

        Raises:
            TimeoutError: not everything was written within `timeout_s`; it will be.
            LocalProtocolError, ...: as `emit`.
        """
        self._way.flush(timeout_s=timeout_s)

    def finish(self, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """Writes what was taken, then EndOfData and EndOfPartition on every subpartition; nothing follows. Idempotent.

        Raises:
            TimeoutError: not everything was written within `timeout_s`; the end was not sent.
            LocalProtocolError, ...: as `emit`.
        """
        self._way.finish(drain=drain, timeout_s=timeout_s)

    def wait_consumed(self, *, timeout_s: float | None = None) -> None:
        """Waits until every consumer has processed every record, or is gone (call `finish` before).

        Raises:
            TimeoutError: not within `timeout_s`; call it again.
            LocalProtocolError, ...: the TaskManager was closed meanwhile; and as `emit`.
        """
        self._way.wait_consumed(timeout_s=timeout_s)

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finishes the partition, or fails it."""
        if kind is None:
            self.finish()
        elif not self._way.is_finished:
            self._partition.fail(f"its producer stopped: {kind.__name__}" + (f": {error}" if str(error) else ""))
