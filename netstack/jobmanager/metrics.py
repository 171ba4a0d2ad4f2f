"""What a JobManager counts, for Prometheus: jobs by state, slots, and how each job that runs gets on.

Takes: the JobManager. Gives: a snapshot; the catalogue of the metrics that are read from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from ..runtime.catalogue import Metric, Scope
from ..schedule.execution import JobState
from .view import job_latencies, summary

if TYPE_CHECKING:
    from .job_master import JobMaster
    from .service import JobManager


MOST_LATENCIES: Final = 100
"""Of each job, so that a graph of thousands of edges is not thousands of series: the first, from the sources on."""

_QUANTILES: Final = {"0.5": "p50_us", "0.99": "p99_us", "1": "max_us"}


@dataclass(frozen=True, slots=True)
class LatencyStatistics:
    """How long records take along an edge, or from a source, by the latest markers.

    Attributes:
        job_id: of the job.
        job: its name.
        origin: name of the vertex that sent the marker on (an edge), or in which it began (a source).
        vertex: name of the one that it reached.
        of: `edge` or `source`.
        quantile: 0.5, 0.99, or 1 for the longest.
        seconds: of that part of the latest markers.
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
    """A job that runs.

    Attributes:
        job_id: its id.
        name: its name.
        restarts: since this JobManager has it; failures of regions count one by one.
        checkpoints_completed: likewise; savepoints count.
        checkpoints_failed: those that were declined, took too long or could not be stored.
        checkpoint_age_s: since the newest complete one was triggered; None before the first.
        checkpoint_duration_s: of that one.
        checkpoint_bytes: of that one.
        blocked_s: for how long user code keeps the event loop of a slot from turning: the longest of all slots.
        missing_slots: that it waits for.
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
    """A snapshot.

    Attributes:
        taskmanagers: registered now.
        slots: of all of them.
        free_slots: that no job has.
        jobs: how many jobs are in each state, those included that have ended and are remembered.
        running: those that have not ended.
        latencies: of those; `MOST_LATENCIES` of a job at most, each with three quantiles.
    """

    taskmanagers: int
    slots: int
    free_slots: int
    jobs: Mapping[str, int]
    running: tuple[JobStatistics, ...]
    latencies: tuple[LatencyStatistics, ...] = ()


def statistics(manager: JobManager) -> JobManagerStatistics:
    """A snapshot; takes time with the number of jobs."""
    now_s = trio.current_time()
    summaries = [summary(record, manager) for record in manager.jobs.records.values()]
    running = []
    latencies: list[LatencyStatistics] = []
    for document in summaries:
        master = manager.jobs.running.get(document["job_id"])
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
    """Serves them to Prometheus; gives the address that was bound.

    Raises:
        ConfigError: prometheus_client is missing, the address is none, or other hosts reach it and there is no secret.
        OSError: it cannot be bound.
    """
    from ..runtime.prometheus import bind_guarded  # needs prometheus_client

    server = await bind_guarded(address, manager.config.secret)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, partial(statistics, manager), CATALOGUE)
            yield server.address
            nursery.cancel_scope.cancel()
    finally:
        server.close()


_ALL: Final = Scope((), "", lambda statistics: [((), statistics)])
_STATE: Final = Scope(
    ("state",), "jobs[state]", lambda statistics: [((state,), count) for state, count in statistics.jobs.items()]
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
    Metric("netstack_jobmanager_taskmanagers", _ALL, "taskmanagers", "TaskManagers that are registered."),
    Metric("netstack_jobmanager_slots", _ALL, "slots", "Slots of all TaskManagers."),
    Metric("netstack_jobmanager_free_slots", _ALL, "free_slots", "Slots that no job has."),
    Metric("netstack_jobmanager_jobs", _STATE, "real", "Jobs in this state; those that have ended while remembered."),
    Metric("netstack_job_restarts_total", _JOB, "restarts", "Restarts of a job, since this JobManager has it."),
    Metric(
        "netstack_job_completed_checkpoints_total",
        _JOB,
        "checkpoints_completed",
        "Checkpoints and savepoints of a job that were completed.",
    ),
    Metric(
        "netstack_job_failed_checkpoints_total",
        _JOB,
        "checkpoints_failed",
        "Checkpoints and savepoints of a job that a task declined, that took too long, or that could not be stored.",
    ),
    Metric(
        "netstack_job_checkpoint_age_seconds",
        _JOB,
        "checkpoint_age_s",
        "Time since the newest complete checkpoint was triggered: what a failure now would do again.",
    ),
    Metric(
        "netstack_job_checkpoint_duration_seconds",
        _JOB,
        "checkpoint_duration_s",
        "From the trigger of the newest complete checkpoint until it was stored.",
    ),
    Metric(
        "netstack_job_checkpoint_size_bytes", _JOB, "checkpoint_bytes", "All files of the newest complete checkpoint."
    ),
    Metric(
        "netstack_job_blocked_seconds",
        _JOB,
        "blocked_s",
        "For how long user code has kept the event loop of a slot from turning: the longest of all slots, from 2 s on;"
        " 0 while all turn.",
    ),
    Metric(
        "netstack_job_latency_seconds",
        _LATENCY,
        "seconds",
        "How long records take along an edge, or from a source to here, back-pressure included: this quantile (1 is the"
        " longest) of the latest markers, exact. At most 100 edges and sources of a job.",
    ),
    Metric("netstack_job_missing_slots", _JOB, "missing_slots", "Slots that a job waits for."),
)
