#!/usr/bin/env python3
"""Renders tools/monitoring/dashboard.json: the Grafana dashboard of netstack's TaskManagers, from the panels below.

    python tools/render_dashboard.py            writes it
    python tools/render_dashboard.py --check    fails if it is not what would be written

Takes: the catalogue of metrics, whose definitions become the panels' descriptions. Gives: JSON that Grafana imports.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netstack.network.metrics.catalogue import CATALOGUE

TARGET = Path(__file__).parent / "monitoring" / "dashboard.json"
METRIC = re.compile(r"\bnetstack_[a-z_]+")
_WHERE = 'instance=~"$instance"'
_DEFINITIONS = {metric.name: metric.definition for metric in CATALOGUE}


@dataclass(frozen=True)
class Panel:
    """One graph: its title, Grafana's unit, and (query, legend) of each line; `W` stands for the chosen instances."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    stacked: bool = False


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "TaskManagers",
        (
            Panel("TaskManagers that answer", "short", (('sum(up{job="netstack"})', "up"),)),
            Panel(
                "Bytes on connections",
                "Bps",
                (
                    ("rate(netstack_sent_bytes_total{W}[1m])", "{{instance}} sent"),
                    ("rate(netstack_received_bytes_total{W}[1m])", "{{instance}} received"),
                ),
            ),
            Panel("Connections", "short", (("netstack_connections{W}", "{{instance}}"),)),
            Panel(
                "Network buffers in use",
                "percentunit",
                (("netstack_memory_used_segments{W} / netstack_memory_total_segments{W}", "{{instance}}"),),
            ),
            Panel("Network buffers wanted", "percent", (("netstack_memory_requested_percent{W}", "{{instance}}"),)),
        ),
    ),
    (
        "Who waits for whom",
        (
            Panel(
                "Back-pressured: waits for output",
                "ms",
                (("netstack_output_backpressured_ms_per_second{W}", "{{instance}} {{partition}}"),),
            ),
            Panel(
                "Latency of edges and from sources, p99",
                "s",
                (('netstack_job_latency_seconds{quantile="0.99"}', "{{name}}: {{from}} to {{to}} ({{of}})"),),
            ),
            Panel(
                "Hard back-pressure: inside a record",
                "ms",
                (("netstack_output_hard_backpressured_ms_per_second{W}", "{{instance}} {{partition}}"),),
            ),
            Panel("Idle: waits for input", "ms", (("netstack_input_idle_ms_per_second{W}", "{{instance}} {{gate}}"),)),
            Panel(
                "Backlog that producers told",
                "short",
                (("netstack_input_sender_backlog_buffers{W}", "{{instance}} {{gate}}"),),
            ),
        ),
    ),
    (
        "Output",
        (
            Panel(
                "Records written",
                "rps",
                (("rate(netstack_output_records_total{W}[1m])", "{{instance}} {{partition}}"),),
            ),
            Panel("Queued", "bytes", (("netstack_output_queue_bytes{W}", "{{instance}} {{partition}}"),), stacked=True),
            Panel(
                "Pool usage", "percentunit", (("netstack_output_pool_usage_ratio{W}", "{{instance}} {{partition}}"),)
            ),
            Panel(
                "Why buffers leave",
                "ops",
                (
                    ("sum(rate(netstack_output_full_flushes_total{W}[1m]))", "full"),
                    ("sum(rate(netstack_output_timeout_flushes_total{W}[1m]))", "timeout"),
                    ("sum(rate(netstack_output_event_flushes_total{W}[1m]))", "event"),
                ),
                stacked=True,
            ),
        ),
    ),
    (
        "Input",
        (
            Panel("Records read", "rps", (("rate(netstack_input_records_total{W}[1m])", "{{instance}} {{gate}}"),)),
            Panel("Queued", "bytes", (("netstack_input_queue_bytes{W}", "{{instance}} {{gate}}"),), stacked=True),
            Panel(
                "Exclusive and floating buffers in use",
                "percentunit",
                (
                    ("netstack_input_exclusive_usage_ratio{W}", "{{instance}} {{gate}} exclusive"),
                    ("netstack_input_floating_usage_ratio{W}", "{{instance}} {{gate}} floating"),
                ),
            ),
            Panel(
                "Time to consume what is under way (debloating)",
                "s",
                (("netstack_input_time_to_consume_seconds{W}", "{{instance}} {{gate}}"),),
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """The document."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        panels.append(
            {
                "type": "row",
                "title": title,
                "collapsed": False,
                "panels": [],
                "gridPos": _at(0, y, 24, 1),
                "id": len(panels) + 1,
            }
        )
        y += 1
        for number, panel in enumerate(row):
            panels.append(_graph(panel, len(panels) + 1, _at(12 * (number % 2), y + 8 * (number // 2), 12, 8)))
        y += 8 * -(-len(row) // 2)
    return {
        "title": "netstack TaskManagers",
        "uid": "netstack-taskmanagers",
        "schemaVersion": 39,
        "version": 1,
        "tags": ["netstack"],
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "editable": True,
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                {
                    "name": "instance",
                    "type": "query",
                    "label": "TaskManager",
                    "datasource": {"type": "prometheus", "uid": "${datasource}"},
                    "query": {"query": "label_values(netstack_connections, instance)", "refId": "instances"},
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": panels,
    }


def _at(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _graph(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    names = dict.fromkeys(name for query, _ in panel.lines for name in METRIC.findall(query))
    custom = {"fillOpacity": 12 if panel.stacked else 0, "stacking": {"mode": "normal" if panel.stacked else "none"}}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": "\n\n".join(f"{name}: {_DEFINITIONS[name]}" for name in names if name in _DEFINITIONS),
        "gridPos": place,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + line), "expr": query.replace("{W}", f"{{{_WHERE}}}"), "legendFormat": legend}
            for line, (query, legend) in enumerate(panel.lines)
        ],
    }


def main() -> int:
    """Renders or checks."""
    parser = argparse.ArgumentParser(description="Renders the Grafana dashboard.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something would change")
    text = json.dumps(dashboard(), indent=1) + "\n"
    if not parser.parse_args().check:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
        print(f"{TARGET} is not up to date; run python tools/render_dashboard.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
