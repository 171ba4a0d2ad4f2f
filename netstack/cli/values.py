"""Types of command-line values: durations, sizes, counts, rates, and lists of them.

Takes: command-line arguments. Gives: durations in seconds, sizes in bytes, counts, and lists of them.

Rules: a value that cannot be parsed ends the command with exit code 2 and one sentence that names the flag.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

import click

from ..base.errors import ConfigError
from ..base.text.safe_text import safe_repr
from ..base.units import parse_amount, parse_duration, parse_link_rate, parse_size

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # takes no argument before click 8.5


class Parsed(_ParamType):
    """A click type whose values are parsed by a function that raises ConfigError or ValueError."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parses text. A value that is not text is a default and is returned unchanged."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except (ConfigError, ValueError) as error:
            self.fail(str(error), param, ctx)


class ParsedList(Parsed):
    """A click type whose values are lists separated by commas."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        super().__init__(name, listed(parse))


@final
class Several(_ParamType):
    """Values of a click type, separated by commas."""

    def __init__(self, kind: Any) -> None:
        self.name = kind.name
        self._kind = kind

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """That of one value, and that there may be several."""
        one = f"[{'|'.join(self._kind.choices)}]" if isinstance(self._kind, click.Choice) else self.name.upper()
        return f"{one},..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parses text. A value that is not text is a default and is returned unchanged."""
        if not isinstance(value, str):
            return value
        return tuple(self._kind.convert(part.strip(), param, ctx) for part in value.split(",") if part.strip())


def several(kind: Any = click.STRING) -> dict[str, Any]:
    """The settings of a click option whose value is a tuple: separated by commas, and repeated."""
    return {"type": Several(kind), "multiple": True, "callback": _flat}


def _flat(_context: click.Context, _parameter: click.Parameter, values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(each for value in values for each in (value if isinstance(value, tuple) else (value,)))


_EXACT: Final = decimal.Context(traps=[decimal.Inexact])
MAX_COUNT: Final = 10**12
"""A larger count is taken for a typing mistake."""


def parse_count(text: str) -> int:
    """Parses a whole number such as `812` or `10k`. Raises ConfigError if the text is no whole number."""
    try:
        value = int(text)
    except ValueError:
        try:
            amount = parse_amount(text)
            value = int(amount.to_integral_exact(context=_EXACT))
        except (ConfigError, ArithmeticError):
            raise ConfigError(f"{safe_repr(text)} is not a whole number") from None
    if abs(value) > MAX_COUNT:
        raise ConfigError(f"{safe_repr(text)} is too large; the maximum is {MAX_COUNT}")
    return value


def parse_number(text: str) -> float:
    """Parses a number. Raises ConfigError if the text is no number, or the number is not finite."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{text!r} is not a number")
    return value


def parse_rate(text: str) -> float:
    """Parses a rate per second such as `812`, `10k` or `1.5M/s`. Raises ConfigError if the text is no rate."""
    return float(parse_amount(text))


def parse_length(text: str, *, unit: str = "") -> float:
    """Parses a duration that must not be `none`; `unit` is that of a bare number. Raises ConfigError if it is none."""
    value = parse_duration(text, unit=unit)
    if value is None:
        raise ConfigError(f"{text!r} is not allowed here; give a duration such as 10s, or 0")
    return value


def parse_network(text: str) -> tuple[int | None, float]:
    """Bytes per second (None is no limit) and the round trip in seconds of `10GbE:0.5ms`, `100Mbit`, `0.5ms`.

    Raises:
        ConfigError: it is none of these.
    """
    rate, colon, round_trip = text.rpartition(":")
    if not colon and _is_rate(text):
        return parse_link_rate(text), 0.0
    return (parse_link_rate(rate) if colon else None), parse_length(round_trip)


def _is_rate(text: str) -> bool:
    try:
        return parse_link_rate(text) > 0
    except ConfigError:
        return False


def parse_share(text: str) -> float:
    """Parses a share such as `0.1%`. Raises ConfigError unless it is 0 or a percentage below 100."""
    number, percent, rest = text.strip().partition("%")
    share = parse_number(number) / 100
    if share and not percent:
        raise ConfigError(f"{text!r} has no unit: write {number}%, or {share * 1e4:g}% for {number} of 1")
    if rest or not 0 <= share < 1:
        raise ConfigError(f"{text!r}: give a percentage from 0% to below 100%")
    return share


def parse_switch(text: str) -> bool:
    """Parses `on` or `off`. Raises ConfigError if the text is neither."""
    try:
        return {"on": True, "off": False}[text.strip().lower()]
    except KeyError:
        raise ConfigError(f"{text!r} is neither on nor off") from None


def listed(parse: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Returns a parser of values that are separated by commas."""

    def parse_all(text: str) -> tuple[Any, ...]:
        return tuple(parse(part.strip()) for part in text.split(",") if part.strip())

    return parse_all


DURATION: Final = Parsed("duration", parse_duration)
LENGTH: Final = Parsed("duration", parse_length)
SECONDS: Final = Parsed("seconds", partial(parse_length, unit="s"))  # for flags whose names end in it
SIZE: Final = Parsed("size", parse_size)
COUNT: Final = Parsed("count", parse_count)
NUMBER: Final = Parsed("number", parse_number)
RATE: Final = Parsed("rate", parse_rate)
RATES: Final = ParsedList("rate,...", parse_rate)
LINK_RATE: Final = Parsed("rate", parse_link_rate)
LINK_RATES: Final = ParsedList("rate,...", parse_link_rate)
NETWORK: Final = Parsed("network", parse_network)
NETWORKS: Final = ParsedList("network,...", parse_network)
SHARE: Final = Parsed("percentage", parse_share)
SWITCH: Final = Parsed("on|off", parse_switch)
DURATIONS: Final = ParsedList("duration,...", parse_duration)
LENGTHS: Final = ParsedList("duration,...", parse_length)
SIZES: Final = ParsedList("size,...", parse_size)
COUNTS: Final = ParsedList("count,...", parse_count)
