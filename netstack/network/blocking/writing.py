"""The common base of the record writers for threads and for asyncio: visitors of the event loop that use trio's writer.

Takes: a partition, a selector, a format, the buffer timeout. Gives: the calls that do not wait, and coroutines for
those that do; `network.waiting.parking` runs these in the manner of `blocking` or `aio`.

Rules:
- A record or batch counts as taken when its first part was written. If the caller stops waiting then, the event loop
  completes it; the next call waits for that.
- With a timeout of 0, `emit` sends the record before it returns; of many records in a row, within 50 us or as soon as
  the loop runs. All other buffer timeouts are timed by the loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, final

import numpy as np
import numpy.typing as npt
import trio

from ...base.errors import LocalProtocolError, NetstackError, RecordError
from ...base.events import Event
from ...exchange.outbound.open_buffers import SLICE_S
from ...exchange.outbound.selector import ChannelSelector
from ...exchange.record.formats import RecordFormat
from .. import writer as runtime
from ..handles import check_handle
from ..waiting.held_lock import holding_emitter
from .environment import ResultPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:  # defaults are 3.13's; type checkers bring theirs
    from typing import TypeVar

    T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True)
class WriterStatistics:
    """A snapshot of a writer; its partition's statistics count what was written.

    Attributes:
        waits: how often the calling thread parked to wait for a buffer.
        unwritten_records: records that were taken but are not in the partition.
    """

    waits: int
    unwritten_records: int

    @property
    def is_direct(self) -> bool:
        """Deprecated: always True, because the calling thread always fills buffers and sends."""
        return True


class VisitingWriter(Generic[T]):
    """The base of `blocking.RecordWriter` and `aio.RecordWriter`, which document the calls."""

    def __init__(
        self,
        partition: ResultPartition,
        *,
        selector: ChannelSelector | None = None,
        format: RecordFormat | str = "bytes",
        buffer_timeout_s: float | None = 0.1,
    ) -> None:
        """Takes ownership of the partition; arguments and errors as for `netstack.RecordWriter`."""
        check_handle(partition, ResultPartition, "create_partition")
        self._partition = partition
        self._portal = partition.portal
        self._parking = parking = partition.park_writer()
        self._held = parking.held
        self._loop_lock = partition.portal.inside.loop_lock
        self._unsent = partition.portal.inside.unsent
        self._flush_connections = partition.portal.inside.flush_connections
        self._sends_at_once = buffer_timeout_s == 0
        self._is_posted = False
        self._next_kick = 0.0
        self._is_busy = False
        self._is_taken = False
        self._is_finished = False
        self._is_late = False
        self._failure: BaseException | None = None
        self._is_annotated = False
        self._taken_records = 0
        self._unwritten = 0

        async def make() -> runtime.RecordWriter[T]:
            return runtime.RecordWriter(
                partition.inner, selector=selector, format=format, buffer_timeout_s=buffer_timeout_s, parking=parking
            )

        self._inner = self._portal.call(make, timeout_s=None, what=self._name("opening the writer of"))
        self._try_emit = self._inner.try_emit
        self._try_holding: Callable[[T], bool] = _never  # with a timeout of 0 each record is sent by `_leave`
        if not self._sends_at_once:
            self._try_holding = holding_emitter(self._held, self._try_emit, self._unsent, self._flush_connections)

    @property
    def partition(self) -> ResultPartition:
        """The partition it writes to."""
        return self._partition

    @property
    def unwritten_records(self) -> int:
        """Records that were taken but are not in the partition: pending in the loop, or lost by a failure."""
        return self._unwritten

    def statistics(self) -> WriterStatistics:
        """A snapshot; O(1)."""
        return WriterStatistics(self._parking.waits, self._unwritten)

    def __repr__(self) -> str:
        return f"<RecordWriter of partition {self._partition.partition_id!r}>"

    def emit_nowait(self, record: T, /) -> None:
        """Takes a record without waiting; errors as `emit`.

        Raises:
            WouldBlock: there is no room; the record was not taken.
        """
        if not (self._try_holding(record) or self._try(record, listens=True)):
            raise trio.WouldBlock

    # For the writers.

    def _try(self, record: T, *, listens: bool = False) -> bool:
        """Writes a record if there is room; with `listens`, it reads credit before it gives up."""
        self._begin()
        is_written = False
        try:
            self._loop_lock.enter(self._held)
            try:
                if not self._is_late:
                    self._check()
                    is_written = self._try_emit(record)
                    if listens and not is_written:
                        listen = self._partition.inner._engine.listen
                        if listen is not None:
                            listen()
                        is_written = self._try_emit(record)
                        if not is_written:
                            self._inner.forget_refused()
            finally:
                self._leave()
        except NetstackError as error:
            raise self._translated(error) from error.__cause__
        finally:
            self._is_busy = False
        return is_written

    async def _emit(self, record: T) -> None:
        inner = self._inner
        try:
            await self._ready()
            while not self._try_emit(record):
                await inner.wait_room()
                if not self._try_emit(record):  # it needs more buffers than are available at once
                    self._take(1)
                    await inner.emit(record)
                return
        finally:
            inner.forget_refused()

    async def _emit_batch(self, batch: npt.NDArray[Any] | pa.RecordBatch) -> None:
        await self._ready()
        inner = self._inner
        records = 1
        if isinstance(batch, np.ndarray):
            inner.check_batch(batch)
            records = len(batch)
            batch = np.array(
                batch, order="C"
            )  # the loop may have to complete it, and the caller may change the original
        if records:
            await inner.wait_room()
            self._take(records)
            await inner.emit_batch(batch)

    async def _broadcast_event(self, event: Event, priority: bool) -> None:
        await self._ready()
        await self._inner.broadcast_event(event, priority=priority)

    async def _flush(self) -> None:
        await self._ready()
        await self._inner.flush()

    async def _finish(self, drain: bool) -> None:
        await self._ready()
        try:
            await self._inner.finish(drain=drain)
        finally:
            if self._inner._partition.is_finished:
                self._is_finished = True
                self._failure = LocalProtocolError(
                    self._name("nothing can be written any more to") + ", which is finished"
                )

    async def _wait_consumed(self) -> None:
        if not self._is_finished:
            await self._ready()
        await self._inner.wait_consumed()

    async def _ready(self) -> None:
        """Waits until the loop has completed what an earlier call left to it."""
        while self._is_late:
            await self._parking.wait(0.0, _nothing)
        self._check()
        self._is_taken = False

    def _check(self) -> None:
        if self._failure is not None:
            raise self._annotated(self._failure)

    def _take(self, records: int) -> None:
        """From here on the record or batch will be written completely, by this call or by the loop."""
        self._is_taken = True
        self._taken_records = records

    def _keep(self, coroutine: Coroutine[Any, Any, None]) -> bool:
        """Leaves the call to the loop if its data was taken; see `ThreadParking.run`."""
        if not self._is_taken:
            return False
        self._is_taken = False
        self._unwritten = self._taken_records
        self._is_late = True
        self._loop_lock.soon(lambda: self._portal.start_task(functools.partial(self._bring_to_end, coroutine)))
        return True

    async def _bring_to_end(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Completes a call in the loop."""
        try:
            await self._parking.run_in_loop(coroutine)
            self._unwritten = 0
        except trio.Cancelled:
            self._failure = LocalProtocolError(self._name("the TaskManager was closed with an open writer of"))
            raise
        except Exception as error:  # the next call raises it, not the loop
            self._failure = error
        finally:
            self._is_late = False
            self._parking.wake()

    def _begin(self) -> None:
        """Refuses concurrent calls."""
        if self._is_busy or self._held.is_active:
            raise LocalProtocolError(
                self._name("another thread is in a call of the writer of") + "; use a lock of your own"
            )
        self._is_busy = True

    def _leave(self) -> None:
        """Sends what is due, and leaves the data path."""
        if self._unsent:
            if not self._sends_at_once:
                self._flush_connections()
            elif (now := perf_counter()) >= self._next_kick:
                self._flush_connections()
                self._next_kick = now + SLICE_S
            elif not self._is_posted:
                self._is_posted = True
                self._loop_lock.soon(self._kick_late)
        self._loop_lock.leave_quietly(None if self._is_late else self._held)

    def _kick_late(self) -> None:
        """Sends, in the loop, the last of many records in a row."""
        self._is_posted = False
        self._flush_connections()

    def _translated(self, error: NetstackError) -> BaseException:
        """Returns the error to raise; if nothing can be written any more, all later calls raise a follow-up error."""
        if isinstance(error, RecordError) or self._failure is not None or self._loop_lock.is_forked:
            return error
        inner = self._partition.inner
        if self._loop_lock.is_over or (self._portal.inside.is_closed and inner._engine.failure is None):
            error = LocalProtocolError(self._name("the TaskManager was closed with an open writer of"))
        elif not (inner.is_released or inner.is_finished):
            return error
        self._failure = error
        return self._annotated(error)

    def _annotated(self, error: BaseException) -> BaseException:
        """Returns the failure itself the first time, and an error that refers to it afterwards."""
        if self._is_finished:
            return error
        lost = f"{self._unwritten} records that its writer had taken were not written"
        if not self._is_annotated:
            self._is_annotated = True
            error.add_note(f"partition {self._partition.partition_id!r}: {lost}")
            return error
        later = LocalProtocolError(
            self._name("nothing can be written any more to") + f", since its writer failed; {lost}"
        )
        later.__cause__ = error
        return later

    def _name(self, doing: str) -> str:
        return f"{doing} partition {self._partition.partition_id!r}"

    def _fail_partition(self, kind: type[BaseException], error: BaseException | None) -> None:
        """Fails the partition, because the `with` block raised."""
        if not self._is_finished:
            self._partition.fail(f"its producer stopped: {kind.__name__}" + (f": {error}" if str(error) else ""))


def _nothing() -> bool:
    return False


def _never(record: object, /) -> bool:
    return False
