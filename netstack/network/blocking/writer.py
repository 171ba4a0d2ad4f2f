"""RecordWriter for blocking threads.

Takes: a partition, a selector, a format, the buffer timeout. Gives: the calls of `netstack.RecordWriter`, which block
and accept `timeout_s`. The calling thread encodes, fills buffers and sends (`writing`).
"""

from __future__ import annotations

import warnings
from collections.abc import Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, final

import numpy.typing as npt

from ...base.errors import NetstackError
from ...base.events import Event
from ...exchange.outbound.selector import ChannelSelector
from ...exchange.record.formats import RecordFormat
from .environment import ResultPartition
from .portal import check_timeout
from .writing import T, VisitingWriter

if TYPE_CHECKING:
    import pyarrow as pa


@final
class RecordWriter(VisitingWriter[T]):
    """Writes to one result partition. A partition has one writer, used by one thread at a time.

    The calls are those of `netstack.RecordWriter`. A record that was taken will be written, in order, however long that
    takes. `timeout_s` limits how long a call waits; after TimeoutError the call had no effect and can be repeated.
    `with` finishes the partition at the end of the block, or fails it.

    Errors of a record (RecordError, errors of the selector) are raised by its call, and the writer can be used further.
    If the partition fails or is released later, or the TaskManager is closed, the next call raises the error, with a
    note that says how many taken records were not written (`unwritten_records`); every call after that raises
    LocalProtocolError.

    The selector and the format run in the caller's thread and must not call methods of the same TaskManager.
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
        """Takes ownership of the partition; arguments and errors as for `netstack.RecordWriter`.

        Args:
            partition: from `NetworkEnvironment.create_partition`.
            selector: chooses the subpartition of a record; round robin by default.
            format: the encoding of records.
            buffer_timeout_s: as for `netstack.RecordWriter`.
            direct: deprecated, without effect; every writer writes in the calling thread.
        """
        if direct is not None:
            warnings.warn(
                "direct= has no effect and will be removed: every writer writes directly",
                DeprecationWarning,
                stacklevel=2,
            )
        super().__init__(partition, selector=selector, format=format, buffer_timeout_s=buffer_timeout_s)

    def emit(self, record: T, *, timeout_s: float | None = None) -> None:
        """Takes a record; waits if there is no room.

        Raises:
            TimeoutError: there was no room within `timeout_s`; the record was not taken.
            RecordError: the record does not fit the format; it was not taken.
            LocalProtocolError: the partition is finished, or another thread is in a call of this writer.
            ConsumerLost: as `netstack.RecordWriter.emit`.
            PoolDestroyed, ...: see the class.
        """
        if not (self._try_holding(record) or self._try(record)):
            self._run(self._emit(record), "waiting for room in", timeout_s)

    def emit_batch(self, batch: npt.NDArray[Any] | pa.RecordBatch, *, timeout_s: float | None = None) -> None:
        """Takes an array of fixed-width records, or an Arrow RecordBatch as one record; waits if there is no room.

        Either the whole batch is taken or nothing of it.

        Args:
            batch: copied, so the caller may change it afterwards (a RecordBatch is immutable and is not copied).
            timeout_s: as for `emit`.

        Raises:
            TimeoutError, LocalProtocolError, ...: as `emit`.
            RecordError: it is not a batch of fixed-width records of the format.
        """
        self._run(self._emit_batch(batch), "waiting for room in", timeout_s)

    def broadcast_event(self, event: Event, *, priority: bool = False, timeout_s: float | None = None) -> None:
        """Sends an event on every subpartition, after (with `priority`: ahead of) everything written so far.

        It first waits until everything that was taken is written, even with `priority`: a priority event overtakes data
        in the partition's queues, where that data can become part of a checkpoint.

        Raises:
            TimeoutError: it was not sent within `timeout_s`, and will not be.
            LocalProtocolError, ...: as `emit`.
        """
        self._run(self._broadcast_event(event, priority), "sending an event in", timeout_s)

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Makes everything that was taken available to the consumers now, regardless of the buffer timeout.

        Raises:
            TimeoutError: not everything was written within `timeout_s`; it will be.
            LocalProtocolError, ...: as `emit`.
        """
        self._run(self._flush(), "flushing", timeout_s)

    def finish(self, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """Writes everything taken, then EndOfData and EndOfPartition on every subpartition. Idempotent.

        Raises:
            TimeoutError: not everything was written within `timeout_s`; the end was not sent.
            ConsumerLost: a consumer was lost before; the others got the end.
            LocalProtocolError, ...: as `emit`.
        """
        if not self._is_finished:
            self._run(self._finish(drain), "finishing", timeout_s)

    def wait_consumed(self, *, timeout_s: float | None = None) -> None:
        """Waits until every consumer has processed every record, or has closed its gate. Call `finish` first.

        Raises:
            TimeoutError: not within `timeout_s`; the call can be repeated.
            ConsumerLost: a consumer was lost before it had processed every record.
            LocalProtocolError: the partition is not finished, or the TaskManager was closed meanwhile.
            PoolDestroyed, ...: as `emit`.
        """
        self._run(self._wait_consumed(), "waiting for the consumers of", timeout_s)

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finishes the partition, or fails it."""
        if kind is None:
            self.finish()
        else:
            self._fail_partition(kind, error)

    def _run(self, coroutine: Coroutine[Any, Any, None], doing: str, timeout_s: float | None) -> None:
        """Runs a call in this thread; at a timeout the event loop completes what was taken."""
        try:
            check_timeout(timeout_s)
            self._begin()
        except BaseException:
            coroutine.close()
            raise
        try:
            self._parking.run(coroutine, timeout_s, self._name(doing), keep=lambda: self._keep(coroutine))
        except NetstackError as error:
            raise self._translated(error) from error.__cause__
        finally:
            self._is_busy = False
