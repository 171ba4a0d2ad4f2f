"""Typed names for the things that are counted and addressed.

Takes: nothing. Gives: `NewType`s that make a wrong argument a type error, and `ChannelDescriptor`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NewType

from .errors import ConfigError

PartitionId = NewType("PartitionId", str)
"""Name of a result partition, unique in its TaskManager: 1 to 255 bytes of UTF-8."""

MAX_PARTITION_ID_BYTES = 255  # its length travels as one byte


class ResultPartitionType(enum.Enum):
    """How the output of a task is kept and consumed."""

    BLOCKING = "blocking"
    """Consumed when complete, by anybody, any number of times, until the scheduler releases it."""
    BLOCKING_PERSISTENT = "blocking_persistent"
    """As BLOCKING, and kept beyond the end of the job."""
    PIPELINED = "pipelined"
    """Consumed once, while produced; its pool may grow as far as the TaskManager's memory goes."""
    PIPELINED_BOUNDED = "pipelined_bounded"
    """Consumed once, while produced; a bounded number of buffers: the default of streaming jobs."""
    PIPELINED_APPROXIMATE = "pipelined_approximate"
    """As PIPELINED_BOUNDED, but a consumer may come back without its producer, and miss records."""
    HYBRID_FULL = "hybrid_full"
    """Consumed while produced or later, any number of times."""
    HYBRID_SELECTIVE = "hybrid_selective"
    """Consumed while produced or later, once."""

    @property
    def is_bounded(self) -> bool:
        """Whether the partition's pool has an upper bound of its own."""
        return self in _BOUNDED

    @property
    def is_blocking(self) -> bool:
        """Whether nothing of it can be consumed before all of it was produced."""
        return self in _BLOCKING

    @property
    def must_be_pipelined(self) -> bool:
        """Whether producer and consumer have to run at the same time."""
        return self in _MUST_BE_PIPELINED

    @property
    def can_be_pipelined(self) -> bool:
        """Whether it may be consumed while it is produced."""
        return not self.is_blocking

    @property
    def is_reconsumable(self) -> bool:
        """Whether it can be consumed again."""
        return self in _RECONSUMABLE

    @property
    def is_persistent(self) -> bool:
        """Whether it outlives the job."""
        return self is ResultPartitionType.BLOCKING_PERSISTENT

    @property
    def is_released_by_scheduler(self) -> bool:
        """Whether the scheduler releases it, not the producing TaskManager when it was consumed."""
        return self.is_blocking or self in _HYBRID

    @property
    def is_hybrid(self) -> bool:
        """Whether it is spilled while it may be consumed."""
        return self in _HYBRID


_BLOCKING = frozenset({ResultPartitionType.BLOCKING, ResultPartitionType.BLOCKING_PERSISTENT})
_MUST_BE_PIPELINED = frozenset({ResultPartitionType.PIPELINED, ResultPartitionType.PIPELINED_BOUNDED})
_HYBRID = frozenset({ResultPartitionType.HYBRID_FULL, ResultPartitionType.HYBRID_SELECTIVE})
_RECONSUMABLE = _BLOCKING | {ResultPartitionType.HYBRID_FULL}
_BOUNDED = frozenset({ResultPartitionType.PIPELINED_BOUNDED, ResultPartitionType.PIPELINED_APPROXIMATE})


def partition_id(name: str) -> PartitionId:
    """Checks a partition's name.

    Raises:
        ConfigError: it is empty or longer than 255 bytes in UTF-8.
    """
    size = len(name.encode())
    if not 1 <= size <= MAX_PARTITION_ID_BYTES:
        raise ConfigError(
            f"partition id {name[:40]!r} has {size} bytes in UTF-8; give it 1 to {MAX_PARTITION_ID_BYTES}"
        )
    return PartitionId(name)


@dataclass(frozen=True, slots=True)
class ChannelDescriptor:
    """Where one input channel reads: a subpartition of a partition at a TaskManager's address.

    Attributes:
        address: URL of the producing TaskManager, such as `tcp://10.0.0.1:6121`. The consumer's own address makes
            the channel local: it then reads the producer's buffers directly and never touches a socket.
        partition_id: the partition's name there.
        subpartition: index of the subpartition, from 0.
        subpartitions: how many in a row from that one on the channel reads, one after the other. More than one can be
            had of partitions that are kept in files (blocking and hybrid ones).
        is_prompt: whether it goes over the connection to that TaskManager which is for prompt channels alone, so that
            its few records do not stand behind what others move in bulk. Any channel may; a local one needs none.
    """

    address: str
    partition_id: str
    subpartition: int = 0
    subpartitions: int = 1
    is_prompt: bool = False
