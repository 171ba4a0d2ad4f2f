"""Jobs and TaskManagers as plain data for clients.

Takes: records and masters. Gives: the answers to the requests `jobs`, `job` and `taskmanagers`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from operator import or_
from typing import Any, Final

from ....base.units import counted
from ....schedule.execution import ExecutionState, JobState
from ....schedule.graph.job_graph import JobGraph
from ....schedule.topology.execution_graph import ExecutionGraph
from ...task.latency import summary_us
from ...task.queued import Queued
from ..job_master.checkpoints import CheckpointReport
from ..job_master.job_master import JobMaster
from ..job_record import JobRecord
from ..job_services import JobManagerParts
from ..log import blocked_text, failure_documents, place_of
from ..progress import edges_at, merged_latencies, queued_by_vertex, summed_progress
from ..resource_manager.taskmanagers import ConnectedTaskManager
from .bounds import Entries, fair_part, shortened_vertices

MOST_WORK: Final = 1 << 16
"""About how many ages of queued markers count for all vertices together; of more, evenly chosen ones."""


def job_latencies(master: JobMaster) -> list[tuple[str, dict[str, Any]]]:
    """Returns the latencies at each vertex that a marker goes to: the vertex's name and a row of `vertex_latencies`."""
    vertices = master.scheduler.topology.job.vertices
    return [(vertices[number].name, row) for number, rows in vertex_latencies(master).items() for row in rows]


def vertex_latencies(master: JobMaster) -> dict[int, list[dict[str, Any]]]:
    """Returns the latencies to each vertex: from the producer of each input, and from each more distant source.

    A marker in the queue of an edge counts for that edge with the time since it was forwarded, and for the way from its
    source to every vertex behind the edge with its whole age. Both are lower bounds of what will be measured.

    Returns:
        By vertex: `from` (name of the vertex), `input` (its number; None for a source) and what `summary_us` returns.
    """
    placed = master.tasks.placed_vertices()
    job = master.scheduler.topology.job
    return named_latencies(
        job, merged_latencies(master.progress, placed), queued_by_vertex(job, master.progress, placed)
    )


def named_latencies(
    job: JobGraph, measured: Mapping[int, Mapping[str, Sequence[int]]], queued: Mapping[int, Queued]
) -> dict[int, list[dict[str, Any]]]:
    """Returns the latencies to each vertex, from the merged rows of `TaskLatencies.rows` of each."""
    waiting = _waiting(job, queued)
    return {
        vertex: _rows(job, vertex, measured.get(vertex, {}), waiting[vertex]) for vertex in range(len(job.vertices))
    }


def _waiting(job: JobGraph, queued: Mapping[int, Queued]) -> list[dict[str, list[int]]]:
    """The ages of waiting markers by vertex and row name."""
    reached = _reached(job)
    own: list[tuple[int, int, str]] = []  # age, the vertex in front of which the marker is queued, name
    waiting: list[dict[str, list[int]]] = [{} for _ in job.vertices]
    for vertex, rows in queued.items():
        for place, source, edge_us, age_us in rows["markers"]:
            for consumer, number in edges_at(job, vertex, place):
                waiting[consumer].setdefault(f"input {number}", []).append(edge_us)
                own.append((age_us, consumer, f"source {source}"))
    work = sum(reached[vertex].bit_count() for _, vertex, _ in own)
    own.sort(reverse=True)  # so that the oldest one is kept
    lists: dict[int, list[int]] = {}
    for age_us, vertex, name in own[:: -(-work // MOST_WORK) or 1]:
        if vertex not in lists:
            lists[vertex] = [each for each, bit in enumerate(bin(reached[vertex])[:1:-1]) if bit == "1"]
        for each in lists[vertex]:
            waiting[each].setdefault(name, []).append(age_us)
    return waiting


def _reached(job: JobGraph) -> list[int]:
    """For each vertex the bits of the vertex and of all that read from it, directly or not."""
    masks = [0] * len(job.vertices)
    consumers = [
        {edge.consumer for dataset in job.outputs_of(vertex) for edge in job.consumers_of(dataset)}
        for vertex in range(len(job.vertices))
    ]
    for vertex in reversed(range(len(job.vertices))):  # they are in topological order
        masks[vertex] = reduce(or_, (masks[each] for each in consumers[vertex]), 1 << vertex)
    return masks


def _rows(
    job: JobGraph, vertex: int, measured: Mapping[str, Sequence[int]], waiting: Mapping[str, Sequence[int]]
) -> list[dict[str, Any]]:
    producers = [job.datasets[edge.dataset].producer for edge in job.inputs_of(vertex)]
    rows = []
    for name in sorted({*measured, *waiting}):
        what, _, digits = name.partition(" ")
        number = int(digits) if digits.isdecimal() else -1
        values, ages = measured.get(name, ()), waiting.get(name, ())
        if not (values or ages) or not 0 <= number < len(producers if what == "input" else job.vertices):
            continue
        origin = producers[number] if what == "input" else number
        if what == "input" or origin not in producers:
            label = job.vertices[origin].name
            rows.append({"from": label, "input": number if what == "input" else None, **summary_us(values, ages)})
    return rows


CHECKPOINTS_SHOWN: Final = 20

COUNTS: Final = ("tasks", "restarts", "checkpoints_completed", "checkpoints_failed")
"""What a summary counts; stored with the end of a job."""

MAX_SUBTASKS: Final = 16_000
"""Maximum number of subtasks that the details of a job list: about 150 bytes and 15 us each."""


def summary(record: JobRecord, parts: JobManagerParts) -> dict[str, Any]:
    """Returns the summary of one job."""
    master = record.master
    result: dict[str, Any] = {
        "job_id": record.stored.job_id,
        "name": record.name,
        "state": _state_of(record),
        "submitted_at": record.stored.submitted_at,
        "ended_at": None,
        "age_s": record.age_s,
        "duration_s": record.age_s,
        "tasks": {},
        "missing_slots": 0,
        "restarts": 0,
        "checkpoints_completed": 0,
        "checkpoints_failed": 0,
        "reason": "",
    }
    if master is not None:
        statistics = master.scheduler.statistics()
        completed, failed = master.checkpoint_counts
        result |= {
            "tasks": {state.value: count for state, count in statistics.executions.items() if count},
            "missing_slots": parts.slots.missing(record.stored.job_id),
            "restarts": statistics.restarts,
            "checkpoints_completed": completed,
            "checkpoints_failed": failed,
        }
    else:
        kept = record.last or record.end or {}
        result |= {name: kept[name] for name in COUNTS if name in kept}  # 0.3 stored none of them
    if record.end is not None:
        ended_at = record.end["ended_at"]
        lasted_s = record.end.get("duration_s", ended_at - record.stored.submitted_at)  # stored since 0.4
        result |= {"reason": record.end["reason"], "ended_at": ended_at, "duration_s": max(0.0, lasted_s)}
    return result


def position_of(record: JobRecord) -> tuple[float, str]:
    """Returns the position of a job among all jobs (`pages.Position`)."""
    return float(record.stored.submitted_at), record.stored.job_id


def _state_of(record: JobRecord) -> str:
    """Returns the state that clients see: final only once the end is stored, and never an earlier one again."""
    if record.end is not None:
        return str(record.end["state"])
    if record.master is not None:
        state = record.master.scheduler.state
        if state is JobState.CREATED and record.is_taken_up:
            state = JobState.RESTARTING
        return str(_BEFORE.get(state, state).value)
    if record.last is not None:
        return str(record.last["state"])
    return str((JobState.RESTARTING if record.is_taken_up else JobState.CREATED).value)


_BEFORE: Final = {
    JobState.FINISHED: JobState.RUNNING,
    JobState.CANCELED: JobState.CANCELLING,
    JobState.FAILED: JobState.FAILING,
}
"""The visible state of a job whose end is not stored yet."""


def job_document(record: JobRecord, parts: JobManagerParts, most: int | None = MAX_SUBTASKS) -> dict[str, Any]:
    """Returns the details of one job.

    Args:
        record: the job.
        parts: the JobManager's parts.
        most: maximum number of listed subtasks. Beyond it the widest vertices list fewer, and `left_out` counts the
            others by state. None leaves the vertices out.
    """
    master = record.master
    if master is None:
        empty: dict[str, Any] = {"vertices": [], "checkpoints": [], "last_checkpoint": None, "log": []}
        empty |= failure_documents(None)
        empty |= {name: record.end[name] for name in empty if record.end is not None and name in record.end}
        empty |= {"blocked": [], "checkpoints_in_progress": []}
        kept = record.last or {}
        results = kept.get("results", {}) if record.end is None else record.end["results"]  # the end is being stored
        empty["not_restored"] = list(record.stored.not_restored)
        vertices = [] if most is None else shortened_vertices(kept.get("vertices", ()), most)
        now = {**summary(record, parts), "results": results, "waits_for": record.waits_for}
        return {**empty, **kept, **now, "vertices": vertices}
    missing = parts.slots.missing(record.stored.job_id)
    last = master.last_checkpoint
    return {
        **summary(record, parts),
        "vertices": [] if most is None else _vertices(master, most),
        "checkpoints": [_checkpoint(report) for report in master.history[-CHECKPOINTS_SHOWN:]],
        "checkpoints_in_progress": [each.document() for each in master.checkpoints_in_progress],
        "last_checkpoint": None if last is None else {"checkpoint_id": last[0], "path": last[1]},
        "restored_from": master.restored_from,
        "not_restored": list(record.stored.not_restored),
        "log": [entry.document() for entry in master.log.all()],
        **failure_documents(master.failures),
        "results": {
            operator: {str(subtask): value for subtask, value in sorted(values.items())}
            for operator, values in master.tasks.results.items()
        },
        "waits_for": f"{counted(missing, 'more slot')}; {parts.slots.describe()}" if missing else master.waits_for,
        "speculation": _speculation(master),
        "blocked": [
            {
                **place_of(blocked),
                "taskmanager": name,
                "slot": slot,
                "blocked_s": blocked.blocked_s,
                "text": blocked_text(blocked),
            }
            for (name, slot), blocked in sorted(master.blocked.items())
        ],
    }


def _speculation(master: JobMaster) -> dict[str, Any] | None:
    """Returns the counters of speculative execution; None without it."""
    statistics = master.scheduler.statistics().speculation
    if statistics is None:
        return None
    counters = {name: getattr(statistics, name) for name in ("slow", "started", "won", "failed")}
    return counters | {"blocked": sorted(statistics.blocked)}


def _checkpoint(report: CheckpointReport) -> dict[str, Any]:
    """Returns one checkpoint with the number of its subtasks and the slowest one.

    `alignment_s` is the maximum; `in_flight_bytes` is the channel state of all inputs and outputs.
    """
    document = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    subtasks = document.pop("subtasks")

    def time_s(each: Mapping[str, Any]) -> float:
        names = ("start_delay_s", "alignment_s", "snapshot_s", "gather_s", "write_s")
        return float(sum(each.get(name, 0.0) for name in names))

    slowest = max(subtasks, key=time_s, default=None)
    return {
        **document,
        "subtasks": len(subtasks),
        "alignment_s": max((each.get("alignment_s", 0.0) for each in subtasks), default=0.0),
        "in_flight_bytes": sum(each.get("input_bytes", 0) + each.get("output_bytes", 0) for each in subtasks),
        "slowest": "" if slowest is None else f"{slowest['task']} {slowest['subtask']}",
    }


def _vertices(master: JobMaster, most: int) -> list[dict[str, Any]]:
    topology = master.scheduler.topology
    each = fair_part([len(_subtasks_of(topology, number)) for number in range(len(topology.job.vertices))], most)
    placed = master.tasks.placed_vertices()
    progress = summed_progress(master.progress, placed)
    for number, (came, went) in master.tasks.records.items():
        if master.scheduler.execution_state(number) is ExecutionState.FINISHED:
            row = progress.setdefault(topology.place_of(number)[0], {"records_in": 0, "records_out": 0})
            row["records_in"] += came
            row["records_out"] += went
    latencies = vertex_latencies(master)
    vertices: list[dict[str, Any]] = []
    for number, vertex in enumerate(topology.job.vertices):
        is_there = topology.is_initialised(number)
        subtasks = _subtasks_of(topology, number)
        left_out = master.scheduler.count_within(subtasks[each:])
        vertices.append(
            {
                "name": vertex.name,
                "operators": list(vertex.operators),
                "uids": topology.job.uids_of(number),
                "parallelism": topology.parallelism_of(number) if is_there else vertex.parallelism,
                "max_parallelism": vertex.max_parallelism,
                "slot_sharing_group": topology.job.slot_sharing_groups[vertex.slot_sharing_group].name,
                "records_in": progress.get(number, {}).get("records_in", 0),
                "records_out": progress.get(number, {}).get("records_out", 0),
                "latencies": latencies[number],
                "kept": _kept(master, number) if is_there else None,
                "decided": _decided(master, number, each) if is_there else None,
                "subtasks": [_subtask(master, subtask) for subtask in subtasks[:each]],
                **({"left_out": {state.value: count for state, count in left_out.items()}} if left_out else {}),
            }
        )
    return vertices


def _subtasks_of(topology: ExecutionGraph, vertex: int) -> range:
    return topology.subtasks_of(vertex) if topology.is_initialised(vertex) else range(0)


def _kept(master: JobMaster, vertex: int) -> dict[str, int] | None:
    """Returns the bytes that ended subtasks of a vertex kept in files; None if there are none."""
    kept = [
        master.tasks.kept[each] for each in master.scheduler.topology.subtasks_of(vertex) if each in master.tasks.kept
    ]
    if not kept:
        return None
    data, compressed, stored = (sum(column) for column in zip(*kept, strict=True))
    return {"bytes": data, "compressed_bytes": compressed, "stored_bytes": stored}


def _decided(master: JobMaster, vertex: int, most: int) -> dict[str, Any] | None:
    """Returns how the parallelism of a vertex was decided at runtime, and what its first subtasks read; or None."""
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
                    for subtask in range(min(most, info.parallelism))
                ],
            }
        )
    return {
        "steps": list(explanation.steps),
        "bytes_per_subtask": list(explanation.bytes_per_subtask[:most]),
        "inputs": inputs,
    }


def _subtask(master: JobMaster, subtask: int) -> dict[str, Any]:
    state = master.scheduler.execution_state(subtask)
    slot = None if state in (ExecutionState.CREATED, ExecutionState.SCHEDULED) else master.tasks.places.get(subtask)
    return {
        "subtask": master.scheduler.topology.place_of(subtask)[1],
        "state": state.value,
        "attempt": master.scheduler.attempt(subtask),
        "taskmanager": None if slot is None else slot.location.taskmanager,
        "host": None if slot is None else slot.location.host,
        "slot": None if slot is None else slot.index,
        "beside": [
            {
                "attempt": rival.attempt,
                "state": rival.state.value,
                "taskmanager": None if rival.slot is None else rival.slot.location.taskmanager,
                "slot": None if rival.slot is None else rival.slot.index,
            }
            for rival in master.scheduler.rivals(subtask)
        ],
    }


def edges_of(record: JobRecord) -> list[dict[str, Any]]:
    """Returns the edges of a job, ordered by consumer and input.

    Returns:
        `producer` and `consumer` (vertex numbers), their `output` and `input`, `partitioner`, `pattern`, `type`,
        `is_prompt`.
    """
    if record.generated is None:
        return []
    job = record.generated.job
    outputs = {
        dataset: output for vertex in range(len(job.vertices)) for output, dataset in enumerate(job.outputs_of(vertex))
    }
    return [
        {
            "producer": job.datasets[edge.dataset].producer,
            "output": outputs[edge.dataset],
            "consumer": vertex,
            "input": number,
            "partitioner": edge.partitioner,
            "pattern": edge.pattern.value,
            "type": job.datasets[edge.dataset].type.value,
            "is_prompt": edge.is_prompt,
        }
        for vertex in range(len(job.vertices))
        for number, edge in enumerate(job.inputs_of(vertex))
    ]


def chaining_of(record: JobRecord) -> list[dict[str, Any]]:
    """Returns for each edge between operators whether they are chained, and why."""
    if record.generated is None:
        return []
    chaining = record.generated.chaining
    explanations = (chaining.explain(edge) for edge in chaining.graph.edges)
    return [
        {"from": each.source, "to": each.target, "is_chained": each.is_chained, "why": str(each)}
        for each in explanations
    ]


def taskmanagers_document(parts: JobManagerParts) -> list[dict[str, Any]]:
    """Returns all connected TaskManagers."""
    return [taskmanager_document(each, parts) for each in parts.taskmanagers.all()]


def taskmanager_entries(parts: JobManagerParts) -> Entries:
    """Returns all connected TaskManagers as entries of pages."""
    return [
        ((each.registered_at, each.location.name), partial(taskmanager_document, each, parts))
        for each in parts.taskmanagers.all()
    ]


def taskmanager_document(taskmanager: ConnectedTaskManager, parts: JobManagerParts) -> dict[str, Any]:
    """Returns one connected TaskManager."""
    location = taskmanager.location
    used = parts.slots.used_of(location.name)
    jobs: dict[str, list[int]] = {}
    for slot, job_id in used.items():
        jobs.setdefault(job_id, []).append(slot)
    return {
        "name": location.name,
        "address": location.address,
        "host": location.host,
        "slots": taskmanager.slots,
        "free_slots": taskmanager.slots - len(used),
        "pid": pid if type(pid := taskmanager.facts.get("pid")) is int else None,
        "slots_in": "processes" if location.slot_addresses else "loop",
        "registered_at": taskmanager.registered_at,
        "jobs": jobs,
    }
