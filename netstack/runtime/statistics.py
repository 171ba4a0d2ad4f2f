"""What a TaskManager tells of itself and of its connections.

Takes: snapshots of its parts. Gives: values to `metrics` and to reports.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..buffer.statistics import NetworkBufferPoolStatistics
from ..inbound.statistics import GateStatistics
from ..outbound.statistics import ResultPartitionStatistics, SendingChannelStatistics
from ..wire.connection import ConnectionStatistics
from .admission import AdmissionStatistics


@dataclass(frozen=True, slots=True)
class AcceptedStatistics:
    """A connection on which this TaskManager produces.

    Attributes:
        peer: the reading process.
        connection: bytes and calls.
        channels: each open channel, with its credit.
    """

    peer: str
    connection: ConnectionStatistics
    channels: tuple[SendingChannelStatistics, ...]


@dataclass(frozen=True, slots=True)
class DialledStatistics:
    """A connection on which this TaskManager consumes.

    Attributes:
        address: of the producer.
        connection: bytes and calls.
        channels: how many share it.
    """

    address: str
    connection: ConnectionStatistics
    channels: int


@dataclass(frozen=True, slots=True)
class OpenConnection:
    """A connection in either direction, without its channels.

    Attributes:
        peer: the reading process, or the address that was dialled.
        is_accepted: whether this end produces.
        connection: bytes and calls.
        channels: how many share it.
    """

    peer: str
    is_accepted: bool
    connection: ConnectionStatistics
    channels: int


@dataclass(frozen=True, slots=True)
class SlotStatistics:
    """A slot that is a process, as its supervisor sees it.

    Attributes:
        number: from 0.
        blocked_s: for how long its event loop has not turned; 0 if it turns.
    """

    number: int
    blocked_s: float


@dataclass(frozen=True, slots=True)
class NetworkStatistics:
    """A snapshot of everything a TaskManager owns.

    Attributes:
        pool: its network buffers.
        partitions: what is produced here.
        accepted: connections on which it is read from.
        dialled: connections on which it reads.
        gates: open input gates, without those that are finished and closed.
        bytes_sent: over all connections ever, headers and control frames included.
        bytes_received: likewise.
        admission: who was let in and who was not; None if everybody is, or somebody else decides.
        slots: of a supervisor; empty elsewhere.
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
        """Open connections, in either direction."""
        return len(self.accepted) + len(self.dialled)

    @property
    def prompt_connections(self) -> int:
        """Of these those for prompt channels alone."""
        connections = [each.connection for each in self.accepted] + [each.connection for each in self.dialled]
        return sum(connection.is_prompt for connection in connections)
