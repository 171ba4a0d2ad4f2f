"""What a user holds of the engine: ResultPartition, InputGate and UnionInputGate.

Takes: the engine's objects. Gives: names, snapshots, and how to end them. Writers and readers take the engine out once,
when they are made, so a handle costs nothing per record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from ..ids import PartitionId, ResultPartitionType
from ..inbound import gate as inbound
from ..inbound.closing import ClosingContext
from ..inbound.statistics import GateStatistics
from ..inbound.union import UnionInputGate as UnionEngine
from ..outbound import partition as outbound
from ..outbound.statistics import ResultPartitionStatistics


@final
class ResultPartition:
    """One task's output, for a `RecordWriter`: from `NetworkEnvironment.create_partition`."""

    __slots__ = ("engine",)

    def __init__(self, engine: outbound.ResultPartition) -> None:
        """Called by `NetworkEnvironment.create_partition`; `engine` is netstack's own."""
        self.engine = engine

    @property
    def partition_id(self) -> PartitionId:
        """Its name, by which consumers ask for it."""
        return self.engine.partition_id

    @property
    def kind(self) -> ResultPartitionType:
        """How it is consumed."""
        return self.engine.kind

    @property
    def subpartition_count(self) -> int:
        """How many consumers it has."""
        return len(self.engine.subpartitions)

    @property
    def is_finished(self) -> bool:
        """Whether its end was written."""
        return self.engine.is_finished

    @property
    def is_released(self) -> bool:
        """Whether it is gone: consumed, failed or released."""
        return self.engine.is_released

    def statistics(self) -> ResultPartitionStatistics:
        """A snapshot; O(subpartitions and what they have queued)."""
        return self.engine.statistics()

    def fail(self, cause: str) -> None:
        """Fails it: consumers get the cause, a writer that waits for a buffer is cancelled. Idempotent."""
        self.engine.fail(cause)

    def release(self) -> None:
        """Drops everything that was not consumed yet. Idempotent."""
        self.engine.release()


class InputGate(ClosingContext):
    """All channels of one input, for a `RecordReader` or an `ArrayReader`: from `NetworkEnvironment.open_gate`.

    `with gate:` closes it; leaving the block before every channel has ended warns.
    """

    __slots__ = ("engine",)

    def __init__(self, engine: inbound.SingleInputGate | UnionEngine) -> None:
        """Called by `NetworkEnvironment.open_gate`; `engine` is netstack's own."""
        self.engine = engine

    @property
    def channel_count(self) -> int:
        """Number of channels: elements carry indexes below it."""
        return self.engine.channel_count

    @property
    def is_finished(self) -> bool:
        """Whether every channel has ended."""
        return self.engine.is_finished

    @property
    def ended_with_drain(self) -> bool | None:
        """None until every channel has ended its data; then whether all of them said that the job ends for good."""
        return self.engine.ended_with_drain

    def statistics(self) -> GateStatistics:
        """A snapshot; O(channels and what they have queued)."""
        return self.engine.statistics()

    def close(self) -> None:
        """Gives every channel up, returns every buffer; a reader that waits gets an error. Idempotent."""
        self.engine.close()

    def _describe_unread(self) -> str:
        return self.engine._describe_unread()


@final
class UnionInputGate(InputGate):
    """Several gates as one input: fair among gates, one buffer a turn.

    Channel indexes follow each other gate by gate, in the order in which gates came.
    """

    __slots__ = ("_union",)

    def __init__(self, gates: Sequence[InputGate], *, missing: int = 0) -> None:
        """Starts with some gates.

        Args:
            gates: distinct ones of `NetworkEnvironment.open_gate`, at least one; two with those that are missing.
            missing: how many will be added: the union is not finished before.

        Raises:
            LocalProtocolError: too few, or one of them twice.
        """
        self._union = UnionEngine([_single(gate) for gate in gates], missing=missing)
        super().__init__(self._union)

    def add(self, gate: InputGate) -> None:
        """Adds one of those that were missing; its channels follow those of all before.

        Raises:
            LocalProtocolError: none is missing.
        """
        self._union.add(_single(gate))


def _single(gate: InputGate) -> inbound.SingleInputGate:
    engine = gate.engine
    assert isinstance(engine, inbound.SingleInputGate), "a union of unions"
    return engine
