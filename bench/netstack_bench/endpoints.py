"""The two ends of a run: listening addresses, TaskManager settings, channel descriptors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from netstack import ChannelDescriptor, NetworkConfig
from netstack.base.tls.certificates import make_authority, make_host
from netstack.base.units import format_duration
from netstack.exchange.buffer.requirements import LANDING_SEGMENTS
from netstack.exchange.record.framing import MAX_RECORD_BYTES
from netstack.testing.shaped_line import STREAM_SHARE, Shape

from .spec import RunSpec

PARTITION: Final = "bench/records/0.0"  # the name that a job would use
CERTIFICATES: Final = "certificates"
"""Folder of the certificates of both ends, in the folder of a run."""

SPARE_SEGMENTS: Final = 64  # for a pool that grows before another has shrunk


def address_of(spec: RunSpec, socket_path: Path) -> str:
    """The listening address of a TaskManager; the producer's address sets the delay and rate of the connection."""
    plain = {
        "unix": f"unix://{socket_path}",
        "shm": f"shm://bench-{os.getpid()}-{socket_path.stem}",
    }.get(spec.transport, "tcp://127.0.0.1:0")
    if spec.transport == "tls":
        return f"tls+{plain}?folder={socket_path.parent / CERTIFICATES}"
    if not spec.is_impaired:
        return plain
    words = [f"delay={format_duration(spec.round_trip_s / 2)}"]
    if spec.link_bytes_per_s is not None:
        shape = Shape(spec.round_trip_s, spec.link_bytes_per_s, spec.queue_bytes)
        words.append(f"rate={int(spec.link_bytes_per_s * STREAM_SHARE)}B")
        words.append(f"queue={max(1, int(shape.queue * STREAM_SHARE))}B")
    if spec.link_bytes_per_s is not None or (spec.loss and spec.round_trip_s):
        words.append("congestion=cubic")
    if spec.loss:
        words.append(f"loss={spec.loss!r}")
    if spec.jitter_s:
        words.append(f"jitter={format_duration(spec.jitter_s)}")
    return f"impaired+{plain}?{'&'.join(words)}"


def prepare(spec: RunSpec, scratch: Path) -> None:
    """Writes the certificates of both processes, for TLS, into the folder of a run.

    Raises:
        ConfigError: `cryptography` is missing.
    """
    if spec.transport == "tls":
        make_authority(scratch / "authority", days=1)
        make_host(scratch / CERTIFICATES, scratch / "authority", ["127.0.0.1"], days=1)


def config_of(spec: RunSpec) -> NetworkConfig:
    """The TaskManager settings of a run, with memory for all of its buffers."""
    gates = spec.channels if spec.gates == "each" else 1
    floating = gates * (spec.floating_buffers + spec.spare_buffers)
    segments = (
        spec.channels * (spec.exclusive_buffers + 1) + floating + spec.connections * LANDING_SEGMENTS + SPARE_SEGMENTS
    )
    return NetworkConfig.acting_as(
        spec.acts_as,
        segment_size_bytes=spec.segment_size_bytes,
        memory_bytes=spec.memory_bytes or segments * spec.segment_size_bytes,
        exclusive_buffers_per_channel=spec.exclusive_buffers,
        floating_buffers_per_gate=spec.floating_buffers,
        spare_floating_buffers_per_gate=spec.spare_buffers,
        max_overdraft_buffers_per_partition=spec.overdraft_buffers,
        credit_based=spec.credit,
        # A connection that is not read, because there is no buffer, answers no pings.
        heartbeat_interval_s=NetworkConfig().heartbeat_interval_s if spec.credit else None,
        debloat_target_s=spec.debloat_s,
        spin_s=spec.spin_s,
        checksum=spec.checksum,
        max_record_bytes=MAX_RECORD_BYTES,
    )


def descriptors_of(spec: RunSpec, producers: str) -> list[ChannelDescriptor]:
    """The channels of the gate from the producer's TaskManagers (space-separated addresses), which take turns."""
    addresses = producers.split(" ")
    count = len(addresses)
    return [
        ChannelDescriptor(addresses[channel % count], PARTITION, channel // count) for channel in range(spec.channels)
    ]
