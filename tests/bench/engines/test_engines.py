from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

from netstack.base.errors import ConfigError
from netstack_bench.engines import PEERS, load_engine, peer_spec
from netstack_bench.generator import MissingExtra
from netstack_bench.spec import RunSpec


@pytest.mark.parametrize("name", [name for name in PEERS if name != "flink"])  # whose JVM has both
def test_every_peer_has_both_roles(name: str) -> None:
    pytest.importorskip("zmq")
    pytest.importorskip("pyarrow")
    engine = load_engine(name)
    assert callable(engine.produce)
    assert callable(engine.consume)


def test_a_module_of_ones_own_is_an_engine_too() -> None:
    assert load_engine("netstack_bench.engines.raw") is load_engine("raw")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'x'; there are netstack, "):
        load_engine("x")


@pytest.mark.parametrize(("name", "package"), [("zmq", "zmq"), ("flight", "pyarrow.flight")])
def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, name: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"netstack_bench.engines.{name}", raising=False)
    with pytest.raises(MissingExtra, match=rf"--peer {name} needs .*pip install 'py"):
        importlib.import_module(f"netstack_bench.engines.{name}")


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("netstack", {"channels": 4, "emit": "batch"}, {"channels": 4, "emit": "batch"}),
        ("raw", {"channels": 4, "batch_records": 3}, {"channels": 1, "emit": "batch", "batch_records": None}),
        ("raw", {"rate_per_s": 10.0, "emit": "batch"}, {"emit": "record", "rate_per_s": 10.0}),
        ("raw", {"credit": False, "debloat_s": 1.0}, {"emit": "batch", "credit": True, "debloat_s": None}),
        ("nocredit", {"channels": 4, "round_trip_s": 0.01}, {"credit": False}),
        ("plain", {"transport": "tls", "channels": 2}, {"transport": "tcp"}),
        ("zmq", {"channels": 4, "emit": "batch"}, {"channels": 1}),
        ("zmq", {"channels": 4, "emit": "arrow"}, {"channels": 1, "emit": "record"}),
        ("flight", {"channels": 4, "batch_records": 9}, {"channels": 1, "emit": "arrow", "batch_records": 9}),
    ],
)
def test_a_peer_does_the_same_work_its_own_way(name: str, settings: dict[str, Any], expected: dict[str, Any]) -> None:
    adapted = peer_spec(name, RunSpec(**settings))
    assert adapted.as_dict() == {**RunSpec(**settings).as_dict(), **expected}


def test_flight_needs_whole_words() -> None:
    with pytest.raises(ConfigError, match="multiple of 8"):
        peer_spec("flight", RunSpec(record_bytes=12))


@pytest.mark.parametrize("name", ["raw", "zmq", "flight"])
@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"round_trip_s": 0.01}, "--round-trip"),
        ({"link_bytes_per_s": 1 << 20}, "--link-rate"),
        ({"jitter_s": 0.001}, "--jitter"),
        ({"consume_rate_per_s": 5.0}, "--consume-rate"),
        ({"transport": "tls"}, "--transport tls"),
        ({"transport": "shm"}, "--transport shm"),
    ],
)
def test_other_work_than_a_peer_can_do_is_refused(name: str, settings: dict[str, Any], flag: str) -> None:
    with pytest.raises(ConfigError, match=f"--peer {name} knows no {flag}; .*--peer nocredit"):
        peer_spec(name, RunSpec(**settings))


def test_without_credit_there_is_nothing_to_compare_with_without_credit() -> None:
    assert load_engine("nocredit") is load_engine("netstack")
    with pytest.raises(ConfigError, match="--peer nocredit is --credit off"):
        peer_spec("nocredit", RunSpec(credit=False))
    with pytest.raises(ConfigError, match=r"--peer plain .* give --transport shm, tls or unix"):
        peer_spec("plain", RunSpec())
