"""What a partition and its writer need around them: the TaskManager's services, and the storage of a kept partition.

Takes and gives: only interfaces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ...base.errors import NetstackError
from ..buffer.buffer import BufferSource, Notify
from ..buffer.stored import Packaging


class StoredPartition(Protocol):
    """The storage of a partition that outlives its writer (`exchange.stored.store`), as this module uses it."""

    is_sealed: bool
    """Whether everything is stored."""
    on_cut: Callable[[], None] | None
    """Called between two records: the writer finishes every open buffer."""

    @property
    def error(self) -> NetstackError | None:
        """Why storing failed."""

    @property
    def stored_bytes(self) -> int:
        """Bytes on disk."""

    @property
    def data_bytes(self) -> int:
        """Framed bytes of records that were stored; a broadcast counts once."""

    @property
    def compressed_bytes(self) -> int:
        """Of these, bytes in compressed buffers."""

    def on_boundary(self) -> None:
        """Called after a whole record that finished a buffer."""

    def seal(self, *, drain: bool) -> None:
        """Completes the stored partition."""

    def fail(self, cause: str) -> None:
        """Fails the stored partition."""

    def release(self) -> None:
        """Deletes the stored partition."""

    def create_view(self, first: int, count: int, notify: Notify, packaging: Packaging) -> BufferSource:
        """Creates the read end of `count` subpartitions. Raises ChannelFailed if it cannot be read now."""


class PartitionHost(Protocol):
    """The services of the TaskManager that a partition and its writer use."""

    def now(self) -> float:
        """Monotonic seconds, for deadlines (virtual in tests)."""

    def ticks(self) -> float:
        """Seconds of the processor's clock, cheap enough to read for every record."""

    def flush_connections(self) -> None:
        """Makes every connection send what it can without waiting."""

    def hold(self) -> None:
        """Announces that `flush_held` follows before the loop runs other tasks: until then new data wakes no task."""

    def flush_held(self) -> None:
        """Ends `hold`: every connection with new data sends what it can."""

    def settle(self) -> None:
        """Makes every connection copy the bytes it is sending, so that lent memory may change."""

    def call_at(self, deadline_s: float, callback: Callable[[], None]) -> None:
        """Calls back once, at `deadline_s` of the clock `now`."""
