"""Names that try to be something else, on every page, metric, table and log line that shows them."""

from __future__ import annotations

import json
import socket
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import cluster_jobs
import pytest
from prometheus_client.parser import text_string_to_metric_families
from system.cluster_rig import ClusterRig

from netstack.base.errors import RequestRefused
from netstack.cluster.jobmanager.client import JobClient
from netstack.network.connection.authentication import Secret
from netstack.schedule.graph.job_file import write_job
from netstack.schedule.graph.stream_builder import StreamEnvironment

pytestmark = pytest.mark.slow
HOST = 'a\u202e\n"\\<script>alert(1)</script>\x1b[2J\u2028{}=,\x85'
"""What the user of a TaskManager calls it."""
NAME = '"\\<script>alert(1)</script>{}=,[bold red]%s{x}$(id)\\n\U0001f4a5'
"""What the user of a job calls everything; it is printable."""


def odd(until: str) -> StreamEnvironment:
    job = StreamEnvironment(NAME)
    parameters = {"path": until, "pause_s": 0.001}
    numbers = job.source(cluster_jobs.Until, name=f"{NAME}1", parameters=parameters).uid(NAME)
    numbers.rebalance().sink(cluster_jobs.InOrder, name=f"{NAME}2")
    return job


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.mark.whole
def test_names_are_names_wherever_they_are_shown(tmp_path: Path) -> None:
    metrics = f"127.0.0.1:{free_port()}"
    with ClusterRig(tmp_path / "cluster", "--web", "127.0.0.1:0", "--metrics", "127.0.0.1:0") as rig:
        for change in ({"name": HOST}, {"operators": [{"name": HOST, "kind": "source", "function": "a:b"}]}):
            definition = {"document": write_job(odd("x").stream_graph()) | change, "code": {}, "builds": {}}
            with pytest.raises(RequestRefused, match="unprintable characters"):
                rig.ask(partial(JobClient.resubmit, definition=definition))
        rig.start_taskmanagers(2, flags=["--name", HOST, "--metrics", metrics, "--slots-in", "loop"])
        done = tmp_path / "done"
        job_id = rig.ask(lambda client: client.submit(odd(str(done))))
        rig.wait_running(job_id)
        token = Secret.from_file(rig.secret_file).web_token()

        def served(url: str) -> str:
            request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                return str(answer.read().decode())

        def run(*words: str) -> str:
            command = rig.command(*words)
            output, errors = command.communicate(timeout=120)
            assert command.returncode == 0, errors.decode()
            return output.decode()

        (taskmanager,) = rig.ask(JobClient.taskmanagers)
        shown = [served(f"http://{metrics}/metrics"), served(f"http://{rig.metrics}/metrics")]
        for text in shown:
            families = [*text_string_to_metric_families(text)]
            labels = {value for family in families for sample in family.samples for value in sample.labels.values()}
            assert len(families) > 5
            names = {each.removeprefix(f"{job_id}/") for each in labels if "script" in each}
            assert names
            assert names <= {NAME, f"{NAME}1", f"{NAME}2", f"{NAME}1.0/0.0"}, "exact, and nothing else"
        address = taskmanager["address"].removeprefix("tcp://")
        for words in (
            ("jobs",),
            ("jobs", job_id),
            ("stack", job_id),
            ("top", "--once", rig.address),
            ("top", "--once", address),
        ):
            shown.append(run(*words))
        assert all("<script>alert(1)" in each for each in shown[2:4])
        documents: list[Any] = []
        for words in (("jobs", "--json"), ("jobs", job_id, "--json"), ("top", "--once", "--json", address)):
            shown.append(run(*words))
            documents.append(json.loads(shown[-1]))
        assert documents[1]["name"] == NAME
        for path in ("/jobs/overview", f"/jobs/{job_id}", "/taskmanagers", f"/netstack/jobs/{job_id}"):
            shown.append(served(f"{rig.page}{path}"))
            json.loads(shown[-1])
        assert taskmanager["name"] in served(f"{rig.page}/taskmanagers/{quote(taskmanager['name'])}")
        done.touch()
        rig.wait_until(lambda: rig.job(job_id)["ended_at"])
        shown += [path.read_text() for path in sorted((tmp_path / "cluster").glob("*.log"))]
        assert sum(map(len, shown)) > 10_000
        for text in shown:
            assert all(line.isprintable() for line in text.split("\n")), ascii(text[:3000])
        assert rig.job(job_id)["state"] == "finished"
