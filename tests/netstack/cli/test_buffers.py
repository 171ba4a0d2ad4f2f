"""`netstack buffers`: a table for people, a document for programs, exit codes for scripts."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from netstack.cli import main


def test_a_plan_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["buffers", "--gate", "words=100", "--gate", "mixed=4:3", "--partition", "out=10"]) == 0
    displayed = capsys.readouterr()
    assert "fits: 64MiB of memory hold 2,048" in displayed.out
    rows = {line.split("│")[1].strip(): line.split("│")[3:6] for line in displayed.out.splitlines() if "│" in line}
    assert [cell.strip() for cell in rows["words"]] == ["200", "201", "208"]
    assert [cell.strip() for cell in rows["together"]] == ["", "231", "262"]
    assert not displayed.err


def test_a_plan_that_does_not_fit_says_what_to_raise(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["buffers", "--gate", "2000", "--memory", "32MiB"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "32MiB of memory hold 1,024 buffers, 2,993 too few" in text
    assert "Raise --memory to 128544KiB or more" in text


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--gate", "2000", "--gate", "3:3", "--memory", "32MiB", "--max-required", "1000"]
    assert main(["buffers", *arguments, "--partition", "2:unbounded", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rows"][0] == {
        "name": "gate 1",
        "what": "gate, 2000 channels",
        "exclusive": 0,
        "required": 1000,
        "maximum": 4008,
    }
    assert [row["name"] for row in document["rows"]] == ["gate 1", "gate 2", "partition 1", "connections"]
    assert (document["required"], document["maximum"], document["missing"]) == (1019, None, 0)


def test_local_channels_need_no_connection(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["buffers", "--gate", "3:3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["required"] == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "give at least one --gate or --partition"),
        (["--gate", "x"], "such as words=100:25"),
        (["--gate", "2:3"], "2 channels, 3 of them local"),
        (["--partition", "0"], "0 subpartitions"),
        (["--partition", "3:2"], "NAME=SUBPARTITIONS:unbounded"),
        (["--gate", "a=1", "--gate", "a=2"], "--gate 'a' was given twice"),
        (["--gate", "1", "--floating-buffers", "0"], "floating_buffers_per_gate=0"),
        (["--gate", "1", "--memory", "x"], "'x'"),
        (["--gate", "1", "--connections", "-1"], "connections=-1"),
        (["--nonsense"], "No such option"),
    ],
)
def test_bad_usage_is_one_sentence(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["buffers", *arguments]) == 2
    displayed = capsys.readouterr()
    assert text in displayed.err
    assert not displayed.out
    assert main(["buffers", *arguments, "--json"]) == 2
    assert text in json.loads(capsys.readouterr().out)["error"]


def test_an_unknown_command_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nonsense"]) == 2
    assert "No such command 'nonsense'" in capsys.readouterr().err


@pytest.mark.slow
def test_as_a_program() -> None:
    code = "from netstack.cli import main; raise SystemExit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "buffers", "--gate", "1"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "fits" in done.stdout
