"""Warnings of a run: what makes its figures less than they seem.

Takes: the settings of a run, and what was sent. Gives: sentences.
"""

from __future__ import annotations

import math
from typing import Final

from netstack.base.units import format_duration

from .spec import RunSpec

_WINDOW_S: Final = (
    0.06  # what is left after the warm-up of a run that is too short for a steady window (`Arrivals.window`)
)
RATE_KEPT: Final = 0.98
"""Below this part of the requested rate there is a warning."""


def pace_warnings(spec: RunSpec, steady: bool, sent_records: int, sent_s: float) -> list[str]:
    """Warnings for a run that was too short, or a producer that did not keep the requested rate."""
    warnings = []
    if not steady and spec.rate_per_s is None:
        if sent_s - min(spec.warmup_s, sent_s / 3) < _WINDOW_S:
            cause = f"the run lasted {sent_s:.2f} s, too short for a warm-up"
        else:
            cause = "too few records arrived between the warm-up and the end of the producer"
        warnings.append(f"{cause}: the figures include the start")
    if spec.rate_per_s is not None and sent_records > 1:
        # The last record is due one interval before the end of its second, hence the one less.
        reached = (sent_records - 1) / sent_s if sent_s > 0 else math.inf
        if reached < RATE_KEPT * spec.rate_per_s * (sent_records - 1) / sent_records:
            warnings.append(
                f"asked {spec.rate_per_s:g} records/s, sent {reached:.0f}: latencies grow with the run's length"
            )
    return warnings


def timeout_warnings(spec: RunSpec, sent_s: float) -> list[str]:
    """A warning for a buffer timeout that cannot expire during the run."""
    timeout_s = spec.buffer_timeout_s
    if timeout_s is None or timeout_s <= sent_s:
        return []
    return [
        f"the buffer timeout of {format_duration(timeout_s, space=' ')} is longer than the run of {sent_s:.2f} s: it"
        " never expired, so the figures are those of --buffer-timeout none"
    ]


def connection_warnings(spec: RunSpec, control: str | None) -> list[str]:
    """Warnings about the congestion control of a connection."""
    if spec.rate_per_s is None and control == "bbr":
        return [
            "the connection's TCP congestion control is bbr (the system's default), which paces: on loopback it"
            " has about half of cubic's throughput, and varies more (sysctl net.ipv4.tcp_congestion_control)"
        ]
    return []
