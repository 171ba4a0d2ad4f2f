"""RecordWriter for asyncio: records are taken at once, and awaited only where there is no room.

Takes: a partition of `aio.NetworkEnvironment`. Gives: `emit_nowait`, `emit`, `emit_batch`, `broadcast_event`, `flush`,
`finish`, `wait_consumed`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, final

import numpy.typing as npt
import trio

from ..blocking.network_environment import ResultPartition
from ..blocking.queued_writer import QueuedWriter
from ..events import Event
from ..outbound.selector import ChannelSelector
from ..record.formats import RecordFormat
from .door import through

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:  # defaults are 3.13's; type checkers bring theirs
    from typing import TypeVar

    T = TypeVar("T")


@final
class RecordWriter(Generic[T]):
    """Writes to one result partition; one writer a partition, used by one task at a time.

    The calls are those of `netstack.RecordWriter`, what "taken" means and how late errors are told is as in
    `netstack.blocking.RecordWriter`. `async with` finishes the partition at the end of the block, or fails it.
    """

    def __init__(
        self,
        partition: ResultPartition,
        *,
        selector: ChannelSelector | None = None,
        format: RecordFormat | str = "bytes",
        buffer_timeout_s: float | None = 0.1,
    ) -> None:
        """Takes over the partition; arguments and errors of `netstack.RecordWriter`."""
        self._inner = QueuedWriter(partition, selector=selector, format=format, buffer_timeout_s=buffer_timeout_s)
        self._partition = partition
        self.emit_nowait = self._inner.emit_nowait
        """`emit_nowait(record)`: takes a record now, or raises `trio.WouldBlock`; errors as `emit`."""

    async def emit(self, record: T) -> None:
        """Takes a record; awaits room where there is none, and does not suspend otherwise.

        Raises:
            RecordError, LocalProtocolError, PoolDestroyed, ...: as `netstack.blocking.RecordWriter.emit`.

        Cancellation: the record was not taken.
        """
        while True:
            try:
                self.emit_nowait(record)
                return
            except trio.WouldBlock:
                await self._through(self._inner.make_room, "waiting for room in")

    async def emit_batch(self, batch: npt.NDArray[Any] | pa.RecordBatch) -> None:
        """Takes an array of fixed-width records, or an Arrow RecordBatch; awaits room. The batch is copied.

        Raises:
            RecordError, LocalProtocolError, ...: as `emit`.

        Cancellation: nothing of the batch was taken.
        """
        while not self._inner.has_room:
            await self._through(self._inner.make_room, "waiting for room in")
        self._inner.emit_batch(batch)

    async def broadcast_event(self, event: Event, *, priority: bool = False) -> None:
        """See `netstack.RecordWriter.broadcast_event`. Cancellation: the event was not sent."""
        await self._through(lambda: self._inner.broadcasting(event, priority=priority), "sending an event in")

    async def flush(self) -> None:
        """Makes everything that was taken available to the consumers now. Cancellation: it will be."""
        await self._through(self._inner.flushing, "flushing")

    async def finish(self, *, drain: bool = True) -> None:
        """Writes what was taken, then EndOfData and EndOfPartition; nothing follows. Idempotent.

        Cancellation: the end was not sent.
        """
        if not self._inner.is_finished:
            await self._through(lambda: self._inner.finishing(drain=drain), "finishing")

    async def wait_consumed(self) -> None:
        """Waits until every consumer has processed every record, or is gone. Cancellation: nothing changed."""
        await self._through(self._inner.waiting_consumed, "waiting for the consumers of")

    async def __aenter__(self) -> Self:
        """Itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finishes the partition, or fails it."""
        if kind is None:
            await self.finish()
        elif not self._inner.is_finished:
            self._partition.fail(f"its producer stopped: {kind.__name__}" + (f": {error}" if str(error) else ""))

    async def _through(self, action: Callable[[], Awaitable[None]], doing: str) -> None:
        with self._inner.exclusively():
            await through(self._partition.portal, action, f"{doing} partition {self._partition.partition_id!r}")
