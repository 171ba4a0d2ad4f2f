"""Where a sender finds what it is asked for.

Takes: names of partitions. Gives: views of their subpartitions, once they are there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..buffer.buffer import BufferSource, Notify
from ..buffer.stored import Packaging
from ..errors import ChannelFailed
from ..events import Event


class ViewProvider(Protocol):
    """Finds partitions: the TaskManager."""

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
        """Calls `on_view` as soon as the partition exists, perhaps at once; `on_failed` when it does not come in time.

        Args:
            partition_id: which.
            subpartition: of it, the first if there are several.
            notify: told when there is something to read.
            on_view: gets the view.
            on_failed: gets to know why there is none.
            subpartitions: how many in a row.
            packaging: how what was kept in files is wanted.

        Returns:
            A function that withdraws the request.
        """

    def take_task_event(self, partition_id: str, event: Event) -> bool:
        """A consumer tells the task that produces a partition something. Returns whether anybody listens."""
