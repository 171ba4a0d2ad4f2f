"""How many network buffers gates, partitions and connections need, before any of them is allocated.

Takes: numbers of channels and subpartitions, a `NetworkConfig`. Gives: the bounds their pools are made with, and
`BufferRequirements` for a whole plan: a row for each, the sum, and by how much the memory has to grow.

Every pool of a TaskManager is made with the numbers computed here, so the answer before the start is the truth after
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..config import NetworkConfig
from ..errors import ConfigError
from ..ids import ResultPartitionType

LANDING_SEGMENTS: Final = 16
"""Segments of a dialled connection that payloads land in: as many as one gathering write of the peer carries; 8 cost a
tenth of the throughput."""


OPEN_SHARE: Final = 8
MIN_CELL_BYTES: Final = 256
MIN_SORT_BUFFERS: Final = 16


@dataclass(frozen=True, slots=True)
class GateBuffers:
    """The buffers of one gate.

    Attributes:
        exclusive_each: exclusive buffers of every remote channel: its initial credit.
        pool_required: floating buffers it is promised.
        pool_maximum: floating buffers it may have, without spare ones.
    """

    exclusive_each: int
    pool_required: int
    pool_maximum: int


def gate_buffers(remote_channels: int, config: NetworkConfig) -> GateBuffers:
    """The buffers of a gate with this many remote channels; local ones need none.

    Wanted are channels x exclusive, and the floating ones. Above `max_required_buffers_per_gate` every channel gets as
    many exclusive buffers as still fit, down to none, and what is missing may be had as floating buffers.
    Without credits all of them are shared.
    """
    if not remote_channels:
        return GateBuffers(0, 0, 0)
    exclusive = config.exclusive_buffers_per_channel
    floating = config.floating_buffers_per_gate
    required = remote_channels * exclusive + 1
    if not config.credit_based:  # nobody owns a buffer: all of them are there for whatever arrives
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

    One buffer per subpartition plus one, so that one of them can hold a second buffer while every other holds its
    first; at most what the receivers can be sent: subpartitions x exclusive + floating.
    """
    if kind.is_released_by_scheduler:
        return sort_buffers(subpartitions, config)[:2]
    required = subpartitions + 1
    if not kind.is_bounded:
        return required, None
    most = subpartitions * config.exclusive_buffers_per_channel + config.floating_buffers_per_gate
    return required, max(required, most)


def sort_buffers(subpartitions: int, config: NetworkConfig) -> tuple[int, int, int]:
    """Buffers of a partition that is kept in files: guaranteed, largest number, and cells that each is cut into.

    Each subpartition has an open buffer; those together are to take an eighth of the memory, and when there are too
    many for whole buffers, buffers are cut into cells. Cells have at least `MIN_CELL_BYTES`, and twice as many of them
    are needed as there are subpartitions, and two.
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
        channels: all of them.
        local: how many of these read partitions of the same TaskManager.
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
    """What one gate or partition needs.

    Attributes:
        name: as given.
        what: what it is, in words.
        exclusive: buffers that belong to single channels.
        required: buffers it is promised, exclusive ones included: it fails to open without them.
        maximum: buffers it may have when memory allows; None is without a bound.
    """

    name: str
    what: str
    exclusive: int
    required: int
    maximum: int | None


@dataclass(frozen=True, slots=True)
class BufferRequirements:
    """What a plan needs of one TaskManager.

    Attributes:
        rows: every gate, every partition, and the connections.
        total_segments: what the memory holds.
        segment_size_bytes: of each buffer.
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
        """Buffers with which nobody ever waits for memory; None when a partition has no bound."""
        largest = [row.maximum for row in self.rows]
        return None if None in largest else sum(one for one in largest if one is not None)

    @property
    def missing(self) -> int:
        """Buffers by which the memory is too small; 0 when the plan fits."""
        return max(0, self.required - self.total_segments)

    @property
    def missing_bytes(self) -> int:
        """By how much to raise `memory_bytes`."""
        return self.missing * self.segment_size_bytes


def required_buffers(
    *,
    gates: Mapping[str, GatePlan] | None = None,
    partitions: Mapping[str, PartitionPlan] | None = None,
    connections: int = 0,
    config: NetworkConfig | None = None,
) -> BufferRequirements:
    """Computes what one TaskManager needs, allocating nothing.

    Args:
        gates: by a name of the caller's choice.
        partitions: likewise.
        connections: other TaskManagers it reads from, once more each for prompt channels; every dialled connection has
            16 segments to land payloads in. One that says goodbye still has them: count it twice where gates are closed
            and opened again at once.
        config: its settings; the defaults if not given.

    Raises:
        ConfigError: a plan with numbers that cannot be.
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
        rows.append(RequirementRow("connections", f"{connections} dialled, to land in", 0, landing, landing))
    return BufferRequirements(tuple(rows), settings.total_segments, settings.segment_size_bytes)
