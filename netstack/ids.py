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
    """How the output of a task is kept and consumed (only the pipelined types exist so far)."""

    PIPELINED = "pipelined"
    """Consumed once, while produced; its pool may grow as far as the TaskManager's memory goes."""
    PIPELINED_BOUNDED = "pipelined_bounded"
    """Consumed once, while produced; a bounded number of buffers: the default of streaming jobs."""

    @property
    def is_bounded(self) -> bool:
        """Whether the partition's pool has an upper bound of its own."""
        return self is ResultPartitionType.PIPELINED_BOUNDED


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
    """

    address: str
    partition_id: str
    subpartition: int = 0
