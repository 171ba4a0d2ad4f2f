"""Jobs and TaskManagers as plain data, for clients.

Takes: records and masters. Gives: the documents of the questions `jobs`, `job` and `taskmanagers`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ..schedule.execution.execution_states import ExecutionState
from .job_master import JobMaster

if TYPE_CHECKING:
    from .jobs import JobRecord
    from .service import JobManager

CHECKPOINTS_SHOWN: Final = 20


def summary(record: JobRecord, manager: JobManager) -> dict[str, Any]:
    """One job, on a line."""
    master = record.master
    found: dict[str, Any] = {
        "job_id": record.stored.job_id,
        "name": record.name,
        "state": "created",
        "submitted_at": record.stored.submitted_at,
        "ended_at": None,
        "tasks": {},
        "missing_slots": 0,
        "restarts": 0,
        "checkpoints_completed": 0,
        "reason": "",
    }
    if master is not None:
        statistics = master.scheduler.statistics()
        found |= {
            "state": master.scheduler.state.value,
            "tasks": {state.value: count for state, count in statistics.executions.items() if count},
            "missing_slots": manager.slots.missing(record.stored.job_id),
            "restarts": statistics.failures,
            "checkpoints_completed": sum(report.is_complete for report in master.history),
        }
    elif record.last is not None:
        found |= {name: record.last[name] for name in ("tasks", "restarts", "checkpoints_completed")}
    if record.end is not None:
        found |= {"state": record.end["state"], "reason": record.end["reason"], "ended_at": record.end["ended_at"]}
    return found


def job_document(record: JobRecord, manager: JobManager) -> dict[str, Any]:
    """One job, in detail."""
    master = record.master
    if master is None:
        empty: dict[str, Any] = {"vertices": [], "checkpoints": [], "last_checkpoint": None, "log": [], "waits_for": ""}
        results = {} if record.end is None else record.end["results"]
        return {**empty, **(record.last or {}), **summary(record, manager), "results": results}
    missing = manager.slots.missing(record.stored.job_id)
    last = master.last_checkpoint
    return {
        **summary(record, manager),
        "vertices": _vertices(record, master),
        "checkpoints": [
            {
                field.name: getattr(report, field.name)
                for field in dataclasses.fields(report)
                if field.name != "subtasks"
            }
            for report in master.history[-CHECKPOINTS_SHOWN:]
        ],
        "last_checkpoint": None if last is None else {"checkpoint_id": last[0], "path": last[1]},
        "restored_from": master.restored_from,
        "log": [happening.document() for happening in master.log.all()],
        "results": {
            operator: {str(subtask): value for subtask, value in sorted(values.items())}
            for operator, values in master.results.items()
        },
        "waits_for": f"{missing} more slots; {manager.slots.describe()}" if missing else "",
    }


def _vertices(record: JobRecord, master: JobMaster) -> list[dict[str, Any]]:
    topology = master.scheduler.topology
    progress = _sums(master.progress)
    found = []
    for number, vertex in enumerate(topology.job.vertices):
        is_there = topology.is_initialised(number)
        found.append(
            {
                "name": vertex.name,
                "operators": list(vertex.operators),
                "parallelism": topology.parallelism_of(number) if is_there else vertex.parallelism,
                "max_parallelism": vertex.max_parallelism,
                "slot_sharing_group": topology.job.slot_sharing_groups[vertex.slot_sharing_group].name,
                "records_in": progress.get(str(number), {}).get("records_in", 0),
                "records_out": progress.get(str(number), {}).get("records_out", 0),
                "decided": _decided(master, number) if is_there else None,
                "subtasks": [_subtask(master, subtask) for subtask in topology.subtasks_of(number)] if is_there else [],
            }
        )
    return found


def _decided(master: JobMaster, vertex: int) -> dict[str, Any] | None:
    """Why a vertex has so many subtasks, if that was decided while the job ran, and what each of them reads."""
    explanation = master.scheduler.explanation(vertex)
    if explanation is None:
        return None
    topology = master.scheduler.topology
    inputs = []
    for number, edge in enumerate(topology.inputs_of(vertex)):
        info = topology.input_info(edge)
        inputs.append(
            {
                "dataset": topology.job.datasets[topology.job.edges[edge].dataset].name,
                "bytes": explanation.input_bytes[number],
                "is_broadcast": explanation.broadcast[number],
                "reads": [
                    [
                        {
                            "partitions": [piece.partitions.start, piece.partitions.stop - 1],
                            "subpartitions": [piece.subpartitions.start, piece.subpartitions.stop - 1],
                        }
                        for piece in info.pieces_of(subtask)
                    ]
                    for subtask in range(info.parallelism)
                ],
            }
        )
    return {
        "steps": list(explanation.steps),
        "bytes_per_subtask": list(explanation.bytes_per_subtask),
        "inputs": inputs,
    }


def _subtask(master: JobMaster, subtask: int) -> dict[str, Any]:
    state = master.scheduler.execution_state(subtask)
    slot = None if state in (ExecutionState.CREATED, ExecutionState.SCHEDULED) else master.places.get(subtask)
    return {
        "subtask": master.scheduler.topology.place_of(subtask)[1],
        "state": state.value,
        "attempt": master.scheduler.attempt(subtask),
        "taskmanager": None if slot is None else slot.location.taskmanager,
        "host": None if slot is None else slot.location.host,
        "slot": None if slot is None else slot.index,
    }


def _sums(progress: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """The progress of each vertex, over all TaskManagers; what is no number there is left out."""
    found: dict[str, dict[str, int]] = {}
    for vertices in progress.values():
        for vertex, numbers in vertices.items():
            if not isinstance(numbers, dict):
                continue
            mine = found.setdefault(str(vertex), {})
            for name, value in numbers.items():
                if type(value) is int:
                    mine[name] = mine.get(name, 0) + value
    return found


def taskmanagers_document(manager: JobManager) -> list[dict[str, Any]]:
    """All TaskManagers that are there."""
    found = []
    for each in manager.taskmanagers.all():
        used = manager.slots.used_of(each.location.name)
        jobs: dict[str, list[int]] = {}
        for slot, job_id in used.items():
            jobs.setdefault(job_id, []).append(slot)
        found.append(
            {
                "name": each.location.name,
                "address": each.location.address,
                "host": each.location.host,
                "slots": each.slots,
                "free_slots": each.slots - len(used),
                "pid": each.facts.get("pid"),
                "registered_at": each.registered_at,
                "jobs": jobs,
            }
        )
    return found
