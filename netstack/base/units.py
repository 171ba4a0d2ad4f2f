"""Parses and formats durations, sizes and counts.

Takes: text from flags, such as `100ms`, `none`, `32KiB`. Gives: seconds and bytes, and text for tables.

Rules: parsing is exact (decimal, not binary): `100ms` is the float 0.1, because a hash of the settings names a run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Final

from .errors import ConfigError

_TEXT: Final = re.compile(r"\s*(\d+(?:_\d+)*(?:\.\d+)?|\.\d+)\s*([A-Za-zµμ]*)\s*")
_DURATION_UNITS: Final = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "µs": Decimal("1e-6"),
    "μs": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "m": Decimal(60),
    "min": Decimal(60),
    "h": Decimal(3600),
}
_SIZE_UNITS: Final = {
    "": 1,
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
}
_BITS: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kMG])(?:bit|bE|bps)(?:/s)?", re.IGNORECASE)
_BITS_OR_BYTES: Final = frozenset({"kb", "Kb", "Mb", "Gb", "b"})
_AMOUNT_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_MOST_BYTES: Final = 1 << 62
_MOST_SECONDS: Final = 100 * 365.25 * 86400


def parse_duration(text: str, *, what: str = "", unit: str = "") -> float | None:
    """Seconds from `100ms`, `1.5s`, `250us`, `2min`, `0`; None from `none`.

    A number without a unit is refused, because Flink's users mean milliseconds and Python's mean seconds.

    Args:
        text: the user's input; case does not matter.
        what: the flag to name in an error message.
        unit: what a number without a unit counts in, if the name of the setting says it.

    Raises:
        ConfigError: the text is not a number with a known unit.
    """
    what = f"{what} " if what else ""
    plain = text.strip().lower()
    if plain == "none":
        return None
    match = _TEXT.fullmatch(plain)
    if match is None:
        raise ConfigError(f"{what}{text!r}: write a duration such as 100ms, 1s, 0 or none")
    number = Decimal(match[1].replace("_", ""))
    given = match[2] or unit
    if number and not given:
        raise ConfigError(f"{what}{text!r} has no unit: write {match[1]}ms or {match[1]}s")
    factor = _DURATION_UNITS.get(given or "s")
    if factor is None:
        raise ConfigError(f"{what}{text!r}: unknown unit {match[2]!r}; use ns, us, ms, s, min or h")
    seconds = float(number * factor)
    if not seconds < _MOST_SECONDS:
        raise ConfigError(f"{what}{text!r}: longer than a century; give a shorter duration")
    return seconds


def parse_size(text: str, *, what: str = "") -> int:
    """Bytes from `8`, `512B`, `32KiB`, `1MiB`, `64kB` (kB, MB and GB count in thousands).

    Args:
        text: the user's input; case does not matter.
        what: the flag to name in an error message.

    Raises:
        ConfigError: the text is not a number with a known unit, or not a whole number of bytes.
    """
    what = f"{what} " if what else ""
    match = _TEXT.fullmatch(text)
    unit = _SIZE_UNITS.get(match[2].lower()) if match is not None else None
    if match is None or unit is None:
        raise ConfigError(f"{what}{text!r}: write a size such as 8, 512B, 32KiB or 1MiB")
    size = Decimal(match[1].replace("_", "")) * unit
    if size != size.to_integral_value() or size > _MOST_BYTES:
        raise ConfigError(f"{what}{text!r}: give a whole number of bytes")
    return int(size)


def parse_link_rate(text: str) -> int:
    """Bytes per second from `200MB/s`, `100MiB`, `10GbE`, `100Mbit`, `100Mbps`.

    Raises:
        ConfigError: it is none of these, or 0; or it has no unit; or its unit may be of bits or of bytes.
    """
    plain = text.strip()
    bits = _BITS.fullmatch(plain)
    if bits is not None:
        rate = round(Decimal(bits[1]) * _AMOUNT_UNITS[bits[2].lower()] / 8)
    else:
        size = _TEXT.fullmatch(plain.removesuffix("/s"))
        if size is not None and (not size[2] or size[2] in _BITS_OR_BYTES) and size[1].strip("0."):
            what = "has no unit" if not size[2] else "may count bits or bytes"
            prefix = size[2][:1] or "M"
            raise ConfigError(f"{text!r} {what}: write {size[1]}{prefix}bit or {size[1]}{prefix}B, per second")
        try:
            rate = parse_size(plain.removesuffix("/s"))
        except ConfigError:
            raise ConfigError(f"{text!r}: write a rate such as 100MB/s, 100Mbit or 10GbE") from None
    if not 0 < rate <= _MOST_BYTES:
        raise ConfigError(f"{text!r}: give more than 0" if not rate else f"{text!r:.60} is no rate of a network")
    return rate


def parse_amount(text: str, *, what: str = "") -> Decimal:
    """A number from `812`, `10k`, `1.5M`, `2G`; for records per second also `10k/s`.

    Args:
        text: the user's input.
        what: the flag to name in an error message.

    Raises:
        ConfigError: the text is not a number with a known suffix.
    """
    what = f"{what} " if what else ""
    match = _TEXT.fullmatch(text.removesuffix("/s"))
    factor = _AMOUNT_UNITS.get(match[2].lower()) if match is not None else None
    if match is None or factor is None:
        raise ConfigError(f"{what}{text!r}: write a number such as 812, 10k or 1.5M")
    return Decimal(match[1].replace("_", "")) * factor


def format_duration(seconds: float | None, *, space: str = "") -> str:
    """The shortest text that `parse_duration` converts back to the same value; `space` precedes the unit."""
    if seconds is None:
        return "none"
    if seconds == 0:
        return "0"
    exact = Decimal(repr(seconds))
    for unit in ("s", "ms", "us"):
        if exact >= _DURATION_UNITS[unit]:
            break
    else:
        unit = "ns"
    number = f"{exact / _DURATION_UNITS[unit]:f}"
    return f"{_trimmed(number)}{space}{unit}"


def format_size(size_bytes: int, *, space: str = "") -> str:
    """`32KiB` for 32768: the largest binary unit that divides the size, otherwise bytes, as in `1500B`."""
    for unit in ("GiB", "MiB", "KiB"):
        factor = _SIZE_UNITS[unit.lower()]
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{space}{unit}"
    return f"{size_bytes}{space}B"


def format_link_rate(bytes_per_s: int) -> str:
    """`100 MiB/s`, `25 MB/s`: the largest unit that divides the rate."""
    for unit in ("GiB", "MiB", "KiB", "GB", "MB", "kB"):
        factor = _SIZE_UNITS[unit.lower()]
        if bytes_per_s and bytes_per_s % factor == 0:
            return f"{bytes_per_s // factor} {unit}/s"
    return f"{bytes_per_s} B/s"


def first_of(names: Iterable[str], most: int = 16) -> str:
    """Joins the first names with commas and counts the others; `none` without names."""
    each = list(names)
    rest = f" and {len(each) - most:,} more" if len(each) > most else ""
    return f"{', '.join(each[:most])}{rest}" or "none"


def counted(count: int, what: str) -> str:
    """`1 slot`, `1,000 slots`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def format_count(value: float) -> str:
    """Three significant digits with a suffix: `4.65 M`, `812 k`, `1.2 G`; small whole numbers are kept."""
    for factor, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= factor * 0.9995:  # 999.95 k would be rounded to 1,000 k; print 1 M
            return three_digits(value / factor) + suffix
    return three_digits(value)


def format_latency(microseconds: float) -> str:
    """`52.1 us`, `1.25 ms`, `2.5 s`: three significant digits in the unit that fits."""
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= factor * 0.9995:
            return f"{three_digits(microseconds / factor)} {unit}"
    return f"{three_digits(microseconds)} us"


def three_digits(value: float) -> str:
    """Three significant digits and no exponent: `4.65`, `46.5`, `465`, `4,650`, `0.0465`."""
    if value == 0:
        return "0"
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return _trimmed(f"{Decimal(f'{value:.2e}'):f}")


def _trimmed(number: str) -> str:
    return number.rstrip("0").rstrip(".") if "." in number else number
