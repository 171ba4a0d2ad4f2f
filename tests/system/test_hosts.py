"""Several hosts, each with an address of its own: daemons, a Spark cluster, a killed process, a cut link.

The hosts are network namespaces (`tools/hosts.py`), so what crosses between them crosses a network.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tool_modules import load_tool

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.xdist_group("hosts")]  # one set of hosts for all

ROOT = Path(__file__).resolve().parents[2]
HEARTBEAT_S = 3.0


tool = load_tool("hosts")


class Bench:
    """Hosts with daemons, and `netstack-bench` on host 0."""

    def __init__(self, hosts: Any, daemons: Any, secret_file: Path) -> None:
        self.hosts = hosts
        self.daemons = daemons
        self._secret_file = secret_file

    def words(self, command: str, *arguments: str) -> list[str]:
        flags = ["--hosts", self.daemons.flag, "--secret-file", str(self._secret_file), "--json"]
        return [sys.executable, "-m", "netstack_bench", command, *flags, *arguments]

    def run(self, command: str, *arguments: str, code: int = 0) -> dict[str, Any]:
        done = self.hosts.run(0, self.words(command, *arguments), timeout=240)
        assert done.returncode == code, done.stderr
        actual: dict[str, Any] = json.loads(done.stdout)
        return actual

    def start(self, command: str, *arguments: str) -> subprocess.Popen[str]:
        process: subprocess.Popen[str] = self.hosts.start(
            0, self.words(command, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        return process

    def wait_running(self) -> None:
        """Waits until every daemon has tasks of a run."""
        words = [sys.executable, "-m", "netstack.cli", "top", *self.daemons.flag.split(",")]
        words += ["--secret-file", str(self._secret_file), "--once", "--json"]
        views: list[Any] = []
        while not views or not all(any(job["tasks"]["running"] for job in view["jobs"]) for view in views):
            views = json.loads(self.hosts.run(0, words, timeout=240).stdout)["taskmanagers"]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    secret_file = tmp_path_factory.mktemp("hosts") / "secret"
    secret_file.touch(mode=0o600)
    secret_file.write_text("a secret for the hosts of one test run")
    with tool.Hosts(3, rate="800mbit") as hosts:
        daemons = tool.Daemons(hosts, secret_file, ["--heartbeat-timeout", f"{HEARTBEAT_S:g}s", "--slots", "2"])
        daemons.start_all()
        yield Bench(hosts, daemons, secret_file)


def failed_run(process: subprocess.Popen[str]) -> str:
    """The error of a run that fails long before its end."""
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 1
    error: str = json.loads(out)["error"]
    assert "Traceback" not in error
    return error


@pytest.mark.whole
def test_a_sweep_over_three_daemons_on_three_addresses(bench: Bench, tmp_path: Path) -> None:
    arguments = ["--timeouts", "100ms,0", "--record-sizes", "1KiB", "--channels", "1", "--seconds", "0.4"]
    actual = bench.run("sweep", *arguments, "--repeats", "1", "--output", str(tmp_path / "sweep"))
    assert actual["failed"] == 0
    assert len(actual["rows"]) == 4
    for row in actual["rows"]:
        assert row["delivered"]
        assert {host["address"].partition(":")[0] for host in row["hosts"]} == {
            bench.hosts.address(host) for host in (1, 2, 3)
        }
        assert len(row["pairs"]) == 9
        remote = [pair for pair in row["pairs"] if not pair["is_local"]]
        assert len(remote) == 6
        assert all(pair["records"] > 0 for pair in remote)
    assert (tmp_path / "sweep" / "report.html").exists()


@pytest.mark.whole
def test_clocks_are_compared_and_they_are_the_same_here(bench: Bench) -> None:
    actual = bench.run("run", "--seconds", "0.5", "--rate", "500", "--buffer-timeout", "1ms")
    for host in actual["hosts"]:
        assert abs(host["clock_offset_us"]) <= host["clock_uncertainty_us"]  # namespaces share their clock
    assert actual["latency_us"]["p50"] > 0
    assert all(pair["latency_uncertainty_us"] > 0 for pair in actual["pairs"] if not pair["is_local"])


@pytest.mark.whole
def test_round_trips_are_measured_by_one_clock(bench: Bench) -> None:
    actual = bench.run("run", "--seconds", "0.5", "--rate", "500", "--buffer-timeout", "1ms", "--relay")
    assert actual["delivered"]
    assert actual["round_trip_latency_us"]["p50"] > 0


@pytest.mark.whole
@pytest.mark.leaves("a new daemon in the place of the one that was killed")
def test_a_daemon_killed_in_the_middle_of_a_run(bench: Bench) -> None:
    process = bench.start("run", "--seconds", "600")
    bench.wait_running()
    bench.daemons.kill(2)
    error = failed_run(process)
    assert bench.hosts.address(2) in error
    bench.daemons.start(2)
    assert bench.run("run", "--seconds", "0.5")["delivered"]


@pytest.mark.whole
def test_a_link_cut_in_the_middle_of_a_run(bench: Bench) -> None:
    process = bench.start("run", "--seconds", "600")
    bench.wait_running()
    bench.hosts.cut(3)
    try:
        error = failed_run(process)
    finally:
        bench.hosts.heal(3)
    assert bench.hosts.address(3) in error
    assert bench.run("run", "--seconds", "0.5")["delivered"]  # waits for the slots that the cut-off daemon still held


@pytest.mark.whole
def test_a_coordinator_that_dies_leaves_nothing(bench: Bench) -> None:
    process = bench.start("run", "--seconds", "60")
    bench.wait_running()
    process.kill()
    process.wait()
    assert bench.run("run", "--seconds", "0.5")["delivered"]


@pytest.mark.whole
def test_a_stranger_is_kept_out(bench: Bench, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.touch(mode=0o600)
    other.write_text("another secret, which is long enough")
    words = [sys.executable, "-m", "netstack_bench", "run", "--hosts", bench.daemons.flag, "--json", "--seconds", "0.3"]
    wrong = bench.hosts.run(0, [*words, "--secret-file", str(other)], timeout=240)
    assert wrong.returncode == 1
    assert "secret" in json.loads(wrong.stdout)["error"]
    without = bench.hosts.run(0, words, timeout=240)
    assert without.returncode == 1
    assert "secret" in json.loads(without.stdout)["error"]


@pytest.mark.whole
def test_hosts_of_a_run_that_was_killed_are_replaced_and_those_of_one_that_is_up_are_not() -> None:
    words = [sys.executable, str(ROOT / "tools/hosts.py"), "daemons", "--count", "2", "--name", "nstest"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "exec --name nstest -- " in process.stdout.readline()
    again = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert (again.returncode, "hosts named nstest" in again.stderr) == (1, True)
    process.kill()
    process.communicate()
    assert len(namespaces("nstest")) == 4
    replaced = subprocess.Popen([*words, "--count", "1"], stdout=subprocess.PIPE, text=True)
    assert replaced.stdout is not None
    assert replaced.stdout.readline()
    assert namespaces("nstest") == {"nstest-sw", "nstest-0", "nstest-1"}
    replaced.send_signal(signal.SIGINT)
    replaced.communicate(timeout=120)
    assert (replaced.returncode, namespaces("nstest")) == (0, set())


def namespaces(name: str) -> set[str]:
    reported = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in reported.splitlines() if line.startswith(f"{name}-")}
