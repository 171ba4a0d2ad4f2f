"""Command-line flags that several commands have: network buffers, network profile, placement, metrics.

Takes: defaults. Gives: decorators that add flags to a command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from ..base.config import PROFILES, NetworkConfig
from ..base.units import format_size
from ..schedule.plan.plan import SlotsIn
from ..schedule.slots.slots import LoadBalanceMode
from .values import COUNT, SIZE

_Command = TypeVar("_Command", bound=Callable[..., Any])

_DEFAULTS = NetworkConfig()


def buffer_flags(
    *,
    exclusive_buffers: int = _DEFAULTS.exclusive_buffers_per_channel,
    floating_buffers: int = _DEFAULTS.floating_buffers_per_gate,
    segment_size_bytes: int = _DEFAULTS.segment_size_bytes,
) -> Callable[[_Command], _Command]:
    """Adds the flags for number and size of network buffers. The command's parameters are named as these arguments."""

    def add(command: _Command) -> _Command:
        for flag in (
            click.option(
                "--segment-size",
                "segment_size_bytes",
                type=SIZE,
                default=format_size(segment_size_bytes),
                show_default=True,
                help="Size of one network buffer.",
            ),
            click.option(
                "--floating-buffers",
                type=COUNT,
                default=floating_buffers,
                show_default=True,
                help="Receive buffers that all channels of a gate share.",
            ),
            click.option(
                "--exclusive-buffers",
                type=COUNT,
                default=exclusive_buffers,
                show_default=True,
                help="Receive buffers that each channel has for itself.",
            ),
        ):
            command = flag(command)
        return command

    return add


def memory_flags(command: _Command) -> _Command:
    """Adds `memory_bytes` and `max_required`, which bound the number of network buffers."""
    command = click.option(
        "--max-required", type=COUNT, show_default="no limit", help="Most buffers that one gate may require."
    )(command)
    return click.option(
        "--memory",
        "memory_bytes",
        type=SIZE,
        default=format_size(_DEFAULTS.memory_bytes),
        show_default=True,
        help="Memory for all network buffers of a TaskManager.",
    )(command)


load_balance_flag: Final = click.option(
    "--load-balance",
    type=click.Choice([mode.value for mode in LoadBalanceMode]),
    show_default=LoadBalanceMode.NONE.value,
    help="How to place subtasks. none: keep exchanges local; slots or tasks: spread these over all TaskManagers.",
)

slots_in_flag: Final = click.option(
    "--slots-in",
    type=click.Choice([each.value for each in SlotsIn]),
    default=SlotsIn.PROCESSES.value,
    show_default=True,
    help="processes: each slot is a process; loop: the slots of a TaskManager share one process and one event loop.",
)

acts_as_flag: Final = click.option(
    "--as",
    "acts_as",
    type=click.Choice(tuple(PROFILES)),
    show_default="netstack",
    help="Network profile: netstack's own, that of Flink 2.3, or that of Flink 1.x. Use the same one in the whole"
    " cluster.",
)

max_record_flag: Final = click.option(
    "--max-record",
    "max_record_bytes",
    type=SIZE,
    show_default="256MiB",
    help="Maximum size of a record; a larger record fails its task.",
)

metrics_flag: Final = click.option(
    "--metrics",
    metavar="ADDR:PORT",
    help="Serve Prometheus metrics at this address; for TLS write tls+tcp://ADDR:PORT.",
)
