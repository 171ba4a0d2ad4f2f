"""StoredView: the read end of some subpartitions of a kept partition, for one channel (a `BufferSource`).

Takes: steps, each one subpartition of one region: buffers in memory, or pages on disk. Gives: `Buffer`s with sequence
numbers and backlog, packaged for the channel's connection.

Rules:
- Buffers in memory are taken when they are polled, and not held before. If their region was written and dropped
  meanwhile, the view continues in the file, behind the buffers that it has returned.
- A view requests a block if its pages fill less than half a block, and either it has none or its consumer has credit.
- The end events are not in the files: each view creates its own when the partition is sealed and read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, final

from ...base.errors import ErrorCode, LocalProtocolError, NetstackError, PartitionDamaged, RemoteProtocolError
from ...base.events import DataType, EndOfData, EndOfPartition, encode_event
from ..buffer.buffer import Allowance, Buffer, BufferOwner, Notify, PartOwner
from ..buffer.stored import Packaging, StoredBuffer, decompress
from .index import Extent, merge
from .pages import Page
from .reading import Block
from .stored_regions import StoredRegions

MAX_PARTS: Final = 64
"""Pages in one frame, which share a buffer of the consumer: few pages shrink to less than a sixty-fourth."""

MOST_TURNS: Final = 1024
"""A turn takes 100 us and more; a consumer in a thread of its own may need many to wake up."""

MAX_BACKLOG: Final = 1024
"""A larger backlog is not announced; no gate reserves more buffers."""

_DATA: Final = DataType.DATA
_STORED: Final = DataType.STORED_DATA


@final
class StoredView:
    """The read end of some subpartitions of a kept partition."""

    def __init__(
        self,
        store: StoredRegions,
        first: int,
        count: int,
        notify: Notify,
        packaging: Packaging,
        on_released: Callable[[StoredView], None],
        *,
        is_live: bool,
    ) -> None:
        """Use `PartitionStore.create_view`. A live view reads regions as they are cut; others wait for `start`."""
        self.first = first
        self.count = count
        self.files = store.files
        self._store = store
        self._on_released = on_released
        self._notify: Notify | None = notify
        self._packaging = packaging
        self._is_live = is_live
        self._steps: deque[tuple[int, int]] = deque()
        self._next_region = store.first_region
        self._taken_items = 0
        """Number of buffers taken of the present step, while it is in memory."""
        self._taken_bytes = self._taken_events = 0
        self._extents: deque[Extent] = deque()
        self._pages_left = 0  # number of pages in the extents
        self._skip_bytes = self._skip_events = 0  # to skip at the start of the files' next pages
        self._ready: deque[tuple[Page, Block]] = deque()
        self._ready_bytes = 0
        self._is_reading = False
        self._touched_at = 0  # the turn in which pages came, or the consumer took one
        self._turns = 1  # how many turns a local consumer has to take a page
        self._is_loaded = is_live
        self._ends_left = 2
        self._sequence = 0
        self._credit: Allowance | None = None
        self._error: NetstackError | None = None
        self._released = False

    def start(self, extents: Sequence[Extent]) -> None:
        """Sets the extents to read."""
        self._is_loaded = True
        self._extents.extend(extents)
        self._pages_left = sum(extent.pages for extent in extents)
        if self._pages_left:
            self._ask()
        else:
            self._notify_reader()

    def fail(self, error: NetstackError) -> None:
        """Fails the view: it cannot be read."""
        if self._error is None and not self._released:
            self._error = error
            self._drop_ready()
            self._notify_reader()

    def on_change(self) -> None:
        """Notifies the reader of new buffers, the end, or the release of the partition."""
        if self._notify is not None and (self.is_released or self.is_available(has_credit=True)):
            self._notify()

    @property
    def place(self) -> tuple[int, int, int] | None:
        """Where its next read begins (`PageReader`)."""
        if self._released or self._error is not None or not self._extents:
            return None
        extent = self._extents[0]
        return self._store.number, extent.file, extent.offset

    @property
    def is_starved(self) -> bool:
        """Whether it has no pages left (`PageReader`)."""
        return not self._ready

    def next_extents(self, block_bytes: int) -> Sequence[Extent]:
        """The extents of its next read (`PageReader`)."""
        self._is_reading = True
        self._store.retain_files()
        wanted: list[Extent] = []
        for extent in self._extents:
            wanted.append(extent)
            block_bytes -= extent.length
            if block_bytes <= 0:
                break
        return wanted

    def on_block(self, block: Block, pages: list[Page], left: list[Extent]) -> None:
        """Takes the pages of a read (`PageReader`)."""
        self._is_reading = False
        self._store.release_files()
        if self._released or self._error is not None:
            return
        extents = self._extents
        read = sum(extent.pages for extent in left) + len(pages)
        while read > 0:  # as many extents as were requested
            read -= extents.popleft().pages
        extents.extendleft(reversed(left))
        for page in pages:
            self._pages_left -= 1
            if page.data_type is not _DATA:
                if self._skip_events:
                    self._skip_events -= 1
                    continue
            elif self._skip_bytes:
                if page.length <= self._skip_bytes:
                    self._skip_bytes -= page.length
                    continue
                try:
                    page = _rest_of(page, self._skip_bytes, self._store.page_bytes)
                except RemoteProtocolError as error:
                    self.fail(PartitionDamaged(f"{self.files.data_path(0)}: {error.text}"))
                    return
                self._skip_bytes = 0
            block.use()
            self._ready.append((page, block))
            self._ready_bytes += len(page.memory)
        self._touched_at = self._store.reads.turn
        self._ask()
        self._notify_reader()

    def on_read_failed(self, error: NetstackError) -> None:
        """Fails the view (`PageReader`)."""
        self._is_reading = False
        self._store.release_files()
        self.fail(error)

    def give_up(self, turn: int) -> bool | None:
        """Drops its pages if its consumer takes none (`PageReader`).

        A local consumer gets twice as many turns for the next ones: it may be slow, or wake up late.
        """
        if not self._ready or (self._credit is not None and self._credit.available > 0):
            return False
        if any(page.offset < 0 for page, _ in self._ready):  # a partial page cannot be read again
            return False
        if self._credit is None:
            if turn - self._touched_at <= self._turns:
                return None
            self._turns = min(2 * self._turns, MOST_TURNS)
        again = [Extent(page.file, page.offset, page.stored_bytes, 1) for page, _ in self._ready]
        self._pages_left += len(again)
        self._extents.extendleft(reversed(list(merge(again))))
        self._drop_ready()
        return True

    def poll(self, most: int = 1, room_bytes: int = 0) -> Buffer | None:
        """Takes the next buffer (`BufferSource`)."""
        if self._error is not None or self._released or self._store.is_released:
            return None
        if self._ready:
            buffer = self._from_files()
        else:
            in_memory = self._from_memory()
            if in_memory is None:
                if self._extents or not self._at_end():
                    self._ask()
                    return None
                in_memory = self._end()
            buffer = in_memory
        parts = len(buffer.parts) if isinstance(buffer, StoredBuffer) else 1
        buffer.sequence = self._sequence
        self._sequence += parts
        self._ask()
        if self._ready and self._credit is not None and self._credit.available <= 1:  # the sender spends it next
            self._store.reads.look_soon()
        following = self._following()
        if following is not None:
            buffer.more_available = True
            buffer.next_is_event = following is not _DATA
        buffer.backlog = self.backlog_buffers()
        return buffer

    def is_available(self, *, has_credit: bool) -> bool:
        """Whether `poll` would return a buffer; without credit only events count."""
        if self._error is not None or self._released or self._store.is_released:
            return False
        following = self._following()
        if following is None and has_credit:
            self._ask()
        return following is not None and (has_credit or following is not _DATA)

    def backlog_buffers(self) -> int:
        """Data buffers that may be announced, including those on disk."""
        waiting = len(self._ready) + self._pages_left
        if not waiting and self._is_live:
            waiting = self._store.count_in_memory(self.region, self.first, self.count) - self._taken_items
        return min(waiting, MAX_BACKLOG)

    def queued_buffers(self) -> int:
        """Number of pages read and not taken, for metrics."""
        return len(self._ready)

    def readable(self) -> tuple[int, int]:
        """Number of pages read and not taken, and their bytes."""
        return len(self._ready), self._ready_bytes

    @property
    def has_priority(self) -> bool:
        """False: kept partitions have no priority events."""
        return False

    def take_empty(self) -> Buffer | None:
        """Returns None: a kept partition ends, and then its consumer leaves."""
        return None

    def attach_credit(self, credit: Allowance) -> None:
        """Attaches the credit of its consumer (`BufferSource`)."""
        self._credit = credit

    def set_buffer_size(self, size_bytes: int) -> None:
        """Does nothing: the buffers are already written."""

    def resume(self) -> None:
        """Raises LocalProtocolError: kept partitions have no blocking events."""
        raise LocalProtocolError(f"subpartition {self.first} is not blocked; resume follows a blocking event, once")

    def time_out_barrier(self) -> None:
        """Does nothing: kept partitions have no barriers."""

    def acknowledge_end_of_data(self) -> None:
        """Does nothing: the producer does not wait for it."""

    def release(self) -> None:
        """Ends reading. Idempotent."""
        if not self._released:
            self._released = True
            self._notify = None
            self._drop_ready()
            self._on_released(self)

    @property
    def failure(self) -> str | None:
        """Why it cannot be read, or why the producer failed; None without a failure."""
        return str(self._error) if self._error is not None else self._store.failure

    @property
    def failure_code(self) -> ErrorCode:
        """The error code of `failure`."""
        return ErrorCode.PRODUCER_FAILED if self._error is None else ErrorCode.PARTITION_DAMAGED

    @property
    def is_released(self) -> bool:
        """Whether it or its partition is released, or it failed."""
        return self._released or self._error is not None or self._store.is_released

    def _from_files(self) -> Buffer:
        ready = self._ready
        page, block = ready.popleft()
        self._ready_bytes -= len(page.memory)
        self._touched_at = self._store.reads.turn
        if page.data_type is not _DATA:
            return self._event(page.data_type, page.memory, block)
        if self._packaging is Packaging.PLAIN:
            if not page.original_bytes:
                return Buffer(page.memory, len(page.memory), _DATA, block)
            try:
                data = decompress(page.memory, self._store.page_bytes, is_checked=True)
            finally:
                block.drop()
            return Buffer(memoryview(data), len(data), _DATA, None)
        if self._packaging is Packaging.COMPRESSED and not page.original_bytes:
            return Buffer(page.memory, len(page.memory), _DATA, block)
        parts = [page.memory]
        size = len(page.memory)
        is_compressed = bool(page.original_bytes)
        while is_compressed and ready and len(parts) < MAX_PARTS and self._is_glued:
            page, other = ready[0]
            size += len(page.memory)
            if other is not block or not page.original_bytes or size > self._store.page_bytes:
                break
            ready.popleft()
            self._ready_bytes -= len(page.memory)
            other.drop()  # all parts together have one reference
            parts.append(page.memory)
        return self._stored(tuple(parts), _STORED, block, is_compressed=is_compressed)

    @property
    def _is_glued(self) -> bool:
        return self._packaging is not Packaging.GLUED or not self.files.own_files

    def _stored(
        self, parts: tuple[memoryview, ...], data_type: DataType, owner: BufferOwner | None, *, is_compressed: bool
    ) -> StoredBuffer:
        return StoredBuffer(
            parts,
            data_type,
            owner,
            is_compressed=is_compressed,
            is_glued=not self.files.own_files,
            is_range=self.count > 1,
        )

    def _event(self, data_type: DataType, memory: memoryview, block: Block | None) -> Buffer:
        if self._packaging is Packaging.GLUED:
            return self._stored((memory,), data_type, block, is_compressed=False)
        return Buffer(memory, len(memory), data_type, block)

    def _from_memory(self) -> Buffer | None:
        """Takes the next buffer of the present step, if it is in memory."""
        whole = self._peek()
        if whole is None:
            return None
        self._taken_items += 1
        buffer: Buffer
        if whole.data_type is not _DATA:
            self._taken_events += 1
            buffer = self._event(whole.data_type, whole.contiguous(), None)
        else:
            self._taken_bytes += whole.length
            owner = PartOwner(whole.retain())
            if self._packaging is Packaging.GLUED:
                buffer = self._stored((whole.contiguous(),), _STORED, owner, is_compressed=False)
            else:
                buffer = Buffer(whole.memory, whole.length, _DATA, owner, whole.segment)
                buffer.pieces = whole.pieces
        if self._store.drop_taken(*self._steps[0], self._taken_items):
            self._taken_items = self._taken_bytes = self._taken_events = 0
        return buffer

    def _peek(self) -> Buffer | None:
        """The next buffer in memory. Moves to the next step after the last buffer, or to the files if necessary."""
        if not self._is_live:
            return None
        store = self._store
        while not self._extents and not self._is_reading:
            if not self._steps and not self._find_steps():
                return None
            region, subpartition = self._steps[0]
            items = store.items(region, subpartition)
            if items is None:  # written, and no longer in memory
                self._go_to_files()
                continue
            if self._taken_items < len(items):
                return items[self._taken_items]
            if not store.is_cut(region):
                return None
            self._steps.popleft()
            self._taken_items = self._taken_bytes = self._taken_events = 0
        return None

    def _find_steps(self) -> bool:
        """Adds the steps of the next group of regions, in reading order. Returns whether there is one."""
        group = self._store.next_group(self._next_region, alone=self.count == 1)
        if not group:
            return False
        self._next_region = group[-1] + 1
        for subpartition in range(self.first, self.first + self.count):
            self._steps.extend((region, subpartition) for region in group)
        return True

    def _go_to_files(self) -> None:
        """Adds the extents of this step and of the next ones that are also on disk."""
        store = self._store
        self._skip_bytes, self._skip_events = self._taken_bytes, self._taken_events
        self._taken_items = self._taken_bytes = self._taken_events = 0
        extents: list[Extent] = []
        while (self._steps or self._find_steps()) and store.items(*self._steps[0]) is None:
            extent = store.index.extent(*self._steps.popleft())
            if extent is not None:
                extents.append(extent)
        self._extents.extend(merge(extents))
        self._pages_left += sum(extent.pages for extent in extents)
        self._ask()

    @property
    def region(self) -> int:
        """The region of the present step."""
        return self._steps[0][0] if self._steps else self._next_region

    def _following(self) -> DataType | None:
        """The data type of the next buffer; None if none is available."""
        if self._ready:
            return self._ready[0][0].data_type
        if self._extents or self._is_reading:
            return None
        whole = self._peek()
        if whole is not None:
            return whole.data_type
        if self._extents or not self._at_end():
            return None
        return DataType.END_OF_DATA if self._ends_left == 2 else DataType.END_OF_PARTITION

    def _at_end(self) -> bool:
        if not self._ends_left or not self._is_loaded or self._is_reading or not self._store.is_sealed:
            return False
        return not self._is_live or (not self._steps and self._next_region >= self._store.regions)

    def _end(self) -> Buffer:
        event = EndOfData(self._store.drain) if self._ends_left == 2 else EndOfPartition()
        data_type = DataType.END_OF_DATA if self._ends_left == 2 else DataType.END_OF_PARTITION
        self._ends_left -= 1
        memory = memoryview(encode_event(event))
        if self._packaging is Packaging.GLUED:
            return self._stored((memory,) * self.count, data_type, None, is_compressed=False)
        return Buffer(memory, len(memory), data_type, None)

    def _ask(self) -> None:
        if self._is_reading or not self._extents or self._released or self._error is not None:
            return
        if not self._ready or (
            (self._credit is None or self._credit.available > 0)
            and self._ready_bytes < self._store.reads.block_bytes // 2
        ):
            self._store.reads.want(self)

    def _drop_ready(self) -> None:
        ready, self._ready = self._ready, deque()
        self._ready_bytes = 0
        for _, block in ready:
            block.drop()

    def _notify_reader(self) -> None:
        if self._notify is not None:
            self._notify()


def _rest_of(page: Page, skip_bytes: int, max_bytes: int) -> Page:
    """A page without the first bytes of its records, which were returned before."""
    memory = memoryview(decompress(page.memory, max_bytes)) if page.original_bytes else page.memory
    return Page(_DATA, memory[skip_bytes:], 0, page.file, -1)
