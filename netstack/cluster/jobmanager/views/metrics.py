"""The JobManager's Prometheus metrics: jobs by state, slots, and the state of each running job.

Takes: the JobManager. Gives: a statistics snapshot; the catalogue of the metrics that are read from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from ....network.metrics.catalogue import Metric, Scope
from ....schedule.execution import JobState
from .documents import job_latencies, summary

if TYPE_CHECKING:
    from ..job_master.job_master import JobMaster
    from ..service import JobManager


MOST_LATENCIES: Final = 100
"""Maximum number of edges and sources of one job with latency series, in order from the sources."""

_QUANTILES: Final = {"0.5": "p50_us", "0.99": "p99_us", "1": "max_us"}


@dataclass(frozen=True, slots=True)
class LatencyStatistics:
    """Latency of records along an edge, or from a source, by the latest markers; one that waits counts with its age.

    Attributes:
        origin: name of the vertex that forwarded the marker (edge) or emitted it (source).
        of: `edge` or `source`.
        quantile: 0.5, 0.99, or 1 for the maximum.
        seconds: latency at this quantile of the latest markers.
    """

    job_id: str
    job: str
    origin: str
    vertex: str
    of: str
    quantile: str
    seconds: float


@dataclass(frozen=True, slots=True)
class JobStatistics:
    """Statistics of a running job.

    Attributes:
        restarts: restarts since this JobManager runs it; each region failure counts.
        checkpoints_failed: checkpoints that were declined, timed out or could not be stored.
        checkpoint_age_s: time since the newest complete checkpoint was triggered; None before the first.
        blocked_s: how long user code has blocked the event loop of a slot; the maximum of all slots.
    """

    job_id: str
    name: str
    restarts: int
    checkpoints_completed: int
    checkpoints_failed: int
    checkpoint_age_s: float | None
    checkpoint_duration_s: float | None
    checkpoint_bytes: int | None
    blocked_s: float
    missing_slots: int


@dataclass(frozen=True, slots=True)
class JobManagerStatistics:
    """Statistics of a JobManager.

    Attributes:
        jobs: number of jobs in each state, including remembered ended jobs.
        server_failures: failures of each side server, which was started again.
        latencies: latencies of the running jobs, at most `MOST_LATENCIES` of each job, with three quantiles.
    """

    taskmanagers: int
    slots: int
    free_slots: int
    jobs: Mapping[str, int]
    running: tuple[JobStatistics, ...]
    server_failures: Mapping[str, int]
    latencies: tuple[LatencyStatistics, ...] = ()


def statistics(manager: JobManager) -> JobManagerStatistics:
    """Returns a snapshot; its cost grows with the number of jobs."""
    now_s = trio.current_time()
    summaries = [summary(record, manager.parts) for record in manager.dispatcher.records.values()]
    running = []
    latencies: list[LatencyStatistics] = []
    for document in summaries:
        master = manager.dispatcher.running.get(document["job_id"])
        if master is None:
            continue
        latencies += _latencies(document["job_id"], document["name"], master)
        completed, failed = master.checkpoint_counts
        last = next((report for report in reversed(master.history) if report.is_complete), None)
        running.append(
            JobStatistics(
                document["job_id"],
                document["name"],
                document["restarts"],
                completed,
                failed,
                None if last is None else now_s - last.triggered_s,
                None if last is None else last.duration_s,
                None if last is None else last.size_bytes,
                max((each.blocked_s for each in master.blocked.values()), default=0.0),
                document["missing_slots"],
            )
        )
    return JobManagerStatistics(
        len([*manager.taskmanagers.all()]),
        manager.slots.total,
        manager.slots.free,
        {
            **dict.fromkeys((state.value for state in JobState), 0),
            **Counter(document["state"] for document in summaries),
        },
        tuple(running),
        dict(manager.server_failures),
        tuple(latencies),
    )


def _latencies(job_id: str, job: str, master: JobMaster) -> list[LatencyStatistics]:
    return [
        LatencyStatistics(
            job_id,
            job,
            row["from"],
            vertex,
            "source" if row["input"] is None else "edge",
            quantile,
            row[field] / 1e6,
        )
        for vertex, row in job_latencies(master)[:MOST_LATENCIES]
        for quantile, field in _QUANTILES.items()
    ]


@asynccontextmanager
async def serve_metrics(manager: JobManager, address: str) -> AsyncIterator[str]:
    """Serves the metrics to Prometheus while the block runs; yields the bound address.

    Raises:
        ConfigError: prometheus_client is missing, the address is malformed, or is not loopback and has no secret.
        OSError: the address cannot be bound.
    """
    from ....network.metrics.prometheus import bind_guarded  # needs prometheus_client

    server = await bind_guarded(address, manager.config.secret)
    try:
        async with trio.open_nursery() as nursery:
            on_failure = partial(manager.count_failure, "metrics")
            nursery.start_soon(server.serve, partial(statistics, manager), CATALOGUE, on_failure)
            yield server.address
            nursery.cancel_scope.cancel()
    finally:
        server.close()


_ALL: Final = Scope((), "", lambda statistics: [((), statistics)])
_STATE: Final = Scope(
    ("state",), "jobs[state]", lambda statistics: [((state,), count) for state, count in statistics.jobs.items()]
)
_SERVER: Final = Scope(
    ("server",),
    "server_failures[server]",
    lambda statistics: [((server,), count) for server, count in statistics.server_failures.items()],
)
_JOB: Final = Scope(
    ("job", "name"), "running[i]", lambda statistics: [((job.job_id, job.name), job) for job in statistics.running]
)

_LATENCY: Final = Scope(
    ("job", "name", "from", "to", "of", "quantile"),
    "latencies[i]",
    lambda statistics: [
        ((each.job_id, each.job, each.origin, each.vertex, each.of, each.quantile), each)
        for each in statistics.latencies
    ],
)

CATALOGUE: Final[tuple[Metric, ...]] = (
    Metric("netstack_jobmanager_taskmanagers", _ALL, "taskmanagers", "Registered TaskManagers."),
    Metric("netstack_jobmanager_slots", _ALL, "slots", "Slots of all TaskManagers."),
    Metric("netstack_jobmanager_free_slots", _ALL, "free_slots", "Slots that no job uses."),
    Metric("netstack_jobmanager_jobs", _STATE, "real", "Jobs in this state, including remembered ended jobs."),
    Metric(
        "netstack_jobmanager_server_failures_total",
        _SERVER,
        "real",
        "Failures of the page's server or the metrics' server, which was started again; jobs continued.",
    ),
    Metric("netstack_job_restarts_total", _JOB, "restarts", "Restarts of a job since this JobManager runs it."),
    Metric(
        "netstack_job_completed_checkpoints_total",
        _JOB,
        "checkpoints_completed",
        "Completed checkpoints and savepoints of a job.",
    ),
    Metric(
        "netstack_job_failed_checkpoints_total",
        _JOB,
        "checkpoints_failed",
        "Checkpoints and savepoints of a job that a task declined, that timed out, or that could not be stored.",
    ),
    Metric(
        "netstack_job_checkpoint_age_seconds",
        _JOB,
        "checkpoint_age_s",
        "Time since the newest complete checkpoint was triggered: a failure now would replay this much.",
    ),
    Metric(
        "netstack_job_checkpoint_duration_seconds",
        _JOB,
        "checkpoint_duration_s",
        "Duration of the newest complete checkpoint, from its trigger until it was stored.",
    ),
    Metric(
        "netstack_job_checkpoint_size_bytes",
        _JOB,
        "checkpoint_bytes",
        "Size of all files of the newest complete checkpoint.",
    ),
    Metric(
        "netstack_job_blocked_seconds",
        _JOB,
        "blocked_s",
        "How long user code has blocked the event loop of a slot: the maximum of all slots, from 2 s on; 0 while none"
        " is blocked.",
    ),
    Metric(
        "netstack_job_latency_seconds",
        _LATENCY,
        "seconds",
        "Latency of records along an edge, or from a source to this vertex, including backpressure: quantile (1:"
        " maximum) of the latest markers. A marker that waits in a queue counts with its age, so under backpressure the"
        " quantile is a lower bound. At most 100 edges and sources of a job.",
    ),
    Metric("netstack_job_missing_slots", _JOB, "missing_slots", "Slots that a job waits for."),
)
