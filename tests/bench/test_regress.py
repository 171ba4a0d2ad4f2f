"""`netstack-bench regress` tells what changed, keeps quiet about noise, and compares a machine with itself only."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from netstack_bench.cli import main
from netstack_bench.goals import regress as module
from netstack_bench.goals.command import Rounds, figures
from netstack_bench.goals.rows import ROWS, Measured

FLAGS = ["--only", "async for", "--only", "p50 at", "--json"]


class Machine:
    """Stands in for `measure`: every run is faster by the round's own drift, netstack by `ours` besides."""

    def __init__(self, seed: int = 5) -> None:
        self.ours = 1.0
        self.rng = random.Random(seed)
        self.fails = False
        self.made: int | None = None

    def measure(
        self, wanted: list[Measured], builds: list[str], repeats: int, seconds: float, tell: Any
    ) -> tuple[Rounds, int]:
        actual: Rounds = {}
        for number in range(repeats):
            drift = self.rng.uniform(0.3, 3.0)
            for each in wanted:
                for build in each.builds:
                    if self.fails or (build and build not in builds):
                        continue
                    rate = 1e6 * drift * (self.ours if build else 1.0) * self.rng.uniform(0.99, 1.01)
                    actual.setdefault((each, build), {})[number] = {
                        "records_per_s": rate,
                        "latency_us": {"p50": 1e8 / rate},
                        "cpu_s_per_gb": {"producer": 4e6 / rate, "consumer": 2e6 / rate},
                    }
        return actual, repeats if self.made is None else self.made


@pytest.fixture(params=["python", "compiled"])
def machine(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Machine:
    """Whichever build this checkout has: one that is compiled measures both."""
    actual = Machine()
    monkeypatch.setattr(module, "build", SimpleNamespace(kind=request.param))
    monkeypatch.setattr(module, "measure", actual.measure)
    return actual


def regress(capsys: pytest.CaptureFixture[str], folder: Path, *flags: str, code: int = 0) -> dict[str, Any]:
    assert main(["regress", "--baseline", str(folder / "new" / "b.json"), *FLAGS, *flags]) == code
    actual: dict[str, Any] = json.loads(capsys.readouterr().out)
    return actual


def test_the_first_run_is_the_baseline_and_equal_ones_seldom_differ(
    machine: Machine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The machine drifts tenfold meanwhile; each row is judged with 99 % confidence."""
    verdicts: Counter[str] = Counter()
    for seed in range(20):
        machine.rng = random.Random(seed)
        assert regress(capsys, tmp_path / str(seed))["changes"] == []
        actual = regress(capsys, tmp_path / str(seed))
        assert len(actual["changes"]) >= 3
        verdicts.update(change["verdict"] for change in actual["changes"])
    assert verdicts["same"] >= 0.97 * verdicts.total(), verdicts


@pytest.mark.parametrize(("ours", "verdict", "code"), [(0.8, "worse", 1), (1.25, "better", 0)])
def test_a_change_is_told_of_rates_and_of_latencies(
    machine: Machine, capsys: pytest.CaptureFixture[str], tmp_path: Path, ours: float, verdict: str, code: int
) -> None:
    regress(capsys, tmp_path)
    machine.ours = ours
    actual = regress(capsys, tmp_path, "--fail-on", "worse", code=code)
    assert {change["verdict"] for change in actual["changes"]} == {verdict}
    rates = [change["row"] for change in actual["changes"] if "async for" in change["row"]]
    assert {row.removesuffix(": CPU") for row in rates} < {*rates}, "each rate has its CPU beside it"
    for change in actual["changes"]:
        assert change["low"] < change["now"] / change["before"] < change["high"]
    assert regress(capsys, tmp_path)["worse"] == actual["worse"], "without --fail-on it only tells"
    regress(capsys, tmp_path, "--save")
    assert {change["verdict"] for change in regress(capsys, tmp_path)["changes"]} != {verdict}


def test_a_baseline_of_another_machine_is_refused(
    machine: Machine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    regress(capsys, tmp_path)
    path = tmp_path / "new" / "b.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "machine": {**document["machine"], "cpu": "Z80"}}))
    assert "cpu 'Z80' there" in regress(capsys, tmp_path, code=2)["error"]
    for damaged in (
        "",
        "[]",
        "{}",
        json.dumps({**document, "schema": 9}),
        json.dumps({**document, "figures": {"a": "b"}}),
    ):
        path.write_text(damaged)
        assert "not a baseline" in regress(capsys, tmp_path, code=2)["error"]


def test_what_cannot_be_measured_makes_no_baseline(
    machine: Machine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    machine.fails = True
    assert "nothing could be measured" in regress(capsys, tmp_path, code=2)["error"]
    assert not (tmp_path / "new").exists()
    assert "3 rounds at least" in regress(capsys, tmp_path, "--repeats", "2", code=2)["error"]
    assert "no row contains it" in main_error(capsys, ["regress", "--only", "nothing like it"])


def test_a_run_that_ctrl_c_ended_is_no_baseline(
    machine: Machine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    machine.made = 4
    assert "after 4 of 5 rounds: nothing is compared" in regress(capsys, tmp_path, code=130)["error"]
    assert not (tmp_path / "new").exists()


def test_a_round_that_failed_is_told_and_fails_a_check(
    machine: Machine, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regress(capsys, tmp_path)

    def measure(*arguments: Any) -> tuple[Rounds, int]:
        actual, made = machine.measure(*arguments)
        key = next(key for key in actual if key[1])
        del actual[key][0]
        return actual, made

    monkeypatch.setattr(module, "measure", measure)
    (failed,) = regress(capsys, tmp_path, "--fail-on", "worse", code=1)["failed"]
    assert failed.endswith("1 of 5 rounds")
    assert regress(capsys, tmp_path)["failed"] == [failed]


def main_error(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    assert main(words) == 2
    return capsys.readouterr().err


def test_a_round_that_failed_on_one_side_is_no_pair() -> None:
    row = next(row for row in ROWS if "async for" in row.text)
    assert row.other is not None
    rounds: Rounds = {
        (row.ours, "python"): {0: {"records_per_s": 2.0}, 1: {"records_per_s": 9.0}, 2: {"records_per_s": 8.0}},
        (row.other, ""): {0: {"records_per_s": 1.0}, 2: {"records_per_s": 2.0}},
    }
    assert figures(row, "python", rounds) == [2.0, 4.0]
    assert figures(row, "compiled", rounds) == []


def test_a_baseline_that_cannot_be_written_is_refused_before_anything_is_measured(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "measure", lambda *_: pytest.fail("it measured"))
    (tmp_path / "new").write_text("")  # a file in place of the folder
    assert "b.json: not a directory; name a file" in regress(capsys, tmp_path, code=2)["error"]


def test_what_the_baseline_has_and_this_run_does_not_is_told(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "BUILDS", ("compiled", "python"))
    file = tmp_path / "new" / "b.json"
    regress(capsys, tmp_path)
    stored = json.loads(file.read_text())
    name = next(iter(stored["figures"]))
    lost = name.rpartition(" [")[0] + " [another]"
    stored["figures"] |= {lost: [1.0, 1.0, 1.0], "a row that was not asked for [python]": [1.0, 1.0, 1.0]}
    file.write_text(json.dumps(stored))
    assert main(["regress", "--baseline", str(file), *FLAGS]) == 0
    assert f"in the baseline, but not measured now: {lost}\n" in capsys.readouterr().err
