"""PartitionStore: reads the queues of a kept partition, and stores its buffers in regions and files.

Takes: finished buffers and events of a `ResultPartition`'s subpartitions. Gives: regions to the disk; views.

Life: open -> sealing (`seal`) -> sealed; or failed (`fail`); released (`release`) from any of them. A blocking
partition can be read when it is sealed, a hybrid one at any time.

Cutting: after a record that finished a buffer (`on_boundary`), a region is cut if it holds three eighths of the pool.
Every open buffer is then finished, so that no record crosses the border, and the region is written while the rest of
the pool is filled. A region is cut inside a record only if the record is larger than that (`on_flush_wanted`, and no
region is being written that would free memory): such a region is torn.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Final, final

from ...base.errors import ChannelFailed, DiskFull, ErrorCode, NetstackError
from ...base.ids import ResultPartitionType
from ..buffer.buffer import Notify
from ..buffer.pools import LocalBufferPool
from ..buffer.stored import Packaging
from ..outbound.partition import ResultPartition
from ..outbound.subpartition import ResultSubpartition
from .compression import SCARCE, DiskQuota, PageCompression
from .files import PartitionFiles, SealedFiles, ShuffleFolder
from .index import BROADCAST, Extent, RegionEntry, RegionIndex
from .reading import Disk, ReadScheduler
from .stored_regions import Region, StoredRegions
from .view import StoredView

CUT_SHARE: Final = 3 / 8


@final
class PartitionStore(StoredRegions):
    """The storage of one kept partition; created by the TaskManager.

    Attributes:
        compression: decides which pages are compressed, and counts them.
        error: why writing failed; None without an error.
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
        super().__init__(
            number,
            kind,
            PartitionFiles(folder, number, subpartitions, own_files=own_files, ticks=ticks),
            RegionIndex(subpartitions, own_files=own_files),
            page_bytes=page_bytes,
            disk=disk,
            reads=reads,
            quota=quota,
        )
        self.error: NetstackError | None = None
        self.on_sealed: Callable[[], None] | None = None
        """Called when everything is on disk."""
        self.on_failed: Callable[[NetstackError], None] | None = None
        """Called when writing failed."""
        self.on_cut: Callable[[], None] | None = None
        """Called between two records: the writer finishes every open buffer."""
        self._subpartitions = subpartitions
        self.compression = compression
        self._pool: LocalBufferPool | None = None
        self._sources: list[ResultSubpartition] = []
        self._dirty: dict[int, None] = {}
        self._is_cutting = False
        self._views: dict[StoredView, None] = {}
        self._taken: set[int] = set()

    def attach(self, partition: ResultPartition) -> None:
        """Becomes the reader of all subpartitions."""
        self._pool = partition.pool
        for subpartition in partition.subpartitions:
            notify = functools.partial(self._on_data, subpartition.index)
            self._sources.append(subpartition.create_view(notify))

    # From the writer.

    @property
    def data_bytes(self) -> int:
        """Bytes of records stored (`StoredPartition`)."""
        return self.compression.data_bytes

    @property
    def compressed_bytes(self) -> int:
        """Bytes of records in compressed pages (`StoredPartition`)."""
        return self.compression.compressed_bytes

    def on_flush_wanted(self) -> None:
        """Takes finished buffers; cuts a torn region if the pool is exhausted, and no region is being written."""
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
        """Takes finished buffers after a whole record; cuts a region if it is large enough."""
        self._gather()
        pool = self._pool
        if pool is None or self._is_cutting or self._is_sealing or self.is_released:
            return
        if self._open.buffers >= CUT_SHARE * pool.size:
            self._is_cutting = True
            if self.on_cut is not None:
                self.on_cut()
            self._is_cutting = False
            self._gather()
            self._cut(is_torn=False)

    def seal(self, *, drain: bool) -> None:
        """Completes the partition (every buffer is finished); it is sealed when everything is on disk."""
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
        """Leaves serving and removing the sealed files to another process."""
        self.files.hand_over()
        return SealedFiles(self.files.name, self._subpartitions, self.drain, self.stored_bytes)

    def take_over(self, sealed: SealedFiles) -> None:
        """Serves files that another process has sealed. Calls `on_sealed` or `on_failed` later."""
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
        """Fails the views: the producer failed."""
        if self.failure is None and not self.is_released:
            self.failure = cause
        self.release()

    def release(self) -> None:
        """Drops everything, in memory and on disk. Idempotent. Running reads and writes complete first."""
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
        """Creates the read end of `count` subpartitions from `first` on.

        Raises:
            ChannelFailed: a blocking partition is not sealed, or a HYBRID_SELECTIVE one was read before.
        """
        name = f"subpartitions {first} to {first + count - 1}"
        if self.kind.is_blocking and not self.is_sealed:
            raise ChannelFailed(
                ErrorCode.PARTITION_NOT_FOUND, "a blocking partition can be read when it is complete", channel=name
            )
        if not self.kind.is_reconsumable and not self._taken.isdisjoint(range(first, first + count)):
            raise ChannelFailed(
                ErrorCode.SUBPARTITION_CONSUMED, "a HYBRID_SELECTIVE partition can be read only once", channel=name
            )
        is_live = not self.kind.is_blocking
        view = StoredView(self, first, count, notify, packaging, self._on_view_released, is_live=is_live)
        self._views[view] = None
        if is_live:
            if not self.kind.is_reconsumable:
                self._taken.update(range(first, first + count))
            view.on_change()
        else:
            self._load(view)
        return view

    def _on_view_released(self, view: StoredView) -> None:
        """Removes a released view."""
        self._views.pop(view, None)
        self.reads.forget(view)

    # Inside.

    def _on_data(self, subpartition: int) -> None:
        self._dirty[subpartition] = None
        if self._views:
            self._gather()

    def _gather(self) -> None:
        """Moves finished buffers from the queues to the open region."""
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
            stored = int(cells[0] if entry.flags & BROADCAST else cells.sum())
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
            self.on_flush_wanted()  # the writer is not woken if the pool has shrunk by what this region returned

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
