"""The interfaces between a task and its TaskManager: `RunnableTask`, `AttemptReports`, and the results of a task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, final

from ...base.events import CheckpointBarrier
from ...exchange.inbound.gate import SingleInputGate
from ...exchange.outbound.partition import ResultPartition
from ...schedule.checkpoint.barrier import BarrierStatistics
from ...schedule.checkpoint.snapshot import TaskFile
from ...schedule.descriptors.shuffle import ShuffleDescriptors
from ..control.codec import Plain
from .queued import QueuedEvents


class AttemptReports(Protocol):
    """Receives the reports of one attempt. No method waits."""

    def initializing(self) -> None:
        """The task has its partitions; it opens its gates and restores its state."""

    def running(self) -> None:
        """The task processes records."""

    def waiting(self) -> None:
        """The task has sent its last event. It waits for a checkpoint, or the end of its region, to confirm its end."""

    def acknowledged(self, checkpoint_id: int, file: TaskFile, report: Plain) -> None:
        """The task has stored its part of a checkpoint.

        Args:
            checkpoint_id: id of the checkpoint.
            file: the stored file.
            report: durations and sizes as plain data, see `SubtaskReport`.
        """

    def declined(self, checkpoint_id: int, reason: str) -> None:
        """The task cannot take part in a checkpoint; with id 0: it cannot store its final state, and tries again."""

    def consumable(self, partition: int) -> None:
        """The first buffer of a partition is available; `partition` is its index in the descriptor."""

    def operator_event(self, event: Plain) -> None:
        """Sends an event of an invokable to its coordinator.

        Raises:
            ConfigError: the event is no dict of plain data, or exceeds a frame.
        """


@final
@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """The result of a finished task.

    Attributes:
        produced_bytes: bytes written, for each subpartition of each partition.
        results: the results of sinks, or of the invokable, by operator: plain data.
        final: file of its final state, in a job with checkpoints.
        kept: sizes of its partitions in files, see `TaskFinished`.
    """

    produced_bytes: tuple[tuple[int, ...], ...] = ()
    results: Mapping[str, Any] = field(default_factory=dict)
    final: TaskFile | None = None
    kept: tuple[tuple[int, ...], ...] = ()


def kept_bytes(partitions: Iterable[ResultPartition]) -> tuple[tuple[int, ...], ...]:
    """The sizes of partitions in files, as `TaskFinished` reports them."""
    return tuple(partition.kept_bytes for partition in partitions if partition.store is not None)


@final
@dataclass(frozen=True, slots=True)
class OperatorStatistics:
    """The record counts of one operator of a chain.

    Attributes:
        records_in: records processed; 0 for a source.
        records_out: records emitted to the main output; 0 if it has no reader.
    """

    name: str
    records_in: int
    records_out: int


@final
@dataclass(frozen=True, slots=True)
class TaskStatistics:
    """The statistics of a task.

    Attributes:
        records_in: records read through gates or by its sources.
        operators: record counts of each operator, the head first.
        busy_s: time spent working or waiting for the CPU.
        idle_s: time spent waiting for records.
        backpressured_s: time spent waiting for buffers of its partitions.
        latencies: see `TaskLatencies.rows`.
    """

    records_in: int
    records_out: int
    operators: tuple[OperatorStatistics, ...] = ()
    busy_s: float = 0.0
    idle_s: float = 0.0
    backpressured_s: float = 0.0
    latencies: Mapping[str, list[int]] = field(default_factory=dict)


class RunnableTask(Protocol):
    """One attempt of one subtask. Call `create`, `run`, and always `close`."""

    name: str
    """Name of its job vertex."""

    def create(self) -> None:
        """Creates its partitions.

        Raises:
            InsufficientBuffers: their buffers are not free.
            ConfigError: the descriptor is invalid.
        """

    async def run(self) -> TaskOutcome:
        """Runs the task to its end.

        Raises:
            NetstackError: a channel failed, ...
            Exception: user code raised it.

        Cancellation: the task has ended; `close` it.
        """

    def trigger_checkpoint(self, barrier: CheckpointBarrier, *, is_savepoint: bool, stops: bool) -> None:
        """Takes a checkpoint between two records; for a task that receives no barriers."""

    def abort_checkpoint(self, checkpoint_id: int) -> None:
        """Aborts a checkpoint."""

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Notifies the task that a checkpoint is complete."""

    def update_gate(self, gate: int, descriptors: ShuffleDescriptors) -> None:
        """Adds producers of a gate that were unknown when the task was deployed."""

    def operator_event(self, event: Plain) -> None:
        """Passes an event of the coordinator to an invokable. Raises WouldBlock if its inbox is full."""

    async def close(self, failure: str = "") -> None:
        """Closes its gates and fails unfinished partitions; finished ones live until they are consumed. Idempotent."""

    def statistics(self) -> TaskStatistics:
        """The statistics of the task."""

    def queued(self) -> QueuedEvents | None:
        """The latency markers and barriers in its queues; None if it has none."""

    def barrier_statistics(self) -> BarrierStatistics | None:
        """The statistics of barrier alignment; None for a task without gates."""

    def code(self) -> list[list[Any]]:
        """Locations of the user code of its operators: operator, file, function, first line, last line."""

    @property
    def open_gates(self) -> Sequence[SingleInputGate | None]:
        """The gates by index; None for one that is not open."""

    @property
    def open_partitions(self) -> Sequence[ResultPartition]:
        """The partitions."""
