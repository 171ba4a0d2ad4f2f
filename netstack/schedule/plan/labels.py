"""Texts that all renderings of a plan share: letters of vertices, ranges of subtasks, descriptions of edges."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ...base.units import counted, format_size
from ..graph.job_graph import UNDECIDED, DistributionPattern, JobEdge
from ..slots.placement import deciding_mode
from .plan import Plan, RegionPlan

_PATTERNS: Final = {DistributionPattern.ALL_TO_ALL: "all to all", DistributionPattern.POINTWISE: "pointwise"}


def letter(vertex: int) -> str:
    """The short name of a vertex: A, B, ... Z, AA, AB, ..."""
    text = ""
    vertex += 1
    while vertex:
        vertex, last = divmod(vertex - 1, 26)
        text = chr(ord("A") + last) + text
    return text


def ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers in short: `0-3,7,9-10`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def shortened(text: str, width: int) -> str:
    """Cuts a text to a width but keeps its end: the names of chains differ there too."""
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def parallelism_text(parallelism: int) -> str:
    """`4 subtasks`, or `undecided`."""
    return "undecided" if parallelism == UNDECIDED else counted(parallelism, "subtask")


def edge_text(plan: Plan, edge: JobEdge) -> str:
    """`hash, all to all, prompt`."""
    side = plan.job.datasets[edge.dataset].side_output
    text = f"{edge.partitioner}, {_PATTERNS[edge.pattern]}{', prompt' if edge.is_prompt else ''}"
    return text + (f", side output {side!r}" if side else "")


def channels_text(plan: Plan, index: int) -> str:
    """`16 channels: 4 local, 12 remote on 2 connections`; empty without a placement."""
    if plan.channels is None:
        return ""
    edge = plan.channels.edges[index]
    text = f"{counted(edge.channels, 'channel')}: {edge.local:,} local, {edge.remote:,} remote"
    return text + (f" on {counted(edge.connections, 'connection')}" if edge.remote else "")


def group_text(plan: Plan, vertex: int) -> str:
    """The slot sharing group of a vertex, and its co-location group."""
    of = plan.job.vertices[vertex]
    group = f"slots of {plan.job.slot_sharing_groups[of.slot_sharing_group].name!r}"
    return group if of.co_location_group is None else f"{group}, co-located in {of.co_location_group!r}"


def summary(plan: Plan) -> str:
    """The plan in one line."""
    operators = sum(max(1, len(vertex.operators)) for vertex in plan.job.vertices)
    sentences = [f"{counted(len(plan.job.vertices), 'chain')} of {counted(operators, 'operator')}"]
    if plan.is_undecided:
        return f"{sentences[0]}; parallelism is decided while the job runs"
    sentences.append(counted(sum(vertex.parallelism for vertex in plan.job.vertices), "task"))
    sentences.append(counted(sum(plan.slots_by_group), "slot"))
    return ", ".join(sentences)


def cluster_text(plan: Plan) -> str:
    """`2 TaskManagers with 2 slots each, load balance none`."""
    mode = plan.mode.value
    if deciding_mode(plan.job, plan.mode) is not plan.mode:
        mode += " (none for this job, which keeps results)"
    size = f"{counted(plan.taskmanagers, 'TaskManager')} with {counted(plan.slots, 'slot')}"
    others = f" ({counted(sum(plan.taken), 'slot')} taken)" if any(plan.taken) else ""
    return f"{size}{' each' if plan.taskmanagers > 1 else ''}{others}, load balance {mode}"


def network_text(plan: Plan) -> str:
    """The totals of channels and connections; empty without a placement."""
    if plan.channels is None:
        return ""
    channels = sum(edge.channels for edge in plan.channels.edges)
    local = sum(edge.local for edge in plan.channels.edges)
    separate = sum(edge.connections - edge.within for edge in plan.channels.edges)
    text = f"{counted(channels, 'channel')}, {local:,} local and {channels - local:,} remote"
    text += f", on {counted(plan.channels.tcp_connections, 'TCP connection')}"
    if separate != plan.channels.tcp_connections:
        text += f" ({separate:,} if datasets did not share them)"
    if plan.processes > 1:
        text += f" between slots of different TaskManagers and {plan.channels.within:,} in shared memory within them"
    return text


def unknown_text(plan: Plan) -> str:
    """The assumptions of the plan."""
    others = "other jobs keep the slots that are listed as taken" if any(plan.taken) else "no other job has slots"
    text = f"This plan assumes that {others}; TaskManagers are numbered in the order in which they register."
    if plan.placement is not None and len(plan.placement.stages) > 1:
        text += " Later stages take the slots that become free first."
    return text


def region_text(plan: Plan, region: RegionPlan) -> str:
    """`A B C: 1 region of 9 tasks`."""
    letters = " ".join(letter(vertex) for vertex in region.vertices)
    if not region.sizes:
        return f"{letters}: divided while the job runs"
    sizes = (
        f"{counted(count, 'region')} of {counted(size, 'task')}{' each' if count > 1 else ''}"
        for size, count in region.sizes.items()
    )
    return f"{letters}: {', '.join(sizes)}"


def buffers_problem(plan: Plan) -> str:
    """Which buffers are missing, and what to change; empty if all fits."""
    if plan.buffers is None or not plan.buffers.missing:
        return ""
    worst = int(plan.buffers.required.argmax())
    taskmanager, slot = divmod(worst, plan.processes)
    where, memory = f"TaskManager {taskmanager}", "its memory"
    if plan.processes > 1:
        where, memory = f"slot {slot} of {where}", "the memory of a slot"
    needed_bytes = int(plan.buffers.required[worst]) * plan.network.segment_size_bytes
    if plan.is_own_network:
        advice = f"Set memory_bytes of the job's network settings to {format_size(needed_bytes)}"
    else:
        advice = f"Give each TaskManager {format_size(needed_bytes * plan.processes)} (--memory)"
    return (
        f"{where} needs {int(plan.buffers.required[worst]):,} network buffers, but {memory} holds"
        f" {plan.buffers.available:,}: {plan.buffers.missing:,} are missing. {advice}, fewer"
        " exclusive buffers (--exclusive-buffers), bounded gates (--max-required) or more TaskManagers"
    )
