"""The interface through which a sender opens subpartitions.

Takes: names of partitions. Gives: views of their subpartitions, as soon as the partitions exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ...base.errors import ChannelFailed
from ...base.events import Event
from ..buffer.buffer import BufferSource, Notify
from ..buffer.stored import Packaging


class ViewProvider(Protocol):
    """Opens partitions by name: the TaskManager."""

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
        """Calls `on_view` when the partition exists, possibly at once, or `on_failed` after a timeout or an error.

        Args:
            partition_id: the partition.
            subpartition: the subpartition, or the first of several.
            notify: called when there is data to read.
            on_view: receives the view.
            on_failed: receives the reason why there is none.
            subpartitions: number of consecutive subpartitions.
            packaging: how a kept partition is delivered.

        Returns:
            A function that cancels the request.
        """

    def take_task_event(self, partition_id: str, event: Event) -> bool:
        """Delivers a consumer's event to the task that produces a partition. Returns whether the task takes events."""
