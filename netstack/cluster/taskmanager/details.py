"""Details of a TaskManager's jobs, down to each channel.

Takes: the jobs of one JobManager. Gives: a document of plain data.

Rules: the document is bounded. Each input and output of a vertex has at most `CHANNELS_AT_MOST` channels; of a wider
one the first channels of the first subtasks, so that both ends report the same channels. Between two requests nothing
is counted or computed; an answer costs about 5 us for each channel.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from math import isqrt
from typing import Final

from ...base.errors import LocalProtocolError
from ...exchange.buffer.statistics import LocalBufferPoolStatistics
from ...exchange.inbound.gate import SingleInputGate
from ...exchange.outbound.partition import ResultPartition
from ...network.environment import NetworkEnvironment
from ...schedule.checkpoint.barrier import BarrierStatistics
from ...schedule.descriptors.shuffle import partition_place
from ..control.codec import Attempt, Plain
from ..task.reports import RunnableTask
from .job_in_process import JobInProcess
from .memory import TaskMemory

CHANNELS_AT_MOST: Final = 256
"""Maximum number of channels of one input or output of a vertex."""

TASKS_AT_MOST: Final = 4096
"""Maximum number of tasks of a job."""

CONNECTIONS_AT_MOST: Final = 64
"""Maximum number of connections of a network."""


def details_document(jobs: Iterable[JobInProcess], shared: NetworkEnvironment | None, memory: TaskMemory) -> Plain:
    """Returns the details of all jobs.

    Returns:
        `took_s` (duration of this call: wait fifty times as long before the next request), `memory_bytes`,
        `free_memory_bytes`, `network` (the shared one; None while closed) and `jobs` by id: `tasks`, `network` (its
        own, or None).
    """
    began_s = time.perf_counter()
    documents = {job.job_id: _job(job) for job in jobs}
    return {
        "memory_bytes": memory.memory_bytes,
        "free_memory_bytes": memory.free_memory_bytes,
        "network": None if shared is None else _network(shared),
        "jobs": documents,
        "took_s": time.perf_counter() - began_s,
    }


def _job(job: JobInProcess) -> Plain:
    tasks = []
    room: dict[tuple[str, int, int], int] = {}
    widths = _widths(job)
    for attempt in sorted(job.tasks)[:TASKS_AT_MOST]:
        task = job.tasks[attempt].task
        if task is not None:
            tasks.append(_task(attempt, task, room, widths))
    own = None if job.network is None or job.environment is None else _network(job.environment)
    return {"tasks": tasks, "network": own}


def _widths(job: JobInProcess) -> dict[tuple[str, int, int], int]:
    """Returns the number of channels of each input and output of each vertex: (what, vertex, index) -> channels."""
    widths: dict[tuple[str, int, int], int] = {}
    for (vertex, _, _), attempt in job.tasks.items():
        task = attempt.task
        if task is None:
            continue
        for index, gate in enumerate(task.open_gates):
            key = "in", vertex, index
            widths[key] = widths.get(key, 0) + (0 if gate is None else gate.channel_count)
        for index, partition in enumerate(task.open_partitions):
            key = "out", vertex, index
            widths[key] = widths.get(key, 0) + len(partition.subpartitions)
    return widths


def _task(
    attempt: Attempt, task: RunnableTask, room: dict[tuple[str, int, int], int], widths: dict[tuple[str, int, int], int]
) -> Plain:
    def shown_channels(what: str, index: int, count: int) -> int:
        """Returns how many channels of one gate or partition are listed."""
        key = what, attempt[0], index
        left = room.setdefault(key, CHANNELS_AT_MOST)
        number = min(count, left if widths[key] <= CHANNELS_AT_MOST else min(left, isqrt(CHANNELS_AT_MOST)))
        room[key] = left - number
        return number

    statistics = task.statistics()
    barriers = task.barrier_statistics()
    return {
        "attempt": list(attempt),
        "records_in": statistics.records_in,
        "records_out": statistics.records_out,
        "busy_s": statistics.busy_s,
        "idle_s": statistics.idle_s,
        "backpressured_s": statistics.backpressured_s,
        "barriers": None if barriers is None else _barriers(barriers),
        "inputs": [
            _NOT_OPEN if gate is None else _input(gate, shown_channels("in", index, gate.channel_count))
            for index, gate in enumerate(task.open_gates)
        ],
        "outputs": [
            _output(partition, shown_channels("out", index, len(partition.subpartitions)))
            for index, partition in enumerate(task.open_partitions)
        ],
    }


def _barriers(statistics: BarrierStatistics) -> Plain:
    return {
        "checkpoint_id": statistics.checkpoint_id,
        "pending": list(statistics.pending),
        "received": statistics.received_barriers,
        "expected": statistics.expected_barriers,
        "blocked_channels": statistics.blocked_channels,
        "is_aligning": statistics.alignment_started_s is not None,
    }


_NOT_OPEN: Final[Plain] = {"channels": 0, "floating": None, "buffer_bytes": None, "rows": []}
"""A gate that waits for its producers."""


def _input(gate: SingleInputGate, count: int) -> Plain:
    rows = []
    for channel in gate.channels[:count]:
        statistics = channel.statistics()
        try:
            place = partition_place(statistics.partition_id)
            producer, attempt = place.partition, place.attempt
        except LocalProtocolError:  # benchmarks use other partition names
            producer, attempt = -1, 0
        rows.append(
            [
                statistics.channel_index,
                producer,
                attempt,
                statistics.subpartition,
                statistics.is_local,
                getattr(channel, "peer", ""),
                statistics.queued_buffers,
                statistics.queued_bytes,
                statistics.exclusive,
                statistics.free_exclusive,
                statistics.free_floating,
                statistics.unannounced_credit,
                statistics.sender_backlog,
                statistics.buffers,
                statistics.is_finished,
            ]
        )
    return {
        "channels": gate.channel_count,
        "floating": None if gate.pool is None else _pool(gate.pool.statistics()),
        "buffer_bytes": None if gate.debloater is None else gate.debloater.announced_bytes,
        "rows": rows,
    }


def _output(partition: ResultPartition, count: int) -> Plain:
    rows = []
    for number, subpartition in enumerate(partition.subpartitions[:count]):
        statistics = subpartition.statistics()
        rows.append(
            [
                number,
                statistics.queued_buffers,
                statistics.backlog_buffers,
                statistics.credit,
                statistics.is_blocked,
                statistics.buffers_sent,
            ]
        )
    return {"subpartitions": len(partition.subpartitions), "pool": _pool(partition.pool.statistics()), "rows": rows}


def _pool(pool: LocalBufferPoolStatistics) -> Plain:
    return {"size": pool.size, "used": pool.used, "overdraft": pool.overdraft, "waiting": pool.waiting_listeners}


def _network(environment: NetworkEnvironment) -> Plain:
    pool = environment.pool_statistics()
    connections = [
        {
            "peer": each.peer,
            "direction": "out" if each.is_accepted else "in",
            "is_prompt": each.connection.is_prompt,
            "channels": each.channels,
            "bytes_sent": each.connection.bytes_sent,
            "bytes_received": each.connection.bytes_received,
            "round_trip_s": each.connection.round_trip_s,
        }
        for each in environment.connections()
    ]
    return {
        "segments": pool.total_segments,
        "free_segments": pool.free_segments,
        "segment_bytes": pool.segment_size_bytes,
        "pools": pool.local_pools,
        "required_segments": pool.required_segments,
        "requested_segments": pool.requested_segments,
        "connection_count": len(connections),
        "connections": connections[:CONNECTIONS_AT_MOST],
    }
