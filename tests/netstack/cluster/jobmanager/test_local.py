"""What a local cluster is given; the rest is tested with real processes (`system/test_run`)."""

from __future__ import annotations

from typing import NoReturn

import pytest

from netstack.base.config import MIB, NetworkConfig
from netstack.base.errors import ConfigError
from netstack.cluster.jobmanager import local
from netstack.cluster.jobmanager.config import JobManagerConfig
from netstack.cluster.jobmanager.local import MEMORY_BYTES, memory_for, run_job
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import StreamSettings


def wide(parallelism: int, network: NetworkConfig | None = None) -> StreamEnvironment:
    job = StreamEnvironment("wide", parallelism=parallelism, settings=StreamSettings(network=network))
    job.source("a:read").rebalance().sink("a:show")
    return job


def test_a_job_that_needs_more_slots_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="slots=2: job 'wide' needs 3"):
        run_job(wide(3), taskmanagers=1, slots=2)


def test_too_little_memory_is_refused_before_anything_starts() -> None:
    missing = r"slot \d of TaskManager 0 needs 98 network buffers, but the memory of a slot holds 64: 34 are missing"
    with pytest.raises(ConfigError, match=missing):
        run_job(wide(6), taskmanagers=2, slots=3, memory_bytes=2 * MIB)


def test_a_run_does_not_continue_what_an_earlier_one_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def cluster(*, jobmanager: JobManagerConfig, **_: object) -> NoReturn:
        raise ConfigError(f"takes up jobs: {jobmanager.takes_up_jobs}")

    monkeypatch.setattr(local, "open_local_cluster", cluster)
    with pytest.raises(ConfigError, match="takes up jobs: False"):
        run_job(wide(1))


def test_a_job_gets_the_memory_that_it_requires() -> None:
    assert memory_for(wide(2).stream_graph(), 1, 2) == MEMORY_BYTES
    # Each slot is a process: of 20 channels into it 19 are remote, each with 2 buffers and a connection of 16.
    in_a_slot = (21 + 20 * 2 + 19 * 16) * NetworkConfig().segment_size_bytes
    assert in_a_slot < memory_for(wide(20).stream_graph(), 1, 20) / 20 < 1.5 * in_a_slot
    assert memory_for(wide(2, NetworkConfig(memory_bytes=100 * MIB)).stream_graph(), 1, 2) == 200 * MIB
