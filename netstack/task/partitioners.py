"""Who gets a record that leaves a task: the partitioner that the job names, as a selector of channels.

Takes: what a task is told of an output. Gives: the `ChannelSelector` that its writer asks.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

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
            return KeyGroupSelector(function, max_parallelism=made.max_parallelism)
        case "custom" if function is not None:
            return CustomSelector(function, partition_batch=getattr(function, "partition_batch", None))
    raise ConfigError(
        f"edge {told_output.edge}: the partitioner {told_output.partitioner!r} is not known, or needs a function"
    )
