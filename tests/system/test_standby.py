"""A second JobManager on the folder of the first goes on with its jobs when that is killed, or only stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import jobworld
import pytest
from system.cluster_rig import PATIENCE_S, ClusterRig, end

from netstack.cli import main
from netstack.cluster.jobmanager.client import JobClient

pytestmark = pytest.mark.slow


def free_address() -> str:
    with socket.socket() as actual:
        actual.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{actual.getsockname()[1]}"


def counted(results: dict[str, Any], operator: str) -> list[list[int]]:
    return sorted(row for subtask in results[operator].values() for row in subtask["counts"])


@pytest.mark.whole
@pytest.mark.parametrize("how", ["SIGKILL", pytest.param("SIGSTOP", marks=pytest.mark.long)])
def test_the_standby_goes_on_with_the_jobs_of_who_is_gone(tmp_path: Path, how: str) -> None:
    address = free_address()
    with ClusterRig(tmp_path) as rig:
        first, folder = rig.jobmanager, str(rig.folder / "jobs")
        assert first is not None
        standby = rig._start("jobmanager", "--listen", address, "--folder", folder, "--standby")
        try:
            rig.address += f",{address}"
            rig.start_taskmanagers(1, 1, flags=["--heartbeat-timeout", "3s"])
            words = ["submit", "jobworld:two_pipelines", "--wait", "--json"]
            with rig.command(*words) as waiting:
                rig.wait_until(lambda: rig.ask(JobClient.jobs))
                (job,) = rig.ask(JobClient.jobs)
                rig.wait_until(lambda: rig.job(job["job_id"])["checkpoints_completed"] >= 2)
                os.kill(first.pid, signal.Signals[how])
                assert standby.stdout is not None
                assert json.loads(standby.stdout.readline())["address"] == address
                if how == "SIGSTOP":
                    rig.wait_until(lambda: "taken up again" in rig.log())
                    os.kill(first.pid, signal.SIGCONT)
                    assert first.wait(PATIENCE_S) == 1
                    assert "took over" in rig.log()
                    assert "Exception Group" not in rig.log()
                out, message = waiting.communicate(timeout=PATIENCE_S)
            assert waiting.returncode == 0, message
            results = json.loads(out)["results"]
            assert counted(results, "count-a") == counted(results, "count-b") == jobworld.expected(6000)
            rig.address = address
            assert [(each["job_id"], each["state"]) for each in rig.ask(JobClient.jobs)] == [
                (job["job_id"], "finished")
            ]
        finally:
            end(standby)


def test_a_standby_needs_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobmanager", "--standby"]) == 2
    assert "needs the --folder" in capsys.readouterr().err
