"""RecordWriter for a thread that blocks, which writes by itself: encodes, fills buffers and sends, in its own thread.

Takes: a partition, a selector, a format, the buffer timeout. Gives: the calls of `netstack.RecordWriter`, which take
`timeout_s` and block.

How: as a visitor of the event loop (`runtime.visits`) it calls the same writer, and has the connections send before it
leaves. Without a buffer it waits at their sockets for credit.

Rules:
- A record, or a batch, is taken when its first part was written. Who has no time left then leaves the rest to the event
  loop, which brings it to its end; the next call waits for that.
- With a timeout of 0 a record is sent before `emit` returns, or, of many in a row, within 50 us or by the loop, as
  soon as it gets its turn. Other timeouts are the loop's to keep: its clock runs anyway.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Coroutine, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

import numpy as np
import numpy.typing as npt
import trio

from ..errors import LocalProtocolError, NetstackError, PoolDestroyed
from ..events import Event
from ..outbound.open_buffers import SLICE_S
from ..outbound.selector import ChannelSelector
from ..record.formats import RecordFormat
from ..runtime import record_writer as runtime
from ..runtime.parking import ThreadParking
from .network_environment import ResultPartition
from .portal import check_timeout
from .writer_failure import WriterFailure

if TYPE_CHECKING:
    import pyarrow as pa

_FINISHED: Final = ", which is finished"


@final
class DirectWriter:
    """See `blocking.RecordWriter`."""

    is_direct: Final = True

    def __init__(
        self,
        partition: ResultPartition,
        parking: ThreadParking,
        *,
        selector: ChannelSelector | None,
        format: RecordFormat | str,
        buffer_timeout_s: float | None,
    ) -> None:
        """Takes over the partition; arguments and errors of `netstack.RecordWriter`."""
        self._partition = partition
        self._portal = partition.portal
        self._parking = parking
        self._visits = partition.portal.inside.visits
        self._is_busy = False
        self._is_taken = False
        self._is_finished = False
        self._failure: BaseException | None = None
        self._told = WriterFailure(partition.partition_id)
        self._unwritten = 0
        self._late: threading.Event | None = None
        """Set when the loop has brought to its end what it was left."""
        self._kick = self._portal.inside.kick
        self._has_unsent = self._portal.inside.has_unsent
        self._is_posted = False
        self._next_kick = 0.0
        self._merges = buffer_timeout_s == 0

        async def make() -> runtime.RecordWriter[Any]:
            return runtime.RecordWriter(
                partition.inner, selector=selector, format=format, buffer_timeout_s=buffer_timeout_s, parking=parking
            )

        self._inner = self._portal.call(make, timeout_s=None, what=self._name("opening the writer of"))
        self._try_emit = self._inner.try_emit

    @property
    def is_finished(self) -> bool:
        """Whether the end was sent."""
        return self._is_finished

    @property
    def waits(self) -> int:
        """How often its thread waited for a buffer, after having looked."""
        return self._parking.waits

    @property
    def unwritten_records(self) -> int:
        """Records that were taken and are not in the partition: at most what the loop was left."""
        return self._unwritten

    def emit(self, record: Any, *, timeout_s: float | None = None) -> None:
        """See `blocking.RecordWriter.emit`."""
        if self._is_busy or self._late is not None or self._failure is not None:
            self._begin(timeout_s)
        self._is_busy = True  # nothing that a signal handler could interrupt stands between this and `try`
        try:
            visits = self._visits
            visits.enter()
            try:
                is_written = self._try_emit(record)
            except (LocalProtocolError, PoolDestroyed) as error:
                self._fail(error)
            finally:
                self._leave()
            if not is_written:
                self._run(self._emit(record), "waiting for room in", timeout_s, records=1)
        finally:
            self._is_busy = False

    def emit_nowait(self, record: Any) -> None:
        """See `blocking.RecordWriter.emit_nowait`."""
        if self._is_busy or self._late is not None or self._failure is not None:
            with contextlib.suppress(TimeoutError):
                self._begin(0)
            if self._late is not None:
                raise trio.WouldBlock
        self._is_busy = True
        try:
            self._visits.enter()
            try:
                is_written = self._try_emit(record)
                if not is_written:
                    self._listen()
                    is_written = self._try_emit(record)
                    if not is_written:
                        self._inner.forget_refused()
            except (LocalProtocolError, PoolDestroyed) as error:
                self._fail(error)
            finally:
                self._leave()
            if not is_written:
                raise trio.WouldBlock
        finally:
            self._is_busy = False

    def emit_batch(self, batch: npt.NDArray[Any] | pa.RecordBatch, *, timeout_s: float | None = None) -> None:
        """See `blocking.RecordWriter.emit_batch`."""
        with self._busy(timeout_s):
            records = 1
            if isinstance(batch, np.ndarray):
                with self._inside():
                    self._inner.check_batch(batch)
                records = len(batch)
                batch = np.array(batch, order="C")  # it may be left to the loop, and the caller may change its own
            if records:
                self._run(self._emit_batch(batch), "waiting for room in", timeout_s, records=records)

    def broadcast_event(self, event: Event, *, priority: bool = False, timeout_s: float | None = None) -> None:
        """See `blocking.RecordWriter.broadcast_event`."""
        with self._busy(timeout_s):
            self._run(self._inner.broadcast_event(event, priority=priority), "sending an event in", timeout_s)

    def flush(self, *, timeout_s: float | None = None) -> None:
        """See `blocking.RecordWriter.flush`."""
        with self._busy(timeout_s):
            self._run(self._inner.flush(), "flushing", timeout_s)

    def finish(self, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """See `blocking.RecordWriter.finish`."""
        if self._is_finished:
            return
        with self._busy(timeout_s):
            self._run(self._inner.finish(drain=drain), "finishing", timeout_s)
            self._is_finished = True
            self._failure = LocalProtocolError(self._name("nothing can be written any more to") + _FINISHED)

    def wait_consumed(self, *, timeout_s: float | None = None) -> None:
        """See `blocking.RecordWriter.wait_consumed`."""
        with self._busy(timeout_s, is_over=self._is_finished):
            what = self._name("waiting for the consumers of")
            self._portal.call(self._inner.wait_consumed, timeout_s=timeout_s, what=what)

    # Inside.

    async def _emit(self, record: Any) -> None:
        inner = self._inner
        try:
            while not self._try_emit(record):
                await inner.wait_room()
                if not self._try_emit(record):  # it needs more buffers than there are at once
                    self._is_taken = True
                    await inner.emit(record)
                return
        finally:
            inner.forget_refused()

    async def _emit_batch(self, batch: Any) -> None:
        await self._inner.wait_room()
        self._is_taken = True
        await self._inner.emit_batch(batch)

    def _run(
        self, coroutine: Coroutine[Any, Any, None], doing: str, timeout_s: float | None, *, records: int = 0
    ) -> None:
        """Runs it here; what is taken and has no time left is the loop's."""
        check_timeout(timeout_s)
        self._is_taken = False

        def leave_to_loop() -> bool:
            if not self._is_taken:
                return False
            self._unwritten = records
            self._late = threading.Event()
            self._visits.soon(lambda: self._portal.start_task(functools.partial(self._bring_to_end, coroutine)))
            return True

        try:
            self._parking.run(coroutine, timeout_s, self._name(doing), keep=leave_to_loop)
        except (LocalProtocolError, PoolDestroyed) as error:
            self._fail(error)

    async def _bring_to_end(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """In the loop."""
        late = self._late
        assert late is not None
        try:
            await self._parking.run_in_loop(coroutine)
            self._unwritten = 0
        except trio.Cancelled:
            self._failure = LocalProtocolError(self._name("the TaskManager was closed with an open writer of"))
            raise
        except Exception as error:  # of a partition that failed: the caller's, not the loop's
            self._failure = error
        finally:
            late.set()

    @contextlib.contextmanager
    def _busy(self, timeout_s: float | None, *, is_over: bool = False) -> Iterator[None]:
        """One call at a time, when what was left to the loop is done."""
        if self._is_busy or self._late is not None or (self._failure is not None and not is_over):
            self._begin(timeout_s, is_over=is_over)
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        self._visits.enter()
        try:
            yield
        except (LocalProtocolError, PoolDestroyed) as error:
            self._fail(error)
        finally:
            self._leave()

    def _begin(self, timeout_s: float | None, *, is_over: bool = False) -> None:
        """Whether a call may begin, and when."""
        if self._is_busy:
            raise LocalProtocolError(
                self._name("another thread is in a call of the writer of") + "; one at a time: use a lock of yours"
            )
        check_timeout(timeout_s)
        if self._late is not None:
            self._is_busy = True
            try:
                if not self._late.wait(timeout_s):
                    raise TimeoutError(f"{self._name('waiting for room in')}: not within {timeout_s} s")
                self._late = None
            finally:
                self._is_busy = False
        if self._failure is not None and not is_over:
            self._raise_failure()

    def _listen(self) -> None:
        """Takes in what consumers have said meanwhile."""
        listen = self._partition.inner.listen
        if listen is not None:
            listen()

    def _leave(self) -> None:
        """Out, having sent what is to be sent now."""
        if self._has_unsent():
            if not self._merges:
                self._kick()
            elif (now := perf_counter()) >= self._next_kick:
                self._kick()
                self._next_kick = now + SLICE_S
            elif not self._is_posted:
                self._is_posted = True
                self._visits.soon(self._kick_late)
        self._visits.leave_quietly()

    def _kick_late(self) -> None:
        """In the loop: nobody came any more to send the last of many in a row."""
        self._is_posted = False
        self._kick()

    def _fail(self, error: NetstackError) -> NoReturn:
        """Raises what a call raised; if nothing can be written any more, all later ones say so."""
        inner = self._partition.inner
        if self._visits.is_over or (self._portal.inside.is_closed and inner.failure is None):
            error = LocalProtocolError(self._name("the TaskManager was closed with an open writer of"))
        elif not (inner.is_released or inner.is_finished):
            raise error
        self._failure = error
        self._raise_failure()

    def _raise_failure(self) -> NoReturn:
        assert self._failure is not None
        self._told.tell(self._failure, unwritten_records=self._unwritten, is_finished=self._is_finished)

    def _name(self, doing: str) -> str:
        return f"{doing} partition {self._partition.partition_id!r}"
