"""Plans a job on given TaskManagers: placement, channels, connections and network buffers, as they are deployed.

Rules: time and memory grow with subtasks and processes, never with channels. By default each slot is a process, with
its share of the TaskManager's memory, and channels between two slots are remote; with `SlotsIn.LOOP` each TaskManager
is one. A job with network settings of its own has these buffers in each process.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from ...base.config import NetworkConfig, slot_memory_bytes
from ...base.errors import ConfigError
from ...exchange.buffer.requirements import LANDING_SEGMENTS, gate_buffers, partition_buffers
from ..graph.chaining import Chaining
from ..graph.job_generator import check_result_types, generate_job
from ..graph.job_graph import UNDECIDED, JobGraph
from ..graph.slot_groups import acyclic_logical_regions, required_slots, slots_by_group
from ..graph.stream_graph import StreamGraph
from ..slots.placement import NotEnoughSlots, Placement, can_take_turns, place
from ..slots.slots import LoadBalanceMode
from ..structures import IndexArray, index_array
from ..topology.execution_graph import ExecutionGraph
from ..topology.regions import Regions
from .channels import JobChannels, count_channels


@final
class SlotsIn(enum.Enum):
    """Where the tasks of a slot run."""

    PROCESSES = "processes"
    """Each slot is a process."""

    LOOP = "loop"
    """The slots of a TaskManager share one process, and its event loop."""


@final
@dataclass(frozen=True, slots=True)
class RegionPlan:
    """A logical region, and the scheduling regions that it is divided into.

    Attributes:
        vertices: indices.
        sizes: number of scheduling regions by number of subtasks; empty while undecided.
    """

    vertices: tuple[int, ...]
    sizes: Mapping[int, int]

    @property
    def count(self) -> int:
        """Number of scheduling regions."""
        return sum(self.sizes.values())


@final
@dataclass(frozen=True, slots=True, eq=False)
class BufferPlan:
    """The network buffers of each process: a slot, or a whole TaskManager (`Plan.processes`).

    Attributes:
        required: needed for its tasks to start.
        maximum: the most that its tasks can use; -1: unbounded.
        available: in its memory.
    """

    required: IndexArray
    maximum: IndexArray
    available: int

    @property
    def missing(self) -> int:
        """Number of buffers that the process with the highest need lacks."""
        return max(0, int(self.required.max(initial=0)) - self.available)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Everything that `netstack plan` shows.

    Attributes:
        chaining: why its vertices are as they are; None for a job without a stream graph.
        mode: how tasks are spread.
        slots_in: whether each slot is a process.
        network: settings of every process: a slot or a TaskManager.
        is_own_network: whether these settings are the job's own.
        taken: slots of each that other jobs hold.
        slots_by_group: needed slots of each slot sharing group; empty while a parallelism is undecided.
        placement: where subtasks run; None if they do not fit, or take turns.
        channels: between them; None without a placement.
        buffers: of each process; None without a placement.
        regions: by logical region.
        problem: why the job cannot run there; empty if it can.
        turns: that its subtasks take turns, because there are fewer slots than they need; empty if they do not.
        warning: why the job takes no checkpoints although its settings ask for them; empty if it does as they say.
    """

    job: JobGraph
    chaining: Chaining | None
    mode: LoadBalanceMode
    slots_in: SlotsIn
    network: NetworkConfig
    is_own_network: bool
    taskmanagers: int
    slots: int
    taken: tuple[int, ...]
    slots_by_group: tuple[int, ...]
    placement: Placement | None
    channels: JobChannels | None
    buffers: BufferPlan | None
    regions: tuple[RegionPlan, ...]
    problem: str
    turns: str
    warning: str = ""

    @property
    def is_possible(self) -> bool:
        """Whether the job can run there: slots and buffers suffice, or are unknown until run time."""
        return not self.problem and (self.buffers is None or not self.buffers.missing)

    @property
    def processes(self) -> int:
        """Processes of each TaskManager that have network buffers."""
        return self.slots if self.slots_in is SlotsIn.PROCESSES else 1

    def taskmanager_rows(self) -> tuple[IndexArray, IndexArray, IndexArray, IndexArray]:
        """For each TaskManager: connections dialled and accepted, buffers required and at most (-1: unbounded).

        If slots are processes, the buffers are those of the slot that needs most. Empty without a placement.
        """
        if self.channels is None or self.buffers is None:
            none = index_array(())
            return none, none, none, none
        dialled, accepted, required, maximum = (
            each.reshape(-1, self.processes)
            for each in (self.channels.dialled, self.channels.accepted, self.buffers.required, self.buffers.maximum)
        )
        most = np.where((maximum < 0).any(axis=1), -1, maximum.max(axis=1))
        return (
            index_array(dialled.sum(axis=1)),
            index_array(accepted.sum(axis=1)),
            index_array(required.max(axis=1)),
            index_array(most),
        )

    @property
    def is_undecided(self) -> bool:
        """Whether a vertex gets its parallelism at run time, so that nothing can be placed yet."""
        return _is_undecided(self.job)


def make_plan(
    source: StreamGraph | JobGraph,
    *,
    taskmanagers: int | None = None,
    slots: int | None = None,
    taken: Sequence[int] = (),
    mode: LoadBalanceMode = LoadBalanceMode.NONE,
    network: NetworkConfig | None = None,
    slots_in: SlotsIn = SlotsIn.PROCESSES,
) -> Plan:
    """Plans a job.

    Args:
        source: the job.
        taskmanagers: their number; default: as many as needed.
        slots: of each; default: as many as needed, or 1 if `taskmanagers` is not given either.
        taken: slots that other jobs hold of the first TaskManager, the second, and so on; of the others none. Needs
            both numbers.
        mode: how tasks are spread.
        network: settings of every TaskManager, whose slots share the memory. Ignored if the job has its own.
        slots_in: whether each slot is a process, as by default in a cluster.

    Raises:
        ConfigError: the job is invalid, a number is below 1, or more slots are taken than there are.
    """
    if taken and (taskmanagers is None or slots is None):
        raise ConfigError("taken needs the size of the cluster: give taskmanagers and slots, too")
    for name, value in (("taskmanagers", taskmanagers), ("slots", slots)):
        if value is not None and value < 1:
            raise ConfigError(f"{name}={value}; give at least 1")
    chaining, warning = None, ""
    if isinstance(source, StreamGraph):
        generated = generate_job(source)
        job, chaining, warning = generated.job, generated.chaining, generated.warning
    else:
        job = source
        check_result_types(job)
    undecided = _is_undecided(job)
    required = 1 if undecided else required_slots(job)
    if slots is None:
        slots = 1 if taskmanagers is None else -(-required // taskmanagers)
    if taskmanagers is None:
        taskmanagers = -(-required // slots)
    if len(taken) > taskmanagers or not all(0 <= count <= slots for count in taken):
        raise ConfigError(
            f"taken={','.join(map(str, taken))}: give 0 to {slots} slots for each of {taskmanagers} TaskManagers"
        )
    used = (*taken, *[0] * (taskmanagers - len(taken)))
    placement, problem, turns = None, "", ""
    if not undecided:
        free = [slots - others for others in used]
        try:
            placement = place(job, free, mode, used=used)
        except NotEnoughSlots as error:
            if can_take_turns(job, sum(free)):
                turns = (
                    f"There are fewer slots ({sum(free):,}) than subtasks that could run at the same time: they take"
                    " turns, and where each runs is decided when a slot is free."
                )
            else:
                problem = str(error)
        except ConfigError as error:
            problem = str(error)
    processes = slots if slots_in is SlotsIn.PROCESSES else 1
    own = source.settings.network if isinstance(source, StreamGraph) else None
    settings = own or _share(network or NetworkConfig(), processes)
    channels = None if placement is None else count_channels(job, placement, taskmanagers, processes)
    buffers = None
    if placement is not None and channels is not None:
        buffers = _buffers(job, placement, channels, settings, processes)
    return Plan(
        job=job,
        chaining=chaining,
        mode=mode,
        slots_in=slots_in,
        network=settings,
        is_own_network=own is not None,
        taskmanagers=taskmanagers,
        slots=slots,
        taken=used,
        slots_by_group=() if undecided else slots_by_group(job),
        placement=placement,
        channels=channels,
        buffers=buffers,
        regions=_regions(job, undecided),
        problem=problem,
        turns=turns,
        warning=warning,
    )


def _share(network: NetworkConfig, processes: int) -> NetworkConfig:
    """The settings of one of the processes that share the memory of a TaskManager."""
    if processes == 1:
        return network
    return replace(network, memory_bytes=slot_memory_bytes(network.memory_bytes, processes))


def _is_undecided(job: JobGraph) -> bool:
    return any(vertex.parallelism == UNDECIDED for vertex in job.vertices)


def _regions(job: JobGraph, undecided: bool) -> tuple[RegionPlan, ...]:
    if undecided or job.is_dynamic:  # subtasks of a dynamic job are created when their inputs are complete
        return tuple(RegionPlan(vertices, {}) for vertices in acyclic_logical_regions(job))
    regions = Regions(ExecutionGraph(job))
    logical = acyclic_logical_regions(job)
    logical_of = {vertex: number for number, vertices in enumerate(logical) for vertex in vertices}
    first_subtask = np.unique(regions.region_of, return_index=True)[1]
    vertex_of = np.repeat(np.arange(len(job.vertices)), [vertex.parallelism for vertex in job.vertices])
    sizes: list[Counter[int]] = [Counter() for _ in logical]
    for vertex, size in zip(vertex_of[first_subtask].tolist(), regions.sizes().tolist(), strict=True):
        sizes[logical_of[vertex]][size] += 1
    return tuple(
        RegionPlan(vertices, dict(sorted(counts.items(), reverse=True)))
        for vertices, counts in zip(logical, sizes, strict=True)
    )


def _buffers(
    job: JobGraph, placement: Placement, channels: JobChannels, network: NetworkConfig, processes: int
) -> BufferPlan:
    """Needed buffers by process, of the stage with the highest need: stages do not run at the same time."""
    count = placement.tasks.size * processes
    landing = index_array(channels.dialled * LANDING_SEGMENTS)
    required, maximum, unbounded = np.zeros(count), np.zeros(count), np.zeros(count, np.bool_)
    subpartitions = {edge.dataset: of.per_producer for edge, of in zip(job.edges, channels.edges, strict=True)}
    for stage in placement.stages:
        sums = _Sums(count)
        for edge, counted in zip(job.edges, channels.edges, strict=True):
            if job.vertices[edge.consumer].slot_sharing_group in stage:
                sums.add_gates(placement.processes_of(edge.consumer, processes), counted.remote_per_consumer, network)
        for number, per_producer in subpartitions.items():
            dataset = job.datasets[number]
            if job.vertices[dataset.producer].slot_sharing_group in stage:
                places = placement.processes_of(dataset.producer, processes)
                for written, those in _equal(per_producer):
                    sums.add(places[those], *partition_buffers(dataset.type, written, network))
        required = np.maximum(required, sums.required)
        maximum = np.maximum(maximum, sums.maximum)
        unbounded |= sums.is_unbounded
    most = index_array(maximum) + landing
    return BufferPlan(
        index_array(required) + landing, index_array(np.where(unbounded, -1, most)), network.total_segments
    )


@final
class _Sums:
    """Buffers of each process, summed over tasks."""

    def __init__(self, count: int) -> None:
        self.required, self.maximum = np.zeros(count), np.zeros(count)
        self.is_unbounded = np.zeros(count, np.bool_)

    def add_gates(self, places: IndexArray, remote: IndexArray, network: NetworkConfig) -> None:
        for channels, those in _equal(remote):
            buffers = gate_buffers(channels, network)
            exclusive = channels * buffers.exclusive_each
            self.add(places[those], exclusive + buffers.pool_required, exclusive + buffers.pool_maximum)

    def add(self, places: IndexArray, required: int, maximum: int | None) -> None:
        tasks = np.bincount(places, minlength=self.required.size)
        self.required += tasks * required
        if maximum is None:
            self.is_unbounded |= tasks > 0
        else:
            self.maximum += tasks * maximum


def _equal(values: IndexArray) -> list[tuple[int, IndexArray]]:
    """Each distinct value, and its positions."""
    unique, inverse = np.unique(values, return_inverse=True)
    order = index_array(np.argsort(inverse, kind="stable"))
    bounds = np.searchsorted(inverse[order], np.arange(unique.size + 1))
    return [(int(value), order[bounds[number] : bounds[number + 1]]) for number, value in enumerate(unique)]
