"""Settings of a wrong type are refused where they are given; what other libraries make is converted."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from netstack.base.config import NetworkConfig
from netstack.base.errors import ConfigError
from netstack.cluster.jobmanager.config import JobManagerConfig
from netstack.cluster.taskmanager.config import TaskManagerConfig
from netstack.schedule import StreamEnvironment, StreamSettings
from netstack.schedule.checkpoint.instructions import CheckpointSettings
from netstack.schedule.graph.settings import AdaptiveSettings, CutSettings, RestartSettings, SpeculationSettings


@pytest.mark.parametrize(
    ("made", "name", "value", "accepted"),
    [
        (NetworkConfig, "segment_size_bytes", "32KiB", "an integer"),
        (NetworkConfig, "exclusive_buffers_per_channel", 2.0, "an integer"),
        (NetworkConfig, "exclusive_buffers_per_channel", True, "an integer"),
        (NetworkConfig, "heartbeat_interval_s", "10s", "a number or None"),
        (NetworkConfig, "checksum", 1, "True or False"),
        (NetworkConfig, "spill_directory", 5, "text or None"),
        (CheckpointSettings, "interval_s", "1s", "a number or None"),
        (CheckpointSettings, "interval_s", 1j, "a number or None"),
        (StreamSettings, "checkpoints", 1.0, "a CheckpointSettings or None"),
        (StreamSettings, "exchange_mode", "blocking", ".*, GlobalExchangeMode.ALL_EDGES_BLOCKING, .* or None"),
        (RestartSettings, "attempts", "3", "an integer or None"),
        (AdaptiveSettings, "max_parallelism", None, "an integer"),
        (CutSettings, "skewed_factor", "4", "a number"),
        (SpeculationSettings, "baseline_ratio", "0.5", "a number"),
        (StreamEnvironment, "parallelism", "2", "an integer or None"),
        (StreamEnvironment, "settings", None, "a StreamSettings"),
        (TaskManagerConfig, "slots", "2", "an integer"),
        (JobManagerConfig, "load_balance", "tasks", "LoadBalanceMode.NONE, .*"),
    ],
)
def test_a_wrong_type_is_refused_by_name(made: Any, name: str, value: Any, accepted: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}=.*; give {accepted}$"):
        made(**{name: value})


def test_an_operator_and_an_edge_too() -> None:
    job = StreamEnvironment("job")
    stream = job.source("module:numbers", name="numbers")
    with pytest.raises(ConfigError, match="operator 'numbers': parallelism='2'; give an integer"):
        stream.set_parallelism("2")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="buffer_timeout_s='100ms'; give a number"):
        stream.rebalance().with_buffer_timeout("100ms").sink("module:show")  # type: ignore[arg-type]


def test_what_other_libraries_make_is_converted() -> None:
    network = NetworkConfig(
        segment_size_bytes=np.int64(4096),  # type: ignore[arg-type]
        heartbeat_interval_s=Fraction(1, 2),  # type: ignore[arg-type]
        connect_timeout_s=np.float32(0.5),  # type: ignore[arg-type]
        resume_grace_s=3,
        spill_directory=Path("/tmp"),  # type: ignore[arg-type]
    )
    values = (
        network.segment_size_bytes,
        network.heartbeat_interval_s,
        network.connect_timeout_s,
        network.resume_grace_s,
        network.spill_directory,
    )
    assert values == (4096, 0.5, 0.5, 3, "/tmp")
    assert [type(value) for value in values] == [int, float, float, int, str]
