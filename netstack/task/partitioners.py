"""Who gets a record that leaves a task: the partitioner that the job names, as a selector of channels.

Takes: the description of an output. Gives: the `ChannelSelector` of its writer, and the type of an edge's keys where
that is known.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, get_type_hints

from ..errors import ConfigError
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
from ..schedule.descriptors.descriptors import PartitionDescriptor
from ..schedule.descriptors.information import OutputInformation


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
            return KeyGroupSelector(function, max_parallelism=made.max_parallelism, key_type=key_type)
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
        told = get_type_hints(function).get("return")
    except Exception:  # annotations are the user's, and any expression; without one that can be read none is known
        return None
    return told if isinstance(told, type) and told in _ONE_TYPE else None
