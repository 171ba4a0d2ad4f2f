"""Computes how many network buffers gates, partitions and connections need, before any of them is allocated.

Takes: numbers of channels and subpartitions, a `NetworkConfig`. Gives: the bounds of their pools, and
`BufferRequirements` for a whole plan: a row for each, the sum, and the missing memory.

Every pool of a TaskManager is created with the numbers computed here, so the plan matches the running system.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ...base.config import NetworkConfig
from ...base.errors import ConfigError
from ...base.ids import ResultPartitionType

LANDING_SEGMENTS: Final = 16
"""Segments in which a dialled connection receives payloads: as many as one gathering write of the peer carries. With
8 of them throughput was 10 % lower."""


OPEN_SHARE: Final = 8
MIN_CELL_BYTES: Final = 256
MIN_SORT_BUFFERS: Final = 16


@dataclass(frozen=True, slots=True)
class GateBuffers:
    """The buffers of one gate.

    Attributes:
        exclusive_each: exclusive buffers of every remote channel: its initial credit.
        pool_required: guaranteed floating buffers.
        pool_maximum: floating buffers it may have at most, spare ones not counted.
    """

    exclusive_each: int
    pool_required: int
    pool_maximum: int


def gate_buffers(remote_channels: int, config: NetworkConfig) -> GateBuffers:
    """The buffers of a gate with this many remote channels; local ones need none.

    The gate requests channels x exclusive buffers, plus the floating ones. Above `max_required_buffers_per_gate`
    every channel gets as many exclusive buffers as fit (possibly none), and floating buffers replace the others.
    Without credits all buffers are shared.
    """
    if not remote_channels:
        return GateBuffers(0, 0, 0)
    exclusive = config.exclusive_buffers_per_channel
    floating = config.floating_buffers_per_gate
    required = remote_channels * exclusive + 1
    if not config.credit_based:  # no channel owns buffers: all of them are for whatever arrives
        return GateBuffers(0, required, remote_channels * exclusive + floating)
    if config.max_required_buffers_per_gate is not None:
        required = min(required, config.max_required_buffers_per_gate)
    each = min(exclusive, (required - 1) // remote_channels)
    return GateBuffers(
        exclusive_each=each,
        pool_required=required - each * remote_channels,
        pool_maximum=max(
            required - each * remote_channels, remote_channels * exclusive + floating - each * remote_channels
        ),
    )


def partition_buffers(kind: ResultPartitionType, subpartitions: int, config: NetworkConfig) -> tuple[int, int | None]:
    """Guaranteed and largest size of a partition's pool.

    Guaranteed is one buffer for each subpartition plus one, so that one subpartition can fill a second buffer while all
    others hold their first. The maximum is what the receivers have room for: subpartitions x exclusive + floating.
    """
    if kind.is_released_by_scheduler:
        return sort_buffers(subpartitions, config)[:2]
    required = subpartitions + 1
    if not kind.is_bounded:
        return required, None
    most = subpartitions * config.exclusive_buffers_per_channel + config.floating_buffers_per_gate
    return required, max(required, most)


def sort_buffers(subpartitions: int, config: NetworkConfig) -> tuple[int, int, int]:
    """Buffers of a partition that is kept in files: guaranteed number, largest number, and cells in each buffer.

    Each subpartition has an open buffer. Together they should take an eighth of the memory; with too many
    subpartitions for whole buffers, buffers are cut into cells. A cell has at least `MIN_CELL_BYTES`, and the number
    of cells is at least twice the number of subpartitions, plus two.
    """
    most = max(MIN_SORT_BUFFERS, config.sort_buffer_bytes // config.segment_size_bytes)
    cells = -(-OPEN_SHARE * subpartitions // most)
    if cells == 1:
        return 2 * subpartitions + 2, most, 1
    cells = min(cells, config.segment_size_bytes // MIN_CELL_BYTES)
    needed = -(-(2 * subpartitions + 2) // cells)
    return max(most, needed), max(most, needed), cells


@dataclass(frozen=True, slots=True)
class GatePlan:
    """A gate that will be opened.

    Attributes:
        channels: number of channels.
        local: how many of them read partitions of the same TaskManager.
    """

    channels: int
    local: int = 0


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """A partition that will be created."""

    subpartitions: int
    kind: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED


@dataclass(frozen=True, slots=True)
class RequirementRow:
    """The requirement of one gate or partition.

    Attributes:
        name: its name in the plan.
        what: its description.
        exclusive: buffers that belong to single channels.
        required: guaranteed buffers, exclusive ones included; opening fails without them.
        maximum: buffers it may have when memory allows; None: unbounded.
    """

    name: str
    what: str
    exclusive: int
    required: int
    maximum: int | None


@dataclass(frozen=True, slots=True)
class BufferRequirements:
    """The requirements of a plan on one TaskManager.

    Attributes:
        rows: every gate, every partition, and the connections.
        total_segments: segments in the configured memory.
        segment_size_bytes: size of each segment.
    """

    rows: tuple[RequirementRow, ...]
    total_segments: int
    segment_size_bytes: int

    @property
    def required(self) -> int:
        """Buffers without which the plan does not start."""
        return sum(row.required for row in self.rows)

    @property
    def maximum(self) -> int | None:
        """Buffers with which nothing ever waits for memory; None when a partition is unbounded."""
        largest = [row.maximum for row in self.rows]
        return None if None in largest else sum(one for one in largest if one is not None)

    @property
    def missing(self) -> int:
        """Buffers that the configured memory lacks; 0 when the plan fits."""
        return max(0, self.required - self.total_segments)

    @property
    def missing_bytes(self) -> int:
        """Bytes to add to `memory_bytes`."""
        return self.missing * self.segment_size_bytes


def required_buffers(
    *,
    gates: Mapping[str, GatePlan] | None = None,
    partitions: Mapping[str, PartitionPlan] | None = None,
    connections: int = 0,
    config: NetworkConfig | None = None,
) -> BufferRequirements:
    """Computes the buffer requirements of one TaskManager; allocates nothing.

    Args:
        gates: by any name.
        partitions: by any name.
        connections: number of TaskManagers it reads from; count one again for each that has prompt channels. Every
        dialled connection has 16 segments to receive payloads in, and keeps them until its goodbye is complete: count
            it
        twice where gates are closed and opened again at once.
        config: settings; default `NetworkConfig()`.

    Raises:
        ConfigError: a number in a plan is out of range.
    """
    settings = config or NetworkConfig()
    rows = []
    for name, gate in (gates or {}).items():
        if gate.channels < 1 or not 0 <= gate.local <= gate.channels:
            raise ConfigError(f"gate {name!r}: {gate.channels} channels, {gate.local} of them local; give at least 1")
        remote = gate.channels - gate.local
        buffers = gate_buffers(remote, settings)
        exclusive = remote * buffers.exclusive_each
        what = f"gate, {gate.channels} channels" + (f" ({gate.local} local)" if gate.local else "")
        rows.append(
            RequirementRow(name, what, exclusive, exclusive + buffers.pool_required, exclusive + buffers.pool_maximum)
        )
    for name, partition in (partitions or {}).items():
        if partition.subpartitions < 1:
            raise ConfigError(f"partition {name!r}: {partition.subpartitions} subpartitions; give at least 1")
        required, maximum = partition_buffers(partition.kind, partition.subpartitions, settings)
        what = f"partition, {partition.subpartitions} subpartitions"
        rows.append(RequirementRow(name, what, 0, required, maximum))
    if connections < 0:
        raise ConfigError(f"connections={connections}; give 0 or more")
    if connections:
        landing = connections * LANDING_SEGMENTS
        rows.append(RequirementRow("connections", f"{connections} dialled, receive segments", 0, landing, landing))
    return BufferRequirements(tuple(rows), settings.total_segments, settings.segment_size_bytes)
