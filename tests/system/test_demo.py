"""`netstack demo` shows what it tells: with credit a stalled consumer holds up nobody else, without it does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from typing import Any

import pytest

from netstack.cluster.jobmanager.children import search_path

PATIENCE_S = 120.0


def phase_of(look: dict[str, Any]) -> int:
    """Which of its phases the demonstration was in."""
    story = look["snapshot"]["demo"]
    phases = [phase["seconds"] for phase in story["phases"]]
    left = (look["at"] - story["began"]) % sum(phases)
    for number, seconds in enumerate(phases):
        left -= seconds
        if left < 0:
            return number
    return 0


def shown(look: dict[str, Any]) -> set[str]:
    """What of the story is to be seen in one look."""
    snapshot = look["snapshot"]
    story = snapshot["demo"]["phases"][phase_of(look)]
    (job,) = [each for each in snapshot["jobs"] if each["name"] == story["job"]] or [None]
    if job is None or not job["edges"][0].get("channels"):
        return set()
    columns = snapshot["channel_columns"]
    channels = {(row[0], row[1]): dict(zip(columns, row, strict=True)) for row in job["edges"][0]["channels"]}
    b3, b4 = (task for task in job["vertices"][1]["subtasks"])
    if len(channels) < 4 or b3.get("busy") is None or b4.get("busy") is None:
        return set()
    assert "local" not in {each["connection"] for each in channels.values()}, "A and B are on different TaskManagers"
    assert len({each["connection"] for each in channels.values()}) == 1, "all share one connection"
    seen = set()
    if story["kind"] == "stall" and story["job"] == "with credit":
        waiting = channels[1, 1]
        if waiting["credit"] == 0 and waiting["backlog"] > 0 and b3["busy"] > 0 and b4["busy"] == 1000:
            seen.add("credit: B.4 waits, B.3 works")
    if story["kind"] == "stall" and story["job"] == "without credit" and b3["idle"] == b4["busy"] == 1000:
        seen.add("no credit: B.3 starves")
    if story["kind"] == "align" and b3["barriers"]["is_aligning"] and channels[0, 0]["is_blocked"]:
        seen.add("a barrier aligns")
    if any(each["alignment_s"] > 0.05 for each in job["checkpoints"]):
        seen.add("its time is told")
    return seen


@pytest.mark.long
def test_the_demonstration_shows_what_it_tells() -> None:
    command = [sys.executable, "-P", "-m", "netstack.cli", "demo", "--pace", "0.3", "--web", "127.0.0.1:0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(search_path())}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        (url,) = re.findall(r"http://[^; ]+", process.stdout.readline())
        wanted = {"credit: B.4 waits, B.3 works", "no credit: B.3 starves", "a barrier aligns", "its time is told"}
        seen: set[str] = set()
        deadline = time.monotonic() + PATIENCE_S
        while seen < wanted and time.monotonic() < deadline:
            time.sleep(1.0)
            with urllib.request.urlopen(f"{url}/netstack/history", timeout=120) as answer:
                seen = set().union(*map(shown, json.loads(answer.read())))
        assert seen == wanted
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
