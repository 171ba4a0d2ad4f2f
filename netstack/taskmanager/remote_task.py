"""What a driver without a scheduler has a TaskManager run: invokables, what they write, what they read.

Takes: names, places and numbers as the driver chooses them. Gives: deployment descriptors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from ..control.codec import Attempt
from ..ids import ResultPartitionType
from ..schedule.descriptors.descriptors import (
    ExecutionAttemptId,
    InputGateDescriptor,
    PartitionDescriptor,
    TaskDeploymentDescriptor,
)
from ..schedule.descriptors.information import (
    OperatorInformation,
    TaskInformation,
)
from ..schedule.descriptors.shuffle import ShuffleDescriptors, TaskManagerLocation, compress, partition_name
from ..schedule.graph.job_graph import OperatorKind


@final
@dataclass(frozen=True, slots=True)
class RemotePartition:
    """A partition that a gate reads.

    Attributes:
        address: of the TaskManager that has it (`RemoteJob.data_address`).
        task: the vertex that writes it.
        subtask: which of its subtasks.
        attempt: which of its attempts.
    """

    address: str
    task: str
    subtask: int
    attempt: int = 0


@final
@dataclass(frozen=True, slots=True)
class RemoteGate:
    """What a task reads: the same range of subpartitions of every partition.

    Attributes:
        partitions: of one vertex.
        first: subpartition that it reads of each.
        count: how many, from there.
    """

    partitions: tuple[RemotePartition, ...]
    first: int = 0
    count: int = 1

    def descriptor(self, job_id: str) -> InputGateDescriptor:
        """What a task of the job is told of it."""
        count = len(self.partitions)
        dataset = self.partitions[0].task if self.partitions else ""
        addresses = list(dict.fromkeys(each.address for each in self.partitions))
        descriptors = ShuffleDescriptors.of(
            job_id,
            dataset,
            [TaskManagerLocation(address, address) for address in addresses],
            index=range(count),
            partition=[each.subtask for each in self.partitions],
            attempt=[each.attempt for each in self.partitions],
            taskmanager=[addresses.index(each.address) for each in self.partitions],
        )
        return InputGateDescriptor(
            dataset,
            ResultPartitionType.PIPELINED_BOUNDED,
            count,
            ((0, count, self.first, self.first + self.count),),
            (compress(descriptors.serialised()),),
        )


@final
@dataclass(frozen=True, slots=True)
class RemoteTask:
    """One subtask of a vertex that is an invokable.

    Attributes:
        task: name of the vertex.
        subtask: which of its subtasks, from 0.
        invokable: what it runs, `package.module:attribute`: `async def attribute(task: InvokableTask) -> Any`.
        parameters: plain data for it.
        subpartitions: of its one partition; 0 writes none.
        gates: what it reads.
        type: of its partition.
    """

    task: str
    subtask: int
    invokable: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    subpartitions: int = 0
    gates: tuple[RemoteGate, ...] = ()
    type: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED

    def __str__(self) -> str:
        return f"{self.task}-{self.subtask}"

    def descriptor(self, job_id: str, attempt: Attempt, information: bytes) -> TaskDeploymentDescriptor:
        """What its TaskManager is sent.

        Args:
            job_id: 16 hex digits.
            attempt: the number of its vertex, its subtask, which attempt it is.
            information: what the job's tasks share, packed.

        Raises:
            ConfigError: parameters that are no plain data.
        """
        operator = OperatorInformation(self.task, OperatorKind.INVOKABLE, self.invokable, dict(self.parameters))
        partitions: tuple[PartitionDescriptor, ...] = ()
        if self.subpartitions:
            name = partition_name(job_id, self.task, self.subtask, attempt[2])
            partitions = (PartitionDescriptor(name, self.subpartitions, self.type, self.task),)
        return TaskDeploymentDescriptor(
            ExecutionAttemptId(job_id, *attempt),
            "",
            information,
            TaskInformation(self.task, operators=(operator,)).pack(),
            partitions=partitions,
            gates=tuple(gate.descriptor(job_id) for gate in self.gates),
        )
