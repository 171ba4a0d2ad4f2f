"""A vertex that is one function of the user's, which does everything itself: opens gates, writes partitions, talks.

Takes: a `TaskDeploymentDescriptor` and the network environment it runs in. Gives: `InvokableTask` to the function.

An invokable is `async def invokable(task: InvokableTask) -> Any`; what it returns is plain data, its part of the job's
results. It runs in the slot's event loop: what computes for long holds others up and belongs into a thread. It takes no
checkpoints. It may talk to a coordinator in the JobManager (`jobmanager.coordinator`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import msgpack
import trio

from ..control.codec import Plain, check_plain
from ..errors import ConfigError
from ..events import CheckpointBarrier
from ..ids import ChannelDescriptor
from ..inbound.gate import SingleInputGate
from ..outbound import partition as outbound
from ..runtime.handles import InputGate, ResultPartition
from ..runtime.network_environment import NetworkEnvironment
from ..schedule.descriptors.descriptors import PartitionDescriptor, TaskDeploymentDescriptor
from ..schedule.descriptors.information import TaskInformation
from ..schedule.descriptors.shuffle import ShuffleDescriptors
from .reports import TaskOutcome, TaskReports, TaskStatistics, kept_bytes

INBOX_MESSAGES: Final = 4096
"""What its coordinator may say to a task before it listens."""

INBOX_BYTES: Final = 16 << 20
"""And how much of it."""


@final
class InvokableTask:
    """One subtask, from the inside (a `RunnableTask`).

    Attributes:
        name: of its vertex.
        subtask: which of its subtasks, from 0.
        parameters: as deployed.
        environment: the network it lives in; its statistics are those of all tasks there.
        partitions: what it produces, ready to be written; those left unfinished when it ends are failed, so that
            consumers learn of it.
    """

    def __init__(
        self,
        descriptor: TaskDeploymentDescriptor,
        task: TaskInformation,
        environment: NetworkEnvironment,
        reports: TaskReports,
        *,
        gates: Sequence[Sequence[ChannelDescriptor]],
        load: Callable[[str], Any],
    ) -> None:
        """Nothing is taken yet.

        Args:
            descriptor: whose attempt, and what it produces.
            task: of its vertex.
            environment: see above.
            reports: hears of it.
            gates: the channels of every gate.
            load: what a name stands for.
        """
        (operator,) = task.operators
        self.name = task.name
        self.subtask = descriptor.attempt.subtask
        self.parameters: Plain = dict(operator.parameters)
        self.environment = environment
        self.partitions: tuple[ResultPartition, ...] = ()
        self._operator = operator.name
        self._function = operator.function
        self._produced: Sequence[PartitionDescriptor] = descriptor.partitions
        self._gates = gates
        self._open: list[SingleInputGate] = []
        self._reports = reports
        self._load = load
        self._inbox, self._messages = trio.open_memory_channel[tuple[Plain, int]](INBOX_MESSAGES)
        self._inbox_bytes = 0

    def __str__(self) -> str:
        return f"{self.name}-{self.subtask}"

    async def open_gate(self, index: int = 0) -> InputGate:
        """Opens one of its gates; it is closed when the task ends.

        Raises:
            ConfigError: it has no such gate.
            NetstackError: see `NetworkEnvironment.open_gate`.

        Cancellation: see `NetworkEnvironment.open_gate`.
        """
        if not 0 <= index < len(self._gates):
            raise ConfigError(f"task {self} has {len(self._gates)} gates, so none of index {index}")
        gate = await self.environment.open_gate(self._gates[index])
        engine = gate.engine
        assert isinstance(engine, SingleInputGate)
        self._open.append(engine)
        return gate

    def send(self, event: Plain) -> None:
        """Tells the job's coordinator something; never waits. Without a coordinator nobody hears it.

        Raises:
            ConfigError: it is no dict of plain data, or more than a frame holds.
        """
        self._reports.operator_event(check_plain(event))

    async def receive(self) -> Plain:
        """The next thing that the coordinator tells it. Cancellation: nothing is lost."""
        event, size_bytes = await self._messages.receive()
        self._inbox_bytes -= size_bytes
        return event

    # For the TaskManager: see `RunnableTask`.

    def create(self) -> None:
        """Creates the partitions. Raises as `NetworkEnvironment.create_partition`."""
        created = []
        try:
            for partition in self._produced:
                created.append(
                    self.environment.create_partition(
                        partition.name, subpartitions=partition.subpartitions, kind=partition.type
                    )
                )
        except BaseException:
            for partition_made in created:
                partition_made.release()
            raise
        self.partitions = tuple(created)

    async def run(self) -> TaskOutcome:
        """Calls the function."""
        function = self._load(self._function)
        if not inspect.iscoroutinefunction(function):
            raise ConfigError(
                f"{self._function!r} is no `async def`; an invokable is `async def attribute(task: InvokableTask)`"
            )
        self._reports.initializing()
        self._reports.running()
        result = await function(self)
        produced = tuple(partition.bytes_per_subpartition for partition in self.open_partitions)
        return TaskOutcome(produced, {self._operator: result}, kept=kept_bytes(self.open_partitions))

    def operator_event(self, event: Plain) -> None:
        """Takes what the coordinator says."""
        size_bytes = len(msgpack.packb(event))
        if self._inbox_bytes + size_bytes > INBOX_BYTES:
            raise trio.WouldBlock
        self._inbox.send_nowait((event, size_bytes))
        self._inbox_bytes += size_bytes

    def trigger_checkpoint(self, barrier: CheckpointBarrier, *, is_savepoint: bool, stops: bool) -> None:
        """It takes none."""
        self._reports.declined(barrier.checkpoint_id, f"task {self} is an invokable, which takes no checkpoints")

    def abort_checkpoint(self, checkpoint_id: int) -> None:
        """Nothing to undo."""

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Nothing to do."""

    def update_gate(self, gate: int, descriptors: ShuffleDescriptors) -> None:
        """Its gates are reported whole.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"task {self} is an invokable, which opens its gates itself: deploy it when all is known")

    async def close(self, failure: str = "") -> None:
        """Closes its gates; fails partitions that are unfinished; those that are finished live until consumed."""
        for gate in self._open:
            gate.close()
        for partition in self.open_partitions:
            if partition.is_finished:
                partition.close()
            else:
                partition.fail(failure or f"task {self} ended and left it unfinished")
        await trio.lowlevel.cancel_shielded_checkpoint()

    def statistics(self) -> TaskStatistics:
        """How far it is."""
        return TaskStatistics(0, sum(partition.counters.records for partition in self.open_partitions))

    def code(self) -> list[list[Any]]:
        """Of a benchmark nobody asks."""
        return []

    def barrier_statistics(self) -> None:
        """It takes no checkpoints."""

    @property
    def open_gates(self) -> Sequence[SingleInputGate]:
        """The gates that are open."""
        return self._open

    @property
    def open_partitions(self) -> Sequence[outbound.ResultPartition]:
        """What it produces."""
        return tuple(partition.engine for partition in self.partitions)
