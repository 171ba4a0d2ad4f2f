from __future__ import annotations

from typing import Any

import pytest

from netstack.base.errors import ConfigError
from netstack_bench.generator import Source
from netstack_bench.histogram import Histogram
from netstack_bench.places.hosts.clocks import HostClock, Reading
from netstack_bench.places.hosts.matrix import RELAY, SINK, SOURCE, Matrix, Placement
from netstack_bench.places.hosts.result import (
    FACTS,
    Host,
    Outcome,
    Timeline,
    _is_on_loopback,
    check_same_build,
    crowded_hosts,
    document_of,
    host_latencies,
    of_all_channels,
)
from netstack_bench.places.hosts.spec import MeshSpec
from netstack_bench.verifier import Delivery

START = 10_000_000_000
SECOND = 1_000_000_000


def outcome_of(spec: MeshSpec, facts: list[dict[str, Any]], clocks: list[HostClock], latency_ns: int) -> Outcome:
    """Every source sent 600 records in 3 s, a third of the window's to each sink."""
    matrix = Matrix(spec)
    results: dict[Placement, dict[str, Any]] = {}

    def common(each: Placement) -> dict[str, Any]:
        """Of the process it ran in: its daemon's, or that of a slot."""
        fact = facts[each.host]
        own = each.subtask % matrix.slots(each.host) if fact.get("slot_addresses") else 0
        return {
            "pid": fact["pid"] + 100 * own,
            "cpu_s": 1.5,
            "dialled": ["other", "own"],
            "bytes_sent": 8000,
            "bytes_received": 8000,
        }

    expected = Source(8, 1).expected(600)
    for each in matrix.of_task(SOURCE):
        waits = {"t_s": 3.0, "soft_s": 0.6, "hard_s": 0.3}
        sent = {"records": 600, "expected": expected, "buffers": 3, "buffer_bytes": 7200}
        results[each] = {"waits": waits, "congestion_control": "cubic", **sent, **common(each)}
    for each in matrix.of_task(RELAY):
        results[each] = {"waits": {"t_s": 3.0, "idle_s": 0.0}, **common(each)}
    for each in matrix.of_task(SINK):
        latency = Histogram()
        latency.record(latency_ns)
        lanes = spec.sinks
        mine = Delivery(
            records=600 // lanes,
            checksum=sum(Source(8, 1).expected(1)["checksum"] + index for index in range(each.subtask, 600, lanes)),
            lanes=((each.subtask, each.subtask + 600),),
        )
        groups = len(matrix.upstream())
        pairs: dict[int, dict[str, Any]] = {}
        for producer in matrix.upstream():
            pair = pairs.setdefault(
                producer.host,
                {"host": producer.host, "records": 0, "window_records_per_s": 0.0, "window_s": 2.0, "steady": True},
            )
            pair["records"] += mine.records
            pair["window_records_per_s"] += 100.0
            pair["latency"] = latency.to_dict()
        results[each] = {
            "waits": {"t_s": 3.0, "idle_s": 1.5},
            "records": mine.records * groups,
            "last_ns": START + 3 * SECOND + clocks[each.host].before.offset_ns,
            "credits": 7,
            "debloated_buffer_bytes": None,
            "deliveries": [mine.as_dict()] * groups,
            "pairs": list(pairs.values()),
            **common(each),
        }
    return Outcome(
        matrix=matrix,
        hosts=tuple(
            Host(host.address, fact, clock) for host, fact, clock in zip(spec.parsed_hosts, facts, clocks, strict=True)
        ),
        start_ns=START,
        stopped_ns=tuple(START + 3 * SECOND for _ in matrix.of_task(SOURCE)),
        results=results,
        timeline=Timeline(),
    )


def clock(before_us: int, after_us: int, rtt_us: int) -> HostClock:
    return HostClock(
        Reading(START, before_us * 1000, rtt_us * 1000), Reading(START + 3 * SECOND, after_us * 1000, rtt_us * 1000)
    )


def facts(*names: str, cpus: int = 8) -> list[dict[str, Any]]:
    return [{"hostname": name, "pid": number, "cpus": cpus} for number, name in enumerate(names)]


def test_rates_of_pairs_add_up() -> None:
    spec = MeshSpec(hosts=("a:1=2/1", "b:1"))
    document = document_of(outcome_of(spec, facts("a", "b"), [clock(0, 0, 10)] * 2, 5000), "hosts")
    assert document["delivered"], document["warnings"]
    assert document["warnings"] == []
    assert document["records"] == 1800
    assert document["records_per_s"] == 300.0, "those between hosts"
    assert document["local"]["records_per_s"] == 300.0
    assert of_all_channels(document)["records_per_s"] == 600.0
    assert document["seconds"] == 2.0
    assert [row["records_per_s"] for row in document["hosts"]] == [100.0, 200.0]
    assert [row["local_records_per_s"] for row in document["hosts"]] == [200.0, 100.0]
    assert {(row["source_host"], row["sink_host"]): row["records_per_s"] for row in document["pairs"]} == {
        ("a", "a"): 200.0,
        ("a", "b"): 200.0,
        ("b", "a"): 100.0,
        ("b", "b"): 100.0,
    }
    assert document["backpressured_ms_per_s"] == {"soft": pytest.approx(200.0), "hard": pytest.approx(100.0)}
    assert document["idle_ms_per_s"] == 500.0
    assert document["wire_bytes"] == 16_000
    assert document["average_buffer_fill"] == 7200 / (3 * 32 * 1024)
    assert document["cpu_s_per_gb"]["total"] == pytest.approx(3.0 / (1800 * 8 / 1e9))
    assert document["cpu_s_per_gb"]["producer"] is None


def test_hosts_that_differ_are_a_warning_and_each_is_described() -> None:
    spec = MeshSpec(hosts=("a:1", "b:1", "c:1"))
    kinds = ("compiled", "python", "compiled")
    reported = [
        {**each, "netstack_build": kind, "python": "3.12.1", "kernel": "6.1", "congestion_control": "bbr"}
        for each, kind in zip(facts("a", "b", "c"), kinds, strict=True)
    ]
    document = document_of(outcome_of(spec, reported, [clock(0, 0, 10)] * 3, 5000), "hosts")
    assert document["warnings"] == ["the hosts differ: build compiled on a and c, python on b"]
    assert document["host"]["netstack_build"] == "compiled and python", "of those that were measured, not of the client"
    assert [{name: row[name] for name in FACTS} for row in document["hosts"]] == [
        {"netstack_build": kind, "python": "3.12.1", "kernel": "6.1", "cpus": 8, "congestion_control": "cubic"}
        for kind in kinds
    ], "the congestion control is that of the connections"
    alike = [{**each, "netstack_build": "python"} for each in reported]
    assert document_of(outcome_of(spec, alike, [clock(0, 0, 10)] * 3, 5000), "hosts")["warnings"] == []


def test_only_builds_that_differ_are_refused() -> None:
    hosts = [
        {"host": "a:1", "netstack_build": "compiled", "cpus": 2},
        {"host": "b:1", "netstack_build": "compiled", "cpus": 8},
    ]
    check_same_build(hosts)
    with pytest.raises(ConfigError, match="compiled on a:1 and b:1, unknown on c:1"):
        check_same_build([*hosts, {"host": "c:1"}])


def test_cpu_is_told_by_role_where_each_host_has_one() -> None:
    spec = MeshSpec(hosts=("a:1=1/0", "b:1=0/1"))
    document = document_of(outcome_of(spec, facts("a", "b"), [clock(0, 0, 10)] * 2, 5000), "hosts")
    cpu = document["cpu_s_per_gb"]
    assert cpu["producer"] == cpu["consumer"] == pytest.approx(cpu["total"] / 2)


def test_daemons_of_one_process_are_counted_once_and_told_apart_by_address() -> None:
    spec = MeshSpec(hosts=("a:1", "a:2"))
    same = [{"hostname": "a", "pid": 5, "cpus": 8}] * 2
    document = document_of(outcome_of(spec, same, [clock(0, 0, 10)] * 2, 5000), "hosts")
    assert document["cpu_s_per_gb"]["total"] == pytest.approx(1.5 / (1200 * 8 / 1e9))
    assert [row["host"] for row in document["hosts"]] == ["a:1", "a:2"]


def test_one_way_latency_is_corrected_for_drift_and_has_an_uncertainty() -> None:
    spec = MeshSpec(hosts=("a:1", "b:1"), rate_per_s=200.0, seconds=3)
    clocks = [clock(1_000_000, 1_000_000, 40), clock(0, 400, 20)]
    document = document_of(outcome_of(spec, facts("a", "b"), clocks, 1_000_000), "hosts")
    pairs = {(row["source_host"], row["sink_host"]): row for row in document["pairs"]}
    # Half way b's clock had gained 200 us: what it received seemed that much older, what it sent that much younger.
    assert pairs["a", "b"]["latency_us"]["max"] == 800.0
    assert pairs["b", "a"]["latency_us"]["max"] == 1200.0
    assert pairs["a", "a"]["latency_us"]["max"] == pairs["b", "b"]["latency_us"]["max"] == 1000.0
    assert pairs["a", "b"]["latency_uncertainty_us"] == 30.0
    assert pairs["a", "a"]["latency_uncertainty_us"] == 0.0
    assert document["clock"][1]["offset_after_us"] == 400.0
    assert any("the clock of b moved by 400 us" in text for text in document["warnings"])
    assert document["records_per_s"] == document["local"]["records_per_s"] == 200.0, "all of a paced run counts"


def test_what_is_missing_is_a_problem() -> None:
    spec = MeshSpec(hosts=("a:1", "b:1"))
    outcome = outcome_of(spec, facts("a", "b"), [clock(0, 0, 10)] * 2, 5000)
    sink = outcome.matrix.of_task(SINK)[1]
    results = dict(outcome.results)
    deliveries = [dict(each) for each in results[sink]["deliveries"]]
    deliveries[0]["lanes"] = []
    results[sink] = {**results[sink], "deliveries": deliveries}
    broken = Outcome(outcome.matrix, outcome.hosts, outcome.start_ns, outcome.stopped_ns, results, outcome.timeline)
    document = document_of(broken, "hosts")
    assert document["delivered"] is False
    (warning,) = document["warnings"]
    assert warning.startswith("delivery: source-0: record 1 ")


@pytest.mark.parametrize(
    ("names", "cpus", "slots", "crowded"),
    [
        (("a", "b", "c"), 1, 1, set()),
        (("a", "a"), 2, 1, {0, 1}),
        (("a", "a"), 3, 1, set()),
        (("a", "b", "a"), 2, 1, {0, 2}),
        (("a", "b"), 2, 2, {0, 1}),
        (("a", "b"), 3, 2, set()),
    ],
)
def test_processes_that_share_few_processors_do_not_spin(
    names: tuple[str, ...], cpus: int, slots: int, crowded: set[int]
) -> None:
    actual = [{**each, "slot_addresses": ["tcp://a:1"] * 4} for each in facts(*names, cpus=cpus)]
    assert crowded_hosts(actual, [slots] * len(names)) == crowded
    in_loops = [{**each, "slot_addresses": []} for each in actual]
    assert (crowded_hosts(in_loops, [slots] * len(names)) == crowded) is (slots == 1 or not crowded)


def test_what_the_processes_of_a_host_used_is_added_up() -> None:
    spec = MeshSpec(hosts=("a:1=2", "b:1"), connections=2)
    actual = [{**each, "slot_addresses": ["tcp://a:1"] * 2} for each in facts("a", "b")]
    document = document_of(outcome_of(spec, actual, [clock(0, 0, 10)] * 2, 5000), "hosts")
    assert [row["cpu_s"] for row in document["hosts"]] == [3.0, 1.5]
    assert document["wire_bytes"] == 24_000
    assert document["cpu_s_per_gb"]["total"] == pytest.approx(4.5 / (1800 * 8 / 1e9))


def test_who_shares_a_processor_is_warned() -> None:
    spec = MeshSpec(hosts=("a:1", "a:2"), rate_per_s=200.0, seconds=3)
    document = document_of(outcome_of(spec, facts("a", "a", cpus=2), [clock(0, 0, 10)] * 2, 5000), "hosts")
    assert document["warnings"] == [
        "2 TaskManagers share a machine of 2 CPUs: they compete for the processor",
        "records leave some 0.1 ms late: tasks do not spin on the clock where processors are shared",
    ]


@pytest.mark.parametrize(
    ("hosts", "is_one_machine"),
    [
        (("127.0.0.1:6121", "localhost:6122=2", "[::1]:6123"), True),
        (("10.0.0.1:6121=1/0", "127.0.0.1:6121=0/1"), False),
        (("node1:6121", "node2:6121"), False),
    ],
)
def test_runs_between_hosts_do_not_warn_of_loopback(hosts: tuple[str, ...], is_one_machine: bool) -> None:
    assert _is_on_loopback(MeshSpec(hosts=hosts)) is is_one_machine


def test_connections_between_hosts_are_counted_once_for_each_process() -> None:
    spec = MeshSpec(hosts=("a:1=2", "b:1=2"), connections=2)
    actual = [{**each, "slot_addresses": ["own", f"own {each['pid']}"]} for each in facts("a", "b")]
    document = document_of(outcome_of(spec, actual, [clock(0, 0, 10)] * 2, 5000), "hosts")
    assert [row["connections"] for row in document["hosts"]] == [2, 2], "two processes, each to `other`"
    assert document["connections"] == 4


@pytest.mark.parametrize("settings", [{}, {"rate_per_s": 200.0}, {"relay": True}, {"rate_per_s": 200.0, "relay": True}])
@pytest.mark.parametrize("hosts", [("a:1", "b:1"), ("a:1=2", "b:1=2", "c:1=2"), ("a:1=1/1", "b:1=0/1", "c:1=3/0")])
def test_rates_and_latencies_are_those_of_channels_between_hosts(
    hosts: tuple[str, ...], settings: dict[str, Any]
) -> None:
    if "relay" in settings and any("/" in host for host in hosts):
        pytest.skip("records return to a sink beside their source")
    spec = MeshSpec(hosts=hosts, **settings)
    names = [host[0] for host in hosts]
    outcome = outcome_of(spec, facts(*names), [clock(0, 0, 10)] * len(hosts), 5000)
    mark_local(outcome, 1_000)
    document = document_of(outcome, "hosts")
    kind = "round_trip_latency_us" if spec.relay else "latency_us"
    remote = [pair for pair in document["pairs"] if not pair["is_local"]]
    local = [pair for pair in document["pairs"] if pair["is_local"]]
    assert document["records"] == sum(pair["records"] for pair in document["pairs"])
    assert document["records_per_s"] == pytest.approx(sum(pair["records_per_s"] for pair in remote))
    assert document["payload_mb_per_s"] == pytest.approx(sum(pair["payload_mb_per_s"] for pair in remote))
    assert sum(host["records_per_s"] for host in document["hosts"]) == pytest.approx(document["records_per_s"])
    assert document[kind]["p50"] == document[kind]["max"] == pytest.approx(5, rel=0.01)
    assert document["latency_samples"] == sum(each.count for each in host_latencies(outcome))
    assert document["local"]["records"] == sum(pair["records"] for pair in local)
    assert document["local"]["records_per_s"] == pytest.approx(sum(pair["records_per_s"] for pair in local))
    assert document["local"][kind]["p50"] == document["local"][kind]["max"] == pytest.approx(1, rel=0.01)
    sent = sum(pair["records"] for pair in remote) * 8
    assert document["wire_mb_per_s"] == pytest.approx(document["payload_mb_per_s"] * document["wire_bytes"] / sent)


@pytest.mark.parametrize("hosts", [("a:1=2",), ("a:1=1/0", "b:1=0/1")])
def test_where_all_channels_are_alike_none_is_apart(hosts: tuple[str, ...]) -> None:
    spec = MeshSpec(hosts=hosts)
    document = document_of(
        outcome_of(spec, facts("a", "b")[: len(hosts)], [clock(0, 0, 10)] * len(hosts), 5000), "hosts"
    )
    assert document["local"] == {}
    assert document["records_per_s"] == sum(pair["records_per_s"] for pair in document["pairs"]) > 0
    assert document["latency_us"]["p50"] == pytest.approx(5, rel=0.01)


def mark_local(outcome: Outcome, latency_ns: int) -> None:
    """Makes the latency of records within a host another one."""
    latency = Histogram()
    latency.record(latency_ns)
    for sink in outcome.matrix.of_task(SINK):
        for pair in outcome.results[sink]["pairs"]:
            if pair["host"] == sink.host:
                pair["latency"] = latency.to_dict()
