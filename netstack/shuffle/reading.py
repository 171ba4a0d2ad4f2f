"""Whose turn it is to be read from disk: readers in the order of the files, blocks of memory within a bound.

Takes: readers that want more, a `Disk` to run reads on. Gives: blocks filled with pages, to the readers.

Rules:
- One pass after the other goes through the files from low offsets to high ones (elevator), so that many readers make
  one sequential reader. Readers that have nothing to hand out go before those that read ahead.
- Memory is a number of blocks; a block is free again when everything read into it was recycled. When all are taken and
  a reader has nothing, one whose consumer takes nothing gives up what it has read ahead, and reads it again later.
- At most `PARALLEL_READS` jobs are under way, each of a few blocks: the disk works while the last pages are sent.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar, final

import numpy as np

from ..buffer.buffer import Buffer
from ..errors import LocalProtocolError, NetstackError
from .files import PartitionFiles
from .index import Extent
from .pages import PAGE_BYTES, Page

BLOCK_BYTES: Final = 1 << 20
"""A thread's hop costs 100 us and more, reading and checking a MiB 350."""

BLOCKS_AT_LEAST: Final = 32
"""With less memory blocks are smaller, so that as many readers are served; they keep `SMALL_BLOCK_BYTES`."""

SMALL_BLOCK_BYTES: Final = 256 * 1024
"""The size of one read of a connection."""

PARALLEL_READS: Final = 2
BLOCKS_A_JOB: Final = 8

_T = TypeVar("_T")


class Disk(Protocol):
    """Runs what touches files in a thread; the runtime's `DiskDriver`, or a test's."""

    def submit(self, work: Callable[[], _T], done: Callable[[_T | None, NetstackError | None], None]) -> None:
        """Runs `work` elsewhere, in parallel with others; then `done` here, with its result or its error."""


@final
class Block:
    """Memory that pages were read into (a `BufferOwner`); free again when nobody refers to it."""

    __slots__ = ("_scheduler", "_users", "memory")

    def __init__(self, memory: memoryview, scheduler: ReadScheduler) -> None:
        self.memory = memory
        self._scheduler = scheduler
        self._users = 0

    def use(self, count: int = 1) -> None:
        """So many more refer to it."""
        self._users += count

    def drop(self, count: int = 1) -> None:
        """So many fewer; the last one gives it back."""
        self._users -= count
        if self._users == 0:
            self._scheduler.give_back(self)
        elif self._users < 0:
            raise LocalProtocolError("a block of pages was given back twice")

    def reclaim(self, buffer: Buffer) -> None:
        """A buffer over it was recycled (`BufferOwner`)."""
        self.drop()


class PageReader(Protocol):
    """Who reads: a view."""

    files: PartitionFiles

    @property
    def place(self) -> tuple[int, int, int] | None:
        """(partition, file, offset) of what it wants to read next; None if it has left meanwhile."""

    @property
    def is_starved(self) -> bool:
        """Whether it has nothing to hand out."""

    def next_extents(self, block_bytes: int) -> Sequence[Extent]:
        """What it wants to read next, in order, as much as a block takes."""

    def on_block(self, block: Block, pages: list[Page], left: list[Extent]) -> None:
        """Pages came; the caller's reference to the block is the reader's."""

    def on_read_failed(self, error: NetstackError) -> None:
        """The files cannot be read."""

    def give_up(self) -> bool:
        """Gives up what it has read ahead, if its consumer takes none of it. Returns whether that was anything."""


@final
class ReadScheduler:
    """Of one TaskManager: all readers of all partitions."""

    def __init__(self, disk: Disk, *, memory_bytes: int, page_bytes: int) -> None:
        """Args: where reads run; memory for blocks; the largest body of a page: one network buffer."""
        self._disk = disk
        self._page_bytes = page_bytes
        share = max(SMALL_BLOCK_BYTES, min(BLOCK_BYTES, memory_bytes // BLOCKS_AT_LEAST))
        self._block_bytes = max(share, 2 * (page_bytes + PAGE_BYTES))
        self._unmade = max(2, memory_bytes // self._block_bytes)
        self._free: list[Block] = []
        self._blocks = 0
        self._waiting: dict[PageReader, None] = {}
        self._holding: dict[PageReader, None] = {}  # those with blocks, in the order in which they got them
        self._jobs = 0
        self._position = (0, 0, 0)
        self._pumping = False
        self.reads = 0
        """Blocks read so far."""
        self.bytes_read = 0

    @property
    def memory_bytes(self) -> int:
        """Taken for blocks so far; it is used again and again."""
        return self._blocks * self._block_bytes

    @property
    def block_bytes(self) -> int:
        """Of each block."""
        return self._block_bytes

    def want(self, reader: PageReader) -> None:
        """A reader wants to read on; it is served once."""
        self._waiting[reader] = None
        self._pump()

    def forget(self, reader: PageReader) -> None:
        """A reader has left; what is being read for it comes all the same."""
        self._waiting.pop(reader, None)
        self._holding.pop(reader, None)

    def give_back(self, block: Block) -> None:
        """A block is free."""
        self._free.append(block)
        if self._waiting:
            self._pump()

    def _pump(self) -> None:
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._waiting and self._jobs < PARALLEL_READS:
                job = self._next_job()
                if not job:
                    return
                self._start(job)
        finally:
            self._pumping = False

    def _next_job(self) -> list[tuple[PageReader, Block, Sequence[Extent]]]:
        """The readers whose turn it is, each with a block, in the order of the files."""
        starved: list[tuple[tuple[int, int, int], PageReader]] = []
        ahead: list[tuple[tuple[int, int, int], PageReader]] = []
        for reader in list(self._waiting):
            place = reader.place
            if place is None:
                del self._waiting[reader]
            else:
                (starved if reader.is_starved else ahead).append((place, reader))
        turn = starved or ahead
        turn.sort(key=_place)
        start = bisect.bisect_left(turn, self._position, key=_place)
        job: list[tuple[PageReader, Block, Sequence[Extent]]] = []
        for place, reader in turn[start:] + turn[:start]:
            block = self._take(is_urgent=bool(starved))
            if block is None:
                break
            del self._waiting[reader]
            self._holding.pop(reader, None)
            self._holding[reader] = None
            job.append((reader, block, reader.next_extents(self._block_bytes)))
            self._position = place
            if len(job) == BLOCKS_A_JOB:
                break
        return job

    def _take(self, *, is_urgent: bool) -> Block | None:
        if not self._free and self._unmade:
            self._unmade -= 1
            self._blocks += 1
            return Block(np.empty(self._block_bytes, dtype=np.uint8).data, self)
        if not self._free and is_urgent:
            for holder in list(self._holding):
                if holder.give_up() and self._free:
                    break
        return self._free.pop() if self._free else None

    def _start(self, job: list[tuple[PageReader, Block, Sequence[Extent]]]) -> None:
        self._jobs += 1
        page_bytes = self._page_bytes

        def work() -> list[tuple[list[Page], list[Extent]] | NetstackError]:
            results: list[tuple[list[Page], list[Extent]] | NetstackError] = []
            for reader, block, extents in job:
                try:
                    results.append(reader.files.read_block(block.memory, extents, page_bytes))
                except NetstackError as error:
                    results.append(error)
            return results

        def done(
            results: list[tuple[list[Page], list[Extent]] | NetstackError] | None, error: NetstackError | None
        ) -> None:
            self._jobs -= 1
            for index, (reader, block, _) in enumerate(job):
                result = error if results is None else results[index]
                block.use()
                if isinstance(result, tuple):
                    self.reads += 1
                    self.bytes_read += sum(len(page.memory) for page in result[0])
                    reader.on_block(block, *result)
                else:
                    assert result is not None
                    reader.on_read_failed(result)
                block.drop()
            self._pump()

        self._disk.submit(work, done)


def _place(entry: tuple[tuple[int, int, int], PageReader]) -> tuple[int, int, int]:
    return entry[0]
