"""`netstack doctor`: what of this machine to change before netstack runs on it.

Takes: ports and a secret file to look at. Gives: a line for each check, and what to do; exit code 1 when something will
not work.
"""

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


@click.command(short_help="What of this machine to change.")
@click.option(
    "--port", "ports", type=COUNT, multiple=True, default=(6121,), show_default=True, help="To listen at; repeatable."
)
@click.option("--secret-file", type=click.Path(path_type=Path), help="The file that daemons would share.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")
def doctor(ports: tuple[int, ...], secret_file: Path | None, as_json: bool) -> int:
    """Looks at what makes netstack slow or keeps it from starting, and says what to change.

    Java, CPUs and who steals their time, congestion control, limits of sockets and files, ports, the secret file, the
    clock, packages. It changes nothing. Exit code 1 when something will not work.
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
        what = escape(finding.found) + (f"\n[dim]{escape(finding.advice)}[/]" if finding.advice else "")
        table.add_row(f"[{_STYLES[finding.verdict]}]{finding.verdict}[/]", escape(finding.name), what)
    console.print(table)
