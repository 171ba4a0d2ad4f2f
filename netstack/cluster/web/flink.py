"""Converts netstack's documents into those of Flink's REST interface, with Flink's field names.

Takes: the documents of `cluster.jobmanager.views.documents`. Gives: plain data. Times are milliseconds since 1970; -1
means "not yet".

Rules: a field without a netstack value is left out. Data that Flink has no field for is served under `/netstack`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...base.version import __version__

Document = dict[str, Any]

_ENDED: Final = frozenset({"finished", "canceled", "failed"})
_STATUSES: Final = {"restarting": "RESTARTING", "cancelling": "CANCELLING", "failing": "FAILING"}


def status(state: str) -> str:
    """Returns Flink's name of a job state: `RUNNING` for `running`."""
    return _STATUSES.get(state, state.upper())


def milliseconds(at_s: float | None) -> int:
    """Converts seconds since 1970 to milliseconds; None becomes -1."""
    return -1 if at_s is None else round(at_s * 1000)


def overview(jobs: Sequence[Mapping[str, Any]], taskmanagers: Sequence[Mapping[str, Any]]) -> Document:
    """`/overview`."""
    states = Counter(job["state"] for job in jobs)
    return {
        "taskmanagers": len(taskmanagers),
        "slots-total": sum(each["slots"] for each in taskmanagers),
        "slots-available": sum(each["free_slots"] for each in taskmanagers),
        "jobs-running": sum(count for state, count in states.items() if state not in _ENDED),
        "jobs-finished": states["finished"],
        "jobs-cancelled": states["canceled"],
        "jobs-failed": states["failed"],
        "netstack-version": __version__,
    }


def job_ids(jobs: Sequence[Mapping[str, Any]]) -> Document:
    """`/jobs`."""
    return {"jobs": [{"id": job["job_id"], "status": status(job["state"])} for job in jobs]}


def jobs_overview(jobs: Sequence[Mapping[str, Any]]) -> Document:
    """`/jobs/overview`."""
    return {"jobs": [{"jid": job["job_id"], **_job(job), "tasks": _tasks(job["tasks"])} for job in jobs]}


def job(job: Mapping[str, Any], edges: Sequence[Mapping[str, Any]]) -> Document:
    """`/jobs/:id`.

    Args:
        job: document of the job.
        edges: edges of the job (`edges_of`).
    """
    vertices = [_vertex(number, vertex) for number, vertex in enumerate(job["vertices"])]
    return {
        "jid": job["job_id"],
        **_job(job),
        "isStoppable": False,
        "now": milliseconds(time.time()),
        "vertices": vertices,
        "status-counts": {state.upper(): count for state, count in job["tasks"].items()},
        **plan(job, edges),
    }


def plan(job: Mapping[str, Any], edges: Sequence[Mapping[str, Any]]) -> Document:
    """`/jobs/:id/plan`; the arguments are those of `job`."""
    nodes = [
        {
            "id": str(number),
            "parallelism": vertex["parallelism"],
            "operator": "",
            "description": vertex["name"],
            "inputs": [
                _input(place, edge) for place, edge in enumerate(each for each in edges if each["consumer"] == number)
            ],
        }
        for number, vertex in enumerate(job["vertices"])
    ]
    return {"plan": {"jid": job["job_id"], "name": job["name"], "nodes": nodes}}


def _input(place: int, edge: Mapping[str, Any]) -> Document:
    strategy = edge["partitioner"].upper()
    return {"num": place, "id": str(edge["producer"]), "ship_strategy": strategy, "exchange": edge["type"]}


def vertex(number: int, vertex: Mapping[str, Any]) -> Document:
    """`/jobs/:id/vertices/:v`."""
    subtasks = [
        {
            "subtask": each["subtask"],
            "status": each["state"].upper(),
            "attempt": each["attempt"],
            "endpoint": each["host"] or "",
            "taskmanager-id": each["taskmanager"] or "",
        }
        for each in vertex["subtasks"]
    ]
    return {
        "id": str(number),
        "name": vertex["name"],
        "parallelism": vertex["parallelism"],
        "maxParallelism": vertex["max_parallelism"],
        "now": milliseconds(time.time()),
        "subtasks": subtasks,
    }


def backpressure(vertex: Mapping[str, Any]) -> Document:
    """`/jobs/:id/vertices/:v/backpressure`: ratios of the last second.

    Args:
        vertex: vertex of a snapshot; subtasks without figures are left out.
    """
    known = [each for each in vertex["subtasks"] if each.get("busy") is not None]
    subtasks = [
        {
            "subtask": each["subtask"],
            "attempt-number": each["attempt"],
            "backpressureLevel": _level(each["backpressured"] / 1000),
            "ratio": each["backpressured"] / 1000,
            "idleRatio": each["idle"] / 1000,
            "busyRatio": each["busy"] / 1000,
        }
        for each in known
    ]
    worst = max((each["backpressured"] for each in known), default=0)
    return {
        "status": "ok" if known else "deprecated",
        "backpressureLevel": _level(worst / 1000),
        "end-timestamp": milliseconds(time.time()),
        "subtasks": subtasks,
    }


def flame_graph(root: Mapping[str, Any]) -> Document:
    """`/jobs/:id/vertices/:v/flamegraph`: a tree of `name`, `value` and `children`."""
    return {"endTimestamp": milliseconds(time.time()), "data": root}


def _level(ratio: float) -> str:
    """Returns Flink's level: `ok` up to 10 % of the time, `low` up to 50 %, else `high`."""
    return "ok" if ratio <= 0.1 else "low" if ratio <= 0.5 else "high"


def checkpoints(job: Mapping[str, Any]) -> Document:
    """`/jobs/:id/checkpoints`; the history is the newest first, those in progress before those that have ended."""
    pending = job["checkpoints_in_progress"]
    history = [_in_progress(each) for each in reversed(pending)]
    history += [_checkpoint(each) for each in reversed(job["checkpoints"])]
    completed, failed = job["checkpoints_completed"], job["checkpoints_failed"]
    return {
        "counts": {
            "total": completed + failed + len(pending),
            "in_progress": len(pending),
            "completed": completed,
            "failed": failed,
            "restored": 0 if job.get("restored_from") is None else 1,
        },
        "history": history,
    }


def exceptions(job: Mapping[str, Any], most: int) -> Document:
    """`/jobs/:id/exceptions`; the newest first. The fields before `exceptionHistory` are those of Flink 1.

    Args:
        job: document of the job.
        most: maximum number of entries.
    """
    newest = [*reversed(job["failures"])]
    chosen = newest[:most]
    truncated = bool(len(chosen) < len(newest) or job["failures_left_out"])
    return {
        "root-exception": _stack_trace(newest[0]) if newest else job["reason"] or None,
        "timestamp": milliseconds(newest[0]["at"] if newest else job["ended_at"] if job["reason"] else None),
        "all-exceptions": [
            {
                "exception": _stack_trace(each),
                "task": _task_name(each),
                "location": _endpoint(each),
                "endpoint": _endpoint(each),
                "timestamp": milliseconds(each["at"]),
                "taskManagerId": each["taskmanager"] or None,
            }
            for each in chosen
        ],
        "truncated": truncated,
        "exceptionHistory": {
            "entries": [
                {**_exception(each), "concurrentExceptions": [*map(_exception, each["beside"])]} for each in chosen
            ],
            "truncated": truncated,
        },
    }


def _exception(failure: Mapping[str, Any]) -> Document:
    return {
        "exceptionName": failure["type"] or failure["text"],
        "stacktrace": _stack_trace(failure),
        "timestamp": milliseconds(failure["at"]),
        "taskName": _task_name(failure),
        "location": _endpoint(failure),
        "endpoint": _endpoint(failure),
        "taskManagerId": failure["taskmanager"] or None,
    }


def _stack_trace(failure: Mapping[str, Any]) -> str:
    """Returns the traceback of a failure, or its text if it has none."""
    return str(failure["traceback"] or failure["text"])


def _task_name(failure: Mapping[str, Any]) -> str | None:
    return f"{failure['task']} ({failure['subtask']}) - attempt {failure['attempt']}" if failure["task"] else None


def _endpoint(failure: Mapping[str, Any]) -> str | None:
    return failure["host"] or failure["taskmanager"] or None


def taskmanagers(documents: Sequence[Mapping[str, Any]]) -> Document:
    """`/taskmanagers`."""
    return {"taskmanagers": [taskmanager(each) for each in documents]}


def taskmanager(document: Mapping[str, Any]) -> Document:
    """`/taskmanagers/:id`."""
    return {
        "id": document["name"],
        "path": document["address"],
        "slotsNumber": document["slots"],
        "freeSlots": document["free_slots"],
        "hardware": {},
    }


def _job(job: Mapping[str, Any]) -> Document:
    end = job["ended_at"]
    return {
        "name": job["name"],
        "state": status(job["state"]),
        "start-time": milliseconds(job["submitted_at"]),
        "end-time": milliseconds(end),
        "duration": milliseconds(job["duration_s"]),
    }


def _vertex(number: int, vertex: Mapping[str, Any]) -> Document:
    states = Counter({state.upper(): count for state, count in vertex.get("left_out", {}).items()})
    states += Counter(each["state"].upper() for each in vertex["subtasks"])
    return {
        "id": str(number),
        "name": vertex["name"],
        "parallelism": vertex["parallelism"],
        "maxParallelism": vertex["max_parallelism"],
        "status": states.most_common(1)[0][0] if states else "CREATED",
        "tasks": dict(states),
        "metrics": {"read-records": vertex["records_in"], "write-records": vertex["records_out"]},
        "latencies": vertex.get("latencies", []),  # not Flink's, which has these as metrics of operators
    }


def _tasks(counts: Mapping[str, int]) -> Document:
    return {"total": sum(counts.values()), **counts}


def _in_progress(checkpoint: Mapping[str, Any]) -> Document:
    return {
        "id": checkpoint["checkpoint_id"],
        "status": "IN_PROGRESS",
        "is_savepoint": checkpoint["is_savepoint"],
        "end_to_end_duration": milliseconds(checkpoint["age_s"]),
        "num_subtasks": checkpoint["subtasks"],
        "num_acknowledged_subtasks": checkpoint["acknowledged"],
        # Not Flink's, which has them only by task.
        "waits_for": checkpoint["waits_for"],
        "ahead_bytes": checkpoint["ahead_bytes"],
        "text": checkpoint["text"],
    }


def _checkpoint(report: Mapping[str, Any]) -> Document:
    return {
        "id": report["checkpoint_id"],
        "status": "COMPLETED" if report["is_complete"] else "FAILED",
        "is_savepoint": report["is_savepoint"],
        "end_to_end_duration": milliseconds(report["duration_s"]),
        "state_size": report["size_bytes"],
        **({"failure_message": report["reason"]} if report["reason"] else {}),
    }
