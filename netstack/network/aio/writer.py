"""RecordWriter for asyncio: writes records at once, and suspends only if there is no room.

Takes: a partition of `aio.NetworkEnvironment`. Gives: `emit_nowait`, `emit`, `emit_batch`, `broadcast_event`, `flush`,
`finish`, `wait_consumed`.
"""

from __future__ import annotations

from collections.abc import Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, final

import numpy.typing as npt

from ...base.errors import NetstackError
from ...base.events import Event
from ...exchange.outbound.selector import ChannelSelector
from ...exchange.record.fast_path import eager
from ...exchange.record.formats import RecordFormat
from ..blocking.environment import ResultPartition
from ..blocking.writing import T, VisitingWriter

if TYPE_CHECKING:
    import pyarrow as pa


@final
class RecordWriter(VisitingWriter[T]):
    """Writes to one result partition. A partition has one writer, used by one task at a time.

    The calls are those of `netstack.RecordWriter`; `netstack.blocking.RecordWriter` documents when a record counts as
    taken, and how later errors are raised. `async with` finishes the partition at the end of the block, or fails it.

    Cancellation: a cancelled call has no effect, except that the TaskManager's thread completes a record or batch whose
    first part was written; the next call waits for that.
    """

    def __init__(
        self,
        partition: ResultPartition,
        *,
        selector: ChannelSelector | None = None,
        format: RecordFormat | str = "bytes",
        buffer_timeout_s: float | None = 0.1,
    ) -> None:
        """Takes ownership of the partition; arguments and errors as for `netstack.RecordWriter`."""
        super().__init__(partition, selector=selector, format=format, buffer_timeout_s=buffer_timeout_s)
        self.emit = eager(self._try_holding, self.emit)  # type: ignore[assignment, method-assign]

    async def emit(self, record: T) -> None:
        """Takes a record; suspends only if there is no room.

        Raises:
            RecordError, LocalProtocolError, ConsumerLost, ...: as `netstack.blocking.RecordWriter.emit`.

        Cancellation: the record was not taken, or, if its first part was written, will be written completely.
        """
        if not (self._try_holding(record) or self._try(record)):
            await self._run(self._emit(record))

    async def emit_batch(self, batch: npt.NDArray[Any] | pa.RecordBatch) -> None:
        """Takes an array of fixed-width records, or an Arrow RecordBatch; waits for room. The batch is copied.

        Raises:
            RecordError, LocalProtocolError, ...: as `emit`.

        Cancellation: nothing of the batch was taken, or all of it.
        """
        await self._run(self._emit_batch(batch))

    async def broadcast_event(self, event: Event, *, priority: bool = False) -> None:
        """Sends an event, as `netstack.RecordWriter.broadcast_event`. Cancellation: the event was not sent."""
        await self._run(self._broadcast_event(event, priority))

    async def flush(self) -> None:
        """Makes everything that was taken available to the consumers now. Cancellation: it will be."""
        await self._run(self._flush())

    async def finish(self, *, drain: bool = True) -> None:
        """Writes everything taken, then EndOfData and EndOfPartition. Idempotent.

        Raises ConsumerLost if a consumer was lost before; the others got the end.

        Cancellation: the end was not sent.
        """
        if not self._is_finished:
            await self._run(self._finish(drain))

    async def wait_consumed(self) -> None:
        """Waits until every consumer has processed every record, or has closed its gate. Call `finish` first.

        Raises as `blocking.RecordWriter.wait_consumed`. Cancellation: no effect.
        """
        await self._run(self._wait_consumed())

    async def __aenter__(self) -> Self:
        """Returns itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finishes the partition, or fails it."""
        if kind is None:
            await self.finish()
        else:
            self._fail_partition(kind, error)

    async def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs a call; if it is cancelled, the TaskManager's thread completes what was taken."""
        try:
            self._begin()
        except BaseException:
            coroutine.close()
            raise
        try:
            await self._parking.run_in_asyncio(coroutine, keep=lambda: self._keep(coroutine))
        except NetstackError as error:
            raise self._translated(error) from error.__cause__
        finally:
            self._is_busy = False
