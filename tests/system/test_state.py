"""What users expect of sources, keys and savepoints, in real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import state_jobs
from system.cluster_rig import ClusterRig

from netstack.cli import main
from netstack.schedule.commit_phase import COMMITTED

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRig]:
    with ClusterRig(tmp_path_factory.mktemp("cluster")) as rig:
        rig.start_taskmanagers(2, 2)
        yield rig


@pytest.fixture
def cluster(one: ClusterRig, monkeypatch: pytest.MonkeyPatch) -> ClusterRig:
    for name, value in one.environment().items():
        monkeypatch.setenv(name, value)
    return one


def command(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    """Runs a command; its one JSON document."""
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


@pytest.mark.whole
def test_an_async_source_that_advances_before_it_awaits_loses_nothing_to_checkpoints(
    cluster: ClusterRig, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = command(capsys, "submit", "state_jobs:advancing", "--wait")
    assert ended["results"]["sink"] == {"0": list(range(60))}
    assert cluster.job(ended["job_id"])["checkpoints_completed"] >= 5


@pytest.mark.whole
def test_keys_that_python_takes_for_one_are_counted_apart_and_stay_so_with_another_parallelism(
    cluster: ClusterRig, capsys: pytest.CaptureFixture[str]
) -> None:
    job_id = command(capsys, "submit", "state_jobs:keys")["job_id"]
    cluster.wait_until(lambda: cluster.job(job_id)["checkpoints_completed"] >= 3)
    saved = command(capsys, "savepoint", job_id, "--stop")
    ended = command(capsys, "submit", "state_jobs:keys", "-p", "parallelism=3", "--from", saved["path"], "--wait")
    expected = sorted([repr(key), state_jobs.ROUNDS] for key in state_jobs.KEYS)
    assert sorted(ended["results"]["sink"]["0"]) == expected


def test_a_savepoint_is_compared_with_the_job_when_it_is_submitted(
    cluster: ClusterRig, capsys: pytest.CaptureFixture[str]
) -> None:
    job_id = command(capsys, "submit", "state_jobs:keys")["job_id"]
    cluster.wait_until(lambda: cluster.job(job_id)["checkpoints_completed"] >= 2)
    path = command(capsys, "savepoint", job_id, "--stop")["path"]
    jobs = len(command(capsys, "jobs")["jobs"])
    words = ("submit", "state_jobs:changed", "--from", path, "--wait", "-p")

    assert main([*words, "name=tally"]) == 1
    message = capsys.readouterr().err
    assert "'counts' of operator 'count', but job 'keys'" in message
    assert "'tally' .uid('count')" in message
    assert len(command(capsys, "jobs")["jobs"]) == jobs  # it was never accepted

    expected = sorted([repr(key), state_jobs.ROUNDS] for key in state_jobs.KEYS)
    ended = command(capsys, *words, "name=tally", "-p", "uid=count")
    assert sorted(ended["results"]["sink"]["0"]) == expected

    assert main([*words, "name=tally", "--allow-non-restored-state", "--json"]) == 0
    printed = capsys.readouterr()
    ended = json.loads(printed.out)
    assert "state not restored" in printed.err
    assert cluster.job(ended["job_id"])["not_restored"] == ["count"]
    counts = [count for _, count in ended["results"]["sink"]["0"]]
    assert len(set(counts)) == 1
    assert counts[0] < state_jobs.ROUNDS  # what was counted before was left behind

    error = command(capsys, *words, "process=CountInLists", code=1)["error"]
    assert "'counts' has a default value" in error
    failed = command(capsys, "jobs")["jobs"][-1]
    assert failed["state"] == "failed"
    assert failed["restarts"] == 0


@pytest.mark.parametrize("interval_s", ["0.1", "1000"])
def test_effects_outside_happen_once_though_a_slot_dies_behind_the_last_commit(
    cluster: ClusterRig, capsys: pytest.CaptureFixture[str], tmp_path: Path, interval_s: str
) -> None:
    words = ["-p", f"folder={tmp_path}", "-p", f"interval_s={interval_s}"]
    ended = command(capsys, "submit", "state_jobs:two_phases", *words, "--wait")
    assert ended["state"] == "finished"
    assert (tmp_path / "killed").exists()
    assert cluster.job(ended["job_id"])["restarts"] == 1
    rows = [row for path in tmp_path.glob("*.json") for row in json.loads(path.read_text())]
    assert sorted(rows) == [*range(60)]


def test_without_checkpoints_a_slot_that_dies_behind_the_last_commit_fails_the_job(
    cluster: ClusterRig, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["-p", f"folder={tmp_path}", "-p", "takes_checkpoints=false"]
    ended = command(capsys, "submit", "state_jobs:two_phases", *words, "--wait", code=1)
    assert COMMITTED in ended["error"]
    assert (tmp_path / "killed").exists()
    rows = [row for path in tmp_path.glob("*.json") for row in json.loads(path.read_text())]
    assert len(rows) == len(set(rows)) <= 60
