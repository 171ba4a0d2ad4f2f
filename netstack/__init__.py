"""netstack: Flink's network stack on trio: credit-based flow control over multiplexed TCP connections.

The names in `__all__` are imported on first use, so a program that only writes records imports neither jobs nor the
scheduler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from . import build as build  # first: it decides whether the data path is loaded as machine code
from .version import __version__ as __version__

if TYPE_CHECKING:
    from .buffer.requirements import BufferRequirements, GatePlan, PartitionPlan, RequirementRow, required_buffers
    from .buffer.statistics import NetworkBufferPoolStatistics
    from .checkpoint.instructions import CheckpointSettings
    from .checkpoint.snapshot import TaskSnapshot
    from .checkpoint.storage import CheckpointStorage, CompletedCheckpoint, RefusedCheckpoint
    from .config import NetworkConfig
    from .errors import (
        AuthenticationFailed,
        ChannelFailed,
        ConfigError,
        ConnectionLost,
        ConsumerLost,
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
        Refusal,
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
        Event,
        UserEvent,
    )
    from .ids import ChannelDescriptor, PartitionId, ResultPartitionType
    from .inbound.statistics import GateStatistics
    from .jobmanager.client import JobClient, JobResult, open_job_client, wait_for_job
    from .jobmanager.config import JobManagerConfig
    from .jobmanager.local import LocalCluster, open_local_cluster, run_job
    from .outbound.adaptive import AdaptiveRebalanceSelector
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
    from .outbound.slices import SliceWriter
    from .outbound.statistics import ResultPartitionStatistics
    from .record.formats import RecordFormat
    from .runtime.authentication import Secret
    from .runtime.handles import InputGate, ResultPartition, UnionInputGate
    from .runtime.network_environment import NetworkEnvironment, open_network
    from .runtime.record_reader import ArrayReader, RecordReader
    from .runtime.record_writer import RecordWriter
    from .runtime.statistics import NetworkStatistics, OpenConnection
    from .schedule.descriptors.blob_store import OffloadRule
    from .schedule.graph.job_graph import ResourceProfile
    from .schedule.graph.settings import AdaptiveSettings, CutSettings, RestartSettings, SpeculationSettings
    from .schedule.graph.stream_builder import DataStream, OperatorStream, StreamEnvironment
    from .schedule.graph.stream_graph import (
        ChainingStrategy,
        ExchangeMode,
        GlobalExchangeMode,
        Partitioner,
        StreamGraph,
        StreamSettings,
    )
    from .schedule.slots.slots import LoadBalanceMode
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
    "ChainingStrategy",
    "ChannelDescriptor",
    "ChannelFailed",
    "ChannelSelector",
    "CheckpointBarrier",
    "CheckpointSettings",
    "CheckpointStorage",
    "CompletedCheckpoint",
    "ConfigError",
    "ConnectionLost",
    "ConsumerLost",
    "CustomSelector",
    "CutSettings",
    "DataStream",
    "DiskFull",
    "EndOfData",
    "EndOfPartition",
    "ErrorCode",
    "Event",
    "ExchangeMode",
    "ForwardSelector",
    "GatePlan",
    "GateStatistics",
    "GlobalExchangeMode",
    "GlobalSelector",
    "InputGate",
    "InsufficientBuffers",
    "JobClient",
    "JobFailed",
    "JobManagerConfig",
    "JobResult",
    "KeyGroupSelector",
    "LoadBalanceMode",
    "LocalCluster",
    "LocalProtocolError",
    "NetstackError",
    "NetworkBufferPoolStatistics",
    "NetworkConfig",
    "NetworkEnvironment",
    "NetworkStatistics",
    "OffloadRule",
    "OpenConnection",
    "OperatorContext",
    "OperatorFailed",
    "OperatorStream",
    "Output",
    "PartitionDamaged",
    "PartitionId",
    "PartitionNotFound",
    "PartitionPlan",
    "Partitioner",
    "PoolDestroyed",
    "ProducerFailed",
    "RebalanceSelector",
    "RecordError",
    "RecordFormat",
    "RecordReader",
    "RecordWriter",
    "Refusal",
    "RefusedCheckpoint",
    "RemoteProtocolError",
    "RequestRefused",
    "RequirementRow",
    "RescaleSelector",
    "ResourceProfile",
    "RestartSettings",
    "ResultPartition",
    "ResultPartitionStatistics",
    "ResultPartitionType",
    "Secret",
    "ShuffleSelector",
    "ShuffleStorageError",
    "SliceWriter",
    "SpeculationSettings",
    "SpillError",
    "StreamEnvironment",
    "StreamGraph",
    "StreamSettings",
    "TaskSnapshot",
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
        "RequirementRow",
        "required_buffers",
    ),
    "buffer.statistics": ("NetworkBufferPoolStatistics",),
    "checkpoint.instructions": ("CheckpointSettings",),
    "checkpoint.snapshot": ("TaskSnapshot",),
    "checkpoint.storage": (
        "CheckpointStorage",
        "CompletedCheckpoint",
        "RefusedCheckpoint",
    ),
    "config": ("NetworkConfig",),
    "errors": (
        "AuthenticationFailed",
        "ChannelFailed",
        "ConfigError",
        "ConnectionLost",
        "ConsumerLost",
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
        "Refusal",
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
        "Event",
        "UserEvent",
    ),
    "ids": (
        "ChannelDescriptor",
        "PartitionId",
        "ResultPartitionType",
    ),
    "inbound.statistics": ("GateStatistics",),
    "jobmanager.client": (
        "JobClient",
        "JobResult",
        "open_job_client",
        "wait_for_job",
    ),
    "jobmanager.config": ("JobManagerConfig",),
    "jobmanager.local": (
        "LocalCluster",
        "open_local_cluster",
        "run_job",
    ),
    "outbound.adaptive": ("AdaptiveRebalanceSelector",),
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
    "outbound.statistics": ("ResultPartitionStatistics",),
    "outbound.slices": ("SliceWriter",),
    "record.formats": ("RecordFormat",),
    "runtime.handles": ("InputGate", "ResultPartition", "UnionInputGate"),
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
    "runtime.statistics": (
        "NetworkStatistics",
        "OpenConnection",
    ),
    "schedule.descriptors.blob_store": ("OffloadRule",),
    "schedule.graph.job_graph": ("ResourceProfile",),
    "schedule.graph.settings": ("AdaptiveSettings", "CutSettings", "RestartSettings", "SpeculationSettings"),
    "schedule.graph.stream_builder": (
        "DataStream",
        "OperatorStream",
        "StreamEnvironment",
    ),
    "schedule.graph.stream_graph": (
        "ChainingStrategy",
        "ExchangeMode",
        "GlobalExchangeMode",
        "Partitioner",
        "StreamGraph",
        "StreamSettings",
    ),
    "schedule.slots.slots": ("LoadBalanceMode",),
    "task.context": ("OperatorContext",),
    "task.operators": ("Output",),
}
"""The module of each name in `__all__`; the imports above repeat this for type checkers."""
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "open_task_manager":
        from .renamed import warn_renamed

        warn_renamed(name, "open_network")
        name = "open_network"
    if name in _HOME_OF:
        value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
        globals()[name] = value  # the next access does not come here
        return value
    if not name.startswith("_"):
        try:
            return importlib.import_module(f".{name}", __name__)
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
