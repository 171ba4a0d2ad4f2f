"""A job to look at on the page: sources that never end, and a sink whose second subtask stalls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from netstack import CheckpointSettings, NetworkConfig, OperatorContext, Output, StreamEnvironment, StreamSettings
from netstack.cluster.jobmanager.client import open_job_client
from netstack.cluster.jobmanager.config import JobManagerConfig
from netstack.cluster.jobmanager.service import JobManager, open_jobmanager
from netstack.cluster.taskmanager.config import TaskManagerConfig
from netstack.cluster.taskmanager.runner import open_taskmanager
from netstack.cluster.taskmanager.service import TaskManager


class Source:
    """Records of 100 bytes, as many as are taken; a number in each says for whom it is."""

    def open(self, context: OperatorContext) -> None:
        self.number = context.subtask

    async def read(self) -> list[bytes]:
        await trio.sleep(0.001)
        self.number += 1
        return [bytes([self.number % 2]) + bytes(99)]

    def snapshot(self, unsent: int) -> int:
        return self.number

    def restore(self, states: list[int]) -> None:
        self.number = max(states)


def target(record: bytes, channels: int) -> int:
    return record[0] % channels


class Sink:
    """Takes records, but the second subtask takes none after the first ten."""

    def open(self, context: OperatorContext) -> None:
        self.subtask = context.subtask
        self.count = 0

    async def process(self, record: bytes, out: Output) -> None:
        self.count += 1
        if self.subtask == 1 and self.count > 10:
            await trio.sleep_forever()


def stalled() -> StreamEnvironment:
    """Two sources, two sinks, in two TaskManagers of two slots; all is at rest after a moment."""
    network = NetworkConfig(segment_size_bytes=1024, memory_bytes=256 * 1024, floating_buffers_per_gate=4)
    settings = StreamSettings(network=network, checkpoints=CheckpointSettings(interval_s=None))
    job = StreamEnvironment("stalled", parallelism=2, settings=settings)
    made = job.source(Source, name="A").slot_sharing_group("A").with_format("bytes").with_buffer_timeout(None)
    made.partition_custom(target).prompt().sink(Sink, name="B").slot_sharing_group("B")
    return job


async def until_registered(taskmanager: TaskManager) -> None:
    while not taskmanager.registration.count:  # noqa: ASYNC110  # registrations set no event
        await trio.sleep(0.01)


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[JobManager, list[TaskManager], str]]:
    """A JobManager, two TaskManagers of this process, and a job on them that comes to rest."""
    async with open_jobmanager(JobManagerConfig(listen="tcp://127.0.0.1:0", heartbeat_timeout_s=30.0)) as manager:
        config = TaskManagerConfig(
            listen="tcp://127.0.0.1:0", jobmanager=manager.address, slots=2, allow=("*",), link_in_thread=False
        )
        async with open_taskmanager(config) as first:
            await until_registered(first)
            async with open_taskmanager(config) as second, open_job_client(manager.address) as client:
                await until_registered(second)
                job_id = await client.submit(stalled())
                yield manager, [first, second], job_id
