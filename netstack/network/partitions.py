"""The partitions of a TaskManager by name, and the requests that wait for a partition.

Takes: partitions as they are created, view requests as they arrive. Gives: views, or `PartitionNotFound` after a
timeout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from ..base.errors import ChannelFailed, ErrorCode, LocalProtocolError, PartitionNotFound, ProducerFailed
from ..base.events import Event
from ..base.ids import PartitionId
from ..exchange.buffer.buffer import BufferSource, Notify
from ..exchange.buffer.stored import Packaging
from ..exchange.outbound.partition import ResultPartition

REMEMBERED_FAILURES: Final = 1000
"""The most causes of failed partitions kept for late consumers."""

WAITING_AT_MOST: Final = 1 << 20
"""The most requests that wait for partitions, over all consumers; each takes about 800 bytes."""


@final
class _Request:
    __slots__ = ("notify", "on_failed", "on_view", "packaging", "partition_id", "subpartition", "subpartitions")

    def __init__(
        self,
        partition_id: str,
        subpartition: int,
        notify: Notify,
        on_view: Callable[[BufferSource], None],
        on_failed: Callable[[ChannelFailed], None],
        subpartitions: int,
        packaging: Packaging,
    ) -> None:
        self.partition_id = partition_id
        self.subpartition = subpartition
        self.notify = notify
        self.on_view = on_view
        self.on_failed = on_failed
        self.subpartitions = subpartitions
        self.packaging = packaging


@final
class PartitionRegistry:
    """Finds partitions for local and remote consumers (a `ViewProvider`)."""

    def __init__(
        self, *, timeout_s: float, now: Callable[[], float], call_at: Callable[[float, Callable[[], None]], None]
    ) -> None:
        """Args: how long a request waits for its partition; the clock; schedules a callback."""
        self._timeout_s = timeout_s
        self._now = now
        self._call_at = call_at
        self._partitions: dict[str, ResultPartition] = {}
        self._failed: dict[str, str] = {}
        self._waiting: dict[str, dict[_Request, None]] = {}
        self._deadlines: dict[_Request, float] = {}  # in order of the deadlines, because all timeouts are equal
        self._is_armed = False
        self._answers: dict[str, Callable[[str], None]] = {}

    def answer(self, prefix: str, make: Callable[[str], None]) -> None:
        """Calls `make` with the name of each requested partition `PREFIX?...` that does not exist."""
        self._answers[prefix] = make

    def add(self, partition: ResultPartition) -> None:
        """Registers a new partition and serves the requests that wait for it.

        Raises:
            LocalProtocolError: the name is in use.
        """
        name = partition.partition_id
        if name in self._partitions:
            raise LocalProtocolError(
                f"partition {name!r} already exists in this TaskManager; release it, or choose another name"
            )
        self._partitions[name] = partition
        self._failed.pop(name, None)
        if partition.is_readable:
            self.on_readable(partition)

    def on_readable(self, partition: ResultPartition) -> None:
        """Serves the requests that wait for a partition which has become readable."""
        for request in self._waiting.pop(partition.partition_id, ()):
            del self._deadlines[request]
            self._serve(partition, request)

    def remove(self, partition: ResultPartition) -> None:
        """Removes a released partition; the cause of a failed one is kept for late consumers."""
        self._partitions.pop(partition.partition_id, None)
        if partition.failure is not None:
            self._failed[partition.partition_id] = partition.failure
            if len(self._failed) > REMEMBERED_FAILURES:
                del self._failed[next(iter(self._failed))]

    def all(self) -> tuple[ResultPartition, ...]:
        """All registered partitions."""
        return tuple(self._partitions.values())

    def find(self, partition_id: str) -> ResultPartition | None:
        """The partition with this name, or None."""
        return self._partitions.get(PartitionId(partition_id))

    def open_view(
        self,
        partition_id: str,
        subpartition: int,
        notify: Notify,
        on_view: Callable[[BufferSource], None],
        on_failed: Callable[[ChannelFailed], None],
        subpartitions: int = 1,
        packaging: Packaging = Packaging.PLAIN,
    ) -> Callable[[], None]:
        """Calls `on_view` when the partition is readable, or `on_failed`, as `ViewProvider.open_view` documents."""
        request = _Request(partition_id, subpartition, notify, on_view, on_failed, subpartitions, packaging)
        partition = self._partitions.get(partition_id)
        if partition is not None and partition.is_readable:
            self._serve(partition, request)
            return _nothing
        failure = self._failed.get(partition_id)
        if failure is not None:
            on_failed(ProducerFailed(ErrorCode.PRODUCER_FAILED, failure, channel=f"partition {partition_id!r}"))
            return _nothing
        if len(self._deadlines) >= WAITING_AT_MOST:
            on_failed(
                PartitionNotFound(
                    ErrorCode.PARTITION_NOT_FOUND,
                    f"partition {partition_id!r} does not exist yet, and {WAITING_AT_MOST} requests already wait"
                    " here, which is the maximum; try later",
                )
            )
            return _nothing
        self._waiting.setdefault(partition_id, {})[request] = None
        self._deadlines[request] = deadline = self._now() + self._timeout_s
        if not self._is_armed:  # one timer for all requests
            self._is_armed = True
            self._call_at(deadline, self._expire)
        prefix, mark, _ = partition_id.partition("?")
        make = self._answers.get(prefix)
        if mark and make is not None:
            make(partition_id)
        return lambda: self._withdraw(request)

    def take_task_event(self, partition_id: str, event: Event) -> bool:
        """Passes an event to the task that produces a partition. Returns whether the task accepts events."""
        partition = self._partitions.get(partition_id)
        if partition is None or partition.on_task_event is None:
            return False
        partition.on_task_event(event)
        return True

    def _serve(self, partition: ResultPartition, request: _Request) -> None:
        try:
            view = partition.create_view(request.subpartition, request.notify, request.subpartitions, request.packaging)
        except ChannelFailed as error:
            request.on_failed(error)
        else:
            request.on_view(view)

    def _expire(self) -> None:
        """Fails all requests whose deadline has passed, and schedules the next call."""
        now = self._now()
        self._is_armed = False
        while self._deadlines:
            request, deadline = next(iter(self._deadlines.items()))
            if deadline > now:
                self._is_armed = True
                self._call_at(deadline, self._expire)
                return
            self._withdraw(request)
            known = ", ".join(sorted(self._partitions)[:5]) or "none"
            if request.partition_id in self._partitions:
                request.on_failed(
                    PartitionNotFound(
                        ErrorCode.PARTITION_NOT_FOUND,
                        f"the blocking partition {request.partition_id!r} is still being written after"
                        f" {self._timeout_s:g} s; request it after its producer has finished",
                    )
                )
                continue
            request.on_failed(
                PartitionNotFound(
                    ErrorCode.PARTITION_NOT_FOUND,
                    f"no partition {request.partition_id!r} was created within {self._timeout_s:g} s"
                    f" (known: {known}); check its name and that the producer runs at this address",
                )
            )

    def _withdraw(self, request: _Request) -> None:
        if self._deadlines.pop(request, None) is None:
            return
        waiting = self._waiting[request.partition_id]
        del waiting[request]
        if not waiting:
            del self._waiting[request.partition_id]


def _nothing() -> None:
    """The withdrawal of a request that was served at once."""
