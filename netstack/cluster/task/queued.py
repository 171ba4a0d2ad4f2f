"""The latency markers and checkpoint barriers in the queues of tasks: how old they are, and how much data is in front.

Takes: the events of the queues. Gives: plain rows for the JobManager.

A row of `markers` is: place, vertex of the source, microseconds since the marker was forwarded and since the source
emitted it. A row of `barriers` is: place, id of the checkpoint, bytes in front of its barriers; id 0 stands for the
data of channels in which no barrier is queued. A place is the number of an input, or below 0 that of an output
(`output_place`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias, final

from ...base.errors import RemoteProtocolError
from ...base.events import CheckpointBarrier, UserEvent, decode_event

MARKER: Final = "latency"
"""The name of the marker event."""

MOST_MARKERS: Final = 1024
MOST_BARRIERS: Final = 256
"""Maximum number of merged rows. The oldest marker and the newest barriers are among them."""

NO_BARRIER: Final = 0

Queued: TypeAlias = dict[str, list[list[int]]]
"""The rows of `markers` and `barriers`."""


def output_place(output: int) -> int:
    """The place of an output."""
    return -1 - output


@final
class QueuedEvents:
    """The markers and barriers in the queues of one task; false if there are none.

    Args:
        ages: returns of a marker's payload the source's vertex, and the microseconds of a row.
    """

    __slots__ = ("_ages", "_barriers", "_markers")

    def __init__(self, ages: Callable[[bytes], tuple[int, int, int]]) -> None:
        self._ages = ages
        self._markers: list[list[int]] = []
        self._barriers: dict[tuple[int, int], int] = {}

    def __bool__(self) -> bool:
        return bool(self._markers or self._barriers)

    def add(self, place: int, events: Iterable[tuple[bytes, int]]) -> bool:
        """Adds events, each with the bytes of data in front of it. Returns whether a barrier is among them.

        Ignores a malformed event: the task that reads it fails.
        """
        has_barrier = False
        for data, ahead_bytes in events:
            try:
                event = decode_event(data)
                if isinstance(event, UserEvent) and event.name == MARKER:
                    self.add_marker(place, event.payload)
            except (RemoteProtocolError, struct.error):
                continue
            if isinstance(event, CheckpointBarrier):
                has_barrier = True
                self._count(place, event.checkpoint_id, ahead_bytes)
        return has_barrier

    def add_marker(self, place: int, payload: bytes) -> None:
        """Adds a marker."""
        self._markers.append([place, *self._ages(payload)])

    def add_data(self, place: int, data_bytes: int) -> None:
        """Adds the data of a channel in which no barrier is queued."""
        if data_bytes:
            self._count(place, NO_BARRIER, data_bytes)

    def _count(self, place: int, checkpoint_id: int, data_bytes: int) -> None:
        self._barriers[place, checkpoint_id] = self._barriers.get((place, checkpoint_id), 0) + data_bytes

    def plain(self) -> Queued:
        """Returns the rows."""
        return merged_queued(
            [{"markers": self._markers, "barriers": [[*key, size] for key, size in self._barriers.items()]}]
        )


def merged_queued(
    parts: Iterable[Mapping[str, Any]], *, most_markers: int = MOST_MARKERS, most_barriers: int = MOST_BARRIERS
) -> Queued:
    """Merges rows of several tasks: the bytes of the same barrier are added. Ignores what is no row."""
    markers: list[list[int]] = []
    barriers: dict[tuple[int, int], int] = {}
    for part in parts:
        markers += _rows(part.get("markers"), 4)
        for place, checkpoint_id, size in _rows(part.get("barriers"), 3):
            barriers[place, checkpoint_id] = barriers.get((place, checkpoint_id), 0) + size
    markers.sort(key=lambda row: -row[3])  # so that the oldest one is kept
    kept = sorted(barriers.items(), key=lambda item: -item[0][1])[:most_barriers]
    return {
        "markers": markers[:: -(-len(markers) // most_markers) or 1],
        "barriers": [[place, checkpoint_id, size] for (place, checkpoint_id), size in kept],
    }


def _rows(rows: object, columns: int) -> list[list[int]]:
    if not isinstance(rows, list):
        return []
    return [
        row
        for row in rows
        if isinstance(row, list)
        and len(row) == columns
        and all(type(each) is int and -(1 << 62) < each < 1 << 62 for each in row)
    ]
