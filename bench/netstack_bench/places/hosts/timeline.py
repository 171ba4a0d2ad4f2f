"""The course of a run: rates per stretch from the running totals in progress messages."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final, final

from ...machine_load import QUEUED, STOLEN
from .matrix import Placement

_MOST: Final = 240  # samples of one task; a longer run repeatedly drops every second one


@final
class Timeline:
    """Running totals of all tasks."""

    def __init__(self) -> None:
        self._messages: dict[Placement, list[Mapping[str, Any]]] = {}
        self._counts: dict[Placement, int] = {}
        self._every: dict[Placement, int] = {}

    def add(self, place: Placement, message: Mapping[str, Any]) -> None:
        """Adds a progress message of a task (`meter.Meter.sample`)."""
        messages = self._messages.setdefault(place, [])
        number = self._counts.get(place, 0)
        self._counts[place] = number + 1
        if number % self._every.setdefault(place, 1) == 0:
            messages.append(message)
        if len(messages) > _MOST:
            del messages[1::2]  # the others hold running totals, so nothing is lost
            self._every[place] *= 2

    def samples(self, host_of: Callable[[int], str]) -> list[dict[str, Any]]:
        """A sample for each stretch of each task, in the order of time.

        Each has `t_s` (its end, seconds from the start), `host`, `task`, `records` (so far), `pool_usage` (at that
        moment, 0 to 1), and over the stretch, null where a task does not write, or not read: `backpressured_ms_per_s`,
        `idle_ms_per_s`, `busy_ms_per_s`; null where not reported: `queued_ms_per_s` of its process, `stolen_ms_per_s`
        of its host.
        """
        rates = [
            {"t_s": round(after["t_s"], 4), "host": host_of(place.host), "task": str(place), **_stretch(before, after)}
            for place, messages in self._messages.items()
            for before, after in itertools.pairwise(messages)
            if after["t_s"] > max(before["t_s"], 0.0)
        ]
        return sorted(rates, key=lambda sample: float(sample["t_s"]))


def _stretch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    seconds = float(after["t_s"]) - max(float(before["t_s"]), 0.0)

    def ms_per_s(*names: str) -> float | None:
        if any(name not in each for name in names for each in (before, after)):
            return None
        waited_s = sum(float(after[name]) - float(before[name]) for name in names)
        return round(min(1000.0, 1000 * waited_s / seconds), 2)

    backpressured, idle = ms_per_s("soft_s", "hard_s"), ms_per_s("idle_s")
    return {
        "records": after["records"],
        "backpressured_ms_per_s": backpressured,
        "busy_ms_per_s": None if idle is None else round(max(0.0, 1000 - idle - (backpressured or 0.0)), 2),
        "idle_ms_per_s": idle,
        "pool_usage": round(after["pool_usage"], 4),
        QUEUED: ms_per_s(QUEUED),
        STOLEN: ms_per_s(STOLEN),
    }
