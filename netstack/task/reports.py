"""What a task tells the TaskManager it runs in, and what is left of it when it has ended.

Takes: nothing. Gives: the interface of a task, and of the receiver of its reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, final

from ..checkpoint.barrier import BarrierStatistics
from ..checkpoint.snapshot import TaskFile
from ..control.codec import Plain
from ..events import CheckpointBarrier
from ..inbound.gate import SingleInputGate
from ..outbound.partition import ResultPartition
from ..schedule.descriptors.shuffle import ShuffleDescriptors


class TaskReports(Protocol):
    """Who hears of one attempt. No call waits."""

    def initializing(self) -> None:
        """Its partitions are there; it opens its gates and restores its state."""

    def running(self) -> None:
        """It processes records."""

    def waiting(self) -> None:
        """It has sent its last event, and waits until a checkpoint, or the end of its region, confirms its end."""

    def acknowledged(self, checkpoint_id: int, file: TaskFile, report: Plain) -> None:
        """Its part of a checkpoint is stored.

        Args:
            checkpoint_id: of which checkpoint.
            file: where.
            report: how long it took and how much of it is channel state, as plain data.
        """

    def declined(self, checkpoint_id: int, reason: str) -> None:
        """It cannot take part in a checkpoint."""

    def consumable(self, partition: int) -> None:
        """The first buffer of a produced partition is there; `partition` is its index in the descriptor."""

    def operator_event(self, event: Plain) -> None:
        """An invokable tells its coordinator something.

        Raises:
            ConfigError: it is no dict of plain data, or more than a frame holds.
        """


@final
@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """A task has come to its end.

    Attributes:
        produced_bytes: for each partition, for each subpartition.
        results: what sinks, or the invokable, returned, by operator: plain data.
        final: where its last state is stored, in a job with checkpoints.
        kept: see `TaskFinished`.
    """

    produced_bytes: tuple[tuple[int, ...], ...] = ()
    results: Mapping[str, Any] = field(default_factory=dict)
    final: TaskFile | None = None
    kept: tuple[tuple[int, ...], ...] = ()


def kept_bytes(partitions: Iterable[ResultPartition]) -> tuple[tuple[int, ...], ...]:
    """What `TaskFinished` tells of those that are kept."""
    return tuple(partition.kept_bytes for partition in partitions if partition.store is not None)


@final
@dataclass(frozen=True, slots=True)
class OperatorStatistics:
    """How far one operator of a chain is.

    Attributes:
        name: of the operator.
        records_in: processed so far; of a source 0.
        records_out: emitted so far to its main output; 0 where nobody reads it.
    """

    name: str
    records_in: int
    records_out: int


@final
@dataclass(frozen=True, slots=True)
class TaskStatistics:
    """How far a task is.

    Attributes:
        records_in: read so far, through gates or by its sources.
        records_out: written so far, to all partitions.
        operators: the same of each operator, the head first.
        busy_s: worked so far, or waited its turn.
        idle_s: waited for records.
        backpressured_s: waited for room in its partitions.
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
    """One attempt of one subtask: `create`, `run`, and `close` whatever happened."""

    name: str
    """Of its job vertex."""

    def create(self) -> None:
        """Creates its partitions.

        Raises:
            InsufficientBuffers: their buffers are not free.
            ConfigError: what the descriptor says cannot be.
        """

    async def run(self) -> TaskOutcome:
        """Everything, to its end.

        Raises:
            NetstackError: a channel failed, ...
            Exception: what user code raises.

        Cancellation: it is over; `close` it.
        """

    def trigger_checkpoint(self, barrier: CheckpointBarrier, *, is_savepoint: bool, stops: bool) -> None:
        """Takes a checkpoint between two records, because nobody sends it barriers."""

    def abort_checkpoint(self, checkpoint_id: int) -> None:
        """The checkpoint will not happen."""

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """The checkpoint is complete."""

    def update_gate(self, gate: int, descriptors: ShuffleDescriptors) -> None:
        """Producers that a gate did not know are known now."""

    def operator_event(self, event: Plain) -> None:
        """Something for an invokable, from its coordinator.

        Raises:
            WouldBlock: its inbox is full.
        """

    async def close(self, failure: str = "") -> None:
        """Closes its gates, fails partitions that are unfinished; those that are finished live on. Idempotent."""

    def statistics(self) -> TaskStatistics:
        """How far it is."""

    def barrier_statistics(self) -> BarrierStatistics | None:
        """How barriers come together here; None of a task that reads nothing."""

    def code(self) -> list[list[Any]]:
        """Where the user's code of its operators is: operator, file, function, first line, last line."""

    @property
    def open_gates(self) -> Sequence[SingleInputGate | None]:
        """The gates that are open, in order of their index; None stands for one that is not."""

    @property
    def open_partitions(self) -> Sequence[ResultPartition]:
        """What it produces."""
