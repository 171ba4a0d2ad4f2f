from __future__ import annotations

import contextlib
import errno
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from process_tree import children_of

import netstack_bench.cli
from netstack.base.errors import ConfigError, ConnectionLost, NetstackError
from netstack_bench.__main__ import main as start
from netstack_bench.cli import Runners, main
from netstack_bench.endpoints import config_of
from netstack_bench.spec import RunSpec
from netstack_bench.store import PARQUET, read_rows

FakeResult = Callable[..., dict[str, Any]]
SMALL = ["sweep", "--timeouts", "none,0", "--record-sizes", "8", "--channels", "1"]


class FakeRunners(Runners):
    """Invents results; `trouble` maps the number of a run to what it raises or changes."""

    def __init__(self, fake_result: FakeResult) -> None:
        self.fake_result = fake_result
        self.trouble: dict[int, BaseException | dict[str, Any]] = {}
        self.specs: list[RunSpec] = []
        self.peers: tuple[list[str], int] | None = None

    def check_spark(self) -> None:
        raise ConfigError("no Spark in this test")

    def run_once(self, spec: RunSpec, /, on_progress: object = None) -> dict[str, Any]:
        self.specs.append(spec)
        trouble = self.trouble.get(len(self.specs), {})
        if isinstance(trouble, BaseException):
            raise trouble
        return {**self.fake_result(spec, salt=len(self.specs)), **trouble}

    def run_with_peers(
        self, spec: RunSpec, peers: list[str], repeats: int, on_progress: object = None
    ) -> dict[str, Any]:
        self.peers = (peers, repeats)
        ratio = {"records_per_s": 2.5, "latency_us": {"p50": 0.5}}
        rows = {name: {**self.fake_result(spec, faster=0.4), "engine": name, "ratio": ratio} for name in peers}
        return {"repeats": repeats, **self.run_once(spec), "peer": rows[peers[0]] if len(peers) == 1 else rows}


@pytest.fixture
def runners(fake_result: FakeResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRunners:
    """Those of a command whose `results/` is not the checkout's."""
    monkeypatch.chdir(tmp_path)
    return FakeRunners(fake_result)


def test_an_error_whose_reader_is_gone_has_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(document: object) -> None:
        raise BrokenPipeError

    with open(os.devnull, "w") as nothing:
        monkeypatch.setattr(netstack_bench.cli.console, "print_json", closed)
        monkeypatch.setattr(sys, "stdout", nothing)
        assert main(["run", "--records", "0", "--json"]) == 1


def test_the_old_name_of_place_still_works_and_the_help_does_not_show_it(
    runners: FakeRunners, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--engine", "local", "--as", "flink"], ["--as", "flink", "--engine", "local"]):
        assert main([*SMALL, *words, "--latency-seconds", "0"], runners=runners) == 0
    assert all(spec.spare_buffers == 0 for spec in runners.specs), "--as keeps its constants beside it"
    assert "without Spark" not in capsys.readouterr().err
    assert main(["sweep", "--help"], runners=runners) == 0
    text = capsys.readouterr().out
    assert "--place" in text
    assert "--engine" not in text


def test_a_network_is_one_flag_in_every_command(runners: FakeRunners, tmp_path: Path) -> None:
    assert main(["run", "--network", "200Mbit:10ms"], runners=runners) == 0
    assert main(["run", "--link-rate", "25MB", "--round-trip", "10ms"], runners=runners) == 0
    assert runners.specs == [RunSpec(link_bytes_per_s=25_000_000, round_trip_s=0.01)] * 2
    runners.specs.clear()
    networks = "200Mbit:10ms,1Gbit:1ms,5ms"
    words = [*SMALL, "--place", "local", "--latency-seconds", "0", "--timeouts", "0", "--output", str(tmp_path)]
    assert main([*words, "--network", networks], runners=runners) == 0
    actual = {(spec.link_bytes_per_s, spec.round_trip_s) for spec in runners.specs}
    assert actual == {(25_000_000, 0.01), (125_000_000, 0.001), (None, 0.005)}
    assert len(runners.specs) == 3, "pairs, not their product"
    assert "link rate 25 MB/s" in (tmp_path / "report.html").read_text()
    runners.specs.clear()
    assert main([*words, "--link-rate", "1MB,2MB", "--round-trip", "1ms,2ms"], runners=runners) == 0
    assert len(runners.specs) == 4, "lists of two flags are axes"


def test_run_prints_one_json_document(runners: FakeRunners, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--json"], runners=runners) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    contract = {
        "records",
        "records_per_s",
        "payload_mb_per_s",
        "wire_mb_per_s",
        "latency_us",
        "cpu_s_per_gb",
        "delivered",
        "settings",
        "host",
        "version",
    }
    assert contract <= document.keys()
    assert printed.err == ""
    assert runners.specs == [RunSpec()]


def test_every_flag_reaches_the_spec(runners: FakeRunners, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("a,b\n1,2\n")
    flags = (
        "run --records 1000 --emit arrow --batch-records 64 --channels 4 --buffer-timeout 1ms "
        f"--rate 500 --segment-size 64KiB --exclusive-buffers 3 --floating-buffers 5 --transport unix --input {rows} "
        "--key a --warmup 0 --checksum --credit off --debloat 1s --consume-rate 2000 --round-trip 10ms "
        "--link-rate 100MiB --queue 1MB --loss 0.5% --jitter 2ms"
    )
    assert main(flags.split(), runners=runners) == 0
    assert runners.specs == [
        RunSpec(
            records=1000,
            emit="arrow",
            batch_records=64,
            channels=4,
            buffer_timeout_s=0.001,
            rate_per_s=500.0,
            segment_size_bytes=65536,
            exclusive_buffers=3,
            floating_buffers=5,
            transport="unix",
            input_path=str(rows),
            key_column="a",
            warmup_s=0.0,
            checksum=True,
            credit=False,
            debloat_s=1.0,
            consume_rate_per_s=2000.0,
            round_trip_s=0.01,
            link_bytes_per_s=100 << 20,
            queue_bytes=1_000_000,
            loss=0.005,
            jitter_s=0.002,
        )
    ]


@pytest.mark.parametrize(("text", "timeout"), [("none", None), ("0", 0.0), ("100ms", 0.1)])
def test_buffer_timeouts(runners: FakeRunners, text: str, timeout: float | None) -> None:
    assert main(["run", "--buffer-timeout", text], runners=runners) == 0
    assert runners.specs[0].buffer_timeout_s == timeout


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("run --batch-records 7", "--batch-records 7 is for --emit batch or arrow"),
        ("sweep --place local --batch-records 7", "--batch-records 7 is for --emit batch or arrow"),
        ("run --checkpoint-interval 2s", "--checkpoint-interval is for --checkpoints aligned or unaligned"),
        ("sweep --place local --checkpoint-interval 2s", "--checkpoint-interval is for --checkpoints aligned"),
        ("run --input rows.csv --record-bytes 16", "--record-bytes with --input: the sizes of rows are given"),
        ("run --input rows.csv --emit batch", "--emit batch with --input: rows are records or columnar batches"),
    ],
)
def test_a_flag_without_effect_is_refused(
    flags: str,
    text: str,
    runners: FakeRunners,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("a,b\n1,2\n")
    assert main(flags.split(), runners=runners) == 2
    assert text in capsys.readouterr().err
    assert runners.specs == []


def test_what_flink_has_as_constants_becomes_the_default(runners: FakeRunners) -> None:
    assert main(["run", "--as", "flink"], runners=runners) == 0
    assert (
        main(["run", "--exclusive-buffers", "3", "--overdraft-buffers", "7", "--as", "flink-1.x"], runners=runners) == 0
    )
    assert main([*SMALL, "--place", "local", "--as", "flink", "--latency-seconds", "0"], runners=runners) == 0
    first, older, *swept = runners.specs
    for spec in (first, *swept):
        assert (spec.acts_as, spec.overdraft_buffers, spec.spare_buffers, spec.spin_s) == ("flink", 20, 0, 0)
        assert spec.as_dict()["acts_as"] == "flink"
        assert config_of(spec).emulates == "2.3"
    assert len(swept) == 2
    assert (older.exclusive_buffers, older.overdraft_buffers, older.spare_buffers) == (3, 7, 0)
    assert config_of(older).emulates == "1.x"
    assert config_of(RunSpec()).emulates is None


@pytest.mark.parametrize(
    "flag", ["--exclusive-buffers", "--floating-buffers", "--overdraft-buffers", "--spare-buffers"]
)
@pytest.mark.parametrize("command", ["run", "sweep"])
def test_what_nobody_can_set_in_flink_is_refused(
    runners: FakeRunners, capsys: pytest.CaptureFixture[str], command: str, flag: str
) -> None:
    words = [command, "--as", "flink", flag, "5", *(["--place", "local"] if command == "sweep" else [])]
    assert main(words, runners=runners) == 2
    assert f"{flag} 5 with --as flink: it is always" in capsys.readouterr().err
    assert not runners.specs


def test_run_prints_a_table(runners: FakeRunners, capsys: pytest.CaptureFixture[str]) -> None:
    runners.trouble[1] = {"warnings": ["the machine was [busy]"]}
    assert main(["run"], runners=runners) == 0
    printed = capsys.readouterr()
    for expected in (r"records/s\s+4\.\d+ M", r"latency p50\s+52\.\d ms", r"CPU s/GB producer", r"delivered\s+yes"):
        assert re.search(expected, printed.out)
    assert "8 B records, by record, 1 channel, buffer timeout 100 ms" in printed.out
    assert "warning: the machine was [busy]" in printed.err
    assert "\x1b" not in printed.out + printed.err


def test_repeats_give_medians(runners: FakeRunners, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--repeats", "3", "--json"], runners=runners) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["repeats"] == len(runners.specs) == 3
    assert sorted(run["records_per_s"] for run in document["runs"])[1] == document["records_per_s"]


@pytest.mark.parametrize(("flags", "repeats"), [([], 5), (["--repeats", "7"], 7)])
def test_peers_are_measured_beside_it(
    runners: FakeRunners, capsys: pytest.CaptureFixture[str], flags: list[str], repeats: int
) -> None:
    assert main(["run", "--peer", "zmq", "--peer", "raw", "--peer", "zmq", *flags], runners=runners) == 0
    assert runners.peers == (["zmq", "raw"], repeats)
    printed = capsys.readouterr().out
    assert re.search(r"netstack\s+zmq\s+ratio\s+raw\s+ratio", printed)
    assert re.search(r"records/s\s+4.\d+ M\s+1\.\d+ M\s+2\.5 x\s+1\.\d+ M\s+2\.5 x", printed)
    assert re.search(r"latency p50\s+52.\d ms\s+52.\d ms\s+0\.5 x", printed)


@pytest.mark.parametrize("flags", [("--peer", "zmq,raw"), ("--peer", "zmq", "--peer", "raw", "--peer", "zmq")])
def test_several_peers(flags: tuple[str, ...], runners: FakeRunners) -> None:
    assert main(["run", *flags], runners=runners) == 0
    assert runners.peers == (["zmq", "raw"], 5)


def test_one_peer_is_one_column(runners: FakeRunners, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--peer", "flight"], runners=runners) == 0
    assert re.search(r"netstack\s+flight\s+ratio\n", capsys.readouterr().out)


def test_what_was_not_delivered_is_exit_code_1(runners: FakeRunners, capsys: pytest.CaptureFixture[str]) -> None:
    runners.trouble[1] = {"delivered": False}
    assert main(["run", "--json"], runners=runners) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["delivered"] is False
    assert "not delivered" in printed.err


@pytest.mark.parametrize(
    "failure",
    [
        ConnectionLost("the consumer ended with status 9"),
        OSError("the consumer ended with status 9"),
        ExceptionGroup("nursery", [ConnectionLost("the consumer ended with status 9")]),
    ],
)
def test_a_failed_run_is_exit_code_1_and_one_sentence(
    runners: FakeRunners, capsys: pytest.CaptureFixture[str], failure: BaseException
) -> None:
    runners.trouble[1] = failure
    assert main(["run", "--json"], runners=runners) == 1
    printed = capsys.readouterr()
    assert "the consumer ended with status 9" in json.loads(printed.out)["error"]
    assert len(printed.err.strip().splitlines()) == 1


@pytest.mark.parametrize("words", [["sweep"], ["sweep", "--place", "local"]])
def test_a_sweep_without_pyarrow_says_so_at_once(
    words: list[str], runners: FakeRunners, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert main(words, runners=runners) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert "needs pyarrow, netstack's extra arrow: pip install 'pyarrow>=18'" in message
    assert runners.specs == []


def test_a_crossed_threshold_has_an_exit_code_of_its_own(
    runners: FakeRunners, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    slow = {"latency_us": {"p50": 100.0, "p99": 30_000.0}}
    runners.trouble[1] = runners.trouble[2] = runners.trouble[3] = slow
    words = ["run", "--rate", "1k", "--fail-on", "p99>20ms", "--fail-on", "p50>20ms"]
    assert main(words, runners=runners) == 3
    assert "failed: p99>20ms: 30 ms" in capsys.readouterr().err
    assert main(["run", "--rate", "1k", "--fail-on", "p99>40ms"], runners=runners) == 0
    capsys.readouterr()
    assert main([*words, "--json"], runners=runners) == 3
    verdicts = json.loads(capsys.readouterr().out)["thresholds"]
    assert [(each["condition"], each["failed"]) for each in verdicts] == [("p99>20ms", True), ("p50>20ms", False)]
    runners.trouble[4] = {**slow, "delivered": False}
    assert main(words, runners=runners) == 1, "figures of a lost record do not count"
    capsys.readouterr()
    sweep = [*SMALL, "--place", "local", "--latency-rate", "1k,5k", "--output", str(tmp_path)]
    assert main([*sweep, "--fail-on", "throughput>1MB/s", "--json"], runners=runners) == 3
    printed = capsys.readouterr()
    (verdict,) = json.loads(printed.out)["thresholds"]
    assert verdict["failed"]
    assert "throughput>1MB/s" in printed.err
    assert main([*sweep, "--fail-on", "records/s<1"], runners=runners) == 0
    assert {row["settings_rate_per_s"] for row in read_rows(tmp_path)} == {None, 1e3, 5e3}
    assert main(["run", "--fail-on", "fast"], runners=runners) == 2


def test_warnings_of_runs_are_printed_after_a_sweep(
    runners: FakeRunners, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    runners.trouble[1] = runners.trouble[2] = {"warnings": ["the buffer timeout of 100 s is longer than the run"]}
    words = [*SMALL, "--place", "local", "--output", str(tmp_path)]
    for _ in range(2):  # the second time the rows are stored already
        assert main(words, runners=runners) == 0
        assert "the buffer timeout of 100 s" in capsys.readouterr().err
    assert "(in 2 of 4 runs)" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["run", "--channels", "0"], "--channels 0: the minimum is 1"),
        (["run", "--channels", "many"], "'many' is not a whole number"),
        (["run", "--records", "5", "--seconds", "1"], "--records and --seconds exclude each other"),
        (["run", "--seconds", "nan"], "'nan': write a duration such as"),
        (["run", "--seconds", "-1"], "--seconds"),
        (["run", "--buffer-timeout", "5 parsec"], "unknown unit 'parsec'"),
        (["run", "--rate", "1.5q"], "write a number such as 812, 10k or 1.5M"),
        (["run", "--records", "1.2345k"], "is not a whole number"),
        (["run", "--buffer-timeout", "-5ms"], "--buffer-timeout"),
        (["run", "--buffer-timeout", "100"], "'--buffer-timeout': '100' has no unit: write 100ms or 100s"),
        (["sweep", "--timeouts", "0,1,10,100"], "'--timeouts': '1' has no unit: write 1ms or 1s"),
        (["recommend", "--network", "10GbE:5"], "'--network': '5' has no unit: write 5ms or 5s"),
        (["recommend", "--p99", "20"], "'--p99': '20' has no unit: write 20ms or 20s"),
        (["run", "--segment-size", "10"], "--segment-size 10B"),
        (["run", "--emit", "pickle"], "--emit"),
        (["run", "--transport", "carrier-pigeon"], "--transport"),
        (["run", "--peer", "kafka"], "--peer"),
        (["run", "--transport", "tls", "--round-trip", "1ms"], "--transport tls with --round-trip"),
        (["run", "--repeats", "0"], "--repeats 0"),
        (["run", "--warmup", "none"], "--warmup"),
        (["run", "--exclusive-buffers", "-1"], "--exclusive-buffers -1: the minimum is 0"),
        (["run", "--credit", "maybe"], "'maybe' is neither on nor off"),
        (["run", "--debloat", "0"], "--debloat 0s: give a duration above 0"),
        (["run", "--consume-rate", "0"], "--consume-rate 0.0: give more than 0"),
        (["run", "--round-trip", "none"], "'none' is not allowed here"),
        (["run", "--round-trip", "1ms,2ms"], "--round-trip"),
        (["run", "--link-rate", "0"], "'--link-rate': '0': give more than 0"),
        (["run", "--link-rate", "200"], "'200' has no unit: write 200Mbit or 200MB"),
        (["run", "--network", "1Gbit:1ms", "--round-trip", "1ms"], "--network with --round-trip: the network says it"),
        (["run", "--network", "1Gbit:1ms", "--link-rate", "1MB"], "--network with --link-rate: the network says it"),
        (["run", "--loss", "0.1"], "'0.1' has no unit: write 0.1%, or 10% for 0.1 of 1"),
        (["run", "--loss", "100%"], "'100%': give a percentage from 0% to below 100%"),
        (["run", "--loss", "1%x"], "'1%x': give a percentage"),
        (["run", "--loss", "much"], "'much' is not a number"),
        (["run", "--queue", "1MB"], "--queue without --link-rate"),
        (["run", "--loss", "1%", "--transport", "tls"], "--transport tls with --loss"),
        (["run", "--network", "none"], "'--network': 'none' is not allowed here"),
        (["sweep", "--network", "1Gbit:1ms", "--round-trip", "1ms"], "--network with --round-trip"),
        (["sweep", "--network", "1Gbit:1ms", "--link-rate", "1MB"], "--network with --link-rate"),
        (["sweep", "--network", ","], "--network is empty"),
        (["run", "--input", "/nowhere/at/all.csv"], "/nowhere/at/all.csv"),
        (["run", "--key", "a"], "--input"),
        (["run", "--no-such-flag"], "--no-such-flag"),
        (["run", "stray"], "stray"),
        (["sweep", "--timeouts", "1ms,fast"], "'fast'"),
        (["sweep", "--timeouts", ""], "--timeouts is empty"),
        (["sweep", "--record-sizes", "4"], "--record-bytes 4"),
        (["sweep", "--repeats", "0"], "--repeats 0"),
        (["sweep", "--floating-buffers", "0,8"], "--floating-buffers 0: the minimum is 1"),
        (["sweep", "--exclusive-buffers", ","], "--exclusive-buffers is empty"),
        (["sweep", "--segment-size", "1"], "--segment-size 1B"),
        (["report", "/nowhere"], "/nowhere"),
        (["compare", "/nowhere"], "/nowhere"),
        (["compare", ".", ".", "--threshold", "0"], "--threshold 0"),
        (["fly"], "fly"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_bad_usage_is_exit_code_2_and_one_sentence(
    runners: FakeRunners, capsys: pytest.CaptureFixture[str], words: list[str], reported: str, as_json: bool
) -> None:
    assert main([*words, *(["--json"] if as_json else [])], runners=runners) == 2
    printed = capsys.readouterr()
    assert reported in printed.err
    assert "Traceback" not in printed.err
    assert runners.specs == []
    if as_json:
        assert json.loads(printed.out)["exit_code"] == 2
    else:
        assert printed.out == ""


def test_no_command_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().err == "netstack-bench: Missing command. (see: netstack-bench --help)\n"


def test_a_flag_without_its_value_points_to_the_help_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--rate"]) == 2
    assert capsys.readouterr().err.endswith("'--rate' requires an argument. (see: netstack-bench run --help)\n")


def test_a_setting_that_only_the_runner_can_refuse_is_bad_usage_too(
    runners: FakeRunners, capsys: pytest.CaptureFixture[str]
) -> None:
    runners.trouble[1] = ConfigError("rows.csv is empty; give a file with at least one row")
    assert main(["run"], runners=runners) == 2
    assert "rows.csv is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "trouble"), [([], {3: KeyboardInterrupt()}), (["--peer", "zmq"], {1: {"repeats": 2}})]
)
def test_ctrl_c_keeps_the_repeats_that_ended(
    flags: list[str],
    trouble: dict[int, BaseException | dict[str, Any]],
    runners: FakeRunners,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runners.trouble = trouble
    assert main(["run", "--repeats", "5", "--json", *flags], runners=runners) == 130
    printed = capsys.readouterr()
    assert json.loads(printed.out)["repeats"] == 2
    assert "stopped by Ctrl-C after 2 of 5 runs" in printed.err


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), BaseExceptionGroup("nursery", [KeyboardInterrupt()])])
def test_ctrl_c_before_anything_was_measured(
    runners: FakeRunners, capsys: pytest.CaptureFixture[str], stop: BaseException
) -> None:
    runners.trouble[1] = stop
    assert main(["run", "--json"], runners=runners) == 130
    assert "stopped by Ctrl-C" in json.loads(capsys.readouterr().out)["error"]


def test_sweep_report_compare(runners: FakeRunners, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    assert main([*SMALL, "--output", str(a), "--emit", "batch", "--repeats", "3"], runners=runners) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["Buffer timeout", "Throughput", "Latency", "report"]
    assert lines[-1] == f"report: {a / 'report.html'}"
    assert "12 runs, about 17 seconds, into" in printed.err
    assert {spec.emit for spec in runners.specs} == {"batch"}

    assert main([*SMALL, "--output", str(b), "--emit", "batch", "--repeats", "3", "--json"], runners=runners) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert (document["runs"], document["made"], document["failed"]) == (12, 12, 0)
    assert len(document["rows"]) == 12

    (a / "report.html").unlink()
    with (tmp_path / "page.html").open("w") as page, contextlib.redirect_stdout(page):
        assert main(["report", str(a), "--output", f"/proc/self/fd/{page.fileno()}"], runners=runners) == 0
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert main(["report", str(a)], runners=runners) == 0
    assert "Throughput against buffer timeout" in (a / "report.html").read_text(encoding="utf-8")
    capsys.readouterr()
    assert main(["report", str(a), "--json"], runners=runners) == 0
    assert json.loads(capsys.readouterr().out)["report"] == str(a / "report.html")

    assert main(["compare", str(a), str(b / PARQUET)], runners=runners) == 0
    printed = capsys.readouterr()
    assert "records_per_s: B is" in printed.out
    assert main(["compare", str(a), str(b), "--json"], runners=runners) == 0
    assert json.loads(capsys.readouterr().out)["differences"]


def test_a_sweep_over_buffers_draws_them(
    runners: FakeRunners, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [*SMALL, "--timeouts", "100ms", "--exclusive-buffers", "0,2", "--floating-buffers", "1,8,32"]
    words += ["--round-trip", "10ms", "--link-rate", "100MiB", "--record-sizes", "1KiB", "--latency-seconds", "0"]
    assert main([*words, "--output", str(tmp_path / "s")], runners=runners) == 0
    printed = capsys.readouterr()
    assert "6 runs" in printed.err
    reported = (
        "Buffers at 10 ms round trip: 32 x 32 KiB needed to fill the link (bandwidth-delay product 1 MiB = 100 MiB/s"
    )
    assert reported in printed.out
    assert 'id="buffers"' in (tmp_path / "s" / "report.html").read_text(encoding="utf-8")
    assert {(spec.exclusive_buffers, spec.round_trip_s) for spec in runners.specs} == {(0, 0.01), (2, 0.01)}
    assert main(["compare", str(tmp_path / "s"), str(tmp_path / "s" / PARQUET), "--json"], runners=runners) == 0
    points = [each["point"] for each in json.loads(capsys.readouterr().out)["differences"]]
    assert "exclusive_buffers 0, floating_buffers 1, round_trip_s 10ms" in points[0]


def test_runs_compare_with_runs(runners: FakeRunners, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        assert main(["run", "--repeats", "3", "--json"], runners=runners) == 0
        path.write_text(capsys.readouterr().out)
    assert main(["compare", *map(str, paths)], runners=runners) == 0
    assert "noise unknown" not in capsys.readouterr().out
    (tmp_path / "c.json").write_text(json.dumps(runners.fake_result(RunSpec(channels=9))))
    assert main(["compare", str(paths[0]), str(tmp_path / "c.json")], runners=runners) == 2
    assert "channels (1 against 9)" in capsys.readouterr().err


def test_a_sweep_with_failures_is_exit_code_1(
    runners: FakeRunners, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    runners.trouble[2] = NetstackError("consumer died")
    assert main([*SMALL, "--output", str(tmp_path / "s")], runners=runners) == 1
    printed = capsys.readouterr()
    assert "consumer died" in printed.err
    assert "1 of 4 runs failed" in printed.err
    assert len(runners.specs) == 4


ASKED = ["sweep", "--timeouts", "0,1ms,100ms", "--record-sizes", "8", "--channels", "1"]


def test_a_sweep_ends_with_an_answer_in_its_first_line(
    runners: FakeRunners, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = [*ASKED, "--output", str(tmp_path / "a")]
    assert main(words, runners=runners) == 0
    printed = capsys.readouterr()
    assert re.match(r"Buffer timeout: 1 ms .*p99 1\.2", printed.out)
    assert "to go on" not in printed.err
    made = len(read_rows(tmp_path / "a"))
    assert made > 6, "a pass more than the grid's shows the noise"
    assert main([*words, "--json"], runners=runners) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["made"], document["missing"], document["runs"]) == (0, 0, made)
    answer = document["answer"]
    assert printed.out.startswith(f"Buffer timeout: {answer['sentence']}\n")
    assert (answer["buffer_timeout_s"], answer["is_decided"]) == (0.001, True)
    page = (tmp_path / "a" / "report.html").read_text(encoding="utf-8")
    assert "1 ms</" in page.partition("Buffer timeout")[2][:200]
    assert main(["recommend", str(tmp_path / "a")], runners=runners) == 0
    assert answer["sentence"] in capsys.readouterr().out


def test_a_budget_without_time_for_a_run_is_named(
    runners: FakeRunners, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*ASKED, "--output", str(tmp_path / "a"), "--budget", "1s"], runners=runners) == 1
    printed = capsys.readouterr()
    assert runners.specs == []
    again = printed.err.partition("6 runs of the grid did not fit into the budget; to go on: ")[2]
    assert again.startswith("netstack-bench sweep ")
    assert "--budget" not in again


def test_a_fixed_design_makes_its_passes_and_no_other(
    runners: FakeRunners, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*ASKED, "--repeats", "1", "--output", str(tmp_path / "a")], runners=runners) == 0
    printed = capsys.readouterr()
    assert len(runners.specs) == 6
    assert printed.out.startswith("Buffer timeout: 1 ms or 100 ms,")
    assert re.search(r"to go on: .* --repeats [3-9] --output", printed.err)
    assert main([*ASKED, "--repeats", "2", "--budget", "1min"], runners=runners) == 2
    assert "leave one of them out" in capsys.readouterr().err


def test_without_a_terminal_a_sweep_prints_a_line_now_and_then(
    runners: FakeRunners, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("netstack_bench.console._LINE_S", 0.0)
    assert main([*ASKED, "--output", str(tmp_path / "a")], runners=runners) == 0
    assert re.search(r"\d+ (of \d+ )?runs, at most \d+.* left", capsys.readouterr().err)


def test_a_sweep_stopped_by_ctrl_c_says_how_to_go_on(
    runners: FakeRunners,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    runners.trouble[3] = KeyboardInterrupt()
    assert main(SMALL, runners=runners) == 130
    printed = capsys.readouterr()
    assert "stopped by Ctrl-C: 2 of 4 runs are stored" in printed.err
    again = re.search(r"to continue: netstack-bench (.*)", printed.err)
    assert again is not None
    assert main(again[1].split(), runners=runners) == 0
    folders = list(Path("results").iterdir())
    assert len(folders) == 1
    assert folders[0].name.startswith("sweep-2")
    assert len(read_rows(folders[0])) == 4


def test_a_sweep_into_a_place_that_cannot_be_written(
    runners: FakeRunners, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert main([*SMALL, "--output", str(tmp_path / "file" / "x")], runners=runners) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err
    assert runners.specs == []


def test_a_report_of_nothing_is_bad_usage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "no rows.jsonl" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["sweep", "-h"], ["--version"]])
def test_help_is_exit_code_0(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    assert "netstack-bench" in capsys.readouterr().out


SLOW_SWEEP = """
import sys, threading
from netstack_bench.cli import Runners, main
from netstack_bench.endpoints import config_of

class Slow(Runners):
    def run_once(self, spec, on_progress=None):
        print("started", flush=True)
        threading.Event().wait()

sys.exit(main(sys.argv[1:], runners=Slow()))
"""


@pytest.mark.whole
def test_a_terminal_gets_a_bar_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    """A real interrupt of a real process, its standard error a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", SLOW_SWEEP, *SMALL, "--place", "local", "--output", str(tmp_path / "s")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment) as process:
        os.close(theirs)
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 130
        reported = b""
        while chunk := _read(ours):
            reported += chunk
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", reported.decode())
    assert "1/4" in text
    assert "left" in text
    assert "0 of 4 runs" in text
    assert "Traceback" not in text


def _read(terminal: int) -> bytes:
    """What the other side wrote; nothing once it has closed the terminal, which Linux reports as an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


SCHEMA = json.loads((Path(netstack_bench.cli.__file__).parent / "run.schema.json").read_text())


def check(document: Any) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(document)


@pytest.mark.parametrize("words", [[], ["--repeats", "3"], ["--peer", "raw"], ["--peer", "raw", "--peer", "zmq"]])
def test_the_document_is_what_its_schema_says(
    runners: FakeRunners, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(["run", "--json", *words], runners=runners) == 0
    document = json.loads(capsys.readouterr().out)
    check(document)
    assert document["command"] == shlex.join(["netstack-bench", "run", "--json", *words])
    assert set(document) <= set(SCHEMA["$defs"]["result"]["properties"]), "a key that the schema does not know"
    with pytest.raises(jsonschema.ValidationError):
        check({**document, "records_per_s": "fast"})
    with pytest.raises(jsonschema.ValidationError):
        check({name: value for name, value in document.items() if name != "started_at"})


@pytest.mark.slow
def test_a_real_run_is_what_the_schema_says(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    hgrm = tmp_path / "latencies.hgrm"
    words = ["run", "--json", "--records", "2000", "--repeats", "2", "--hgrm", str(hgrm)]
    assert main(words) == 0
    document = json.loads(capfd.readouterr().out)
    check(document)
    assert set(document) <= set(SCHEMA["$defs"]["result"]["properties"])
    assert document["host"]["packages"]["trio"] == metadata.version("trio")
    counted = sum(document["latency_histogram"]["counts"])
    assert counted >= document["latency_samples"]
    assert f"Total count    = {counted:12d}]" in hgrm.read_text()


def test_a_failure_is_what_the_schema_says(runners: FakeRunners, capsys: pytest.CaptureFixture[str]) -> None:
    runners.trouble[1] = ConnectionLost("gone")
    assert main(["run", "--json"], runners=runners) == 1
    check(json.loads(capsys.readouterr().out))


def test_worse_is_exit_code_1_for_those_who_ask(
    runners: FakeRunners, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = []
    for name, rate in (("a", 1e6), ("b", 0.8e6)):
        runners.trouble[len(runners.specs) + 1] = {"records_per_s": rate}
        assert main(["run", "--json"], runners=runners) == 0
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(capsys.readouterr().out)
    a, b = map(str, files)
    assert main(["compare", a, b]) == 0, "nobody asked"
    assert main(["compare", a, b, "--fail-on", "worse"]) == 1
    reported = capsys.readouterr().err
    assert "figures are worse, most of all records_per_s at throughput, timeout 100ms" in reported
    assert "(-20.0%)" in reported
    assert main(["compare", a, b, "--fail-on", "worse", "--threshold", "25"]) == 0
    assert main(["compare", b, a, "--fail-on", "worse"]) == 0, "better is not worse"


def test_ctrl_c_while_the_commands_are_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(MetaPathFinder):
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "netstack_bench.cli":
                raise KeyboardInterrupt

    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    monkeypatch.setattr(sys, "argv", ["netstack-bench", "run", "--json"])
    monkeypatch.delitem(sys.modules, "netstack_bench.cli")
    assert start() == 130
    printed, error = capsys.readouterr(), "stopped by Ctrl-C before anything was measured"
    assert json.loads(printed.out) == {"error": error, "exit_code": 130, "delivered": False}
    assert printed.err == f"netstack-bench: {error}\n"


@pytest.mark.whole
def test_sigterm_is_called_by_its_name(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "netstack_bench", "run", "--seconds", "30", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        reported = ""
        while running.poll() is None and len(children_of(running.pid)) < 2:  # both workers
            pass
        running.send_signal(signal.SIGTERM)
        out, reported = running.communicate(timeout=120)
    assert running.returncode == 143
    assert "stopped by SIGTERM before anything was measured" in reported
    assert json.loads(out)["exit_code"] == 143


def test_latencies_into_a_folder_that_is_missing_are_refused_before_the_run(
    runners: FakeRunners, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["run", "--hgrm", str(tmp_path / "none" / "x.hgrm")], runners=runners) == 2
    assert f"there is no folder {tmp_path / 'none'}" in capsys.readouterr().err
    assert runners.specs == []


def test_figures_are_printed_though_their_latencies_cannot_be_written(
    runners: FakeRunners, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    runners.trouble[1] = {"latency_histogram": {"buckets": [5], "counts": [1], "min_ns": 5, "max_ns": 5}}
    file = tmp_path / "x.hgrm"
    assert main(["run", "--json", "--hgrm", str(file)], runners=runners) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["delivered"] is True
    assert f"--hgrm {file}: no space" in printed.err


def test_ctrl_c_while_the_report_is_written_says_where_the_runs_are(
    runners: FakeRunners, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("netstack_bench.sweep.write_combined_report", interrupted)
    runners.trouble[3] = KeyboardInterrupt()
    assert main([*SMALL, "--output", str(tmp_path / "s")], runners=runners) == 130
    reported = capsys.readouterr().err
    assert f"2 runs are stored in {tmp_path / 's'}" in reported
    assert f"netstack-bench report {tmp_path / 's'} writes it" in reported


@pytest.mark.parametrize("row", ['{"a": 1}', '{"run_id": [1]}'])
@pytest.mark.parametrize("command", ["sweep", "report", "recommend"])
def test_a_row_of_something_else_is_named_with_its_folder(
    command: str, row: str, runners: FakeRunners, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text(f"{row}\n")
    words = [*SMALL, "--output", str(tmp_path)] if command == "sweep" else [command, str(tmp_path)]
    assert main(words, runners=runners) in (1, 2)
    assert f"{tmp_path} holds rows that no sweep of this release has written" in capsys.readouterr().err
    assert runners.specs == []


def test_a_sweep_into_a_folder_whose_name_is_not_text(runners: FakeRunners, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    assert main([*SMALL, "--json", "--output", str(folder)], runners=runners) == 0
    assert sorted(each.name for each in folder.iterdir() if each.is_file()) == [
        "report.html",
        "rows.jsonl",
        "rows.parquet",
        "sweep.json",
    ]


def test_the_records_of_a_batch_are_those_of_a_columnar_peer(runners: FakeRunners) -> None:
    assert main(["run", "--batch-records", "7", "--peer", "flight"], runners=runners) == 0


def test_a_command_that_keeps_nothing_does_not_say_that_nothing_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("netstack_bench.scheduler.measure.measure", interrupted)
    assert main(["scheduler"]) == 130
    assert "stopped by Ctrl-C before its end; it has no result" in capsys.readouterr().err


@pytest.mark.whole
@pytest.mark.parametrize("words", [["run", "--json", "--records", "0"], ["compare", "--json", "a", "b"]])
def test_a_full_standard_output_is_no_traceback(words: list[str], tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "netstack_bench", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": ""},  # what is buffered must not fail again at the end
        )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.whole
def test_a_closed_terminal_ends_a_run_as_ctrl_c_does(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "netstack_bench", "run", "--seconds", "30", "--json"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as running:
        while running.poll() is None and len(children_of(running.pid)) < 2:  # both workers
            pass
        running.send_signal(signal.SIGHUP)
        out, reported = running.communicate(timeout=120)
    assert running.returncode == 129
    assert "stopped by SIGHUP" in reported
    assert json.loads(out)["exit_code"] == 129
    assert list(tmp_path.iterdir()) == []


def test_what_standard_output_cannot_encode_is_escaped() -> None:
    """The tables have dashes, and the names of files need not be text."""
    code = (
        "import sys; from netstack_bench.__main__ import main; sys.argv = ['x', '--version']; main(); print(chr(8211))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\\u2013\n")
