"""The user's handles of partitions and gates: ResultPartition, InputGate and UnionInputGate.

Takes: the engine's objects. Gives: names, snapshots, and ways to end them. Writers and readers take the engine out of a
handle once, when they are created, so a handle costs nothing per record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from ..base.errors import ConfigError, LocalProtocolError
from ..base.ids import PartitionId, ResultPartitionType
from ..exchange.inbound import gate as inbound
from ..exchange.inbound.closing import ClosingContext
from ..exchange.inbound.statistics import GateStatistics
from ..exchange.inbound.union import UnionInputGate as UnionEngine
from ..exchange.outbound import partition as outbound
from ..exchange.outbound.statistics import ResultPartitionStatistics


@final
class ResultPartition:
    """The output of one task, for a `RecordWriter`; created by `NetworkEnvironment.create_partition`."""

    __slots__ = ("_engine",)

    def __init__(self, engine: outbound.ResultPartition) -> None:
        """Called by `NetworkEnvironment.create_partition`; the object of the exchange that it controls is internal."""
        self._engine = engine

    @property
    def partition_id(self) -> PartitionId:
        """Its name, which consumers put into a `ChannelDescriptor`."""
        return self._engine.partition_id

    @property
    def kind(self) -> ResultPartitionType:
        """How it is consumed."""
        return self._engine.kind

    @property
    def subpartition_count(self) -> int:
        """The number of subpartitions."""
        return len(self._engine.subpartitions)

    @property
    def is_finished(self) -> bool:
        """Whether its writer has finished it."""
        return self._engine.is_finished

    @property
    def is_released(self) -> bool:
        """Whether its buffers were returned: it was consumed, failed or released."""
        return self._engine.is_released

    def statistics(self) -> ResultPartitionStatistics:
        """A snapshot; O(subpartitions + queued buffers)."""
        return self._engine.statistics()

    def fail(self, cause: str) -> None:
        """Fails the partition: consumers receive the cause; a waiting writer raises `PoolDestroyed`. Idempotent."""
        self._engine.fail(cause)

    def release(self) -> None:
        """Drops all data that was not consumed. Idempotent."""
        self._engine.release()


class InputGate(ClosingContext):
    """All channels of one input, for a `RecordReader` or an `ArrayReader`; created by `NetworkEnvironment.open_gate`.

    `with gate:` closes it, and warns if a channel has not ended.
    """

    __slots__ = ("_engine",)

    def __init__(self, engine: inbound.SingleInputGate | UnionEngine) -> None:
        """Called by `NetworkEnvironment.open_gate`; the object of the exchange that it controls is internal."""
        self._engine = engine

    @property
    def channel_count(self) -> int:
        """The number of channels; channel indexes are below it."""
        return self._engine.channel_count

    @property
    def is_finished(self) -> bool:
        """Whether every channel has ended."""
        return self._engine.is_finished

    @property
    def ended_with_drain(self) -> bool | None:
        """None until all channels have ended; then whether all of them ended with `EndOfData(drain=True)`."""
        return self._engine.ended_with_drain

    def statistics(self) -> GateStatistics:
        """A snapshot; O(channels + queued buffers)."""
        return self._engine.statistics()

    def close(self) -> None:
        """Closes all channels and returns all buffers; a waiting reader raises an error. Idempotent.

        The producers of channels that have not ended learn that no more records are needed.
        """
        self._engine.close()

    def abandon(self) -> None:
        """Closes like `close`, but these producers count this consumer as lost (`ConsumerLost`)."""
        self._engine.abandon()

    def _describe_unread(self) -> str:
        return self._engine._describe_unread()


@final
class UnionInputGate(InputGate):
    """Several gates as one input, fair among gates: one buffer a turn.

    Channel indexes are consecutive over the gates, in the order in which the gates were added.
    """

    __slots__ = ("_union",)

    def __init__(self, gates: Sequence[InputGate], *, missing: int = 0) -> None:
        """Creates a union.

        Args:
            gates: distinct gates from `NetworkEnvironment.open_gate`: at least one, and at least two with the missing
                ones.
            missing: how many gates will be added later; the union is not finished before.

        Raises:
            LocalProtocolError: there are too few gates, one is given twice, has a reader, or is a union.
            ConfigError: one is not a gate.
        """
        self._union = UnionEngine([_single(gate) for gate in gates], missing=missing)
        super().__init__(self._union)

    def add(self, gate: InputGate) -> None:
        """Adds a missing gate; its channel indexes follow all earlier ones.

        Raises:
            LocalProtocolError: no gate is missing, or this one has a reader or is a union.
            ConfigError: it is not a gate.
        """
        self._union.add(_single(gate))


def check_handle(given: object, wanted: type, call: str) -> None:
    """Checks that a handle comes from the module of the writer or reader that it is given to.

    Args:
        given: the argument.
        wanted: the class of handles that fit.
        call: the method of a NetworkEnvironment that returns them.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(given, wanted):
        kind = type(given)
        raise ConfigError(
            f"a {kind.__module__}.{kind.__qualname__} is not a {wanted.__module__}.{wanted.__qualname__}: give what"
            f" `{call}` of a NetworkEnvironment returned, and use open_network, writers and readers of one module"
            " (netstack, netstack.blocking or netstack.aio)"
        )


def _single(gate: InputGate) -> inbound.SingleInputGate:
    check_handle(gate, InputGate, "open_gate")
    if not isinstance(gate._engine, inbound.SingleInputGate):
        raise LocalProtocolError("a UnionInputGate cannot be part of another one; give all gates to one union")
    if gate._engine.on_available is not None:
        raise LocalProtocolError(
            f"gate {gate._engine.name!r} has a reader already, or is part of a union; open another gate"
        )
    return gate._engine
