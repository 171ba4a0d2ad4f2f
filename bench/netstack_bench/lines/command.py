"""The command `netstack-bench lines`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from netstack.base.errors import ConfigError, NetstackError
from netstack.base.units import counted, format_latency, three_digits
from netstack.cli.values import COUNT, SECONDS
from netstack.testing.namespaces import why_not

from .. import console
from ..emulation import WITHIN
from ..flags import flag, json_flag
from ..host import host_facts, version
from ..interval import Verdict
from ..stopping import kept_at_interrupt
from .cells import LineCell, cells
from .measure import Measured, measure, part_of, real_line

_COLOURS: Final = {Verdict.WITHIN: "green", Verdict.OUTSIDE: "red", Verdict.UNDECIDED: "yellow"}


@click.command(short_help="Compare emulated lines with real ones.")
@flag("--seconds", SECONDS, "Length of each run.", default=6)
@flag("--repeats", COUNT, "Passes over all cells.", default=3)
@flag("--most-repeats", COUNT, "Repeats of a cell that stays undecided.", default=6)
@flag("--cells", COUNT, "Only the first of the 24 cells; by default all.", "most_cells")
@json_flag
@click.pass_obj
def lines(app: Any, /, seconds: float, repeats: int, most_repeats: int, most_cells: int | None, as_json: bool) -> int:
    """Measure 24 cells on a real shaped line and on an emulated one, by turns.

    The real line joins two network namespaces with a TaskManager on each; a process gives it rate, delay and a queue
    (netstack.testing.shaped_line). The emulated one is --round-trip and --link-rate between two processes.

    A figure (throughput, p50, p99) is within 15 % of the real one if its 95 % interval lies inside that margin, outside
    if it lies outside, and else undecided. Undecided cells are measured again, up to --most-repeats.

    Needs root. The first passes take about 20 minutes. Ctrl-C keeps what was measured. Exit code 1 if no
    run of a cell succeeded.
    """
    if missing := why_not():
        raise ConfigError(f"a real line cannot be made here: {missing}")
    errors = console.err()
    chosen = cells(seconds)[:most_cells]

    def emulated(cell: LineCell) -> Mapping[str, Any]:
        try:
            return dict(app.runners.run_once(cell.emulated))
        except NetstackError as error:
            return {"error": str(error)}

    def on_run(text: str, repeat: int) -> None:
        errors.print(f"pass {repeat + 1}: {text}", soft_wrap=True, highlight=False)

    measured: list[Measured] = []
    with kept_at_interrupt(lambda: bool(measured)) as stopped:
        runs = measure(chosen, real_line, emulated, repeats=repeats, most_repeats=most_repeats, on_run=on_run)
        for so_far in runs:
            measured = so_far
    if stopped.by:
        errors.print(f"stopped by {stopped.by}: each cell has the runs that it had until then")
    if as_json:
        document = {"lines": [each.as_dict() for each in measured], "counts": counts(measured)}
        console.print_json({**document, "host": host_facts(), "version": version()})
    else:
        print_lines(measured, console.out())
    for each in measured:
        for text in each.errors[:1]:
            errors.print(f"[red]failed:[/] {each.cell}: {text}", soft_wrap=True)
    return 1 if any(each.errors and not (each.real and each.emulated) for each in measured) else 0


def counts(measured: Sequence[Measured]) -> dict[str, dict[str, int]]:
    """The number of cells and of figures with each verdict."""
    of_cells = Counter(each.verdict for each in measured)
    of_figures = Counter(each.equivalence(name).verdict for each in measured for name in each.cell.figures)
    return {
        what: {verdict.value: count[verdict] for verdict in Verdict}
        for what, count in (("cells", of_cells), ("figures", of_figures))
    }


def print_lines(measured: Sequence[Measured], out: Console) -> None:
    """A row for each cell, and the three numbers."""
    table = Table("cell", "MB/s", "p50", "p99", "verdict", title="real / emulated", title_justify="left")
    for each in measured:
        texts = [_figure_text(each, name) for name in ("payload_mb_per_s", "p50", "p99")]
        verdict = each.verdict
        table.add_row(str(each.cell), *texts, f"[{_COLOURS[verdict]}]{verdict}[/]")
    out.print(table)
    for what, numbers in counts(measured).items():
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in numbers.items())
        total = counted(sum(numbers.values()), what.removesuffix("s"))
        out.print(f"of {total}: {verdicts} ({WITHIN:.0%})", soft_wrap=True)


def _figure_text(each: Measured, name: str) -> str:
    figure = each.as_dict()["figures"].get(name)
    if figure is None or figure["real"] is None or figure["emulated"] is None:
        return ""
    write = three_digits if name == "payload_mb_per_s" else format_latency
    error = part_of(each.equivalence(name).error)
    distance = "" if error is None else f" {error:+.0%}"
    colour = _COLOURS[each.equivalence(name).verdict]
    return f"{write(figure['real'])} / {write(figure['emulated'])}[{colour}]{distance}[/]"
