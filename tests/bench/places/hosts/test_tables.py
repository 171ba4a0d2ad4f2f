from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from netstack_bench.places.hosts.spec import MeshSpec
from netstack_bench.places.hosts.tables import print_hosts, print_matrix

LATENCY = {"p50": 120.0, "p99": 900.0, "max": 1500.0}


def printed(write: Any, value: Any) -> str:
    console = Console(file=io.StringIO(), width=120, highlight=False)
    write(value, console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def pair(source: str, sink: str, **more: Any) -> dict[str, Any]:
    return {
        "source_host": source,
        "sink_host": sink,
        "is_local": source == sink,
        "records_per_s": 1e6,
        "payload_mb_per_s": 8.0,
        "latency_us": LATENCY,
        "latency_uncertainty_us": 0.0 if source == sink else 42.0,
        **more,
    }


def host(name: str) -> dict[str, Any]:
    return {
        "host": name,
        "sources": 1,
        "sinks": 0,
        "records_per_s": 0.0,
        "payload_mb_per_s": 0.0,
        "cpu_s": 0.5,
        "backpressured_ms_per_s": 100.0,
        "idle_ms_per_s": None,
        "clock_offset_us": -1234.5,
        "clock_uncertainty_us": 40.0,
    }


def test_the_matrix_says_which_subtask_sits_where() -> None:
    text = printed(print_matrix, MeshSpec(hosts=("a:1=4/1", "[::1]:2=0/2"), channels=3))
    assert [line.split() for line in text.splitlines()] == [
        ["host", "sources", "sinks"],
        ["a:1", "4:", "#0", "to", "#3", "1:", "#0"],
        ["[::1]:2", "–", "2:", "#1", "to", "#2"],  # noqa: RUF001
        ["all-to-all:", "4", "sources", "to", "3", "sinks,", "3", "channels", "from", "each", "to", "each"],
    ]
    assert "1 source to 1 relay and back" in printed(print_matrix, MeshSpec(hosts=("a:1",), relay=True))


def test_each_host_is_described_where_that_is_known() -> None:
    rows = [
        {**host(name), "netstack_build": build, "kernel": "6.1"} for name, build in (("a", "compiled"), ("b", None))
    ]
    lines = [line.split() for line in printed(print_hosts, {"hosts": rows, "pairs": [pair("a", "b")]}).splitlines()]
    assert ["a", "compiled", "–", "6.1", "–", "–"] in lines  # noqa: RUF001
    assert ["b", "–", "–", "6.1", "–", "–"] in lines  # noqa: RUF001
    assert "congestion" not in printed(print_hosts, {"hosts": [host("a")], "pairs": [pair("a", "a")]})


def test_hosts_and_pairs_have_a_row_each() -> None:
    text = printed(print_hosts, {"hosts": [host("a"), host("b")], "pairs": [pair("a", "a"), pair("a", "b")]})
    assert "-1,234 ± 40" in text
    assert "a (local)" in text
    assert "42 us" in text
    assert "latency p50" in text


def test_a_round_trip_is_called_so() -> None:
    rows = [pair("a", "b", latency_us=dict.fromkeys(LATENCY), round_trip_latency_us=LATENCY)]
    text = printed(print_hosts, {"hosts": [host("a")], "pairs": rows})
    assert "by way of" in text
    assert "round trip p99" in text
    assert "900 us" in text
    assert "±" not in text.splitlines()[-2]


def test_many_pairs_are_only_counted() -> None:
    pairs = [pair(f"h{source}", f"h{sink}") for source in range(7) for sink in range(7)]
    text = printed(print_hosts, {"hosts": [host("a")], "pairs": pairs})
    assert "49 pairs of hosts; --json lists them" in text


def test_a_run_of_two_processes_has_no_such_rows() -> None:
    assert printed(print_hosts, {"records": 5}) == ""
