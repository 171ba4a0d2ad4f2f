"""The command `netstack-bench scheduler`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click
from rich.console import Console

from netstack.base.units import three_digits
from netstack.cli.values import COUNT

from .. import console
from ..flags import flag, flags, json_flag

_PUBLISHED_PARALLELISM: Final = 10_000
_HEADLINES: Final = (
    ("init_ms", "job initialization, ms", 200, 627),
    ("regions_ms", "building regions, ms", 20, 120),
    ("failover_ms", "tasks to restart on failover, ms", 10, 170),
    ("deploy_ms", "descriptors of all tasks, ms", 2000, 17_183),
    ("topology_bytes", "execution graph, peak", 4 << 20, 12 << 20),
    ("longest_step_ms", "longest single step, ms", 50, None),
)
"""Key, name, goal at 10,000, Flink's published figure for 10,000."""


@click.command(short_help="Cost of scheduling a wide job: time, memory and bytes of each step.")
@flags(
    flag(
        "--parallelism",
        COUNT,
        "Parallelism of the source and of the sink; even, 32768 at most.",
        default=_PUBLISHED_PARALLELISM,
    ),
    json_flag,
)
def scheduler(parallelism: int, as_json: bool) -> int:
    """Schedules a source and a sink with an all-to-all edge, step by step, at a parallelism and at half of it.

    No process is started and nothing is sent: slots and TaskManagers are events. Exit code 1 if a step had a wrong
    result.
    """
    from .measure import SchedulerSpec, measure

    spec = SchedulerSpec(parallelism=parallelism)
    with console.err().status("scheduling") as status:
        result = measure(spec, on_step=lambda name: status.update(name.replace("_", " ")))
    return console.finish(result, as_json, print_scheduler)


def print_scheduler(result: Mapping[str, Any], out: Console) -> None:
    """Prints the result as tables."""
    parallelism = result["parallelism"]
    out.print(f"source -> sink, all-to-all, {parallelism:,} subtasks each", soft_wrap=True)
    _print_headlines(result, out)
    table = console.table(("step",), ("ms", f"growth from {parallelism // 2:,}", "longest piece, ms"))
    for name, total_ms in result["steps_ms"].items():
        longest_ms = result["longest_ms"].get(name)
        table.add_row(
            name.replace("_", " "),
            three_digits(total_ms),
            three_digits(result["growth"][name]),
            "" if longest_ms is None else three_digits(longest_ms),
        )
    out.print()
    out.print(table)
    out.print()
    plain, compressed = result["descriptor_bytes"], result["descriptor_compressed_bytes"]
    out.print(
        f"shuffle descriptors that all sinks share: {_size(plain)}, compressed {_size(compressed)},"
        f" {1 - compressed / plain:.0%} less",
        soft_wrap=True,
    )
    parts = ", ".join(f"{name.replace('_', ' ')} {_size(peak)}" for name, peak in result["memory_bytes"].items())
    out.print(f"peak memory: {parts}", soft_wrap=True)


def _print_headlines(result: Mapping[str, Any], out: Console) -> None:
    is_published = result["parallelism"] == _PUBLISHED_PARALLELISM
    table = console.table(("",), ("measured", *(("goal", "Flink 1.14") if is_published else ())))
    for key, name, goal, published in _HEADLINES:
        compared = (_figure(key, goal), "" if published is None else _figure(key, published)) if is_published else ()
        table.add_row(name, _figure(key, result[key]), *compared)
    out.print(table)


def _figure(key: str, value: float) -> str:
    return _size(value) if key.endswith("_bytes") else three_digits(value)


def _size(size_bytes: float) -> str:
    if size_bytes < 1 << 20:
        return f"{three_digits(size_bytes / 1024)} KiB"
    return f"{three_digits(size_bytes / (1 << 20))} MiB"
