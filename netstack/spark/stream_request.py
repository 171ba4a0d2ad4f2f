"""What is asked of a `Publisher`, as names of partitions that do not exist: it makes them when they are asked for.

    events?spark?17?1f3a9c   the consumer "spark" has processed all epochs of "events" before 17; what is there to read?
    events?@17?2?9be01c      the rows of subpartition 2 of epoch 17

The last part makes each name another one, so what is asked twice is answered twice.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Final, final

_QUESTION: Final = re.compile(r"([^?]+)\?([A-Za-z0-9_.-]{1,64})\?(\d{1,18})\?[0-9a-f]{16}")
_EPOCH: Final = re.compile(r"([^?]+)\?@(\d{1,18})\?(\d{1,9})\?[0-9a-f]{16}")


@final
@dataclass(frozen=True, slots=True)
class Question:
    """What a reader says and asks.

    Attributes:
        stream: its name.
        consumer: the reader's name.
        processed: all epochs before this one are processed by it.
    """

    stream: str
    consumer: str
    processed: int

    def partition(self) -> str:
        """The partition to be asked for: another one each time."""
        return f"{self.stream}?{self.consumer}?{self.processed}?{secrets.token_hex(8)}"

    @classmethod
    def of(cls, partition: str) -> Question | None:
        """The inverse of `partition`; None for what is no question."""
        found = _QUESTION.fullmatch(partition)
        return None if found is None else cls(found[1], found[2], int(found[3]))


@final
@dataclass(frozen=True, slots=True)
class EpochRequest:
    """Asks for rows.

    Attributes:
        stream: its name.
        epoch: its number.
        subpartition: which; it is the only one of the partition that is made.
    """

    stream: str
    epoch: int
    subpartition: int

    def partition(self) -> str:
        """The partition to be asked for: another one each time."""
        return f"{self.stream}?@{self.epoch}?{self.subpartition}?{secrets.token_hex(8)}"

    @classmethod
    def of(cls, partition: str) -> EpochRequest | None:
        """The inverse of `partition`; None for anything else."""
        found = _EPOCH.fullmatch(partition)
        return None if found is None else cls(found[1], int(found[2]), int(found[3]))
