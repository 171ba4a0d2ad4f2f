"""A standalone Spark cluster on hosts of their own: an executor that dies, a link that is cut, a host that is slow.

The hosts are network namespaces (`tools/hosts.py`). What is lost is named by its host in what the user reads; Spark
itself tells only the number of an executor, and that after a minute.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jobworld
import pytest
from tool_modules import load_tool

import netstack
from netstack.cluster.control.build import own_build

pytestmark = [pytest.mark.root, pytest.mark.java, pytest.mark.slow, pytest.mark.xdist_group("hosts")]

ROOT = Path(__file__).resolve().parents[2]
SLOW = "20mbit"


tool = load_tool("hosts")


@pytest.mark.long
def test_a_spark_cluster_whose_workers_have_another_netstack_and_lose_an_executor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old" / "netstack"
    old.mkdir(parents=True)
    (old / "__init__.py").write_text("raise ImportError('the worker has its own netstack')")
    sweep = tmp_path / "sweep"
    arguments = ["--timeouts", "0", "--record-sizes", "8", "--channels", "1", "--seconds", "4", "--repeats", "3"]
    arguments += ["--latency-seconds", "0", "--output", str(sweep), "--json", "--nodes", "3"]
    monkeypatch.setenv("PYTHONPATH", str(old.parent))  # of the workers, which start here
    with tool.Hosts(3) as hosts, tool.SparkCluster(hosts) as cluster:
        monkeypatch.delenv("PYTHONPATH")
        process = hosts.start(
            0,
            [
                sys.executable,
                "-m",
                "netstack_bench",
                "sweep",
                "--place",
                "spark",
                "--master",
                cluster.master,
                *arguments,
            ],
            env=cluster.driver_environment(),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        until_s = time.monotonic() + 240
        while not (sweep / "rows.jsonl").exists() or not (sweep / "rows.jsonl").read_text():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until_s
            time.sleep(0.1)
        time.sleep(2)  # in the middle of the second run
        kill_executor(hosts, 2)
        out, message = process.communicate(timeout=240)
        assert process.returncode == 1, message
        first, second, third = json.loads(out)["rows"]
        assert "Traceback" not in message
        assert "was lost" in second["error"]
        assert "\n" not in second["error"]
        for row in (first, third):
            assert row["delivered"]
            assert row["engine_kind"] == "spark"
            places = {host["address"].partition(":")[0] for host in row["hosts"]}
            assert places == {hosts.address(host) for host in (1, 2, 3)}
        nodes = [json.loads(line) for line in (sweep / "nodes.jsonl").read_text().splitlines()]
        assert {row["build"] for row in nodes if row["kind"] == "ok"} == {own_build()}
        assert [row["kind"] for row in nodes].count("lost") == 3


class Cluster:
    """Three hosts with a worker each, and commands on host 0 that use it."""

    def __init__(self, hosts: Any, spark: Any) -> None:
        self.hosts = hosts
        self.spark = spark
        self.master = spark.master
        self._environment = {**spark.driver_environment(), "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}"}

    def start(self, words: list[str]) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process: subprocess.Popen[str] = self.hosts.start(
            0, [sys.executable, *words], env=self._environment, cwd=ROOT, **pipes
        )
        return process

    def executors(self) -> list[int]:
        """Hosts that have one."""
        return [host for host in (1, 2, 3) if executors_on(self.hosts, host)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tool.Hosts(3) as hosts, tool.SparkCluster(hosts) as spark:
        yield Cluster(hosts, spark)


def until(
    condition: Callable[[], Any], process: subprocess.Popen[str], within_s: float = 240.0, told: Any = None
) -> Any:
    end_s = time.monotonic() + within_s
    while not (actual := condition()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end_s, told
        time.sleep(0.1)
    return actual


def rows_of(sweep: Path, name: str = "rows.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (sweep / name).read_text().splitlines()] if (sweep / name).exists() else []


@pytest.mark.long
def test_a_sweep_names_the_host_that_is_slow_and_the_one_whose_link_is_cut(cluster: Cluster, tmp_path: Path) -> None:
    hosts, sweep = cluster.hosts, tmp_path / "sweep"
    words = ["sweep", "--place", "spark", "--master", cluster.master, "--nodes", "3", "--timeouts", "0"]
    words += ["--record-sizes", "1KiB", "--channels", "1", "--seconds", "4", "--repeats", "2", "--latency-seconds", "0"]
    hosts.slow(2, SLOW)
    process = cluster.start(["-m", "netstack_bench", *words, "--output", str(sweep), "--json"])
    try:
        until(lambda: rows_of(sweep), process)
        hosts.slow(2, None)
        time.sleep(3)  # in the middle of the second run
        hosts.cut(3)
        out, message = process.communicate(timeout=120)
    finally:
        hosts.slow(2, None)
        hosts.heal(3)
    assert process.returncode == 1, message
    slow, cut = json.loads(out)["rows"]
    assert slow["delivered"], slow
    page = (sweep / "report.html").read_text()
    assert f"from {hosts.address(2)} take" in page
    assert f" at {hosts.address(3)} did not end" in cut["error"]
    assert "\n" not in cut["error"]
    assert "Traceback" not in message


@pytest.mark.long
def test_an_exchange_names_the_host_that_is_slow_the_one_that_is_lost_and_the_one_whose_link_is_cut(
    cluster: Cluster,
) -> None:
    hosts = cluster.hosts
    until_workers(cluster)
    hosts.slow(2, SLOW)
    process = cluster.start(
        [str(ROOT / "tests/system/spark_driver.py"), cluster.master, "3", "equal", "replaced", "endless", "endless"]
    )
    assert process.stdout is not None
    try:
        actual = []
        for line in process.stdout:
            reported = json.loads(line)
            if "began" not in reported:
                actual.append(reported)
                hosts.slow(2, None)
            else:
                until(lambda: all(is_connected(hosts, host) for host in (1, 2, 3)), process, told=(reported, actual))
                time.sleep(1)
                if reported["began"] == "replaced":
                    kill_executor(hosts, 2)
                elif len(actual) == 2:
                    kill_executor(hosts, 1)
                else:
                    hosts.cut(3)
        _, message = process.communicate(timeout=120)
    finally:
        hosts.slow(2, None)
        hosts.heal(3)
    assert len(actual) == 4, message
    replaced = actual.pop(1)
    assert replaced["is_whole"], replaced
    assert (replaced["tasks"], replaced["build"].partition(":")[0]) == (3, netstack.build.kind)  # why differs
    assert actual[0]["is_equal"]
    assert actual[0]["keys"] == 1000
    assert f" on {hosts.address(2)}: " in actual[0]["slowest"]
    assert hosts.address(1) in actual[1]["said"]
    assert hosts.address(3) in actual[2]["said"]
    assert all("\n" not in each["said"] for each in actual[1:])


@pytest.mark.long
def test_a_job_goes_on_when_a_host_is_slow_an_executor_is_killed_and_a_link_is_cut(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Its TaskManagers are tasks of a barrier stage, which Spark ends whole; the next goes on from the checkpoint."""
    hosts = cluster.hosts
    until_workers(cluster)
    words = ["run", "jobworld:two_pipelines", "-p", "count=120000", "-p", "per_s=4000", "--on", "spark", "--json"]
    words += ["--taskmanagers", "2", "--slots", "1", "--folder", str(tmp_path / "folder"), "--master", cluster.master]
    for host in (1, 2, 3):
        hosts.slow(host, SLOW)
    process = cluster.start(["-m", "netstack.cli", *words])
    cut = 0

    def newest() -> float:
        return max((path.stat().st_mtime for path in manifests(tmp_path)), default=0.0)

    try:
        until(lambda: manifests(tmp_path), process)
        killed = cluster.executors()[0]
        at_s = newest()
        kill_executor(hosts, killed)
        until(lambda: newest() > at_s + 5, process)  # of the new stage
        cut = cluster.executors()[-1]
        hosts.cut(cut)
        time.sleep(15)  # its heartbeats may be silent for ten
        hosts.heal(cut)
        out, message = process.communicate(timeout=180)
    finally:
        for host in (1, 2, 3):
            hosts.slow(host, None)
        if cut:
            hosts.heal(cut)
    assert process.returncode == 0, message
    reported = json.loads(out)
    assert reported["restarts"] >= 2
    for name in ("count-a", "count-b"):
        (counted,) = reported["results"][name].values()
        assert counted["counts"] == jobworld.expected(120_000)
    assert f"executor on {hosts.address(killed)} " in message
    assert hosts.address(cut) in message


@pytest.mark.long
def test_a_stream_through_spark_loses_nothing_when_an_executor_is_killed_and_a_host_is_cut_off(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The Publisher, the Subscriber and the driver are on host 0; the query's tasks on the others."""
    hosts = cluster.hosts
    until_workers(cluster)
    process = cluster.start([str(ROOT / "tests/system/spark_stream.py"), cluster.master, "3", str(tmp_path)])
    assert process.stdout is not None
    last: dict[str, Any] = {}
    try:
        for line in process.stdout:
            last = json.loads(line)
            if last.get("epoch") == 4:
                kill_executor(hosts, 2)
            elif last.get("epoch") == 12:
                hosts.cut(3)
        _, message = process.communicate(timeout=120)
    finally:
        process.kill()
        hosts.heal(3)
    assert process.returncode == 0, message
    assert last == {"wrong": [], "rows": 7_200}


def manifests(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if "manifest" in path.name.lower()]


def until_workers(cluster: Cluster) -> None:
    """What an earlier test has cut off is there again."""
    end_s = time.monotonic() + 90
    while cluster.spark.alive_workers() < 3 or cluster.executors():
        assert time.monotonic() < end_s
        time.sleep(0.3)


def is_connected(hosts: Any, host: int) -> bool:
    """Whether a Python worker there has a connection to another host."""
    reported = hosts.run(host, ["ss", "-Htnp", "state", "established", "src", hosts.address(host)]).stdout
    return any("python" in line and line.split()[3].startswith("10.77.0.1") for line in reported.splitlines())


def executors_on(hosts: Any, host: int) -> list[int]:
    actual = []
    for pid in hosts.pids(host):
        with contextlib.suppress(OSError):
            if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
                actual.append(pid)
    return actual


def kill_executor(hosts: Any, host: int) -> None:
    for pid in executors_on(hosts, host):
        os.kill(pid, signal.SIGKILL)
        return
    raise AssertionError(f"no executor on host {host}")
