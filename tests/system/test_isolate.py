"""`netstack taskmanager --isolate`: what user code does to its process is its slot's failure, and nobody else's."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_rig import ClusterRig

from netstack.cli import main

pytestmark = pytest.mark.slow
SLOTS = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRig]:
    with ClusterRig(tmp_path_factory.mktemp("isolated") / "cluster") as rig:
        words = ["--jobmanager", rig.address, "--listen", "tcp://127.0.0.1:0", "--memory", "48MiB", "--allow", "*"]
        words += ["--slots", str(SLOTS), "--isolate", "--process-memory", "512MiB", "--name", "host"]
        rig.taskmanagers.append(rig._start("taskmanager", *words, "--until-eof"))
        rig.wait_until(lambda: len(taskmanagers(rig)) == SLOTS)
        yield rig


def taskmanagers(rig: ClusterRig) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rig.ask(lambda client: client.taskmanagers())
    return found


def command(rig: ClusterRig, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    for name, value in rig.environment().items():
        os.environ[name] = value
    try:
        assert main([*words, "--json"]) == 0
    finally:
        for name in rig.environment():
            del os.environ[name]
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("how", ["exit", "segfault", "leak"])
def test_a_process_that_dies_is_one_slots_failure(
    how: str, cluster: ClusterRig, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    other = command(cluster, capsys, "submit", "cluster_jobs:forever")["job_id"]
    before = cluster.wait_running(other)
    ended = command(
        cluster, capsys, "submit", "cluster_jobs:deadly", "-p", f"how={how}", "-p", f"folder={tmp_path}", "--wait"
    )
    assert ended["state"] == "finished"
    assert ended["results"]["deadly"] == {"0": 3}
    assert (tmp_path / f"done-{how}").exists(), "it never did it"
    after = cluster.wait_running(other)
    assert attempts(after) == attempts(before), "another job's tasks were started again"
    command(cluster, capsys, "cancel", other)
    cluster.wait_until(lambda: len(taskmanagers(cluster)) == SLOTS)  # another process has taken its place
    if how != "leak":
        assert "slot " in cluster.log()
        assert "another process takes its place" in cluster.log()


def attempts(job: dict[str, Any]) -> list[Any]:
    return [(vertex["name"], each["attempt"]) for vertex in job["vertices"] for each in vertex["subtasks"]]


def test_nothing_is_left_when_it_is_told_to_end(cluster: ClusterRig) -> None:
    (process,) = cluster.taskmanagers
    pids = children_of(process.pid)
    assert len(pids) == SLOTS
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def children_of(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found
