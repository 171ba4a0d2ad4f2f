"""netstack: Flink's network stack on trio: credit-based flow control over multiplexed TCP connections."""

from .buffer.requirements import BufferRequirements, GatePlan, PartitionPlan, required_buffers
from .checkpoint.coordinator import CheckpointSettings
from .checkpoint.storage import CheckpointStorage
from .config import NetworkConfig
from .errors import (
    AuthenticationFailed,
    ChannelFailed,
    ConfigError,
    ConnectionLost,
    ErrorCode,
    InsufficientBuffers,
    LocalProtocolError,
    NetstackError,
    PartitionNotFound,
    PoolDestroyed,
    ProducerFailed,
    RecordError,
    RemoteProtocolError,
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
from .job.master import JobFailed, open_job, open_job_master
from .job.spec import InputSpec, Job, TaskSpec
from .job.worker import run_worker
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
from .runtime.network_environment import NetworkEnvironment, open_task_manager
from .runtime.record_reader import ArrayReader, RecordReader
from .runtime.record_writer import RecordWriter
from .version import __version__ as __version__

__all__ = [
    "AdaptiveRebalanceSelector",
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
    "EndOfData",
    "EndOfPartition",
    "ErrorCode",
    "ForwardSelector",
    "GatePlan",
    "GlobalSelector",
    "InputSpec",
    "InsufficientBuffers",
    "Job",
    "JobFailed",
    "KeyGroupSelector",
    "LocalProtocolError",
    "NetstackError",
    "NetworkConfig",
    "NetworkEnvironment",
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
    "RescaleSelector",
    "ResultPartition",
    "ResultPartitionType",
    "Secret",
    "ShuffleSelector",
    "SingleInputGate",
    "SpillError",
    "TaskSpec",
    "UnionInputGate",
    "UserEvent",
    "open_job",
    "open_job_master",
    "open_task_manager",
    "required_buffers",
    "run_worker",
]
