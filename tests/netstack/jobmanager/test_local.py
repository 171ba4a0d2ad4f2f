"""What a local cluster is given; the rest is tested with real processes (`system/test_run`)."""

from __future__ import annotations

from netstack.config import MIB, NetworkConfig
from netstack.jobmanager.local import MEMORY_BYTES, memory_for
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import StreamSettings


def wide(parallelism: int, network: NetworkConfig | None = None) -> StreamEnvironment:
    job = StreamEnvironment("wide", parallelism=parallelism, settings=StreamSettings(network=network))
    job.source("a:read").rebalance().sink("a:show")
    return job


def test_a_job_gets_the_memory_that_it_requires() -> None:
    assert memory_for(wide(2).stream_graph(), 1, 2) == MEMORY_BYTES
    required = 100 * 101 * NetworkConfig().segment_size_bytes  # a buffer for each subpartition, and one more
    assert required < memory_for(wide(100).stream_graph(), 1, 100) < 3 * required
    assert memory_for(wide(2, NetworkConfig(memory_bytes=100 * MIB)).stream_graph(), 1, 2) == 100 * MIB
