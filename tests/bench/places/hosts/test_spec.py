from __future__ import annotations

import json

import pytest

from netstack.base.errors import ConfigError
from netstack_bench.places.hosts.spec import HostSpec, MeshSpec, split_hosts
from netstack_bench.spec import RunSpec


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:6121", HostSpec("a:6121", 1, 1)),
        (" 10.0.0.1:6121=4 ", HostSpec("10.0.0.1:6121", 4, 4)),
        ("node-7.lab:1=2/1", HostSpec("node-7.lab:1", 2, 1)),
        ("a:6121=0/3", HostSpec("a:6121", 0, 3)),
        ("tls+tcp://a:6121", HostSpec("tls+tcp://a:6121", 1, 1)),
        ("tls+tcp://[::1]:6121=2/0", HostSpec("tls+tcp://[::1]:6121", 2, 0)),
        ("tls+tcp://a:1?folder=/etc/tls=4", HostSpec("tls+tcp://a:1?folder=/etc/tls", 4, 4)),
        ("tls+tcp://a:1?names=off&folder=/tls", HostSpec("tls+tcp://a:1?names=off&folder=/tls", 1, 1)),
        ("[fe80::1%eth0]:6121=2", HostSpec("[fe80::1%eth0]:6121", 2, 2)),
    ],
)
def test_hosts_are_parsed(text: str, expected: HostSpec) -> None:
    assert HostSpec.parse(text) == expected
    assert HostSpec.parse(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("a", "not HOST:PORT"),
        ("", "not HOST:PORT"),
        (":6121", "not HOST:PORT"),
        ("tcp://a:6121", "not HOST:PORT"),
        ("tls://a:6121", "not HOST:PORT"),
        ("a:6121?folder=/tls", "certificates go with tls+tcp://"),
        ("a:b", "not HOST:PORT"),
        ("a:6121=", "neither PARALLELISM nor SOURCES/SINKS"),
        ("a:6121=1/2/3", "neither PARALLELISM nor SOURCES/SINKS"),
        ("a:6121=-1", "neither PARALLELISM nor SOURCES/SINKS"),
        ("a:6121=0", "it has no subtasks"),
        ("a:6121=0/0", "it has no subtasks"),
        ("a:6121=1/5000", "at most 1024"),
        ("a:0", "give 1 to 65535"),
        ("a:70000", "give 1 to 65535"),
    ],
)
def test_what_is_no_host_is_refused_in_a_sentence(text: str, reported: str) -> None:
    with pytest.raises(ConfigError, match="--hosts") as caught:
        HostSpec.parse(text)
    assert reported in str(caught.value)


def test_hosts_are_split_at_commas() -> None:
    assert split_hosts("a:1, b:2=3 ,,c:4=1/0") == ("a:1", "b:2=3", "c:4=1/0")


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        ({"hosts": ()}, "--hosts is empty"),
        ({"hosts": ("a:1", "b:1", "a:1=2")}, "names a:1 twice"),
        ({"hosts": ("a:1=0/1", "b:1=0/1")}, "no source"),
        ({"hosts": ("a:1=1/0",)}, "no sink"),
        ({"hosts": ("a:1",), "transport": "unix"}, "--transport unix with --hosts"),
        ({"hosts": ("a:1",), "transport": "tls"}, "write the hosts as tls+tcp://HOST:PORT"),
        ({"hosts": ("tls+tcp://a:1", "b:1")}, "with tls+tcp:// and without"),
        ({"hosts": ("a:1",), "input_path": "rows.csv"}, "--input with --hosts"),
        ({"hosts": ("a:1",), "round_trip_s": 0.1}, "--jitter with --hosts"),
        ({"hosts": ("a:1",), "link_bytes_per_s": 100}, "--jitter with --hosts"),
        ({"hosts": ("a:1=2/1", "b:1"), "relay": True}, "as many sinks as sources (a:1=2)"),
        ({"hosts": ("a:1",), "record_bytes": 1}, "--record-bytes"),
    ],
)
def test_what_a_mesh_cannot_do_is_refused(settings: dict[str, object], reported: str) -> None:
    with pytest.raises(ConfigError) as caught:
        MeshSpec(**settings)  # type: ignore[arg-type]
    assert reported in str(caught.value)


def test_counts_and_lanes() -> None:
    spec = MeshSpec(hosts=("a:1=2/1", "b:1=3"), channels=5)
    assert (spec.sources, spec.sinks, spec.lanes) == (5, 4, 20)


def test_settings_survive_json_and_tell_runs_apart() -> None:
    spec = MeshSpec(hosts=("a:1", "b:1=2"), relay=True, seconds=1.5)
    assert MeshSpec(**json.loads(json.dumps(spec.as_dict()))) == spec
    plain = {name: value for name, value in spec.as_dict().items() if name not in ("hosts", "relay", "rows_file")}
    others = [MeshSpec(hosts=("a:1",), seconds=1.5), RunSpec(**plain)]
    assert len({spec.run_id, *(other.run_id for other in others)}) == 3


def test_hosts_over_tls_are_a_setting_of_the_run() -> None:
    spec = MeshSpec(hosts=("tls+tcp://a:1", "tls+tcp://b:1=2"))
    assert spec.transport == "tls"
    assert MeshSpec.from_dict(json.loads(json.dumps(spec.as_dict()))) == spec
    assert MeshSpec(hosts=("a:1", "b:1=2")).transport == "tcp"
