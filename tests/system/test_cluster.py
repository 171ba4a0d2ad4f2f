"""Jobs on a cluster of real processes: what runs, where it runs, and what is said when it does not."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cluster_jobs
import jobworld
import pytest
from system.cluster_rig import PATIENCE_S, ClusterRig, end

from netstack.base.errors import JobFailed
from netstack.cli import main
from netstack.cluster.jobmanager.client import JobClient
from netstack.network.connection.authentication import Secret
from netstack.schedule.plan.plan import make_plan
from netstack.schedule.slots.slots import LoadBalanceMode

pytestmark = pytest.mark.slow


def command(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    """Runs a command; its one JSON document."""
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRig]:
    """Four TaskManagers of two slots; all but the last one were started in a folder with a module of its own."""
    folder = tmp_path_factory.mktemp("four")
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "only_on_three.py").write_text("def same(item):\n    return item\n")
    with ClusterRig(folder / "cluster", "--load-balance", "slots") as rig:
        rig.start_taskmanagers(2, 2, 2, flags=["--allow-submitted"], cwd=elsewhere)
        rig.start_taskmanagers(2, flags=["--allow-submitted"])
        yield rig


@pytest.fixture
def cluster(four: ClusterRig, monkeypatch: pytest.MonkeyPatch) -> ClusterRig:
    for name, value in four.environment().items():
        monkeypatch.setenv(name, value)
    return four


def test_word_count_over_four_taskmanagers(cluster: ClusterRig, capsys: pytest.CaptureFixture[str]) -> None:
    ended = command(capsys, "submit", "cluster_jobs:word_count", "-p", "parallelism=8", "--wait")
    assert ended["state"] == "finished"
    assert ended["results"]["result"] == {"0": cluster_jobs.expected_counts()}
    job = command(capsys, "jobs", ended["job_id"][:6])
    vertices = {vertex["name"]: vertex for vertex in job["vertices"]}
    assert [*vertices] == ["source -> flat_map", "count", "result"]
    places = {subtask["taskmanager"] for vertex in job["vertices"] for subtask in vertex["subtasks"]}
    assert len(places) == 4


@pytest.mark.whole
def test_a_job_that_fails_says_which_operator_and_why(cluster: ClusterRig, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "cluster_jobs:raising", "--wait"]) == 1
    message = capsys.readouterr().err.strip().splitlines()
    assert message[-1].startswith("netstack: ")
    assert "check" in message[-1]
    assert "ValueError: operator 'check': no room for 2" in message[-1]


@pytest.mark.whole
def test_a_module_that_is_missing_on_one_host(cluster: ClusterRig, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "cluster_jobs:with_code_of", "-p", "module=only_on_three", "--wait"]) == 1
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert "'only_on_three'" in message
    taskmanagers = command(capsys, "jobs")["taskmanagers"]
    assert taskmanagers[3]["name"] in message, "it does not say where"


def test_other_code_than_where_the_job_was_submitted_is_refused(
    cluster: ClusterRig, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_on_three.py").write_text("def same(item):\n    return item  # newer\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert (
        main(["submit", "cluster_jobs:with_code_of", "-p", "module=only_on_three", "-p", "parallelism=3", "--wait"])
        == 1
    )
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert "'only_on_three' is build" in message
    assert "where the job was submitted" in message


def test_one_sentence_for_what_cannot_be(
    cluster: ClusterRig, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def message(*words: str, code: int = 1) -> str:
        assert main([*words]) == code
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1
        return lines[0]

    assert message("jobs", "no-such-job").startswith("netstack: there is no job 'no-such-job'")
    other = tmp_path / "secret"
    other.write_bytes(Secret.generate().reveal())
    other.chmod(0o600)
    assert "shared secret differs" in message("jobs", "--secret-file", str(other))
    assert "in use" in message("jobmanager", "--listen", cluster.address)
    folder = str(cluster.folder / "jobs")
    assert f"{folder} is in use" in message("jobmanager", "--listen", "127.0.0.1:0", "--folder", folder, code=2)
    assert "min_parallelism=9, max_parallelism=4: give" in message(
        "jobmanager", "--min-parallelism", "9", "--max-parallelism", "4", code=2
    )
    assert "answers at tcp://127.0.0.1:1" in message("jobs", "--jobmanager", "tcp://127.0.0.1:1")
    assert "no such thing" in message("submit", "cluster_jobs:no_such_thing", code=2).replace("_", " ")


def test_a_job_is_listed_cancelled_and_remembered(cluster: ClusterRig, capsys: pytest.CaptureFixture[str]) -> None:
    job_id = command(capsys, "submit", "cluster_jobs:forever", "-p", "parallelism=2")["job_id"]
    cluster.wait_running(job_id)
    assert main(["jobs"]) == 0
    displayed = capsys.readouterr().out
    assert "4 TaskManagers, 6 of 8 slots free" in displayed
    assert main(["jobs", job_id]) == 0
    assert "4 running" not in capsys.readouterr().out  # two vertices of two
    assert main(["savepoint", job_id]) == 1
    assert "checkpoint" in capsys.readouterr().err
    assert command(capsys, "cancel", job_id) == {"job_id": job_id, "state": "canceled"}
    assert command(capsys, "jobs", job_id)["state"] == "canceled"
    assert sum(each["free_slots"] for each in command(capsys, "jobs")["taskmanagers"]) == 8


@pytest.mark.whole
@pytest.mark.parametrize(("mode", "spread"), [("tasks", [3, 3, 3]), ("none", [4, 3, 2])])
def test_tasks_are_where_the_plan_puts_them(
    mode: str, spread: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(cluster_jobs.two_vertices().stream_graph(), taskmanagers=3, slots=2, mode=LoadBalanceMode(mode))
    assert plan.placement is not None
    assert plan.placement.tasks.tolist() == spread
    with ClusterRig(tmp_path, "--load-balance", mode) as rig:
        for name, value in rig.environment().items():
            monkeypatch.setenv(name, value)
        rig.start_taskmanagers(2, 2, 2)
        job_id = command(capsys, "submit", "cluster_jobs:two_vertices")["job_id"]
        job = rig.wait_running(job_id)
        names = [each["name"] for each in command(capsys, "jobs")["taskmanagers"]]
        tasks = Counter(subtask["taskmanager"] for vertex in job["vertices"] for subtask in vertex["subtasks"])
        assert [tasks[name] for name in names] == spread
        for index, vertex in enumerate(job["vertices"]):
            ours = [names.index(subtask["taskmanager"]) for subtask in vertex["subtasks"]]
            assert ours == plan.placement.taskmanagers_of(index).tolist()


@pytest.mark.long
def test_two_groups_take_thirty_slots_and_wait_with_twenty_nine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ClusterRig(tmp_path, "--slot-timeout", "8s") as rig:
        for name, value in rig.environment().items():
            monkeypatch.setenv(name, value)
        rig.start_taskmanagers(20, 9)
        job_id = command(capsys, "submit", "cluster_jobs:two_groups")["job_id"]
        rig.wait_until(lambda: rig.job(job_id)["waits_for"])
        waiting = rig.job(job_id)
        assert waiting["state"] == "running"
        assert waiting["missing_slots"] == 1
        assert "of 29" in waiting["waits_for"]
        rig.wait_until(lambda: rig.job(job_id)["ended_at"])
        reason = rig.job(job_id)["reason"]
        assert "30 slots" in reason
        rig.start_taskmanagers(1)
        job_id = command(capsys, "submit", "cluster_jobs:two_groups")["job_id"]
        job = rig.wait_running(job_id)
        assert [len(vertex["subtasks"]) for vertex in job["vertices"]] == [10, 20]
        places = {
            (subtask["taskmanager"], subtask["slot"]) for vertex in job["vertices"] for subtask in vertex["subtasks"]
        }
        assert len(places) == 30


def test_a_savepoint_is_taken_and_another_job_goes_on_from_it(
    cluster: ClusterRig, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("jobworld:two_pipelines", "-p", "count=3000")
    job_id = command(capsys, "submit", *words)["job_id"]
    cluster.wait_until(lambda: cluster.job(job_id)["checkpoints_completed"])
    saved = command(capsys, "savepoint", job_id, "--stop")
    assert Path(saved["path"]).is_dir()
    assert command(capsys, "jobs", job_id)["state"] == "finished"
    ended = command(capsys, "submit", *words, "--from", saved["path"], "--wait")
    assert counted(ended["results"], "count-a") == counted(ended["results"], "count-b") == jobworld.expected(3000)
    assert main(["submit", *words, "--from", saved["path"] + "0"]) == 1
    assert saved["path"] + "0" in capsys.readouterr().err


def test_a_module_is_sent_with_its_job(cluster: ClusterRig, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "sent_along.py").write_text("def same(item):\n    return item\n")
    words = ("submit", "cluster_jobs:with_code_of", "-p", "module=sent_along", "--wait")
    assert main([*words]) == 1
    assert "No module named 'sent_along'" in capsys.readouterr().err
    assert command(capsys, *words, "--ship", str(tmp_path / "sent_along.py"))["state"] == "finished"


@pytest.mark.long
def test_a_failure_in_code_that_was_sent_is_told_with_its_lines_and_remembered(tmp_path: Path) -> None:
    """By `submit --wait`, by `JobFailed`, by `jobs`; by a JobManager that has come back, too."""
    (tmp_path / "sent_failing.py").write_text("def same(item):\n    return {}[item]\n")
    with ClusterRig(tmp_path / "cluster") as rig:
        rig.start_taskmanagers(4, flags=["--allow-submitted"])
        words = ("cluster_jobs:with_code_of", "-p", "module=sent_failing", "--ship", str(tmp_path / "sent_failing.py"))
        message = communicate(rig.command("submit", *words, "-p", "parallelism=1", "--wait"), 1)[1]
        job_line, *lines, last = message.splitlines()
        job_id = job_line.removeprefix("job ")
        text = "\n".join(lines)
        assert re.search(r'\.zip/sent_failing\.py", line 2, in same\n    return \{\}\[item\]\nKeyError: ', text)
        assert re.search(r"KeyError: operator 'map': .*, at sent_failing\.py:2 \(", last)
        with pytest.raises(JobFailed) as caught:
            rig.ask(lambda client: client.wait(job_id))
        assert caught.value.traceback == text
        assert text in communicate(rig.command("jobs", job_id), 0)[0]
        assert rig.jobmanager is not None
        end(rig.jobmanager)
        rig.start_jobmanager(rig.address)
        (failure,) = json.loads(communicate(rig.command("jobs", job_id, "--json"), 0)[0])["failures"]
        assert (failure["type"], failure["traceback"]) == ("KeyError", text)
        assert failure["report"]["errors"][0]["frames"][-1]["source"] == "return {}[item]"


def communicate(process: subprocess.Popen[bytes], code: int) -> tuple[str, str]:
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, err
    return out.decode(), err.decode()


@pytest.mark.long
def test_who_waits_for_a_job_gets_its_results_though_the_jobmanager_is_killed(tmp_path: Path) -> None:
    with ClusterRig(tmp_path) as rig:
        rig.start_taskmanagers(1, 1)
        words = ["submit", "jobworld:two_pipelines", "--wait", "--json"]
        with rig.command(*words) as waiting:
            rig.wait_until(lambda: rig.ask(JobClient.jobs))
            (job,) = rig.ask(JobClient.jobs)
            rig.wait_until(lambda: rig.job(job["job_id"])["checkpoints_completed"] >= 2)
            assert rig.jobmanager is not None
            end(rig.jobmanager)
            rig.start_jobmanager(rig.address)
            out, message = waiting.communicate(timeout=PATIENCE_S)
        assert waiting.returncode == 0, message
        lines = message.decode().splitlines()
        # How soon TaskManagers dial again decides whether it is told that slots are missing meanwhile.
        assert [line.split(" (")[0] for line in lines if not line.startswith("the job waits for ")] == [
            f"job {job['job_id']}",
            "lost the JobManager",
            "connected to a JobManager again",
        ]
        results = json.loads(out)["results"]
        assert counted(results, "count-a") == counted(results, "count-b") == jobworld.expected(6000)


@pytest.mark.long
def test_an_operator_that_computes_for_30_s_loses_no_heartbeat(
    cluster: ClusterRig, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = command(capsys, "submit", "cluster_jobs:computing", "-p", "seconds=30", "--wait")
    assert ended["results"]["result"] == {"0": [0, 1, 2]}
    assert command(capsys, "jobs", ended["job_id"])["restarts"] == 0


def counted(results: dict[str, Any], operator: str) -> list[list[int]]:
    return sorted(row for subtask in results[operator].values() for row in subtask["counts"])
