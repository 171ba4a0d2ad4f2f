"""Statistics of a TaskManager and its connections.

Takes: snapshots of its parts. Gives: values to `samples` and to reports.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...exchange.buffer.statistics import NetworkBufferPoolStatistics
from ...exchange.inbound.statistics import GateStatistics
from ...exchange.outbound.statistics import ResultPartitionStatistics, SendingChannelStatistics
from ...exchange.wire.connection import ConnectionStatistics
from .admission import AdmissionStatistics


@dataclass(frozen=True, slots=True)
class AcceptedStatistics:
    """A connection on which this TaskManager produces.

    Attributes:
        peer: the consuming process.
        connection: bytes and calls.
    """

    peer: str
    connection: ConnectionStatistics
    channels: tuple[SendingChannelStatistics, ...]


@dataclass(frozen=True, slots=True)
class DialledStatistics:
    """A connection on which this TaskManager consumes.

    Attributes:
        connection: bytes and calls.
    """

    address: str
    connection: ConnectionStatistics
    channels: int


@dataclass(frozen=True, slots=True)
class OpenConnection:
    """A connection in either direction, without its channels.

    Attributes:
        peer: the consuming process, or the dialled address.
        is_accepted: whether this TaskManager produces on it.
        connection: bytes and calls.
        channels: the number of channels on it.
    """

    peer: str
    is_accepted: bool
    connection: ConnectionStatistics
    channels: int


@dataclass(frozen=True, slots=True)
class SlotStatistics:
    """A slot that runs in a process of its own, as the TaskManager's main process sees it.

    Attributes:
        number: index of the slot, from 0.
        blocked_s: how long user code has blocked the slot's event loop; 0 if it is not blocked.
    """

    number: int
    blocked_s: float


@dataclass(frozen=True, slots=True)
class NetworkStatistics:
    """A snapshot of a TaskManager's network.

    Attributes:
        pool: the network buffers.
        partitions: the partitions produced here.
        accepted: connections on which this TaskManager produces.
        dialled: connections on which this TaskManager consumes.
        gates: open input gates; gates that are finished and closed are not included.
        bytes_sent: over all connections so far, including headers and control frames.
        bytes_received: over all connections so far, including headers and control frames.
        admission: accepted and refused peers; None if there is no secret, or another process accepts the connections.
        slots: the slots of a TaskManager whose slots are processes; empty elsewhere.
    """

    pool: NetworkBufferPoolStatistics
    partitions: tuple[ResultPartitionStatistics, ...]
    accepted: tuple[AcceptedStatistics, ...]
    dialled: tuple[DialledStatistics, ...]
    gates: tuple[GateStatistics, ...]
    bytes_sent: int
    bytes_received: int
    admission: AdmissionStatistics | None = None
    slots: tuple[SlotStatistics, ...] = ()

    @property
    def connections(self) -> int:
        """The number of open connections, in either direction."""
        return len(self.accepted) + len(self.dialled)

    @property
    def prompt_connections(self) -> int:
        """The number of open connections reserved for prompt channels."""
        connections = [each.connection for each in self.accepted] + [each.connection for each in self.dialled]
        return sum(connection.is_prompt for connection in connections)
