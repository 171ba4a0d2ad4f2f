"""Whoever looks at a cluster ends nothing: results that are no JSON, on the page, over REST and in commands."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import cluster_jobs
import pytest
from system.cluster_rig import ClusterRig

from netstack.network.connection.authentication import Secret

pytestmark = pytest.mark.slow


@pytest.mark.whole
def test_a_result_that_is_no_json_is_shown_everywhere_and_ends_nothing(tmp_path: Path) -> None:
    with ClusterRig(tmp_path / "cluster", "--web", "127.0.0.1:0") as rig:
        token = Secret.from_file(rig.secret_file).web_token()

        def fetch(path: str) -> Any:
            request = urllib.request.Request(f"{rig.page}{path}", headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.loads(answer.read(), parse_constant=pytest.fail)

        def message(*words: str) -> Any:
            with rig.command(*words) as command:
                out, err = command.communicate(timeout=120)
            assert command.returncode == 0, err
            return json.loads(out, parse_constant=pytest.fail)

        rig.start_taskmanagers(1, 1)
        with rig.command("submit", "cluster_jobs:odd_results", "--json") as command:
            out, err = command.communicate(timeout=120)
        assert command.returncode == 0, err
        job_id = json.loads(out)["job_id"]

        def is_seen() -> bool:
            looks = fetch("/netstack/history")
            return any(job["results"].get("odd") for look in looks for job in look["snapshot"]["jobs"])

        rig.wait_until(is_seen)  # while the other half of the job still runs
        assert fetch(f"/netstack/jobs/{job_id}")["results"]["odd"] == {"0": cluster_jobs.ODD_AS_JSON}
        assert message("jobs", job_id, "--json")["results"]["odd"] == {"0": cluster_jobs.ODD_AS_JSON}
        rig.wait_until(lambda: rig.job(job_id)["ended_at"])
        assert message("jobs", job_id, "--json")["results"]["odd"] == {"0": cluster_jobs.ODD_AS_JSON}
        assert fetch(f"/jobs/{job_id}")["state"] == "FINISHED"
        assert rig.jobmanager is not None
        assert rig.jobmanager.poll() is None
