"""The document of one run: what all engines and places have in common (METHOD.md describes each key).

Takes: what was counted. Gives: rates, costs and the proof as JSON values, with the keys of `run --json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .histogram import Histogram
from .host import host_facts, version
from .spec import RunSpec


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
