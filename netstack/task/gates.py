"""The two ends of a task: its gates, each opened when all of its producers are known, and its outputs' partitioners.

Takes: the gates of a descriptor, and updates of them; the description of an output. Gives: open gates; the
`ChannelSelector` of a writer, and the type of an edge's keys where that is known.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final, final, get_type_hints

from ..errors import ConfigError, LocalProtocolError
from ..inbound.gate import SingleInputGate
from ..outbound.selector import (
    BroadcastSelector,
    ChannelSelector,
    CustomSelector,
    ForwardSelector,
    GlobalSelector,
    KeyGroupSelector,
    RebalanceSelector,
    RescaleSelector,
    ShuffleSelector,
)
from ..runtime.network_environment import NetworkEnvironment
from ..schedule.descriptors.descriptors import GateDescriptor, InputGateDescriptor, MaybeOffloaded, PartitionDescriptor
from ..schedule.descriptors.information import OutputInformation
from ..schedule.descriptors.shuffle import ShuffleDescriptors
from ..wakeup import Signal


@final
class TaskGates:
    """The input gates of one task."""

    def __init__(
        self,
        descriptors: Sequence[InputGateDescriptor],
        environment: NetworkEnvironment,
        read: Callable[[MaybeOffloaded], ShuffleDescriptors] | None,
    ) -> None:
        """Opens nothing yet.

        Args:
            descriptors: as deployed.
            environment: where they are opened.
            read: the list behind a part of them; None reads what is inline.
        """
        self._descriptors = tuple(descriptors)
        self._environment = environment
        self._read = read
        self._updates: list[list[ShuffleDescriptors]] = [[] for _ in descriptors]
        self._open: list[SingleInputGate | None] = [None] * len(self._descriptors)
        self._updated = Signal()

    @property
    def is_complete(self) -> bool:
        """Whether all of them are open."""
        return None not in self._open

    @property
    def channel_count(self) -> int:
        """Of all of them, whether they are open or not."""
        return sum(descriptor.number_of_channels for descriptor in self._descriptors)

    @property
    def opened(self) -> Sequence[SingleInputGate | None]:
        """Those that are open, in order of their index; None stands for one that is not."""
        return self._open

    def update(self, gate: int, descriptors: ShuffleDescriptors) -> None:
        """Producers that a gate did not know are known now.

        Raises:
            LocalProtocolError: there is no such gate.
        """
        if not 0 <= gate < len(self._descriptors):
            raise LocalProtocolError(f"an update for gate {gate}, and the task has {len(self._descriptors)}")
        self._updates[gate].append(descriptors)
        self._updated.wake()

    async def open(self) -> dict[int, SingleInputGate]:
        """Opens the gates whose producers are all known by now; waits until there is one, or all are open.

        Returns:
            Those that it opened, by index.

        Raises as `NetworkEnvironment.open_gate`. Cancellation: what was opened stays open until `close`.
        """
        opened: dict[int, SingleInputGate] = {}
        while not opened and not self.is_complete:
            for number, gate in enumerate(self._open):
                known = self._known(number) if gate is None else None
                if known is not None and all(channel.address for channel in known.channels):
                    engine = (await self._environment.open_gate(known.channels)).engine
                    assert isinstance(engine, SingleInputGate)
                    opened[number] = self._open[number] = engine
            if not opened:
                await self._updated.wait()
        return opened

    def close(self) -> None:
        """Closes those that are open; idempotent."""
        for gate in self._open:
            if gate is not None:
                gate.close()

    def _known(self, number: int) -> GateDescriptor:
        return self._descriptors[number].gate(self._read, self._updates[number])


def selector_of(
    told_output: OutputInformation, made: PartitionDescriptor, subtask: int, load: Callable[[str], Any]
) -> ChannelSelector:
    """Who gets a record of a subtask.

    Args:
        told_output: of the edge: its partitioner, and its function if it has one.
        made: the partition.
        subtask: whose.
        load: what a name stands for.

    Raises:
        ConfigError: there is no such partitioner, or it lacks its function.
    """
    function = load(told_output.function) if told_output.function else None
    match told_output.partitioner:
        case "forward":
            return ForwardSelector()
        case "rescale":
            return RescaleSelector()
        case "rebalance":
            return RebalanceSelector(random.Random(subtask))  # so that not all begin with the same consumer
        case "shuffle":
            return ShuffleSelector(random.Random())
        case "global":
            return GlobalSelector()
        case "broadcast":
            return BroadcastSelector()
        case "hash":
            key_type = key_type_of(function, told_output.format)
            return KeyGroupSelector(function, getattr(function, "key_batch", None), made.max_parallelism, key_type)
        case "custom" if function is not None:
            return CustomSelector(function, partition_batch=getattr(function, "partition_batch", None))
    raise ConfigError(
        f"edge {told_output.edge}: the partitioner {told_output.partitioner!r} is not known, or needs a function"
    )


_ONE_TYPE: Final = frozenset({int, str, bytes})
_TYPE_OF_FORMAT: Final = {"int64": int, "str": str, "bytes": bytes}


def key_type_of(function: Callable[[Any], Any] | None, format: str) -> type | None:
    """The one type of an edge's keys, if it is known to be int, str or bytes; `KeyGroupSelector` holds it to that.

    Args:
        function: the key of a record; it is one of these types itself, or says that it returns one. None: the record.
        format: of the edge.
    """
    if function is None:
        return _TYPE_OF_FORMAT.get(format)
    if isinstance(function, type):
        return function if function in _ONE_TYPE else None
    try:
        types = get_type_hints(function).get("return")
    except Exception:  # annotations are the user's, and any expression; without one that can be read none is known
        return None
    return types if isinstance(types, type) and types in _ONE_TYPE else None
