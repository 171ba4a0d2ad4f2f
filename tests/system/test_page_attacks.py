"""Strangers at every port of a cluster while a job runs: HTTP of all kinds at each of them."""

from __future__ import annotations

import os
import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cluster_jobs
import pytest
from system.cluster_rig import ClusterRig, memory_bytes, port_of
from system.page_attacks import ATTACKS, attack, reset

from netstack.cluster.jobmanager.client import JobClient

pytestmark = pytest.mark.slow
ROUNDS = 5


def status_of(answer: bytes) -> int:
    actual = re.match(rb"HTTP/1\.[01] (\d+)", answer)
    return int(actual[1]) if actual else 0


@pytest.mark.whole
def test_a_stranger_s_bytes_end_nothing_at_any_port(tmp_path: Path) -> None:
    with ClusterRig(tmp_path / "cluster", "--web", "127.0.0.1:0", "--metrics", "127.0.0.1:0") as rig:
        assert rig.jobmanager is not None
        rig.start_taskmanagers(2)
        done = tmp_path / "done"
        job_id = rig.ask(lambda client: client.submit(cluster_jobs.honest(until=str(done))))
        rig.wait_running(job_id)
        page, metrics = port_of(rig.page), port_of(rig.metrics)
        (taskmanager,) = rig.ask(JobClient.taskmanagers)
        others = [metrics, port_of(rig.address), port_of(taskmanager["address"])]
        for name, (_, statuses) in ATTACKS.items():
            assert status_of(attack(page, name)) in statuses, f"{name} was not heard"
        elsewhere = [(port, name) for port in others for name in ATTACKS]
        with ThreadPoolExecutor(8) as strangers:  # some wait for the end of a handshake that never comes
            received = list(strangers.map(lambda each: attack(*each), elsewhere))
        assert all(received), [each for each, answer in zip(elsewhere, received, strict=True) if not answer]
        before = resources(rig.jobmanager.pid)
        for _ in range(ROUNDS):
            for name in ATTACKS:
                attack(page, name)
            for port in (page, *others):
                reset(port)
        rig.wait_until(lambda: resources(rig.jobmanager.pid)[0] <= before[0])  # type: ignore[union-attr]
        assert resources(rig.jobmanager.pid)[1] < before[1] + (16 << 20)
        for port, path in ((page, "/"), (metrics, "/metrics")):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as answer:
                text = answer.read().decode()
        assert 'netstack_jobmanager_server_failures_total{server="page"} 0.0' in text
        done.touch()
        ended: dict[str, Any] = {}

        def has_ended() -> bool:
            ended.update(rig.job(job_id))
            return bool(ended["ended_at"])

        rig.wait_until(has_ended)
        assert (ended["state"], ended["restarts"]) == ("finished", 0)
        assert ended["results"]["count"]["0"] > 0  # it fails if one is missing or out of order
        assert rig.jobmanager.poll() is None
        assert "Traceback" not in rig.log()


def resources(pid: int) -> tuple[int, int]:
    """Descriptors, and bytes of memory."""
    return len(os.listdir(f"/proc/{pid}/fd")), memory_bytes(pid)
