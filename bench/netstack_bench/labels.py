"""Settings of rows, and their names and values in words, the same in every table, legend and sentence."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from netstack.base.units import counted, format_duration, format_link_rate, format_size

from .spec import RunSpec

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
