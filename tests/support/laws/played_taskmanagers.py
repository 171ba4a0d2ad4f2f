"""A whole cluster around a real JobManager, in virtual time: TaskManagers only play their tasks, and all goes wrong.

They speak the real protocol over real links (memory transport). Tasks take their time, fail, and miss partitions that
are gone; TaskManagers die, with a word or without one, and others come; the JobManager is killed and opened again on
its folder. What must always hold is asserted as it happens.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from netstack.base.errors import AuthenticationFailed, ConnectionLost, RequestRefused
from netstack.cluster.control.codec import Message
from netstack.cluster.control.link import TASKMANAGER, ControlLink, dial
from netstack.cluster.control.messages import CancelTasks, CloseJob, OpenJob, ReleasePartitions, SubmitTasks, UpdateGate
from netstack.cluster.control.reports import (
    JobClosed,
    JobOpened,
    PartitionConsumable,
    TaskFailed,
    TaskFinished,
    TaskStates,
)
from netstack.cluster.jobmanager.config import JobManagerConfig
from netstack.cluster.jobmanager.service import JobManager, open_jobmanager
from netstack.schedule.descriptors.descriptors import TaskDeploymentDescriptor
from netstack.schedule.descriptors.shuffle import ShuffleDescriptors

Attempt = tuple[int, int, int]

_NUMBERS = itertools.count()


@dataclass
class Weather:
    """What goes wrong, and how often; it clears up at `clears_s`."""

    task_fails: float = 0.0
    taskmanager_dies_every_s: float = 0.0
    jobmanager_dies_every_s: float = 0.0
    is_silent: float = 0.5
    task_s: float = 1.0
    clears_s: float = 60.0


@dataclass(eq=False)
class Partition:
    """One partition that a played task has written."""

    taskmanager: PlayedTaskManager
    is_complete: bool = False
    is_released: bool = False


@dataclass
class World:
    """What really is, whatever the JobManager believes."""

    chance: random.Random
    weather: Weather
    folder: Path
    running: dict[tuple[str, int, int], tuple[int, PlayedTaskManager]] = field(default_factory=dict)
    partitions: dict[str, Partition] = field(default_factory=dict)
    deaths: int = 0
    jobmanager_deaths: int = 0

    @property
    def is_stormy(self) -> bool:
        return trio.current_time() < self.weather.clears_s


async def at_once(function: Callable[[], Any]) -> Any:
    await trio.lowlevel.checkpoint()
    return function()


class PlayedTaskManager:
    """One TaskManager: it registers, plays tasks, dies, or loses its JobManager and registers again."""

    def __init__(self, world: World, address: str, slots: int) -> None:
        self.world = world
        self.address = address
        self.name = f"tm-{next(_NUMBERS)}"
        self.slots = slots
        self.is_alive = True
        self.scope = trio.CancelScope()
        self.tasks: dict[tuple[str, Attempt], trio.CancelScope] = {}
        self.slots_used: dict[tuple[str, Attempt], int] = {}
        self.tombstones: set[tuple[str, Attempt]] = set()
        self.unknown: dict[tuple[str, Attempt], set[tuple[int, int]]] = {}
        self.link: ControlLink | None = None

    async def live(self) -> None:
        with self.scope:
            while True:
                with contextlib.suppress(ConnectionLost, AuthenticationFailed, RequestRefused, OSError):
                    facts = {"slots": self.slots, "data": f"memory://{self.name}", "hostname": self.name, "pid": 1}
                    link, _ = await dial(self.address, role=TASKMANAGER, name=self.name, facts=facts)
                    await self._serve(link)
                await trio.sleep(0.3)
        self.is_alive = False
        for key in [*self.tasks]:
            self._leave(key)

    def die(self, *, silently: bool) -> None:
        """Ends at once; silently: its connection stays open, and nobody is at its end."""
        self.is_alive = False
        self.world.deaths += 1
        if silently and self.link is not None:
            self.link.close = lambda: None  # type: ignore[method-assign]  # as a host that is unplugged
            stream = self.link._frames._stream
            stream.close = lambda: None  # type: ignore[method-assign]
        self.scope.cancel()

    async def _serve(self, link: ControlLink) -> None:
        self.link = link
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.run)
                try:
                    while True:
                        self._on_message(await link.receive(), link, nursery)
                except ConnectionLost:
                    nursery.cancel_scope.cancel()
        finally:
            for key in [*self.tasks]:
                self._leave(key)
            self.tombstones.clear()
            link.close()

    def _on_message(self, message: Message, link: ControlLink, nursery: trio.Nursery) -> None:
        match message:
            case OpenJob() | UpdateGate() | CancelTasks() | SubmitTasks() | ReleasePartitions() | CloseJob():
                pass
            case _:
                return
        match message:
            case OpenJob():
                self._say(link, JobOpened(message.job_id))
            case SubmitTasks():
                for data in message.descriptors:
                    descriptor = TaskDeploymentDescriptor.parse(data)
                    each = descriptor.attempt
                    key = (each.job, (each.vertex, each.subtask, each.attempt))
                    if key in self.tombstones:
                        self._say(link, TaskStates(each.job, "canceled", (key[1],)))
                    else:
                        self._begin(key, descriptor)
                        nursery.start_soon(self._play, link, key, descriptor)
            case CancelTasks():
                for attempt in message.attempts:
                    key = (message.job_id, attempt)
                    if not self._leave(key):
                        self.tombstones.add(key)
                    self._say(link, TaskStates(message.job_id, "canceled", (attempt,)))
            case UpdateGate():
                news = {
                    (message.gate, index) for index in ShuffleDescriptors.decompress(message.descriptors).index.tolist()
                }
                for attempt in message.attempts:
                    self.unknown.get((message.job_id, attempt), set()).difference_update(news)
            case ReleasePartitions():
                for name in message.names:
                    if name in self.world.partitions:
                        self.world.partitions[name].is_released = True
            case CloseJob():
                for key in [key for key in self.tasks if key[0] == message.job_id]:
                    self._leave(key)
                self._say(link, JobClosed(message.job_id, ""))

    def _say(self, link: ControlLink, message: Message) -> None:
        if self.is_alive:
            link.send(message)

    # Tasks.

    def _begin(self, key: tuple[str, Attempt], descriptor: TaskDeploymentDescriptor) -> None:
        job, (vertex, subtask, attempt) = key
        other = self.world.running.get((job, vertex, subtask))
        # Whoever cannot be reached may still run an old attempt: nobody can keep it from that.
        assert other is None or not other[1].is_alive, f"{key} runs twice: also {other}"
        slot = int(descriptor.allocation.rpartition("/")[2])
        assert 0 <= slot < self.slots
        for (actual, (found_vertex, _, _)), used in self.slots_used.items():
            if used == slot:
                assert actual == job, f"slot {slot} of {self.name} is used by two jobs"
                assert found_vertex != vertex, f"slot {slot} of {self.name} has two subtasks of vertex {vertex}"
        self.world.running[job, vertex, subtask] = (attempt, self)
        self.slots_used[key] = slot
        self.tasks[key] = trio.CancelScope()
        for partition in descriptor.partitions:
            assert partition.name not in self.world.partitions, "a consumer might read what an earlier attempt left"
            self.world.partitions[partition.name] = Partition(self)

    def _leave(self, key: tuple[str, Attempt]) -> bool:
        scope = self.tasks.pop(key, None)
        if scope is None:
            return False
        scope.cancel()
        del self.slots_used[key]
        job, (vertex, subtask, attempt) = key
        if self.world.running.get((job, vertex, subtask)) == (attempt, self):
            del self.world.running[job, vertex, subtask]
        return True

    async def _play(self, link: ControlLink, key: tuple[str, Attempt], descriptor: TaskDeploymentDescriptor) -> None:
        job, attempt = key
        chance, weather = self.world.chance, self.world.weather
        scope = self.tasks.get(key)
        if scope is None:
            return
        with scope:
            self._say(link, TaskStates(job, "initializing", (attempt,)))
            await trio.sleep(chance.expovariate(10.0))
            missing = self._missing(key, descriptor)
            if missing:
                self._fail(link, key, "partition not found", missing)
                return
            self._say(link, TaskStates(job, "running", (attempt,)))
            for index in range(len(descriptor.partitions)):
                self._say(link, PartitionConsumable(job, attempt, index))
            await trio.sleep(chance.expovariate(1 / weather.task_s))
            if self.world.is_stormy and chance.random() < weather.task_fails:
                self._fail(link, key, "it broke", "")
                return
            while self.unknown.get(key):  # noqa: ASYNC110  # there is something it has not read
                await trio.sleep(1.0)
            for partition in descriptor.partitions:
                self.world.partitions[partition.name].is_complete = True
            produced = tuple((1000,) * partition.subpartitions for partition in descriptor.partitions)
            self._leave(key)
            self._say(link, TaskFinished(job, attempt, produced, {"ended": 1}, None))

    def _fail(self, link: ControlLink, key: tuple[str, Attempt], text: str, missing: str) -> None:
        if self._leave(key):
            is_secondary = bool(missing) or self.world.chance.random() < 0.3
            self._say(link, TaskFailed(key[0], key[1], "ValueError", text, is_secondary, missing, True))

    def _missing(self, key: tuple[str, Attempt], descriptor: TaskDeploymentDescriptor) -> str:
        """The name of a blocking partition that the task was told of and that is gone."""
        unknown = self.unknown[key] = set()
        for number, gate in enumerate(descriptor.gates):
            positions = [
                position
                for first, stop, first_subpartition, stop_subpartition in gate.pieces
                for position in range(first, stop)
                for _ in range(first_subpartition, stop_subpartition)
            ]
            for position, channel in zip(positions, gate.gate().channels, strict=True):
                if not channel.address:
                    unknown.add((number, position))
                elif gate.type.is_blocking:
                    actual = self.world.partitions.get(channel.partition_id)
                    if (
                        actual is None
                        or not actual.is_complete
                        or actual.is_released
                        or not actual.taskmanager.is_alive
                    ):
                        return channel.partition_id
        return ""


@dataclass
class Cluster:
    """A JobManager that may be killed, and TaskManagers that may die; `play` keeps both going until it is cancelled."""

    world: World
    slots: int
    taskmanagers: int
    settings: dict[str, Any] = field(default_factory=dict)
    manager: JobManager | None = None
    alive: list[PlayedTaskManager] = field(default_factory=list)
    changed: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self.address = f"memory://played-{next(_NUMBERS)}"

    async def play(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._jobmanagers)
            for _ in range(self.taskmanagers):
                nursery.start_soon(self._taskmanagers, nursery)
            if self.world.weather.taskmanager_dies_every_s:
                nursery.start_soon(self._deaths)

    async def _jobmanagers(self) -> None:
        config = JobManagerConfig(
            listen=self.address, folder=str(self.world.folder), heartbeat_timeout_s=5.0, **self.settings
        )
        every_s = self.world.weather.jobmanager_dies_every_s
        while True:
            with trio.CancelScope() as scope:
                async with open_jobmanager(config, in_thread=at_once) as self.manager:
                    self.changed.set()
                    self.changed = trio.Event()
                    await trio.sleep(self.world.chance.expovariate(1 / every_s) if every_s else 1e9)
                    if self.world.is_stormy:
                        self.manager = None
                        self.world.jobmanager_deaths += 1
                        scope.cancel()
                    else:
                        await trio.sleep_forever()
            await trio.sleep(self.world.chance.uniform(0.0, 3.0))

    async def _taskmanagers(self, nursery: trio.Nursery) -> None:
        """One place of a TaskManager: when one dies there another one comes."""
        while True:
            actual = PlayedTaskManager(self.world, self.address, self.slots)
            self.alive.append(actual)
            await actual.live()
            self.alive.remove(actual)
            await trio.sleep(self.world.chance.uniform(0.0, 3.0))

    async def _deaths(self) -> None:
        chance, weather = self.world.chance, self.world.weather
        while True:
            await trio.sleep(chance.expovariate(1 / weather.taskmanager_dies_every_s))
            if self.alive and self.world.is_stormy:
                chance.choice(self.alive).die(silently=chance.random() < weather.is_silent)
