"""Partitions that are kept in files, as a TaskManager makes them: store, memory and partition together.

Takes: names, kinds, numbers of subpartitions. Gives: result partitions that a `RecordWriter` writes and any gate reads.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from typing import final

import trio

from ..buffer.local_pool import LocalBufferPool
from ..buffer.network_pool import NetworkBufferPool
from ..buffer.requirements import sort_buffers
from ..buffer.segment import Segment
from ..config import NetworkConfig
from ..errors import NetstackError
from ..ids import PartitionId, ResultPartitionType
from ..outbound.partition import PartitionHost, ResultPartition
from ..shuffle.files import FOLDER_PREFIX, ShuffleFolder
from ..shuffle.reading import ReadScheduler
from ..shuffle.store import DiskQuota, PartitionStore, StoreHost
from .disk import DiskDriver, run_in_thread


@final
class KeptPartitions:
    """What all kept partitions of a TaskManager share: the folder, threads, memory to read, the quota."""

    def __init__(self, config: NetworkConfig, network: NetworkBufferPool, nursery: trio.Nursery) -> None:
        """Touches no file yet."""
        self._config = config
        self._network = network
        self.quota = DiskQuota(config.shuffle_disk_bytes)
        self._folder = ShuffleFolder(config.shuffle_directory, f"{FOLDER_PREFIX}{os.getpid()}-{secrets.token_hex(4)}")
        self._disk = DiskDriver(nursery, self._folder.make)
        self.reads = ReadScheduler(
            self._disk, memory_bytes=config.read_memory_bytes, page_bytes=config.segment_size_bytes
        )
        self._made = 0
        if config.shuffle_directory is not None:
            self._disk.prepare()  # what a dead process left there goes now, not when room is short

    @property
    def folder(self) -> str:
        """Where its files are; it exists as soon as there are some."""
        return self._folder.path

    def create(
        self,
        name: PartitionId,
        kind: ResultPartitionType,
        subpartitions: int,
        *,
        on_released: Callable[[ResultPartition], None],
        on_readable: Callable[[ResultPartition], None],
        host: PartitionHost,
    ) -> ResultPartition:
        """A partition, ready to be written.

        Args:
            name: its id.
            kind: blocking or hybrid.
            subpartitions: how many consumers it has, at most.
            on_released: told once, when it is gone.
            on_readable: told when it is sealed.
            host: the TaskManager's services.

        Raises:
            InsufficientBuffers: its guaranteed buffers are not free.
        """
        config = self._config
        pool, free_memory = self._memory(f"partition {name!r} with {subpartitions} subpartitions", subpartitions)
        self._made += 1
        store = PartitionStore(
            self._made,
            kind,
            subpartitions,
            folder=self._folder.path,
            own_files=subpartitions < config.sort_min_subpartitions,
            page_bytes=config.segment_size_bytes,
            compressed=config.shuffle_compression != "none",
            disk=self._disk,
            reads=self.reads,
            quota=self.quota,
        )

        def released(partition: ResultPartition) -> None:
            free_memory()
            on_released(partition)

        partition = ResultPartition(
            name, kind, subpartitions, pool, on_released=released, host=StoreHost(host, store), store=store
        )

        def sealed() -> None:
            pool.destroy()
            free_memory()
            on_readable(partition)
            if partition.on_acknowledged is not None:
                partition.on_acknowledged()

        def failed(error: NetstackError) -> None:
            partition.fail(str(error))

        store.on_sealed = sealed
        store.on_failed = failed
        store.attach(partition)
        return partition

    async def close(self) -> None:
        """Removes every file; for the end, when no thread uses them any more."""
        if self._folder.is_made:
            with trio.CancelScope(shield=True):
                await run_in_thread(self._folder.remove)

    def _memory(self, purpose: str, subpartitions: int) -> tuple[LocalBufferPool, Callable[[], None]]:
        """The pool that a partition is written with, and how its memory is given back when the pool is destroyed."""
        config = self._config
        required, maximum, cells = sort_buffers(subpartitions, config)
        overdraft = config.max_overdraft_buffers_per_partition
        if cells == 1:
            pool = self._network.create_pool(required, maximum, max_overdraft=overdraft, purpose=purpose)
            return pool, _nothing
        taken = self._network.take_unpooled(required, purpose)
        size = config.segment_size_bytes // cells
        cut = [
            Segment(segment.array[start : start + size]) for segment in taken for start in range(0, size * cells, size)
        ]
        network = self._network
        small = NetworkBufferPool(len(cut), size, cut, lambda: network.recycle_unpooled(taken))
        return small.create_pool(len(cut), len(cut), purpose=purpose), small.destroy


def _nothing() -> None:
    """The pool gives everything back itself."""
