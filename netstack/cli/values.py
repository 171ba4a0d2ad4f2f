"""The kinds of values that flags of every command take.

Takes: words of the command line. Gives: durations in seconds, sizes in bytes, counts, and lists of them.

Rules: a value that does not parse is one clear sentence that names the flag, and exit code 2.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from ..errors import ConfigError
from ..shown import shown
from ..units import parse_amount, parse_duration, parse_size

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # takes no argument before click 8.5


class Parsed(_ParamType):
    """A value read by a function that raises ConfigError or ValueError."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The parsed value; what is not text is a default and stays as it is."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except (ConfigError, ValueError) as error:
            self.fail(str(error), param, ctx)


_EXACT: Final = decimal.Context(traps=[decimal.Inexact])
MAX_COUNT: Final = 10**12
"""More of anything is a slip."""


def parse_count(text: str) -> int:
    """A whole number, such as `812` or `10k`.

    Raises:
        ConfigError: it is none.
    """
    try:
        value = int(text)
    except ValueError:
        try:
            amount = parse_amount(text)
            value = int(amount.to_integral_exact(context=_EXACT))
        except (ConfigError, ArithmeticError):
            raise ConfigError(f"{shown(text)} is not a whole number") from None
    if abs(value) > MAX_COUNT:
        raise ConfigError(f"{shown(text)} is too large; at most {MAX_COUNT} can be counted")
    return value


def parse_number(text: str) -> float:
    """A number.

    Raises:
        ConfigError: it is none, or not finite.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{text!r} is not a number")
    return value


def parse_rate(text: str) -> float:
    """How many in a second, such as `812`, `10k` or `1.5M/s`.

    Raises:
        ConfigError: it is no number.
    """
    return float(parse_amount(text))


def parse_length(text: str) -> float:
    """A duration where `none` would mean nothing.

    Raises:
        ConfigError: it is none.
    """
    value = parse_duration(text)
    if value is None:
        raise ConfigError(f"{text!r}: give a duration, or 0")
    return value


def parse_switch(text: str) -> bool:
    """`on` or `off`.

    Raises:
        ConfigError: neither.
    """
    try:
        return {"on": True, "off": False}[text.strip().lower()]
    except KeyError:
        raise ConfigError(f"{text!r}: write on or off") from None


def listed(parse: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Reads several values with commas in between."""

    def parse_all(text: str) -> tuple[Any, ...]:
        return tuple(parse(part.strip()) for part in text.split(",") if part.strip())

    return parse_all


DURATION: Final = Parsed("duration", parse_duration)
LENGTH: Final = Parsed("duration", parse_length)
SIZE: Final = Parsed("size", parse_size)
COUNT: Final = Parsed("count", parse_count)
NUMBER: Final = Parsed("number", parse_number)
RATE: Final = Parsed("rate", parse_rate)
SWITCH: Final = Parsed("on|off", parse_switch)
DURATIONS: Final = Parsed("durations", listed(parse_duration))
LENGTHS: Final = Parsed("durations", listed(parse_length))
SIZES: Final = Parsed("sizes", listed(parse_size))
COUNTS: Final = Parsed("counts", listed(parse_count))
