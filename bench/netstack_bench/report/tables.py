"""The report's tables: kept throughput, differences from a real Flink, costs, and every row.

Takes: an `Analysis`. Gives: HTML tables; the script makes the long ones sortable by the values in `data-v`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any, Final

from netstack.base.units import format_count, format_size, three_digits

from ..charts.page import heads, swatch, table
from ..charts.svg import facets_attribute
from ..decision.goal import Share
from ..emulation import DIFFERENCES, RATIOS, WITHIN, Cell, Error, emulation_cells, emulation_summary
from ..interval import Verdict
from ..labels import setting_name, setting_text
from ..store import Row
from .answers import kept_shares
from .charts import PERCENTILES, styles, timeout_label
from .filters import Filters
from .points import Analysis, facet, micro, row_kind, row_latency, timeout_order

_LONGEST_TIMEOUT: Final = 1e12  # stands for `none` when sorting: after every real one
_OPEN_UP_TO: Final = 40  # rows: longer tables start folded


@dataclass(frozen=True, slots=True)
class _Column:
    head: str
    show: Callable[[Row], str]
    sort: Callable[[Row], float | str | None] | None = None
    left: bool = False

    def is_in(self, rows: Sequence[Row]) -> bool:
        """Whether to show a column: settings always, figures only if a row has them."""
        return self.left or self.sort is None or any(self.sort(row) is not None for row in rows)


def kept_table(analysis: Analysis, filters: Filters) -> str:
    """Throughput at each timeout as a fraction of that at the reference; empty without a reference."""
    reference = analysis.reference
    if reference is None or len(analysis.timeouts) < 2:
        return ""
    facets = {timeout: facets_attribute(filters.timeout(timeout)) for timeout in analysis.timeouts}
    heads = "".join(
        f'<th scope="col" class="c"{facets[timeout]}>{escape(timeout_label(timeout))}</th>'
        for timeout in analysis.timeouts
    )
    body, shares = [], kept_shares(analysis)
    for line, (hue, dash, shape) in styles(analysis).items():
        cells = [_kept_cell(shares.get((line, timeout)), facets[timeout]) for timeout in analysis.timeouts]
        name = f"{swatch(hue, dash, shape)}{escape(line.label)}"
        row = facets_attribute(filters.line(line))
        body.append(f'<tr{row}><th scope="row" class="l">{name}</th>{"".join(cells)}</tr>')
    first = '<th scope="col" class="l">record size · channels</th>'
    return (
        f'<section class="card" id="kept"><h2>Throughput kept, against {timeout_label(reference)}</h2>'
        '<p class="note">Payload per second at each buffer timeout as a fraction of the same line&rsquo;s at '
        f"{timeout_label(reference)}. Darker cells are further from 100%: blue is less, green is more. Ranges have 95%"
        " confidence, as in the answer above; a cell without one was measured once.</p>"
        f"{table(first + heads, body, 'heat kept')}</section>"
    )


def _kept_cell(share: Share | None, facets: str) -> str:
    if share is None:
        return f'<td class="c"{facets}>&ndash;</td>'
    side, text = "more" if share.middle > 1 else "less", escape(share.text).replace(" ", "&nbsp;")
    return f'<td class="cell {side}"{facets} style="--v:{_shade(share.middle):.3f}">{text}</td>'


def _shade(kept: float) -> float:
    """The distance of a part from 100 %: 0 there, 1 at a quarter or less, and at four times or more."""
    return min(abs(math.log(max(kept, 1e-9))) / math.log(4), 1.0)


def row_tables(analysis: Analysis, filters: Filters) -> str:
    """Every row that succeeded, in one table for throughput and one for latency."""
    parts = []
    for kind, columns in (("throughput", _THROUGHPUT), ("latency", _LATENCY)):
        rows = [row for row in analysis.good if row_kind(row) == kind]
        if rows:
            rows.sort(key=lambda row: _place(row, analysis.varying))
            every = _table(_SETTINGS + _extras(analysis) + columns + _CHECKPOINTS + _LAST, rows, filters)
            opened = " open" if len(rows) <= _OPEN_UP_TO else ""
            parts.append(f"<details{opened}><summary>{kind.title()} runs ({len(rows)})</summary>{every}</details>")
    return "".join(parts)


def failed_table(analysis: Analysis, filters: Filters) -> str:
    """The failed runs with their errors."""
    columns = (
        *_SETTINGS,
        *_extras(analysis),
        _Column("measuring", row_kind, left=True),
        _Column("error", lambda row: row.get("error") or "not everything was delivered", left=True),
    )
    rows = sorted(analysis.failed, key=lambda row: _place(row, analysis.varying))
    return _table(columns, rows, filters, "bad")


def _table(columns: tuple[_Column, ...], rows: list[Row], filters: Filters, style: str = "") -> str:
    columns = tuple(column for column in columns if column.is_in(rows))
    heads = "".join(f'<th scope="col"{" class=l" if column.left else ""}>{column.head}</th>' for column in columns)
    body = []
    for row in rows:
        cells = []
        for column in columns:
            value = column.sort(row) if column.sort else None
            sort = "" if column.sort is None else f' data-v="{"" if value is None else escape(str(value))}"'
            wrap = "wrap" if column.head == "error" else "l" if column.left else ""
            cells.append(f"<td{f' class={wrap}' if wrap else ''}{sort}>{escape(column.show(row))}</td>")
        kind = f" class={style}" if style else ""
        body.append(f"<tr{kind}{facets_attribute(filters.row(row))}>{''.join(cells)}</tr>")
    return table(heads, body, "sortable")


def _number(head: str, read: str | Callable[[Row], Any], write: Callable[[float], str]) -> _Column:
    def value(row: Row) -> float | None:
        figure = row.get(read) if isinstance(read, str) else read(row)
        return figure if isinstance(figure, (int, float)) and math.isfinite(figure) else None

    def show(row: Row) -> str:
        figure = value(row)
        return "\u2013" if figure is None else write(figure)

    return _Column(head, show, value)


def _extras(analysis: Analysis) -> tuple[_Column, ...]:
    def column(name: str) -> _Column:
        return _Column(
            escape(setting_name(name)),
            lambda row: setting_text(name, facet(row, name)),
            lambda row: facet(row, name),
            left=True,
        )

    return tuple(column(name) for name in analysis.varying)


def _place(row: Row, varying: Sequence[str]) -> tuple[Any, ...]:
    others = [facet(row, name) for name in varying]
    return (
        timeout_order(row.get("settings_buffer_timeout_s")),
        row.get("settings_record_bytes") or 0,
        row.get("settings_channels") or 0,
        [(value if isinstance(value, (int, float)) else -1, str(value)) for value in others],
        row.get("repeat") or 0,
    )


def _timeout_value(row: Row) -> float:
    timeout = row.get("settings_buffer_timeout_s")
    return _LONGEST_TIMEOUT if timeout is None else float(timeout)


_SETTINGS: Final = (
    _Column("timeout", lambda row: timeout_label(row.get("settings_buffer_timeout_s")), _timeout_value, left=True),
    _number("record", "settings_record_bytes", lambda size: format_size(int(size), space=" ")),
    _number("channels", "settings_channels", lambda count: f"{count:,.0f}"),
    _number("repeat", "repeat", lambda count: f"{count + 1:.0f}"),
)
_THROUGHPUT: Final = (
    _number("records/s", "records_per_s", format_count),
    _number("payload MB/s", "payload_mb_per_s", three_digits),
    _number("wire MB/s", "wire_mb_per_s", three_digits),
    _number("local records/s", "local_records_per_s", format_count),
    _number("CPU s/GB producer", "cpu_s_per_gb_producer", three_digits),
    _number("CPU s/GB consumer", "cpu_s_per_gb_consumer", three_digits),
    _number("CPU s/GB", "cpu_s_per_gb_total", three_digits),
    _number("buffer fill", "average_buffer_fill", lambda part: f"{part:.0%}"),
    _number("soft back-pressure", "backpressured_ms_per_s_soft", lambda wait: f"{wait / 1000:.1%}"),
    _number("hard back-pressure", "backpressured_ms_per_s_hard", lambda wait: f"{wait / 1000:.1%}"),
    _number("consumer idle", "idle_ms_per_s", lambda wait: f"{wait / 1000:.1%}"),
)
_CHECKPOINTS: Final = (
    _number("checkpoints", "checkpoints_complete", lambda count: f"{count:,.0f}"),
    _number("checkpoint ms", "checkpoints_duration_ms_p50", three_digits),
    _number("alignment ms", "checkpoints_alignment_ms_p50", three_digits),
    _number(
        "persisted in flight", "checkpoints_channel_state_bytes_p50", lambda size: format_size(round(size), space=" ")
    ),
)
_LATENCY: Final = (
    *(
        _number(head, partial(row_latency, name=name), micro)
        for name, head in (*PERCENTILES, ("p9999", "p99.99"), ("max", "max"))
    ),
    _number("local p50", partial(row_latency, name="p50", channels="local_"), micro),
)
_LAST: Final = (_number("records", "records", lambda count: f"{count:,.0f}"),)


_HEADS: Final = {
    "p50": "p50",
    "p99": "p99",
    "records_per_buffer": "records / buffer",
    "bytes_in_flight": "bytes in flight",
    "kept_throughput": "throughput kept",
    "checkpoint_ms": "checkpoint takes",
    "alignment_ms": "alignment",
    "channel_state": "persisted in flight",
    "backpressured_ms_per_s": "back-pressured, ms/s",
    "busy_ms_per_s": "busy, ms/s",
    "idle_ms_per_s": "idle, ms/s",
    "output_pool_usage": "output pool",
    "input_pool_usage": "input pool",
}


def emulation_section(rows: Sequence[Row]) -> str:
    """A row for each cell and profile, a column for each figure."""
    cells = emulation_cells(rows)
    if not cells:
        return ""
    known = {error.name for cell in cells for error in cell.errors}
    names = [name for name in {**RATIOS, **DIFFERENCES} if name in known]
    figures = (escape(_HEADS[name]) for name in names)
    head = heads("record size · channels · timeout · rates", "as", *figures, left=2, kind="c")
    body = (
        f'<tr><th scope="row" class="l">{escape(_words(cell))}</th><td class="l">{escape(cell.acts_as)}</td>'
        f"{''.join(_cell(cell.error_of(name)) for name in names)}</tr>"
        for cell in cells
    )
    lines = "".join(f"<p><strong>{escape(line)}.</strong></p>" for line in emulation_summary(cells))
    return (
        f'<section class="card" id="emulation"><h2>Beside Flink</h2>{lines}'
        '<p class="note">Times, records, bytes, kept throughput: log2 of ours over Flink&rsquo;s: +1 is twice as much,'
        " -1 half. Milliseconds of a second and usages: ours less Flink&rsquo;s. Marked: outside, the whole 95 %"
        f" interval is more than {WITHIN:.0%} away. ?: undecided, the interval reaches over the margin.</p>"
        f"{table(head, body, 'heat')}</section>"
    )


def _cell(error: Error | None) -> str:
    if error is None:
        return '<td class="c">&ndash;</td>'
    interval = error.equivalence
    digits = 0 if error.name.endswith("ms_per_s") else 2
    text, low, high = (f"{each:+.{digits}f}" for each in (interval.error, interval.low, interval.high))
    ends = f" ({low} to {high})" if math.isfinite(interval.high - interval.low) else ""
    title = f"Flink {error.flink.median:.4g}, netstack {error.ours.median:.4g}: {error.verdict.value}{ends}"
    is_outside = error.verdict is Verdict.OUTSIDE
    mark = " ?" if error.verdict is Verdict.UNDECIDED else ""
    return (
        f'<td class="{"cell less" if is_outside else "c"}" style="--v:{0.6 if is_outside else 0}" title="{title}">'
        f"{text}{mark}</td>"
    )


def _words(cell: Cell) -> str:
    settings: Mapping[str, Any] = cell.settings
    parts = [
        setting_text("record_bytes", settings["record_bytes"]),
        f"{settings['channels']:,} ch",
        setting_text("buffer_timeout_s", settings["buffer_timeout_s"]),
    ]
    if settings["rate_per_s"] is not None:
        parts.append(f"{settings['rate_per_s']:,.0f}/s")
    if settings["consume_rate_per_s"] is not None:
        parts.append(f"sink {settings['consume_rate_per_s']:,.0f}/s")
    if settings["debloat_s"] is not None:
        parts.append(f"debloat {setting_text('debloat_s', settings['debloat_s'])}")
    if settings["memory_bytes"] is not None:
        parts.append(f"memory {setting_text('memory_bytes', settings['memory_bytes'])}")
    if settings["checkpoints"] != "none":
        interval = setting_text("checkpoint_interval_s", settings["checkpoint_interval_s"])
        parts.append(f"{settings['checkpoints']} every {interval}")
    return " · ".join(parts)


def costs_section(analysis: Analysis, filters: Filters) -> str:
    """The first profiled throughput run of each point (of its latency runs where there are no others)."""
    parts = []
    for line, timeout in analysis.points:
        row = _run(analysis.runs("throughput", line, timeout) or analysis.runs("latency", line, timeout))
        if row is not None:
            facets = facets_attribute(filters.point(line, timeout))
            head = f"{escape(line.label)}, timeout {timeout_label(timeout)}"
            tables = "".join(_cost_table(row["costs"], side) for side in ("producer", "consumer"))
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


def _cost_table(costs: Sequence[Mapping[str, Any]], side: str) -> str:
    body = (
        f'<tr><th scope="row" class="l">{escape(str(cost["what"]))}</th><td>{float(cost["share"]):.0%}</td>'
        f"<td>{_figure(cost.get('us_per_buffer'))}</td><td>{_figure(cost.get('ns_per_record'))}</td>"
        f"<td>{_figure(cost.get('calls_per_gb'))}</td></tr>"
        for cost in costs
        if cost["side"] == side
    )
    head = heads("what", "share", "&micro;s a buffer", "ns a record", "calls a GB")
    return table(head, body, caption=side, caption_kind="l")


def _figure(value: Any) -> str:
    return "&ndash;" if value is None else three_digits(float(value))
