"""The public names of this package, each once: `lazy_names` imports one when it is first used."""

from netstack.base import build as build  # absolute: it is not lazy

from .base.config import NetworkConfig as NetworkConfig
from .base.errors import (
    AuthenticationFailed as AuthenticationFailed,
    ChannelFailed as ChannelFailed,
    ConfigError as ConfigError,
    ConnectionLost as ConnectionLost,
    ConsumerLost as ConsumerLost,
    DiskFull as DiskFull,
    ErrorCode as ErrorCode,
    InsufficientBuffers as InsufficientBuffers,
    JobFailed as JobFailed,
    LocalProtocolError as LocalProtocolError,
    NetstackError as NetstackError,
    OperatorFailed as OperatorFailed,
    PartitionDamaged as PartitionDamaged,
    PartitionNotFound as PartitionNotFound,
    PoolDestroyed as PoolDestroyed,
    ProducerFailed as ProducerFailed,
    RecordError as RecordError,
    Refusal as Refusal,
    RemoteProtocolError as RemoteProtocolError,
    RequestRefused as RequestRefused,
    ShuffleStorageError as ShuffleStorageError,
    SpillError as SpillError,
)
from .base.events import (
    Alignment as Alignment,
    CancelCheckpointMarker as CancelCheckpointMarker,
    CheckpointBarrier as CheckpointBarrier,
    EndOfData as EndOfData,
    EndOfPartition as EndOfPartition,
    Event as Event,
    UserEvent as UserEvent,
)
from .base.ids import (
    ChannelDescriptor as ChannelDescriptor,
    PartitionId as PartitionId,
    ResultPartitionType as ResultPartitionType,
)
from .base.transport import TrioStream as TrioStream
from .base.version import __version__ as __version__
from .cluster.jobmanager.client import (
    JobClient as JobClient,
    JobResult as JobResult,
    open_job_client as open_job_client,
    wait_for_job as wait_for_job,
)
from .cluster.jobmanager.config import JobManagerConfig as JobManagerConfig
from .cluster.jobmanager.local import (
    LocalCluster as LocalCluster,
    open_local_cluster as open_local_cluster,
    run_job as run_job,
)
from .cluster.task.context import OperatorContext as OperatorContext
from .cluster.task.operators import Output as Output
from .exchange.buffer.requirements import (
    BufferRequirements as BufferRequirements,
    GatePlan as GatePlan,
    PartitionPlan as PartitionPlan,
    RequirementRow as RequirementRow,
    required_buffers as required_buffers,
)
from .exchange.buffer.statistics import NetworkBufferPoolStatistics as NetworkBufferPoolStatistics
from .exchange.inbound.statistics import GateStatistics as GateStatistics
from .exchange.outbound.adaptive import AdaptiveRebalanceSelector as AdaptiveRebalanceSelector
from .exchange.outbound.selector import (
    BroadcastSelector as BroadcastSelector,
    ChannelSelector as ChannelSelector,
    CustomSelector as CustomSelector,
    ForwardSelector as ForwardSelector,
    GlobalSelector as GlobalSelector,
    KeyGroupSelector as KeyGroupSelector,
    RebalanceSelector as RebalanceSelector,
    RescaleSelector as RescaleSelector,
    ShuffleSelector as ShuffleSelector,
)
from .exchange.outbound.slices import SliceWriter as SliceWriter
from .exchange.outbound.statistics import ResultPartitionStatistics as ResultPartitionStatistics
from .exchange.record.formats import RecordFormat as RecordFormat
from .network.connection.authentication import Secret as Secret
from .network.connection.statistics import NetworkStatistics as NetworkStatistics, OpenConnection as OpenConnection
from .network.environment import NetworkEnvironment as NetworkEnvironment, open_network as open_network
from .network.handles import (
    InputGate as InputGate,
    ResultPartition as ResultPartition,
    UnionInputGate as UnionInputGate,
)
from .network.reader import ArrayReader as ArrayReader, RecordReader as RecordReader
from .network.writer import RecordWriter as RecordWriter
from .schedule.checkpoint.instructions import CheckpointSettings as CheckpointSettings
from .schedule.checkpoint.snapshot import TaskSnapshot as TaskSnapshot
from .schedule.checkpoint.storage import (
    CheckpointStorage as CheckpointStorage,
    CompletedCheckpoint as CompletedCheckpoint,
    RefusedCheckpoint as RefusedCheckpoint,
)
from .schedule.descriptors.blob_store import OffloadRule as OffloadRule
from .schedule.graph.job_graph import ResourceProfile as ResourceProfile
from .schedule.graph.settings import (
    AdaptiveSettings as AdaptiveSettings,
    CutSettings as CutSettings,
    RestartSettings as RestartSettings,
    SpeculationSettings as SpeculationSettings,
)
from .schedule.graph.stream_builder import (
    DataStream as DataStream,
    OperatorStream as OperatorStream,
    StreamEnvironment as StreamEnvironment,
)
from .schedule.graph.stream_graph import (
    ChainingStrategy as ChainingStrategy,
    ExchangeMode as ExchangeMode,
    GlobalExchangeMode as GlobalExchangeMode,
    Partitioner as Partitioner,
    StreamGraph as StreamGraph,
    StreamSettings as StreamSettings,
)
from .schedule.slots.slots import LoadBalanceMode as LoadBalanceMode
