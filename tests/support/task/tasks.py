"""Jobs run on real network environments, deployed by the real scheduler; only the messages between them are calls."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import trio
import trio.testing
from schedule.descriptors import loaded as load_parts

from netstack.base.config import NetworkConfig
from netstack.base.events import Alignment, CheckpointBarrier
from netstack.cluster.function_loading import load
from netstack.cluster.task.chain_task import ChainTask
from netstack.cluster.task.recovery import RestoredCheckpoint
from netstack.cluster.task.reports import TaskOutcome
from netstack.network.environment import NetworkEnvironment, open_network
from netstack.schedule import StreamEnvironment, StreamGraph, generate_job
from netstack.schedule.checkpoint.finals import FinalStates
from netstack.schedule.checkpoint.snapshot import Manifest, TaskFile
from netstack.schedule.checkpoint.storage import CheckpointStorage
from netstack.schedule.descriptors.blob_store import MemoryBlobStore
from netstack.schedule.descriptors.descriptors import TaskDeploymentDescriptor
from netstack.schedule.descriptors.information import JobInformation, TaskInformation
from netstack.schedule.descriptors.shuffle import TaskManagerLocation
from netstack.schedule.events import (
    CheckpointStored,
    Event,
    PartitionConsumable,
    Proceed,
    SlotsOffered,
    StartJob,
    TaskManagerRegistered,
)
from netstack.schedule.instructions import Continue, Deploy
from netstack.schedule.scheduler import Scheduler
from netstack.schedule.scheduler_settings import SchedulerSettings
from netstack.schedule.strategies.scheduling_types import SchedulingType

SMALL = NetworkConfig(segment_size_bytes=256, memory_bytes=256 * 1200)
"""Buffers of about 30 records, so that records are torn and queues are short."""


async def at_once(function: Callable[[], Any]) -> Any:
    """Stands for a thread: virtual time would run away while one works."""
    await trio.lowlevel.checkpoint()
    return function()


class Reports:
    """Hears what one attempt says."""

    def __init__(self, run: Run, attempt: tuple[int, int]) -> None:
        self._run = run
        self._attempt = attempt
        self.said_running = False
        self.said_waiting = False

    def initializing(self) -> None:
        pass

    def running(self) -> None:
        self.said_running = True
        self._run.changed()

    def waiting(self) -> None:
        self.said_waiting = True
        self._run.changed()

    def acknowledged(self, checkpoint_id: int, file: TaskFile, report: dict[str, Any]) -> None:
        self._run.acknowledged(checkpoint_id, file, report)

    def declined(self, checkpoint_id: int, reason: str) -> None:
        self._run.declined[checkpoint_id] = reason
        self._run.changed()

    def consumable(self, partition: int) -> None:
        self._run.consumable(self._attempt, partition)

    def said(self, message: dict[str, Any]) -> None:
        pass


class Run:
    """One run of a job: every task of it, and the simplest of masters."""

    def __init__(self, graph: StreamGraph, environments: Sequence[NetworkEnvironment], restore: int | None) -> None:
        self.graph = graph
        self.job = generate_job(graph).job
        settings = graph.settings
        self.storage = None
        if settings.checkpoint_folder is not None:
            self.storage = CheckpointStorage(settings.checkpoint_folder)
        self.tasks: dict[tuple[str, int], ChainTask] = {}
        self.reports: dict[tuple[str, int], Reports] = {}
        self.outcomes: dict[tuple[str, int], TaskOutcome] = {}
        self.failures: dict[tuple[str, int], BaseException] = {}
        self.declined: dict[int, str] = {}
        self.files: dict[int, dict[tuple[str, int], TaskFile]] = {}
        self.final_checkpoints: list[int] = []
        self.subtask_reports: list[dict[str, Any]] = []
        self.environments = environments
        self._changed = trio.Event()
        self._store = MemoryBlobStore()
        self._restore = restore
        self._checkpoint: RestoredCheckpoint | None = None
        self._nursery: trio.Nursery | None = None
        scheduling = settings.scheduling
        chosen = SchedulerSettings(scheduling=None if scheduling is None else SchedulingType(scheduling))
        self._scheduler = Scheduler(self.job, "run-1", store=self._store, settings=chosen)
        self._deploy_all()

    def changed(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            if self.failures:
                raise next(iter(self.failures.values()))
            await self._changed.wait()

    # Checkpoints.

    async def checkpoint(
        self, checkpoint_id: int, *, unaligned: bool = False, timeout_s: float = 0.0, stops: bool = False
    ) -> None:
        """Takes one, and completes it."""
        self.trigger(checkpoint_id, unaligned=unaligned, timeout_s=timeout_s, stops=stops)
        await self.complete(checkpoint_id)

    def trigger(
        self, checkpoint_id: int, *, unaligned: bool = False, timeout_s: float = 0.0, stops: bool = False
    ) -> None:
        alignment = Alignment.UNALIGNED if unaligned else Alignment.ALIGNED
        self._barrier = CheckpointBarrier(checkpoint_id, 0, alignment, round(timeout_s * 1e9))
        self._triggered: set[tuple[str, int]] = set()
        self._trigger(stops=stops)

    def _trigger(self, *, stops: bool = False) -> None:
        """Every task that nobody sends barriers (any more)."""
        producers: dict[str, set[str]] = {vertex.name: set() for vertex in self.job.vertices}
        for edge in self.job.edges:
            producer = self.job.vertices[self.job.datasets[edge.dataset].producer].name
            producers[self.job.vertices[edge.consumer].name].add(producer)
        running = {key[0] for key in self.tasks if key not in self.outcomes and not self.reports[key].said_waiting}
        for key, task in self.tasks.items():
            is_reached = producers[key[0]] & running and not self.reports[key].said_waiting
            if key not in self.outcomes and key not in self._triggered and not is_reached:
                self._triggered.add(key)
                task.trigger_checkpoint(self._barrier, is_savepoint=stops, stops=stops)

    async def complete(self, checkpoint_id: int) -> None:
        storage = self.storage
        assert storage is not None
        files = self.files.setdefault(checkpoint_id, {})

        def is_complete() -> bool:
            assert checkpoint_id not in self.declined, self.declined[checkpoint_id]
            for key, outcome in self.outcomes.items():
                if key not in files and outcome.final is not None:
                    files[key] = FinalStates(storage.folder).copy(outcome.final, checkpoint_id, storage)
            self._trigger()
            return len(files) == len(self.tasks)

        await self.until(is_complete)
        storage.complete(
            Manifest(
                checkpoint_id,
                datetime.datetime.now(datetime.UTC),
                {vertex.name: vertex.parallelism for vertex in self.job.vertices},
                tuple(files.values()),
            )
        )
        for task in self.tasks.values():
            task.checkpoint_completed(checkpoint_id)

    def acknowledged(self, checkpoint_id: int, file: TaskFile, report: dict[str, Any]) -> None:
        self.files.setdefault(checkpoint_id, {})[file.task, file.subtask] = file
        self.subtask_reports.append(report)
        self.changed()

    # Results.

    def result(self, operator: str) -> list[Any]:
        """What a sink gave, by subtask."""
        actual = {
            subtask: outcome.results[operator]
            for (_, subtask), outcome in self.outcomes.items()
            if operator in outcome.results
        }
        return [actual[subtask] for subtask in sorted(actual)]

    def task(self, operator: str, subtask: int = 0) -> ChainTask:
        """The task that an operator is in."""
        vertex = next(each.name for each in self.job.vertices if operator in each.operators)
        return self.tasks[vertex, subtask]

    # Inside.

    def _give(self, event: Event) -> None:
        """Tells the scheduler something, and makes the tasks that it deploys then."""
        message = self._scheduler.handle(event, 0.0)
        while True:
            for instruction in message:
                if isinstance(instruction, Deploy):
                    packed = self._scheduler.descriptors(instruction)
                    for (_, data), slot in zip(packed, instruction.slots, strict=True):
                        number = int(slot.location.taskmanager.removeprefix("tm-"))
                        self._make(TaskDeploymentDescriptor.parse(data), self.environments[number])
            if not message or not isinstance(message[-1], Continue):
                return
            message = self._scheduler.handle(Proceed(), 0.0)

    def _deploy_all(self) -> None:
        slots = tuple(range(sum(vertex.parallelism for vertex in self.job.vertices)))
        for number, environment in enumerate(self.environments):
            self._give(TaskManagerRegistered(TaskManagerLocation(f"tm-{number}", environment.address)))
            self._give(SlotsOffered(f"tm-{number}", slots))
        if self._restore is not None:
            self._give(CheckpointStored(self._restore))
        self._give(StartJob())
        self.deployed_at_first = len(self.tasks)

    def consumable(self, attempt: tuple[int, int], partition: int) -> None:
        topology = self._scheduler.topology
        partitions = topology.partitions_of_subtask(topology.subtasks_of(attempt[0])[attempt[1]])
        self._give(PartitionConsumable(partitions[partition], 0))

    def _make(self, descriptor: TaskDeploymentDescriptor, environment: NetworkEnvironment) -> None:
        loaded = load_parts(descriptor, lambda key: self._store.get("run-1", key))
        assert isinstance(loaded.job_information, bytes)
        assert isinstance(loaded.task_information, bytes)
        job, task = JobInformation.parse(loaded.job_information), TaskInformation.parse(loaded.task_information)
        key = task.name, loaded.attempt.subtask
        self.reports[key] = Reports(self, (loaded.attempt.vertex, loaded.attempt.subtask))
        self.tasks[key] = ChainTask(
            loaded,
            job,
            task,
            environment,
            self.reports[key],
            storage=self.storage,
            restored=self._restored,
            load=load,
            in_thread=at_once,
        )
        if self._nursery is not None:  # a later stage
            self.tasks[key].create()
            self._nursery.start_soon(self._run_task, key)

    async def _restored(self) -> RestoredCheckpoint:
        await trio.lowlevel.checkpoint()
        if self._checkpoint is None:
            assert self.storage is not None
            assert self._restore is not None
            self._checkpoint = RestoredCheckpoint(
                self.storage.read(self._restore),
                self.storage.path(self._restore),
                has_heads=self.environments[0].config.as_flink,
            )
        return self._checkpoint

    async def _run_task(self, key: tuple[str, int]) -> None:
        failure = "the test is over"
        try:
            self.outcomes[key] = await self.tasks[key].run()
            failure = ""
        except Exception as error:
            failure = str(error)
            self.failures[key] = error
        finally:
            with trio.CancelScope(shield=True):
                await self.tasks[key].close(failure)
            self.changed()

    async def start(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        for task in self.tasks.values():
            task.create()
        for key in self.tasks:
            nursery.start_soon(self._run_task, key)
        await self.until(lambda: all(reports.said_running for reports in self.reports.values()))

    async def wait(self) -> None:
        """Until every task has ended; a checkpoint is taken when those that are left wait for one."""
        every = sum(vertex.parallelism for vertex in self.job.vertices)

        def is_over() -> bool:
            return len(self.outcomes) == every or all(
                self.reports[key].said_waiting for key in self.tasks if key not in self.outcomes
            )

        while len(self.outcomes) < every:
            await self.until(is_over)
            if len(self.outcomes) < every:
                assert self.storage is not None
                self.final_checkpoints.append(self.storage.next_id())
                await self.checkpoint(self.final_checkpoints[-1])
                await self.until(lambda: len(self.outcomes) == every)


_ports = itertools.count()


@asynccontextmanager
async def running(
    job: StreamEnvironment,
    *,
    environments: int = 2,
    restore: int | None = None,
    config: NetworkConfig = SMALL,
    ticks: Callable[[], float] | None = None,
) -> AsyncIterator[Run]:
    """A job whose tasks all run; those that are left when the block ends are cancelled."""
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(open_network(f"memory://tasks-{next(_ports)}", config))
            for _ in range(environments)
        ]
        for environment in opened:
            environment.ticks = ticks or environment.ticks
        run = Run(job.stream_graph(), opened, restore)
        failure: BaseException | None = None
        async with trio.open_nursery() as nursery:
            try:
                await run.start(nursery)
                yield run
            except Exception as error:  # leaves as it is, not inside this nursery's group
                failure = error
            nursery.cancel_scope.cancel()
    for environment in opened:
        assert environment.statistics().pool.lent_segments == 0
    if failure is not None:
        raise failure


async def run_to_its_end(job: StreamEnvironment, **options: Any) -> Run:
    """Runs a job."""
    async with running(job, **options) as run:
        await run.wait()
        return run
