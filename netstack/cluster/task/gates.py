"""Opens the input gates of a task, and creates the channel selectors of its outputs.

Takes: the gates of a descriptor, and updates of them; the description of an output. Gives: open gates; the
`ChannelSelector` of a writer; the types of keys where they are known.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Final, final, get_type_hints

import numpy as np

from ...base.errors import ConfigError, LocalProtocolError
from ...base.timing.wakeup import Signal
from ...exchange.inbound.gate import SingleInputGate
from ...exchange.outbound.selector import (
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
from ...network.environment import NetworkEnvironment
from ...schedule.descriptors.descriptors import GateDescriptor, InputGateDescriptor, MaybeOffloaded, PartitionDescriptor
from ...schedule.descriptors.information import OutputInformation, TaskInformation
from ...schedule.descriptors.shuffle import ShuffleDescriptors
from .operators import takes


@final
class TaskGates:
    """The input gates of one task. Each gate is opened once all of its producers are known."""

    def __init__(
        self,
        descriptors: Sequence[InputGateDescriptor],
        environment: NetworkEnvironment,
        read: Callable[[MaybeOffloaded], ShuffleDescriptors] | None,
    ) -> None:
        """Opens nothing; `open` does.

        Args:
            descriptors: the gates as deployed.
            environment: opens the gates.
            read: resolves an offloaded list of shuffle descriptors; None accepts inline lists only.
        """
        self._descriptors = tuple(descriptors)
        self._environment = environment
        self._read = read
        self._updates: list[list[ShuffleDescriptors]] = [[] for _ in descriptors]
        self._open: list[SingleInputGate | None] = [None] * len(self._descriptors)
        self._updated = Signal()

    @property
    def is_complete(self) -> bool:
        """Whether all gates are open."""
        return None not in self._open

    @property
    def channel_count(self) -> int:
        """The number of channels of all gates, open or not."""
        return sum(descriptor.number_of_channels for descriptor in self._descriptors)

    @property
    def opened(self) -> Sequence[SingleInputGate | None]:
        """The gates by index; None for one that is not open."""
        return self._open

    def update(self, gate: int, descriptors: ShuffleDescriptors) -> None:
        """Adds producers that were unknown when the task was deployed.

        Raises:
            LocalProtocolError: there is no such gate.
        """
        if not 0 <= gate < len(self._descriptors):
            raise LocalProtocolError(f"update for gate {gate} of a task with {len(self._descriptors)} gates")
        self._updates[gate].append(descriptors)
        self._updated.wake()

    async def open(self) -> dict[int, SingleInputGate]:
        """Opens the gates whose producers are all known. Waits until there is at least one, unless all are open.

        Returns:
            The gates that this call opened, by index.

        Raises as `NetworkEnvironment.open_gate`. Cancellation: gates that were opened stay open until `close`.
        """
        opened: dict[int, SingleInputGate] = {}
        while not opened and not self.is_complete:
            for number, gate in enumerate(self._open):
                known = self._known(number) if gate is None else None
                if known is not None and all(channel.address for channel in known.channels):
                    engine = (await self._environment.open_gate(known.channels))._engine
                    assert isinstance(engine, SingleInputGate)
                    opened[number] = self._open[number] = engine
            if not opened:
                await self._updated.wait()
        return opened

    def close(self) -> None:
        """Closes all open gates. Idempotent."""
        for gate in self._open:
            if gate is not None:
                gate.abandon()

    def _known(self, number: int) -> GateDescriptor:
        return self._descriptors[number].gate(self._read, self._updates[number])


def selector_of(
    output: OutputInformation, partition: PartitionDescriptor, subtask: int, load: Callable[[str], Any]
) -> ChannelSelector:
    """Creates the channel selector of an output.

    Raises:
        ConfigError: the partitioner is unknown, lacks its function, or has one that cannot be called as documented.
    """
    function = load(output.function) if output.function else None
    wanted = ("record", "channels") if output.partitioner == "custom" else ("record",)
    if function is not None and not takes(function, len(wanted)):
        name = getattr(function, "__qualname__", function)
        edge = f"edge {output.edge.source!r} -> {output.edge.target!r}"
        raise ConfigError(f"{edge}: {name} cannot be called as ({', '.join(wanted)})")
    match output.partitioner:
        case "forward":
            return ForwardSelector()
        case "rescale":
            return RescaleSelector()
        case "rebalance":
            return RebalanceSelector(random.Random(subtask))  # subtasks begin with different consumers
        case "shuffle":
            return ShuffleSelector(random.Random())
        case "global":
            return GlobalSelector()
        case "broadcast":
            return BroadcastSelector()
        case "hash":
            key_type = key_type_of(function, output.format)
            key, key_batch = function, getattr(function, "key_batch", None)
            if output.format == "float64":
                key, key_batch = _of_floats(function)
            return KeyGroupSelector(key, key_batch, partition.max_parallelism, key_type)
        case "custom" if function is not None:
            return CustomSelector(function, partition_batch=getattr(function, "partition_batch", None))
    raise ConfigError(f"edge {output.edge}: the partitioner {output.partitioner!r} is unknown, or has no function")


def _of_floats(function: Callable[[Any], Any] | None) -> tuple[Callable[[Any], Any], Callable[[Any], Any] | None]:
    """Key functions of records that the format makes floats: they get the value that the consumer will see."""

    def key(record: Any) -> Any:
        if type(record) is not float:
            with contextlib.suppress(TypeError, ValueError, OverflowError):  # the format refuses it, and says why
                record = float(record)
        return record if function is None else function(record)

    key_batch = getattr(function, "key_batch", None)
    if function is None:
        return key, lambda array: array.astype(np.float64, copy=False)
    functools.update_wrapper(key, function)
    if key_batch is None:
        return key, None
    return key, lambda array: key_batch(array.astype(np.float64, copy=False))


_ONE_TYPE: Final = frozenset({int, str, bytes})
_TYPE_OF_NAME: Final = {each.__name__: each for each in _ONE_TYPE}
_TYPE_OF_FORMAT: Final = {"int64": int, "str": str, "bytes": bytes}


def key_type_of(function: Callable[[Any], Any] | None, format: str) -> type | None:
    """The type of an edge's keys if it is known to be int, str or bytes; `KeyGroupSelector` enforces it.

    Args:
        function: extracts the key of a record. Its type is known if it is one of these types, or is annotated to return
            one. None: the record is its own key.
        format: record format of the edge.
    """
    if function is None:
        return _TYPE_OF_FORMAT.get(format)
    if isinstance(function, type):
        return function if function in _ONE_TYPE else None
    try:
        if isinstance(function, FunctionType):  # evaluating all annotations takes a hundred times as long
            annotation = function.__annotations__.get("return")
            if annotation is None:
                return None
            if type(annotation) is str and annotation in _TYPE_OF_NAME and annotation not in function.__globals__:
                return _TYPE_OF_NAME[annotation]
        types = get_type_hints(function).get("return")
    except Exception:  # annotations are user code and may raise anything; the type is then unknown
        return None
    return types if isinstance(types, type) and types in _ONE_TYPE else None


def keyed_operators(task: TaskInformation, load: Callable[[str], Any]) -> dict[str, set[type]]:
    """The operators whose inputs are all keyed, with the types of their keys; an empty set if these are unknown."""
    inputs: dict[str, list[tuple[bool, type | None]]] = {}
    for given in task.inputs:
        is_keyed = given.partitioner == "hash"
        function = load(given.function) if is_keyed and given.function else None
        inputs.setdefault(given.edge.target, []).append((is_keyed, key_type_of(function, given.format)))
    for edge in task.chained:
        inputs.setdefault(edge.target, []).append((edge.is_keyed, None))
    operators: dict[str, set[type]] = {}
    for name, keyed in inputs.items():
        if all(is_keyed for is_keyed, _ in keyed):
            types = {key_type for _, key_type in keyed if key_type is not None}
            operators[name] = types if all(key_type for _, key_type in keyed) else set()
    return operators
