"""Consumers: how the consumers of one partition have ended.

Takes: acknowledgements and departures. Gives: who left before the end, as a ConsumerLost.

Rules: a consumer that acknowledged the end has processed every record. One that left before has either said that it
needs no more records (it closed its gate on purpose), or is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import final

from ...base.errors import ConsumerLost
from ...base.units import counted
from .subpartition import ResultSubpartition


@final
class Consumers:
    """The ends of the consumers of one partition, one for each subpartition."""

    def __init__(self, partition_id: str, subpartitions: Sequence[ResultSubpartition]) -> None:
        self._partition_id = partition_id
        self._subpartitions = subpartitions
        self.acknowledged: set[int] = set()
        """Those that have processed every record."""
        self.left: set[int] = set()
        """Those that have ended reading, at the end or before."""
        self._unsent: dict[int, int] = {}  # elements in the queue when a consumer left before the end

    @property
    def all_left(self) -> bool:
        """Whether nobody reads any more."""
        return len(self.left) == len(self._subpartitions)

    @property
    def all_acknowledged(self) -> bool:
        """Whether all have processed every record."""
        return len(self.acknowledged) == len(self._subpartitions)

    @property
    def all_ended(self) -> bool:
        """Whether each has processed every record or left."""
        return len(self.acknowledged | self.left) == len(self._subpartitions)

    @property
    def lost(self) -> list[int]:
        """Those that left before they had processed every record, and not on purpose."""
        early = sorted(self._unsent.keys() - self.acknowledged)
        return [index for index in early if not self._subpartitions[index].is_dismissed]

    def leave(self, index: int) -> None:
        """Records that a consumer ended reading."""
        self.left.add(index)
        if index not in self.acknowledged:
            self._unsent[index] = self._subpartitions[index].queued_buffers()

    def error(self, problem: str, left: Collection[int]) -> ConsumerLost:
        """Describes those that left before the end."""
        first = min(left)
        queue = self._subpartitions[first]
        unsent = self._unsent.get(first, 0) if queue.is_discarded else queue.queued_buffers()
        how = "closed its gate" if queue.is_dismissed else "was lost"
        return ConsumerLost(
            f"{problem} partition {self._partition_id!r}: the consumer of subpartition {first}"
            f"{f' (and {len(left) - 1} more)' if len(left) > 1 else ''} {how} before the end;"
            f" {counted(queue.sent_buffers, 'buffer')} had been sent to it and {unsent} not;"
            f" {len(self.acknowledged)} of {counted(len(self._subpartitions), 'consumer')} acknowledged that every"
            " record was processed. Release the partition, create it again, and write again what was not acknowledged",
            lost=tuple(sorted(left)),
            acknowledged=tuple(sorted(self.acknowledged)),
        )
