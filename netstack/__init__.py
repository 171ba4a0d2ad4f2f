"""netstack: Flink's network stack on trio: credit-based flow control over multiplexed TCP connections.

What stands in `__all__` is loaded when it is first used: who only writes records loads no jobs and no scheduler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from . import build as build  # at once: it chooses what the data path is loaded from
from .version import __version__ as __version__

if TYPE_CHECKING:
    from .buffer.requirements import BufferRequirements, GatePlan, PartitionPlan, required_buffers
    from .checkpoint.coordinator import CheckpointSettings
    from .checkpoint.storage import CheckpointStorage
    from .config import NetworkConfig
    from .errors import (
        AuthenticationFailed,
        ChannelFailed,
        ConfigError,
        ConnectionLost,
        DiskFull,
        ErrorCode,
        InsufficientBuffers,
        JobFailed,
        LocalProtocolError,
        NetstackError,
        OperatorFailed,
        PartitionDamaged,
        PartitionNotFound,
        PoolDestroyed,
        ProducerFailed,
        RecordError,
        RemoteProtocolError,
        RequestRefused,
        ShuffleStorageError,
        SpillError,
    )
    from .events import (
        Alignment,
        CancelCheckpointMarker,
        CheckpointBarrier,
        EndOfData,
        EndOfPartition,
        UserEvent,
    )
    from .ids import ChannelDescriptor, PartitionId, ResultPartitionType
    from .inbound.gate import SingleInputGate
    from .inbound.union import UnionInputGate
    from .jobmanager.client import JobClient, JobResult, open_job_client, wait_for_job
    from .jobmanager.local import LocalCluster, open_local_cluster, run_job
    from .outbound.adaptive import AdaptiveRebalanceSelector
    from .outbound.partition import ResultPartition
    from .outbound.selector import (
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
    from .record.formats import RecordFormat
    from .runtime.authentication import Secret
    from .runtime.network_environment import NetworkEnvironment, open_network
    from .runtime.record_reader import ArrayReader, RecordReader
    from .runtime.record_writer import RecordWriter
    from .schedule.graph.settings import AdaptiveSettings, RestartSettings, SpeculationSettings
    from .schedule.graph.stream_builder import StreamEnvironment
    from .schedule.graph.stream_graph import StreamSettings
    from .task.context import OperatorContext
    from .task.operators import Output

__all__ = [
    "AdaptiveRebalanceSelector",
    "AdaptiveSettings",
    "Alignment",
    "ArrayReader",
    "AuthenticationFailed",
    "BroadcastSelector",
    "BufferRequirements",
    "CancelCheckpointMarker",
    "ChannelDescriptor",
    "ChannelFailed",
    "ChannelSelector",
    "CheckpointBarrier",
    "CheckpointSettings",
    "CheckpointStorage",
    "ConfigError",
    "ConnectionLost",
    "CustomSelector",
    "DiskFull",
    "EndOfData",
    "EndOfPartition",
    "ErrorCode",
    "ForwardSelector",
    "GatePlan",
    "GlobalSelector",
    "InsufficientBuffers",
    "JobClient",
    "JobFailed",
    "JobResult",
    "KeyGroupSelector",
    "LocalCluster",
    "LocalProtocolError",
    "NetstackError",
    "NetworkConfig",
    "NetworkEnvironment",
    "OperatorContext",
    "OperatorFailed",
    "Output",
    "PartitionDamaged",
    "PartitionId",
    "PartitionNotFound",
    "PartitionPlan",
    "PoolDestroyed",
    "ProducerFailed",
    "RebalanceSelector",
    "RecordError",
    "RecordFormat",
    "RecordReader",
    "RecordWriter",
    "RemoteProtocolError",
    "RequestRefused",
    "RescaleSelector",
    "RestartSettings",
    "ResultPartition",
    "ResultPartitionType",
    "Secret",
    "ShuffleSelector",
    "ShuffleStorageError",
    "SingleInputGate",
    "SpeculationSettings",
    "SpillError",
    "StreamEnvironment",
    "StreamSettings",
    "UnionInputGate",
    "UserEvent",
    "open_job_client",
    "open_local_cluster",
    "open_network",
    "required_buffers",
    "run_job",
    "wait_for_job",
]

_HOMES: Final = {
    "buffer.requirements": (
        "BufferRequirements",
        "GatePlan",
        "PartitionPlan",
        "required_buffers",
    ),
    "checkpoint.coordinator": ("CheckpointSettings",),
    "checkpoint.storage": ("CheckpointStorage",),
    "config": ("NetworkConfig",),
    "errors": (
        "AuthenticationFailed",
        "ChannelFailed",
        "ConfigError",
        "ConnectionLost",
        "DiskFull",
        "ErrorCode",
        "InsufficientBuffers",
        "JobFailed",
        "LocalProtocolError",
        "NetstackError",
        "OperatorFailed",
        "PartitionDamaged",
        "PartitionNotFound",
        "PoolDestroyed",
        "ProducerFailed",
        "RecordError",
        "RemoteProtocolError",
        "RequestRefused",
        "ShuffleStorageError",
        "SpillError",
    ),
    "events": (
        "Alignment",
        "CancelCheckpointMarker",
        "CheckpointBarrier",
        "EndOfData",
        "EndOfPartition",
        "UserEvent",
    ),
    "ids": (
        "ChannelDescriptor",
        "PartitionId",
        "ResultPartitionType",
    ),
    "inbound.gate": ("SingleInputGate",),
    "inbound.union": ("UnionInputGate",),
    "jobmanager.client": (
        "JobClient",
        "JobResult",
        "open_job_client",
        "wait_for_job",
    ),
    "jobmanager.local": (
        "LocalCluster",
        "open_local_cluster",
        "run_job",
    ),
    "outbound.adaptive": ("AdaptiveRebalanceSelector",),
    "outbound.partition": ("ResultPartition",),
    "outbound.selector": (
        "BroadcastSelector",
        "ChannelSelector",
        "CustomSelector",
        "ForwardSelector",
        "GlobalSelector",
        "KeyGroupSelector",
        "RebalanceSelector",
        "RescaleSelector",
        "ShuffleSelector",
    ),
    "record.formats": ("RecordFormat",),
    "runtime.authentication": ("Secret",),
    "runtime.network_environment": (
        "NetworkEnvironment",
        "open_network",
    ),
    "runtime.record_reader": (
        "ArrayReader",
        "RecordReader",
    ),
    "runtime.record_writer": ("RecordWriter",),
    "schedule.graph.adaptive_settings": ("AdaptiveSettings",),
    "schedule.graph.restart_settings": ("RestartSettings",),
    "schedule.graph.speculation_settings": ("SpeculationSettings",),
    "schedule.graph.stream_builder": ("StreamEnvironment",),
    "schedule.graph.stream_graph": ("StreamSettings",),
    "task.context": ("OperatorContext",),
    "task.operators": ("Output",),
}
"""What each module has of `__all__`; the imports above say the same to type checkers."""
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "open_task_manager":
        from .renamed import warn_renamed

        warn_renamed(name, "open_network")
        name = "open_network"
    if name in _HOME_OF:
        found = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
        globals()[name] = found  # so this is called once a name
        return found
    if not name.startswith("_"):
        try:
            return importlib.import_module(f".{name}", __name__)
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
