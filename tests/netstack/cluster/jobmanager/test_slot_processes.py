"""What TaskManagers whose slots are processes say about slots: blocked, ended, stacks; also what they cannot mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from jobmanager.scripted_taskmanager import client, document, jobmanager, taskmanager
from trio.testing import MockClock

from netstack.cluster.control.messages import AskStacks
from netstack.cluster.control.reports import NO_PLACE, SlotBlocked, SlotEnded, Stacks
from netstack.cluster.jobmanager.job_master import stacks
from netstack.cluster.jobmanager.job_master.stacks import WAITING, flame_tree
from netstack.schedule.graph.settings import RestartSettings
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import StreamSettings

WHERE = {"task": "source", "subtask": 0, "operator": "read", "file": "/jobs.py", "line": 7, "function": "read"}


def pipeline() -> dict[str, Any]:
    restart = RestartSettings(kind="fixed_delay", delay_s=1.0, attempts=3)
    job = StreamEnvironment("pipeline", parallelism=2, settings=StreamSettings(restart=restart))
    job.source("jobs:read", name="source").rebalance().sink("jobs:keep", name="sink")
    return document(job)


async def test_a_blocked_slot_is_shown_while_it_is_blocked(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with (
        jobmanager(folder=str(tmp_path)) as manager,
        taskmanager(manager, has_processes=True) as tm,
        client(manager) as user,
    ):
        job_id = (await user.ask("submit", document=pipeline()))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 4)
        for blocked_s in (2.0, 4.0):
            tm.link.send(SlotBlocked(job_id, 1, blocked_s, WHERE))
        await trio.sleep(1.0)
        actual = await user.ask("job", job_id=job_id)
        (blocked,) = actual["blocked"]
        assert {name: blocked[name] for name in WHERE} == WHERE
        assert (blocked["slot"], blocked["blocked_s"]) == (1, 4.0)
        assert "operator 'read', at /jobs.py:7 in read" in blocked["text"]
        tm.link.send(SlotBlocked(job_id, 1, 0.0, {}))
        await trio.sleep(1.0)
        actual = await user.ask("job", job_id=job_id)
        assert actual["blocked"] == []
        assert len([each for each in actual["log"] if each["what"] == "blocked"]) == 2


async def test_what_a_peer_says_of_a_place_is_taken_field_by_field(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with (
        jobmanager(folder=str(tmp_path)) as manager,
        taskmanager(manager, has_processes=True) as tm,
        client(manager) as user,
    ):
        job_id = (await user.ask("submit", document=pipeline()))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 4)
        tm.link.send(SlotBlocked(job_id, 0, 3.0, {"file": ["x"], "line": "7", "taskmanager": "you", "text": "\x1b[2J"}))
        await trio.sleep(1.0)
        (blocked,) = (await user.ask("job", job_id=job_id))["blocked"]
        assert (blocked["file"], blocked["line"]) == (None, None)
        assert blocked["taskmanager"] == tm.name
        assert blocked["text"] == f"its event loop has been blocked for 3 s: at {NO_PLACE}"
        # A slot that it does not have ends the connection of whoever says so.
        tm.link.send(SlotBlocked(job_id, 2, 3.0, {}))
        await trio.sleep(1.0)
        assert (await user.ask("taskmanagers"))["taskmanagers"] == []


async def test_a_slot_that_ends_is_one_restart(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with (
        jobmanager(folder=str(tmp_path)) as manager,
        taskmanager(manager, has_processes=True) as tm,
        client(manager) as user,
    ):
        job_id = (await user.ask("submit", document=pipeline()))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 4)
        ended = [attempt for attempt in tm.tasks if attempt[1] == 1]
        for attempt in ended:
            del tm.tasks[attempt]
        tm.link.send(SlotEnded(job_id, 1, tuple(ended), "its process was ended by SIGSEGV"))
        await tm.until(lambda: {attempt for _, _, attempt in tm.tasks} == {1} and len(tm.tasks) == 4)
        actual = await user.ask("job", job_id=job_id)
        assert actual["restarts"] == 1
        (failure,) = actual["failures"]
        assert failure["text"] == f"slot 1 of {tm.name}: its process was ended by SIGSEGV"
        assert failure["led_to"] == "restart 1 of 3, next in 1 s"


async def test_stacks_are_asked_of_every_taskmanager(autojump_clock: MockClock, tmp_path: Path) -> None:
    """One answers, with rows of which some are none; the other does not, and is named."""
    async with (
        jobmanager(folder=str(tmp_path)) as manager,
        taskmanager(manager, slots=1, has_processes=True) as one,
        taskmanager(manager, slots=1, has_processes=True) as other,
        client(manager) as user,
    ):
        job_id = (await user.ask("submit", document=pipeline()))["job_id"]
        await one.until(lambda: len(one.tasks) == 2)
        await other.until(lambda: len(other.tasks) == 2)
        row = {"task": "source", "frames": [{"file": "a.py", "line": 1, "function": "f"}]}

        async def answer() -> None:
            await one.until(lambda: any(isinstance(each, AskStacks) for each in one.said))
            (asked,) = [each for each in one.said if isinstance(each, AskStacks)]
            one.link.send(Stacks(asked.token + 1, {"tasks": [row]}))
            one.link.send(Stacks(asked.token, {"tasks": [row, 5, {"frames": [3]}, {"frames": None}]}))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            actual = await user.ask("stack", job_id=job_id)
        assert actual == {"tasks": [{**row, "taskmanager": one.name}], "silent": [other.name]}


def test_samples_make_a_tree_of_calls_that_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one vertex in its slots; what no operator is known for counts; nothing that is told is trusted."""

    def row(task: object, slot: object, count: object, *functions: object) -> dict[str, Any]:
        frames = [{"file": "/a/b/c.py", "line": 3, "function": function} for function in functions]
        return {"task": task, "slot": slot, "count": count, "taskmanager": "tm", "frames": frames}

    rows = [
        row("map", 0, 3, "inner", "outer"),
        row("map", 0, 1, "outer"),
        row("", 0, 2),
        row("other", 0, 5, "inner"),
        row("map", 1, 7, "inner"),
        row("map", 0, "9", "inner"),
        row(None, 0, 1),
        row("map", [0], 1),
    ]
    actual = flame_tree(rows, "map", {("tm", 0)})
    outer, waiting = actual["children"]
    assert (actual["value"], outer["value"], waiting["value"]) == (6, 4, 2)
    assert (outer["name"], waiting["name"]) == ("outer (b/c.py:3)", WAITING)
    assert outer["children"] == [{"name": "inner (b/c.py:3)", "value": 3, "children": []}]
    (escaped,) = flame_tree([row("map", 0, 1, "a\x1b[31m\n" + "x" * 999)], "map", {("tm", 0)})["children"]
    assert "\x1b" not in escaped["name"]
    assert len(escaped["name"]) <= 160
    monkeypatch.setattr(stacks, "NODES_AT_MOST", 2)
    (outer,) = flame_tree([row("map", 0, 1, "c", "b", "a")], "map", {("tm", 0)})["children"]
    assert [each["children"] for each in outer["children"]] == [[]]
