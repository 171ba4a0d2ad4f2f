"""Where a sweep is measured: what every combination of flags leads to."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from netstack.base.errors import ConfigError
from netstack_bench.grid import Grid, with_rows
from netstack_bench.places.hosts.spec import MeshSpec
from netstack_bench.places.placements import HostsPlace, LocalPlace, Runners, SparkPlace, place_of
from netstack_bench.places.spark.spec import SparkSpec
from netstack_bench.spec import RunSpec

DEFAULTS: dict[str, Any] = {
    "place": "auto",
    "hosts": None,
    "secret_file": None,
    "relay": False,
    "same_build": False,
    "one_way": False,
    "master": None,
    "nodes": None,
    "parallelism": 1,
    "warehouse": None,
    "shared_hosts": False,
    "node_ports": None,
    "executors_timeout_s": 60.0,
    "tables_timeout_s": 90.0,
    "peers": (),
}


class WithSpark(Runners):
    """Where Spark can run."""

    def check_spark(self) -> None:
        """It can."""


class WithoutSpark(Runners):
    """Where it cannot."""

    def check_spark(self) -> None:
        """It cannot."""
        raise ConfigError("there is no Java")


def choose(runners: Runners, **flags: Any) -> tuple[Any, str]:
    message = io.StringIO()
    place = place_of(runners, {**DEFAULTS, **flags}, Console(file=message, width=200))
    return place, message.getvalue()


def test_flink_is_measured_beside_two_processes_and_nowhere_else() -> None:
    place, _ = choose(WithSpark(), peers=("flink",))
    assert isinstance(place, LocalPlace)
    assert place.beside_flink
    with pytest.raises(ConfigError, match="--peer flink is measured beside two processes"):
        choose(WithSpark(), peers=("flink",), place="spark")


def test_auto_is_sparks_local_mode() -> None:
    place, message = choose(WithSpark())
    assert isinstance(place, SparkPlace)
    assert place.settings["master"] == "local[2]"
    assert message == ""
    (run, *_) = place.on(Grid()).plan()
    assert isinstance(run.spec, SparkSpec)
    assert place.start_s > 5


def test_two_processes_step_in_where_spark_cannot_run_and_it_is_said() -> None:
    place, message = choose(WithoutSpark())
    assert isinstance(place, LocalPlace)
    assert message == "measuring with --place local, two processes without Spark: there is no Java\n"
    assert place.start_s == 0


def test_two_processes_step_in_for_what_nodes_cannot_do() -> None:
    place, message = choose(WithSpark(), transport="unix")
    assert isinstance(place, LocalPlace)
    assert "--transport unix with --place spark" in message
    place, message = choose(WithSpark(), round_trips_s=(0.0, 0.01))
    assert isinstance(place, LocalPlace)
    assert "--round-trip" in message


def test_a_grid_that_no_place_can_do_is_refused() -> None:
    with pytest.raises(ConfigError, match="--channels 0"):
        choose(WithSpark(), channels=(0,))


@pytest.mark.parametrize(
    "flags",
    [
        {"master": "local[2]"},
        {"nodes": 2},
        {"relay": True},
        {"warehouse": "w"},
        {"parallelism": 2},
        {"one_way": True},
        {"shared_hosts": True},
        {"node_ports": (7000, 7001)},
    ],
)
def test_nothing_steps_in_for_what_only_spark_does(flags: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="no Java"):
        choose(WithoutSpark(), **flags)
    (name,) = flags
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} goes with --place spark"):
        choose(WithSpark(), place="local", **flags)
    if name != "relay":  # which daemons do too
        with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} goes with --place spark, not with --hosts"):
            choose(WithSpark(), hosts="10.0.0.1:6121", **flags)


def test_spark_is_not_replaced_when_it_was_asked_for() -> None:
    with pytest.raises(ConfigError, match="no Java"):
        choose(WithoutSpark(), place="spark")
    place, _ = choose(WithSpark(), place="spark", transport="unix")
    with pytest.raises(ConfigError, match="--transport unix"):
        place.on(Grid.of({"transport": "unix"})).plan()


def test_two_processes_need_no_spark() -> None:
    place, message = choose(WithoutSpark(), place="local")
    assert isinstance(place, LocalPlace)
    assert message == ""


def test_hosts_are_daemons() -> None:
    for where in ("auto", "hosts"):
        place, _ = choose(WithoutSpark(), place=where, hosts="10.0.0.1:6121,10.0.0.2:6121", relay=True)
        assert isinstance(place, HostsPlace)
        (run, *_) = place.on(Grid()).plan()
        assert isinstance(run.spec, MeshSpec)
        assert run.spec.relay


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"place": "hosts"}, "name the hosts too"),
        ({"secret_file": Path("s")}, "name the hosts too"),
        ({"place": "spark", "hosts": "10.0.0.1:6121"}, "--hosts with --place spark"),
        ({"place": "local", "hosts": "10.0.0.1:6121"}, "--hosts with --place local"),
        ({"master": "local"}, r"give local\[N\]"),
        ({"master": "local[2]", "nodes": 5}, r"--master local\[5\]"),
    ],
)
def test_flags_that_do_not_go_together(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        choose(WithSpark(), **flags)


def test_announced_times_are_those_of_each_engine() -> None:
    (local, *_), (spark, *_), (hosts, *_) = (
        place.on(Grid()).plan()
        for place in (
            choose(WithSpark(), place="local")[0],
            choose(WithSpark())[0],
            choose(WithSpark(), hosts="10.0.0.1:6121")[0],
        )
    )
    assert hosts.expected_s < local.expected_s < spark.expected_s


def test_a_sweep_over_rows_tells_how_large_they_were(tmp_path: Path) -> None:
    class Rows:
        def run_once(self, spec: RunSpec) -> dict[str, Any]:
            return {"settings": spec.as_dict()}

    place: Any = LocalPlace(Rows())  # type: ignore[arg-type]
    (tmp_path / "clicks.csv").write_text("id,user\n1,abcdef\n2,xy\n")
    spec = RunSpec(input_path=str(tmp_path / "clicks.csv"))
    with place.open(spec, None, None, None) as (once, _):
        assert once(spec)["settings"]["record_bytes"] == 6
    with pytest.raises(ConfigError, match=r"no such file here; .*--place spark"):
        place.on(with_rows(Grid(), "clicks", None))
