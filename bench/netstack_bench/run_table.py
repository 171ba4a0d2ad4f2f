"""The table of one run, and the line below it on what limits the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from netstack.base.units import counted, format_count, format_duration, format_latency, format_size, three_digits

from .console import table as made_table
from .interval import Interval
from .labels import bottleneck, buffers_of, setting_text
from .report.charts import PERCENTILES
from .spec import RunSpec

_CAUSE: Final = "netstack_output_{}_flushes_total"


def print_run(result: Mapping[str, Any], spec: RunSpec, console: Console) -> None:
    """Prints the table of one run; each peer adds its column and a column of ratios."""
    peers = peer_rows(result)
    table = made_table(("",), ("netstack",))
    for name in peers:
        table.add_column(escape(name), justify="right")
        table.add_column("ratio", justify="right", style="bold")
    for label, path, write in _FIGURES:
        values = [_at(row, path) for row in (result, *peers.values())]
        if all(value is None or write(value) is None for value in values):
            continue
        cells = [_cell(values[0], write)]
        for row, value in zip(peers.values(), values[1:], strict=True):
            cells += [_cell(value, write), _cell(_at(row, ("ratio", *path)), _times, "")]
        table.add_row(label, *cells)
    cells = ["yes" if row.get("delivered") is True else "[red]NO[/]" for row in (result, *peers.values())]
    table.add_row("delivered", cells[0], *(cell for each in cells[1:] for cell in (each, "")))
    console.print(escape(describe_spec(spec)), soft_wrap=True)
    repeats = result.get("repeats")
    if isinstance(repeats, int) and repeats > 1:
        console.print(f"medians of {repeats} runs{_spread(result)}")
    console.print(table)
    _print_ratios(result, console)
    if (_at(result, ("metrics", "producer", "netstack_output_pool_usage_ratio")) or 0.0) > 1:
        console.print("pool usage above 100%: overdraft buffers, which complete a record in progress")
    print_costs(result, console)
    sentence = bottleneck(result, spec)
    if sentence:
        console.print(sentence, soft_wrap=True)


def print_costs(result: Mapping[str, Any], console: Console) -> None:
    """Prints where each side's time went, if that was measured."""
    costs = result.get("costs") or ()
    for side in dict.fromkeys(str(cost["side"]) for cost in costs):
        table = made_table(("",), ("share", "us a buffer", "ns a record", "calls a GB"), title=f"time of the {side}")
        for cost in costs:
            if cost["side"] == side:
                table.add_row(
                    escape(str(cost["what"])),
                    f"{cost['share']:.0%}",
                    _cell(cost["us_per_buffer"], three_digits),
                    _cell(cost["ns_per_record"], three_digits),
                    _cell(cost.get("calls_per_gb"), three_digits),
                )
        console.print(table)


def describe_spec(spec: RunSpec) -> str:
    """The settings of a run in a line: the main ones, and those that differ from their defaults."""
    parts = [
        spec.rows,
        f"by {spec.emit}",
        counted(spec.channels, "channel"),
        f"buffer timeout {format_duration(spec.buffer_timeout_s, space=' ')}",
        buffers_of(spec),
        spec.transport,
    ]
    if spec.rate_per_s is not None:
        parts.insert(1, f"at {spec.rate_per_s:,.0f} records/s")
    if spec.round_trip_s:
        parts.append(f"round trip {format_duration(spec.round_trip_s, space=' ')}")
    if spec.link_bytes_per_s is not None:
        parts.append(f"link {setting_text('link_bytes_per_s', spec.link_bytes_per_s)}")
    if spec.queue_bytes is not None:
        parts.append(f"queue {format_size(spec.queue_bytes, space=' ')}")
    if spec.loss:
        parts.append(f"loss {setting_text('loss', spec.loss)}")
    if spec.jitter_s:
        parts.append(f"jitter {format_duration(spec.jitter_s, space=' ')}")
    if spec.acts_as != "netstack":
        parts.append(f"as {spec.acts_as}")
    if spec.gates == "each":
        parts.append("a gate for each channel")
    if not spec.credit:
        parts.append("without credit")
    if spec.debloat_s is not None:
        parts.append(f"debloating to {format_duration(spec.debloat_s, space=' ')}")
    if spec.memory_bytes is not None:
        parts.append(f"memory {format_size(spec.memory_bytes, space=' ')}")
    if spec.checkpoints != "none":
        parts.append(f"{spec.checkpoints} checkpoints every {format_duration(spec.checkpoint_interval_s, space=' ')}")
    if spec.consume_rate_per_s is not None:
        parts.append(f"consumer takes {spec.consume_rate_per_s:,.0f} records/s")
    return ", ".join(parts)


def peer_rows(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The peers of a result by name, whether it holds one row or several."""
    peer = result.get("peer")
    if not isinstance(peer, Mapping):
        return {}
    if "records_per_s" in peer:
        return {str(peer.get("name") or peer.get("engine") or "peer"): peer}
    return {str(name): row for name, row in peer.items() if isinstance(row, Mapping)}


def _cell(value: Any, write: Callable[[Any], str | None], absent: str = "\u2013") -> str:
    return absent if value is None else (write(value) or absent)


def _times(ratio: float) -> str:
    return f"{three_digits(ratio)} x"


def _spread(result: Mapping[str, Any]) -> str:
    interval = Interval.of(_rates(result))
    if interval is not None:
        return f", records/s {interval.text(format_count)}"
    spread = result.get("spread")
    bounds = spread.get("records_per_s") if isinstance(spread, Mapping) else None
    return f" ({format_count(bounds[0])} to {format_count(bounds[1])} records/s)" if bounds else ""


def _print_ratios(result: Mapping[str, Any], console: Console) -> None:
    for name, row in peer_rows(result).items():
        interval = Interval.of_pairs(zip(_rates(row), _rates(result), strict=False))
        if interval is not None:
            console.print(f"records/s against {escape(name)}: {interval.text(_times)}")


def _rates(result: Mapping[str, Any]) -> list[float]:
    return [float(run["records_per_s"]) for run in result.get("runs") or ()]


def _at(document: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = document
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _frames(metrics: Mapping[str, Any]) -> int | None:
    consumer = metrics["consumer"]
    if consumer is None:
        return None
    return int(sum(consumer[f"netstack_input_{kind}_buffers_total"] for kind in ("remote", "local")))


def _sent(metrics: Mapping[str, Any]) -> str | None:
    frames = _frames(metrics)
    return None if frames is None else f"{frames:,}"


def _causes(metrics: Mapping[str, Any]) -> str | None:
    frames = _frames(metrics)
    if frames is None or metrics["producer"] is None or _CAUSE.format("full") not in metrics["producer"]:
        return None
    counts = [metrics["producer"][_CAUSE.format(cause)] for cause in ("full", "timeout", "event")]
    return _slashed([*counts, max(frames - sum(counts), 0)])


def _announcements(metrics: Mapping[str, Any]) -> str | None:
    if "netstack_input_announcements_total" not in metrics:
        return None
    return _slashed(metrics[f"netstack_input_{kind}announcements_total"] for kind in ("", "backlog_"))


def _slashed(counts: Iterable[int]) -> str:
    return " / ".join(f"{count:,}" for count in counts)


def _pools(metrics: Mapping[str, Any]) -> str | None:
    sides = (("producer", "netstack_output_pool_usage_ratio"), ("consumer", "netstack_input_pool_usage_ratio"))
    if any(metrics[side] is None for side, _ in sides):
        return None
    return " / ".join(f"{metrics[side][name]:.0%}" for side, name in sides)


_FIGURES: tuple[tuple[str, tuple[str, ...], Callable[[Any], str | None]], ...] = (
    ("records", ("records",), lambda value: f"{value:,}"),
    ("verified", ("verified",), str),
    ("seconds measured", ("seconds",), three_digits),
    ("records/s", ("records_per_s",), format_count),
    ("payload MB/s", ("payload_mb_per_s",), three_digits),
    ("wire MB/s", ("wire_mb_per_s",), three_digits),
    *((f"latency {label}", ("latency_us", name), format_latency) for name, label in PERCENTILES),
    ("latency max", ("latency_us", "max"), format_latency),
    *((f"round trip {label}", ("round_trip_latency_us", name), format_latency) for name, label in PERCENTILES),
    ("round trip max", ("round_trip_latency_us", "max"), format_latency),
    ("records/s within hosts", ("local", "records_per_s"), format_count),
    ("latency p50 within hosts", ("local", "latency_us", "p50"), format_latency),
    ("round trip p50 within hosts", ("local", "round_trip_latency_us", "p50"), format_latency),
    ("CPU s/GB producer", ("cpu_s_per_gb", "producer"), three_digits),
    ("CPU s/GB consumer", ("cpu_s_per_gb", "consumer"), three_digits),
    ("CPU s/GB", ("cpu_s_per_gb", "total"), three_digits),
    ("buffers sent", ("metrics",), _sent),
    ("full / timeout / event / at once", ("metrics",), _causes),
    ("wire bytes", ("wire_bytes",), lambda value: f"{value:,}"),
    ("credits", ("credits",), lambda value: f"{value:,}"),
    ("buffer fill", ("average_buffer_fill",), lambda value: f"{value:.0%}"),
    ("debloated buffer", ("debloated_buffer_bytes",), lambda value: format_size(value, space=" ")),
    ("back-pressured soft, ms/s", ("backpressured_ms_per_s", "soft"), three_digits),
    ("back-pressured hard, ms/s", ("backpressured_ms_per_s", "hard"), three_digits),
    ("consumer idle, ms/s", ("idle_ms_per_s",), three_digits),
    ("checkpoints", ("checkpoints", "complete"), lambda value: f"{value:,}"),
    ("checkpoint p50, ms", ("checkpoints", "duration_ms", "p50"), three_digits),
    ("alignment p50, ms", ("checkpoints", "alignment_ms", "p50"), three_digits),
    (
        "persisted in flight p50",
        ("checkpoints", "channel_state_bytes", "p50"),
        lambda value: format_size(round(value), space=" "),
    ),
    ("announced credit / backlog", ("metrics", "consumer"), _announcements),
    ("pool usage out / in", ("metrics",), _pools),
)
