"""Typed names of partitions and channels.

Takes: nothing. Gives: `NewType`s, which make a wrong argument a type error, and `ChannelDescriptor`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NewType

from .errors import ConfigError

PartitionId = NewType("PartitionId", str)
"""The name of a result partition, unique in its TaskManager: 1 to 255 bytes of UTF-8."""

MAX_PARTITION_ID_BYTES = 255  # its length travels as one byte


class ResultPartitionType(enum.Enum):
    """How the output of a task is stored and consumed."""

    BLOCKING = "blocking"
    """Consumed after the producer has finished, any number of times, until the scheduler releases it."""
    BLOCKING_PERSISTENT = "blocking_persistent"
    """Like BLOCKING, but kept after the end of the job."""
    PIPELINED = "pipelined"
    """Consumed once, while it is produced; its pool is limited only by the TaskManager's memory."""
    PIPELINED_BOUNDED = "pipelined_bounded"
    """Consumed once, while it is produced, with a bounded number of buffers; the default of streaming jobs."""
    PIPELINED_APPROXIMATE = "pipelined_approximate"
    """Like PIPELINED_BOUNDED, but a restarted consumer may reconnect without its producer and miss records."""
    HYBRID_FULL = "hybrid_full"
    """Consumed during or after production, any number of times."""
    HYBRID_SELECTIVE = "hybrid_selective"
    """Consumed during or after production, once."""

    @property
    def is_bounded(self) -> bool:
        """Whether the partition's pool has its own upper bound."""
        return self in _BOUNDED

    @property
    def is_blocking(self) -> bool:
        """Whether consumption starts only after production has finished."""
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
        """Whether it can be consumed more than once."""
        return self in _RECONSUMABLE

    @property
    def is_persistent(self) -> bool:
        """Whether it is kept after the end of the job."""
        return self is ResultPartitionType.BLOCKING_PERSISTENT

    @property
    def is_released_by_scheduler(self) -> bool:
        """Whether the scheduler releases it, rather than the TaskManager after consumption."""
        return self.is_blocking or self in _HYBRID

    @property
    def is_hybrid(self) -> bool:
        """Whether it is written to files while it may be consumed."""
        return self in _HYBRID


_BLOCKING = frozenset({ResultPartitionType.BLOCKING, ResultPartitionType.BLOCKING_PERSISTENT})
_MUST_BE_PIPELINED = frozenset({ResultPartitionType.PIPELINED, ResultPartitionType.PIPELINED_BOUNDED})
_HYBRID = frozenset({ResultPartitionType.HYBRID_FULL, ResultPartitionType.HYBRID_SELECTIVE})
_RECONSUMABLE = _BLOCKING | {ResultPartitionType.HYBRID_FULL}
_BOUNDED = frozenset({ResultPartitionType.PIPELINED_BOUNDED, ResultPartitionType.PIPELINED_APPROXIMATE})


def partition_id(name: str) -> PartitionId:
    """Checks a partition's name.

    Raises:
        ConfigError: the name is not text, empty or longer than 255 bytes of UTF-8.
    """
    if not isinstance(name, str):
        raise ConfigError(f"partition id {name!r} of type {type(name).__name__}; give it as str")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"partition id {name[:40]!r}: {error}; a lone surrogate cannot be encoded in UTF-8"
        ) from error
    if not 1 <= size <= MAX_PARTITION_ID_BYTES:
        raise ConfigError(
            f"partition id {name[:40]!r} has {size} bytes in UTF-8; give it 1 to {MAX_PARTITION_ID_BYTES}"
        )
    return PartitionId(name)


@dataclass(frozen=True, slots=True)
class ChannelDescriptor:
    """What one input channel reads: a subpartition of a partition at a TaskManager's address.

    Attributes:
        address: URL of the producing TaskManager, such as `tcp://10.0.0.1:6121`. If it is the consumer's own address,
            the channel is local: it reads the producer's buffers directly, without a socket.
        partition_id: name of the partition at the producer.
        subpartition: index of the first subpartition to read, from 0.
        subpartitions: how many consecutive subpartitions to read, one after the other. Only partitions stored in files
            (blocking and hybrid) support more than one.
        is_prompt: whether the channel uses the connection reserved for prompt channels, so that its few records do not
            queue behind bulk data. Any channel may be prompt; a local channel gains nothing.
    """

    address: str
    partition_id: str
    subpartition: int = 0
    subpartitions: int = 1
    is_prompt: bool = False
