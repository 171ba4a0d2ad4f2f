"""KeptPartitionFactory: creates kept partitions: their memory, their store, and the `ResultPartition` over both.

Takes: settings, the network's memory, and the shared services of kept partitions. Gives: partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from ...base.config import NetworkConfig
from ...base.errors import ConfigError, NetstackError
from ...base.ids import PartitionId, ResultPartitionType, partition_id
from ..buffer.pools import LocalBufferPool, NetworkBufferPool
from ..buffer.requirements import sort_buffers
from ..buffer.segment import Segment
from ..outbound.host import PartitionHost
from ..outbound.partition import ResultPartition
from .compression import DiskQuota, PageCompression, WriteCost
from .files import SealedFiles, ShuffleFolder
from .reading import LEAST_BLOCKS, Disk, ReadScheduler
from .store import PartitionStore


@final
class StoreHost:
    """The host of a partition with a store: the store also takes buffers when connections are flushed."""

    def __init__(self, host: PartitionHost, store: PartitionStore) -> None:
        self._host = host
        self._store = store
        self.now = host.now
        self.ticks = host.ticks
        self.call_at = host.call_at
        self.settle = host.settle
        self.hold = host.hold
        self.flush_held = host.flush_held

    def flush_connections(self) -> None:
        """Takes finished buffers, then makes every connection send what it can."""
        self._store.on_flush_wanted()
        self._host.flush_connections()


@final
class KeptPartitionFactory:
    """The services that all kept partitions of a TaskManager share: folder, disk, read memory, quota."""

    def __init__(
        self,
        config: NetworkConfig,
        network: NetworkBufferPool,
        disk: Disk,
        folder: ShuffleFolder,
        hand_over: Callable[[PartitionId, SealedFiles], None] | None = None,
    ) -> None:
        """Starts without partitions.

        Args:
            config: settings.
            network: the pool of segments.
            disk: runs file operations.
            folder: where the files are.
            hand_over: called with a sealed partition that may be read again; another process then serves and removes
                its files. None: this process serves them.
        """
        self._config = config
        self._network = network
        self._disk = disk
        self._folder = folder
        self._hand_over = hand_over
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
        """Creates a partition to be written.

        Args:
            name: its id.
            kind: blocking or hybrid.
            subpartitions: maximum number of consumers.
            on_released: called once, when it is released.
            on_readable: called when it is sealed.
            host: the TaskManager's services.

        Raises:
            ConfigError: the memory for reading is less than two blocks.
            InsufficientBuffers: its guaranteed buffers are not available.
        """
        config, least = self._config, LEAST_BLOCKS * self.reads.block_bytes
        if config.read_memory_bytes < least:
            raise ConfigError(
                f"partition {name!r} is {kind.name}: read_memory_bytes={config.read_memory_bytes} with"
                f" segment_size_bytes={config.segment_size_bytes} is less than two reads of two buffers; give at least"
                f" {least}"
            )
        memory = self._memory(f"partition {name!r} with {subpartitions} subpartitions", subpartitions)
        partition, store = self._make(name, kind, subpartitions, memory, on_released, on_readable, host)

        def failed(error: NetstackError) -> None:
            partition.fail(str(error))

        store.on_failed = failed
        store.attach(partition)
        return partition

    def take_over(
        self,
        name: str,
        sealed: SealedFiles,
        *,
        on_released: Callable[[ResultPartition], None],
        on_readable: Callable[[ResultPartition], None],
        on_failed: Callable[[NetstackError], None],
        host: PartitionHost,
    ) -> ResultPartition:
        """Creates a partition from files of another process; it can be read when they are open.

        Args:
            name: its id.
            sealed: its files.
            on_released: as in `create`.
            on_readable: called when it can be read.
            on_failed: called when the files cannot be opened; it is released then.
            host: as in `create`.
        """
        memory = self._network.create_pool(0, 0), _nothing
        kind = ResultPartitionType.BLOCKING
        partition, store = self._make(
            partition_id(name), kind, sealed.subpartitions, memory, on_released, on_readable, host
        )

        def failed(error: NetstackError) -> None:
            partition.release()
            on_failed(error)

        store.on_failed = failed
        store.take_over(sealed)
        return partition

    def _make(
        self,
        name: PartitionId,
        kind: ResultPartitionType,
        subpartitions: int,
        memory: tuple[LocalBufferPool, Callable[[], None]],
        on_released: Callable[[ResultPartition], None],
        on_readable: Callable[[ResultPartition], None],
        host: PartitionHost,
    ) -> tuple[ResultPartition, PartitionStore]:
        config = self._config
        pool, free_memory = memory
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
            config=config,
        )

        def sealed() -> None:
            pool.destroy()
            free_memory()
            if self._hand_over is not None and kind.is_reconsumable:
                self._hand_over(name, store.hand_over())
            on_readable(partition)
            if partition.on_acknowledged is not None:
                partition.on_acknowledged()

        store.on_sealed = sealed
        return partition, store

    def _memory(self, purpose: str, subpartitions: int) -> tuple[LocalBufferPool, Callable[[], None]]:
        """Creates the pool for writing a partition, and a function that returns its memory afterwards."""
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
    """Does nothing: the pool returns its memory itself."""
