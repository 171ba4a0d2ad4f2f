"""Where nodes go: properties of sessions, and masters that cannot be."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from netstack.base.errors import ConfigError
from netstack.spark.session import open_session
from netstack.spark.settings import SparkSettings
from netstack_bench.places.spark.spec import SparkSpec


def test_local_mode_has_a_node_for_each_slot() -> None:
    assert SparkSettings(master="local[3]").node_count == 3
    assert SparkSettings(master="local[3]", nodes=2).node_count == 2
    assert not SparkSettings(master="local[3]").needs_distinct_hosts


def test_a_cluster_gets_one_executor_a_node_and_one_slot_an_executor() -> None:
    settings = SparkSettings(master="spark://10.0.0.1:7077", nodes=3, executor_cores=2)
    properties = settings.properties()
    assert properties["spark.cores.max"] == "6"
    assert properties["spark.executor.cores"] == properties["spark.task.cpus"] == "2"
    assert properties["spark.scheduler.minRegisteredResourcesRatio"] == "1.0"
    assert settings.needs_distinct_hosts
    assert not SparkSettings(master="spark://10.0.0.1:7077", shared_hosts=True).needs_distinct_hosts


def test_yarn_and_kubernetes_are_masters_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    for master in ("yarn", "k8s://https://10.0.0.1:6443"):
        settings = SparkSettings(master=master, nodes=3)
        assert settings.properties()["spark.executor.instances"] == "3"
        assert settings.properties()["spark.dynamicAllocation.enabled"] == "false"
        assert settings.properties()["spark.executor.memoryOverhead"] == "1g"
        assert settings.needs_distinct_hosts
    monkeypatch.delenv("HADOOP_CONF_DIR")
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    with pytest.raises(ConfigError, match="set HADOOP_CONF_DIR"):
        SparkSettings(master="yarn")


def test_no_session_waits_minutes_in_silence() -> None:
    for master in ("local[2]", "spark://10.0.0.1:7077"):
        properties = SparkSettings(master=master).properties()
        interval_s = int(properties["spark.scheduler.barrier.maxConcurrentTasksCheck.interval"].removesuffix("s"))
        checks = int(properties["spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures"])
        assert interval_s * checks <= 30
        assert properties["spark.dynamicAllocation.enabled"] == "false"
        assert properties["spark.ui.showConsoleProgress"] == "false"


@pytest.mark.parametrize(
    ("master", "nodes", "says"),
    [
        ("local", None, r"local\[N\]"),
        ("local[*]", None, r"local\[N\]"),
        ("10.0.0.1:7077", None, "spark://"),
        ("mesos://10.0.0.1:5050", None, "k8s://"),
        ("local[2]", 3, r"local\[3\]"),
        ("local[2]", 0, "--nodes 0"),
    ],
)
def test_a_master_that_cannot_be_is_refused(master: str, nodes: int | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SparkSettings(master=master, nodes=nodes)


def test_the_settings_of_a_run_name_it() -> None:
    assert SparkSpec(nodes=2).run_id != SparkSpec(nodes=3).run_id
    assert SparkSpec(nodes=2).run_id == SparkSpec(nodes=2).run_id
    mesh = SparkSpec(nodes=3, sources_per_node=2).as_mesh()
    assert (mesh.sources, mesh.sinks, len(mesh.hosts)) == (6, 3, 3)
    assert SparkSpec(nodes=3, sources_per_node=2, one_way=True).subtasks() == ((2, 0), (0, 1), (0, 1))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"transport": "unix"}, "--transport unix with --place spark"),
        ({"round_trip_s": 0.01}, "--round-trip"),
        ({"nodes": 0}, "--nodes 0"),
        ({"sinks_per_node": 0}, "--parallelism 0"),
        ({"relay": True, "sources_per_node": 2}, "--relay"),
        ({"one_way": True, "nodes": 1}, "--one-way needs two nodes"),
        ({"one_way": True, "relay": True}, "not --relay"),
    ],
)
def test_what_nodes_cannot_do_is_refused_naming_the_flag(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SparkSpec(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("fails", [False, True])
def test_a_temporary_log_is_kept_only_for_an_error_that_names_it(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Start:
        def __init__(self, settings: SparkSettings, scratch: Path, log: Path) -> None:
            log.write_text("Spark's output")

        def session(self) -> Any:
            return SimpleNamespace(stop=lambda: None)

        def end(self) -> None: ...

        join = end

    monkeypatch.setattr("netstack.spark.session._Start", Start)
    monkeypatch.setattr("netstack.spark.session.check_spark", lambda: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ZeroDivisionError) if fails else nullcontext(), open_session(SparkSettings()):
        assert list(tmp_path.glob("*.log"))
        if fails:
            raise ZeroDivisionError
    assert bool(list(tmp_path.iterdir())) is fails
