"""Renders the catalogue of metrics into METRICS.md, so that neither can change alone.

Takes: `netstack.network.metrics.catalogue.CATALOGUE`. Gives: a table a scope between the markers `<!-- metrics -->` and
`<!-- /metrics -->`. Run it after changing a metric; `--check` writes nothing and fails when the document is out of
date.

    python tools/render_metrics.py [--check]
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from netstack.cluster.jobmanager.views.metrics import CATALOGUE as OF_JOBMANAGER  # noqa: E402 - the tree beside this file
from netstack.network.metrics.catalogue import CATALOGUE, Metric  # noqa: E402

DOCUMENT = "netstack/METRICS.md"
BEGIN, END = "<!-- metrics -->\n", "<!-- /metrics -->\n"


def render() -> str:
    """The tables, as Markdown."""
    common = [metric for metric in CATALOGUE if not metric.is_detailed]
    lines = []
    for title, metrics in (
        ("Of a TaskManager", [metric for metric in common if not metric.scope.labels]),
        ("Of a partition (output)", [metric for metric in common if metric.scope.labels == ("partition",)]),
        ("Of a gate (input)", [metric for metric in common if metric.scope.labels == ("gate",)]),
        (
            "Detailed: with `open_network(..., detailed_metrics=True)` or `samples(statistics, detailed=True)`",
            [metric for metric in CATALOGUE if metric.is_detailed],
        ),
        ("Of a JobManager: `netstack jobmanager --metrics ADDR:PORT`", list(OF_JOBMANAGER)),
    ):
        lines += [
            f"## {title}",
            "",
            "| metric | labels | kind, unit | definition | in `statistics()` |",
            "|---" * 5 + "|",
        ]
        lines += [_row(metric) for metric in metrics]
        lines.append("")
    return "\n".join(lines[:-1])


def _row(metric: Metric) -> str:
    path = f"{metric.scope.path}.{metric.source}" if metric.scope.path else metric.source
    labels = ", ".join(metric.scope.labels)
    return f"| `{metric.name}` | {labels} | {metric.kind}, {metric.unit} | {metric.definition} | `{path}` |"


def updated(text: str) -> str:
    """The document with its tables as they should be.

    Raises:
        ValueError: it has not exactly one pair of markers.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{DOCUMENT}: the markers {BEGIN.strip()} and {END.strip()} must stand there once each")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{render()}\n{END}{after}"


def main(arguments: Sequence[str] | None = None, *, root: Path = ROOT) -> int:
    """Rewrites the document, or compares; returns the exit code."""
    parser = argparse.ArgumentParser(description="Render the catalogue of metrics into its document.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the document is out of date")
    options = parser.parse_args(arguments)
    path = root / DOCUMENT
    text = path.read_text(encoding="utf-8")
    wanted = updated(text)
    if text == wanted:
        return 0
    if options.check:
        print(f"{DOCUMENT} is out of date; run tools/render_metrics.py")
        print("".join(difflib.unified_diff(text.splitlines(True), wanted.splitlines(True), "is", "should be")))
        return 1
    path.write_text(wanted, encoding="utf-8")
    print(f"{DOCUMENT}: rewritten")
    return 0


if __name__ == "__main__":
    sys.exit(main())
