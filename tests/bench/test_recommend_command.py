"""`netstack-bench recommend`: what it measures, what it says, and lines that mean what they say."""

from __future__ import annotations

import json
import random
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from netstack import NetworkConfig
from netstack.cli.taskmanager import read_config, taskmanager_config
from netstack.cli.values import parse_network
from netstack_bench.cli import main
from netstack_bench.grid import Grid
from netstack_bench.places.placements import Runners
from netstack_bench.recommend.command import LADDER_S
from netstack_bench.recommend.lines import lines, memory_bytes
from netstack_bench.spec import RunSpec
from netstack_bench.store import Row, Store

Rows = Callable[..., list[Row]]
FakeResult = Callable[..., dict[str, Any]]
KNOWN = (0.0, 0.001, 0.01, 0.1)
"""Timeouts for which the results of the other tests are as they should be."""


class Frontier(Runners):
    """Invents results: 1 ms and more keep 96 % or more, 0.5 ms 80 %, 0 half; p99 is the timeout and a little."""

    def __init__(self, fake_result: FakeResult) -> None:
        self.fake_result = fake_result
        self.specs: list[RunSpec] = []
        self.rng = random.Random(7)

    def run_once(self, spec: RunSpec, /, on_progress: object = None) -> dict[str, Any]:
        self.specs.append(spec)
        faster = {0.0005: 0.8 / 0.9, 0.002: 0.97 / 0.9}.get(
            spec.buffer_timeout_s, 1.0 if spec.buffer_timeout_s in KNOWN else 0.99 / 0.9
        )
        return self.fake_result(spec, salt=self.rng.randrange(1 << 30), noise=0.01, faster=faster)

    def run_over_hosts(self, spec: Any, /, on_progress: object = None, **hosts: object) -> Any:
        return self.run_once(spec)


@pytest.fixture
def runners(fake_result: FakeResult) -> Frontier:
    return Frontier(fake_result)


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    actual: dict[str, Any] = json.loads(capsys.readouterr().out)
    (each,) = actual["answers"]
    return dict(each)


def test_the_paragraph_and_the_lines(runners: Frontier, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "--p99", "20ms"], runners=runners) == 0
    out = capsys.readouterr().out
    assert re.search(r"\nBuffer timeout: (1|2|5|10) ms has a p99 of .*; it keeps (9\d|100)", out)
    for part in (
        " of the throughput at 100 ms",
        "; memory ",
        "NetworkConfig(",
        "execution.buffer-timeout.interval",
    ):
        assert part in out
    assert len(runners.specs) < 60
    assert {spec.rate_per_s for spec in runners.specs} == {None, 1000.0}


def test_the_runs_of_a_pair_alternate_and_have_the_line_of_the_job(
    runners: Frontier, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["--network", "1GbE:10ms", "--channels", "2", "--parallelism", "4", "--record-bytes", "1KiB"]
    assert main(["recommend", *line, "--json"], runners=runners) == 0
    assert {(spec.link_bytes_per_s, spec.round_trip_s, spec.channels) for spec in runners.specs} == {
        (125_000_000, 0.01, 8)
    }
    full = [spec.buffer_timeout_s for spec in runners.specs if spec.rate_per_s is None]
    assert set(LADDER_S) <= set(full), "a first pass"
    assert full.count(0.1) == max(map(full.count, full)), "the reference is in each of the others"
    assert told(capsys)["workload"] == "1 KiB records, 8 channels"


def test_a_long_line_gets_the_buffers_that_pay(runners: Frontier, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--network", "10GbE:20ms", "--record-bytes", "64KiB"]
    assert main(["recommend", *line, "--json"], runners=runners) == 0
    actual = told(capsys)
    needed = 1.25 * 1.25e9 * 0.02 / (32 << 10)
    assert f"floating_buffers_per_gate={int(needed) - 1}" in actual["lines"]["a program"]
    assert actual["memory_bytes"] > needed * (32 << 10)


def test_what_cannot_be_reached_is_exit_code_1(runners: Frontier, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "--throughput", "9GB/s", "--json"], runners=runners) == 1
    actual = told(capsys)
    assert (actual["is_reached"], actual["is_decided"]) == (False, True)
    assert actual["sentence"].startswith("no timeout measured")


def test_hosts_are_measured_as_they_are(runners: Frontier, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "--hosts", "10.0.0.1:6121,10.0.0.2:6121", "--json"], runners=runners) == 0
    assert {getattr(spec, "hosts", ()) for spec in runners.specs} == {("10.0.0.1:6121", "10.0.0.2:6121")}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--p99", "1ms", "--throughput", "1MB/s"], "leave one out"),
        (["--network", "fast"], "write"),
        (["--hosts", "a:1", "--network", "1ms"], "these have them"),
        (["--parallelism", "0"], "minimum is 1"),
        (["--relay"], "goes with --hosts"),
        (["--budget", "0"], "no time for runs at two timeouts"),
    ],
)
def test_what_does_not_go_together_is_bad_usage(
    runners: Frontier, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert main(["recommend", *flags], runners=runners) == 2
    assert message in capsys.readouterr().err


def stored(folder: Path, rows: list[Row]) -> str:
    with Store(folder) as store:
        for row in rows:
            store.append(row)
    return str(folder)


def test_of_results_nothing_is_measured(
    runners: Frontier, capsys: pytest.CaptureFixture[str], tmp_path: Path, fake_rows: Rows
) -> None:
    grid = Grid(record_sizes=(8,), channels=(1,), repeats=5, exclusive_buffers=(3,))
    folder = stored(tmp_path / "sweep", fake_rows(grid, noise=0.01))
    assert main(["recommend", folder, "--json"], runners=runners) == 0
    actual = told(capsys)
    assert actual["buffer_timeout_s"] == 0.001
    assert 0.9 < actual["kept"]["low"] < 0.96 < actual["kept"]["high"] < 1
    assert actual["buffers"].startswith("3 + 8 buffers")
    assert runners.specs == []
    assert main(["recommend", folder, "--p99", "15ms", "--json"], runners=runners) == 0
    assert told(capsys)["buffer_timeout_s"] in (0.001, 0.01)
    assert main(["recommend", folder, "--channels", "4"], runners=runners) == 2
    assert "--channels with" in capsys.readouterr().err


def test_results_of_one_repeat_do_not_decide(
    runners: Frontier, capsys: pytest.CaptureFixture[str], tmp_path: Path, fake_rows: Rows
) -> None:
    folder = stored(tmp_path / "sweep", fake_rows(Grid()))
    assert main(["recommend", folder], runners=runners) == 1
    out = capsys.readouterr().out
    assert out.count("by chance is not known") == 1 + 4
    assert out.startswith("every workload\nBuffer timeout: 1 ms or 10 ms,")
    assert "NetworkConfig" not in out, "four workloads have no one file of settings"


@pytest.mark.parametrize(
    ("text", "actual"),
    [
        ("10GbE:0.5ms", (1_250_000_000, 0.0005)),
        ("100MiB:10ms", (100 << 20, 0.01)),
        ("100mbit:20ms", (12_500_000, 0.02)),
        ("2.5Gbit/s:20ms", (312_500_000, 0.02)),
        ("2ms", (None, 0.002)),
        ("100Mbps", (12_500_000, 0.0)),
        ("25MB:0", (25_000_000, 0.0)),
    ],
)
def test_a_network_is_a_rate_and_a_round_trip(text: str, actual: tuple[int | None, float]) -> None:
    assert parse_network(text) == actual


@pytest.mark.parametrize("timeout_s", [None, 0.0, 0.0005, 0.1])
def test_every_file_reads_its_lines(tmp_path: Path, timeout_s: float | None) -> None:
    spec = RunSpec(channels=100, floating_buffers=64, segment_size_bytes=64 << 10)
    actual = lines(spec, timeout_s)
    program = actual["a program"].split("\n")[0]
    config = eval(program, {"NetworkConfig": NetworkConfig})  # noqa: S307
    assert (config.floating_buffers_per_gate, config.segment_size_bytes) == (64, 64 << 10)
    assert config.memory_bytes == memory_bytes(spec) >= (100 * 2 + 64 + 100) * (64 << 10)
    (tmp_path / "tm.toml").write_text(actual["a TaskManager's TOML, for each slot"], encoding="utf-8")
    assert read_config(tmp_path / "tm.toml") == {"memory_bytes": memory_bytes(spec), "segment_size_bytes": 64 << 10}
    assert tomllib.loads((tmp_path / "tm.toml").read_text())["segment-size"] == "64KiB"
    two = actual["Flink 2.x, config.yaml"]
    assert ("execution.buffer-timeout.enabled: false" in two) == (timeout_s is None)
    assert "buffers-per-channel" not in two, "it is a constant there"
    one = actual["Flink 1.x, config.yaml or flink-conf.yaml"]
    assert "taskmanager.network.memory.floating-buffers-per-gate: 64" in one
    told_ms = {None: "-1 ms", 0.0: "0 ms", 0.0005: "1 ms", 0.1: "100 ms"}[timeout_s]
    assert f"execution.buffer-timeout: {told_ms}\n" in one


@pytest.mark.parametrize(("profile", "version"), [("flink", "2.3"), ("flink-1.x", "1.x")])
def test_what_behaves_as_flink_is_measured_so_and_set_so(
    runners: Frontier, capsys: pytest.CaptureFixture[str], tmp_path: Path, profile: str, version: str
) -> None:
    main(["recommend", "--p99", "20ms", "--as", profile, "--network", "50ms", "--json"], runners=runners)
    assert {spec.acts_as for spec in runners.specs} == {profile}
    if profile == "flink":
        assert {spec.floating_buffers for spec in runners.specs} == {8}, "nobody can set them there"
    actual = told(capsys)["lines"]
    config = eval(actual["a program"].split("\n")[0], {"NetworkConfig": NetworkConfig})  # noqa: S307
    (tmp_path / "tm.toml").write_text(actual["a TaskManager's TOML, for each slot"], encoding="utf-8")
    daemon = taskmanager_config(read_config(tmp_path / "tm.toml")).network
    assert config.emulates == daemon.emulates == version


@pytest.mark.parametrize(("breaks", "low", "high"), [(40_000.0, 34_000.0, 40_000.0), (300.0, 250.0, 300.0)])
def test_the_highest_rate_is_found_above_and_below_the_first(
    runners: Frontier,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    breaks: float,
    low: float,
    high: float,
) -> None:
    real = runners.run_once

    def run_once(spec: RunSpec, /, on_progress: object = None) -> dict[str, Any]:
        document = real(spec)
        if spec.rate_per_s is not None:
            late = 900_000.0 if spec.rate_per_s > breaks else 1_000.0
            document["latency_us"] = {**document["latency_us"], "p99": late}
        return document

    monkeypatch.setattr(runners, "run_once", run_once)
    main(["recommend", "--p99", "20ms", "--highest-rate", "--json"], runners=runners)
    highest = told(capsys)["highest_rate"]
    assert low <= highest["records_per_s"] <= high < highest["next_records_per_s"] <= high * 1.2
    assert highest["p99_us"] == 1_000.0
    assert "keeps p99 up to 20 ms" in highest["sentence"]
    assert main(["recommend", "--highest-rate"], runners=runners) == 2


def test_a_stored_sweep_over_rates_knows_the_highest(
    runners: Frontier, fake_rows: Rows, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = (1e3, 1e4, 1e5)
    with Store(tmp_path) as store:
        for row in fake_rows(
            Grid(timeouts_s=(0.1, 0.0), record_sizes=(8,), channels=(1,), latency_rate_per_s=rates, repeats=3)
        ):
            rate = row["settings_rate_per_s"] or 1.0
            store.append({**row, "latency_us_p99": rate})
    main(["recommend", str(tmp_path), "--p99", "20ms", "--json"], runners=runners)
    highest = told(capsys)["highest_rate"]
    assert (highest["records_per_s"], highest["next_records_per_s"]) == (1e4, 1e5)


@pytest.mark.slow
@pytest.mark.long
def test_a_real_small_run_says_something(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["recommend", "--p99", "10s", "--seconds", "0.2", "--budget", "40s", "--json"])
    actual = told(capsys)
    assert code in (0, 1)
    assert (code == 0) == (actual["is_decided"] and actual["is_reached"])
    assert actual["passes"] >= 1
    assert actual["buffer_timeout_s"] in (0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)


def test_ctrl_c_keeps_the_repeats_that_ended(
    runners: Frontier, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = runners.run_once

    def run_once(spec: RunSpec, /, on_progress: object = None) -> dict[str, Any]:
        if len(runners.specs) == 10:
            raise KeyboardInterrupt
        return real(spec)

    monkeypatch.setattr(runners, "run_once", run_once)
    assert main(["recommend", "--json"], runners=runners) == 130
    printed = capsys.readouterr()
    (actual,) = json.loads(printed.out)["answers"]
    assert actual["passes"] == 1
    assert not actual["is_decided"]
    assert "stopped by Ctrl-C: the answer rests on the runs until then" in printed.err
