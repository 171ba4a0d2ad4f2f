"""A partition that is kept, put together: its memory, its store, and the `ResultPartition` over both.

Takes: settings, the network's memory, and what all kept partitions of a TaskManager share. Gives: partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from ..buffer.local_pool import LocalBufferPool
from ..buffer.network_pool import NetworkBufferPool
from ..buffer.requirements import sort_buffers
from ..buffer.segment import Segment
from ..config import NetworkConfig
from ..errors import NetstackError
from ..ids import PartitionId, ResultPartitionType
from ..outbound.partition import PartitionHost, ResultPartition
from .compression import PageCompression, WriteCost
from .files import ShuffleFolder
from .reading import Disk, ReadScheduler
from .store import DiskQuota, PartitionStore, StoreHost


@final
class KeptPartitionFactory:
    """What all kept partitions of a TaskManager share: the folder, the disk, memory to read, the quota."""

    def __init__(self, config: NetworkConfig, network: NetworkBufferPool, disk: Disk, folder: ShuffleFolder) -> None:
        """Args: settings; where segments come from; who runs what touches files; where the files are."""
        self._config = config
        self._network = network
        self._disk = disk
        self._folder = folder
        self._made = 0
        self._cost = WriteCost()
        self.quota = DiskQuota(config.shuffle_disk_bytes)
        self.reads = ReadScheduler(disk, memory_bytes=config.read_memory_bytes, page_bytes=config.segment_size_bytes)

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
            folder=self._folder,
            own_files=subpartitions < config.sort_min_subpartitions,
            page_bytes=config.segment_size_bytes,
            compression=PageCompression(config.shuffle_compression, self._cost, host.ticks),
            ticks=host.ticks,
            disk=self._disk,
            reads=self.reads,
            quota=self.quota,
        )

        def released(partition: ResultPartition) -> None:
            free_memory()
            on_released(partition)

        partition = ResultPartition(
            name,
            kind,
            subpartitions,
            pool,
            on_released=released,
            host=StoreHost(host, store),
            store=store,
            has_runs=config.has_runs,
            as_flink=config.as_flink,
            max_record_bytes=config.max_record_bytes,
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
