"""`netstack plan`: where jobs come from, what is printed, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from netstack.cli import main

CLICKS = Path(__file__).parents[3] / "tools" / "examples" / "job.json"
EXAMPLE = "netstack.schedule.graph.examples:word_count"


def test_a_picture(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", EXAMPLE, "--taskmanagers", "2", "--slots", "2"]) == 0
    displayed = capsys.readouterr()
    assert displayed.out.startswith("word count: 4 chains of 5 operators, 10 tasks, 4 slots\n")
    assert not displayed.err


def test_a_picture_where_the_locale_lacks_its_characters() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "netstack.cli", "plan", EXAMPLE],
        capture_output=True,
        encoding="latin-1",
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u250c" in done.stdout  # a corner


@pytest.mark.parametrize("words", [["plan", EXAMPLE, "--format", "json"], ["plan", "no", "--format=json"]])
def test_a_full_standard_output_is_one_sentence(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "netstack.cli", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": ""},  # what is buffered must not fail again at the end
        )
    assert done.returncode == (2 if "no" in words else 1)
    assert len(done.stderr.splitlines()) == 1


def test_a_flag_without_its_value_points_to_the_help_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", EXAMPLE, "--slots"]) == 2
    assert capsys.readouterr().err.endswith("'--slots' requires an argument. (see: netstack plan --help)\n")


def test_a_job_file_as_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(CLICKS), "--format", "json", "--slots", "4", "--load-balance", "tasks"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["job"] == "clicks"
    assert document["cluster"] == {
        "taskmanagers": 2,
        "slots": 4,
        "slots_in": "processes",
        "slots_taken": [0, 0],
        "load_balance": "tasks",
    }


@pytest.mark.parametrize(
    ("flags", "mode"),
    [
        ([], "none"),
        (["--evenly-spread-out-slots"], "slots"),
        (["--evenly-spread-out-slots", "--load-balance", "none"], "none"),
    ],
)
def test_load_balance_and_the_older_switch(flags: list[str], mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", EXAMPLE, "--format", "json", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["cluster"]["load_balance"] == mode


def test_a_cluster_that_is_partly_taken(capsys: pytest.CaptureFixture[str]) -> None:
    job = "netstack.schedule.graph.examples:word_count"
    size = ["--taskmanagers", "3", "--slots", "3", "--load-balance", "tasks"]
    assert main(["plan", job, *size, "--taken", "3,0,2"]) == 0
    reported = capsys.readouterr().out
    assert "on 3 TaskManagers with 3 slots each (5 slots taken), load balance tasks" in reported
    assert "[taken] [taken] [taken]" in reported
    assert "listed as taken" in " ".join(reported.split())
    assert main(["plan", job, *size, "--taken", "3,0,2", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["slots"]["available"] == 4
    assert [each["slots_used"] for each in document["taskmanagers"]] == [0, 3, 1]
    assert main(["plan", job, *size, "--taken", "3,3,2"]) == 1
    for wrong in (["--taken", "4"], ["--taken", "0,0,0,1"]):
        assert main(["plan", job, *size, *wrong]) == 2
    assert main(["plan", job, "--taken", "1"]) == 2


def test_a_page_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plan.html"
    assert main(["plan", EXAMPLE, "--format", "html", "--output", str(page)]) == 0
    assert not capsys.readouterr().out
    text = page.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert "http" not in text


def test_what_does_not_fit_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", EXAMPLE, "--taskmanagers", "1", "--slots", "3"]) == 1
    assert "needs 4 slots" in capsys.readouterr().out
    assert main(["plan", EXAMPLE, "--memory", "128KiB"]) == 1
    assert "Give each TaskManager " in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("job", "text"),
    [
        ("nowhere.json", "job file 'nowhere.json' cannot be read"),
        ("words", "'words' is no job; give MODULE:ATTRIBUTE"),
        (
            "netstack.schedule.graph.examples:nothing",
            "cannot be loaded: module 'netstack.schedule.graph.examples' has no attribute",
        ),
        ("words.py:job", "'words.py:job' names a file; give its module, such as words:job"),
        ("jobs/words.py:a.b", "give its module, such as jobs.words:a.b"),
        ("./words:job", "give its module, such as words:job"),
        ("/home/jobs/words.py:job", "give its module, such as words:job"),
        ("no_such_module:job", "'no_such_module'"),
        ("json:dumps", "cannot be called without arguments: missing a required argument: 'obj'"),
        ("netstack.base.config:KIB", "is an int; give a StreamEnvironment"),
    ],
)
def test_what_is_no_job_is_exit_code_2(job: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", job]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert text in message
    assert main(["plan", job, "--format", "json"]) == 2
    assert text in json.loads(capsys.readouterr().out)["error"]


def test_a_bad_job_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.json"
    path.write_text('{"operators": [{"name": "a", "parallelism": 0}]}')
    assert main(["plan", str(path)]) == 2
    assert f"{path}: operators[0].parallelism is 0" in capsys.readouterr().err


@pytest.mark.slow
def test_modules_of_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from netstack.schedule.graph.stream_builder import StreamEnvironment\n"
        "def read(): ...\n"
        "def show(): ...\n"
        "environment = StreamEnvironment('mine')\n"
        "environment.source(read).sink(show)\n"
        "graph = environment.stream_graph()\n"
    )
    command = [sys.executable, "-c", "import sys; from netstack.cli import main; sys.exit(main())", "plan"]
    for attribute in ("environment", "graph"):
        displayed = subprocess.run(
            [*command, f"mine:{attribute}", "--format=json"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert json.loads(displayed.stdout)["chains"][0]["functions"] == ["mine:read", "mine:show"]
