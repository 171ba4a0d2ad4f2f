"""ResultSubpartition: the queue of buffers between a record writer and the reader of one consumer.

Takes: queue elements from the partition's writer. Gives: `Buffer`s with sequence number and backlog to one reader, a
sender or a local channel (it is a `BufferSource`).

Rules:
- Only the last element may be unfinished; priority elements form a prefix in order of arrival.
- One notification when data becomes available; spurious ones are allowed, missing ones are not.
- The backlog counts only available data buffers: without the open last one, unless it was flushed. Events never count.
- After a blocking event nothing is available, and the backlog is 0, until `resume`.
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final, final

from ...base.errors import ErrorCode, LocalProtocolError
from ...base.events import Alignment, DataType
from ..buffer.buffer import Allowance, Buffer, Notify
from ..buffer.elements import BarrierBuffer, EventBuffer, QueueElement, copy_data, count_readable, queued_events
from ..buffer.lent import LentBuffers
from .statistics import SubpartitionStatistics

LOCAL_CREDIT: Final = 16
"""Credit of a local consumer, which needs none, for comparing loads."""

UNBOUNDED_BYTES: Final = 1 << 31
"""Above any segment size: the buffer size while the consumer requests no smaller one."""

_PRIORITY: Final = DataType.PRIORITY_EVENT  # looking up an enum's attribute costs 100 ns
_ANNOUNCEMENT: Final = DataType.ANNOUNCEMENT
_NOTHING: Final = memoryview(b"")
_NO_QUEUE: Final[deque[QueueElement]] = deque(maxlen=0)
"""The queue before the first element: an empty deque takes 760 bytes, more than the rest of an idle channel."""


def _nothing(index: int, checkpoint_id: int, overtaken: bytes) -> None:
    """The default `on_barrier`, of a task without checkpoints."""


class StagedRecords(abc.ABC):
    """Records that their writer has not yet distributed to the last buffers (`staging`)."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = -1
        """Bytes of each record; -1 while staging is inactive."""

    @abc.abstractmethod
    def close(self) -> None:
        """Distributes the records and deactivates staging."""


@final
class ResultSubpartition:
    """The queue of one consumer: the writer adds elements, the reader (`BufferSource`) takes them."""

    __slots__ = (
        "_added",
        "_barrier",
        "_bytes_sent",
        "_credit",
        "_data_buffers",
        "_end_of_data_taken",
        "_events",
        "_flush_requested",
        "_has_left",
        "_is_read",
        "_notify",
        "_on_acknowledged",
        "_on_barrier",
        "_on_consumed",
        "_priority_count",
        "_queue",
        "_returns_empty",
        "_sequence",
        "buffer_size",
        "failure",
        "index",
        "is_blocked",
        "is_discarded",
        "is_dismissed",
        "is_finished",
        "is_in_rounds",
        "staging",
    )

    def __init__(
        self,
        index: int,
        on_consumed: Callable[[int], None],
        on_acknowledged: Callable[[int], None],
        on_barrier: Callable[[int, int, bytes], None] = _nothing,
    ) -> None:
        self.index = index
        self.buffer_size = UNBOUNDED_BYTES
        """Buffer size that its consumer requested; the writer reads it for each new buffer."""
        self.is_blocked = False
        self.is_finished = False
        self.is_discarded = False
        """Whether its queue was dropped."""
        self.is_dismissed = False
        """Whether its consumer has said before the end that it needs no more records."""
        self.staging: StagedRecords | None = None
        """Staged records of the writer that belong into the last buffer; distributed before it is read."""
        self.is_in_rounds = False
        """Whether the writer distributes staged records and flushes in rounds (`flush_rounds`)."""
        self._queue: deque[QueueElement] = _NO_QUEUE
        self._priority_count = 0
        self._data_buffers = 0
        self._events = 0
        self._flush_requested = False
        self._sequence = 0
        self._added = 0
        self._bytes_sent = 0
        self._is_read = False
        self._has_left = False
        self._notify: Notify | None = None
        self.failure: str | None = None
        """Why the producer failed; None without a failure."""
        self._end_of_data_taken = False
        self._returns_empty = False
        self._credit: Allowance | None = None
        self._on_consumed = on_consumed
        self._on_acknowledged = on_acknowledged
        self._on_barrier = on_barrier
        self._barrier: BarrierBuffer | None = None

    # The writer's side.

    def add(self, element: QueueElement, *, is_last: bool = False) -> bool:
        """Appends an element; a priority event follows the other priority events at the front.

        Returns:
            False when the subpartition is finished or released; the element was closed.
        """
        if self.is_finished or self.is_discarded:
            element.close()
            return False
        if self._queue is _NO_QUEUE:
            self._queue = deque()
        self._added += 1
        overtakes = False
        if element.is_data:
            self._queue.append(element)
            self._data_buffers += 1
        elif element.data_type is _PRIORITY or element.data_type is _ANNOUNCEMENT:
            self._queue.insert(self._priority_count, element)
            self._priority_count += 1
            self._events += 1
            overtakes = True  # also flushed data that waits for credit: the reader is notified again
        else:
            self._queue.append(element)
            self._events += 1
        self.is_finished = is_last
        if is_last or (element.is_finished and (overtakes or not self._flush_requested) and not self.is_blocked):
            self._notify_reader()
        return True

    def add_barrier(self, element: BarrierBuffer) -> bool:
        """Appends a barrier; one with priority goes to the front.

        `on_barrier` receives the data that a barrier with priority overtakes, at once. For a barrier with a timeout it
        is called when the barrier is taken (nothing was overtaken) or times out (`time_out_barrier`).

        Returns:
            False when the subpartition is finished or released.
        """
        overtaken = copy_data(self._queue) if element.data_type is _PRIORITY else b""
        if not self.add(element):
            return False
        if element.data_type is _PRIORITY:
            self._on_barrier(self.index, element.barrier.checkpoint_id, overtaken)
        elif element.data_type is DataType.TIMEOUTABLE_ALIGNED_BARRIER:
            self._barrier = element
            if self._is_read and self._credit is None:
                self._announce_barrier(element)
        return True

    def time_out_barrier(self, checkpoint_id: int | None = None) -> None:
        """Makes a barrier with a timeout (of this checkpoint, if given) overtake everything, if it is still queued."""
        element = self._barrier
        if element is None or checkpoint_id not in (None, element.barrier.checkpoint_id):
            return
        self._barrier = None
        overtaken = copy_data(self._queue, until=element)
        barrier = replace(element.aged(), alignment=Alignment.UNALIGNED)
        self._queue.remove(element)
        self._queue.insert(self._priority_count, BarrierBuffer(barrier, _PRIORITY, element.now))
        self._priority_count += 1
        self._on_barrier(self.index, barrier.checkpoint_id, overtaken)
        if not self.is_blocked:
            self._notify_reader()

    def forget_barrier(self, checkpoint_id: int) -> None:
        """Stops reporting what the barrier of an aborted checkpoint overtakes."""
        if self._barrier is not None and self._barrier.barrier.checkpoint_id == checkpoint_id:
            self._barrier = None

    def _announce_barrier(self, element: BarrierBuffer) -> None:
        """Announces a barrier with a timeout to a local consumer, as the wire protocol does for remote ones."""
        self.add(EventBuffer(element.snapshot(), DataType.ANNOUNCEMENT))

    def add_run(self, run: LentBuffers) -> None:
        """Appends finished data buffers, with one notification."""
        if self.is_finished or self.is_discarded:
            run.close()
            return
        if self._queue is _NO_QUEUE:
            self._queue = deque()
        self._queue.append(run)
        self._added += run.buffers
        self._data_buffers += run.buffers
        if not self._flush_requested and not self.is_blocked:
            self._notify_reader()

    def on_buffer_finished(self) -> None:
        """Notifies the reader if finishing the last element made something available."""
        if not self._flush_requested and not self.is_blocked and len(self._queue) == 1:
            self._notify_reader()

    def flush(self, *, is_written: bool = False) -> bool:
        """Makes the bytes of an unfinished last buffer available. Returns whether they were not before.

        Args:
            is_written: whether the writer has written bytes that were not taken.
        """
        if self._flush_requested or not self._queue:
            return False
        alone = len(self._queue) == 1
        new_data = alone and (is_written or self._queue[0].has_data())
        self._flush_requested = new_data or not alone
        if new_data and not self.is_blocked:
            self._notify_reader()
        return self._flush_requested

    @property
    def is_flushed(self) -> bool:
        """Whether the bytes of an unfinished last buffer are available, and those written until the next poll."""
        return self._flush_requested

    def fail(self, cause: str) -> None:
        """Drops the queue after the producer failed; the reader receives the cause."""
        if self.failure is None:
            self.failure = cause
        self.discard()

    def discard(self) -> None:
        """Drops the queue; its reader gets nothing more. Idempotent."""
        if self.is_discarded:
            return
        self.is_discarded = True
        queue, self._queue = self._queue, _NO_QUEUE
        self._data_buffers = self._events = self._priority_count = 0
        self._flush_requested = False
        self._barrier = None
        for element in queue:
            element.close()
        self._notify_reader()  # the reader then finds it released

    # The reader's side.

    def create_view(self, notify: Notify) -> ResultSubpartition:
        """Returns itself for its only reader: pipelined data is consumed once.

        Args:
            notify: called when data becomes available (at once, if there is some).

        Raises:
            LocalProtocolError: it has a reader already, or is released.
        """
        if self._is_read:
            raise LocalProtocolError(f"subpartition {self.index} is consumed already; pipelined data is read once")
        if self.is_discarded:
            raise LocalProtocolError(f"subpartition {self.index} is released")
        self._is_read = True
        self._notify = notify
        if self.is_available(has_credit=True):
            notify()
        return self

    def poll(self, most: int = 1, room_bytes: int = 0) -> Buffer | None:
        """Takes the next buffer, or buffers (`BufferSource`)."""
        if self.is_blocked:
            return None
        staging = self.staging
        if staging is not None and staging.size >= 0 and not self.is_in_rounds:
            staging.close()
        queue = self._queue
        buffer: Buffer | None = None
        while queue:
            head = queue[0]
            waiting = len(queue)
            if isinstance(head, LentBuffers):
                part = head.take(most, room_bytes)
                self._data_buffers -= part.buffers
                if not head.buffers:
                    queue.popleft()
                    waiting -= 1
                    if not waiting:
                        self._flush_requested = False
                buffer, is_finished = part, True
                break
            is_finished = head.is_finished
            buffer = head.build()
            if waiting == 1:
                self._flush_requested = False
            if is_finished:
                queue.popleft()
                waiting -= 1
                if head.is_data:
                    head.close()
                    self._data_buffers -= 1
                    if buffer is None and self._returns_empty:
                        buffer = Buffer(_NOTHING, 0, DataType.DATA, None)
                else:
                    self._events -= 1
                    if head.data_type is _PRIORITY or head.data_type is _ANNOUNCEMENT:
                        self._priority_count -= 1
                    elif head is self._barrier:
                        self._barrier = None
                        self._on_barrier(self.index, head.barrier.checkpoint_id, b"")
            elif waiting > 1:
                raise LocalProtocolError(f"subpartition {self.index}: an unfinished buffer is not the last one")
            elif buffer is None:
                return None
            if buffer is not None:
                break
        else:
            self._flush_requested = False
            return None
        assert buffer is not None
        buffer.sequence = self._sequence
        self._sequence += buffer.buffers
        self._bytes_sent += buffer.length
        if not head.is_data and buffer.data_type is DataType.END_OF_DATA:
            self._end_of_data_taken = True
        if not head.is_data and buffer.data_type.blocks_upstream:
            self.is_blocked = True
        elif is_finished and waiting and (waiting > 1 or self._flush_requested or queue[0].is_finished):
            buffer.more_available = True
            buffer.next_is_event = not queue[0].is_data
            # As `backlog_buffers`, for a queue that is neither blocked nor empty.
            promised = self._data_buffers
            if not self._flush_requested and not queue[-1].is_finished and promised:
                promised -= 1
            buffer.backlog = promised
        return buffer

    def take_empty(self) -> Buffer | None:
        """Takes an empty data buffer with the next sequence number; None where data may not follow now."""
        if self.is_blocked or self.is_finished or self.is_discarded or self._end_of_data_taken:
            return None
        buffer = Buffer(_NOTHING, 0, DataType.DATA, None)
        buffer.sequence = self._sequence
        self._sequence += 1
        return buffer

    def is_available(self, *, has_credit: bool) -> bool:
        """Whether `poll` would return a buffer; without credit only events count."""
        if self.is_blocked or not self._queue:
            return False
        if not has_credit:
            return not self._queue[0].is_data
        return self._flush_requested or len(self._queue) > 1 or self._queue[0].is_finished

    def backlog_buffers(self) -> int:
        """Data buffers that may be announced to the consumer."""
        if self.is_blocked or not self._queue:
            return 0
        if self._flush_requested or not self.has_open_buffer:
            return self._data_buffers
        return max(self._data_buffers - 1, 0)

    def queued_buffers(self) -> int:
        """Number of buffers and events in the queue."""
        return self._data_buffers + self._events

    def queued_events(self) -> list[tuple[bytes, int]]:
        """The events that its reader has not taken, each with the bytes of data in front of it; O(queue)."""
        return queued_events(self._queue) if self._queue else []

    @property
    def sent_buffers(self) -> int:
        """Number of buffers and events that its reader took."""
        return self._sequence

    def readable(self) -> tuple[int, int]:
        """The number of buffers and events that could be taken now, and their bytes; O(queue)."""
        if self.staging is not None:
            self.staging.close()
        return (0, 0) if self.is_blocked else count_readable(self._queue, flushed=self._flush_requested)

    def load_buffers(self) -> int:
        """Load of its consumer: queued buffers minus credit; less is better."""
        credit = self._credit
        return self.queued_buffers() - (LOCAL_CREDIT if credit is None else credit.available)

    @property
    def has_priority(self) -> bool:
        """Whether the next element is a priority event."""
        return self._priority_count > 0

    def set_buffer_size(self, size_bytes: int) -> None:
        """Sets the size that the consumer requests for new buffers."""
        self.buffer_size = size_bytes

    def attach_credit(self, credit: Allowance) -> None:
        """Attaches the credit of its consumer, when a connection begins to send this subpartition."""
        self._credit = credit
        self._returns_empty = credit.is_on_demand

    @property
    def failure_code(self) -> ErrorCode:
        """The only code of a failure here."""
        return ErrorCode.PRODUCER_FAILED

    @property
    def is_released(self) -> bool:
        """Whether its reader has left, or its queue was dropped."""
        return self._has_left or self.is_discarded

    @property
    def has_open_buffer(self) -> bool:
        """Whether the last element is unfinished."""
        return bool(self._queue) and not self._queue[-1].is_finished

    def resume(self) -> None:
        """Continues after a blocking event. Raises LocalProtocolError if it is not blocked."""
        if not self.is_blocked:
            raise LocalProtocolError(f"subpartition {self.index} is not blocked; resume follows a blocking event, once")
        self.is_blocked = False
        if self.is_available(has_credit=True):
            self._notify_reader()

    def release(self) -> None:
        """Ends reading. Idempotent.

        The queue stays: without a consumer, the producer blocks, or its writer fails
        (`ResultPartition.check_consumers`), instead of losing data silently.
        """
        if self._has_left:
            return
        self._has_left = True
        self._notify = None
        self._credit = None
        self._on_consumed(self.index)

    def acknowledge_end_of_data(self) -> None:
        """Records that the consumer has processed every record, or before EndOfData was taken: that it needs no more.

        A consumer that leaves without either is lost (`ResultPartition.check_processed`).
        """
        if self._end_of_data_taken:
            self._on_acknowledged(self.index)
        else:
            self.is_dismissed = True

    def statistics(self) -> SubpartitionStatistics:
        """A snapshot; O(queue)."""
        if self.staging is not None:
            self.staging.close()
        return SubpartitionStatistics(
            queued_buffers=self.queued_buffers(),
            queued_bytes=sum(element.unread_bytes for element in self._queue),
            backlog_buffers=self.backlog_buffers(),
            buffers_added=self._added,
            buffers_sent=self._sequence,
            bytes_sent=self._bytes_sent,
            is_blocked=self.is_blocked,
            is_finished=self.is_finished,
            is_consumed=self._has_left,
            credit=None if self._credit is None else self._credit.available,
        )

    def _notify_reader(self) -> None:
        if self._notify is not None:
            self._notify()
