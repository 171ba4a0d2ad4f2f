"""A source that reads a dataset that another job kept under a name.

Takes: the locations of its partitions, from the JobManager. Gives: its records, each to one subtask.

Rules: the pieces of a dataset are the subpartitions of its partitions, ordered by subpartition. Each subtask reads an
even share of consecutive pieces. A dataset can be read any number of times, so a restarted attempt reads it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from ...base.errors import ConfigError
from ...base.ids import ChannelDescriptor
from ...network.reader import RecordReader
from .context import OperatorContext


@final
class KeptDataset:
    """The source operator that `StreamEnvironment.dataset` creates.

    Args:
        format: record format; None until the JobManager has looked the dataset up.
        partitions: `name`, `address` and `subpartitions` of each partition; None until then.

    Raises:
        ConfigError: the dataset was not looked up.
    """

    can_be_interrupted = True

    def __init__(
        self, dataset: str, format: str | None = None, partitions: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        if format is None or partitions is None:
            raise ConfigError(f"dataset {dataset!r} was not looked up; submit the job to a JobManager, which does that")
        self._format = format
        self._partitions = partitions
        self._reader: RecordReader[Any] | None = None
        self._has_ended = False

    def open(self, context: OperatorContext) -> None:
        """Determines the share of this subtask."""
        self._context = context
        self._has_ended = not self._channels()

    async def read(self) -> list[Any] | None:
        """The next records; None at the end."""
        if self._has_ended:
            return None
        if self._reader is None:
            self._reader = RecordReader(await self._context.open_gate(self._channels()), format=self._format)
        records = await self._reader.next_records()
        if records is None:
            self._has_ended = True
            self._reader.close()
        return records

    def snapshot(self) -> None:
        """Stores nothing: a restarted attempt reads the whole share again."""

    def close(self) -> None:
        """Closes the gate."""
        if self._reader is not None:
            self._reader.close()

    def _channels(self) -> list[ChannelDescriptor]:
        share = shares([int(each["subpartitions"]) for each in self._partitions], self._context.parallelism)[
            self._context.subtask
        ]
        return [
            ChannelDescriptor(
                str(self._partitions[partition]["address"]), str(self._partitions[partition]["name"]), first, count
            )
            for partition, first, count in share
        ]


def shares(subpartitions: Sequence[int], parallelism: int) -> list[list[tuple[int, int, int]]]:
    """The share of each subtask, as tuples of partition, first subpartition and number of subpartitions."""
    pieces = sorted((index, partition) for partition, count in enumerate(subpartitions) for index in range(count))
    result: list[list[tuple[int, int, int]]] = []
    for subtask in range(parallelism):
        mine = pieces[len(pieces) * subtask // parallelism : len(pieces) * (subtask + 1) // parallelism]
        ranges: dict[int, tuple[int, int]] = {}
        for subpartition, partition in mine:
            first, count = ranges.get(partition, (subpartition, 0))
            ranges[partition] = first, count + 1  # consecutive: pieces are in the order of subpartitions
        result.append([(partition, first, count) for partition, (first, count) in sorted(ranges.items())])
    return result
