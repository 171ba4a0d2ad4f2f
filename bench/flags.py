"""The kinds of values flags take, and the flags that `run` and `sweep` share.

Takes: words of the command line. Gives: durations in seconds, sizes in bytes, counts, and lists of them.

Rules: a value that does not parse is one clear sentence that names the flag, and exit code 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from netstack.errors import ConfigError

from .spec import RunSpec
from .units import format_duration, format_size, parse_duration, parse_size

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # takes no argument before click 8.5

_Command = TypeVar("_Command", bound=Callable[..., Any])


class _Parsed(_ParamType):
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


def _count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a whole number") from None


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{text!r} is not a number")
    return value


def _listed(parse: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    def parse_all(text: str) -> tuple[Any, ...]:
        return tuple(parse(part.strip()) for part in text.split(",") if part.strip())

    return parse_all


DURATION: Final = _Parsed("duration", parse_duration)
SIZE: Final = _Parsed("size", parse_size)
COUNT: Final = _Parsed("count", _count)
NUMBER: Final = _Parsed("number", _number)
DURATIONS: Final = _Parsed("durations", _listed(parse_duration))
SIZES: Final = _Parsed("sizes", _listed(parse_size))
COUNTS: Final = _Parsed("counts", _listed(_count))


def settings_flags(command: _Command) -> _Command:
    """The flags for settings that every run of a sweep can share; named as the fields of `RunSpec`."""
    default = RunSpec()
    flags = (
        click.option(
            "--emit",
            type=click.Choice(["record", "batch", "arrow"]),
            default=default.emit,
            show_default=True,
            help="One call a record, numpy arrays, or columnar batches of int64.",
        ),
        click.option(
            "--batch-records", type=COUNT, help="Records in one array or columnar batch; about 1 MiB if not given."
        ),
        click.option(
            "--segment-size",
            "segment_size_bytes",
            type=SIZE,
            default=format_size(default.segment_size_bytes),
            show_default=True,
            help="Size of a network buffer.",
        ),
        click.option(
            "--exclusive-buffers",
            type=COUNT,
            default=default.exclusive_buffers,
            show_default=True,
            help="Receive buffers of each channel.",
        ),
        click.option(
            "--floating-buffers",
            type=COUNT,
            default=default.floating_buffers,
            show_default=True,
            help="Receive buffers that the channels share.",
        ),
        click.option(
            "--transport",
            type=click.Choice(["tcp", "unix"]),
            default=default.transport,
            show_default=True,
            help="TCP on loopback, or a Unix socket.",
        ),
        click.option(
            "--warmup",
            "warmup_s",
            type=DURATION,
            default=format_duration(default.warmup_s),
            show_default=True,
            help="Not counted, at the start of a run without a rate.",
        ),
        click.option(
            "--checksum/--no-checksum", default=default.checksum, help="CRC-32 over every buffer on the wire."
        ),
    )
    for flag in reversed(flags):
        command = flag(command)
    return command


def json_flag(command: _Command) -> _Command:
    """`--json`, the same everywhere."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")(command)
