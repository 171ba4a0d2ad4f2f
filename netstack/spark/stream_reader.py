"""`EpochReader`: reads a published stream as micro-batches of epochs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final, final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ..base.errors import ConfigError, NetstackError
from .consumer import StreamPoller, read_epoch
from .epoch_protocol import StreamState
from .row_conversion import RowConverter
from .source_options import Settings

LOGGER: Final = logging.getLogger("netstack.spark")
_COMMIT_S: Final = 2.0


@final
class Slice(InputPartition):
    """The input of one task.

    Attributes:
        endpoint: the index of the producer.
        start: the first epoch; -1 for a partition without epochs.
        end: the epoch after the last one.
    """

    def __init__(self, endpoint: int, subpartition: int, start: int = -1, end: int = 0) -> None:
        super().__init__((endpoint, subpartition, start, end))
        self.endpoint = endpoint
        self.subpartition = subpartition
        self.start = start
        self.end = end


@final
class EpochReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a published stream.

    An offset is `{address: epoch}` and covers everything before that epoch. Spark uses one reader in the driver, and
    copies of it in tasks. An epoch is never split, so a micro-batch has at least one, whatever the limits.
    """

    def __init__(self, settings: Settings, schema: Any) -> None:
        self._settings = settings
        self._schema = schema
        self._opened: StreamPoller | None = None
        self._ends: Mapping[str, int] = {}  # with Trigger.AvailableNow: the end of the epochs available at its start

    def __getstate__(self) -> dict[str, Any]:
        return {"_settings": self._settings, "_schema": self._schema, "_opened": None, "_ends": {}}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - pyspark's names, here and below
        """Returns the offset where a new query starts.

        Raises:
            ConnectionLost: a publisher was unreachable for `retrySeconds`.
        """
        starting = self._settings.starting_epoch
        if isinstance(starting, int):
            return dict.fromkeys(self._addresses, starting)
        states = self._poller.wait_for_all()
        return {each: states[each].first if starting == "oldest" else states[each].next for each in self._addresses}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Returns one of the options' limits, because Spark accepts one only; `latestOffset` applies all of them."""
        settings = self._settings
        if settings.max_rows is not None:
            return ReadMaxRows(settings.max_rows)
        return ReadMaxFiles(settings.max_epochs) if settings.max_bytes is None else ReadMaxBytes(settings.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Makes the query end after the epochs that are available now.

        Raises:
            ConnectionLost: a publisher was unreachable for `retrySeconds`.
        """
        self._ends = {address: state.next for address, state in self._poller.wait_for_all().items()}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Returns the end of the next micro-batch: after the available epochs, within the limits.

        Raises:
            NetstackError: epochs are missing, and the option failOnDataLoss is true.
        """
        # This acknowledges the batch that ended at `start`. Spark calls `commit` only when it plans another batch, and
        # a publisher that was restarted has lost the acknowledgement.
        states = self._poller.poll(start)
        offset, ends = dict(start), {}
        for address, state in states.items():
            offset[address] = self._readable(address, start.get(address), state)
            ends[address] = min(state.next, self._ends.get(address, state.next))
        room = _Room(self._settings, limit)
        turn = sum(offset.values()) % max(1, len(states))  # the first publisher changes from batch to batch
        order = [address for address in self._addresses if address in states]
        waiting = order[turn:] + order[:turn]
        while waiting and not room.is_full:
            for address in tuple(waiting):
                at = offset[address] - states[address].first
                if offset[address] >= ends[address]:
                    waiting.remove(address)
                elif room.take(states[address].rows[at], states[address].bytes[at]):
                    offset[address] += 1
        return dict(start) if room.waits_for_more and not self._ends else offset

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802
        """Returns the end of all epochs that were available at the last poll: `latestOffset` in a query's progress."""
        states = {} if self._opened is None else self._opened.states
        return {address: state.next for address, state in states.items()} or None

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Returns an input for each subpartition of each producer that has new epochs.

        Raises:
            NetstackError: epochs are missing, and the option failOnDataLoss is true.
        """
        slices: list[InputPartition] = []
        wanted = {address for address, epoch in end.items() if epoch > start.get(address, 0)}
        states = self._poller.states
        if not wanted.issubset(states):  # an earlier driver began this batch
            states = self._poller.wait_for_all()
        for index, address in enumerate(self._addresses):
            if address in wanted:
                first = self._readable(address, start.get(address), states[address])
                if first < end[address]:
                    slices += [Slice(index, each, first, end[address]) for each in range(self._settings.subpartitions)]
        return slices

    def read(self, partition: Any) -> Iterator[Any]:
        """Reads the rows of one input, in a task."""
        endpoint = self._settings.endpoints[partition.endpoint]

        def records() -> Iterator[Any]:
            for epoch in range(partition.start, partition.end):
                yield from read_epoch(endpoint, self._settings.partition, epoch, partition.subpartition)

        return RowConverter(self._schema, corrupt=self._settings.corrupt_column).batches(records())

    def commit(self, end: dict[str, int]) -> None:
        """Acknowledges all epochs before `end`."""
        self._poller.poll(end, wait_s=_COMMIT_S)

    def stop(self) -> None:
        """Closes the connections, at the end of the query."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _addresses(self) -> list[str]:
        return [endpoint.address for endpoint in self._settings.endpoints]

    @property
    def _poller(self) -> StreamPoller:
        if self._opened is None:
            settings = self._settings
            self._opened = StreamPoller(settings.partition, settings.consumer, settings.endpoints)
        return self._opened

    def _readable(self, address: str, start: int | None, state: StreamState) -> int:
        """The epoch to continue at: `start`, or the oldest one if the query has not read this publisher before."""
        if start is None or state.first <= start <= state.written:
            return state.first if start is None else start
        if start < state.first:
            lost = f"epochs {start} to {state.first - 1} are gone"
        else:
            lost = f"it is at epoch {state.written}, and this query at {start}: the stream was started anew"
        where = f"stream {self._settings.partition!r} at {address}, consumer {self._settings.consumer!r}"
        if self._settings.fails_on_data_loss:
            raise NetstackError(
                f"{where}: {lost}. Another query may have read under the same name: give each query its own (option"
                " consumer). To continue at the oldest epoch, give the option failOnDataLoss=false; to start there, a"
                " new checkpoint and startingEpoch=oldest"
            )
        LOGGER.warning("%s: %s; the query continues at epoch %d", where, lost, state.first)
        return state.first


@final
class RefusingReader(DataSourceStreamReader):
    """Raises an error at its first call.

    If `streamReader` itself raises, pyspark reports an UnboundLocalError of its own in place of the reason.
    """

    def __init__(self, error: ConfigError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - pyspark's names, here and below
        """Raises the error, for a new query."""
        raise self._error

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Raises the error, for a query that continues."""
        raise self._error

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Raises the error, for a query that repeats a micro-batch."""
        raise self._error

    def read(self, partition: Any) -> Iterator[Any]:
        """Raises the error; never called, because there are no partitions."""
        raise self._error


class _Room:
    """The limits of a micro-batch.

    Attributes:
        is_full: whether the next epoch does not fit.
    """

    def __init__(self, settings: Settings, limit: ReadLimit) -> None:
        self._max: list[int | None] = [settings.max_epochs, settings.max_rows, settings.max_bytes]
        if isinstance(limit, ReadAllAvailable):  # overrides the options
            self._max = [None, None, None]
        self._least_rows = limit.min_rows if isinstance(limit, ReadMinRows) else 0
        if isinstance(limit, ReadMaxFiles):
            self._max[0] = limit.max_files
        elif isinstance(limit, ReadMaxRows):
            self._max[1] = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            self._max[2] = limit.max_bytes
        self._taken = [0, 0, 0]
        self.is_full = False

    def take(self, rows: int, size: int) -> bool:
        """Adds an epoch if it fits or is the first; returns whether it was added."""
        taken = [self._taken[0] + 1, self._taken[1] + rows, self._taken[2] + size]
        is_too_much = any(most is not None and each > most for each, most in zip(taken, self._max, strict=True))
        if self.is_full or (is_too_much and self._taken[0]):
            self.is_full = True
            return False
        self._taken = taken
        return True

    @property
    def waits_for_more(self) -> bool:
        """Whether the batch has fewer rows than the limit requires."""
        return self._taken[1] < self._least_rows
