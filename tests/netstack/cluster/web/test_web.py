"""The page and the REST interface of a JobManager: asked over real HTTP, and opened in a real browser."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import trio
from jobmanager.scripted_taskmanager import Client, ScriptedTaskManager, client, document, jobmanager, taskmanager
from served_pages import ask, pipeline, running

from netstack.base.errors import ConfigError
from netstack.cluster.control.messages import AskDetails
from netstack.cluster.control.reports import Statistics
from netstack.cluster.jobmanager.views.cluster_snapshots import INPUT_COLUMNS
from netstack.cluster.web import flink
from netstack.cluster.web.history import KEPT_S, History
from netstack.cluster.web.serve import open_web
from netstack.network.connection.authentication import Secret
from netstack.schedule.graph.settings import RestartSettings

SECRET = Secret.generate()


async def test_flinks_paths_have_flinks_fields() -> None:
    async with running() as (manager, url, job_id):
        _, overview = await ask(f"{url}/overview")
        assert (
            overview.items() >= {"taskmanagers": 1, "slots-total": 2, "slots-available": 0, "jobs-running": 1}.items()
        )
        assert await ask(f"{url}/jobs") == (200, {"jobs": [{"id": job_id, "status": "RUNNING"}]})
        assert await ask(f"{url}/jobs", method="HEAD") == (200, None)
        _, jobs = await ask(f"{url}/jobs/overview")
        assert jobs["jobs"][0]["tasks"] == {"total": 4, "running": 4}
        _, job = await ask(f"{url}/jobs/{job_id}")
        assert (job["jid"], job["name"], job["state"], job["end-time"]) == (job_id, "pipeline", "RUNNING", -1)
        assert [each["tasks"] for each in job["vertices"]] == [{"RUNNING": 2}] * 2
        (edge,) = job["plan"]["nodes"][1]["inputs"]
        assert (edge["id"], edge["ship_strategy"]) == ("0", "REBALANCE")
        assert await ask(f"{url}/jobs/{job_id}/plan") == (200, {"plan": job["plan"]})
        _, vertex = await ask(f"{url}/jobs/{job_id}/vertices/1")
        assert [(each["subtask"], each["status"]) for each in vertex["subtasks"]] == [(0, "RUNNING"), (1, "RUNNING")]
        (there,) = [each.location.name for each in manager.taskmanagers.all()]
        assert {each["taskmanager-id"] for each in vertex["subtasks"]} == {there}
        assert (await ask(f"{url}/jobs/{job_id}/checkpoints"))[1]["counts"]["total"] == 0
        _, taskmanagers = await ask(f"{url}/taskmanagers")
        assert [(each["id"], each["slotsNumber"], each["freeSlots"]) for each in taskmanagers["taskmanagers"]] == [
            (there, 2, 0)
        ]
        assert (await ask(f"{url}/taskmanagers/{there}"))[1]["id"] == there


@pytest.mark.parametrize("jump_s", [-864_000.0, 864_000.0])
async def test_durations_survive_a_jump_of_the_clock(jump_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody sets the clock of the host by ten days."""
    async with running() as (manager, url, job_id):
        clock = time.time
        monkeypatch.setattr(time, "time", lambda: clock() + jump_s)
        _, job = await ask(f"{url}/jobs/{job_id}")
        assert 0 <= job["duration"] < 100_000
        (row,) = (await ask(f"{url}/jobs/overview"))[1]["jobs"]
        assert 0 <= row["duration"] < 100_000
        await manager.dispatcher.cancel(manager.dispatcher.records[job_id])
        _, job = await ask(f"{url}/jobs/{job_id}")
        assert job["state"] == "CANCELED"
        assert 0 <= job["duration"] < 100_000


def test_backpressure_is_told_as_flink_tells_it() -> None:
    reported = {"attempt": 0, "busy": 300, "idle": 100, "backpressured": 600}
    actual = flink.backpressure({"subtasks": [{"subtask": 0, **reported}, {"subtask": 1, "attempt": 0}]})
    assert (actual["status"], actual["backpressureLevel"]) == ("ok", "high")
    (first,) = actual["subtasks"]
    assert (first["subtask"], first["ratio"], first["busyRatio"], first["idleRatio"]) == (0, 0.6, 0.3, 0.1)
    assert flink.backpressure({"subtasks": []})["status"] == "deprecated", "Flink's word for: not known yet"


async def test_failures_are_told_as_flink_tells_them() -> None:
    restart = RestartSettings(kind="fixed_delay", delay_s=0.01, attempts=1)
    frame = {"file": "/home/me/jobs.py", "line": 7, "function": "change", "source": "raise KeyError(item)"}
    report = {"errors": [{"type": "KeyError", "message": "<b>", "how": "raised", "frames": [frame]}]}
    lines = (
        'Traceback (most recent call last):\n  File "/home/me/jobs.py", line 7, in change\n'
        "    raise KeyError(item)\nKeyError: <b>"
    )
    async with jobmanager() as manager, taskmanager(manager, name="left") as tm, client(manager) as user:
        job_id = (await user.ask("submit", document=document(pipeline(restart=restart))))["job_id"]
        async with open_web(manager, "127.0.0.1:0") as url:
            await tm.until(lambda: len(tm.tasks) == 4)
            _, actual = await ask(f"{url}/jobs/{job_id}/exceptions")
            assert (actual["root-exception"], actual["timestamp"]) == (None, -1)
            assert actual["exceptionHistory"] == {"entries": [], "truncated": False}
            tm.fail((0, 0, 0), "first")
            await tm.until(lambda: {attempt for _, _, attempt in tm.tasks} == {1} and len(tm.tasks) == 4)
            tm.fail((1, 1, 1), "second", report=report)
            await manager.dispatcher.records[job_id].ended.wait()
            _, actual = await ask(f"{url}/jobs/{job_id}/exceptions")
            newest, oldest = actual["exceptionHistory"]["entries"]
            assert actual["root-exception"] == lines
            assert actual["timestamp"] == newest["timestamp"] >= oldest["timestamp"] > 0
            assert newest | {"timestamp": 0} == {
                "exceptionName": "KeyError",
                "stacktrace": lines,
                "timestamp": 0,
                "taskName": "map -> sink (1) - attempt 1",
                "location": "left",
                "endpoint": "left",
                "taskManagerId": tm.name,
                "concurrentExceptions": [],
            }
            assert oldest["stacktrace"].endswith("ValueError: first"), "what has no lines is told by its text"
            (first, _) = actual["all-exceptions"]
            assert (first["exception"], first["task"], first["location"]) == (lines, newest["taskName"], "left")
            assert not actual["truncated"]
            _, actual = await ask(f"{url}/jobs/{job_id}/exceptions?maxExceptions=1")
            assert len(actual["exceptionHistory"]["entries"]) == len(actual["all-exceptions"]) == 1
            assert actual["exceptionHistory"]["truncated"]
            assert (await ask(f"{url}/jobs/{job_id}/exceptions?maxExceptions=all"))[0] == 400
            own = (await ask(f"{url}/netstack/jobs/{job_id}"))[1]["failures"]
            assert [each["traceback"] for each in own] == ["", lines]
            assert "report" not in own[1], "told to whoever asks for the job, and not at every look"


async def test_what_is_not_there_is_told() -> None:
    async with running() as (_, url, job_id):
        for path in (
            "/jobs/zzz",
            f"/jobs/{job_id}/vertices/7/backpressure",
            "/taskmanagers/nobody",
            f"/jobs/{job_id}/savepoints/x",
        ):
            status, reported = await ask(url + path)
            assert (status, len(reported["errors"])) == (404, 1), path


async def test_it_only_shows_unless_told_otherwise() -> None:
    async with running() as (manager, url, job_id):
        assert (await ask(f"{url}/jobs/{job_id}?mode=cancel", method="PATCH"))[0] == 403
        assert (await ask(f"{url}/jobs/{job_id}/savepoints", method="POST"))[0] == 403
        assert manager.dispatcher.running
    async with running(may_change=True) as (manager, url, job_id):
        assert (await ask(f"{url}/jobs/{job_id}?mode=kill", method="PATCH"))[0] == 400
        status, asked = await ask(f"{url}/jobs/{job_id}/savepoints", method="POST")
        assert status == 202
        actual = {"status": {"id": "IN_PROGRESS"}}
        while actual["status"]["id"] == "IN_PROGRESS":
            await trio.sleep(0.02)
            actual = (await ask(f"{url}/jobs/{job_id}/savepoints/{asked['request-id']}"))[1]
        assert "checkpoint" in actual["operation"]["failure-cause"]["stack-trace"], "this job takes none"
        assert await ask(f"{url}/jobs/{job_id}?mode=cancel", method="PATCH") == (202, {})
        await manager.dispatcher.records[job_id].ended.wait()
        assert (await ask(f"{url}/jobs"))[1]["jobs"][0]["status"] == "CANCELED"


async def test_with_a_secret_a_token_is_wanted() -> None:
    async with running(secret=SECRET) as (_, url, _):
        for token in ("", "wrong", SECRET.metrics_token):
            assert (await ask(f"{url}/overview", token=token))[0] == 401
        assert (await ask(f"{url}/overview", token=SECRET.web_token()))[0] == 200
        assert (await ask(f"{url}/netstack/history"))[0] == 401


async def test_strangers_are_not_shown_jobs() -> None:
    async with jobmanager() as manager:
        with pytest.raises(ConfigError, match="anyone on the network; give --secret-file"):
            async with open_web(manager, "0.0.0.0:0"):
                pass
        with pytest.raises(ConfigError, match="needs a host and a port"):
            async with open_web(manager, "8081"):
                pass


async def test_why_is_told_and_can_be_searched() -> None:
    async with running() as (_, url, job_id):
        _, own = await ask(f"{url}/netstack/jobs/{job_id}")
        assert [each["is_chained"] for each in own["chaining"]] == [False, True]
        assert "C10 partitioner is rebalance" in own["chaining"][0]["why"]
        _, log = await ask(f"{url}/netstack/jobs/{job_id}/log?search=TASKS+sent")
        assert [each["what"] for each in log] == ["deploy"]
        assert (await ask(f"{url}/netstack/jobs/{job_id}/log?search=nothing+like+it"))[1] == []


async def test_a_look_that_fails_is_logged_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as (manager, url, job_id):
        works = manager.snapshots.snapshot
        failed = 0

        def breaks() -> Any:
            nonlocal failed
            failed += 1
            raise TypeError("keys must be str")

        monkeypatch.setattr(manager.snapshots, "snapshot", breaks)
        while failed < 3:  # noqa: ASYNC110  # nobody tells
            await trio.sleep(0.02)
        assert [each.message for each in caplog.records if each.name == "netstack.web"] == [
            "the web page could not take a snapshot of the cluster"
        ], "once, not at every look"
        monkeypatch.setattr(manager.snapshots, "snapshot", works)
        while not (await ask(f"{url}/netstack/history"))[1]:  # noqa: ASYNC110
            await trio.sleep(0.02)
        assert job_id in manager.dispatcher.running


async def is_asked_for_details(user: Client, tm: ScriptedTaskManager) -> None:
    """Looks until the TaskManager was asked; what it was not asked is ignored."""
    while not any(isinstance(each, AskDetails) for each in tm.said):
        await user.ask("look")
        await trio.sleep(0.02)


@pytest.mark.parametrize(
    ("reported", "why"),
    [
        ({"network": {b"bytes": [1]}}, "network has bytes"),
        ({"free_memory_bytes": float("inf")}, "free_memory_bytes has the number inf"),
        ({"network": {"connections": [{"peer": "\x1b[2J"}]}}, "network has a text of 4 characters"),
        ({"network": {"connections": [{"peer": "x" * 1025}]}}, "network has a text of 1025 characters"),
    ],
)
async def test_a_peer_that_says_odd_things_of_itself_is_named_and_lost(reported: dict[str, Any], why: str) -> None:
    async with (
        running() as (manager, url, job_id),
        taskmanager(manager, name="odd", pid={b"x": float("nan")}) as odd,
        client(manager) as user,
    ):
        await is_asked_for_details(user, odd)
        plain = {"memory_bytes": 1, "free_memory_bytes": 1, "network": None, "jobs": {}, "took_s": 0.0}
        odd.link.send(Statistics(1, {**plain, **reported}))
        await odd.ended.wait()
        displayed = {each["name"]: each for each in (await user.ask("look"))["taskmanagers"]}["odd"]
        assert displayed["pid"] is None
        assert why in displayed["gone"]
        assert (await ask(f"{url}/netstack/history"))[0] == 200
        assert job_id in manager.dispatcher.running


def _input(**cells: Any) -> dict[str, Any]:
    row = dict.fromkeys(INPUT_COLUMNS, 0) | {"peer": "", "is_local": True, "is_finished": False} | cells
    return {"floating": None, "channels": 1, "rows": [[*row.values()]]}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"attempt": ["0", "0", "0"]}, "an attempt is three ints"),
        ({"attempt": [0, 0]}, "an attempt is three ints"),
        ({"inputs": [_input(producer=[1])]}, "rows of inputs have other columns"),
        ({"inputs": [_input(peer=b"x")]}, "rows of inputs have other columns"),
        ({"outputs": [{"pool": None, "rows": [[[0], 0, 0, 0, False, 0]]}]}, "rows of outputs have other columns"),
        ({"busy_s": float("nan")}, "busy_s of a task is nan"),
        ({"busy_s": float("inf")}, "busy_s of a task is inf"),
        ({"records_in": "7"}, "records_in of a task is str"),
        ({"inputs": [_input() | {"channels": "1"}]}, "channels of an input is str"),
        ({"inputs": {}}, "inputs of a task is dict"),
        ({"outputs": [[]]}, "an output is not a table"),
        ({"busy_s": 1e308, "idle_s": 1e308}, ""),
    ],
)
async def test_details_that_cannot_be_drawn_are_refused_and_others_are_shown(changes: dict[str, Any], why: str) -> None:
    async with running() as (manager, url, job_id), taskmanager(manager, name="odd") as odd, client(manager) as user:
        numbers = dict.fromkeys(("records_in", "records_out", "barriers", "busy_s", "idle_s", "backpressured_s"), 0)
        task = {"attempt": [0, 0, 0], "inputs": [], "outputs": [], **numbers, "barriers": None, **changes}
        jobs = {job_id: {"tasks": [task], "network": None}}
        document = {"memory_bytes": 1, "free_memory_bytes": 1, "network": None, "jobs": jobs, "took_s": 0.0}
        await is_asked_for_details(user, odd)
        odd.link.send(Statistics(1, document))
        displayed: dict[str, Any] = {}
        while not displayed.get("gone") and "memory_bytes" not in displayed:
            await trio.sleep(0.02)
            taskmanagers = (await user.ask("look"))["taskmanagers"]
            displayed = {each["name"]: each for each in taskmanagers}.get("odd", {})
        assert bool(displayed["gone"]) == bool(why)
        assert why in displayed["gone"]
        assert (await ask(f"{url}/netstack/jobs/{job_id}"))[0] == 200


def test_history_is_bounded_and_keeps_what_lasts_once() -> None:
    history = History(max_bytes=400)
    for second in range(3):
        history.add(float(second), '{"n":1}')
    history.add(3.0, '{"n":2}')
    assert history.number == 2
    assert json.loads(History.text(history.kept())) == [
        {"at": 0.0, "until": 2.0, "snapshot": {"n": 1}},
        {"at": 3.0, "until": 3.0, "snapshot": {"n": 2}},
    ]
    history.add(KEPT_S + 2.5, '{"n":3}')
    assert [each["snapshot"]["n"] for each in json.loads(History.text(history.kept()))] == [2, 3]
    for number in range(100):
        history.add(KEPT_S + 3 + number, json.dumps({"n": number, "text": "x" * number}))
    kept = json.loads(History.text(history.kept()))
    assert 1 < len(kept) < 30
    assert kept[-1]["snapshot"]["n"] == 99
