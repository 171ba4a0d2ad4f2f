"""The report of a sweep: one HTML file that needs nothing else, neither a network nor a script, to be read.

Takes: the rows of a store and what was asked (`sweep.json`). Gives: the text of `report.html` and the main findings.

Rules: everything that came from outside (host names, paths, errors, warnings) is escaped; the page's own policy forbids
it to load anything; style, script and drawings are inside.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from ..spec import RunSpec
from ..store import Row
from ..words import plain, setting_name, setting_text
from .buffer_section import buffers_section
from .buffers import buffer_curves, buffer_findings
from .charts import latency_figure, legend, throughput_figure
from .points import Analysis
from .tables import failed_table, kept_table, row_tables

__all__ = ["Analysis", "build_report", "findings"]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
# Ahead of the script itself, so that a page which breaks says so.
_WATCH = "window.onerror=(m)=>{const e=document.documentElement;e.dataset.errors=(e.dataset.errors||'')+m+'; '};"


def findings(rows: Sequence[Row]) -> list[str]:
    """The main findings, one sentence each, for the terminal."""
    found = [f"{topic}: {figure} {sentence}" for topic, figure, sentence in _found(Analysis(rows))]
    return [line.replace("µ", "u").replace("\u00d7", "x") for line in found]  # a terminal may know no Greek


def build_report(rows: Sequence[Row], sweep: Mapping[str, Any]) -> str:
    """The whole page.

    Args:
        rows: flat rows; failed ones are listed apart.
        sweep: what `sweep.json` holds; may be empty.
    """
    analysis = Analysis(rows)
    curves = buffer_curves(analysis)
    by_timeout = not curves or len(analysis.timeouts) > 1
    title = f"netstack sweep · {_host_name(rows)}"
    body = [
        f"<h1>{_head(by_timeout, bool(curves))}</h1>",
        f'<p class="sub">{escape(_subtitle(rows, sweep))}</p>',
        _findings(analysis),
        _callouts(analysis),
        _curves(analysis) if by_timeout else "",
        kept_table(analysis),
        buffers_section(curves),
        _every_run(analysis),
        f'<section class="two">{_machine(rows)}{_settings(rows, sweep)}</section>',
        _method(analysis),
        f"<footer>{escape(_footer(sweep))}</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><script>{_WATCH}</script><style>{_asset('page.css')}</style></head>"
        f"<body><main>{''.join(body)}</main><script>{_asset('page.js')}</script></body></html>\n"
    )


def _found(analysis: Analysis) -> list[tuple[str, str, str]]:
    return [*analysis.findings(), *buffer_findings(buffer_curves(analysis))]


def _head(by_timeout: bool, by_buffers: bool) -> str:
    """What the curves of the page are drawn over."""
    if not by_timeout:
        return "Throughput against the number of buffers"
    more = " and the number of buffers" if by_buffers else ""
    return f"Throughput and latency against the buffer timeout{more}"


def _asset(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


def _subtitle(rows: Sequence[Row], sweep: Mapping[str, Any]) -> str:
    versions = " and ".join(sorted({str(row["version"]) for row in rows if row.get("version")}))
    times = sorted(str(row["started_at"]) for row in rows if row.get("started_at"))
    when = times[0][:16].replace("T", " ") + " UTC" if times else ""
    transports = " and ".join(sorted({str(row["settings_transport"]) for row in rows if "settings_transport" in row}))
    parts = [f"netstack {versions}" if versions else "", f"on {_host_name(rows)}", when, f"{len(rows)} runs"]
    told = " · ".join(part for part in parts if part)
    return f"{told} · two processes over {transports}" if transports else told


def _host_name(rows: Sequence[Row]) -> str:
    for row in reversed(rows):
        if isinstance(row.get("host_name"), str):
            return str(row["host_name"])
    return platform.node() or "this machine"


def _findings(analysis: Analysis) -> str:
    cards = [
        f'<div class="card"><dt>{escape(topic)}</dt><dd class="big">{escape(figure)}</dd>'
        f'<dd class="said">{escape(_upper(sentence))}.</dd></div>'
        for topic, figure, sentence in _found(analysis)
    ]
    return f'<dl class="findings">{"".join(cards)}</dl>' if cards else ""


def _upper(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _callouts(analysis: Analysis) -> str:
    parts = []
    if analysis.failed:
        runs = "1 run" if len(analysis.failed) == 1 else f"{len(analysis.failed)} runs"
        parts.append(
            f'<div class="callout bad" role="alert"><strong>{runs} of {len(analysis.rows)} failed.</strong> '
            'They are not in the curves; <a href="#failed" style="color:inherit">the errors are below</a>.</div>'
        )
    warnings = analysis.warnings()
    if warnings:
        items = "".join(
            f"<li>{escape(text)} <em>({_said(count, len(analysis.good))})</em></li>" for text, count in warnings
        )
        parts.append(f'<div class="callout"><strong>Warnings</strong><ul>{items}</ul></div>')
    return "".join(parts)


def _said(count: int, runs: int) -> str:
    return f"in {count} of {runs} runs" if count < runs else "in every run"


def _curves(analysis: Analysis) -> str:
    if not analysis.good:
        return '<section class="card"><h2>No curves</h2><p>No run succeeded.</p></section>'
    return (
        f'<section aria-label="Curves">{legend(analysis)}'
        f'<div class="charts">{throughput_figure(analysis)}{latency_figure(analysis)}</div></section>'
    )


def _every_run(analysis: Analysis) -> str:
    parts = []
    if analysis.good:
        note = '<p class="note">Click a head to sort.</p>'
        parts.append(f'<section class="card"><h2>Every run</h2>{note}{row_tables(analysis)}</section>')
    if analysis.failed:
        parts.append(f'<section class="card" id="failed"><h2>Failed runs</h2>{failed_table(analysis)}</section>')
    return "".join(parts)


def _machine(rows: Sequence[Row]) -> str:
    """Facts about the host; all values of a fact where the rows differ, the range of its load."""
    values: dict[str, dict[str, None]] = {}
    loads: list[float] = []
    packages: dict[str, None] = {}
    for row in rows:
        for name, value in row.items():
            if value is None or not (name == "host" or name.startswith("host_")):
                continue
            fact = name.removeprefix("host_")
            if fact == "load_average":
                loads.append(value[0])
            elif fact.startswith("packages_"):
                packages[f"{fact.removeprefix('packages_')} {value}"] = None
            else:
                values.setdefault(fact, {})[_fact(fact, value)] = None
    facts = {name.removesuffix("_bytes").replace("_", " "): ", ".join(found) for name, found in values.items()}
    if packages:
        facts["packages"] = ", ".join(packages)
    if loads:
        facts["load at the start of runs"] = f"{min(loads):.1f} to {max(loads):.1f}"
    return f'<div class="card"><h2>Machine</h2>{_facts(facts)}</div>'


def _fact(name: str, value: Any) -> str:
    return f"{value / 2**30:.1f} GiB" if name == "memory_bytes" else plain(value)


def _settings(rows: Sequence[Row], sweep: Mapping[str, Any]) -> str:
    """Every setting, with all its values where the rows differ, then how the sweep was made."""
    facts = {}
    for name in RunSpec.__dataclass_fields__:
        values = {row[f"settings_{name}"] for row in rows if f"settings_{name}" in row}
        if values:
            ordered = sorted(values, key=lambda value: (value is None, value))  # none after every number
            facts[setting_name(name)] = ", ".join(setting_text(name, value) for value in ordered)
    grid = sweep.get("grid")
    if isinstance(grid, Mapping):
        facts["repeats"] = plain(grid.get("repeats"))
        facts["order"] = f"shuffled, seed {plain(grid.get('seed'))}"
    if sweep.get("command"):
        facts["command"] = plain(sweep["command"])
    return f'<div class="card"><h2>Settings</h2>{_facts(facts)}</div>'


def _facts(facts: Mapping[str, str]) -> str:
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    return f'<dl class="facts">{items}</dl>'


def _method(analysis: Analysis) -> str:
    notes = [
        *analysis.remarks(),
        "Every run is a producer process and a consumer process of its own on this machine; each point is one"
        " throughput run (as fast as it goes, after a warm-up that is not counted) and, unless left out, one latency"
        " run (at a fixed rate).",
        "Latency is open loop: the clock of a record starts when it was due, not when the producer got round to it, so"
        " a stall counts against every record it held up.",
        "Marks are medians over the repeats; whiskers reach from the least to the greatest. Repeats are whole passes"
        " over the grid, each in its own shuffled order, so that a drifting machine disturbs every point alike.",
        "Every run proves its delivery: count, order in each channel and a checksum, compared end to end.",
        "A percentile needs records above it: p99.9 of a short run rests on very few. Absolute figures move with the"
        " machine and its load; compare what was measured side by side.",
    ]
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<section class="card"><h2>Notes on the method</h2><ul class="plain">{items}</ul></section>'


def _footer(sweep: Mapping[str, Any]) -> str:
    made = f" · started {sweep['started_at']}" if sweep.get("started_at") else ""
    return f"Written by netstack-bench{made} · the same rows are in rows.parquet beside this page"
