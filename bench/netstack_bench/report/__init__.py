"""The report of sweeps: one self-contained HTML file.

Takes: the rows and the settings (`sweep.json`) of each sweep. Gives: the text of `report.html` and the main findings.

Rules: text from outside (host names, paths, errors, warnings) is escaped; the page's content policy forbids loading
anything. The page is complete without its script, which adds filters, tooltips and sorting.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from netstack.base.units import format_size

from ..charts import page
from ..charts.page import alert, asset, callout, document, facts, notes
from ..labels import distinct_warnings, plain, setting_name, setting_text
from ..spec import RunSpec
from ..store import Row
from .answers import answer_finding
from .buffers import buffer_curves, buffer_findings, buffers_section
from .charts import latency_figure, legend, throughput_figure
from .filters import Filters
from .frontier import frontier_section
from .hosts import hosts_section, mixed_hosts, on_spark, spark_facts, spark_remarks, where_on_spark
from .load import load_section
from .percentiles import percentiles_section
from .points import Analysis, facet, noise_warnings
from .sweeps import Sweep, compared_section, letter, sweeps_table, together
from .tables import costs_section, emulation_section, failed_table, kept_table, row_tables
from .timeline import timeline_section

__all__ = ["Analysis", "Sweep", "build_combined_report", "build_report", "findings", "together"]

_SCRIPTS = ("rescale.js", "choose.js")
_PROCESSES = {
    False: "Every run uses its own producer process and consumer process on this machine",
    True: "Runs over several hosts have sources and sinks on each host; every source sends to every sink",
}
_ON_SPARK = "Every run has sources and sinks in each of Spark's executors; every source sends to every sink"


def findings(rows: Sequence[Row]) -> list[str]:
    """The main findings, one sentence each, for the terminal; those of each workload are indented."""
    texts = [
        f"{topic}: {figure}{'' if sentence[:1] in (',', ':') else ' '}{sentence}"
        for topic, figure, sentence in _findings(Analysis(rows))
    ]
    lines = [line for text in texts for line in text.replace("\n", "\n  ").split("\n")]
    return [line.replace("µ", "u").replace("\u00d7", "x") for line in lines]  # for terminals without these letters


def build_report(rows: Sequence[Row], sweep: Mapping[str, Any]) -> str:
    """Renders the page of one sweep from its flat rows and the content of its `sweep.json`, which may be empty."""
    return build_combined_report([Sweep("", rows, sweep)])


def build_combined_report(sweeps: Sequence[Sweep]) -> str:
    """Renders the page of one or several sweeps, overlaid in every chart, each compared with the first."""
    rows = together(sweeps)
    analysis = Analysis(rows)
    filters = Filters(analysis)
    curves = buffer_curves(analysis)
    by_timeout = not curves or len(analysis.timeouts) > 1
    several = len(sweeps) > 1
    title = " · ".join(sweep.name for sweep in sweeps) if several else _host_name(rows)
    buffers = ("buffers", "Buffers", buffers_section(curves, filters))
    sections = [
        ("compared", "Compared", compared_section(sweeps, filters)),
        ("emulation", "Beside Flink", emulation_section(rows)),
        *([] if by_timeout else [buffers]),
        ("curves", "Curves", _curves(analysis, filters) if by_timeout else ""),
        ("kept", "Kept", kept_table(analysis, filters)),
        ("load", "Against rate", load_section(analysis, filters)),
        ("frontier", "Frontier", frontier_section(analysis, filters)),
        ("percentiles", "Percentiles", percentiles_section(analysis, filters)),
        *([buffers] if by_timeout else []),
        ("hosts", "Hosts", hosts_section(analysis, filters)),
        ("timeline", "Over time", timeline_section(analysis, filters)),
        ("costs", "Where the time goes", costs_section(analysis, filters)),
        ("runs", "Every run", _every_run(analysis, filters)),
    ]
    body = [
        f"<h1>{f'{len(sweeps)} sweeps: ' if several else ''}{_head(by_timeout, bool(curves))}</h1>",
        f'<p class="sub">{escape(_subtitle(rows, sweeps))}</p>',
        sweeps_table(sweeps, filters),
        page.findings((escape(topic), escape(figure), _in_lines(text)) for topic, figure, text in _findings(analysis)),
        _callouts(analysis),
        _links([(name, label) for name, label, content in sections if content]),
        filters.panel(len(analysis.good)),
        *(content for _, _, content in sections),
        f'<section class="two" id="machine">{spark_facts(rows)}{_machine(rows)}{_settings(rows, sweeps)}</section>',
        _method(analysis),
        f"<footer>{escape(_footer(sweeps))}</footer>",
    ]
    return document(
        f"netstack sweep · {title}",
        body,
        styles=[asset(__name__, "choose.css")],
        scripts=[asset(__name__, name) for name in _SCRIPTS],
    )


def _links(sections: Sequence[tuple[str, str]]) -> str:
    items = "".join(f'<li><a href="#{name}">{label}</a></li>' for name, label in [*sections, ("method", "Method")])
    return f'<nav aria-label="Sections"><ul>{items}</ul></nav>'


def _findings(analysis: Analysis) -> list[tuple[str, str, str]]:
    cards = [*answer_finding(analysis), *analysis.findings(), *buffer_findings(buffer_curves(analysis))]
    mixed = mixed_hosts(analysis.good)
    if mixed:  # what the first card says is true of this mixture alone
        topic, figure, text = cards[0] if cards else ("Hosts", "", "")
        cards[:1] = [(topic, figure, f"{text}\nWarning: {mixed}" if cards else mixed)]
    return cards


def _head(by_timeout: bool, by_buffers: bool) -> str:
    if not by_timeout:
        return "Throughput against the number of buffers"
    more = " and the number of buffers" if by_buffers else ""
    return f"Throughput and latency against the buffer timeout{more}"


def _subtitle(rows: Sequence[Row], sweeps: Sequence[Sweep]) -> str:
    versions = " and ".join(sorted({str(row["version"]) for row in rows if row.get("version")}))
    times = sorted(str(row["started_at"]) for row in rows if row.get("started_at"))
    when = times[0][:16].replace("T", " ") + " UTC" if times else ""
    transports = " and ".join(sorted({str(row["settings_transport"]) for row in rows if "settings_transport" in row}))
    hosts = max((len(row["hosts"]) for row in rows if row.get("hosts")), default=0)
    where = where_on_spark(rows) or (f"on {hosts} hosts" if hosts > 1 else f"on {_host_name(rows)}")
    over = f"{'all to all' if hosts > 1 else 'two processes'} over {transports}" if transports else ""
    between = "figures of channels between hosts" if _has_local(rows) else ""
    builds = " and ".join(sorted({str(row["host_netstack_build"]) for row in rows if row.get("host_netstack_build")}))
    netstack = " ".join(("netstack", versions, *([f"({builds} build)"] if builds else ()))) if versions else ""
    parts = [netstack, where, when, f"{len(rows)} runs", over, between, _workload(rows)]
    return " · ".join(part for part in parts if part)


def _has_local(rows: Sequence[Row]) -> bool:
    return any(row.get("local_records") for row in rows)


def _workload(rows: Sequence[Row]) -> str:
    texts: dict[str, str] = {}
    for row in rows:
        name = row.get("input_name") or row.get("settings_input_path")
        if name and (name not in texts or row.get("input_rows")):
            many, size = row.get("input_rows"), row.get("settings_record_bytes")
            each = f", {format_size(int(size), space=' ')} each in the mean" if many and size else ""
            texts[name] = f"{many:,} rows of {name}{each}" if many else f"rows of {name}"
    return " and ".join(texts.values())


def _host_name(rows: Sequence[Row]) -> str:
    for row in reversed(rows):
        if isinstance(row.get("host_name"), str):
            return str(row["host_name"])
    return platform.node() or "this machine"


def _in_lines(sentence: str) -> str:
    plain = sentence.removeprefix(", ").removeprefix(": ")
    text = escape(f"{plain[:1].upper()}{plain[1:]}.")
    return text.replace(" \u00b1 ", "&nbsp;\u00b1&nbsp;").replace(" %", "&nbsp;%").replace("\n", "<br>")


def _callouts(analysis: Analysis) -> str:
    failed, good = len(analysis.failed), len(analysis.good)
    errors = 'They are not in the curves; <a href="#failed" style="color:inherit">the errors are below</a>.'
    head = f"{'1 run' if failed == 1 else f'{failed} runs'} of {len(analysis.rows)} failed."
    warnings = [
        f"{text} ({f'in {count} of {good} runs' if count < good else 'in every run'})"
        for text, count in distinct_warnings(analysis.good)
    ]
    return "".join(
        (
            alert(head, errors) if failed else "",
            callout("Noise", noise_warnings(analysis)),
            callout("Warnings", warnings),
        )
    )


def _curves(analysis: Analysis, filters: Filters) -> str:
    if not analysis.good:
        return '<section class="card" id="curves"><h2>No curves</h2><p>No run succeeded.</p></section>'
    return (
        f'<section id="curves" aria-label="Curves">{legend(analysis, filters)}'
        f'<div class="charts">{throughput_figure(analysis, filters)}{latency_figure(analysis, filters)}</div></section>'
    )


def _every_run(analysis: Analysis, filters: Filters) -> str:
    parts = []
    if analysis.good:
        local = " Figures are of channels between hosts; local ones are of channels within a host."
        note = f'<p class="note">Click a column header to sort.{local if _has_local(analysis.good) else ""}</p>'
        parts.append(
            f'<section class="card" id="runs"><h2>Every run</h2>{note}{row_tables(analysis, filters)}</section>'
        )
    if analysis.failed:
        table = failed_table(analysis, filters)
        parts.append(f'<section class="card" id="failed"><h2>Failed runs</h2>{table}</section>')
    return "".join(parts)


def _machine(rows: Sequence[Row]) -> str:
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
                text = f"{value / 2**30:.1f} GiB" if fact == "memory_bytes" else plain(value)
                values.setdefault(fact, {})[text] = None
    known = {name.removesuffix("_bytes").replace("_", " "): ", ".join(texts) for name, texts in values.items()}
    if packages:
        known["packages"] = ", ".join(packages)
    if loads:
        known["load at the start of runs"] = f"{min(loads):.1f} to {max(loads):.1f}"
    return facts("Machine", known.items())


def _settings(rows: Sequence[Row], sweeps: Sequence[Sweep]) -> str:
    known = {}
    present = (name.removeprefix("settings_") for row in rows for name in row if name.startswith("settings_"))
    for name in dict.fromkeys((*RunSpec.__dataclass_fields__, *present)):
        values = {facet(row, name) for row in rows if f"settings_{name}" in row}
        if values:
            ordered = sorted(values, key=lambda value: (value is None, value))  # none after every number
            known[setting_name(name)] = ", ".join(setting_text(name, value) for value in ordered)
    for number, sweep in enumerate(sweeps):
        which = f" of {letter(number)}" if len(sweeps) > 1 else ""
        grid = sweep.facts.get("grid")
        if isinstance(grid, Mapping):
            known[f"repeats{which}"] = plain(grid.get("repeats"))
            known[f"order{which}"] = f"shuffled, seed {plain(grid.get('seed'))}"
        if sweep.facts.get("command"):
            known[f"command{which}"] = plain(sweep.facts["command"])
    return facts("Settings", known.items())


def _method(analysis: Analysis) -> str:
    spread = any(len(row.get("hosts") or ()) > 1 for row in analysis.rows)
    data = _workload(analysis.rows)
    texts = [
        *analysis.remarks(),
        *spark_remarks(analysis.good),
        *([f"Records are user data: {data}, serialised once and replayed by every source."] if data else []),
        f"{_ON_SPARK if on_spark(analysis.rows) else _PROCESSES[spread]}; each point is one throughput run (at full"
        " speed, after an uncounted warm-up) and, unless left out, one latency run (at a fixed rate).",
        "Latency is open loop: it counts from the time at which a record was due, so a stall counts against every"
        " record that it delayed.",
        "Marks are medians over the repeats; whiskers show minimum and maximum. Repeats are whole passes over the"
        " grid, each in its own shuffled order, so that drift of the machine affects all points alike.",
        "Every run verifies its delivery end to end: count, order in each channel and a checksum.",
        "A percentile needs records above it: p99.9 of a short run rests on very few. Absolute figures depend on the"
        " machine and its load; compare only what was measured side by side.",
    ]
    return notes("Notes on the method", texts, name="method")


def _footer(sweeps: Sequence[Sweep]) -> str:
    if len(sweeps) > 1:
        return "Written by netstack-bench · the same rows are in rows.parquet in each folder"
    started = sweeps[0].facts.get("started_at")
    made = f" · started {started}" if started else ""
    return f"Written by netstack-bench{made} · the same rows are in rows.parquet beside this page"
