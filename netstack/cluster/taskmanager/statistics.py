"""Statistics of a TaskManager as plain data for `netstack top`, and of all jobs together for Prometheus.

Takes: the open jobs. Gives: a document, and one `NetworkStatistics` of all jobs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from ...base.config import NetworkConfig
from ...base.ids import PartitionId
from ...exchange.buffer.statistics import NetworkBufferPoolStatistics
from ...network.connection.admission import AdmissionStatistics
from ...network.connection.statistics import NetworkStatistics
from ...network.environment import NetworkEnvironment
from ...network.metrics.samples import as_dict
from ..control.codec import Plain
from .details import CONNECTIONS_AT_MOST
from .job_in_process import JobInProcess

DEFAULT_SEGMENT_BYTES: Final = NetworkConfig().segment_size_bytes
CHANNELS_AT_MOST: Final = 256
"""Maximum number of listed channels of a job, those with the least credit first."""


def job_document(job: JobInProcess, now_s: float) -> Plain:
    """Returns the statistics of one job.

    Returns:
        `job_id`, `name`, `slots`, `memory_bytes` (of its own network, else 0), `age_s`, `tasks` ({name-subtask:
        state}); once its network is open also `metrics` (as in `METRICS.md`, by partition and gate), `bytes_sent`,
        `bytes_received`, `channel_count`, `channels` (peer, partition, subpartition, credit, buffers sent). A job in
        the shared network has only its own partitions and gates.
    """
    document: Plain = {
        "job_id": job.job_id,
        "name": job.name,
        "slots": job.slots,
        "memory_bytes": 0 if job.network is None else job.network.memory_bytes,
        "age_s": now_s - job.began_s,
        "tasks": job.task_states(),
    }
    if job.environment is not None:
        document |= _network_document(job.statistics_of(job.environment))
    return document


def shortened(document: Plain) -> Plain:
    """Returns the document without lists of partitions, channels and tasks, with `is_shortened` set."""
    jobs = [{**job, "tasks": {}, "metrics": {}, "channels": []} for job in document["jobs"]]
    return {**document, "is_shortened": True, "jobs": jobs}


def merged(
    jobs: Iterable[JobInProcess],
    shared: NetworkEnvironment | None,
    memory_bytes: int,
    admission: AdmissionStatistics | None = None,
) -> NetworkStatistics:
    """Merges all networks into one; partitions and gates of a job with its own network are named `job/name`.

    Args:
        jobs: jobs of the TaskManager; jobs with equal names except the first are named `name#job_id`.
        shared: the shared network environment, if it is open.
        memory_bytes: network memory of the TaskManager.
        admission: admission statistics of the TaskManager.
    """
    networks: list[tuple[str, NetworkStatistics]] = []
    names: set[str] = set()
    if shared is not None:
        networks.append(("", shared.statistics()))
    for job in jobs:
        if job.environment is not None and job.network is not None:
            name = job.name if job.name not in names else f"{job.name}#{job.job_id}"
            names.add(name)
            networks.append((f"{name}/", job.environment.statistics()))
    each = [statistics for _, statistics in networks]
    return NetworkStatistics(
        pool=_pool([statistics.pool for statistics in each], memory_bytes),
        partitions=tuple(
            dataclasses.replace(partition, partition_id=PartitionId(f"{name}{partition.partition_id}"))
            for name, statistics in networks
            for partition in statistics.partitions
        ),
        accepted=tuple(connection for statistics in each for connection in statistics.accepted),
        dialled=tuple(connection for statistics in each for connection in statistics.dialled),
        gates=tuple(
            dataclasses.replace(gate, name=f"{name}{gate.name}")
            for name, statistics in networks
            for gate in statistics.gates
        ),
        bytes_sent=sum(statistics.bytes_sent for statistics in each),
        bytes_received=sum(statistics.bytes_received for statistics in each),
        admission=admission,
    )


def _network_document(statistics: NetworkStatistics) -> Plain:
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
    """Merges all pools, in segments of the largest size; memory that no network holds counts as free."""
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


def merged_documents(whole: Plain, slots: Sequence[Plain]) -> Plain:
    """Merges the statistics of a TaskManager with those of its slot processes.

    Args:
        whole: document of the TaskManager without jobs.
        slots: documents of its slots; the parts of each job are merged.
    """
    jobs: dict[str, Plain] = {}
    for slot in slots:
        for part in slot["jobs"]:
            job = jobs.get(part["job_id"])
            jobs[part["job_id"]] = dict(part) if job is None else _merged_job(job, part)
    summed = {
        name: whole[name] + sum(slot[name] for slot in slots)
        for name in ("cpu_s", "connections", "unproven", "shared_memory_bytes", "shared_used_bytes")
    }
    return {**whole, **summed, "jobs": list(jobs.values())}


def _merged_job(job: Plain, part: Plain) -> Plain:
    merged_job = {
        **job,
        **part,
        "memory_bytes": job["memory_bytes"] + part["memory_bytes"],
        "age_s": max(job["age_s"], part["age_s"]),
        "tasks": {**job["tasks"], **part["tasks"]},
    }
    if "metrics" in job and "metrics" in part:
        merged_job["metrics"] = {**job["metrics"], **part["metrics"]}
        for name in ("bytes_sent", "bytes_received", "channel_count"):
            merged_job[name] = job[name] + part[name]
        channels = sorted(job["channels"] + part["channels"], key=lambda channel: int(channel["credit"]))
        merged_job["channels"] = channels[:CHANNELS_AT_MOST]
    return merged_job


def merged_details(slots: Sequence[Plain]) -> Plain:
    """Merges the details (`details.details_document`) of slots into one document."""
    jobs: dict[str, Plain] = {}
    for slot in slots:
        for job_id, part in slot["jobs"].items():
            job = jobs.setdefault(job_id, {"tasks": [], "network": None})
            job["tasks"] += part["tasks"]
            job["network"] = _merged_network([each for each in (job["network"], part["network"]) if each is not None])
    return {
        "memory_bytes": sum(slot["memory_bytes"] for slot in slots),
        "free_memory_bytes": sum(slot["free_memory_bytes"] for slot in slots),
        "network": _merged_network([slot["network"] for slot in slots if slot["network"] is not None]),
        "jobs": jobs,
        "took_s": max((slot["took_s"] for slot in slots), default=0.0),
    }


def _merged_network(networks: Sequence[Plain]) -> Plain | None:
    if not networks:
        return None
    summed = {
        name: sum(network[name] for network in networks)
        for name in (
            "segments",
            "free_segments",
            "pools",
            "required_segments",
            "requested_segments",
            "connection_count",
        )
    }
    connections = [connection for network in networks for connection in network["connections"]]
    return {**networks[0], **summed, "connections": connections[:CONNECTIONS_AT_MOST]}
