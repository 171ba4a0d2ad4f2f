"""A plan as one JSON document.

Rules: the keys are a contract. `null` means unknown yet, or unbounded. Chains are named by their letters, as in every
other rendering, subtasks by their position in lists. If slots are processes, `buffers_available` is of each slot, and
`buffers_required` and `buffers_at_most` are those of the slot of the TaskManager that needs most.
"""

from __future__ import annotations

from typing import Any

from ..graph.job_graph import UNDECIDED
from .labels import buffers_problem, letter
from .plan import Plan


def plan_document(plan: Plan) -> dict[str, Any]:
    """The whole plan as plain data."""
    return {
        "job": plan.job.name,
        "fits": plan.is_possible,
        "problems": [problem for problem in (plan.problem, buffers_problem(plan)) if problem],
        "cluster": {
            "taskmanagers": plan.taskmanagers,
            "slots": plan.slots,
            "slots_in": plan.slots_in.value,
            "slots_taken": list(plan.taken),
            "load_balance": plan.mode.value,
        },
        "chains": [_chain(plan, vertex) for vertex in range(len(plan.job.vertices))],
        "datasets": [
            {
                "name": dataset.name,
                "producer": letter(dataset.producer),
                "operator": dataset.operator,
                "type": dataset.type.value,
                "is_broadcast": dataset.is_broadcast,
                "side_output": dataset.side_output,
            }
            for dataset in plan.job.datasets
        ],
        "edges": [_edge(plan, index) for index in range(len(plan.job.edges))],
        "reasons": _reasons(plan),
        "slots": {
            "taken_in_turns": bool(plan.turns),
            "required": None if plan.is_undecided else sum(plan.slots_by_group),
            "by_group": dict(
                zip((group.name for group in plan.job.slot_sharing_groups), plan.slots_by_group, strict=False)
            ),
            "available": plan.taskmanagers * plan.slots - sum(plan.taken),
            "stages": None
            if plan.placement is None
            else [[plan.job.slot_sharing_groups[group].name for group in stage] for stage in plan.placement.stages],
        },
        "network": _network(plan),
        "taskmanagers": _taskmanagers(plan),
        "regions": [
            {
                "chains": [letter(vertex) for vertex in region.vertices],
                "regions": region.count or None,
                "sizes": {str(size): count for size, count in region.sizes.items()},
            }
            for region in plan.regions
        ],
    }


def _chain(plan: Plan, index: int) -> dict[str, Any]:
    vertex = plan.job.vertices[index]
    return {
        "id": letter(index),
        "name": vertex.name,
        "operators": list(vertex.operators),
        "functions": list(vertex.functions),
        "uids": plan.job.uids_of(index),
        "parallelism": None if vertex.parallelism == UNDECIDED else vertex.parallelism,
        "max_parallelism": vertex.max_parallelism,
        "slot_sharing_group": plan.job.slot_sharing_groups[vertex.slot_sharing_group].name,
        "co_location_group": vertex.co_location_group,
        "taskmanagers": None if plan.placement is None else plan.placement.taskmanagers_of(index).tolist(),
        "slots": None if plan.placement is None else plan.placement.slots_of(index).tolist(),
    }


def _edge(plan: Plan, index: int) -> dict[str, Any]:
    edge = plan.job.edges[index]
    counts = None if plan.channels is None else plan.channels.edges[index]
    return {
        "from": letter(plan.job.datasets[edge.dataset].producer),
        "to": letter(edge.consumer),
        "input": edge.input_number,
        "dataset": plan.job.datasets[edge.dataset].name,
        "partitioner": edge.partitioner,
        "pattern": edge.pattern.value,
        "function": edge.function,
        "buffer_timeout_s": edge.buffer_timeout_s,
        "is_prompt": edge.is_prompt,
        "channels": None if counts is None else counts.channels,
        "local": None if counts is None else counts.local,
        "remote": None if counts is None else counts.remote,
        "tcp_connections": None if counts is None else counts.connections - counts.within,
    }


def _reasons(plan: Plan) -> list[dict[str, Any]] | None:
    if plan.chaining is None:
        return None
    return [
        {
            "source": reasons.source,
            "target": reasons.target,
            "chained": reasons.is_chained,
            "source_input": reasons.is_source_input,
            "reason": reasons.reason,
            "conditions": [
                {"number": one.number, "holds": one.holds, "waived": one.is_waived, "text": one.text}
                for one in reasons.conditions
            ],
        }
        for reasons in map(plan.chaining.explain, plan.chaining.graph.edges)
    ]


def _network(plan: Plan) -> dict[str, Any] | None:
    if plan.channels is None:
        return None
    edges = plan.channels.edges
    return {
        "channels": sum(edge.channels for edge in edges),
        "local": sum(edge.local for edge in edges),
        "remote": sum(edge.remote for edge in edges),
        "tcp_connections": plan.channels.tcp_connections,
        "tcp_connections_by_dataset": sum(edge.connections - edge.within for edge in edges),
        "shared_memory_connections": plan.channels.within,
        "buffers_available": plan.network.total_segments,
        "segment_size_bytes": plan.network.segment_size_bytes,
    }


def _taskmanagers(plan: Plan) -> list[dict[str, Any]] | None:
    if plan.placement is None or plan.channels is None or plan.buffers is None:
        return None
    columns = (
        plan.placement.tasks,
        plan.placement.slots_used,
        *plan.taskmanager_rows(),
    )
    return [
        {
            "tasks": tasks,
            "slots_used": used,
            "dials": dials,
            "accepts": accepts,
            "buffers_required": required,
            "buffers_at_most": None if most < 0 else most,
        }
        for tasks, used, dials, accepts, required, most in zip(*(column.tolist() for column in columns), strict=True)
    ]
