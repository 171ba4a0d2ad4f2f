"""The answer as lines to paste: for a program, a TaskManager's file, and Flink's configuration of both generations."""

from __future__ import annotations

from netstack.base.config import MIB, PROFILES, NetworkConfig
from netstack.base.units import format_duration, format_size
from netstack.exchange.buffer.requirements import GatePlan, PartitionPlan, required_buffers
from netstack.exchange.credit.spare import FAST

from ..labels import buffers_of, setting
from ..spec import RunSpec
from ..store import Row

_DEFAULT = NetworkConfig()


def memory_bytes(spec: RunSpec) -> int:
    """The network memory of a TaskManager with one source and one sink of the job, in whole MiB.

    `spec.channels` are those of one gate, and the subpartitions of one partition.
    """
    config = NetworkConfig.acting_as(
        spec.acts_as,
        segment_size_bytes=spec.segment_size_bytes,
        memory_bytes=4 * spec.segment_size_bytes,
        exclusive_buffers_per_channel=spec.exclusive_buffers,
        floating_buffers_per_gate=spec.floating_buffers,
    )
    plan = required_buffers(
        gates={"gate": GatePlan(spec.channels)},
        partitions={"partition": PartitionPlan(spec.channels)},
        connections=1,
        config=config,
    )
    spare = spec.spare_buffers if spec.round_trip_s else min(spec.spare_buffers, FAST)
    segments = (plan.maximum or plan.required) + spare + config.max_overdraft_buffers_per_partition
    return -(-segments * spec.segment_size_bytes // MIB) * MIB


def lines(spec: RunSpec, timeout_s: float | None) -> dict[str, str]:
    """The lines to paste, by their file; a timeout of None sends full buffers only."""
    memory = memory_bytes(spec)
    return {
        "a program": _program(spec, timeout_s, memory),
        "a TaskManager's TOML, for each slot": _toml(spec, memory),
        "Flink 2.x, config.yaml": _flink_2(spec, timeout_s, memory),
        "Flink 1.x, config.yaml or flink-conf.yaml": _flink_1(spec, timeout_s, memory),
    }


def _program(spec: RunSpec, timeout_s: float | None, memory: int) -> str:
    settings = {
        "memory_bytes": (memory, _DEFAULT.memory_bytes),
        "segment_size_bytes": (spec.segment_size_bytes, _DEFAULT.segment_size_bytes),
        "exclusive_buffers_per_channel": (spec.exclusive_buffers, _DEFAULT.exclusive_buffers_per_channel),
        "floating_buffers_per_gate": (spec.floating_buffers, _DEFAULT.floating_buffers_per_gate),
    }
    parts = [f"{name}={value}" for name, (value, default) in settings.items() if value != default]
    version = PROFILES[spec.acts_as]
    make = "NetworkConfig" if version is None else "NetworkConfig.flink"
    if version not in (None, "2.3"):
        parts.insert(0, repr(version))
    network, timeout = f"{make}({', '.join(parts)})", f"buffer_timeout_s={timeout_s!r}"
    return (
        f"{network}\nRecordWriter(partition, {timeout})\n"
        f"StreamEnvironment(name, {timeout}, settings=StreamSettings(network={network}))"
    )


def _toml(spec: RunSpec, memory: int) -> str:
    profile = "" if PROFILES[spec.acts_as] is None else f'\nas = "{spec.acts_as}"'
    return f'memory = "{format_size(memory)}"\nsegment-size = "{format_size(spec.segment_size_bytes)}"{profile}'


def _flink_2(spec: RunSpec, timeout_s: float | None, memory: int) -> str:
    timeout = (
        "execution.buffer-timeout.enabled: false"
        if timeout_s is None
        else f"execution.buffer-timeout.enabled: true\nexecution.buffer-timeout.interval: {_flink_duration(timeout_s)}"
    )
    return (
        f"{timeout}\n{_flink_memory(spec, memory)}\n"
        "# 2 exclusive buffers a channel, 8 floating a gate and 20 of overdraft are constants there"
    )


def _flink_1(spec: RunSpec, timeout_s: float | None, memory: int) -> str:
    timeout = "-1 ms" if timeout_s is None else _flink_duration(timeout_s)
    return (
        f"execution.buffer-timeout: {timeout}\n"
        f"taskmanager.network.memory.buffers-per-channel: {spec.exclusive_buffers}\n"
        f"taskmanager.network.memory.floating-buffers-per-gate: {spec.floating_buffers}\n"
        f"{_flink_memory(spec, memory)}"
    )


def _flink_memory(spec: RunSpec, memory: int) -> str:
    """Per slot: a TaskManager of several needs as many times as much."""
    size = _flink_size(memory)
    return (
        f"taskmanager.memory.segment-size: {_flink_size(spec.segment_size_bytes)}\n"
        f"taskmanager.memory.network.min: {size}   # for each slot\ntaskmanager.memory.network.max: {size}"
    )


def _flink_duration(timeout_s: float) -> str:
    """Flink counts whole milliseconds; 0 flushes after each record there too."""
    whole_ms = round(timeout_s * 1000)
    return f"{max(1, whole_ms) if timeout_s else 0} ms"


def _flink_size(size: int) -> str:
    return format_size(size).replace("KiB", "kb").replace("MiB", "mb").replace("GiB", "gb").replace("B", "b")


def spec_of(row: Row) -> RunSpec:
    """The buffer settings of a measured row."""
    names = ("acts_as", "record_bytes", "channels", "segment_size_bytes")
    buffers = ("exclusive_buffers", "floating_buffers", "spare_buffers", "overdraft_buffers", "spin_s")
    return RunSpec(**{name: setting(row, name) for name in (*names, *buffers)})


def settings_of(spec: RunSpec) -> str:
    """The buffers in words."""
    text = buffers_of(spec)
    if spec.round_trip_s:
        text += f", round trip {format_duration(spec.round_trip_s, space=' ')}"
    return text
