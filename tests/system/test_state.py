"""What users expect of sources, keys and savepoints, in real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cluster_rig import ClusterRig

from netstack.cli import main

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


def test_an_async_source_that_advances_before_it_awaits_loses_nothing_to_checkpoints(
    cluster: ClusterRig, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = command(capsys, "submit", "state_jobs:advancing", "--wait")
    assert ended["results"]["sink"] == {"0": list(range(60))}
    assert cluster.job(ended["job_id"])["checkpoints_completed"] >= 5
