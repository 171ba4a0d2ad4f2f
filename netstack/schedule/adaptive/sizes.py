"""How many bytes each producer wrote into each subpartition of a dataset: what adaptive parallelism is decided by.

Takes: what a task counted, when it has finished. Gives: sums, and the sizes one by one while they are needed.

Rules: a producer that is reset is forgotten until its next attempt has finished. Once nobody needs the sizes one by
one, `compact` keeps their sums only; nothing changes after that.
"""

from __future__ import annotations

from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import ConfigError, LocalProtocolError

ByteArray = NDArray[np.int64]


@final
class DatasetSizes:
    """The sizes of one dataset.

    Args:
        name: of the dataset, for messages.
        partitions: how many producers it has.
        subpartitions: of each partition.
    """

    __slots__ = ("_is_compact", "_name", "_of_partition", "_sums", "partitions", "subpartitions")

    def __init__(self, name: str, partitions: int, subpartitions: int) -> None:
        self._name = name
        self.partitions = partitions
        self.subpartitions = subpartitions
        self._of_partition: dict[int, ByteArray] = {}
        self._sums = np.zeros(subpartitions, np.int64)
        self._is_compact = False

    @property
    def recorded(self) -> int:
        """How many producers' reports are counted; after `compact`, all of them."""
        return self.partitions if self._is_compact else len(self._of_partition)

    @property
    def is_complete(self) -> bool:
        """Whether every producer has reported."""
        return self.recorded == self.partitions

    @property
    def total_bytes(self) -> int:
        """Everything that was reported and not forgotten."""
        return int(self._sums.sum())

    def record(self, partition: int, bytes_written: ArrayLike) -> None:
        """A producer has finished.

        Args:
            partition: its index.
            bytes_written: into each subpartition. An earlier attempt's numbers are replaced.

        Raises:
            ConfigError: there is no such partition, or it has another number of subpartitions.
        """
        sizes = np.array(bytes_written, np.int64)
        if not 0 <= partition < self.partitions or sizes.shape != (self.subpartitions,):
            raise ConfigError(
                f"dataset {self._name!r}: partition {partition} reports {sizes.size} subpartitions; it has"
                f" {self.partitions} partitions of {self.subpartitions}"
            )
        if not self._is_compact:
            self.forget(partition)
            self._of_partition[partition] = sizes
            self._sums += sizes

    def forget(self, partition: int) -> None:
        """A producer runs again, or its partition is lost."""
        sizes = self._of_partition.pop(partition, None)
        if sizes is not None:
            self._sums -= sizes

    def by_subpartition(self) -> ByteArray:
        """The bytes of each subpartition, all partitions together."""
        return self._sums.copy()

    def by_partition(self) -> ByteArray:
        """The bytes of each subpartition of each partition: (partitions, subpartitions).

        Raises:
            LocalProtocolError: a producer has not reported, or only sums are left.
        """
        if len(self._of_partition) != self.partitions:
            raise LocalProtocolError(
                f"dataset {self._name!r}: the sizes of {len(self._of_partition)} of {self.partitions} partitions are"
                " known; ask when all producers have finished, and before they are compacted"
            )
        return np.stack([self._of_partition[partition] for partition in range(self.partitions)])

    def compact(self) -> None:
        """Keeps the sums only: every consumer has been initialised. Does nothing while a producer is missing."""
        if self.is_complete:
            self._is_compact = True
            self._of_partition.clear()
