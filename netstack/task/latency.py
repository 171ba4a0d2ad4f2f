"""How long records take between tasks, and from sources to here, by markers that travel among them.

Takes: the clock of the host, markers that come. Gives: markers to the output; the latest latencies of each input and
of each source.

Rules:
- A task with a source marks its output once an interval; a task that a marker reaches sends it on. Each goes to one
  consumer of each partition, the next time to another. So the cost does not depend on records or channels.
- A marker leaves when a record would leave that was written in its place (`OpenBuffers.mark`), and counts when all
  records in front of it were processed. So back-pressure, the buffer timeout and the network are in it.
- Times are those of the hosts' clocks: exact within a host, and among hosts as far as their clocks agree.
"""

from __future__ import annotations

import math
import random
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, final

from ..events import UserEvent, encode_event

MARKER: Final = "latency"
"""The name of the event."""

HISTORY: Final = 128
"""Of each input and source so many latencies are remembered, as in Flink (`metrics.latency.history-size`)."""

MERGED: Final = 1024
"""At most so many latencies of several subtasks together, as many of each, but at least one."""

_TIMES: Final = struct.Struct(">iqq")  # the vertex of the source, when it marked, when the last task sent it on
_JITTER: Final = 0.2  # either way, so that the markers of several sources do not keep step


clock_ns: Callable[[], int] = time.time_ns
"""Of the host."""


@final
class TaskLatencies:
    """Those of one task.

    Attributes:
        due: from when on the task is to `mark`, in the ticks of its clock; infinite where it never is.
    """

    __slots__ = ("_edges", "_interval_s", "_send", "_sources", "_vertex", "due")

    def __init__(
        self,
        vertex: int,
        interval_s: float,
        send: Callable[[bytes], None],
        *,
        has_sources: bool,
    ) -> None:
        """Nothing was measured.

        Args:
            vertex: of the task.
            interval_s: between two markers of a source; 0 is never.
            send: takes a marker for the output.
            has_sources: whether markers begin here.
        """
        self.due = 0.0 if has_sources and interval_s else math.inf
        self._vertex = vertex
        self._interval_s = interval_s
        self._send = send
        self._edges: dict[int, deque[int]] = {}
        self._sources: dict[int, deque[int]] = {}

    def mark(self, ticks: float) -> None:
        """Sends a marker, and says when the next is due."""
        self.due = ticks + self._interval_s * random.uniform(1 - _JITTER, 1 + _JITTER)
        now_ns = clock_ns()
        self._forward(self._vertex, now_ns, now_ns)

    def arrived(self, index: int, payload: bytes) -> None:
        """A marker came through an input, and everything in front of it was processed.

        Raises:
            struct.error: it is none.
        """
        source, began_ns, sent_ns = _TIMES.unpack(payload)
        now_ns = clock_ns()
        for histogram, key, then_ns in ((self._edges, index, sent_ns), (self._sources, source, began_ns)):
            histogram.setdefault(key, deque(maxlen=HISTORY)).append(max(0, now_ns - then_ns) // 1000)
        self._forward(source, began_ns, now_ns)

    def rows(self) -> dict[str, list[int]]:
        """The latest latencies in microseconds: `input N` of each input, `source N` of each source's vertex."""
        return {
            f"{what} {key}": list(values)
            for what, histogram in (("input", self._edges), ("source", self._sources))
            for key, values in histogram.items()
        }

    def _forward(self, source: int, began_ns: int, now_ns: int) -> None:
        self._send(encode_event(UserEvent(MARKER, _TIMES.pack(source, began_ns, now_ns))))


def merged_rows(parts: Iterable[Mapping[str, Any]]) -> dict[str, list[int]]:
    """The rows of several subtasks as those of one; what is no row is left out."""
    histograms: dict[str, list[list[int]]] = {}
    for part in parts:
        for name, values in part.items():
            if isinstance(values, list):
                histograms.setdefault(str(name), []).append([each for each in values if type(each) is int])
    merged = {}
    for name, rows in histograms.items():
        most = max(1, MERGED // len(rows))
        merged[name] = [each for values in rows for each in values[:: -(-len(values) // most) or 1]]
    return merged


def summary_us(values: list[int]) -> dict[str, int]:
    """`count`, `p50_us`, `p99_us` and `max_us` of latencies in microseconds, at least one; exact, not of buckets."""
    ordered = sorted(values)
    p50, p99 = (ordered[math.ceil(part * len(ordered)) - 1] for part in (0.5, 0.99))
    return {"count": len(ordered), "p50_us": p50, "p99_us": p99, "max_us": ordered[-1]}
