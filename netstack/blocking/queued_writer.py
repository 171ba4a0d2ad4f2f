"""RecordWriter for a thread that blocks, or an event loop: records are collected here, the TaskManager's thread writes.

Takes: a partition, a selector, a format, the buffer timeout. Gives: the calls of `netstack.RecordWriter`, which take
`timeout_s` and block.

How: a way through the door costs as much as a hundred records. So a record is encoded and told its subpartition in the
caller's thread, and put into a queue; a task in the TaskManager's thread writes what is there.

Rules:
- Everything that is written passes through the one queue: order holds.
- The queue is bounded by bytes. Without room a call waits until half of it was written.
- A record waits at most the buffer timeout, here and in its buffer together: here at most `LINGER_S`, and at most half
  of it. With a timeout of 0 nothing lingers: the task is woken, and writes what is there by then.
- An item leaves the queue when it was written. What fails stays, and is counted.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, final

import numpy as np
import numpy.typing as npt
import trio

from ..errors import ConfigError, LocalProtocolError
from ..events import Event
from ..outbound.selector import ChannelSelector, RebalanceSelector
from ..record.formats import Encoded, RecordFormat, format_named
from ..record.framing import check_record_bytes
from ..runtime import record_writer as runtime
from ..runtime.signal import Signal
from .batches import array_work, columnar_work
from .network_environment import ResultPartition
from .routing import ChosenSelector, EncodedFormat
from .work import Work
from .writer_failure import WriterFailure

if TYPE_CHECKING:
    import pyarrow as pa

ROOM_BYTES: Final = 512 * 1024
"""What may wait in the queue; the last item that found room may exceed it."""

ITEM_BYTES: Final = 64
"""What an item counts beside its payload: about what it takes."""

LINGER_S: Final = 0.005
"""The longest a record waits for others on its way to the other thread."""

_Item: TypeAlias = "tuple[int, Encoded] | Work"


@final
class QueuedWriter:
    """See `blocking.RecordWriter`."""

    is_direct: Final = False
    waits: Final = 0

    def __init__(
        self,
        partition: ResultPartition,
        *,
        selector: ChannelSelector | None,
        format: RecordFormat | str,
        buffer_timeout_s: float | None,
    ) -> None:
        """Takes over the partition; arguments and errors of `netstack.RecordWriter`.

        The selector and the format work in the caller's thread, except for an `AdaptiveRebalanceSelector`.
        """
        if buffer_timeout_s is not None and buffer_timeout_s < 0:
            raise ConfigError(f"buffer_timeout_s={buffer_timeout_s}; give 0, seconds above 0, or None")
        self._partition = partition
        self._portal = partition.portal
        self._max_record_bytes = partition.inner.max_record_bytes
        self._format = format_named(format) if isinstance(format, str) else format
        self._encode = self._format.encode
        self._is_raw = self._format.name == "bytes"
        self._chosen = ChosenSelector(RebalanceSelector() if selector is None else selector)
        self._select = self._chosen.choose
        self._linger_s = None if buffer_timeout_s is None else min(LINGER_S, buffer_timeout_s / 2)
        self._timeout_s = None if buffer_timeout_s is None else buffer_timeout_s - (self._linger_s or 0)
        self._queue: deque[_Item] = deque()
        self._append = self._queue.append
        self._room = ROOM_BYTES  # the caller's own account: never more than there is
        self._is_busy = False
        self._never_lingers = self._linger_s is None
        # Set outside, cleared inside before the queue is looked at: so whoever appends either sees it set, and is
        # written, or sets it.
        self._is_armed = self._never_lingers
        self._is_hurried = False
        self._failure: BaseException | None = None
        self._told = WriterFailure(partition.partition_id)
        self._is_finished = False
        self._changed = Signal()
        self._progress = Signal()
        self._portal.call(self._open, timeout_s=None, what=self._name("opening the writer of"))
        self._fixed_slot = self._chosen.fixed

    @property
    def partition(self) -> ResultPartition:
        """What it writes to."""
        return self._partition

    @property
    def unwritten_records(self) -> int:
        """Records that were taken and are not in the partition (a batch until all of it is); after a failure: lost."""
        return sum(1 if isinstance(item, tuple) else item.records for item in list(self._queue))

    def emit(self, record: Any, *, timeout_s: float | None = None) -> None:
        """Takes a record; waits when there is no room.

        Raises:
            TimeoutError: there was none within `timeout_s`; the record was not taken.
            RecordError: the record does not fit the format; it was not taken.
            LocalProtocolError: the partition is finished, or another thread is in a call of this writer.
            PoolDestroyed, ...: see the class.
        """
        if self._is_busy or self._failure is not None:
            self._refuse()
        self._is_busy = True  # nothing that a signal handler could interrupt stands between this and `try`
        try:
            payload = record if self._is_raw and record.__class__ is bytes else self._encode(record)
            if self._room <= 0:
                self._wait_room(timeout_s)
            self._take(record, payload)
        finally:
            self._is_busy = False

    def emit_nowait(self, record: Any) -> None:
        """Takes a record now; errors as `emit`.

        Raises:
            WouldBlock: there is no room; the record was not taken.
        """
        if self._is_busy or self._failure is not None:
            self._refuse()
        self._is_busy = True  # nothing that a signal handler could interrupt stands between this and `try`
        try:
            payload = record if self._is_raw and record.__class__ is bytes else self._encode(record)
            if self._room <= 0:
                if self._queue:
                    self._hurry()
                    raise trio.WouldBlock
                self._room = ROOM_BYTES
            self._take(record, payload)
        finally:
            self._is_busy = False

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
        if self._is_busy or self._failure is not None:
            self._refuse()
        self._is_busy = True
        try:
            if self._room <= 0:
                self._wait_room(timeout_s)
            make = array_work if isinstance(batch, np.ndarray) else columnar_work
            work = make(batch, self._format, self._chosen, self._inner)
            if work.records:
                self._room -= work.bytes + ITEM_BYTES
                self._append(work)
                if not self._is_armed:
                    self._arm()
        finally:
            self._is_busy = False

    def broadcast_event(self, event: Event, *, priority: bool = False, timeout_s: float | None = None) -> None:
        """Sends an event on every subpartition, behind (with priority: in front of) everything written so far.

        Either way it waits until everything that was taken before is written: an event that overtakes does so in the
        partition's queues, where what it overtakes can become part of a checkpoint.

        Raises:
            TimeoutError: its turn did not come within `timeout_s`; it was not sent.
            LocalProtocolError, ...: as `emit`.
        """
        self._through(lambda: self._inner.broadcast_event(event, priority=priority), "sending an event in", timeout_s)

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Makes everything that was taken available to the consumers now, whatever the buffer timeout.

        Raises:
            TimeoutError: not everything was written within `timeout_s`; it will be.
            LocalProtocolError, ...: as `emit`.
        """
        self._through(lambda: self._inner.flush(), "flushing", timeout_s)

    def finish(self, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """Writes what was taken, then EndOfData and EndOfPartition on every subpartition; nothing follows. Idempotent.

        Raises:
            TimeoutError: not everything was written within `timeout_s`; the end was not sent.
            LocalProtocolError, ...: as `emit`.
        """
        if self._is_finished:
            return
        self._through(lambda: self._end(drain), "finishing", timeout_s)

    def wait_consumed(self, *, timeout_s: float | None = None) -> None:
        """Waits until every consumer has processed every record, or is gone (call `finish` before).

        Raises:
            TimeoutError: not within `timeout_s`; call it again.
            LocalProtocolError, ...: the TaskManager was closed meanwhile; and as `emit`.
        """
        if self._is_busy or (self._failure is not None and not self._is_finished):
            self._refuse()
        self._is_busy = True
        try:
            self._call(lambda: self._inner.wait_consumed(), "waiting for the consumers of", timeout_s)
        finally:
            self._is_busy = False

    # For other event loops (`netstack.aio`): the same, as async functions to be run in the TaskManager's thread.

    @property
    def has_room(self) -> bool:
        """Whether a record would be taken at once."""
        return self._room > 0 or not self._queue

    @property
    def is_finished(self) -> bool:
        """Whether the end was sent."""
        return self._is_finished

    @contextlib.contextmanager
    def exclusively(self) -> Iterator[None]:
        """No other call may come in between.

        Raises:
            LocalProtocolError, ...: another call is under way, or the writer has failed; see the class.
        """
        if self._is_busy or (self._failure is not None and not self._is_finished):
            self._refuse()
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False

    async def make_room(self) -> None:
        """Waits until there is room. Cancellation: nothing changed."""
        self._room = await self._make_room()

    async def broadcasting(self, event: Event, *, priority: bool) -> None:
        """See `broadcast_event`."""
        await self._behind(lambda: self._inner.broadcast_event(event, priority=priority))

    async def flushing(self) -> None:
        """See `flush`."""
        await self._behind(self._inner.flush)

    async def finishing(self, *, drain: bool) -> None:
        """See `finish`."""
        await self._behind(lambda: self._end(drain))

    async def waiting_consumed(self) -> None:
        """See `wait_consumed`."""
        await self._inner.wait_consumed()

    # In the caller's thread.

    def _name(self, doing: str) -> str:
        return f"{doing} partition {self._partition.partition_id!r}"

    def _call(self, action: Callable[[], Awaitable[Any]], doing: str, timeout_s: float | None) -> Any:
        return self._portal.call(action, timeout_s=timeout_s, what=self._name(doing))

    def _refuse(self) -> None:
        if self._is_busy:
            raise LocalProtocolError(
                self._name("another thread is in a call of the writer of") + "; one at a time: use a lock of yours"
            )
        self._raise_failure()

    def _take(self, record: Any, payload: Encoded) -> None:
        size = len(payload)
        if size > self._max_record_bytes:
            check_record_bytes(size, self._max_record_bytes)
        slot = self._fixed_slot
        if slot is None:
            slot = self._select(record)
        self._room -= size + ITEM_BYTES
        self._append((slot, payload))
        if not self._is_armed:
            self._arm()

    def _arm(self) -> None:
        self._is_armed = True
        self._portal.post(self._changed.wake)

    def _hurry(self) -> None:
        if not self._is_hurried:
            self._is_hurried = True
            self._portal.post(self._changed.wake)

    def _wait_room(self, timeout_s: float | None) -> None:
        self._room = self._call(self._make_room, "waiting for room in", timeout_s)

    def _through(self, action: Callable[[], Awaitable[None]], doing: str, timeout_s: float | None) -> None:
        """Does something behind everything that was taken."""
        if self._is_busy or self._failure is not None:
            self._refuse()
        self._is_busy = True
        try:
            self._call(lambda: self._behind(action), doing, timeout_s)
        finally:
            self._is_busy = False

    def _raise_failure(self) -> NoReturn:
        assert self._failure is not None
        self._told.tell(self._failure, unwritten_records=self.unwritten_records, is_finished=self._is_finished)

    # In the TaskManager's thread.

    async def _open(self) -> None:
        self._inner = runtime.RecordWriter(
            self._partition.inner,
            selector=self._chosen,
            format=EncodedFormat(self._format),
            buffer_timeout_s=self._timeout_s,
        )
        self._portal.start_task(self._run)

    async def _run(self) -> None:
        """Writes what is taken, until the thread ends or something fails."""
        try:
            while not self._is_finished:
                await trio.lowlevel.checkpoint()
                while not (self._is_hurried or (self._is_armed and not self._never_lingers)):
                    await self._changed.wait()
                await self._linger()
                self._is_hurried = False
                self._is_armed = self._never_lingers
                await self._write()
                self._progress.wake()
        except trio.Cancelled:
            self._fail(LocalProtocolError(self._name("the TaskManager was closed with an open writer of")))
            raise
        except BaseException as error:  # of a partition that failed, or of a selector: the caller's, not the thread's
            self._fail(error)

    async def _behind(self, action: Callable[[], Awaitable[None]]) -> None:
        self._check_alive()
        work = Work(action, is_awaited=True)
        self._queue.append(work)
        self._is_hurried = True
        self._changed.wake()
        await work.wait()

    async def _end(self, drain: bool) -> None:
        await self._inner.finish(drain=drain)
        self._is_finished = True
        self._failure = LocalProtocolError(self._name("nothing can be written any more to") + ", which is finished")

    async def _linger(self) -> None:
        if self._linger_s and not self._is_hurried:
            with trio.move_on_after(self._linger_s):
                while not self._is_hurried:
                    await self._changed.wait()

    async def _write(self) -> None:
        queue, inner, progress = self._queue, self._inner, self._progress
        emit_nowait = inner.emit_nowait
        while queue:
            item = queue[0]
            if isinstance(item, tuple):
                try:
                    emit_nowait(item)
                except trio.WouldBlock:
                    await inner.emit(item)
                    progress.wake()
            else:
                await item.run()
                progress.wake()
            queue.popleft()

    async def _make_room(self) -> int:
        """Waits until half of what is queued is written, or as much as time allows. Returns the room there is then."""
        queue = self._queue
        self._is_hurried = True
        self._changed.wake()
        enough = len(queue) // 2
        try:
            while len(queue) > enough or self._room_left() <= 0:
                self._check_alive()
                await self._progress.wait()
        except trio.Cancelled:
            if self._room_left() <= 0:
                raise
        self._check_alive()
        return self._room_left()

    def _room_left(self) -> int:
        return ROOM_BYTES - sum(
            len(item[1]) + ITEM_BYTES if isinstance(item, tuple) else item.bytes + ITEM_BYTES for item in self._queue
        )

    def _check_alive(self) -> None:
        if self._failure is not None:
            self._raise_failure()

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        for item in self._queue:
            if isinstance(item, Work):
                item.fail(error)
        self._progress.wake()
