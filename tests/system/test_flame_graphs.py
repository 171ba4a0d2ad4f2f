"""Flame graphs of tasks in real processes: over REST while code blocks its slot, and drawn by the page."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from browser import open_browser
from system.cluster_rig import ClusterRig

from netstack.network.connection.authentication import Secret

pytestmark = pytest.mark.slow
PATIENCE_S = 120.0


def names_of(node: dict[str, Any]) -> Iterator[str]:
    yield node["name"]
    for child in node["children"]:
        yield from names_of(child)


def submit(rig: ClusterRig, *words: str) -> str:
    with rig.command("submit", *words, "--json") as command:
        out, err = command.communicate(timeout=120)
    assert command.returncode == 0, err
    actual: str = json.loads(out)["job_id"]
    return actual


@pytest.mark.whole
@pytest.mark.parametrize("slots_in", [pytest.param("processes", marks=pytest.mark.long), "loop"])
def test_a_task_that_computes_is_sampled_from_outside(tmp_path: Path, slots_in: str) -> None:
    """In a process of its own it never returns; in a shared loop it holds the loop up again and again."""
    with ClusterRig(tmp_path / "cluster", "--web", "127.0.0.1:0") as rig:
        rig.start_taskmanagers(2, flags=("--slots-in", slots_in))
        token = Secret.from_file(rig.secret_file).web_token()

        def graph(job_id: str, vertex: int) -> dict[str, Any]:
            path = f"{rig.page}/jobs/{job_id}/vertices/{vertex}/flamegraph"
            request = urllib.request.Request(path, headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(request, timeout=120) as answer:
                actual = json.loads(answer.read())
            assert actual["endTimestamp"] > 1e12
            root: dict[str, Any] = actual["data"]
            assert root["name"] == "root"
            assert root["value"] == sum(child["value"] for child in root["children"])
            return root

        if slots_in == "processes":
            words = ["cluster_jobs:deadly", "-p", "how=loop", "-p", f"folder={tmp_path}"]
        else:
            words = ["cluster_jobs:busy"]
        job_id = submit(rig, *words)
        vertices = [vertex["name"] for vertex in rig.job(job_id)["vertices"]]
        number = next(n for n, name in enumerate(vertices) if "deadly" in name or "busy" in name)
        function = "do_to_process (" if slots_in == "processes" else "computes ("

        def is_seen() -> bool:
            actual = graph(job_id, number)
            return any(name.startswith(function) for name in names_of(actual)) and actual["value"] >= 10

        rig.wait_until(is_seen)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            graph(job_id, 17)
        with rig.command("cancel", job_id) as command:
            assert command.wait(120) == 0
        with pytest.raises(urllib.error.HTTPError, match="409"):
            graph(job_id, number)


@pytest.mark.whole
@pytest.mark.browser
def test_the_page_draws_where_a_task_spends_its_time(chromium: str, tmp_path: Path) -> None:
    with ClusterRig(tmp_path / "cluster", "--web", "127.0.0.1:0") as rig:
        rig.start_taskmanagers(1)
        token = Secret.from_file(rig.secret_file).web_token()
        job_id = submit(rig, "cluster_jobs:busy")
        rig.wait_running(job_id)

        async def look() -> None:
            with trio.fail_after(PATIENCE_S):
                async with open_browser(chromium) as browser:
                    assert rig.page is not None
                    page = await browser.open(rig.page)
                    await page.until("!document.querySelector('#login').hidden")
                    await page.value(f"document.querySelector('#token').value = '{token}'")
                    await page.value("document.querySelector('#login').requestSubmit()")
                    await page.until("document.querySelector('button.box[data-task$=\"0.0\"]')")
                    assert not await page.value("document.querySelector('[data-key=flame]')"), "no task is chosen"
                    await page.value("document.querySelector('button.box[data-task$=\"0.0\"]').click()")
                    await page.until("document.querySelector('[data-key=flame]')")
                    await page.value("document.querySelector('[data-key=flame]').click()")
                    await page.until("document.querySelector('#flame [data-frame^=\"computes (\"] rect')")
                    first = await page.value("document.querySelector('#flame-sum').textContent")
                    assert "samples from the slots of this vertex" in first
                    await page.value("document.querySelector('[data-key=flame]').click()")
                    assert not await page.value("document.querySelector('#flame').childElementCount")
                    await trio.sleep(3.0)
                    assert not await page.value("document.querySelector('#flame').childElementCount"), "nobody looks"

        trio.run(look)
