"""The part of a scheduler that runs without failures: schedules subtasks, gets slots, deploys, releases.

Rules: states, attempts and numbers change at once. Work that takes long for many subtasks is queued (`WorkQueue`) and
done in pieces. The topology of a dynamic job grows before each scheduling decision.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np
import numpy.typing as npt

from ..base.errors import ConfigError, LocalProtocolError
from ..base.ids import ResultPartitionType
from .adaptive.dynamic_graph import DynamicGraph
from .adaptive.parallelism import Decision, ParallelismExplanation, decide, explain
from .adaptive.skew import VertexInput
from .descriptors.blob_store import Offloader
from .descriptors.deployment import Deployment
from .descriptors.information import JobInformation
from .descriptors.shuffle import TaskManagerLocation
from .execution import ExecutionInput, Executions, ExecutionState, ExecutionVersions, RecordedVersions
from .failover.release import PartitionRelease, PartitionTracker
from .graph.job_graph import JobGraph, SourceSize
from .instructions import Continue, Deploy, Instruction, ReleasePartitions, RequireSlots, ReturnSlots, UpdateGate
from .scheduler_settings import SchedulerSettings
from .slots.placement import deciding_mode, may_hold_slots
from .slots.slot_allocation import SlotAllocation
from .slots.slot_pool import SlotPool
from .slots.slot_sharing import ConsumedPartitions, ExecutionSlotSharingGroups, LocalInputPreferred, task_balanced
from .slots.slots import LoadBalanceMode, PhysicalSlot
from .strategies.scheduling_types import EagerScheduling, LazyScheduling, SchedulingType
from .strategies.strategy import HybridConsumption, RegionScheduling, SchedulingStrategy, VertexwiseScheduling
from .structures import Batches, FlagArray, GrowingArray, IndexArray, index_array
from .topology.execution_graph import ExecutionGraph
from .topology.regions import Regions


class WorkKind(enum.Enum):
    """What to do with subtasks."""

    RELEASE = "release"
    """Return their logical slots."""
    ALLOCATE = "allocate"
    """Request their slots."""
    DEPLOY = "deploy"
    """Send them to their slots."""
    FINISH = "finish"
    """Schedule their consumers and release their inputs."""


COSTS: Final = {WorkKind.RELEASE: 2, WorkKind.ALLOCATE: 4, WorkKind.DEPLOY: 3, WorkKind.FINISH: 8}
"""Cost of one subtask. Measured: a unit is about 10 microseconds, including the execution of the instructions."""
MATCHES_PER_UNIT: Final = 3
"""Slots that arrive after their requests are matched at once; so many matches use one unit of the step's budget."""


@final
@dataclass(slots=True)
class _Item:
    kind: WorkKind
    recorded: RecordedVersions
    done: int = 0


@final
class WorkQueue:
    """The queued work of one scheduler, cut into pieces, so that no step takes long; first in, first out.

    A piece fits the rest of the step's budget but makes progress in any case. Subtasks that were superseded since their
    work was queued are skipped.
    """

    def __init__(self, versions: ExecutionVersions) -> None:
        self._versions = versions
        self._items: deque[_Item] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def add(self, kind: WorkKind, subtasks: IndexArray) -> None:
        """Queues work on subtasks, if there are any."""
        if subtasks.size:
            self._items.append(_Item(kind, self._versions.record(subtasks)))

    def take(self, budget: int) -> tuple[WorkKind, IndexArray, int]:
        """The next piece and the remaining budget. The queue must not be empty.

        A piece of RELEASE keeps superseded subtasks too: a share of a slot is returned exactly once.
        """
        item = self._items[0]
        stop = item.done + max(1, budget // COSTS[item.kind])
        piece = item.recorded[item.done : stop]
        item.done = stop
        if stop >= item.recorded.subtasks.size:
            self._items.popleft()
        left = budget - COSTS[item.kind] * piece.subtasks.size
        return item.kind, piece.subtasks if item.kind is WorkKind.RELEASE else self._versions.current(piece), left


@final
class Deployer:
    """The failure-free part of a scheduler.

    Raises:
        ConfigError: the job cannot be scheduled in this way.

    Attributes:
        topology: the subtasks, partitions and groups so far.
        executions: state and attempt of each subtask.
        release: decides which partitions are no longer needed.
        work: queued work.
        mode: decides where subtasks go.
        strategy: decides which subtasks are scheduled when.
        taskmanagers: by name of each registered TaskManager, its places in `locations`: one, or one for each slot.
        locations: every place so far, by number.
        out: instructions of this step.
        offered: number of slots that the job was ever offered.
        on_released: called with subtasks whose slots were returned; set by `recovery`.
        deployed_s: by subtask, when its current attempt was deployed.
        took_s: by finished subtask, seconds from deployment to its end.
        steps: pieces of work done so far.
    """

    def __init__(self, job: JobGraph, job_id: str, offloader: Offloader, settings: SchedulerSettings) -> None:
        self._settings = settings
        self.mode = deciding_mode(job, settings.mode)
        self._has_hybrid = any(each.type is ResultPartitionType.HYBRID_FULL for each in job.datasets)
        self.topology = ExecutionGraph(job, most_decided=settings.adaptive.most)
        self.regions = Regions(self.topology)
        self.executions = Executions()
        self.versions = ExecutionVersions()
        self.tracker = PartitionTracker()
        self.release = PartitionRelease(self.topology, self.regions)
        self.work = WorkQueue(self.versions)
        self.taskmanagers: dict[str, range] = {}
        self.locations: list[TaskManagerLocation] = []
        self.out: list[Instruction] = []
        self.now_s = 0.0
        self.on_released: Callable[[IndexArray], None]
        self._is_releasing = GrowingArray(np.bool_)
        self.deployed_s = GrowingArray(np.float64)
        self.took_s = GrowingArray(np.float64)
        self.deployed = 0
        self.steps = 0
        self.offered = 0
        self._required = RequireSlots(0, 0)
        self._is_continuing = False
        self._sharing = LocalInputPreferred(job)
        self._dynamic: DynamicGraph | None = None
        if job.is_dynamic:
            self._dynamic = DynamicGraph(self.topology, self._decide)
        self.strategy = self._choose_strategy()
        waits = settings.slots.waits_for_running
        if waits is None:
            stores = any(dataset.type.is_blocking or dataset.type.is_hybrid for dataset in job.datasets)
            waits = stores and not may_hold_slots(job)
        self.allocation = SlotAllocation(
            self.topology,
            self._groups_of(self.topology.initialised),
            SlotPool(self.mode, settings.slots),
            waits_for_running=waits,
        )
        self.deployment = Deployment(
            JobInformation.of(
                job_id,
                job,
                builds=settings.builds,
                code=settings.code,
                reports_first_output=isinstance(self.strategy, LazyScheduling),
            ),
            self.topology,
            self.executions,
            self.tracker,
            self.locations,
            offloader,
            only_finished=settings.hybrid is HybridConsumption.ONLY_FINISHED_PRODUCERS,
            life=settings.life,
        )
        self._extend_tables()

    def _choose_strategy(self) -> SchedulingStrategy:
        settings, topology = self._settings, self.topology
        if topology.job.is_dynamic:
            if settings.scheduling is not None:
                raise ConfigError(
                    f"job {topology.job.name!r} is dynamic, so its subtasks are scheduled one by one; leave"
                    f" out scheduling={settings.scheduling.value}"
                )
            return VertexwiseScheduling(topology, settings.hybrid)
        if settings.scheduling is None:
            return RegionScheduling(topology, self.regions)
        if settings.scheduling is SchedulingType.ALL_AT_ONCE:
            return EagerScheduling(topology)
        return LazyScheduling(topology, settings.scheduling, settings.constraint)

    # ------------------------------------------------------------------------------------------------- growth

    @property
    def is_whole(self) -> bool:
        """Whether every vertex has its subtasks."""
        return len(self.topology.initialised) == len(self.topology.job.vertices)

    def grow(self) -> None:
        """Initialises the vertices of a dynamic job that are ready, and extends every table to the new subtasks."""
        added = () if self._dynamic is None else self._dynamic.grow()
        if not added:
            return
        self.regions.extend()
        self.strategy.extend()
        self.release.extend()
        self.allocation.extend(self._groups_of(added))
        self._extend_tables()

    def record_sizes(self, produced_bytes: Mapping[int, npt.NDArray[np.int64]], finished: IndexArray) -> None:
        """Records the bytes that finished subtasks wrote into each subpartition, by partition; only in a dynamic job.

        Raises:
            LocalProtocolError: the sizes of one of their partitions are missing.
        """
        if self._dynamic is None:
            return
        for partition in self.partitions_of(finished).tolist():
            sizes = produced_bytes.get(partition)
            if sizes is None:
                raise LocalProtocolError(
                    f"partition {partition} of an adaptive job is finished but its sizes are missing: report FINISH"
                    " with produced_bytes"
                )
            dataset = int(self.topology.dataset_of_partition[partition])
            self._dynamic.record(dataset, partition - self.topology.partitions_of(dataset).start, sizes)

    def forget_partitions(self, partitions: IndexArray) -> None:
        """Forgets locations and sizes of partitions that will be written again."""
        self.tracker.forget(partitions)
        if self._dynamic is not None:
            for partition in partitions.tolist():
                dataset = int(self.topology.dataset_of_partition[partition])
                self._dynamic.forget(dataset, partition - self.topology.partitions_of(dataset).start)

    def _extend_tables(self) -> None:
        added = self.topology.subtask_count - len(self.executions)
        self.executions.grow(added)
        self.versions.grow(added)
        self._is_releasing.extend_with(False, added)
        self.deployed_s.extend_with(0.0, added)
        self.took_s.extend_with(0.0, added)
        self.tracker.grow(self.topology.partition_count - len(self.tracker))

    def _groups_of(self, vertices: tuple[int, ...]) -> ExecutionSlotSharingGroups:
        job = self.topology.job
        if self._settings.placement is not None:
            return self._settings.placement.groups(job)
        if self.mode is LoadBalanceMode.TASKS:
            return task_balanced(job)
        for vertex in vertices:
            inputs = []
            for edge in self.topology.inputs_of(vertex):
                first, stop = self.topology.input_info(edge).partition_ranges()
                inputs.append(ConsumedPartitions(job.datasets[job.edges[edge].dataset].producer, first, stop - 1))
            self._sharing.add(vertex, self.topology.parallelism_of(vertex), inputs)
        return self._sharing.groups()

    def _decide(self, inputs: Sequence[VertexInput], max_parallelism: int, source: SourceSize | None) -> Decision:
        adaptive = self._settings.adaptive
        decision = decide(inputs, adaptive, max_parallelism=max_parallelism, source=source)
        return replace(decision, explanation=explain(inputs, adaptive, max_parallelism, decision, source))

    def explanation(self, vertex: int) -> ParallelismExplanation | None:
        """Why a vertex has its parallelism; None unless it was decided while the job ran."""
        return None if self._dynamic is None else self._dynamic.explanations.get(vertex)

    # --------------------------------------------------------------------------------------------- scheduling

    def start(self) -> None:
        """Schedules the first subtasks."""
        self.grow()
        self.schedule(self.strategy.start())

    def first_output(self, partition: int, attempt: int) -> bool:
        """Handles the first buffer of a partition; returns False for the report of another attempt."""
        producer = self.topology.producer_of_partition[partition : partition + 1]
        if not self.executions.current(producer, np.array([attempt], np.uint32)).all():
            return False
        if self.executions.producing(producer)[0] and isinstance(self.strategy, LazyScheduling):
            self.schedule(self.strategy.on_first_output(partition))
        return True

    def schedule(self, batches: Batches) -> None:
        """Schedules bulks: a bulk requests its slots together, and is deployed when it has all of them."""
        self.executions.apply(batches.subtasks, ExecutionInput.SCHEDULE)
        self.allocation.open(batches)
        self.work.add(WorkKind.ALLOCATE, batches.subtasks)

    def step(self, checkpoint: int | None, *, is_proceeding: bool) -> None:
        """Works until the budget is used up or nothing is left; does nothing while a `Proceed` is outstanding."""
        if is_proceeding:
            self._is_continuing = False
        if self._is_continuing:
            return
        budget = self._settings.step_budget - self.allocation.take_matched() // MATCHES_PER_UNIT
        self._queue_complete()
        while self.work and budget > 0:
            kind, subtasks, budget = self.work.take(budget)
            self.steps += 1
            if kind is WorkKind.RELEASE:
                self.allocation.release(subtasks, self.now_s)
                self._is_releasing.view[subtasks] = False
                self.on_released(subtasks)
            elif kind is WorkKind.ALLOCATE:
                self.allocation.request(subtasks, self.now_s)
            elif kind is WorkKind.DEPLOY:
                self._deploy(subtasks, checkpoint)
            else:
                self._follow(subtasks)
            self._queue_complete()
        self.allocation.take_matched()  # by work that has been paid for
        unwanted = self.allocation.take_unwanted()
        if unwanted:
            self.out.append(ReturnSlots(tuple(unwanted)))
        self._update_gates()
        if self.work:
            self._is_continuing = True
            self.out.append(Continue())
            return
        missing = self.allocation.missing
        required = RequireSlots(self.offered + missing, missing) if missing else RequireSlots(0, 0)
        if required != self._required:
            self._required = required
            self.out.append(required)

    def ended(self, subtasks: IndexArray, *, keeps_slot: bool = False) -> None:
        """Returns the slots of subtasks that became terminal, and queues what the end of finished ones makes possible.

        Args:
            subtasks: numbers.
            keeps_slot: another attempt has yet to stop in the slot; the caller queues the release.
        """
        self._is_releasing.view[subtasks] = True
        if not keeps_slot:
            self.work.add(WorkKind.RELEASE, subtasks)
        finished = self.executions.in_state(subtasks, ExecutionState.FINISHED)
        self.took_s.view[finished] = self.now_s - self.deployed_s.view[finished]
        self.work.add(WorkKind.FINISH, finished)

    def place(self, subtask: int, slot: PhysicalSlot) -> None:
        """Records that the current attempt of a subtask writes its partitions in this slot."""
        number = index_array([subtask])
        partitions = self.partitions_of(number)
        places = [self._place_of(slot, int(dataset)) for dataset in self.topology.dataset_of_partition[partitions]]
        self.tracker.track(
            partitions, index_array(places), np.full(partitions.size, self.executions.attempts[subtask], np.uint32)
        )

    def add_taskmanager(self, location: TaskManagerLocation) -> None:
        """Adds a TaskManager: each of its data ports is a place for partitions, its own port the last one."""
        first = len(self.locations)
        self.locations += [
            replace(location, address=address) for address in (*location.slot_addresses, location.address)
        ]
        self.taskmanagers[location.name] = range(first, len(self.locations))

    def _place_of(self, slot: PhysicalSlot, dataset: int) -> int:
        """The place of a result: the slot's port, or the TaskManager's own port for blocking results."""
        places = self.taskmanagers[slot.location.taskmanager]
        return places[-1 if len(places) == 1 or self.topology.job.datasets[dataset].type.is_blocking else slot.index]

    def occupying(self, subtasks: IndexArray) -> FlagArray:
        """For each subtask, whether it has not ended or still has its slot; it cannot be scheduled again before."""
        occupying: FlagArray = ~self.executions.terminal(subtasks) | self._is_releasing.view[subtasks]
        return occupying

    def _queue_complete(self) -> None:
        """Queues the deployment of bulks that have all their slots; their partitions have places from now on."""
        subtasks = self.allocation.take_complete()
        if not subtasks.size:
            return
        for vertex, indices in self.topology.by_vertex(subtasks):
            own = indices + np.int32(self.topology.subtasks_of(vertex).start)
            slots = self.allocation.slots_of(own)
            for dataset in self.topology.outputs_of(vertex):
                places = index_array([self._place_of(slot, dataset) for slot in slots])
                partitions = indices + np.int32(self.topology.partitions_of(dataset).start)
                self.tracker.track(partitions, places, self.executions.attempts[own])
        self.deployment.on_produced(subtasks)
        self.work.add(WorkKind.DEPLOY, subtasks)

    def _update_gates(self) -> None:
        """Sends deployed consumers the partitions that have got a place since."""
        for group, descriptors in self.deployment.updates():
            edge = int(self.topology.groups.edge[group])
            consumers = np.sort(self.topology.groups.consumers_of(group))
            deployed = consumers[self.executions.on_taskmanager(consumers)]
            running = self.executions.not_in_state(deployed, ExecutionState.CANCELING)
            if running.size:
                slots = tuple(self.allocation.slots_of(running))
                gate = self.topology.inputs_of(self.topology.job.edges[edge].consumer).index(edge)
                self.out.append(UpdateGate(running, self.executions.attempts[running], slots, gate, descriptors))

    def _deploy(self, subtasks: IndexArray, checkpoint: int | None) -> None:
        if subtasks.size:
            self.executions.apply(subtasks, ExecutionInput.DEPLOY)
            self.deployed_s.view[subtasks] = self.now_s
            self.deployed += subtasks.size
            slots = tuple(self.allocation.slots_of(subtasks))
            self.out.append(Deploy(subtasks, self.executions.attempts[subtasks], slots, checkpoint))

    def _follow(self, subtasks: IndexArray) -> None:
        """Handles what the end of subtasks makes possible: schedules consumers, releases inputs."""
        for subtask in subtasks.tolist():
            self.topology.finish(subtask)
            self.grow()
            batches = self.strategy.on_finished(subtask)
            if len(batches):
                self.schedule(batches)
            unneeded = self.release.on_finished(subtask)
            if unneeded.groups:
                self.deployment.invalidate(index_array(unneeded.groups))
                self.release_partitions(unneeded.partitions)
        self._move_hybrid(subtasks)
        self.deployment.on_produced(subtasks)

    def _move_hybrid(self, subtasks: IndexArray) -> None:
        """Moves complete hybrid results to the TaskManager's port, where blocking results are from the beginning."""
        if not self._has_hybrid:
            return
        for partition in self.tracker.tracked(self.partitions_of(subtasks)).tolist():
            dataset = int(self.topology.dataset_of_partition[partition])
            if self.topology.job.datasets[dataset].type is ResultPartitionType.HYBRID_FULL:
                name = self.locations[self.tracker.places[partition]].name
                self.tracker.places[partition] = self.taskmanagers[name][-1]
        self.deployment.on_moved(self.topology.produced_by_all(subtasks))

    # --------------------------------------------------------------------------------------------- partitions

    def partitions_of(self, subtasks: IndexArray) -> IndexArray:
        """The partitions that ascending subtasks write."""
        partitions = [
            indices + np.int32(self.topology.partitions_of(dataset).start)
            for vertex, indices in self.topology.by_vertex(subtasks)
            for dataset in self.topology.outputs_of(vertex)
        ]
        return np.concatenate(partitions) if partitions else index_array([])

    def release_partitions(self, partitions: IndexArray) -> None:
        """Releases those of the partitions that still exist."""
        tracked = self.tracker.tracked(partitions)
        if tracked.size:
            numbers = self.tracker.places[tracked].tolist()
            names = tuple(self.locations[number].name for number in numbers)
            self.out.append(ReleasePartitions(tracked, self.tracker.attempts[tracked], names))
            self.tracker.release(tracked)

    def drop_written(self, subtask: int, attempt: int, slot: PhysicalSlot) -> None:
        """Releases what an attempt wrote that finished before its cancellation reached it."""
        datasets = self.topology.job.datasets
        kept = [
            partition
            for partition in self.partitions_of(index_array([subtask])).tolist()
            if datasets[int(self.topology.dataset_of_partition[partition])].type.is_released_by_scheduler
        ]
        if kept:
            names = (slot.location.taskmanager,) * len(kept)
            attempts = np.full(len(kept), attempt, np.uint32)
            self.out.append(ReleasePartitions(index_array(kept), attempts, names))

    def release_results(self) -> None:
        """Releases the remaining results at the end of the job, except persistent ones."""
        is_ours = np.array(
            [
                dataset.type.is_released_by_scheduler and not dataset.type.is_persistent
                for dataset in self.topology.job.datasets
            ],
            np.bool_,
        )
        self.release_partitions(index_array(np.flatnonzero(is_ours[self.topology.dataset_of_partition])))
        self.deployment.clear()
