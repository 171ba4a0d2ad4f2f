"""Settings: the defaults work, what cannot work is refused by name with what would."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from netstack.base.config import KIB, MIB, NetworkConfig
from netstack.base.errors import ConfigError


def test_the_defaults() -> None:
    config = NetworkConfig()
    assert config.total_segments == 2048
    assert config.heartbeat_interval_s is not None
    assert config.heartbeat_interval_s < config.heartbeat_timeout_s


def test_segments_are_whole() -> None:
    assert NetworkConfig(segment_size_bytes=300, memory_bytes=3 * KIB).total_segments == 10


@pytest.mark.parametrize(
    ("setting", "value", "text"),
    [
        ("segment_size_bytes", 255, "give 256 to 16777216"),
        ("segment_size_bytes", 16 * MIB + 1, "give 256"),
        ("memory_bytes", 4 * 32 * KIB - 1, "raise it to at least 131072"),
        ("exclusive_buffers_per_channel", -1, "the minimum is 0"),
        ("floating_buffers_per_gate", 0, "the minimum is 1"),
        ("max_overdraft_buffers_per_partition", -1, "the minimum is 0"),
        ("max_channels_per_connection", 0, "the minimum is 1"),
        ("spill_threshold_bytes", 100 * KIB - 1, "the minimum is 102400"),
        ("max_record_bytes", 32 * KIB - 1, r"give segment_size_bytes \(32768\) to 2147483647"),
        ("max_record_bytes", 1 << 31, "to 2147483647"),
        ("max_buffers_per_channel", 1, "at least 2, or None"),
        ("partition_request_timeout_s", 0, "above 0"),
        ("dialect", "flink", "give 'netstack' or 'flink-2.3.0'"),
        ("connect_timeout_s", -1.0, "above 0"),
        ("handshake_timeout_s", float("nan"), "above 0"),
        ("heartbeat_timeout_s", 0.0, "above 0"),
        ("heartbeat_interval_s", 0.0, "above 0, or None"),
        ("heartbeat_interval_s", float("nan"), "above 0, or None"),
        ("credit_based", False, "set heartbeat_interval_s=None"),
        ("max_required_buffers_per_gate", 0, "at least 1, or None"),
        ("buffers_request_timeout_s", 0, "above 0"),
        ("debloat_target_s", 0.0, "above 0, or None"),
        ("debloat_period_s", 0.0, "above 0"),
        ("debloat_samples", 0, "the minimum is 1"),
        ("debloat_threshold_percent", -1, "the minimum is 0"),
        ("debloat_min_buffer_bytes", 32 * KIB + 1, "min <= start <= segment_size_bytes"),
        ("debloat_start_buffer_bytes", 255, "min <= start <= segment_size_bytes"),
    ],
)
def test_what_cannot_work_is_named(setting: str, value: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        NetworkConfig(**{setting: value})
    assert f"{setting}={value}" in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("segment_size_bytes", 256),
        ("memory_bytes", 4 * 32 * KIB),
        ("max_overdraft_buffers_per_partition", 0),
        ("max_record_bytes", 32 * KIB),
        ("max_record_bytes", (1 << 31) - 1),
        ("max_buffers_per_channel", 2),
        ("heartbeat_interval_s", None),
    ],
)
def test_the_edges_work(setting: str, value: Any) -> None:
    assert getattr(NetworkConfig(**{setting: value}), setting) == value


def test_settings_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        NetworkConfig().checksum = True  # type: ignore[misc]


@pytest.mark.parametrize("setting", [{"checksum": True}, {"credit_based": False, "heartbeat_interval_s": None}])
def test_another_dialect_has_credits_and_no_checksums(setting: dict[str, Any]) -> None:
    assert NetworkConfig(dialect="flink-2.3.0").dialect == "flink-2.3.0"
    with pytest.raises(ConfigError, match="set checksum=False and credit_based=True"):
        NetworkConfig(dialect="flink-2.3.0", **setting)
