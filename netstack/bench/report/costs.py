"""Time per buffer and record in profiled sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from netstack.units import three_digits

from ..charts.page import heads, table
from ..charts.svg import facets_attribute
from ..store import Row
from .charts import timeout_label
from .filters import Filters
from .points import Analysis


def costs_section(analysis: Analysis, filters: Filters) -> str:
    """The first profiled throughput run of each point (of its latency runs where there are no others)."""
    parts = []
    for line, timeout in analysis.points:
        row = _run(analysis.runs("throughput", line, timeout) or analysis.runs("latency", line, timeout))
        if row is not None:
            facets = facets_attribute(filters.point(line, timeout))
            head = f"{escape(line.label)}, timeout {timeout_label(timeout)}"
            tables = "".join(_table(row["costs"], side) for side in ("producer", "consumer"))
            parts.append(f"<details{facets}><summary>{head}</summary>{tables}</details>")
    if not parts:
        return ""
    return (
        '<section id="costs" aria-labelledby="costs-head"><h2 id="costs-head">Where the time goes</h2>'
        '<p class="note">How each side spent its time, each moment counted once, in total and per buffer and record.'
        " Profiling costs about half a microsecond per measured call: trust the shares, not the rates of profiled"
        f" runs.</p>{''.join(parts)}</section>"
    )


def _run(rows: Sequence[Row]) -> Row | None:
    return min((row for row in rows if row.get("costs")), key=lambda row: row.get("repeat") or 0, default=None)


def _table(costs: Sequence[Mapping[str, Any]], side: str) -> str:
    body = (
        f'<tr><th scope="row" class="l">{escape(str(cost["what"]))}</th><td>{float(cost["share"]):.0%}</td>'
        f"<td>{_number(cost.get('us_per_buffer'))}</td><td>{_number(cost.get('ns_per_record'))}</td></tr>"
        for cost in costs
        if cost["side"] == side
    )
    head = heads("what", "share", "&micro;s a buffer", "ns a record")
    return table(head, body, caption=side, caption_kind="l")


def _number(value: Any) -> str:
    return "&ndash;" if value is None else three_digits(float(value))
