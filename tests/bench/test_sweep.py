from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from netstack.base.errors import ConnectionLost, NetstackError
from netstack_bench.compare import median_result
from netstack_bench.engines.flink import FlinkSpec
from netstack_bench.grid import Grid, PlannedRun
from netstack_bench.spec import RunSpec
from netstack_bench.store import JOURNAL, PARQUET, Row, Store, StoreError, read_rows, read_sweep
from netstack_bench.sweep import REPORT, PlaceUnusable, SweepResult, make_runs, pending, succeeded, undecided_runs

FakeResult = Callable[..., dict[str, Any]]
GRID = Grid(timeouts_s=(None, 0.0), record_sizes=(8,), channels=(1, 4))  # 8 runs


class Runner:
    """Makes invented runs; `trouble` maps the number of a run to what it raises or changes."""

    def __init__(
        self, fake_result: FakeResult, trouble: dict[int, BaseException | dict[str, Any]] | None = None
    ) -> None:
        self.fake_result = fake_result
        self.trouble = trouble or {}
        self.specs: list[RunSpec] = []

    def __call__(self, spec: RunSpec) -> dict[str, Any]:
        self.specs.append(spec)
        trouble = self.trouble.get(len(self.specs), {})
        if isinstance(trouble, BaseException):
            raise trouble
        return {**self.fake_result(spec, salt=len(self.specs)), **trouble}


def sweep(folder: Path, runner: Runner, grid: Grid = GRID) -> SweepResult:
    with Store(folder) as store:
        return make_runs(grid, store, runner, command="netstack-bench sweep")


def test_every_run_becomes_a_row_in_every_place(tmp_path: Path, fake_result: FakeResult) -> None:
    runner = Runner(fake_result)
    result = sweep(tmp_path, runner)
    assert (result.planned, result.made, result.skipped, result.failed, result.interrupted) == (8, 8, 0, 0, False)
    assert [run.spec for run in GRID.plan()] == runner.specs
    assert len(read_rows(tmp_path)) == len(read_rows(tmp_path / PARQUET)) == 8
    assert result.report == tmp_path / REPORT
    assert "<svg" in result.report.read_text(encoding="utf-8")
    kept = read_sweep(tmp_path)
    assert kept["grid"]["seed"] == 0
    assert kept["order"] == [[run.spec.run_id, run.repeat] for run in GRID.plan()]
    row = result.rows[0]
    assert (row["run_id"], row["settings_channels"]) == (runner.specs[0].run_id, runner.specs[0].channels)
    assert row["latency_us_p50"] > 0
    assert row["started_at"].endswith("Z")


def test_finished_runs_are_skipped(tmp_path: Path, fake_result: FakeResult) -> None:
    sweep(tmp_path, Runner(fake_result))
    again = Runner(fake_result)
    result = sweep(tmp_path, again)
    assert again.specs == []
    assert (result.made, result.skipped, len(result.rows)) == (0, 8, 8)
    more = Runner(fake_result)
    result = sweep(tmp_path, more, Grid(timeouts_s=(None, 0.0, 0.01), record_sizes=(8,), channels=(1, 4), repeats=2))
    assert (result.made, result.skipped, len(result.rows)) == (16, 8, 24)


def test_a_place_where_no_run_can_be_made_ends_the_sweep(tmp_path: Path, fake_result: FakeResult) -> None:
    runner = Runner(fake_result, {3: PlaceUnusable("no Python there")})
    result = sweep(tmp_path, runner)
    assert (result.made, result.failed, result.interrupted) == (3, 1, False)
    assert result.hopeless == "PlaceUnusable: no Python there"
    again = sweep(tmp_path, Runner(fake_result))
    assert (again.skipped, again.made, again.failed, again.hopeless) == (2, 6, 0, "")


def test_failures_in_a_row_that_are_alike_end_the_sweep(tmp_path: Path, fake_result: FakeResult) -> None:
    lost: dict[int, Any] = {number: NetstackError("host b is gone") for number in (1, 2, 4, 5, 6, 7, 8)}
    result = sweep(tmp_path, Runner(fake_result, lost), replace(GRID, repeats=2))
    assert (result.made, result.failed) == (8, 7)  # two, and five in a row
    assert "host b is gone" in result.hopeless


def test_failures_that_differ_do_not(tmp_path: Path, fake_result: FakeResult) -> None:
    several: dict[int, Any] = {number: NetstackError(f"cause {number}") for number in range(1, 9)}
    result = sweep(tmp_path, Runner(fake_result, several))
    assert (result.made, result.failed, result.hopeless) == (8, 8, "")


def test_a_folder_that_cannot_be_written_ends_the_sweep_at_once(tmp_path: Path, fake_result: FakeResult) -> None:
    runner = Runner(fake_result, {2: StoreError("no room")})
    with pytest.raises(StoreError, match="no room"):
        sweep(tmp_path, runner)
    assert len(runner.specs) == 2


def test_a_failed_run_is_recorded_and_the_sweep_goes_on(tmp_path: Path, fake_result: FakeResult) -> None:
    group = ExceptionGroup("nursery", [ExceptionGroup("inner", [ConnectionLost("the peer\nwent away")])])
    runner = Runner(
        fake_result, {2: NetstackError("consumer died"), 3: OSError(98, "Address already in use"), 5: group}
    )
    result = sweep(tmp_path, runner)
    assert (result.made, result.failed) == (8, 3)
    errors = [row["error"] for row in result.rows]
    assert errors[1] == "NetstackError: consumer died"
    assert "Address already in use" in errors[2]
    assert errors[4] == "ConnectionLost: the peer went away"
    assert result.rows[1]["settings_channels"] == runner.specs[1].channels

    again = Runner(fake_result)
    result = sweep(tmp_path, again)
    assert again.specs == [runner.specs[number] for number in (1, 2, 4)]
    assert (result.made, result.failed, len(result.rows)) == (3, 0, 8)


def test_what_was_not_delivered_is_a_failure(tmp_path: Path, fake_result: FakeResult) -> None:
    runner = Runner(
        fake_result, {1: {"delivered": False, "warnings": ["busy", "delivery: 3 records missing", "delivery: x"]}}
    )
    result = sweep(tmp_path, runner)
    assert result.failed == 1
    assert result.rows[0]["error"] == "not delivered: 3 records missing (and 1 more)"
    assert result.rows[0]["records_per_s"] > 0
    assert not succeeded(result.rows[0])


def test_a_run_in_which_nothing_moved_measured_nothing(tmp_path: Path, fake_result: FakeResult) -> None:
    result = sweep(tmp_path, Runner(fake_result, {2: {"records": 0, "records_per_s": 0.0}}))
    assert result.failed == 1
    assert "no record was sent" in result.rows[1]["error"]


@pytest.mark.parametrize(
    "stop", [KeyboardInterrupt(), BaseExceptionGroup("nursery", [KeyboardInterrupt(), ConnectionLost("x")])]
)
def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, fake_result: FakeResult, stop: BaseException) -> None:
    result = sweep(tmp_path, Runner(fake_result, {4: stop}))
    assert (result.made, result.failed, result.interrupted) == (3, 0, True)
    assert len(read_rows(tmp_path / PARQUET)) == 3
    assert (tmp_path / REPORT).exists()
    rest = Runner(fake_result)
    assert sweep(tmp_path, rest).made == 5


def test_ctrl_c_before_the_first_row_writes_nothing_false(tmp_path: Path, fake_result: FakeResult) -> None:
    result = sweep(tmp_path, Runner(fake_result, {1: KeyboardInterrupt()}))
    assert (result.report, result.made, result.interrupted) == (None, 0, True)
    assert not (tmp_path / PARQUET).exists()


@pytest.mark.parametrize("mistake", [KeyError("x"), ExceptionGroup("g", [ConnectionLost("x"), TypeError("y")])])
def test_a_mistake_in_our_own_code_is_not_hidden(tmp_path: Path, fake_result: FakeResult, mistake: Exception) -> None:
    with pytest.raises(type(mistake)):
        sweep(tmp_path, Runner(fake_result, {3: mistake}))
    assert len(read_rows(tmp_path)) == 2


def test_a_full_disk_ends_the_sweep_and_keeps_the_rows(
    tmp_path: Path, fake_result: FakeResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = 0

    def sync(handle: int) -> None:
        nonlocal synced
        synced += 1
        if synced > 4:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("netstack_bench.store.os.fsync", sync)
    with pytest.raises(StoreError, match=r"no space left.*intact"):
        sweep(tmp_path, Runner(fake_result))
    assert len((tmp_path / JOURNAL).read_bytes().splitlines()) == 3  # one sync was that of sweep.json


def test_what_could_not_be_computed_is_absent(tmp_path: Path, fake_result: FakeResult) -> None:
    sweep(tmp_path, Runner(fake_result, {1: {"wire_mb_per_s": math.nan, "latency_us": {"p50": math.inf}}}))
    row = json.loads((tmp_path / JOURNAL).read_text().splitlines()[0])
    assert (row["wire_mb_per_s"], row["latency_us_p50"]) == (None, None)


def test_progress_hears_of_every_run(tmp_path: Path, fake_result: FakeResult) -> None:
    received: list[tuple[str, int]] = []

    class Progress:
        def begin(self, run: PlannedRun) -> None:
            received.append(("begin", run.order))

        def end(self, run: PlannedRun, row: Row) -> None:
            received.append(("end", run.order))

    with Store(tmp_path) as store:
        make_runs(GRID, store, Runner(fake_result), progress=Progress())
        assert pending(GRID, store) == []
    assert received == [(what, order) for order in range(8) for what in ("begin", "end")]


def test_medians_of_repeats(fake_result: FakeResult) -> None:
    spec = RunSpec()
    results = [{**fake_result(spec), "records_per_s": rate, "records": int(rate)} for rate in (3.0, 1.0, 2.0)]
    results[1]["latency_us"] = {"p50": 7.0, "p90": 1.0, "p99": 1.0, "p999": 1.0, "max": 1.0}
    results[1]["warnings"] = ["late by 3 ms"]
    results[2]["warnings"] = ["late by 200 us"]
    merged = median_result(results)
    assert (merged["records_per_s"], merged["records"]) == (2.0, 2)
    assert merged["latency_us"]["p50"] == results[0]["latency_us"]["p50"]
    assert (merged["repeats"], merged["spread"]) == (3, {"records_per_s": [1.0, 3.0]})
    assert merged["settings"] == spec.as_dict()
    assert (merged["delivered"], merged["warnings"]) == (True, ["late by 3 ms"]), (
        "one that differs in numbers is the same"
    )
    assert [run["records_per_s"] for run in merged["runs"]] == [3.0, 1.0, 2.0]
    assert not any("settings" in run for run in merged["runs"])
    results[0]["delivered"] = False
    assert median_result(results)["delivered"] is False
    assert median_result(results[:1]) == results[0]


def test_a_point_whose_comparison_is_undecided_is_measured_again_until_it_is_or_the_repeats_are_over(
    tmp_path: Path, fake_result: FakeResult
) -> None:
    """One is the same on both sides, one far away, one so noisy that it stays undecided; each has its repeats."""
    same, separate, noisy = (
        RunSpec(rate_per_s=1000.0, channels=channels, gates=gates)
        for channels, gates in ((1, "one"), (2, "each"), (3, "each"))
    )
    grid = Grid(points=(same, separate, noisy), repeats=3, turns=lambda spec: (FlinkSpec.of(spec), spec))
    specs: list[RunSpec] = []

    def run(spec: RunSpec) -> dict[str, Any]:
        specs.append(spec)
        is_flink = spec.ENGINE_KIND == "flink"
        wobble = (1.0, 1.9, 0.6)[len(specs) % 3] if spec.channels == 3 else 1.0 + 0.001 * (len(specs) % 2)
        figure = 100.0 * wobble * (2.0 if spec.channels == 2 and not is_flink else 1.0)
        document = fake_result(spec)
        latency = dict.fromkeys(document["latency_us"], figure)
        return {
            **document,
            "latency_us": latency,
            "engine_kind": spec.ENGINE_KIND,
            "metrics": {},
            "idle_ms_per_s": None,
        }

    with Store(tmp_path) as store:
        result = make_runs(grid, store, run, most_repeats=7)
        counts = Counter((spec.ENGINE_KIND, spec.channels) for spec in specs)
        assert counts == {
            (kind, ch): repeats for kind in ("local", "flink") for ch, repeats in ((1, 3), (2, 3), (3, 7))
        }
        verdicts = {cell["settings"]["channels"]: cell["verdict"] for cell in result.as_dict([])["emulation"]}
        assert verdicts == {1: "within", 2: "outside", 3: "undecided"}
        assert (result.planned, result.made, result.missing) == (18 + 8, 26, 0)
        assert undecided_runs(grid, store, 7) == []
        assert make_runs(grid, store, run, most_repeats=7).made == 0, "all its repeats are there"
        assert make_runs(grid, store, run, most_repeats=9).made == 4, "it continues where it stopped"
