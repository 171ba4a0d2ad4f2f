"""The table of figures: what is measured for it, and how it is written."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from netstack.base.errors import ConfigError
from netstack_bench.cli import main
from netstack_bench.engines import peer_spec
from netstack_bench.goals import command as measure_module, jobs, rows as rows_module, sort, sort_peers
from netstack_bench.goals.command import Rounds, cpu_document, cpu_markdown, markdown, row_document
from netstack_bench.goals.jobs import measure_job, write_words
from netstack_bench.goals.rows import BUILDS, ROWS, Measured, cpu_rows, cpu_s_per_gb, installed, measured_once
from netstack_bench.places.hosts.taskmanagers import TaskManagers
from netstack_bench.spec import RunSpec


def test_everything_is_measured_once_and_can_be() -> None:
    wanted = measured_once(ROWS)
    assert len(set(wanted)) == len(wanted)
    assert len({row.text for row in ROWS}) == len(ROWS)
    for each in wanted:
        if not each.job:
            peer_spec(each.engine, each.spec)  # refuses what a peer cannot do


def result(rate: float, p50: float = 10.0) -> dict[str, Any]:
    return {"records_per_s": rate, "payload_mb_per_s": rate * 8e-6, "latency_us": {"p50": p50}, "delivered": True}


def test_a_rate_is_a_multiple_of_the_others_and_a_latency_a_fraction() -> None:
    rate = next(row for row in ROWS if "async for" in row.text)
    actual: Rounds = {(rate.ours, "compiled"): {0: result(12e6)}, (rate.ours, "python"): {0: result(3e6)}}
    assert rate.other is not None
    actual[rate.other, ""] = {0: result(2e6)}
    reported = row_document(rate, actual)["builds"]
    assert [reported[kind]["figure"] for kind in BUILDS] == [6.0, 1.5]
    assert [reported[kind]["is_met"] for kind in BUILDS] == [True, False]

    latency = next(row for row in ROWS if row.is_less_better)
    assert latency.other is not None
    actual = {
        (latency.ours, "compiled"): {0: result(1.0, p50=30.0)},
        (latency.ours, "python"): {0: result(1.0, p50=61.0)},
        (latency.other, ""): {0: result(1.0, p50=20.0)},
    }
    reported = row_document(latency, actual)["builds"]
    assert [reported[kind]["is_met"] for kind in BUILDS] == [True, False]

    held = next(row for row in ROWS if row.text == "p50 at 1,000/s, timeout 1ms, trio: pyzmq + 1ms")
    assert held.other is not None
    actual = {(held.ours, "compiled"): {0: result(1.0, p50=510.0)}, (held.other, ""): {0: result(1.0, p50=20.0)}}
    assert row_document(held, actual)["builds"]["compiled"]["figure"] == 0.5, "a record may wait for the timeout"


def test_the_cpu_of_both_ends_stands_beside_each_rate() -> None:
    def took(producer: float, consumer: float) -> dict[str, Any]:
        return {**result(1e6), "cpu_s_per_gb": {"producer": producer, "consumer": consumer}}

    wanted = [ROWS[0], next(row for row in ROWS if row.is_less_better), next(row for row in ROWS if row.ours.job)]
    (row,) = cpu_rows(wanted)
    assert row.other is not None
    rounds: Rounds = {
        (row.ours, "compiled"): {0: took(0.3, 0.2), 1: took(0.6, 0.4), 2: took(0.15, 0.1)},
        (row.other, ""): {0: took(0.1, 0.1), 1: took(0.2, 0.2), 2: took(0.05, 0.05)},
    }
    document = cpu_document(row, rounds)
    assert document is not None
    compiled, python = (document["builds"][kind] for kind in BUILDS)
    assert compiled["figure"] == pytest.approx(2.5), "a machine that takes twice as long disturbs no pair"
    assert compiled["interval"] == pytest.approx([2.5, 2.5])
    assert (compiled["goal"], compiled["is_met"]) == (2.0, False)
    assert compiled["ns_per_record"] == pytest.approx(0.5 * (1 << 20))
    assert (python["value"], python["figure"], python["is_met"]) == (None, None, None)
    lines = cpu_markdown([document]).splitlines()
    assert "| 0.5 (524,288 ns) | - | 0.2 (209,715 ns) | **2.50** (2.50 to 2.50) | - | 2.00 |" in lines[-1]
    assert len({line.count("|") for line in lines}) == 1
    json.dumps(document, allow_nan=False)

    assert cpu_document(row, {(row.ours, "compiled"): {0: result(1e6)}}) is None, "that engine measures no CPU"
    whole = {"producer": None, "consumer": None, "total": 7.0}
    assert cpu_s_per_gb({"cpu_s_per_gb": whole}) == 7.0, "Flink has both ends in one process"


def test_the_other_may_be_the_same_build_under_other_settings() -> None:
    row = next(row for row in ROWS if "timeout 0:" in row.text)
    assert row.other is not None
    actual = {(row.ours, "python"): {0: result(9.0)}, (row.other, "python"): {0: result(10.0)}}
    reported = row_document(row, actual)["builds"]
    assert reported["python"]["figure"] == 0.9
    assert reported["compiled"]["figure"] is None, "that build was not measured"


def test_a_figure_is_the_middle_of_the_ratios_of_pairs_with_their_range() -> None:
    """A machine that slows down between rounds disturbs both sides of a pair, not their ratio."""
    row = next(row for row in ROWS if "async for" in row.text)
    assert row.other is not None
    ours = {0: result(8e6), 1: result(2e6), 3: result(6e6)}
    other = {0: result(4e6), 1: result(1e6), 2: result(1e6), 3: result(3e6)}
    reported = row_document(row, {(row.ours, "compiled"): ours, (row.other, ""): other})
    assert reported["builds"]["compiled"]["figure"] == pytest.approx(2.0)
    assert reported["builds"]["compiled"]["interval"] == pytest.approx([2.0, 2.0])
    ours[3] = result(9e6)
    reported = row_document(row, {(row.ours, "compiled"): ours, (row.other, ""): other})
    low, high = reported["builds"]["compiled"]["interval"]
    assert low < 2.0 < reported["builds"]["compiled"]["figure"] < 3.0 < high
    assert f"({low:.2f} to {high:.2f})" in markdown([reported], "a remark")


def test_markdown_has_a_line_a_row_and_what_misses_its_goal_is_bold() -> None:
    row = ROWS[0]
    assert row.other is not None
    actual = {
        (row.ours, "compiled"): {0: result(60.0)},
        (row.ours, "python"): {0: result(10.0)},
        (row.other, ""): {0: result(100.0)},
    }
    lines = markdown([row_document(row, actual)], "a remark").splitlines()
    assert len(lines) == 4
    assert "| 0.60 | **0.10** | 0.50 / 0.20 |" in lines[-1]
    assert len({line.count("|") for line in lines[1:]}) == 1


def test_a_row_that_does_not_exist_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["goals", "--only", "no such row"]) == 2
    assert "async for" in capsys.readouterr().err


def test_a_row_whose_peer_is_missing_is_left_out_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "find_spec", lambda name: None if name == "bytewax" else name)
    reported: list[str] = []
    left = installed(ROWS, reported.append)
    assert reported == ["left out, bytewax not installed: word count, a user's job: Bytewax"]
    assert len(left) == len(ROWS) - 1
    with pytest.raises(ConfigError, match="more-peers"):
        installed([row for row in ROWS if "Bytewax" in row.text], reported.append)


@pytest.mark.parametrize(
    ("count", "parallelism", "hosts"),
    [
        (2, 4, ("h0=2", "h1=2")),
        (3, 4, ("h0=2", "h1=1", "h2=1")),
        (4, 4, ("h0=1", "h1=1", "h2=1", "h3=1")),
        (5, 4, ("h0=1/0", "h1=1/1", "h2=1/1", "h3=1/1", "h4=0/1")),
        (3, 1, ("h0=1/0", "h2=0/1")),
    ],
)
def test_subtasks_are_shared_out_among_taskmanagers(count: int, parallelism: int, hosts: tuple[str, ...]) -> None:
    actual = TaskManagers(tuple(f"h{index}" for index in range(count)), ()).hosts(parallelism)
    assert actual == hosts


@pytest.mark.whole
@pytest.mark.leaves("multiprocessing keeps a process for its semaphores until this one ends")
@pytest.mark.parametrize("engine", ["loop", "queue", "bytewax"])
def test_the_text_of_the_word_count_is_counted_right(engine: str, tmp_path: Path) -> None:
    if engine == "bytewax":
        pytest.importorskip("bytewax", reason="pip install '.[more-peers]'")
    path = tmp_path / "words"
    counts = write_words(path, 40_000)
    assert Counter(path.read_text().split()) == counts
    assert 30_000 < counts.total() <= 40_000
    assert measure_job("word count", engine, {}, 0.03)["records_per_s"] > 0


@pytest.mark.parametrize("change", ["nothing", "a row is lost", "two payloads are exchanged", "two rows are exchanged"])
def test_the_proof_of_a_sort_finds_what_is_wrong(change: str, tmp_path: Path) -> None:
    wanted = sort.write_rows(tmp_path / "rows.npy", 1_000)
    rows = np.load(tmp_path / "rows.npy")
    rows = rows[sort.keys_of(rows).argsort()]
    if change == "a row is lost":
        rows = rows[:-1]
    elif change == "two payloads are exchanged":
        rows[[3, 4], 8:] = rows[[4, 3], 8:]
    elif change == "two rows are exchanged":
        rows[[3, 4]] = rows[[4, 3]]
    parts = [sort.proof(sort.keys_of(part), np.ascontiguousarray(part[:, 8:])) for part in (rows[:400], rows[400:])]
    assert sort.is_whole(parts, wanted) == (change == "nothing")
    assert not sort.is_whole(parts[::-1], wanted)


def test_rows_are_sent_to_the_same_subtask_one_by_one_and_as_arrays(tmp_path: Path) -> None:
    sort.write_rows(tmp_path / "rows.npy", 300)
    rows = np.load(tmp_path / "rows.npy")
    chosen = sort.by_range.partition_batch(rows, 7)
    assert chosen.tolist() == [sort.by_range(bytes(row), 7) for row in rows]
    assert set(chosen.tolist()) == set(range(7))


@pytest.mark.long
@pytest.mark.parametrize("engine", ["netstack", "duckdb", "polars", "dask"])
def test_every_engine_sorts_the_same_rows(engine: str) -> None:
    if engine != "netstack":
        pytest.importorskip(engine, reason="pip install '.[more-peers]'")
    assert measure_job("sort", engine, {}, 0.05)["records_per_s"] > 0


def test_a_measurement_with_several_batch_sizes_counts_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {100: 1.0, 200: 3.0, 300: 2.0}
    monkeypatch.setattr(measure_module, "run_once", lambda spec, **_: {"records_per_s": rates[spec.batch_records]})
    flight = Measured(RunSpec(emit="arrow"), "flight", batch_sizes=(100, 200, 300))
    rounds, _ = measure_module.measure([flight], BUILDS, 1, 1.0, lambda text: None)
    assert rounds[flight, ""][0] == {"records_per_s": 3.0}


def test_a_run_that_lost_a_record_counts_in_no_figure_and_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may well be the fastest one."""
    rates = iter((1e6, 9e6, 2e6))

    def run_once(spec: RunSpec, engine: str, **_: Any) -> dict[str, Any]:
        rate = 1e6 if engine == "zmq" else next(rates)
        return {**result(rate), "delivered": rate != 9e6, "warnings": ["delivery: record 7 was lost"]}

    monkeypatch.setattr(measure_module, "run_once", run_once)
    words = ("--only", "`async for`: pyzmq", "--build", "python", "--repeats", "3", "--json")
    assert main(["goals", *words]) == 1
    printed = capsys.readouterr()
    actual = json.loads(printed.out)
    assert actual["rows"][0]["builds"]["python"]["figure"] == 1.5
    assert actual["delivered"] is False
    assert "netstack python: not delivered: delivery: record 7" in printed.err
    assert "failed: run, netstack python: 1 of 3 rounds" in printed.err


def test_complete_rounds_count_after_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = iter(range(100))

    def run_once(*_: Any, **__: Any) -> dict[str, Any]:
        if next(calls) == 5:
            raise KeyboardInterrupt
        return {**result(1e6), "delivered": True}

    monkeypatch.setattr(measure_module, "run_once", run_once)
    words = ("--only", "`async for`: pyzmq", "--build", "python", "--repeats", "9", "--json")
    assert main(["goals", *words]) == 130
    printed = capsys.readouterr()
    actual = json.loads(printed.out)
    assert (actual["repeats"], actual["rows"][0]["builds"]["python"]["figure"]) == (2, 1.0)
    assert printed.err.endswith("stopped by Ctrl-C after 2 of 9 rounds\n")
    assert "failed" not in printed.err


def test_bytewax_is_timed_from_when_both_processes_read_until_both_have_their_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither its imports nor the end of its processes count."""

    def run(command: list[str], **_: Any) -> Any:
        folder = Path(command[3].partition("'")[2].rpartition("'")[0])
        counts = Counter((folder / "words").read_text().split())
        words = [*counts]
        for pid, (began_s, ended_s, first) in {7: (100.0, 101.5, 0), 8: (101.0, 103.0, 1)}.items():
            (folder / f"began-{pid}").write_text(repr(began_s))
            part = {word: counts[word] for word in words[first::2]}
            (folder / f"counts-{pid}").write_text(json.dumps([ended_s, part]))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(jobs.subprocess, "run", run)
    words = write_words(tmp_path / "words", 2_000_000 // 16).total()
    assert measure_job("word count", "bytewax", {}, 1.0)["records_per_s"] == words / 2.0


def test_peers_that_sort_in_one_process_prove_the_order_on_every_processor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(sort_peers, "CORES", 3)
    wanted = sort.write_rows(tmp_path / "rows.npy", 1_000)
    rows = np.load(tmp_path / "rows.npy")
    table = sort_peers.arrow_table(rows[sort.keys_of(rows).argsort()])
    asked: list[tuple[int, int]] = []

    def part(first: int, count: int) -> Any:
        asked.append((first, count))
        return table.slice(first, count)

    assert sort.is_whole(sort_peers.proofs(part, len(rows)), wanted)
    assert sorted(asked) == [(0, 333), (333, 333), (666, 334)]


@pytest.mark.leaves("multiprocessing keeps a process for its semaphores until this one ends")
@pytest.mark.long
def test_jobs_end_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--only", "one process", "--only", "Queue", "--build", "python")
    assert main(["goals", "--repeats", "2", "--seconds", "0.05", "--json", *words]) == 0
    actual = json.loads(capsys.readouterr().out)
    assert [row["builds"]["python"]["figure"] > 0 for row in actual["rows"]] == [True] * 3


@pytest.mark.long
def test_a_row_and_an_all_to_all_end_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--only", "all-to-all", "--only", "one by one, timeout 1ms", "--build", "python")
    assert main(["goals", "--repeats", "1", "--seconds", "0.2", "--json", *words]) == 0
    actual = json.loads(capsys.readouterr().out)
    assert [row["builds"]["python"]["figure"] > 0 for row in actual["rows"]] == [True, True]
    assert {each["host"]["netstack_build"] for each in actual["results"] if not each["taskmanagers"]} == {"python"}
