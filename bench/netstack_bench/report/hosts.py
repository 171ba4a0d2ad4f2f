"""Traffic between hosts: heat maps of host pairs, a table of the hosts, and facts about Spark.

Takes: an `Analysis` whose rows have `pairs` and `hosts`. Gives: one HTML section; empty without such rows.

Rules: figures are medians over the repeats of a point. Latency is that of its latency runs where they have pairs, else
of its throughput runs. The uncertainty of two hosts' clocks is printed beside their latency; a latency that does not
exceed it is slanted. The shades of a map are relative to its own maximum: they do not compare settings.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from netstack.base.units import counted, format_count, format_duration, three_digits

from ..charts.page import facts, heads, table
from ..grid import Kind
from ..labels import Figure
from ..places.hosts.result import FACTS, mixture
from ..store import Row
from .charts import View, timeout_label, views
from .filters import Filters
from .points import Analysis, Line, micro

_SLOWER: Final = 2.0  # the fastest pair of a slow host against the slowest of all others
_MANY: Final = 6  # sinks: more of them stand closer
_LATENCIES: Final = (
    ("latency_us", "One-way latency", " warm one-way"),
    ("round_trip_latency_us", "Round trip", " warm"),
)
_ROUND_TRIP: Final = ("p50", "p99", "max")
_KINDS: Final[tuple[Kind, ...]] = ("throughput", "latency")


@dataclass(frozen=True, slots=True)
class _Cell:
    value: float
    uncertainty: float | None
    is_local: bool


_Map = dict[tuple[str, str], _Cell]


def hosts_section(analysis: Analysis, filters: Filters) -> str:
    """The heat maps of throughput and latency and the hosts of each point."""
    entries = [
        View(f"{line.label}, timeout {timeout_label(timeout)}", filters.point(line, timeout), content)
        for line, timeout in analysis.points
        if (content := _view(analysis, line, timeout))
    ]
    if not entries:
        return ""
    places = executors(analysis.good) if on_spark(analysis.good) else ""
    head = f"Executors and their pairs: {places}" if places else "Hosts and their pairs"
    each = "an executor" if places else "a host"
    return (
        f'<section id="hosts" aria-labelledby="hosts-head"><h2 id="hosts-head">{escape(head)}</h2>'
        f'<p class="note">Each row is {each} that sends, each column one that receives. One-way latency needs both'
        " clocks: &plusmn; is the uncertainty of their difference, and a value that does not exceed it is"
        " slanted.</p>"
        f'<div class="card">{views("pairs", entries)}</div></section>'
    )


def _view(analysis: Analysis, line: Line, timeout_s: float | None) -> str:
    rows = {kind: analysis.runs(kind, line, timeout_s) for kind in _KINDS}
    fast = _first([rows["throughput"], rows["latency"]], "pairs")
    prompt = _first([rows["latency"], rows["throughput"]], "pairs")
    hosts = _first([rows["throughput"], rows["latency"]], "hosts")
    parts = []
    if fast:
        maps = (
            _heat_map(_pairs(fast, lambda pair: pair.get("payload_mb_per_s")), "MB/s of payload", three_digits, ""),
            *(
                _heat_map(_pairs(prompt, _percentile(of, name)), f"{what}, {name}", micro, style)
                for of, what, style in _LATENCIES
                for name in ("p50", "p99")
            ),
        )
        parts.append(f'<div class="maps">{"".join(maps)}</div>')
    parts.append(_round_trips(prompt or fast or [*rows["latency"], *rows["throughput"]]))
    slow = slow_host(prompt or fast)
    if slow:
        parts.append(f'<p class="note">{escape(slow)}</p>')
    if hosts:
        parts.append(_host_table(hosts))
    return "".join(parts)


def mixed_hosts(rows: Sequence[Row]) -> str:
    """How the hosts of these runs differ in build, Python, kernel, CPUs or congestion control; empty if they do not."""
    return mixture(host for row in rows for host in row.get("hosts") or ())


def slow_host(rows: Sequence[Row]) -> str:
    """One sentence about a host whose pairs are much slower than all others; needs at least three hosts."""
    cells = {ends: cell for ends, cell in _pairs(rows, _percentile("latency_us", "p50")).items() if not cell.is_local}
    slow = {}
    for host in {end for ends in cells for end in ends}:
        its = [cell.value for ends, cell in cells.items() if host in ends]
        others = [cell.value for ends, cell in cells.items() if host not in ends]
        if its and others and min(its) > _SLOWER * max(others):
            slow[host] = statistics.median(its), statistics.median(others)
    if len(slow) != 1:
        return ""
    ((host, (its_own, theirs)),) = slow.items()
    return (
        f"Records to and from {host} take {micro(its_own)} (median of its pairs' p50), those between the others"
        f" {micro(theirs)}: that host or its line is slow."
    )


def _round_trips(rows: Sequence[Row]) -> str:
    figures = [(name, Figure.of(row.get(f"round_trip_latency_us_{name}") for row in rows)) for name in _ROUND_TRIP]
    text = ", ".join(f"{name} {micro(figure.median)}" for name, figure in figures if figure)
    return f'<p class="note">Round trips, by one clock: {escape(text)}.</p>' if text else ""


def _first(choices: Sequence[Sequence[Row]], name: str) -> list[Row]:
    """The rows of the first kind of runs that have this list."""
    return next((having for rows in choices if (having := [row for row in rows if row.get(name)])), [])


def _percentile(of: str, name: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda pair: (pair.get(of) or {}).get(name)


def _pairs(rows: Sequence[Row], read: Callable[[Mapping[str, Any]], float | None]) -> _Map:
    by_ends: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        for pair in row["pairs"]:
            by_ends.setdefault((str(pair.get("source_host")), str(pair.get("sink_host"))), []).append(pair)
    cells = {}
    for ends, pairs in by_ends.items():
        value = Figure.of(read(pair) for pair in pairs)
        unsure = Figure.of(pair.get("latency_uncertainty_us") for pair in pairs)
        is_local = any(pair.get("is_local") for pair in pairs)
        if value is not None:
            cells[ends] = _Cell(value.median, None if unsure is None else unsure.median, is_local)
    return cells


def _heat_map(cells: _Map, what: str, write: Callable[[float], str], style: str) -> str:
    if not cells:
        return ""
    sources = sorted({source for source, _ in cells})
    sinks = sorted({sink for _, sink in cells})
    values = [cell.value for cell in cells.values()]
    low, high = min(values), max(values)
    # The scale starts at 0, so that pairs that differ little look alike.
    is_one_way = "one-way" in style
    many = " many" if len(sinks) > _MANY else ""
    head = heads("from \\ to", *map(escape, sinks), kind="c")
    body = []
    for source in sources:
        row = "".join(_cell(cells.get((source, sink)), high, write, is_one_way) for sink in sinks)
        body.append(f'<tr><th scope="row" class="l">{escape(source)}</th>{row}</tr>')
    spread = f"; {write(low)} to {write(high)} here" if low < high else ""
    scale = f'<span class="ramp" aria-hidden="true"></span>0 to {write(high)}{spread}'
    return (
        f'<div class="map" tabindex="0"><table class="heat pairs{style}{many}"><caption>{what}<span class="key">{scale}'
        f"</span></caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _cell(cell: _Cell | None, high: float, write: Callable[[float], str], is_one_way: bool) -> str:
    if cell is None:
        return '<td class="c">&ndash;</td>'
    part = min(max(cell.value, 0.0) / high, 1.0) if high > 0 else 0.0
    notes, unsure = [], False
    if is_one_way and cell.uncertainty and not cell.is_local:
        notes.append(f"&plusmn; {write(cell.uncertainty)}")
        unsure = cell.value <= cell.uncertainty
    if cell.is_local:
        notes.append("local")
    note = f"<small>{', '.join(notes)}</small>" if notes else ""
    return f'<td class="cell{" unsure" if unsure else ""}" style="--v:{part:.3f}">{write(cell.value)}{note}</td>'


def _host_table(rows: Sequence[Row]) -> str:
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        for host in row["hosts"]:
            by_name.setdefault(str(host.get("host")), []).append(host)
    known = {name for row in rows for host in row["hosts"] for name, value in host.items() if value is not None}
    columns = [column for column in _COLUMNS if column[1] in known]
    facts = [name for name in FACTS if name in known]
    body = []
    for name, hosts in sorted(by_name.items()):
        address = next((str(host["address"]) for host in hosts if host.get("address")), "")
        cells = "".join(_host_cell(hosts, column, write) for _, column, write in columns)
        for fact in facts:
            cells += f"<td>{escape(', '.join(dict.fromkeys(str(host.get(fact)) for host in hosts)))}</td>"
        head = f"{escape(name)}{f'<small>{escape(address)}</small>' if address and address != name else ''}"
        body.append(f'<tr><th scope="row" class="l">{head}</th>{cells}</tr>')
    return table(
        heads("host", *(head for head, _, _ in columns), *(FACTS[name] for name in facts)),
        body,
        "sortable hosts",
        "Hosts",
    )


def _host_cell(hosts: Sequence[Mapping[str, Any]], name: str, write: Callable[[float], str]) -> str:
    figure = Figure.of(host.get(name) for host in hosts)
    if figure is None:
        return '<td data-v="">&ndash;</td>'
    text = escape(write(figure.median))
    if name == "clock_offset_us":
        unsure = Figure.of(host.get("clock_uncertainty_us") for host in hosts)
        text += f" &plusmn; {escape(micro(unsure.median))}" if unsure else ""
    return f'<td data-v="{figure.median:g}">{text}</td>'


def _offset(microseconds: float) -> str:
    return ("\u2212" if microseconds < 0 else "+" if microseconds > 0 else "") + micro(abs(microseconds))


def _share(ms_per_s: float) -> str:
    return f"{ms_per_s / 1000:.0%}"


_COLUMNS: Final[tuple[tuple[str, str, Callable[[float], str]], ...]] = (
    ("sources", "sources", lambda count: f"{count:,.0f}"),
    ("sinks", "sinks", lambda count: f"{count:,.0f}"),
    ("records/s", "records_per_s", format_count),
    ("MB/s", "payload_mb_per_s", three_digits),
    ("local records/s", "local_records_per_s", format_count),
    ("connections", "connections", lambda count: f"{count:,.0f}"),
    ("CPU s", "cpu_s", three_digits),
    ("clock offset", "clock_offset_us", _offset),
    ("back-pressured", "backpressured_ms_per_s", _share),
    ("idle", "idle_ms_per_s", _share),
)


def on_spark(rows: Sequence[Row]) -> bool:
    """Whether every run was made on Spark."""
    return bool(rows) and all(row.get("engine_kind") == "spark" for row in rows)


def where_on_spark(rows: Sequence[Row]) -> str:
    """Such as `on Spark 4.3.0 at local[2]: 2 executors on one host`; empty where not every run was."""
    if not on_spark(rows):
        return ""
    master, version = _values(rows, "spark_master"), _values(rows, "spark_version")
    places = executors(rows)
    return f"on Spark{f' {version}' if version else ''}{f' at {master}' if master else ''}" + (
        f": {places}" if places else ""
    )


def executors(rows: Sequence[Row]) -> str:
    """Such as `2 executors on one host`; empty where no run has their number."""
    many, hosts = max(((_count(row, "spark_executors"), _count(row, "spark_hosts")) for row in rows), default=(0, 0))
    if not many or not hosts:
        return ""
    return f"{counted(many, 'executor')} on {f'{hosts} hosts' if hosts > 1 else 'one host'}"


def spark_remarks(rows: Sequence[Row]) -> list[str]:
    """Spark's overheads that the figures exclude."""
    scheduling = Figure.of(row.get("spark_scheduling_s") for row in rows)
    if scheduling is None:
        return []
    session = Figure.of(row.get("spark_session_s") for row in rows)
    opened = f"Opening the session took {_seconds(session.median)}, and for" if session else "For"
    return [
        f"{opened} each run Spark took {_seconds(scheduling.median)} to start its tasks, to exchange their addresses"
        " and to return their results. The figures exclude both: they count between the tasks' own start signal and"
        " their end."
    ]


def spark_facts(rows: Sequence[Row]) -> str:
    """A card: master, versions, executors, machines."""
    if not any(row.get("engine_kind") == "spark" for row in rows):
        return ""
    entries = {
        "master": _values(rows, "spark_master"),
        "version": _values(rows, "spark_version"),
        "Java": _values(rows, "spark_java"),
        "executors": executors(rows),
        "machines": "; ".join(dict.fromkeys(str(each) for row in rows for each in row.get("spark_machines") or ())),
    }
    return facts("Spark", ((name, text) for name, text in entries.items() if text))


def _values(rows: Sequence[Row], name: str) -> str:
    return ", ".join(sorted({str(row[name]) for row in rows if row.get(name)}))


def _count(row: Row, name: str) -> int:
    value: Any = row.get(name)
    return int(value) if isinstance(value, (int, float)) else 0


def _seconds(value: float) -> str:
    return format_duration(value, space=" ") if value < 1 else f"{three_digits(value)} s"
