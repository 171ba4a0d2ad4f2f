"""The TaskManager views of `netstack top`: jobs, rates and the history of the last minute, without terminal output.

Takes: samples of `TaskManager.statistics` with their times. Gives: frozen views, and sparklines.

Rates are differences of counters between two samples. A counter that fell, because a partition was released, gives the
rate 0. A rate covers the time since the sample before it, so a lost TaskManager leaves a gap.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

SPAN_S: Final = 60.0
"""Length of the histories."""
CHANNELS_SHOWN: Final = 4

_NOT_YET: Final = "not connected yet"
_BARS: Final = "▁▂▃▄▅▆▇█"

History: TypeAlias = tuple[tuple[float, float, float], ...]
"""Values with the time they cover, oldest first: (start, end, value) with times in seconds before now."""


@dataclass(frozen=True, slots=True)
class ChannelView:
    """One channel that a job of this TaskManager writes to.

    Attributes:
        peer: address of the reader.
        credit: number of buffers it may still send.
    """

    peer: str
    partition: str
    subpartition: int
    credit: float
    credits: History


@dataclass(frozen=True, slots=True)
class JobView:
    """One job on one TaskManager. Rates are None at the first look.

    Attributes:
        slots: number of slots it holds, or waits for.
        age_s: time since it was requested.
        tasks: number of tasks that are `running`, `finished`, `failed`.
        sent_bytes_per_s: bytes sent over the network.
        out_history: `out_bytes_per_s` over the last minute.
        in_history: `in_bytes_per_s` over the last minute.
        backpressured_ms_per_s: back-pressured time of the partition that waits most.
        idle_ms_per_s: idle time of the gate that waits most.
        out_pool_usage: usage of the fullest partition's pool; above 1 with overdraft buffers.
        in_pool_usage: usage of the fullest gate's pool.
        memory_bytes: memory reserved for its network buffers; 0 if it uses the shared ones.
        used_memory_bytes: the part of `memory_bytes` in use.
        channels: the channels with the least credit.
    """

    job_id: str
    name: str
    slots: int
    is_open: bool
    age_s: float
    tasks: dict[str, int]
    out_bytes_per_s: float | None
    in_bytes_per_s: float | None
    out_records_per_s: float | None
    in_records_per_s: float | None
    sent_bytes_per_s: float | None
    received_bytes_per_s: float | None
    out_history: History
    in_history: History
    backpressured_ms_per_s: float
    idle_ms_per_s: float
    out_pool_usage: float
    in_pool_usage: float
    memory_bytes: int
    used_memory_bytes: int
    channel_count: int
    channels: tuple[ChannelView, ...]


@dataclass(frozen=True, slots=True)
class TaskManagerView:
    """One TaskManager.

    Attributes:
        gone: why it cannot be reached; empty if it can. The other fields then have the values of the last sample.
        hostname: name of its host; empty until the first sample.
        held_memory_bytes: memory reserved by jobs.
        used_memory_bytes: memory in use by tasks and connections.
        cpu_percent: CPU time since the last sample, in percent of one CPU; None in the first sample.
    """

    address: str
    gone: str
    hostname: str
    version: str
    uptime_s: float
    slots: int
    used_slots: int
    memory_bytes: int
    held_memory_bytes: int
    used_memory_bytes: int
    cpu_percent: float | None
    cpus: int
    jobs: tuple[JobView, ...]


def snapshot_document(taskmanagers: Sequence[TaskManagerView]) -> dict[str, Any]:
    """The views of all TaskManagers as plain data."""
    return {"taskmanagers": [dataclasses.asdict(each) for each in taskmanagers]}


@final
class TaskManagerHistory:
    """The samples of one TaskManager.

    Attributes:
        has_answered: whether there was ever a sample.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._problem = _NOT_YET
        self.has_answered = False
        self._document: Mapping[str, Any] = {}
        self._cpu = _Rate()
        self._jobs: dict[str, _JobHistory] = {}

    def add(self, document: Mapping[str, Any], now_s: float) -> None:
        """Adds a sample."""
        if self._problem or document["pid"] != self._document.get("pid"):
            self._cpu = _Rate()  # the time without samples has no rates
            self._jobs = {}
        self._problem = ""
        self.has_answered = True
        self._document = document
        self._cpu.add(document["cpu_s"], now_s)
        rows = {row["job_id"]: row for row in document["jobs"]}
        self._jobs = {job_id: self._jobs.get(job_id) or _JobHistory() for job_id in rows}
        for job_id, row in rows.items():
            self._jobs[job_id].add(row, now_s)

    @property
    def is_known(self) -> bool:
        """Whether there are two samples, and so rates, or the connection failed."""
        return self._problem not in ("", _NOT_YET) or self._cpu.last is not None

    def lost(self, why: str) -> None:
        """Marks the TaskManager as unreachable."""
        self._problem = why or "lost"

    def view(self, now_s: float) -> TaskManagerView:
        """The view of the last sample, with histories relative to now."""
        document = self._document
        jobs = [] if self._problem else [history.view(now_s) for history in self._jobs.values()]
        held = [job for job in jobs if job.is_open]
        slots, memory_bytes = int(document.get("slots", 0)), int(document.get("memory_bytes", 0))
        return TaskManagerView(
            address=self._address,
            gone=self._problem,
            hostname=str(document.get("hostname", "")),
            version=str(document.get("version", "")),
            uptime_s=float(document.get("uptime_s", 0.0)),
            slots=slots,
            used_slots=slots - int(document.get("free_slots", slots)),
            memory_bytes=memory_bytes,
            held_memory_bytes=memory_bytes - int(document.get("free_memory_bytes", memory_bytes)),
            used_memory_bytes=sum(job.used_memory_bytes for job in held) + int(document.get("shared_used_bytes", 0)),
            cpu_percent=None if self._cpu.last is None else 100 * self._cpu.last,
            cpus=int(document.get("cpus", 0)),
            jobs=tuple(jobs),
        )


class _Rate:
    __slots__ = ("_count", "_history", "_seen_s", "last")

    def __init__(self) -> None:
        self.last: float | None = None
        self._count = 0.0
        self._seen_s: float | None = None
        self._history: deque[tuple[float, float, float]] = deque()

    def add(self, count: float, now_s: float) -> None:
        if self._seen_s is not None and now_s > self._seen_s:
            self.last = max(0.0, count - self._count) / (now_s - self._seen_s)
            _remember(self._history, self._seen_s, now_s, self.last)
        self._count, self._seen_s = count, now_s

    def history(self, now_s: float) -> History:
        return _before(self._history, now_s)


_RATES: Final = {
    "out_bytes": ("netstack_output_bytes_total",),
    "in_bytes": ("netstack_input_local_bytes_total", "netstack_input_remote_bytes_total"),
    "out_records": ("netstack_output_records_total",),
    "in_records": ("netstack_input_records_total",),
    "sent": ("netstack_sent_bytes_total",),
    "received": ("netstack_received_bytes_total",),
}


class _JobHistory:
    def __init__(self) -> None:
        self._row: Mapping[str, Any] = {}
        self._rates = {name: _Rate() for name in _RATES}
        self._credits: dict[tuple[str, str, int], deque[tuple[float, float, float]]] = {}
        self._seen_s: float | None = None

    def add(self, row: Mapping[str, Any], now_s: float) -> None:
        self._row = row
        metrics = row.get("metrics")
        if not metrics:  # the job waits for its slots, or the TaskManager shortened its report
            return
        for name, counters in _RATES.items():
            self._rates[name].add(sum(sum(_values(metrics, counter)) for counter in counters), now_s)
        since_s = now_s if self._seen_s is None else self._seen_s
        credits = {}
        for channel in row["channels"]:
            key = channel["peer"], channel["partition"], channel["subpartition"]
            credits[key] = self._credits.get(key) or deque()
            _remember(credits[key], since_s, now_s, float(channel["credit"]))
        self._credits, self._seen_s = credits, now_s

    def view(self, now_s: float) -> JobView:
        row, rates = self._row, self._rates
        metrics = row.get("metrics", {})
        counts = Counter(row["tasks"].values())
        return JobView(
            job_id=row["job_id"],
            name=row["name"],
            slots=row["slots"],
            is_open="metrics" in row,
            age_s=row["age_s"],
            tasks={state: counts[state] for state in ("running", "finished", "failed")},
            out_bytes_per_s=rates["out_bytes"].last,
            in_bytes_per_s=rates["in_bytes"].last,
            out_records_per_s=rates["out_records"].last,
            in_records_per_s=rates["in_records"].last,
            sent_bytes_per_s=rates["sent"].last,
            received_bytes_per_s=rates["received"].last,
            out_history=rates["out_bytes"].history(now_s),
            in_history=rates["in_bytes"].history(now_s),
            backpressured_ms_per_s=max(_values(metrics, "netstack_output_backpressured_ms_per_second"), default=0.0),
            idle_ms_per_s=max(_values(metrics, "netstack_input_idle_ms_per_second"), default=0.0),
            out_pool_usage=max(_values(metrics, "netstack_output_pool_usage_ratio"), default=0.0),
            in_pool_usage=max(_values(metrics, "netstack_input_pool_usage_ratio"), default=0.0),
            memory_bytes=row["memory_bytes"],
            used_memory_bytes=int(sum(_values(metrics, "netstack_memory_used_bytes"))) if row["memory_bytes"] else 0,
            channel_count=row.get("channel_count", 0),
            channels=tuple(self._channel(channel, now_s) for channel in row.get("channels", ())[:CHANNELS_SHOWN]),
        )

    def _channel(self, channel: Mapping[str, Any], now_s: float) -> ChannelView:
        key = channel["peer"], channel["partition"], channel["subpartition"]
        return ChannelView(*key, float(channel["credit"]), _before(self._credits.get(key, ()), now_s))


def sparkline(history: History, width: int, *, top: float = 0.0) -> str:
    """Draws the last minute as bars, the newest at the right; a blank means no sample.

    Args:
        history: the values to draw.
        width: number of characters.
        top: value of a full bar; larger values raise it.
    """
    step_s = SPAN_S / width
    means: list[float | None] = []
    for place in range(width):
        oldest_s, newest_s = (width - place) * step_s, (width - place - 1) * step_s
        seen = [value for since_s, until_s, value in history if since_s > newest_s and until_s < oldest_s]
        means.append(sum(seen) / len(seen) if seen else None)
    highest = max([top, *(mean for mean in means if mean is not None)])
    return "".join(" " if mean is None else _bar(mean, highest) for mean in means)


def _bar(value: float, highest: float) -> str:
    return _BARS[0] if highest <= 0 else _BARS[min(len(_BARS) - 1, int(value / highest * len(_BARS)))]


def _values(metrics: Mapping[str, Any], name: str) -> list[float]:
    values = metrics.get(name, {})
    return list(values.values()) if isinstance(values, Mapping) else [values]


def _remember(history: deque[tuple[float, float, float]], since_s: float, until_s: float, value: float) -> None:
    history.append((since_s, until_s, value))
    while history[0][1] <= until_s - SPAN_S:
        history.popleft()


def _before(history: Iterable[tuple[float, float, float]], now_s: float) -> History:
    return tuple((now_s - since_s, now_s - until_s, value) for since_s, until_s, value in history)
