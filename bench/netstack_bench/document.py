"""The document of one run: what all engines and places have in common (METHOD.md describes each key).

Takes: what was counted. Gives: rates, costs and the proof as JSON values, with the keys of `run --json`; and warnings,
which say what makes the figures of a run less than they seem.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from netstack.base.units import format_duration

from .histogram import Histogram
from .host import host_facts, version
from .spec import RunSpec

_WINDOW_S: Final = 0.06  # of a run too short for a steady window (`Arrivals.window`): what its warm-up leaves
RATE_KEPT: Final = 0.98
"""Below this part of the requested rate there is a warning."""


def document(
    spec: RunSpec,
    *,
    engine: str,
    records: int,
    seconds: float,
    records_per_s: float,
    payload_bytes: int,
    wire_bytes: int | None,
    latency: Histogram,
    cpu_s: Mapping[str, float | None],
    problems: Iterable[str],
    warnings: Iterable[str],
    sent_bytes: float | None = None,
    netstack_build: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The document of a run.

    Args:
        spec: its settings.
        engine: what was measured.
        records: all that were delivered.
        seconds: the length of the measured window.
        records_per_s: the rate in this window.
        payload_bytes: of all records.
        wire_bytes: of all bytes sent; None is unknown.
        latency: in nanoseconds; empty if nothing was recorded.
        cpu_s: CPU seconds by side.
        problems: of the delivery; none if it is proven.
        warnings: what a reader should know besides.
        sent_bytes: the payload of which `wire_bytes` are the bytes sent; by default all.
        netstack_build: of the processes that were measured; by default of this one.
        more: further keys, which may replace these.
    """
    wrong, gigabytes = list(problems), payload_bytes / 1e9
    payload_mb_per_s = records_per_s * payload_bytes / records / 1e6 if records else 0.0
    sent_bytes = payload_bytes if sent_bytes is None else sent_bytes
    kind = "sampled under load" if spec.rate_per_s is None else "open-loop"
    return {
        "engine": engine,
        "delivered": not wrong,
        "records": records,
        "seconds": seconds,
        "records_per_s": records_per_s,
        "payload_mb_per_s": payload_mb_per_s,
        "wire_mb_per_s": payload_mb_per_s * wire_bytes / sent_bytes if wire_bytes and sent_bytes else None,
        "latency_us": latency.summary_us(),
        "latency_kind": kind if latency.count else None,
        "latency_samples": latency.count,
        "latency_histogram": latency.to_dict() if latency.count else None,
        "cpu_s_per_gb": {
            side: used_s / gigabytes if gigabytes and used_s is not None else None for side, used_s in cpu_s.items()
        },
        "payload_bytes": payload_bytes,
        "wire_bytes": wire_bytes,
        **more,
        "warnings": [*(f"delivery: {problem}" for problem in wrong), *warnings],
        "settings": spec.as_dict(),
        "host": {**host_facts(), **({} if netstack_build is None else {"netstack_build": netstack_build})},
        "version": version(),
    }


def with_calls_per_gb(costs: Iterable[Mapping[str, Any]], payload_bytes: int) -> list[dict[str, Any]]:
    """The rows of both sides' profiles, with their calls for 1e9 bytes of payload; None where none are counted."""
    return [
        {**row, "calls_per_gb": row["calls"] * 1e9 / payload_bytes if payload_bytes and row["calls"] else None}
        for row in costs
    ]


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
