"""RecordWriter for a thread that blocks.

Takes: a partition, a selector, a format, the buffer timeout. Gives: the calls of `netstack.RecordWriter`, which take
`timeout_s` and block. The calling thread encodes, fills buffers and sends (`writing`).
"""

from __future__ import annotations

import warnings
from collections.abc import Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, final

import numpy.typing as npt

from ..errors import NetstackError
from ..events import Event
from ..outbound.selector import ChannelSelector
from ..record.formats import RecordFormat
from .network_environment import ResultPartition
from .portal import check_timeout
from .writing import T, VisitingWriter

if TYPE_CHECKING:
    import pyarrow as pa


@final
class RecordWriter(VisitingWriter[T]):
    """Writes to one result partition; one writer a partition, used by one thread at a time.

    The calls are those of `netstack.RecordWriter`. "Taken" means: it is written, in order, however long that takes.
    `timeout_s` is how long a call may wait; with TimeoutError nothing of it was done, and it can be made again.
    `with` finishes the partition at the end of the block, or fails it.

    Errors of a record (RecordError, what a selector raises) are raised by its call, and the writer goes on. What fails
    later, because the partition failed, was released, or the TaskManager was closed, is raised by the next call with a
    note of how many records that had been taken were not written (`unwritten_records`); every call after that raises
    LocalProtocolError.

    The selector and the format work in the caller's thread and must call nothing of the same TaskManager.
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
        """Takes over the partition; arguments and errors of `netstack.RecordWriter`.

        Args:
            partition: from `NetworkEnvironment.create_partition`.
            selector: which subpartition gets a record; round robin when not given.
            format: how a record becomes bytes.
            buffer_timeout_s: as of `netstack.RecordWriter`.
            direct: to be removed; every writer writes in the calling thread.
        """
        if direct is not None:
            warnings.warn("direct= is to be removed: every writer writes directly", DeprecationWarning, stacklevel=2)
        super().__init__(partition, selector=selector, format=format, buffer_timeout_s=buffer_timeout_s)

    def emit(self, record: T, *, timeout_s: float | None = None) -> None:
        """Takes a record; waits when there is no room.

        Raises:
            TimeoutError: there was none within `timeout_s`; the record was not taken.
            RecordError: the record does not fit the format; it was not taken.
            LocalProtocolError: the partition is finished, or another thread is in a call of this writer.
            PoolDestroyed, ...: see the class.
        """
        if not (self._try_staying(record) or self._try(record)):
            self._run(self._emit(record), "waiting for room in", timeout_s)

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
        self._run(self._emit_batch(batch), "waiting for room in", timeout_s)

    def broadcast_event(self, event: Event, *, priority: bool = False, timeout_s: float | None = None) -> None:
        """Sends an event on every subpartition, behind (with priority: in front of) everything written so far.

        Either way it waits until everything that was taken before is written: an event that overtakes does so in the
        partition's queues, where what it overtakes can become part of a checkpoint.

        Raises:
            TimeoutError: its turn did not come within `timeout_s`; it was not sent.
            LocalProtocolError, ...: as `emit`.
        """
        self._run(self._broadcast_event(event, priority), "sending an event in", timeout_s)

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Makes everything that was taken available to the consumers now, whatever the buffer timeout.

        Raises:
            TimeoutError: not everything was written within `timeout_s`; it will be.
            LocalProtocolError, ...: as `emit`.
        """
        self._run(self._flush(), "flushing", timeout_s)

    def finish(self, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """Writes what was taken, then EndOfData and EndOfPartition on every subpartition; nothing follows. Idempotent.

        Raises:
            TimeoutError: not everything was written within `timeout_s`; the end was not sent.
            LocalProtocolError, ...: as `emit`.
        """
        if not self._is_finished:
            self._run(self._finish(drain), "finishing", timeout_s)

    def wait_consumed(self, *, timeout_s: float | None = None) -> None:
        """Waits until every consumer has processed every record, or is gone (call `finish` before).

        Raises:
            TimeoutError: not within `timeout_s`; call it again.
            LocalProtocolError, ...: the TaskManager was closed meanwhile; and as `emit`.
        """
        self._run(self._wait_consumed(), "waiting for the consumers of", timeout_s)

    def __enter__(self) -> Self:
        """Itself."""
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
        """Runs a call here; what is taken when its time is up is the loop's."""
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
