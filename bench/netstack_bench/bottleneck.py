"""Which side limits a run: the producer, the consumer, or the link between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .host import is_busy
from .spec import RunSpec
from .store import Row, flatten

WAITING_MS_PER_S: Final = 250.0
"""A side that waits less than this is busy."""


def bottleneck(result: Mapping[str, Any], spec: RunSpec) -> str:
    """A sentence on what limits the run, from the wait times of both sides; empty where they were not measured."""
    name, why = _limit({**flatten(result), "settings_rate_per_s": spec.rate_per_s})
    return f"bottleneck: {name}{why}" if name else ""


def bottleneck_name(row: Row) -> str:
    """The name of what limits a stored run; empty where nothing does or it is unknown."""
    return _limit(row)[0].removeprefix("none").removeprefix("not known")


def _limit(row: Row) -> tuple[str, str]:
    waits: list[Any] = [row.get(f"backpressured_ms_per_s_{kind}") for kind in ("soft", "hard")]
    idle = row.get("idle_ms_per_s")
    if idle is None or None in waits:
        return "", ""
    if sum(waits) < WAITING_MS_PER_S:
        if row.get("settings_rate_per_s") is not None:
            return "none", ", the requested rate is kept"
        if idle < WAITING_MS_PER_S:
            return "none", ", both sides are busy most of the time"
        return "the producer", "; the consumer waits for it"
    if idle < WAITING_MS_PER_S:
        return "the consumer", "; the producer waits for it"
    if is_busy(row.get("timeline")):
        return "not known", "; both sides wait, on a machine that was busy with something else"
    return "the link, or too few buffers for its round trip", "; both sides wait"
