"""Parses the URL of an impaired transport.

Takes: `impaired+X://...?delay=5ms&rate=100MiB`. Gives: the URL of `X`, and `Parameters`.

Rules: durations and sizes have the format of the benchmark's flags and are parsed exactly (decimal, not binary).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from netstack.base.errors import ConfigError
from netstack.base.units import parse_duration, parse_link_rate, parse_size

PREFIX: Final = "impaired+"

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Parameters:
    """The effect of a line on its bytes; `netstack_transports.impaired` documents the parameters.

    Attributes:
        delay_s: one way.
        rate_bytes_per_s: None means no limit.
        queue_bytes: None means the default.
        cut_bytes: None means never.
        name: None means a separate impairment for each listener and each dialled stream.
        loss: part of all frames that is lost.
        jitter_s: added to the delay, at most.
        congestion: "cubic" gives each direction a sender with TCP's window; None sends as much as the line takes.
    """

    delay_s: float = 0.0
    rate_bytes_per_s: float | None = None
    queue_bytes: int | None = None
    cut_bytes: int | None = None
    name: str | None = None
    loss: float = 0.0
    jitter_s: float = 0.0
    congestion: str | None = None


def split_url(url: str) -> tuple[str, str, Parameters]:
    """Returns (URL of the underlying transport, the unchanged query, its parameters).

    Raises:
        ConfigError: there is no underlying transport, or a parameter is unknown, repeated, or not valid.
    """
    base, _, query = url.partition("?")
    inner_url = base.removeprefix(PREFIX)
    if inner_url == base:
        raise ConfigError(f"address {url!r} names no transport to impair; write it like impaired+tcp://127.0.0.1:6121")
    values: dict[str, float | int | str | None] = {}
    for key, text in parse_qsl(query, keep_blank_values=True):
        known = _KNOWN.get(key)
        if known is None:
            raise ConfigError(f"address {url!r}: parameter {key!r} is unknown; known are {', '.join(_KNOWN)}")
        field, parse, accepted = known
        if field in values:
            raise ConfigError(f"address {url!r}: {key} is given twice")
        try:
            values[field] = parse(text)
        except ValueError as error:
            raise ConfigError(f"address {url!r}: {key}={text}; give {accepted}") from error
    return inner_url, query, Parameters(**values)  # type: ignore[arg-type]  # `_KNOWN` gives each field its type


def _duration(text: str) -> float:
    seconds = parse_duration(text)
    if seconds is None:
        raise ValueError
    return seconds


def _size(text: str) -> int:
    size = parse_size(text)
    if size < 1:
        raise ValueError
    return size


def _size_or_none(text: str) -> int | None:
    return None if text == "none" else _size(text)


def _rate_or_none(text: str) -> int | None:
    return None if text == "none" else _size(text) if text.isdigit() else parse_link_rate(text)


def _part(text: str) -> float:
    part = float(text)
    if not 0 <= part < 1:
        raise ValueError
    return part


def _congestion(text: str) -> str | None:
    if text not in ("cubic", "none"):
        raise ValueError
    return None if text == "none" else text


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError
    return text


_A_SIZE: Final = "a size such as 512B, 64KiB, 1MiB or 10MB, at least 1B"
_KNOWN: Final[dict[str, tuple[str, Callable[[str], float | int | str | None], str]]] = {
    "delay": ("delay_s", _duration, "a duration such as 0, 250us, 5ms or 1.5s"),
    "rate": ("rate_bytes_per_s", _rate_or_none, "a rate such as 200Mbit, 25MB or 64KiB, per second; or none"),
    "queue": ("queue_bytes", _size, _A_SIZE),
    "cut": ("cut_bytes", _size_or_none, f"{_A_SIZE}; or none"),
    "loss": ("loss", _part, "a part of 1 such as 0.001"),
    "jitter": ("jitter_s", _duration, "a duration such as 0, 250us or 5ms"),
    "congestion": ("congestion", _congestion, "cubic or none"),
    "name": ("name", _name, "letters, digits, dots, dashes and underscores"),
}
