"""netstack: Flink's network stack on trio: credit-based flow control over multiplexed TCP connections."""

from .config import NetworkConfig
from .errors import (
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
from .inbound.gate import UnionInputGate
from .runtime.record_reader import ArrayReader, RecordReader
from .runtime.record_writer import RecordWriter
from .runtime.task_manager import TaskManager, open_task_manager

__version__ = "0.1.0"

__all__ = [
    "Alignment",
    "ArrayReader",
    "CancelCheckpointMarker",
    "ChannelDescriptor",
    "ChannelFailed",
    "CheckpointBarrier",
    "ConfigError",
    "ConnectionLost",
    "EndOfData",
    "EndOfPartition",
    "ErrorCode",
    "InsufficientBuffers",
    "LocalProtocolError",
    "NetstackError",
    "NetworkConfig",
    "PartitionId",
    "PartitionNotFound",
    "PoolDestroyed",
    "ProducerFailed",
    "RecordError",
    "RecordReader",
    "RecordWriter",
    "RemoteProtocolError",
    "ResultPartitionType",
    "SpillError",
    "TaskManager",
    "UnionInputGate",
    "UserEvent",
    "open_task_manager",
]
