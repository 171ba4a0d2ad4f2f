"""Settings and figures of rows, and their names and values in words, the same in every table, legend and sentence."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from netstack.base.units import counted, format_duration, format_link_rate, format_size

from .host import is_busy
from .spec import RunSpec
from .store import Row, flatten

_NUMBER: Final = re.compile(r"\d[\d.,]*( ?(ns|us|ms|s|k|M|G)\b)?")
_FIELDS: Final = {field.name: field for field in dataclasses.fields(RunSpec)}
_NAMES: Final = {
    "record_bytes": "record size",
    "link_bytes_per_s": "link rate",
    "engine_kind": "engine",
    "acts_as": "as",
}


def setting(row: Mapping[str, Any], name: str) -> Any:
    """A setting of a row; its default if the row is older than the setting.

    Files with rows of several versions hold None for settings that older versions lack.
    """
    field = _FIELDS.get(name)
    value = row.get(f"settings_{name}", None if field is None else field.default)
    return field.default if value is None and field is not None and "None" not in str(field.type) else value


def setting_name(name: str) -> str:
    """`buffer timeout` for `buffer_timeout_s`."""
    if name in _NAMES:
        return _NAMES[name]
    if is_duration(name) or name.endswith("_bytes"):
        name = name.rpartition("_")[0]
    return name.replace("_", " ")


def setting_text(name: str, value: Any) -> str:
    """The value with its unit: `10 ms`, `32 KiB`, `100 MiB/s`, `off`, `none`."""
    if value is None:
        return "none"
    if is_duration(name):
        return format_duration(value, space=" ")
    if name == "link_bytes_per_s":
        return format_link_rate(value)
    if name == "loss":
        return f"{100 * value:g}%"
    if name == "credit":
        return "on" if value else "off"
    return format_size(value, space=" ") if name.endswith("_bytes") else plain(value)


def buffers_of(spec: Any) -> str:
    """`2 + 8 buffers of 32 KiB`: the exclusive and floating buffers of settings."""
    size = format_size(spec.segment_size_bytes, space=" ")
    return f"{spec.exclusive_buffers} + {spec.floating_buffers} buffers of {size}"


def plain(value: Any) -> str:
    """Any value as text: whole numbers without a point, `yes` and `no`."""
    if isinstance(value, float) and value.is_integer():
        return f"{value:.0f}"
    return "yes" if value is True else "no" if value is False else str(value)


def distinct_warnings(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Warnings of runs, each with the number of runs; those that differ only in numbers and units are one."""
    counts: dict[str, list[str]] = {}
    for row in rows:
        alike = {_NUMBER.sub("#", warning): warning for warning in row.get("warnings") or ()}
        for likeness, warning in alike.items():
            counts.setdefault(likeness, []).append(warning)
    return sorted(((texts[0], len(texts)) for texts in counts.values()), key=lambda item: -item[1])


def warnings_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The distinct warnings of runs in words, each with the number of runs."""
    many = counted(len(rows), "run")
    return [f"{text} ({count} of {many})" for text, count in distinct_warnings(rows)]


def is_duration(name: str) -> bool:
    """Whether a setting is a duration."""
    return name.endswith("_s") and not name.endswith("_per_s")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number measured `count` times."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Figure | None:
        """The median and range of the values that are not None; None without any."""
        present = sorted(value for value in values if value is not None and math.isfinite(value))
        if not present:
            return None
        return cls(statistics.median(present), present[0], present[-1], len(present))

    def spread(self, write: Callable[[float], str]) -> str:
        """The range of the repeats for a tooltip: `3.9 to 4.5 ms in 3 runs`; empty for a single run."""
        return f"{write(self.low)} to {write(self.high)} in {self.count} runs" if self.count > 1 else ""


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
