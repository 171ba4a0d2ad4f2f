"""The command `netstack buffers`: computes the network buffers that gates and partitions of one TaskManager require.

Takes: gates, partitions and settings as flags. Gives: a table row for each, the sum, and the missing memory.
"""

from __future__ import annotations

import re
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from ..base.config import NetworkConfig
from ..base.errors import ConfigError
from ..base.ids import ResultPartitionType
from ..base.units import format_size
from ..exchange.buffer.requirements import BufferRequirements, GatePlan, PartitionPlan, required_buffers
from .json_document import print_document
from .network_flags import buffer_flags, memory_flags
from .values import COUNT, Parsed, several

_GATE: Final = re.compile(r"(?:([^=]+)=)?(\d+)(?::(\d+))?")
_PARTITION: Final = re.compile(r"(?:([^=]+)=)?(\d+)(:unbounded)?")


def _gate(text: str) -> tuple[str | None, GatePlan]:
    match = _GATE.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{text!r} is no gate; write CHANNELS, NAME=CHANNELS or NAME=CHANNELS:LOCAL, such as words=100:25"
        )
    return match[1], GatePlan(int(match[2]), local=int(match[3] or 0))


def _partition(text: str) -> tuple[str | None, PartitionPlan]:
    match = _PARTITION.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{text!r} is no partition; write SUBPARTITIONS, NAME=SUBPARTITIONS or NAME=SUBPARTITIONS:unbounded"
        )
    kind = ResultPartitionType.PIPELINED if match[3] else ResultPartitionType.PIPELINED_BOUNDED
    return match[1], PartitionPlan(int(match[2]), kind)


@click.command(short_help="Compute how many network buffers a TaskManager needs.")
@click.option(
    "--gate",
    "gates",
    **several(Parsed("gate", _gate)),
    metavar="[NAME=]CHANNELS[:LOCAL],...",
    help="Input gates with this many channels, of which LOCAL read from the same TaskManager.",
)
@click.option(
    "--partition",
    "partitions",
    **several(Parsed("partition", _partition)),
    metavar="[NAME=]SUBPARTITIONS[:unbounded],...",
    help="Result partitions.",
)
@click.option(
    "--connections",
    type=COUNT,
    default=1,
    show_default=True,
    help="Connections to other TaskManagers; count one twice if it also carries prompt edges.",
)
@buffer_flags()
@memory_flags
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")
def buffers(
    gates: tuple[tuple[str | None, GatePlan], ...],
    partitions: tuple[tuple[str | None, PartitionPlan], ...],
    connections: int,
    exclusive_buffers: int,
    floating_buffers: int,
    max_required: int | None,
    segment_size_bytes: int,
    memory_bytes: int,
    as_json: bool,
) -> int:
    """Compute how many network buffers a TaskManager with these gates and partitions requires.

    Nothing is allocated. The exit code is 1 if the memory is too small.
    """
    config = NetworkConfig(
        exclusive_buffers_per_channel=exclusive_buffers,
        floating_buffers_per_gate=floating_buffers,
        max_required_buffers_per_gate=max_required,
        segment_size_bytes=segment_size_bytes,
        memory_bytes=memory_bytes,
    )
    if not gates and not partitions:
        raise ConfigError("there are no gates and no partitions; give at least one --gate or --partition")
    needed = required_buffers(
        gates=_named("gate", gates),
        partitions=_named("partition", partitions),
        connections=connections if any(plan.channels > plan.local for _, plan in gates) else 0,
        config=config,
    )
    if as_json:
        print_document(_document(needed, config), indent=2)
    else:
        _print(needed, config)
    return 1 if needed.missing else 0


def _named(what: str, plans: tuple[tuple[str | None, Any], ...]) -> dict[str, Any]:
    """Plans by name; a plan without a name gets a number."""
    named: dict[str, Any] = {}
    for name, plan in plans:
        name = name or f"{what} {len(named) + 1}"
        if name in named:
            raise ConfigError(f"--{what} {name!r} was given twice; choose another name")
        named[name] = plan
    return named


def _document(needed: BufferRequirements, config: NetworkConfig) -> dict[str, Any]:
    return {
        "rows": [
            {
                "name": row.name,
                "what": row.what,
                "exclusive": row.exclusive,
                "required": row.required,
                "maximum": row.maximum,
            }
            for row in needed.rows
        ],
        "required": needed.required,
        "maximum": needed.maximum,
        "total": needed.total_segments,
        "missing": needed.missing,
        "missing_bytes": needed.missing_bytes,
        "segment_size_bytes": config.segment_size_bytes,
        "memory_bytes": config.memory_bytes,
    }


def _print(needed: BufferRequirements, config: NetworkConfig) -> None:
    console = Console(highlight=False)
    size = format_size(config.segment_size_bytes)
    table = Table("", "", "exclusive", "required", "at most", title=f"network buffers of {size}", title_justify="left")
    for column in table.columns[2:]:
        column.justify = "right"
    for row in needed.rows:
        table.add_row(row.name, row.what, _number(row.exclusive), _number(row.required), _most(row.maximum))
    table.add_section()
    table.add_row("together", "", "", _number(needed.required), _most(needed.maximum))
    console.print(table)
    memory = f"{format_size(config.memory_bytes)} of memory hold {_number(needed.total_segments)} buffers"
    if needed.missing:
        console.print(
            f"[red]does not fit:[/] {memory}, {_number(needed.missing)} too few. Raise --memory to"
            f" {format_size(needed.required * config.segment_size_bytes)} or more, or lower --exclusive-buffers, or"
            " limit the gates with --max-required"
        )
    else:
        console.print(f"fits: {memory}")


def _number(count: int) -> str:
    return f"{count:,}"


def _most(count: int | None) -> str:
    return "no limit" if count is None else _number(count)
