"""The flags for network buffers, the same in every command that has them.

Takes: defaults. Gives: decorators that add `--exclusive-buffers`, `--floating-buffers`, `--segment-size`, what a
TaskManager's memory bounds, and `--as`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..config import PROFILES, NetworkConfig
from ..units import format_size
from .values import COUNT, SIZE

_Command = TypeVar("_Command", bound=Callable[..., Any])

_DEFAULTS = NetworkConfig()


def buffer_flags(
    *,
    exclusive_buffers: int = _DEFAULTS.exclusive_buffers_per_channel,
    floating_buffers: int = _DEFAULTS.floating_buffers_per_gate,
    segment_size_bytes: int = _DEFAULTS.segment_size_bytes,
) -> Callable[[_Command], _Command]:
    """How many network buffers there are, and how large; parameters of the command have the names of the arguments."""

    def add(command: _Command) -> _Command:
        for flag in (
            click.option(
                "--segment-size",
                "segment_size_bytes",
                type=SIZE,
                default=format_size(segment_size_bytes),
                show_default=True,
                help="Size of a network buffer.",
            ),
            click.option(
                "--floating-buffers",
                type=COUNT,
                default=floating_buffers,
                show_default=True,
                help="Receive buffers that the channels of a gate share.",
            ),
            click.option(
                "--exclusive-buffers",
                type=COUNT,
                default=exclusive_buffers,
                show_default=True,
                help="Receive buffers of each channel.",
            ),
        ):
            command = flag(command)
        return command

    return add


def memory_flags(command: _Command) -> _Command:
    """What bounds them: `memory_bytes` and `max_required`."""
    command = click.option("--max-required", type=COUNT, help="Bound on what one gate is promised; none if not given.")(
        command
    )
    return click.option(
        "--memory",
        "memory_bytes",
        type=SIZE,
        default=format_size(_DEFAULTS.memory_bytes),
        show_default=True,
        help="All network buffers of a TaskManager together.",
    )(command)


def acts_as_flag(command: _Command) -> _Command:
    """`acts_as`: a profile of `NetworkConfig.acting_as`, or None."""
    return click.option(
        "--as",
        "acts_as",
        type=click.Choice(tuple(PROFILES)),
        help="Behave as Flink's network stack: 2.3's, or that of older clusters. All of a cluster alike; netstack.",
    )(command)
