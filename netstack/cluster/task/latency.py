"""Latency markers: measure how long records take between tasks, and from sources to each task.

Takes: the monotonic clock of the host, markers from the inputs. Gives: markers to the output; the latest latencies of
each input and of each source.

Rules:
- A task with a source emits a marker once per interval. Every other task forwards the markers it receives. A marker
  goes to one consumer of each partition, in turn, so the cost does not depend on the number of records or channels.
- A marker is sent when a record written at its place would be sent (`OpenBuffers.mark`), and measured when all records
  before it were processed. So the latency includes back-pressure, the buffer timeout and the network.
- A marker that still waits in a queue counts with its age, which is a lower bound of its latency (`queued`): the
  latencies of measured markers are those before the queues grew.
- Times are exact within a host, whose processes share a monotonic clock. Between hosts they are as accurate as the
  clocks of the hosts agreed when the processes started: setting a clock later changes nothing.
"""

from __future__ import annotations

import math
import random
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, final

from ...base.events import UserEvent, encode_event
from ...base.timing.steady_clock import CLOCK_ID, OFFSET_NS
from .queued import MARKER

HISTORY: Final = 128
"""Latencies stored per input and per source, as in Flink (`metrics.latency.history-size`)."""

MERGED: Final = 1024
"""Maximum number of latencies in a merged row, shared evenly by its subtasks; each contributes at least one."""

_TIMES: Final = struct.Struct(">i8sqq8sqq")
"""The vertex of the source; the time of its marker, and the time of the last forwarding: each with the id of the clock,
its value, and what to add to it for the time since 1970."""
_JITTER: Final = 0.2  # randomises the interval, so that sources do not send their markers in step


_Time: TypeAlias = tuple[bytes, int, int]

clock_ns: Callable[[], int] = time.monotonic_ns
"""The clock that all processes of the host share."""


@final
class TaskLatencies:
    """The latency markers of one task.

    Attributes:
        due: time of the next `mark`, in ticks of the task's clock; infinite if the task emits no markers.
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
        """Starts without measurements.

        Args:
            vertex: the task's vertex.
            interval_s: interval of a source's markers in seconds; 0 disables them.
            send: sends a marker to the output.
            has_sources: whether the task has sources, which emit markers.
        """
        self.due = 0.0 if has_sources and interval_s else math.inf
        self._vertex = vertex
        self._interval_s = interval_s
        self._send = send
        self._edges: dict[int, deque[int]] = {}
        self._sources: dict[int, deque[int]] = {}

    def mark(self, ticks: float) -> None:
        """Emits a marker, and sets the time of the next one."""
        self.due = ticks + self._interval_s * random.uniform(1 - _JITTER, 1 + _JITTER)
        now = _now()
        self._forward(self._vertex, now, now)

    def on_marker(self, index: int, payload: bytes) -> None:
        """Measures and forwards a marker from an input, once all records before it were processed.

        Raises:
            struct.error: the payload is no marker.
        """
        source, began, sent = _unpacked(payload)
        now = _now()
        for histogram, key, then in ((self._edges, index, sent), (self._sources, source, began)):
            histogram.setdefault(key, deque(maxlen=HISTORY)).append(_elapsed_ns(then, now) // 1000)
        self._forward(source, began, now)

    def rows(self) -> dict[str, list[int]]:
        """The latest latencies in microseconds, by `input N` for each input and `source N` for each source vertex."""
        return {
            f"{what} {key}": list(values)
            for what, histogram in (("input", self._edges), ("source", self._sources))
            for key, values in histogram.items()
        }

    def _forward(self, source: int, began: _Time, now: _Time) -> None:
        self._send(encode_event(UserEvent(MARKER, _TIMES.pack(source, *began, *now))))


def marker_ages_us(payload: bytes) -> tuple[int, int, int]:
    """Returns the source's vertex, and the time since a marker was forwarded and since it was emitted.

    Raises:
        struct.error: the payload is no marker.
    """
    source, began, sent = _unpacked(payload)
    now = _now()
    return source, _elapsed_ns(sent, now) // 1000, _elapsed_ns(began, now) // 1000


def _unpacked(payload: bytes) -> tuple[int, _Time, _Time]:
    source, *times = _TIMES.unpack(payload)
    return source, (times[0], times[1], times[2]), (times[3], times[4], times[5])


def _now() -> _Time:
    return CLOCK_ID, clock_ns(), OFFSET_NS


def _elapsed_ns(then: _Time, now: _Time) -> int:
    """The time between two readings, also of clocks of two hosts; never negative."""
    elapsed_ns = now[1] - then[1]
    if now[0] != then[0]:
        elapsed_ns += now[2] - then[2]
    return max(0, elapsed_ns)


def merged_rows(parts: Iterable[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Merges the rows of several subtasks; ignores values that are no rows."""
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


_QUANTILES: Final = {"p50_us": 0.5, "p99_us": 0.99, "max_us": 1.0}


def summary_us(values: Sequence[int], waiting: Sequence[int] = ()) -> dict[str, Any]:
    """The quantiles of at least one latency in microseconds.

    Args:
        values: measured latencies.
        waiting: the present ages of markers in queues: lower bounds of their latencies.

    Returns:
        `count` measured and `waiting` markers; `p50_us`, `p99_us` and `max_us`; `at_least`: the names of those that are
        lower bounds, because later measurements of waiting markers can raise them. The others are exact.
    """
    ordered = sorted((*values, *waiting))
    latest = sorted((*values, *[math.inf] * len(waiting)))  # as if the waiting markers never arrived
    ranks = {name: math.ceil(part * len(ordered)) - 1 for name, part in _QUANTILES.items()}
    return {
        "count": len(values),
        "waiting": len(waiting),
        **{name: ordered[rank] for name, rank in ranks.items()},
        "at_least": [name for name, rank in ranks.items() if latest[rank] != ordered[rank]],
    }
