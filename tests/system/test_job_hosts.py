"""A cluster on hosts of their own: one is unplugged, its region runs elsewhere; it comes back and says nothing stale.

One has a slow line: its task gets a second attempt.

The hosts are network namespaces (`netstack.testing.namespaces`); everything is done by the commands that a user has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import batch_jobs
import jobworld
import pytest

from netstack.testing.namespaces import Hosts

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.xdist_group("hosts")]  # one set of hosts for all

ROOT = Path(__file__).resolve().parents[2]
PER_S = 3_000.0


class Cluster:
    """A JobManager on host 0, a TaskManager of one slot on each other host; and a user on host 0."""

    def __init__(self, hosts: Any, folder: Path, heartbeat_timeout: str) -> None:
        self.hosts = hosts
        self.folder = folder
        self.heartbeat_timeout = heartbeat_timeout
        self.secret = folder / "secret"
        self.secret.touch(mode=0o600)
        self.secret.write_text("a secret for the hosts of one test run")
        self.address = f"tcp://{hosts.address(0)}:6120"
        self._start(0, "jobmanager", "--listen", self.address, "--folder", str(folder / "jobs"))
        for host in range(1, hosts.count + 1):
            self._start(
                host,
                *("taskmanager", "--jobmanager", self.address, "--listen", "tcp://0.0.0.0:6121"),
                *("--slots", "1", "--allow", "jobworld:", "--allow", "batch_jobs:", "--allow", "cluster_jobs:"),
                *("--name", f"host-{host}", "--memory", "32MiB"),
            )

    def _start(self, host: int, *words: str) -> None:
        command = [sys.executable, "-m", "netstack.cli", *words, "--secret-file", str(self.secret)]
        command += ["--heartbeat-timeout", self.heartbeat_timeout, "--json"]
        with (self.folder / f"log-{host}").open("w") as log:
            process = self.hosts.start(host, command, stdout=subprocess.PIPE, stderr=log)
        assert process.stdout.readline(), (self.folder / f"log-{host}").read_text()

    def ask(self, command: str, *words: str) -> dict[str, Any]:
        flags = ["--jobmanager", self.address, "--secret-file", str(self.secret), "--json"]
        done = self.hosts.run(0, [sys.executable, "-m", "netstack.cli", command, *words, *flags], timeout=180)
        assert done.returncode == 0, done.stderr
        actual: dict[str, Any] = json.loads(done.stdout)
        return actual

    def until(self, job_id: str, condition: Callable[[dict[str, Any]], Any], within_s: float = 120.0) -> dict[str, Any]:
        end_s = time.monotonic() + within_s
        while not condition(actual := self.ask("jobs", job_id)):
            assert time.monotonic() < end_s, json.dumps(actual["log"][-10:], indent=1)
            time.sleep(0.2)
        return actual


@contextmanager
def open_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heartbeat_timeout: str) -> Iterator[Cluster]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(jobworld.__file__).parent), str(ROOT)]))
    with Hosts(3) as hosts:
        yield Cluster(hosts, tmp_path, heartbeat_timeout)


def place(found: dict[str, Any], operator: str) -> tuple[str, int]:
    (task,) = next(vertex["subtasks"] for vertex in found["vertices"] if operator in vertex["operators"])
    return str(task["taskmanager"]), int(task["attempt"])


@pytest.mark.parametrize(
    ("unplugged_s", "heartbeat_timeout"), [(8.0, "2s"), pytest.param(30.0, "10s", marks=pytest.mark.long)]
)
@pytest.mark.long
def test_an_unplugged_hosts_region_runs_elsewhere_and_the_host_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unplugged_s: float, heartbeat_timeout: str
) -> None:
    with open_cluster(tmp_path, monkeypatch, heartbeat_timeout) as cluster:
        unplug(cluster, unplugged_s)


def unplug(cluster: Cluster, unplugged_s: float) -> None:
    """The pipelines last a while longer than the host is away."""
    count = int((unplugged_s + 8) * PER_S)
    words = ["jobworld:two_pipelines", "-p", f"count={count}", "-p", f"per_s={PER_S}"]
    job_id = str(cluster.ask("submit", *words)["job_id"])
    actual = cluster.until(job_id, lambda actual: actual["checkpoints_completed"] >= 2)
    (before, _), (other, _) = place(actual, "count-a"), place(actual, "count-b")
    assert before != other
    host = next(host for host in (1, 2, 3) if before.startswith(cluster.hosts.address(host)))
    cluster.hosts.cut(host)
    cut_s = time.monotonic()
    actual = cluster.until(
        job_id, lambda actual: actual["tasks"] == {"running": 4} and place(actual, "count-a")[1] == 1
    )
    assert place(actual, "count-a")[0] not in (before, other)
    assert actual["restarts"] == 1, "one cause, whoever noticed it first"
    time.sleep(max(0.0, unplugged_s - (time.monotonic() - cut_s)))
    assert len(cluster.ask("jobs", job_id)["vertices"]) == 4
    cluster.hosts.heal(host)
    actual = cluster.until(job_id, lambda actual: actual["state"] == "finished", 60.0)
    for pipeline in "ab":
        rows = [row for subtask in actual["results"][f"count-{pipeline}"].values() for row in subtask["counts"]]
        assert sorted(rows) == jobworld.expected(count)
    assert (place(actual, "count-a")[1], place(actual, "count-b")[1]) == (1, 0)
    assert actual["restarts"] == 1, "what it said when it came back meant nothing"
    # It offers its slot again: three pipelines take all three hosts.
    again = str(cluster.ask("submit", "jobworld:three_pipelines")["job_id"])
    actual = cluster.until(again, lambda actual: actual["state"] == "finished")
    hosts = {place(actual, f"count-{name}")[0].partition(":")[0] for name in "abc"}
    assert hosts == {cluster.hosts.address(host) for host in (1, 2, 3)}


@pytest.mark.long
def test_the_task_behind_a_slow_line_gets_a_second_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All read as much; what two read in a moment takes the third a minute. Its second attempt is what counts."""
    with open_cluster(tmp_path, monkeypatch, "10s") as cluster:
        cluster.hosts.slow(3, "256kbit", inbound_only=True)
        slow = cluster.hosts.address(3)
        job_id = str(cluster.ask("submit", "batch_jobs:behind_a_slow_line")["job_id"])
        actual = cluster.until(job_id, lambda actual: actual["state"] == "finished", 100.0)
    totals: dict[int, int] = {}
    for key, total in actual["results"]["result"]["0"]:
        totals[key] = totals.get(key, 0) + total
    assert totals == dict(batch_jobs.slow_line_totals())
    sums = next(vertex for vertex in actual["vertices"] if vertex["name"] == "sums")["subtasks"]
    (second,) = [each for each in sums if each["attempt"]]
    assert all(not each["taskmanager"].startswith(f"{slow}:") for each in sums), "nor did the other two wait"
    assert second["attempt"] == 1
    assert actual["speculation"]["won"] == 1
    assert [name.partition(":")[0] for name in actual["speculation"]["blocked"]] == [slow]
    assert actual["restarts"] == 0
