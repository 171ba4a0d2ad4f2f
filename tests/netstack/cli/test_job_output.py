"""What commands print about jobs, from documents as a JobManager sends them."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from netstack.cli.job_output import job_lines, jobs_table, news_lines, print_all, print_results
from netstack.cli.jobs import datasets_table
from netstack.cli.json_document import print_document
from netstack.cli.run import RunView


def job(**changes: Any) -> dict[str, Any]:
    subtasks = [
        {"subtask": number, "state": "running", "attempt": 0, "taskmanager": f"tm{number % 2}", "host": "h", "slot": 0}
        for number in range(3)
    ]
    latency = {"from": "far", "input": None, "count": 9, "p50_us": 1250, "p99_us": 52100, "max_us": 2_500_000}
    latency |= {"waiting": 0, "at_least": []}
    vertex = {"name": "source -> map", "latencies": [latency], "records_in": 0, "records_out": 2000}
    vertex["subtasks"] = subtasks
    actual = {
        "job_id": "3f2a81c09d4e5b67",
        "name": "words",
        "state": "running",
        "submitted_at": 0.0,
        "age_s": 300.0,
        "tasks": {"running": 3},
        "missing_slots": 0,
        "restarts": 1,
        "checkpoints_completed": 7,
        "reason": "",
        "waits_for": "",
        "vertices": [vertex],
        "checkpoints_in_progress": [],
        "last_checkpoint": {"checkpoint_id": 7, "path": "/jobs/chk-00000007"},
        "log": [{"at": 0.0, "what": "job", "text": "created -> running"}],
        "failures": [],
        "failures_left_out": 0,
    }
    return actual | changes


def shown(*parts: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, width=150, highlight=False)
    for part in parts:
        console.print(part)
    return out.getvalue()


def test_a_job_in_detail() -> None:
    text = shown(*job_lines(job()))
    assert text.startswith("words  3f2a81c09d4e5b67  running  restarts 1  checkpoints 7\n")
    assert "source -> map  3 running" in text
    assert "tm0: 0 2, tm1: 1" in text
    assert "latency from far to source -> map: p50 1.25 ms, p99 52.1 ms, max 2.5 s of 9 markers" in text
    assert "checkpoint 7: /jobs/chk-00000007" in text
    assert "created -> running" in text


def test_lower_bounds_and_checkpoints_in_progress_are_told() -> None:
    document = job(checkpoints_in_progress=[{"text": "checkpoint 8 in progress for 34 s: ..."}])
    (latency,) = document["vertices"][0]["latencies"]
    latency |= {"waiting": 3, "count": 1, "at_least": ["p99_us", "max_us"], "p99_us": 34_000_000, "max_us": 34_000_000}
    text = shown(*job_lines(document))
    assert "map: p50 1.25 ms, p99 >= 34 s, max >= 34 s of 1 marker and 3 in queues\n" in text
    assert "checkpoint 8 in progress for 34 s: ...\n" in text


def test_uids_and_what_was_left_behind_are_told() -> None:
    document = job(not_restored=["count", "source -> count"])
    document["vertices"][0]["uids"] = {"map": "mapped"}
    text = shown(*job_lines(document))
    assert "state not restored, because the job does not have these operators: count, source -> count\n" in text
    assert "uids in checkpoints: map is 'mapped'\n" in text
    assert "uids in checkpoints" not in shown(*job_lines(job()))


def test_what_was_put_into_files_is_told() -> None:
    document = job()
    document["vertices"][0]["kept"] = {"bytes": 4_000, "compressed_bytes": 1_000, "stored_bytes": 3_500}
    text = shown(*job_lines(document))
    assert "source -> map: 4,000 bytes stored as 3,500 bytes, 25% of them compressed" in text


def test_what_was_decided_is_told_beside_the_plan() -> None:
    document = job()
    (vertex,) = document["vertices"]
    reads = [[{"partitions": [0, 1], "subpartitions": [first, first + 3]}] for first in range(0, 80, 4)]
    vertex["parallelism"] = 20
    vertex["decided"] = {
        "steps": ["ceil(400 / 20) = 20"],
        "bytes_per_subtask": [1_020] * 20,
        "inputs": [{"dataset": "read.0", "bytes": 400, "is_broadcast": False, "reads": reads}],
    }
    text = shown(*job_lines(document))
    assert "source -> map: parallelism 20, chosen at run time\n  ceil(400 / 20) = 20\n" in text
    assert "bytes read by each subtask: 1,020 1,020" in text
    assert "subpartitions of read.0 read by each subtask: 0-3 4-7 " in text
    assert text.count(" and 4 more") == 2


def test_a_job_that_waits_and_one_that_failed_say_why() -> None:
    waits = job(waits_for="1 more slot; 29 slots are there", missing_slots=1)
    assert "waits for 1 more slot; 29 slots are there" in shown(*job_lines(waits))
    failed = job(state="failed", reason="map (0) on tm1: ValueError: no", vertices=[], last_checkpoint=None, log=[])
    assert "map (0) on tm1: ValueError: no" in shown(*job_lines(failed))
    newest, oldest = shown(jobs_table([waits, failed])).splitlines()[1:]
    assert "failed" in newest
    assert newest.rstrip().endswith("ValueError: no")
    assert oldest.rstrip().endswith("waits for 1 slot")


ODD = ["[/x]", "[link=http://evil.example]words[/link]", ":skull:", "\x1b[31mred", "\u202ereversed", "\x07bell"]


@pytest.mark.parametrize("odd", ODD)
def test_names_of_others_are_shown_as_they_are_and_control_nothing(
    odd: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job with the name `[/x]` made `netstack jobs` fail for everybody: rich read it as markup."""
    vertex = {**job()["vertices"][0], "name": odd}
    last = {"checkpoint_id": 7, "path": f"/jobs/{odd}/chk-00000007"}
    dataset = {"dataset_id": odd, "bytes": 1, "partitions": 1, "job_name": odd, "job_id": "3f", "age_s": 1.0}
    expected = odd.replace("\x1b", r"\u001b").replace("\u202e", r"\u202e").replace("\x07", "")
    texts = []
    for lines in (
        [jobs_table([job(name=odd, reason=odd)])],
        job_lines(job(name=odd, reason=odd, vertices=[vertex], last_checkpoint=last)),
        [datasets_table([{**dataset, "missing": ["tm"]}])],
    ):
        print_all(lines)
        texts.append(capsys.readouterr().out)
    assert [text.count(expected) for text in texts] == [2, 5, 2]
    assert all(each.isprintable() or each == "\n" for each in "".join(texts))
    assert "TaskManagers missing" in texts[2]
    view = RunView(odd, Console(file=io.StringIO()))
    assert odd[-4:] in shown(view.rendered(job(name=odd, vertices=[vertex]), 1.0))


def test_whoever_waits_reads_each_failure_and_each_wait_once() -> None:
    failures = [
        {"at": number, "text": f"map: no {number}", "led_to": f"restart {number}"} for number in (1.0, 2.0, 3.0)
    ]
    first = job(failures=failures[:1], waits_for="1 more slot")
    assert news_lines(first, None) == ["map: no 1.0; restart 1.0", "the job waits for 1 more slot"]
    assert news_lines(first, first) == []
    second = job(failures=failures[1:])
    assert news_lines(second, first) == ["map: no 2.0; restart 2.0", "map: no 3.0; restart 3.0"]
    assert news_lines(job(failures=failures, state="failed"), first) == [], "the end has its own report"


def test_failures_are_told_with_the_lines_that_raised_the_newest() -> None:
    entry = {"at": 0.0, "text": "map (0): KeyError: 'x', at jobs.py:7", "led_to": "restart 1, next in 1 s"}
    last = entry | {"led_to": "the end of the job", "traceback": 'Traceback:\n  File "jobs.py", line 7, in [bold]'}
    text = shown(*job_lines(job(failures=[entry | {"traceback": "older lines"}, last], failures_left_out=3)))
    assert "map (0): KeyError: 'x', at jobs.py:7; result: restart 1, next in 1 s\n(3 more failures were dropped" in text
    assert 'result: the end of the job\nTraceback:\n  File "jobs.py", line 7, in [bold]\n' in text
    assert "older lines" not in text


def test_results_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_results({"show": {1: ["b", 2], 0: [{"a": b"bytes"}]}, "other": {0: None}})
    assert capsys.readouterr().out == '{"a": "bytes"}\nb\n2\n'
    print_results({"one": {0: 1}, "two": {0: "x", 1: "y"}})
    assert capsys.readouterr().out == "one:\n1\ntwo:\nx\ny\n"


def test_rates_are_those_of_the_last_seconds() -> None:
    view = RunView("words", Console(file=io.StringIO()))
    assert not view.is_shown
    shown(view.rendered(job(), 10.0))
    later = job()
    later["vertices"][0] |= {"records_out": 6000}
    text = shown(view.rendered(later, 12.0))
    assert "words  running  2 s  checkpoints 7  restarts 1" in text
    assert text.splitlines()[-1].split()[-2:] == ["k", "2"] or "2 k" in text.splitlines()[-1]
    restarted = job()
    assert "-" not in shown(view.rendered(restarted, 13.0)).splitlines()[-1].replace("->", "")


@pytest.mark.parametrize("state", ["running", "failed", "finished"])
def test_the_last_view_of_a_job_that_has_finished_stays(state: str) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=100)
    with RunView("words", screen) as view:
        view.show(job(), 10.0)
        view.show(job(state=state), 12.0)
    screen.print("next line")
    assert isinstance(screen.file, io.StringIO)
    written = screen.file.getvalue()
    is_erased = "\x1b[2K" in written.partition("\x1b[?25h")[2]  # after the cursor is shown again
    assert is_erased == (state != "finished")


@pytest.mark.parametrize("hidden", ["\u202e", "\u2028", "\x1b[2J", "\x7f", "\x9b", "\U000e0001", "\u2066"])
def test_what_sinks_return_cannot_control_a_terminal(hidden: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In text and as JSON, whose value stays the same."""
    results = {"sink": {0: f"a{hidden}b\nc\td"}, hidden: {0: [{"x": hidden}]}}
    print_results(results)
    print_document({"results": hidden})
    out = capsys.readouterr().out
    assert all(each.isprintable() or each in "\n\t" for each in out)
    assert out.startswith("sink:\na\\u")
    assert "b\nc\td\n" in out
    *_, item, last = out.splitlines()
    assert json.loads(item) == {"x": hidden}
    assert json.loads(last) == {"results": hidden}
