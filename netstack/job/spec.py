"""A job as plain data: tasks, what they read, how checkpoints are taken; and all that follows from it.

Takes: `TaskSpec`s. Gives: names of partitions, the places of subtasks, plans for the coordinator and for recovery; and
the whole job as a document that another process reads back.

A task of parallelism n has n subtasks, each of which runs one operator. For every input of a consuming task each
subtask of the producing task has one partition, with a subpartition for every consumer.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from ..checkpoint.coordinator import CheckpointSettings, JobTask, Subtask
from ..checkpoint.recovery import Exchange, TaskPlan
from ..config import NetworkConfig
from ..errors import ConfigError
from ..function_names import Named
from ..ids import PartitionId, partition_id
from ..keygroups import check_parallelism
from ..outbound.selector import ChannelSelector, KeyGroupSelector, RebalanceSelector
from ..record.formats import FORMATS, format_named
from ..runtime.names import load

_LONGEST_INDEX: Final = 99_999


@final
@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input of a task: all records of another task, each to one subtask.

    Attributes:
        task: whose records.
        key: the key of a record: equal keys meet in one subtask, by key group. None: round robin.
        format: how records become bytes; the name of a built-in format.
        buffer_timeout_s: longest a record waits for its buffer to fill; see `RecordWriter`.
    """

    task: str
    key: Named | None = None
    format: str = "msgpack"
    buffer_timeout_s: float | None = 0.1


@final
@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One task of a job.

    Attributes:
        name: unique in the job; its state is found by it after a restart.
        operator: makes the operator of each subtask; see `operators`.
        arguments: keyword arguments for that: plain data where several processes are involved.
        parallelism: number of subtasks.
        inputs: what it reads; none for a source.
        keyed_state: the operator's state is a dict by the key of its inputs, shared out anew when the parallelism
            changes.
        workers: the indices of the workers its subtasks run on, in turn; None is all of them.
    """

    name: str
    operator: Named
    arguments: Mapping[str, Any] = field(default_factory=dict)
    parallelism: int = 1
    inputs: tuple[InputSpec, ...] = ()
    keyed_state: bool = False
    workers: tuple[int, ...] | None = None

    @property
    def is_source(self) -> bool:
        """Whether it reads nothing."""
        return not self.inputs


@final
@dataclass(frozen=True, slots=True)
class Edge:
    """One input of one task, from the other side: what a subtask of the producing task writes for it.

    Attributes:
        producer: the task that writes.
        consumer: the task that reads.
        index: which of the consumer's inputs.
        input: that input.
    """

    producer: TaskSpec
    consumer: TaskSpec
    index: int
    input: InputSpec

    def partition(self, subtask: int) -> PartitionId:
        """The name of the partition that a subtask of the producer writes; unique in the job, and in every run."""
        return partition_id(f"{self.producer.name}-{subtask}>{self.consumer.name}.{self.index}")

    def selector(self, subtask: int, max_parallelism: int) -> ChannelSelector:
        """Who gets a record of a subtask of the producer."""
        if self.input.key is not None:
            return KeyGroupSelector(load(self.input.key), max_parallelism=max_parallelism)
        return RebalanceSelector(random.Random(subtask))  # so that not all begin with the same consumer


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job.

    Attributes:
        name: for messages.
        tasks: in any order; they must not read each other in a circle.
        checkpoints: when they are taken, and how; None takes none.
        folder: where they are kept; every process of the job must see it. None takes none.
        keep: how many complete ones are kept.
        max_parallelism: number of key groups, fixed for the life of the job: no task can ever have more subtasks.
        network: of every TaskManager.

    Raises:
        ConfigError: the tasks do not make a job.
    """

    name: str = "job"
    tasks: tuple[TaskSpec, ...]
    checkpoints: CheckpointSettings | None = None
    folder: str | None = None
    keep: int = 3
    max_parallelism: int = 128
    network: NetworkConfig = field(default_factory=NetworkConfig)

    def __post_init__(self) -> None:
        """Refuses what cannot run."""
        names = [task.name for task in self.tasks]
        for task in self.tasks:
            if not task.name or names.count(task.name) > 1:
                raise ConfigError(f"job {self.name!r} has no or several tasks of the name {task.name!r}")
            check_parallelism(task.parallelism, self.max_parallelism)
            if task.keyed_state and not (task.inputs and all(spec.key is not None for spec in task.inputs)):
                raise ConfigError(f"task {task.name!r} has keyed_state, so it needs inputs, and each of them a key")
            if task.workers is not None and (not task.workers or min(task.workers) < 0):
                raise ConfigError(f"task {task.name!r}: workers={task.workers}; give indices from 0 on, or None")
            for spec in task.inputs:
                if spec.task not in names:
                    raise ConfigError(f"task {task.name!r} reads {spec.task!r}, which is no task of the job")
                if spec.format not in FORMATS:
                    raise ConfigError(f"task {task.name!r}: no record format {spec.format!r}; {', '.join(FORMATS)}")
        self._check_no_circle()
        for edge in self.edges():
            edge.partition(_LONGEST_INDEX)  # its name must not be too long

    # What follows.

    def task(self, name: str) -> TaskSpec:
        """The task of this name."""
        return next(task for task in self.tasks if task.name == name)

    def edges(self) -> list[Edge]:
        """Every input of every task."""
        return [
            Edge(self.task(spec.task), task, index, spec)
            for task in self.tasks
            for index, spec in enumerate(task.inputs)
        ]

    def inputs_of(self, task: TaskSpec) -> list[Edge]:
        """What a task reads, in the order of its inputs."""
        return [edge for edge in self.edges() if edge.consumer is task]

    def outputs_of(self, task: TaskSpec) -> list[Edge]:
        """What a task is read by."""
        return [edge for edge in self.edges() if edge.producer is task]

    def subtasks(self) -> list[Subtask]:
        """All subtasks."""
        return [(task.name, subtask) for task in self.tasks for subtask in range(task.parallelism)]

    def placement(self, workers: int) -> dict[Subtask, int]:
        """The worker of every subtask: in turn.

        Raises:
            ConfigError: a task wants a worker that is not there.
        """
        places = {}
        for task in self.tasks:
            allowed = tuple(range(workers)) if task.workers is None else task.workers
            if max(allowed, default=0) >= workers:
                raise ConfigError(f"task {task.name!r} wants worker {max(allowed)}; there are 0 to {workers - 1}")
            for subtask in range(task.parallelism):
                places[task.name, subtask] = allowed[subtask % len(allowed)]
        return places

    def coordinated_tasks(self) -> list[JobTask]:
        """The tasks as the checkpoint coordinator sees them."""
        return [
            JobTask(task.name, task.parallelism, tuple(dict.fromkeys(spec.task for spec in task.inputs)))
            for task in self.tasks
        ]

    def recovery_plans(self, old_parallelism: Mapping[str, int]) -> list[TaskPlan]:
        """How a checkpoint is shared out.

        Args:
            old_parallelism: how many subtasks each task had when it was taken.
        """
        return [
            TaskPlan(
                task.name,
                task.parallelism,
                tuple(
                    Exchange(
                        str(edge.index),
                        tuple(
                            edge.partition(subtask)
                            for subtask in range(old_parallelism.get(edge.producer.name, edge.producer.parallelism))
                        ),
                        None if edge.input.key is None else _key_of_bytes(edge.input.format, load(edge.input.key)),
                    )
                    for edge in self.inputs_of(task)
                ),
                task.keyed_state,
                self.max_parallelism,
            )
            for task in self.tasks
        ]

    # As a document.

    def document(self) -> dict[str, Any]:
        """The job in plain data, for another process.

        Raises:
            ConfigError: an operator or a key is given as an object, not by name.
        """
        for task in self.tasks:
            for name in (task.operator, *(spec.key for spec in task.inputs)):
                if name is not None and not isinstance(name, str):
                    raise ConfigError(
                        f"task {task.name!r}: {name!r} cannot be sent to another process; give its name, such as"
                        " package.module:attribute"
                    )
        return {
            name: [dataclasses.asdict(task) for task in self.tasks] if name == "tasks" else _plain(getattr(self, name))
            for name in (field.name for field in dataclasses.fields(self))
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Job:
        """The job that `document` gave.

        Raises:
            ConfigError: it is none.
        """
        try:
            checkpoints = document["checkpoints"]
            tasks = tuple(
                TaskSpec(
                    **{
                        **task,
                        "inputs": tuple(InputSpec(**spec) for spec in task["inputs"]),
                        "workers": None if task["workers"] is None else tuple(task["workers"]),
                    }
                )
                for task in document["tasks"]
            )
            return cls(
                **{
                    **document,
                    "tasks": tasks,
                    "checkpoints": None if checkpoints is None else CheckpointSettings(**checkpoints),
                    "network": NetworkConfig(**document["network"]),
                }
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"this is no job of this release: {error!r}; use one release in all processes") from error

    def _check_no_circle(self) -> None:
        left = {task.name: {spec.task for spec in task.inputs} for task in self.tasks}
        while left:
            first = [name for name, inputs in left.items() if inputs.isdisjoint(left)]
            if not first:
                raise ConfigError(f"tasks {', '.join(sorted(left))} read each other in a circle")
            for name in first:
                del left[name]


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def _key_of_bytes(format: str, key: Callable[[Any], Any]) -> Callable[[bytes], Any]:
    decode = format_named(format).decode
    return lambda data: key(decode(memoryview(data)))
