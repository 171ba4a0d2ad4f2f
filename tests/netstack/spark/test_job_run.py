"""Jobs whose TaskManagers are tasks of a barrier stage, in a real session."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jobworld
import pytest
from spark.workers import listening, silent

from netstack.base.errors import ConfigError, JobFailed, RequestRefused
from netstack.cli import main
from netstack.schedule.graph.settings import RestartSettings
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import StreamSettings
from netstack.spark import SparkFailed, run

pytestmark = [pytest.mark.java, pytest.mark.whole, pytest.mark.xdist_group("spark")]

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.long
def test_a_job_runs_on_executors_and_goes_on_when_one_is_killed(spark: Any, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_one() -> None:
        until_s = time.monotonic() + 180
        while not [path for path in tmp_path.rglob("*") if "manifest" in path.name.lower()]:
            if time.monotonic() > until_s:
                return
            time.sleep(0.05)
        killed.append(max(listening().values()))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    result = run(spark, jobworld.counting(), taskmanagers=2, slots=1, folder=str(tmp_path))
    killer.join()
    assert killed
    assert result.state == "finished"
    reported = result.results["count"].values()
    assert sorted(row for subtask in reported for row in subtask["counts"]) == jobworld.expected(8000)
    assert max(subtask["attempt"] for subtask in reported) >= 1
    assert silent()
    (savepoint,) = (tmp_path / "checkpoints").iterdir()
    with pytest.raises(RequestRefused, match="'count', but job 'on spark'"):
        run(spark, jobworld.counting("tally"), taskmanagers=2, slots=1, from_savepoint=str(savepoint))


def test_wrong_settings_are_refused_before_a_stage_starts_which_would_fail_and_start_again(spark: Any) -> None:
    for wrong, says in (
        ({"slots": 0}, "slots 0: must be 1"),
        ({"taskmanagers": 0}, "taskmanagers=0; the least is 1"),
        ({"memory_bytes": 1}, "the minimum is 1MiB"),
        ({"slots_in": "threads"}, "slots_in='threads' is unknown; give processes or loop"),
    ):
        with pytest.raises(ConfigError, match=says):
            run(spark, jobworld.counting(), **wrong)
    with pytest.raises(ConfigError, match="job is a function;"):
        run(spark, jobworld.counting)  # type: ignore[arg-type]


def test_a_record_that_is_too_long_is_refused_by_the_limit_that_was_given(spark: Any) -> None:
    job = StreamEnvironment("long", settings=StreamSettings(restart=RestartSettings(kind="none")))
    job.source("jobworld:long_records").rebalance().sink("jobworld:same", name="sink")
    with pytest.raises(JobFailed, match=r"'source' .* 'sink': .* 70.*max_record_bytes"):
        run(spark, job, taskmanagers=1, slots=1, max_record_bytes=64 * 1024)


OPERATORS = """
from netstack import StreamEnvironment


class Hundred:
    def __init__(self):
        self.next = 0

    async def read(self):
        if self.next == 100:
            return None
        first, self.next = self.next, self.next + 50
        return list(range(first, self.next))

    def snapshot(self, unsent):
        return self.next - unsent


class Sum:
    def __init__(self):
        self.sum = 0

    def process(self, number, out):
        self.sum += number

    def finish(self, out):
        return self.sum


def job():
    environment = StreamEnvironment("shipped", parallelism=1)
    environment.source(f"{__name__}:Hundred", name="hundred").sink(f"{__name__}:Sum", name="sum")
    return environment
"""


def test_a_package_that_only_the_driver_has_is_sent_along(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"onlyhere{os.getpid()}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    (tmp_path / name / "operators.py").write_text(OPERATORS)
    monkeypatch.syspath_prepend(str(tmp_path))
    changed = importlib.import_module(f"{name}.operators")
    result = run(spark, changed.job(), taskmanagers=1, slots=1)
    assert result.results["sum"] == {0: 4950}
    (tmp_path / name / "operators.py").write_text(OPERATORS.replace("+= number", "+= 2 * number"))
    assert run(spark, changed.job(), taskmanagers=1, slots=1).results["sum"] == {0: 9900}  # by the same worker


@pytest.mark.long  # a JVM of its own
def test_the_command_runs_a_job_on_spark(tmp_path: Path) -> None:
    name = f"onlyhere{os.getpid()}"
    (tmp_path / f"{name}.py").write_text(OPERATORS)
    words = [sys.executable, "-m", "netstack.cli", "run", f"{name}:job", "--on", "spark", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    assert (reported["state"], reported["taskmanagers"], reported["results"]) == ("finished", 2, {"sum": {"0": 4950}})
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--master", "local[2]"], "--master requires --on spark"),
        (["--on", "spark", "--master", "local[2]", "--taskmanagers", "3"], "--taskmanagers 3 with --master local"),
        (["--on", "spark", "--master", "mesos://x"], "give local"),
    ],
)
def test_what_the_command_refuses_starts_no_spark(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "netstack.examples.two_pipelines:job", *words]) == 2
    assert says in capsys.readouterr().err


def test_what_cannot_run_is_one_sentence(spark: Any) -> None:
    with pytest.raises(SparkFailed, match="needs 3 slots") as caught:
        run(spark, jobworld.counting(), taskmanagers=3)
    assert "\n" not in str(caught.value)
    job = StreamEnvironment("fails", settings=StreamSettings(restart=RestartSettings(kind="none")))
    numbers = job.source("jobworld:Numbers", parameters={"count": 10, "per_s": 1000.0})
    numbers.map("jobworld:fail_at_once", name="check").key_by("jobworld:key_of").sink("jobworld:Count")
    with pytest.raises(JobFailed, match="I do not like"):
        run(spark, job, taskmanagers=1, slots=1)
