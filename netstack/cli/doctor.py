"""The command `netstack doctor`: checks whether this machine is set up well for netstack."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .checkup import Finding, checkup
from .json_document import print_document
from .values import COUNT

_STYLES: Final = {"ok": "green", "note": "cyan", "warn": "yellow", "fail": "red"}


@click.command(short_help="Check this machine's setup and suggest changes.")
@click.option(
    "--port",
    "ports",
    type=COUNT,
    multiple=True,
    default=(6121,),
    show_default=True,
    help="Port that a service will listen on; repeatable.",
)
@click.option("--secret-file", type=click.Path(path_type=Path), help="Secret file that services will share.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")
def doctor(ports: tuple[int, ...], secret_file: Path | None, as_json: bool) -> int:
    """Check this machine for settings that slow netstack down or keep it from starting, and suggest changes.

    The checks cover Java, CPUs and stolen CPU time, congestion control, socket and file limits, ports, the secret file,
    the clock and optional packages. Nothing is changed. The exit code is 1 if a check failed.
    """
    findings = checkup(ports, secret_file)
    failed = any(finding.verdict == "fail" for finding in findings)
    if as_json:
        print_document({"ok": not failed, "checks": [dataclasses.asdict(finding) for finding in findings]})
    else:
        _print(findings)
    return 1 if failed else 0


def _print(findings: list[Finding]) -> None:
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(style="bold")
    table.add_column()
    for finding in findings:
        text = escape(finding.found) + (f"\n[dim]{escape(finding.advice)}[/]" if finding.advice else "")
        table.add_row(f"[{_STYLES[finding.verdict]}]{finding.verdict}[/]", escape(finding.name), text)
    console.print(table)
