"""What a daemon says of itself, as plain data: for `netstack top`, for reports, and all runs together for Prometheus.

Takes: the daemon's runs. Gives: a document, and one `NetworkStatistics` of all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ..buffer.statistics import NetworkBufferPoolStatistics
from ..config import NetworkConfig
from ..ids import PartitionId
from ..runtime.admission import AdmissionStatistics
from ..runtime.metrics import as_dict
from ..runtime.statistics import NetworkStatistics
from .messages import Plain
from .run import DaemonRun

DEFAULT_SEGMENT_BYTES: Final = NetworkConfig().segment_size_bytes
CHANNELS_AT_MOST: Final = 256
"""Channels of a run that are listed, those with the least credit first: more than that nobody reads."""


def run_document(run: DaemonRun, now_s: float) -> Plain:
    """One run.

    Returns:
        `run_id`, `name`, `slots`, `memory_bytes`, `age_s`, `tasks` ({name-subtask: state}); and once it has its slots
        and memory: `metrics` (as in `METRICS.md`, by partition and gate), `bytes_sent`, `bytes_received`,
        `channel_count`, `channels` (peer, partition, subpartition, credit, buffers sent).
    """
    document: Plain = {
        "run_id": run.run_id,
        "name": run.name,
        "slots": run.slots,
        "memory_bytes": run.config.memory_bytes,
        "age_s": now_s - run.began_s,
        "tasks": {f"{task}-{subtask}": state for (task, subtask), state in run.tasks.items()},
    }
    if run.manager is not None:
        document |= _manager_document(run.manager.statistics())
    return document


def shortened(document: Plain) -> Plain:
    """What a daemon says of itself, without what grows with partitions, channels and tasks; says so: `is_shortened`."""
    runs = [{**run, "tasks": {}, "metrics": {}, "channels": []} for run in document["runs"]]
    return {**document, "is_shortened": True, "runs": runs}


def merged(
    runs: Iterable[DaemonRun], memory_bytes: int, admission: AdmissionStatistics | None = None
) -> NetworkStatistics:
    """All runs as if they were one TaskManager; partitions and gates are named `run/name`.

    Args:
        runs: of the daemon; of several of one name all but the first are named `name#run_id`.
        memory_bytes: of the daemon.
        admission: of the daemon.
    """
    found: list[tuple[str, NetworkStatistics]] = []
    names: set[str] = set()
    for run in runs:
        if run.manager is not None:
            name = run.name if run.name not in names else f"{run.name}#{run.run_id}"
            names.add(name)
            found.append((name, run.manager.statistics()))
    each = [statistics for _, statistics in found]
    return NetworkStatistics(
        pool=_pool([statistics.pool for statistics in each], memory_bytes),
        partitions=tuple(
            dataclasses.replace(partition, partition_id=PartitionId(f"{name}/{partition.partition_id}"))
            for name, statistics in found
            for partition in statistics.partitions
        ),
        accepted=tuple(connection for statistics in each for connection in statistics.accepted),
        dialled=tuple(connection for statistics in each for connection in statistics.dialled),
        gates=tuple(
            dataclasses.replace(gate, name=f"{name}/{gate.name}")
            for name, statistics in found
            for gate in statistics.gates
        ),
        bytes_sent=sum(statistics.bytes_sent for statistics in each),
        bytes_received=sum(statistics.bytes_received for statistics in each),
        admission=admission,
    )


def _manager_document(statistics: NetworkStatistics) -> Plain:
    channels: list[Plain] = [
        {
            "peer": connection.peer,
            "partition": channel.partition_id,
            "subpartition": channel.subpartition,
            "credit": channel.credit,
            "buffers": channel.buffers,
        }
        for connection in statistics.accepted
        for channel in connection.channels
    ]
    channels.sort(key=lambda channel: int(channel["credit"]))
    metrics: Mapping[str, Any] = as_dict(statistics)
    return {
        "metrics": dict(metrics),
        "bytes_sent": statistics.bytes_sent,
        "bytes_received": statistics.bytes_received,
        "channel_count": len(channels),
        "channels": channels[:CHANNELS_AT_MOST],
    }


def _pool(pools: list[NetworkBufferPoolStatistics], memory_bytes: int) -> NetworkBufferPoolStatistics:
    """All pools as one, in segments of the largest size; memory that no run holds is free."""
    size = max((pool.segment_size_bytes for pool in pools), default=DEFAULT_SEGMENT_BYTES)

    def segments(of_pool: Callable[[NetworkBufferPoolStatistics], int]) -> int:
        return sum(of_pool(pool) * pool.segment_size_bytes for pool in pools) // size

    total, lent = memory_bytes // size, segments(lambda pool: pool.lent_segments)
    return NetworkBufferPoolStatistics(
        total_segments=total,
        free_segments=total - lent,
        lent_segments=lent,
        required_segments=segments(lambda pool: pool.required_segments),
        requested_segments=segments(lambda pool: pool.requested_segments),
        local_pools=sum(pool.local_pools for pool in pools),
        segment_size_bytes=size,
    )
