"""The cells of `netstack-bench emulation`: few, and what distinguishes network stacks in each.

Gives: settings of our own runs; a real Flink does the same work.
"""

from __future__ import annotations

from typing import Final

from ...spec import RunSpec

CELLS: Final = (
    # A record waits for the flusher, or not at all.
    RunSpec(rate_per_s=7, seconds=9, buffer_timeout_s=0.1),
    RunSpec(rate_per_s=1000, seconds=3, buffer_timeout_s=0.1),
    RunSpec(rate_per_s=1000, seconds=3, buffer_timeout_s=0.01),
    RunSpec(rate_per_s=1000, seconds=3, buffer_timeout_s=0.001),
    RunSpec(rate_per_s=1000, seconds=3, buffer_timeout_s=0.0),
    RunSpec(rate_per_s=1000, seconds=3, buffer_timeout_s=0.1, channels=100),
    # Full buffers leave before the timeout.
    RunSpec(record_bytes=1024, rate_per_s=10_000, seconds=3, buffer_timeout_s=0.1),
    RunSpec(record_bytes=1024, rate_per_s=10_000, seconds=3, buffer_timeout_s=None),
    # Back-pressure: data in flight, and the time that each side waits.
    RunSpec(record_bytes=1024, consume_rate_per_s=2000, seconds=4, warmup_s=1.3),
    RunSpec(record_bytes=8, consume_rate_per_s=100_000, seconds=4, warmup_s=1.3),
    RunSpec(record_bytes=1024, consume_rate_per_s=200, seconds=12, warmup_s=4, debloat_s=1.0),
    RunSpec(record_bytes=1024, consume_rate_per_s=2000, seconds=8, warmup_s=2, debloat_s=1.0),
    # Barriers that wait behind what is queued, and barriers that overtake it.
    RunSpec(record_bytes=1024, consume_rate_per_s=2000, seconds=6, warmup_s=1.3, checkpoints="aligned"),
    RunSpec(record_bytes=1024, consume_rate_per_s=2000, seconds=6, warmup_s=1.3, checkpoints="unaligned"),
    # As fast as it goes: what shorter timeouts cost.
    RunSpec(seconds=2, buffer_timeout_s=0.1),
    RunSpec(seconds=2, buffer_timeout_s=0.001),
)
"""A pass over them takes about four minutes: each on Flink, as Flink, and as netstack is."""
