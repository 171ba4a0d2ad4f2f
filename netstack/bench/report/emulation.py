"""The report's table of differences from a real Flink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from ..charts.page import heads, table
from ..emulation import DIFFERENCES, RATIOS, WITHIN, Cell, Error, emulation_cells, emulation_summary
from ..store import Row
from ..words import setting_text

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
        " -1 half. Milliseconds of a second and usages: ours less Flink&rsquo;s. A dot: the ranges of the"
        f" repeats overlap. Marked: more than {WITHIN:.0%} away.</p>"
        f"{table(head, body, 'heat')}</section>"
    )


def _cell(error: Error | None) -> str:
    if error is None:
        return '<td class="c">&ndash;</td>'
    title = f"Flink {error.flink.median:.4g}, netstack {error.ours.median:.4g}"
    if error.error is None:
        return f'<td class="c" title="{title}">&middot;</td>'
    text = f"{error.error:+.0f}" if error.name.endswith("ms_per_s") else f"{error.error:+.2f}"
    style = "c" if error.is_within else "cell less"
    return f'<td class="{style}" style="--v:{0 if error.is_within else 0.6}" title="{title}">{text}</td>'


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
