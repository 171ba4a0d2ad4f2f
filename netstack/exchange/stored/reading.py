"""ReadScheduler: reads from disk in the order of the files, into a limited number of blocks of memory.

Takes: readers that need more pages, a `Disk` that runs reads. Gives: blocks filled with pages, to the readers.

Rules:
- Passes go through the files from low offsets to high ones (elevator), so that many readers together read sequentially.
  Who comes during a pass waits for the next one, so nobody waits for more than one read of each other reader. Readers
  without pages go before those that read ahead.
- Memory is a fixed number of blocks; a block is free again when all of its pages were recycled. When no block is free
  and a reader has no pages, a reader whose consumer takes none drops its pages, and reads them again when its consumer
  comes for them. A remote consumer takes none once its credit is used up. A local one has no credit: its pages are its
  own until it has had its turn (`StoredView.give_up`), and while it takes some.
- At most `PARALLEL_READS` jobs of a few blocks run, so the disk works while the previous pages are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar, final

import numpy as np

from ...base.errors import LocalProtocolError, NetstackError
from ..buffer.buffer import Buffer
from .files import PartitionFiles
from .index import Extent
from .pages import PAGE_BYTES, Page

BLOCK_BYTES: Final = 1 << 20
"""Passing a job to a thread costs 100 us and more, reading and checking 1 MiB 350 us."""

BLOCKS_AT_LEAST: Final = 32
"""With less memory, blocks are smaller, down to `SMALL_BLOCK_BYTES`, to serve as many readers."""

SMALL_BLOCK_BYTES: Final = 256 * 1024
"""The size of one read of a connection."""

LEAST_BLOCKS: Final = 2
"""One is read while the pages of the other are sent."""

PARALLEL_READS: Final = 2
BLOCKS_A_JOB: Final = 8

_T = TypeVar("_T")


class Disk(Protocol):
    """Runs file operations in a thread; the runtime's `DiskDriver`, or a test's."""

    def submit(self, work: Callable[[], _T], done: Callable[[_T | None, NetstackError | None], None]) -> None:
        """Runs `work` in a thread, in parallel with others; then `done` here, with its result or its error."""


@final
class Block:
    """Memory with the pages of one read (a `BufferOwner`); free again when it is no longer referenced."""

    __slots__ = ("_scheduler", "_users", "memory")

    def __init__(self, memory: memoryview, scheduler: ReadScheduler) -> None:
        self.memory = memory
        self._scheduler = scheduler
        self._users = 0

    def use(self) -> None:
        """Adds a reference."""
        self._users += 1

    def drop(self, count: int = 1) -> None:
        """Drops references; the last one returns the block."""
        self._users -= count
        if self._users == 0:
            self._scheduler.give_back(self)
        elif self._users < 0:
            raise LocalProtocolError("a block of pages was returned twice")

    def reclaim(self, buffer: Buffer) -> None:
        """Drops the reference of a recycled buffer (`BufferOwner`)."""
        self.drop()


class PageReader(Protocol):
    """A reader of pages: a view."""

    files: PartitionFiles

    @property
    def place(self) -> tuple[int, int, int] | None:
        """(partition, file, offset) of its next read; None if it was released."""

    @property
    def is_starved(self) -> bool:
        """Whether it has no pages left."""

    def next_extents(self, block_bytes: int) -> Sequence[Extent]:
        """The extents of its next read, in order, up to the size of a block."""

    def on_block(self, block: Block, pages: list[Page], left: list[Extent]) -> None:
        """Takes pages, and the caller's reference to the block."""

    def on_read_failed(self, error: NetstackError) -> None:
        """The files cannot be read."""

    def give_up(self, turn: int) -> bool | None:
        """Drops its pages if its consumer takes none. Returns whether it had any; None: not now, but in a later turn.

        Args:
            turn: number of turns so far, in each of which every waiting consumer runs.
        """


@final
class ReadScheduler:
    """Reads for all views of all kept partitions of one TaskManager."""

    def __init__(self, disk: Disk, *, memory_bytes: int, page_bytes: int) -> None:
        """Takes the disk; the memory for blocks; and the largest body of a page, one network buffer."""
        self._disk = disk
        self._page_bytes = page_bytes
        share = max(SMALL_BLOCK_BYTES, min(BLOCK_BYTES, memory_bytes // BLOCKS_AT_LEAST))
        self.block_bytes = max(share, 2 * (page_bytes + PAGE_BYTES))
        """Size of each block."""
        self._unmade = max(LEAST_BLOCKS, memory_bytes // self.block_bytes)  # fewer are refused with a partition
        self._free: list[Block] = []
        self._blocks = 0
        self._waiting: dict[PageReader, None] = {}
        self._pass: list[tuple[tuple[int, int, int], PageReader]] = []  # the rest of the present pass, backwards
        self._is_pass_urgent = False
        self._holding: dict[PageReader, None] = {}  # readers with blocks, the oldest first
        self._jobs = 0
        self._pumping = False
        self._is_short = False  # a reader without pages was refused a block
        self._is_looking = False
        self.turn = 0
        """Number of turns: in each, every consumer that has been notified before runs."""
        self.reads = 0
        """Number of blocks read."""

    @property
    def memory_bytes(self) -> int:
        """Memory of all blocks so far; it is reused."""
        return self._blocks * self.block_bytes

    def want(self, reader: PageReader) -> None:
        """Queues a reader for one block."""
        self._waiting[reader] = None
        self._pump()

    def forget(self, reader: PageReader) -> None:
        """Removes a released reader; a running read for it still completes."""
        self._waiting.pop(reader, None)
        self._holding.pop(reader, None)

    def give_back(self, block: Block) -> None:
        """Takes a free block back."""
        self._free.append(block)
        if self._waiting:
            self._pump()

    def look_soon(self) -> None:
        """Looks for a block again, but not now: a reader with pages is about to use up its credit."""
        if self._is_short:
            self._look_later()

    def _look_later(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._disk.submit(_nothing, self._look)

    def _look(self, result: object, error: NetstackError | None) -> None:
        self._is_looking = False
        self.turn += 1
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
        """The next readers of the pass, each with a block, in file order."""
        self._is_short = False
        job: list[tuple[PageReader, Block, Sequence[Extent]]] = []
        while len(job) < BLOCKS_A_JOB and self._find_pass():
            reader = self._pass[-1][1]
            if reader not in self._waiting or reader.place is None:
                self._pass.pop()
                self._waiting.pop(reader, None)
                continue
            block = self._take(is_urgent=self._is_pass_urgent)
            if block is None:
                self._is_short = self._is_pass_urgent
                break
            self._pass.pop()
            del self._waiting[reader]
            self._holding.pop(reader, None)
            self._holding[reader] = None
            job.append((reader, block, reader.next_extents(self.block_bytes)))
        return job

    def _find_pass(self) -> bool:
        """Continues the pass, or begins one with all that wait now. Returns whether there is anything to read."""
        if self._pass and self._is_pass_urgent:
            return True
        starved: list[tuple[tuple[int, int, int], PageReader]] = []
        ahead: list[tuple[tuple[int, int, int], PageReader]] = []
        for reader in list(self._waiting):
            place = reader.place
            if place is None:
                del self._waiting[reader]
            else:
                (starved if reader.is_starved else ahead).append((place, reader))
        if starved or not self._pass:
            self._pass = sorted(starved or ahead, key=_place, reverse=True)
            self._is_pass_urgent = bool(starved)
        return bool(self._pass)

    def _take(self, *, is_urgent: bool) -> Block | None:
        if not self._free and self._unmade:
            self._unmade -= 1
            self._blocks += 1
            return Block(np.empty(self.block_bytes, dtype=np.uint8).data, self)
        if not self._free and is_urgent:
            for holder in list(self._holding):
                given = holder.give_up(self.turn)
                if given is None:
                    self._look_later()
                elif given and self._free:
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
                    reader.on_block(block, *result)
                else:
                    assert result is not None
                    reader.on_read_failed(result)
                block.drop()
            self._pump()

        self._disk.submit(work, done)


def _nothing() -> None:
    """A job that only causes another look, after the present turn."""


def _place(entry: tuple[tuple[int, int, int], PageReader]) -> tuple[int, int, int]:
    return entry[0]
