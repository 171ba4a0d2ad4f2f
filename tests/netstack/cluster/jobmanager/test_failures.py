"""The failures of a job: told in one line each, kept apart from the log, there when the JobManager comes back."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from jobmanager.scripted_taskmanager import client, document, jobmanager, taskmanager
from trio.testing import MockClock

from netstack.cluster.failure_report import MAX_BYTES as REPORT_BYTES, size_bytes
from netstack.cluster.jobmanager.job_master.job_master import JobJournal
from netstack.cluster.jobmanager.log import (
    BESIDE,
    ENDED,
    KEPT,
    MAX_BYTES,
    Failed,
    FailureHistory,
    failure_documents,
    fatal_traceback,
)
from netstack.schedule.execution import JobState
from netstack.schedule.graph.settings import RestartSettings
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import StreamSettings


def report(line: int, message: str = "no") -> dict[str, Any]:
    frame = {"file": "/home/me/jobs.py", "line": line, "function": "change", "source": "raise ValueError(item)"}
    return {"errors": [{"type": "ValueError", "message": message, "how": "raised", "frames": [frame]}]}


def pipeline(**restart: Any) -> dict[str, Any]:
    settings = StreamSettings(restart=RestartSettings(**restart)) if restart else StreamSettings()
    job = StreamEnvironment("pipeline", parallelism=2, settings=settings)
    job.source("jobs:read", name="source").rebalance().map("jobs:change", name="map").sink("jobs:keep", name="sink")
    return document(job)


async def first_failures(user: Any, job_id: str) -> list[dict[str, Any]]:
    actual: list[dict[str, Any]] = []
    with trio.fail_after(120.0):
        while not actual:
            await trio.sleep(0.01)
            actual = (await user.ask("job", job_id=job_id))["failures"]
    return actual


async def test_each_restart_is_told_in_one_line_and_the_end_with_its_lines(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with jobmanager(folder=str(tmp_path)) as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=pipeline(kind="fixed_delay", delay_s=4.0, attempts=2)))["job_id"]
        for number in range(3):
            await tm.until(
                lambda number=number: {attempt for _, _, attempt in tm.tasks} == {number} and len(tm.tasks) == 4
            )
            tm.fail((1, 1, number), "no", report=report(10 + number))
        end = await user.ask("wait", job_id=job_id)
        actual = await user.ask("job", job_id=job_id)
        where = rf"map -> sink \(1\) on {tm.name}"
        reported = [each["text"] for each in actual["log"] if each["what"] == "failure"]
        for text, pattern in zip(
            reported,
            (
                rf"{where}: ValueError: no, at jobs.py:10; restart 1 of 2, next in 4 s",
                rf"{where}: ValueError: no, at jobs.py:11; restart 2 of 2, next in 4 s",
                rf"{where}: ValueError: no, at jobs.py:12; no restart: 2 restarts are used up",
            ),
            strict=True,
        ):
            assert re.fullmatch(pattern, text)
        assert re.fullmatch(rf"{where}: ValueError: no, at jobs.py:12 \(2 restarts are used up\)", end["reason"])
        lines = (
            'Traceback (most recent call last):\n  File "/home/me/jobs.py", line 12, in change\n'
            "    raise ValueError(item)\nValueError: no"
        )
        assert end["traceback"] == lines
        last = actual["failures"][-1]
        assert [each["led_to"] for each in actual["failures"]] == [
            "restart 1 of 2, next in 4 s",
            "restart 2 of 2, next in 4 s",
            ENDED,
        ]
        assert (last["task"], last["subtask"], last["attempt"], last["host"]) == ("map -> sink", 1, 2, tm.name)
        assert (last["type"], last["traceback"], last["report"]) == ("ValueError", lines, report(12))
    async with jobmanager(folder=str(tmp_path)) as manager, client(manager) as user:
        assert (await user.ask("wait", job_id=job_id))["traceback"] == lines
        assert (await user.ask("job", job_id=job_id))["failures"] == actual["failures"]


@pytest.mark.parametrize(
    ("restart", "reported"),
    [
        ({"kind": "fixed_delay", "delay_s": 0.25}, "restart 1, next in 0.25 s"),
        ({"kind": "failure_rate", "delay_s": 2.0, "max_failures": 3}, "restart 1, next in 2 s"),
        ({"kind": "none"}, ENDED),
    ],
)
async def test_a_restart_without_a_limit_is_told_without_one(
    autojump_clock: MockClock, restart: dict[str, Any], reported: str
) -> None:
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=pipeline(**restart)))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 4)
        tm.fail((0, 0, 0), "no")
        actual = await first_failures(user, job_id)
        assert [each["led_to"] for each in actual] == [reported]


@pytest.mark.parametrize(("text", "label"), [("not there", "ValueError: not there"), ("", "ValueError")])
async def test_what_cannot_get_better_ends_the_job_at_once(autojump_clock: MockClock, text: str, label: str) -> None:
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=pipeline(kind="fixed_delay", delay_s=1.0)))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 4)
        tm.fail((0, 0, 0), text, is_recoverable=False)
        with trio.fail_after(60.0):
            end = await user.ask("wait", job_id=job_id)
        assert end["reason"].endswith(f": {label} (a restart cannot help)")
        assert end["traceback"] == "", "no error of Python was told"
        assert (await user.ask("job", job_id=job_id))["restarts"] == 0


async def test_what_follows_from_a_failure_is_beside_it(autojump_clock: MockClock) -> None:
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=pipeline(kind="fixed_delay", delay_s=1.0)))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 4)
        tm.fail((0, 0, 0), "the root", report=report(1))
        tm.fail((1, 1, 0), "the consequence", report=report(2))
        await tm.until(lambda: {attempt for _, _, attempt in tm.tasks} == {1})
        actual = await user.ask("job", job_id=job_id)
        (entry,) = actual["failures"]
        (beside,) = entry["beside"]
        assert ("the root" in entry["text"], "the consequence" in beside["text"]) == (True, True)
        assert beside["traceback"].endswith("ValueError: no")
        reported = {
            what: [each["text"] for each in actual["log"] if each["what"] == what] for what in ("failure", "task")
        }
        assert (len(reported["failure"]), len(reported["task"])) == (1, 1)


async def test_a_lost_taskmanager_is_a_failure_without_lines(autojump_clock: MockClock) -> None:
    async with jobmanager() as manager, client(manager) as user, taskmanager(manager, slots=1):
        async with taskmanager(manager, slots=1, name="goes") as goes:
            job_id = (await user.ask("submit", document=pipeline(kind="fixed_delay", delay_s=1.0)))["job_id"]
            await goes.until(lambda: len(goes.tasks) == 2)
        actual = await first_failures(user, job_id)
        assert actual[0]["text"].startswith("TaskManager 'goes' is lost: ")
        assert (actual[0]["task"], actual[0]["traceback"], actual[0]["report"]) == ("", "", {})


async def test_a_report_that_is_none_is_a_broken_taskmanager_s(autojump_clock: MockClock) -> None:
    async with jobmanager() as manager, client(manager) as user, taskmanager(manager, name="odd") as odd:
        job_id = (await user.ask("submit", document=pipeline(kind="fixed_delay", delay_s=1.0)))["job_id"]
        await odd.until(lambda: len(odd.tasks) == 4)
        odd.fail((0, 0, 0), "no", report={"errors": "x"})
        actual = await first_failures(user, job_id)
        assert "a failure report must be empty or have exactly the field errors" in actual[0]["text"]


async def test_texts_of_a_taskmanager_are_escaped(autojump_clock: MockClock) -> None:
    async with jobmanager() as manager, taskmanager(manager) as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=pipeline()))["job_id"]
        await tm.until(lambda: len(tm.tasks) == 4)
        tm.fail((0, 0, 0), "\x1b[2J\nforged", report=report(1, "\x1b[2J\nforged"), is_recoverable=False)
        end = await user.ask("wait", job_id=job_id)
        assert "ValueError: \\x1b[2J\\nforged, at jobs.py:1" in end["reason"]
        assert end["traceback"].endswith("\nValueError: \\x1b[2J\\nforged")


def test_the_first_and_the_newest_are_kept() -> None:
    history = FailureHistory()
    for number in range(100):
        history.add(float(number), Failed(str(number)), "a restart")
    assert [each["text"] for each in history.all()] == ["0", *map(str, range(100 - KEPT, 100))]
    assert history.left_out == 100 - KEPT - 1


def test_a_history_is_bounded_in_bytes() -> None:
    history = FailureHistory()
    large = report(1)
    large["errors"][0]["message"] = "x" * (REPORT_BYTES - 300)
    for number in range(100):
        history.add(float(number), Failed(str(number), report=large), "a restart")
        for _ in range(2 * BESIDE):
            history.beside(float(number), Failed("beside", report=large))
        assert size_bytes(history.all()) <= MAX_BYTES
    kept = history.all()
    assert (kept[0]["text"], kept[-1]["text"]) == ("0", "99")
    assert len(kept) + history.left_out == 100
    assert 1 <= len(kept[-1]["beside"]) <= BESIDE


def test_only_the_failure_that_ended_a_job_is_its_cause() -> None:
    history = FailureHistory()
    assert fatal_traceback({"state": "failed", **failure_documents(history)}) == ""
    history.add(0.0, Failed("x", report=report(1)), "restart 1, next in 1 s")
    assert fatal_traceback({"state": "failed", **failure_documents(history)}) == "", "the JobManager broke"
    history.add(0.0, Failed("x", report=report(1)), ENDED)
    assert "line 1" in fatal_traceback({"state": "failed", **failure_documents(history)})
    assert fatal_traceback({"state": "canceled", **failure_documents(history)}) == ""
    assert fatal_traceback({"state": "failed"}) == "", "of a release that kept none"


def test_a_job_that_restarts_without_end_is_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Without a delay it restarted 128 times a second, with three lines in the JobManager's log for each."""
    caplog.set_level(logging.INFO)
    journal = JobJournal("0" * 16, "loops")
    root: Any = SimpleNamespace(cause="map: ValueError", decision=SimpleNamespace(delay_s=0.0))
    event: Any = None
    for _ in range(1000):
        journal.failed(event, [root], None, JobState.RUNNING)
        journal.state_changed(JobState.RUNNING, JobState.RESTARTING)
    assert journal.log.added == 2000
    assert 200 < len(caplog.records) < 500
