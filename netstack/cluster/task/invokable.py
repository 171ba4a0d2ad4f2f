"""A task that is one user function, which opens its gates and writes its partitions itself.

Takes: a `TaskDeploymentDescriptor` and the network environment it runs in. Gives: `InvokableTask` to the function.

An invokable is `async def invokable(task: InvokableTask) -> Any`. It returns plain data, which becomes part of the
job's results. It runs in the slot's event loop, so long computations belong in a thread. It takes no checkpoints. It
may exchange events with a coordinator in the JobManager (`jobmanager.coordinator`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import msgpack
import trio

from ...base.errors import ConfigError
from ...base.events import CheckpointBarrier
from ...base.ids import ChannelDescriptor
from ...exchange.inbound.gate import SingleInputGate
from ...exchange.outbound import partition as outbound
from ...network.environment import NetworkEnvironment
from ...network.handles import InputGate, ResultPartition
from ...schedule.descriptors.descriptors import PartitionDescriptor, TaskDeploymentDescriptor
from ...schedule.descriptors.information import TaskInformation
from ...schedule.descriptors.shuffle import ShuffleDescriptors
from ..control.codec import Plain, check_plain
from .reports import AttemptReports, TaskOutcome, TaskStatistics, kept_bytes

INBOX_MESSAGES: Final = 4096
"""Maximum number of events from the coordinator that the task has not received yet."""

INBOX_BYTES: Final = 16 << 20
"""Maximum size of these events."""


@final
class InvokableTask:
    """One attempt of an invokable, as its function sees it (a `RunnableTask`).

    Attributes:
        environment: its network environment; the statistics there include all tasks of the environment.
        partitions: its partitions, ready to be written. A partition that is unfinished when the task ends is failed, so
            that its consumers fail too.
    """

    def __init__(
        self,
        descriptor: TaskDeploymentDescriptor,
        task: TaskInformation,
        environment: NetworkEnvironment,
        reports: AttemptReports,
        *,
        gates: Sequence[Sequence[ChannelDescriptor]],
        load: Callable[[str], Any],
    ) -> None:
        """Allocates nothing; `create` does.

        Args:
            descriptor: the attempt and its partitions.
            task: description of its vertex.
            environment: its network environment.
            reports: receives the reports of the task.
            gates: the channels of every gate.
            load: resolves the name of a function.
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
        """Opens one of the task's gates; the gate is closed when the task ends.

        Raises:
            ConfigError: the task has no such gate.
            NetstackError: see `NetworkEnvironment.open_gate`.

        Cancellation: see `NetworkEnvironment.open_gate`.
        """
        if not 0 <= index < len(self._gates):
            raise ConfigError(f"task {self} has no gate {index}; it has {len(self._gates)} gates, from 0")
        gate = await self.environment.open_gate(self._gates[index])
        engine = gate._engine
        assert isinstance(engine, SingleInputGate)
        self._open.append(engine)
        return gate

    def send(self, event: Plain) -> None:
        """Sends an event to the job's coordinator; never waits. A job without coordinator drops it.

        Raises:
            ConfigError: the event is no dict of plain data, or exceeds a frame.
        """
        self._reports.operator_event(check_plain(event))

    async def receive(self) -> Plain:
        """Waits for the next event from the coordinator. Cancellation: no event is lost."""
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
        """Queues an event from the coordinator."""
        size_bytes = len(msgpack.packb(event))
        if self._inbox_bytes + size_bytes > INBOX_BYTES:
            raise trio.WouldBlock
        self._inbox.send_nowait((event, size_bytes))
        self._inbox_bytes += size_bytes

    def trigger_checkpoint(self, barrier: CheckpointBarrier, *, is_savepoint: bool, stops: bool) -> None:
        """Declines the checkpoint."""
        self._reports.declined(barrier.checkpoint_id, f"task {self} is an invokable, which takes no checkpoints")

    def abort_checkpoint(self, checkpoint_id: int) -> None:
        """Does nothing: invokables take no checkpoints."""

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Does nothing: invokables take no checkpoints."""

    def update_gate(self, gate: int, descriptors: ShuffleDescriptors) -> None:
        """Refuses the update: an invokable is deployed when all its producers are known.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"task {self} is an invokable; deploy it when the producers of all its gates are known")

    async def close(self, failure: str = "") -> None:
        """Closes the gates, and fails unfinished partitions; finished ones live until they are consumed."""
        for gate in self._open:
            gate.abandon()
        for partition in self.open_partitions:
            if partition.is_finished:
                partition.close()
            else:
                partition.fail(failure or f"task {self} ended before it had finished this partition")
        await trio.lowlevel.cancel_shielded_checkpoint()

    def statistics(self) -> TaskStatistics:
        """The number of records written."""
        return TaskStatistics(0, sum(partition.counters.records for partition in self.open_partitions))

    def code(self) -> list[list[Any]]:
        """Returns nothing: the code of invokables is not reported."""
        return []

    def queued(self) -> None:
        """Returns nothing: its channels have neither markers nor barriers."""

    def barrier_statistics(self) -> None:
        """Returns None: invokables take no checkpoints."""

    @property
    def open_gates(self) -> Sequence[SingleInputGate]:
        """The gates that are open."""
        return self._open

    @property
    def open_partitions(self) -> Sequence[outbound.ResultPartition]:
        """Implements `RunnableTask.open_partitions`."""
        return tuple(partition._engine for partition in self.partitions)
