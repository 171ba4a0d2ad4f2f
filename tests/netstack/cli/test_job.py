"""Where commands find jobs, and what becomes of parameters."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from netstack.base.errors import ConfigError
from netstack.cli import main
from netstack.cli.job import load_job, load_stream_graph, parameters_of
from netstack.schedule.graph.stream_graph import StreamGraph

MODULE = """
from netstack.schedule.graph.job_graph import JobGraph, JobVertex
from netstack.schedule.graph.stream_builder import StreamEnvironment

def job(input, width: int = 2, share=0.5, is_wide: "bool" = False, name=None):
    environment = StreamEnvironment("given", parallelism=width)
    lines = environment.source("words:read")
    lines.map("words:show", path=input, share=share, is_wide=is_wide, called=name)
    return environment

def low_level():
    return JobGraph("low level", (JobVertex("a", 1),))

graph = job("x").stream_graph()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "given_jobs.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "given_jobs", raising=False)
    return "given_jobs"


def test_parameters_are_arguments_of_the_kind_that_the_function_has(module: str) -> None:
    given = {"input": "7", "width": "3", "share": "0.25", "is_wide": "on", "name": "n"}
    graph = load_stream_graph(f"{module}:job", given)
    assert graph.nodes[1].parallelism == 3
    expected: dict[str, Any] = {"path": "7", "share": 0.25, "is_wide": True, "called": "n"}
    assert graph.nodes[1].parameters == expected


@pytest.mark.parametrize(
    ("job", "parameters", "text"),
    [
        ("job", {}, "cannot be called without arguments: missing a required argument: 'input'; it takes input, width"),
        ("job", {"input": "a", "other": "b"}, "cannot be called with these parameters: .* 'other'; it takes input"),
        ("job", {"input": "a", "width": "wide"}, "the parameter width='wide' is no int"),
        ("job", {"input": "a", "is_wide": "perhaps"}, "the parameter is_wide='perhaps' is no bool"),
        ("graph", {"input": "a"}, "is no function and takes no parameters"),
        ("low_level", {}, "is a JobGraph, which can only be planned"),
    ],
)
def test_what_does_not_fit_is_said(module: str, job: str, parameters: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        load_stream_graph(f"{module}:{job}", parameters)


def test_a_job_file_takes_none(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"operators": [{"name": "a"}]}))
    assert isinstance(load_job(str(path)), StreamGraph)
    with pytest.raises(ConfigError, match="takes no parameters"):
        load_job(str(path), {"a": "b"})


def test_the_input_is_a_parameter_with_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parameters_of(Path("lines.txt"), (("a", "b"),)) == {"input": str(tmp_path / "lines.txt"), "a": "b"}
    with pytest.raises(ConfigError, match=r"a='b\\udcff' is not UTF-8; rename"):
        parameters_of(None, (("a", "b\udcff"),))
    with pytest.raises(ConfigError, match=r"parameter input='.*caf\\udce9'"):
        parameters_of(Path("caf\udce9"), ())
    with pytest.raises(ConfigError, match="'input' is given twice"):
        parameters_of(Path("lines.txt"), (("input", "b"),))


def test_a_run_without_its_input_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "netstack.examples.word_count:job", "--input", "nowhere.txt"]) == 2
    assert capsys.readouterr().err == "netstack: --input nowhere.txt: the file does not exist\n"


@pytest.mark.parametrize("command", ["run", "submit"])
def test_state_is_left_behind_of_a_savepoint_only(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    job = ("netstack.examples.word_count:job", "--input", __file__)
    assert main([command, *job, "--allow-non-restored-state"]) == 2
    assert "--allow-non-restored-state requires --from" in capsys.readouterr().err
