"""PartitionStore: the consumer behind a kept partition's queues, which puts what comes into regions and files.

Takes: finished buffers and events, from the subpartitions of a `ResultPartition`. Gives: regions to the disk; views.

Life: open -> sealing (`seal`) -> sealed; or failed (`fail`); released (`release`) from any of them. A blocking
partition is read when it is sealed, a hybrid one at any time.

Cutting: after a record that finished a buffer (`on_boundary`) a region is cut as soon as it holds three eighths of the
pool: every open buffer is finished, so that no record crosses the border, and the region is written while the rest of
the pool is filled. Only a record larger than that leaves nothing but to cut inside of it (`on_flush_wanted`, with no
region under way whose end would bring memory): such a region is torn.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Final, final

from ..buffer.buffer import Buffer, Notify
from ..buffer.local_pool import LocalBufferPool
from ..buffer.stored import Packaging
from ..errors import ChannelFailed, DiskFull, ErrorCode, NetstackError
from ..ids import ResultPartitionType
from ..outbound.partition import PartitionHost, ResultPartition
from ..outbound.subpartition import ResultSubpartition
from .compression import SCARCE, PageCompression
from .files import PartitionFiles, SealedFiles, ShuffleFolder
from .index import Extent, RegionEntry, RegionIndex
from .reading import Disk, ReadScheduler
from .region import Region
from .view import StoredView

CUT_NUMERATOR: Final = 3
CUT_DENOMINATOR: Final = 8


class DiskQuota:
    """Bytes that the partitions of a TaskManager may have on disk, and have."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int | None) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    @property
    def is_scarce(self) -> bool:
        """Whether little is left of it."""
        return self.limit_bytes is not None and self.used_bytes > (1 - SCARCE) * self.limit_bytes

    def check(self, more_bytes: int) -> None:
        """Raises unless there is room.

        Raises:
            DiskFull: there is not.
        """
        if self.limit_bytes is not None and self.used_bytes + more_bytes > self.limit_bytes:
            raise DiskFull(
                f"{more_bytes} bytes more on disk, where {self.used_bytes} of {self.limit_bytes} are taken by kept"
                " partitions: raise shuffle_disk_bytes, or release partitions that nobody reads"
            )


@final
class PartitionStore:
    """Where one kept partition lies; made by the TaskManager.

    Attributes:
        number: unique in its TaskManager: names the files, and orders reads.
        files: its data files.
        index: its regions; of a blocking partition dropped when it is in the index file.
        page_bytes: a network buffer.
        drain: what its EndOfData says.
        is_sealed: whether everything is on disk.
        is_released: whether it is gone.
        stored_bytes: on disk.
        compression: which pages are compressed, and how much that was.
        failure: why its producer failed.
        error: why it could not be written.
    """

    def __init__(
        self,
        number: int,
        kind: ResultPartitionType,
        subpartitions: int,
        *,
        folder: ShuffleFolder,
        own_files: bool,
        page_bytes: int,
        compression: PageCompression,
        ticks: Callable[[], float],
        disk: Disk,
        reads: ReadScheduler,
        quota: DiskQuota,
    ) -> None:
        """Touches no file yet.

        Args:
            number: see above.
            kind: BLOCKING, BLOCKING_PERSISTENT, HYBRID_FULL or HYBRID_SELECTIVE.
            subpartitions: how many.
            folder: where its files are.
            own_files: whether each subpartition has a data file of its own.
            page_bytes: most bytes of records in a page.
            compression: which pages are compressed.
            ticks: seconds; what writes take is measured with it.
            disk: runs what touches files.
            reads: whose turn it is to be read.
            quota: of the TaskManager.
        """
        self.number = number
        self.kind = kind
        self.files = PartitionFiles(folder, number, subpartitions, own_files=own_files, ticks=ticks)
        self.index = RegionIndex(subpartitions, own_files=own_files)
        self.page_bytes = page_bytes
        self.drain = True
        self.is_sealed = False
        self.is_released = False
        self.stored_bytes = 0
        self.failure: str | None = None
        self.error: NetstackError | None = None
        self.on_sealed: Callable[[], None] | None = None
        """Told when everything is on disk."""
        self.on_failed: Callable[[NetstackError], None] | None = None
        """Told when it cannot be written."""
        self.on_cut: Callable[[], None] | None = None
        """Has the writer finish every open buffer, between two records."""
        self.first_region = 0
        self._subpartitions = subpartitions
        self.compression = compression
        self._disk = disk
        self._reads = reads
        self._quota = quota
        self.read_ahead_bytes = reads.block_bytes // 2
        self._pool: LocalBufferPool | None = None
        self._sources: list[ResultSubpartition] = []
        self._dirty: dict[int, None] = {}
        self._open = Region(0)
        self._unwritten: deque[Region] = deque()
        self._is_writing = False
        self._is_cutting = False
        self._is_sealing = False
        self._index_bytes = 0
        self._views: dict[StoredView, None] = {}
        self._file_users = 1
        self._taken: set[int] = set()

    def attach(self, partition: ResultPartition) -> None:
        """Takes the place of the partition's consumers."""
        self._pool = partition.pool
        for subpartition in partition.subpartitions:
            notify = functools.partial(self._on_data, subpartition.index)
            self._sources.append(subpartition.create_view(notify))

    # From the writer.

    @property
    def data_bytes(self) -> int:
        """Bytes of records, as `StoredPartition` counts them."""
        return self.compression.data_bytes

    @property
    def compressed_bytes(self) -> int:
        """Bytes of records, as `StoredPartition` counts them."""
        return self.compression.compressed_bytes

    def on_flush_wanted(self) -> None:
        """Buffers were finished, or are wanted and not there."""
        self._gather()
        pool = self._pool
        if (
            pool is not None
            and not pool.is_available
            and not self._unwritten
            and not self._is_cutting
            and self._open.buffers
            and not self._is_sealing
        ):
            self._cut(is_torn=True)

    def on_boundary(self) -> None:
        """A record was written whole, and finished a buffer."""
        self._gather()
        pool = self._pool
        if pool is None or self._is_cutting or self._is_sealing or self.is_released:
            return
        if self._open.buffers * CUT_DENOMINATOR >= pool.size * CUT_NUMERATOR:
            self._is_cutting = True
            if self.on_cut is not None:
                self.on_cut()
            self._is_cutting = False
            self._gather()
            self._cut(is_torn=False)

    def seal(self, *, drain: bool) -> None:
        """Nothing more comes (every buffer is finished); it is sealed when all is on disk."""
        if self._is_sealing or self.is_released:
            return
        self._gather()
        self._is_sealing = True
        self.drain = drain
        if self._open.buffers:
            self._cut(is_torn=False)
        else:
            self._write_next()
            self._notify_views()

    def hand_over(self) -> SealedFiles:
        """Another process serves the files from now on, and removes them; call it when they are sealed."""
        self.files.hand_over()
        return SealedFiles(self.files.name, self._subpartitions, self.drain, self.stored_bytes)

    def take_over(self, sealed: SealedFiles) -> None:
        """Serves what another process has written and sealed; nothing is written here. `on_sealed` tells the rest."""
        self._is_sealing = True
        self.drain = sealed.drain
        self.retain_files()

        def taken(_: object, error: NetstackError | None) -> None:
            self.stored_bytes = sealed.stored_bytes
            self._quota.used_bytes += sealed.stored_bytes
            self.release_files()
            if error is not None:
                self._on_error(error)
            elif not self.is_released:
                self._sealed()

        self._disk.submit(lambda: self.files.take_over(sealed.name), taken)

    def fail(self, cause: str) -> None:
        """The producer failed: notifies the views."""
        if self.failure is None and not self.is_released:
            self.failure = cause
        self.release()

    def release(self) -> None:
        """Drops everything, in memory and on disk; idempotent. What is being written or read ends first."""
        if self.is_released:
            return
        self.is_released = True
        self._open.recycle()
        if not self._is_writing:
            self._recycle_unwritten()
        for source in self._sources:
            source.release()
        self._notify_views()
        self.release_files()

    # For views.

    def create_view(self, first: int, count: int, notify: Notify, packaging: Packaging) -> StoredView:
        """The read end of `count` subpartitions from `first` on.

        Raises:
            ChannelFailed: it is not sealed yet, and of a kind that is read only then; or read already, and of the kind
                that is read once.
        """
        name = f"subpartitions {first} to {first + count - 1}"
        if self.kind.is_blocking and not self.is_sealed:
            raise ChannelFailed(
                ErrorCode.PARTITION_NOT_FOUND, "a blocking partition is read when all of it was written", channel=name
            )
        if not self.kind.is_reconsumable and self._is_taken(first, count):
            raise ChannelFailed(
                ErrorCode.SUBPARTITION_CONSUMED, "a HYBRID_SELECTIVE partition is read once", channel=name
            )
        is_live = not self.kind.is_blocking
        view = StoredView(self, first, count, notify, packaging, is_live=is_live)
        self._views[view] = None
        if is_live:
            if not self.kind.is_reconsumable:
                self._taken.update(range(first, first + count))
            view.on_change()
        else:
            self._load(view)
        return view

    def want_block(self, view: StoredView) -> None:
        """A view wants to read on."""
        self._reads.want(view)

    def on_view_released(self, view: StoredView) -> None:
        """A view has left."""
        self._views.pop(view, None)
        self._reads.forget(view)

    def retain_files(self) -> None:
        """Somebody is going to read or write them."""
        self._file_users += 1

    def release_files(self) -> None:
        """Nobody does any more; the last one removes them."""
        self._file_users -= 1
        if not self._file_users:
            self._quota.used_bytes -= self.stored_bytes
            self.stored_bytes = 0
            self._disk.submit(self.files.remove, _ignore)

    @property
    def regions(self) -> int:
        """Cut so far."""
        return self._open.number

    def is_cut(self, region: int) -> bool:
        """Whether nothing more comes to a region."""
        return region < self._open.number or self._is_sealing

    def items(self, region: int, subpartition: int) -> list[Buffer] | None:
        """What a region has in memory for a subpartition; None if it is on disk."""
        if region < self.index.regions:
            return None
        if region == self._open.number:
            return self._open.items(subpartition)
        return self._unwritten[region - self.index.regions].items(subpartition)

    def next_group(self, region: int, *, alone: bool) -> list[int]:
        """Regions from `region` on that are read together: one, unless it is torn; none, as long as that is not known.

        Args:
            region: the first.
            alone: for a reader of one subpartition, who need not wait for a region to be cut.
        """
        if region > self._open.number or (region == self._open.number and (self._is_sealing or not alone)):
            return []
        if alone:
            return [region]
        group = [region]
        while self._is_torn(group[-1]):
            if group[-1] + 1 >= self._open.number:
                return group if self._is_sealing else []
            group.append(group[-1] + 1)
        return group

    def on_taken(self, region: int, subpartition: int, view: StoredView) -> None:
        """A view has taken a buffer from memory. What is read once is not kept for anybody else."""
        if self.kind.is_reconsumable or (self._is_writing and region == self.index.regions):
            return
        holder = self._open if region == self._open.number else self._unwritten[region - self.index.regions]
        holder.drop(subpartition, view.taken_items)
        view.forget_taken()

    def count_in_memory(self, view: StoredView) -> int:
        """Buffers and events in memory that a view will come to."""
        at = view.region
        waiting = 0
        for region in (*self._unwritten, self._open):
            if region.number >= at:
                for subpartition in range(view.first, view.first + view.count):
                    waiting += len(region.items(subpartition))
        return waiting - view.taken_items

    # Inside.

    def _on_data(self, subpartition: int) -> None:
        self._dirty[subpartition] = None
        if self._views:
            self._gather()

    def _gather(self) -> None:
        """Takes what is finished from the queues, into the open region."""
        if not self._dirty or self.is_released:
            return
        dirty, self._dirty = self._dirty, {}
        region = self._open
        for subpartition in dirty:
            source = self._sources[subpartition]
            while source.is_available(has_credit=True):
                buffer = source.poll()
                if buffer is None:
                    break
                region.add(subpartition, buffer)
        if self._views and not self.kind.is_blocking:
            for view in list(self._views):
                if view.count == 1 and view.first in dirty:
                    view.on_change()

    def _cut(self, *, is_torn: bool) -> None:
        region = self._open
        region.is_cut = True
        region.is_torn = is_torn
        self._open = Region(region.number + 1)
        self._unwritten.append(region)
        self._write_next()
        self._notify_views()

    def _notify_views(self) -> None:
        for view in list(self._views):
            view.on_change()

    def _write_next(self) -> None:
        if self._is_writing or self.is_released or self.error is not None:
            return
        if not self._unwritten:
            if self._is_sealing:
                self._write_index()
            return
        region = self._unwritten[0]
        try:
            self._quota.check(region.bytes)
        except DiskFull as error:
            self._on_error(error)
            return
        self._is_writing = True
        self.retain_files()
        self._disk.submit(
            functools.partial(
                region.write,
                self.files,
                self._subpartitions,
                page_bytes=self.page_bytes,
                compression=self.compression,
            ),
            self._on_written,
        )

    def _on_written(self, entry: RegionEntry | None, error: NetstackError | None) -> None:
        self._is_writing = False
        if entry is not None and not self.is_released:
            region = self._unwritten.popleft()
            self.index.add(entry)
            cells = entry.cells["bytes"]
            stored = int(cells[0] if entry.flags & 2 else cells.sum())
            self.stored_bytes += stored
            self._quota.used_bytes += stored
            write_s, self.files.write_s = self.files.write_s, 0.0
            is_scarce = self._quota.is_scarce or self.files.free_share < SCARCE
            self.compression.on_region(stored, write_s, is_scarce=is_scarce)
            region.recycle()
        self.release_files()
        if self.is_released:
            self._recycle_unwritten()
        elif error is not None:
            self._on_error(error)
        else:
            self._write_next()

    def _write_index(self) -> None:
        self._is_writing = True
        self.retain_files()
        index = self.index
        self._disk.submit(lambda: self.files.write_index(index.encode()), self._on_index_written)

    def _on_index_written(self, size: int | None, error: NetstackError | None) -> None:
        self._is_writing = False
        if size is not None and not self.is_released:
            self.stored_bytes += size
            self._quota.used_bytes += size
        self.release_files()
        if self.is_released:
            return
        if error is not None:
            self._on_error(error)
            return
        self._sealed()

    def _sealed(self) -> None:
        self.is_sealed = True
        if self.kind.is_blocking:
            self.index = RegionIndex(self._subpartitions, own_files=self.files.own_files)
        self._notify_views()
        if self.on_sealed is not None:
            self.on_sealed()

    def _load(self, view: StoredView) -> None:
        self.retain_files()

        def done(extents: list[Extent] | None, error: NetstackError | None) -> None:
            self.release_files()
            if extents is not None:
                view.start(extents)
            elif error is not None:
                view.fail(error)

        self._disk.submit(lambda: self.files.read_plan(view.first, view.count), done)

    def _on_error(self, error: NetstackError) -> None:
        if self.error is None:
            self.error = error
            if self.on_failed is not None:
                self.on_failed(error)

    def _recycle_unwritten(self) -> None:
        unwritten, self._unwritten = self._unwritten, deque()
        for region in unwritten:
            region.recycle()

    def _is_torn(self, region: int) -> bool:
        if region < self.index.regions:
            return self.index.is_torn(region)
        return self._unwritten[region - self.index.regions].is_torn

    def _is_taken(self, first: int, count: int) -> bool:
        return any(subpartition in self._taken for subpartition in range(first, first + count))


@final
class StoreHost:
    """A partition's host when it has a store: whatever wakes the connections lets the store look as well."""

    def __init__(self, host: PartitionHost, store: PartitionStore) -> None:
        self._host = host
        self._store = store
        self.now = host.now
        self.ticks = host.ticks
        self.call_at = host.call_at
        self.settle = host.settle

    def flush_connections(self) -> None:
        """Lets the store look, then has every connection send what it can."""
        self._store.on_flush_wanted()
        self._host.flush_connections()


def _ignore(result: object, error: NetstackError | None) -> None:
    """Files that cannot be removed go with their folder."""
