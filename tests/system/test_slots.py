"""Slots that are processes: what user code does to its process is its slot's failure, and nobody else's."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from process_tree import children_of, fork_servers_of, slots_of
from system.cluster_rig import ClusterRig

from netstack.cli import main
from netstack.network.connection.authentication import Secret
from netstack_transports.shm import unsupported

pytestmark = pytest.mark.slow
SLOTS = 3
DYING = ["exit", "segfault", "kill", "close_descriptors"]
RAISING = ["keyboard_interrupt", "system_exit", "leak", "thread"]
HANGING = ["loop", "regex", "sleep"]
FORKING = ["stays", "raises", "goes_on", "exits"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRig]:
    with ClusterRig(tmp_path_factory.mktemp("slots") / "cluster") as rig:
        rig.start_taskmanagers(SLOTS, flags=("--process-memory", "512MiB", "--cancellation-timeout", "1s"))
        yield rig


def command(rig: ClusterRig, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    for name, value in rig.environment().items():
        os.environ[name] = value
    try:
        assert main([*words, "--json"]) in (0, 1)
    finally:
        for name in rig.environment():
            del os.environ[name]
    return json.loads(capsys.readouterr().out)


def free_slots(rig: ClusterRig) -> int:
    (actual,) = rig.ask(lambda client: client.taskmanagers())
    free: int = actual["free_slots"]
    return free


def attempts(job: dict[str, Any]) -> list[Any]:
    return [(vertex["name"], each["attempt"]) for vertex in job["vertices"] for each in vertex["subtasks"]]


def happenings(job: dict[str, Any], what: str) -> list[str]:
    return [each["text"] for each in job["log"] if each["what"] == what]


@pytest.mark.whole
@pytest.mark.parametrize("how", [*DYING, *RAISING])
def test_what_user_code_does_to_its_process_is_its_own_failure(
    how: str, cluster: ClusterRig, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    other = command(cluster, capsys, "submit", "cluster_jobs:forever")["job_id"]
    before = cluster.wait_running(other)
    words = ["submit", "cluster_jobs:deadly", "-p", f"how={how}", "-p", f"folder={tmp_path}", "--wait"]
    ended = command(cluster, capsys, *words)
    assert ended["state"] == "finished"
    assert ended["results"]["deadly"] == {"0": 3}
    assert (tmp_path / f"done-{how}").exists(), "it never did it"
    (failure, *_) = happenings(cluster.job(ended["job_id"]), "failure")
    if how in DYING:
        assert failure.startswith("slot "), failure
        assert "its process" in failure
    if how in ("exit", "segfault"):
        assert "operator 'deadly'" in failure
        assert "cluster_jobs.py:" in failure
    assert attempts(cluster.wait_running(other)) == attempts(before), "another job's tasks were started again"
    command(cluster, capsys, "cancel", other)
    cluster.wait_until(lambda: free_slots(cluster) == SLOTS)


@pytest.mark.parametrize("what", FORKING)
def test_a_process_that_user_code_forks_never_goes_on_as_the_slot(
    what: str, cluster: ClusterRig, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["submit", "cluster_jobs:deadly", "-p", f"how=forked_child_{what}", "-p", f"folder={tmp_path}", "--wait"]
    ended = command(cluster, capsys, *words)
    assert (ended["state"], ended["results"]["deadly"]) == ("finished", {"0": 3})
    assert (tmp_path / f"done-forked_child_{what}").exists(), "it never did it"
    assert happenings(cluster.job(ended["job_id"]), "failure") == []
    if what != "stays":
        assert "returned to netstack and is ended" in cluster.log()
    cluster.wait_until(lambda: not any(map(children_of, slots_of(cluster.taskmanagers[0].pid))))


def test_a_fork_server_that_is_killed_is_started_again(
    cluster: ClusterRig, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    taskmanager = cluster.taskmanagers[0].pid
    job = command(cluster, capsys, "submit", "cluster_jobs:forever", "-p", "restarts=20")["job_id"]
    before = attempts(cluster.wait_running(job))
    for _ in range(2):
        (server,), slots = fork_servers_of(taskmanager), slots_of(taskmanager)
        os.kill(server, signal.SIGKILL)
        cluster.wait_until(lambda slots=slots: len(slots_of(taskmanager) - slots) == SLOTS)
    assert attempts(cluster.wait_running(job)) > before
    assert f"(process {server}) was killed" in cluster.log()
    assert children_of(os.getpid()).count(taskmanager) == 1, "the TaskManager goes on"
    command(cluster, capsys, "cancel", job)
    cluster.wait_until(lambda: free_slots(cluster) == SLOTS)
    words = ["submit", "cluster_jobs:deadly", "-p", "how=exit", "-p", f"folder={tmp_path}", "--wait"]
    assert command(cluster, capsys, *words)["state"] == "finished"


@pytest.mark.whole
@pytest.mark.parametrize("how", HANGING)
def test_code_that_never_returns_is_named_and_can_be_cancelled(
    how: str, cluster: ClusterRig, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["submit", "cluster_jobs:deadly", "-p", f"how={how}", "-p", f"folder={tmp_path}"]
    hanging = command(cluster, capsys, *words)["job_id"]
    cluster.wait_until(lambda: cluster.job(hanging)["blocked"])
    job = cluster.job(hanging)
    (blocked,) = job["blocked"]
    assert (blocked["operator"], blocked["function"]) == ("deadly", "do_to_process")
    assert blocked["file"].endswith("cluster_jobs.py")
    assert blocked["line"] > 0
    assert len(happenings(job, "blocked")) == 1
    (stack,) = command(cluster, capsys, "stack", hanging)["tasks"]
    assert stack["is_blocked"]
    functions = [frame["function"] for frame in stack["frames"]]
    assert functions.index("do_to_process") < functions.index("process")
    neighbour = command(cluster, capsys, "submit", "cluster_jobs:neighbour", "--wait")
    assert (neighbour["state"], neighbour["results"]["sum"]) == ("finished", {"0": 200 * 201 // 2})
    assert cluster.job(neighbour["job_id"])["restarts"] == 0
    assert cluster.job(hanging)["blocked"], "the neighbour had to wait for it"
    assert command(cluster, capsys, "cancel", hanging)["state"] == "canceled"
    cluster.wait_until(lambda: free_slots(cluster) == SLOTS)


@pytest.mark.whole
def test_a_blocked_slot_is_a_metric_of_its_taskmanager(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("prometheus_client")
    with ClusterRig(tmp_path / "cluster") as rig:
        rig.start_taskmanagers(2, flags=["--metrics", "127.0.0.1:0", "--cancellation-timeout", "0.5s"])
        stdout = rig.taskmanagers[0].stdout
        assert stdout is not None
        ready = json.loads(stdout.readline())
        place = ready["metrics"].split(", ")[2]  # behind those of the slots
        token = Secret.from_file(rig.secret_file).metrics_token

        def blocked() -> list[float]:
            request = urllib.request.Request(f"http://{place}/metrics", headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(request, timeout=120) as answer:
                lines = answer.read().decode().splitlines()
            return [float(line.split()[1]) for line in lines if line.startswith("netstack_slot_blocked_seconds{")]

        assert blocked() == [0.0, 0.0]
        job = command(rig, capsys, "submit", "cluster_jobs:deadly", "-p", "how=loop", "-p", f"folder={tmp_path}")
        rig.wait_until(lambda: sum(blocked()) >= 2.0)
        assert min(blocked()) == 0.0
        command(rig, capsys, "cancel", job["job_id"])
        rig.wait_until(lambda: blocked() == [0.0, 0.0])


def test_a_task_that_waits_has_a_stack_too(cluster: ClusterRig, capsys: pytest.CaptureFixture[str]) -> None:
    waiting = command(cluster, capsys, "submit", "cluster_jobs:neighbour", "-p", "pause_s=30.0")["job_id"]
    cluster.wait_running(waiting)
    (stack,) = command(cluster, capsys, "stack", waiting, "numbers")["tasks"]
    assert not stack["is_blocked"]
    assert "await trio.sleep(self.pause_s)" in [frame["source"] for frame in stack["frames"]]
    assert "run" not in {frame["function"] for frame in stack["frames"][-1:]}
    command(cluster, capsys, "cancel", waiting)


def test_the_slots_of_a_taskmanager_are_looked_at_as_one(
    cluster: ClusterRig, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["submit", "cluster_jobs:neighbour", "-p", "count=100000"]
    jobs = [command(cluster, capsys, *words)["job_id"] for _ in range(2)]
    actual: dict[str, Any] = {}

    def is_told() -> bool:
        actual.update(cluster.ask(lambda client: client.look()))
        mine = [job for job in actual["jobs"] if job["job_id"] in jobs]
        return all(
            job["vertices"][1]["latencies"] and all(task.get("records_out") for task in job["vertices"][0]["subtasks"])
            for job in mine
        )

    cluster.wait_until(is_told)
    (taskmanager,) = actual["taskmanagers"]
    assert taskmanager["network"]["pools"] == 2, "a partition of each job, each in a slot of its own"
    (address,) = [each["address"].partition("://")[2] for each in actual["taskmanagers"]]
    (top,) = command(cluster, capsys, "top", address, "--once")["taskmanagers"]
    assert {job["job_id"] for job in top["jobs"]} == set(jobs)
    assert all(job["tasks"]["running"] for job in top["jobs"])
    for job_id in jobs:
        source, sink = cluster.job(job_id)["vertices"]
        (latency,) = sink["latencies"]
        assert (latency["from"], latency["input"]) == (source["name"], 0)
        assert 0 <= latency["p50_us"] <= latency["p99_us"] <= latency["max_us"]
        assert source["latencies"] == []
        command(cluster, capsys, "cancel", job_id)


@pytest.mark.skipif(bool(unsupported()), reason=unsupported() or "supported")
def test_slots_of_a_job_share_memory_and_nothing_is_left_of_it(
    cluster: ClusterRig, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["submit", "cluster_jobs:forever", "-p", "parallelism=2", "-p", "restarts=5"]
    job_id = command(cluster, capsys, *words)["job_id"]
    cluster.wait_running(job_id)
    cluster.wait_until(lambda: shared_memory(cluster) == [2, 2])  # one stream each way, whatever the number of channels
    first, _ = [pid for pid in slot_processes(cluster) if memfds(pid, "netstack-shm")]
    os.kill(first, signal.SIGKILL)
    cluster.wait_until(lambda: happenings(cluster.job(job_id), "failure"))
    (failure,) = happenings(cluster.job(job_id), "failure")
    assert "killed by SIGKILL" in failure, "the one who died is blamed, not who had shared memory with it"
    cluster.wait_running(job_id)
    cluster.wait_until(lambda: shared_memory(cluster) == [2, 2])
    command(cluster, capsys, "cancel", job_id)
    cluster.wait_until(lambda: free_slots(cluster) == SLOTS)
    cluster.wait_until(lambda: shared_memory(cluster) == [])


@pytest.mark.whole
def test_slots_may_be_told_to_share_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ClusterRig(tmp_path / "cluster") as rig:
        rig.start_taskmanagers(2, flags=["--no-shared-memory"])
        job_id = command(rig, capsys, "submit", "cluster_jobs:forever", "-p", "parallelism=2")["job_id"]
        rig.wait_running(job_id)
        rig.wait_until(lambda: sum(map(connections, slot_processes(rig))) == 4)
        assert shared_memory(rig) == []


def test_each_job_meets_a_fresh_interpreter(
    cluster: ClusterRig, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pids = slot_processes(cluster)
    ended = command(cluster, capsys, "submit", "cluster_jobs:neighbour", "-p", "count=1", "--wait")
    assert ended["state"] == "finished"
    cluster.wait_until(lambda: len(slot_processes(cluster)) == SLOTS and slot_processes(cluster) != pids)


def test_dropped_records_leave_their_memory_to_the_next_ones(
    cluster: ClusterRig, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = command(cluster, capsys, "submit", "cluster_jobs:faulting", "--wait")
    ((faults,),) = ended["results"]["collect"].values()
    assert faults < 2_000, "of 25,000 pages"


@pytest.mark.whole
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_taskmanager_that_ends(number: signal.Signals, tmp_path: Path) -> None:
    with ClusterRig(tmp_path / "cluster") as rig:
        rig.start_taskmanagers(SLOTS)
        (process,) = rig.taskmanagers
        pids = [*children_of(process.pid), *fork_servers_of(process.pid), *slots_of(process.pid)]
        assert len(pids) == 1 + 1 + SLOTS
        process.send_signal(number)
        assert process.wait(120) == (0 if number == signal.SIGTERM else -number)
        rig.wait_until(lambda: not [pid for pid in pids if Path(f"/proc/{pid}").exists()])


@pytest.mark.whole
def test_taskmanagers_on_neighbouring_ports_share_out_the_ports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their slots want the same ports, and the port of the other one: who comes late takes another."""
    port = two_free_ports()
    with ClusterRig(tmp_path / "cluster") as rig:
        rig.start_taskmanagers(2, first_port=port + 1)
        rig.start_taskmanagers(2, first_port=port)
        ended = command(rig, capsys, "submit", "cluster_jobs:word_count", "-p", "parallelism=4", "--wait")
        assert ended.get("state") == "finished", ended
        assert rig.log().count("serves data at") >= 2
        assert "Traceback" not in rig.log()


def test_slots_in_one_loop_are_one_process(tmp_path: Path) -> None:
    with ClusterRig(tmp_path / "cluster") as rig:
        rig.start_taskmanagers(SLOTS, flags=("--slots-in", "loop"))
        assert not children_of(rig.taskmanagers[0].pid)


def two_free_ports() -> int:
    """The first of two neighbouring ports where nobody listens; below those that the system gives out by itself."""
    for port in random.sample(range(20_000, 32_000, 2), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            socket.create_server(("127.0.0.1", port + 1)).close()
            return port
    raise AssertionError("no two neighbouring ports are free")


def slot_processes(rig: ClusterRig) -> set[int]:
    return slots_of(rig.taskmanagers[0].pid)


def memfds(pid: int, name: str) -> int:
    """How many a process holds of them."""
    return sum(link.startswith(f"/memfd:{name}") for link in open_files(pid))


def shared_memory(rig: ClusterRig) -> list[int]:
    """How many streams through shared memory each slot process has that has any."""
    return sorted(filter(None, (memfds(pid, "netstack-shm") for pid in slot_processes(rig))))


def connections(pid: int) -> int:
    """How many ends of TCP connections a process holds."""
    established = {
        line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if line.split()[3] == "01"
    }
    return sum(link.removeprefix("socket:[").removesuffix("]") in established for link in open_files(pid))


def open_files(pid: int) -> list[str]:
    actual = []
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                actual.append(str(entry.readlink()))
    return actual
