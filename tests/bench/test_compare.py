from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from netstack.base.errors import ConfigError
from netstack_bench.compare import Comparison, compare
from netstack_bench.grid import Grid
from netstack_bench.store import Row

Rows = Callable[..., list[Row]]
GRID = Grid(timeouts_s=(None, 0.0), record_sizes=(8,), channels=(1,), repeats=5)
ONCE = Grid(timeouts_s=(None, 0.0), record_sizes=(8,), channels=(1,))


def rates(comparison: Comparison) -> list[tuple[float, str]]:
    actual = [each for each in comparison.differences if each.metric == "records_per_s"]
    return [(round(each.change, 2), each.verdict) for each in actual]


def with_rates(rows: list[Row], values: list[float]) -> list[Row]:
    """The throughput rows of one point with these rates."""
    chosen = [row for row in rows if row["kind"] == "throughput" and row["settings_buffer_timeout_s"] is None]
    return [{**row, "records_per_s": value} for row, value in zip(chosen, values, strict=True)]


def test_equal_results_do_not_differ(fake_rows: Rows) -> None:
    actual = compare(fake_rows(GRID), fake_rows(GRID))
    assert {each.verdict for each in actual.differences} == {"same"}
    assert {each.noise_known for each in actual.differences} == {True}
    assert len(actual.differences) == 2 * 3 + 2 * 2


def test_a_difference_beyond_the_noise_is_told_both_ways(fake_rows: Rows) -> None:
    slow, fast = fake_rows(GRID), fake_rows(GRID, faster=1.5)
    assert rates(compare(slow, fast)) == [(0.5, "better"), (0.5, "better")]
    assert [verdict for _, verdict in rates(compare(fast, slow))] == ["worse", "worse"]


def test_lower_latency_and_cpu_are_better(fake_rows: Rows) -> None:
    a = fake_rows(GRID)
    b = [{**row, "latency_us_p50": row["latency_us_p50"] / 2, "cpu_s_per_gb_producer": 9.0} for row in a]
    verdicts = {each.metric: each.verdict for each in compare(a, b).differences}
    assert (verdicts["latency_us_p50"], verdicts["cpu_s_per_gb_producer"]) == ("better", "worse")


def test_one_wild_run_hides_a_difference_and_makes_none(fake_rows: Rows) -> None:
    rows = fake_rows(GRID)
    a = with_rates(rows, [100.0, 101.0, 102.0, 103.0, 140.0])
    b = with_rates(rows, [120.0, 121.0, 122.0, 123.0, 124.0])
    assert rates(compare(a, b)) == [(0.13, "same")]
    (actual,) = [each for each in compare(a, b).differences if each.metric == "records_per_s"]
    assert actual.low is not None
    assert actual.high is not None
    assert actual.low < 0 < actual.change < actual.high
    steady = with_rates(rows, [100.0, 101.0, 102.0, 103.0, 104.0])
    assert rates(compare(steady, b)) == [(0.2, "better")]


def test_a_tiny_change_is_no_difference_however_steady(fake_rows: Rows) -> None:
    rows = fake_rows(GRID)
    a, b = with_rates(rows, [1000.0] * 5), with_rates(rows, [1009.0] * 5)
    assert rates(compare(a, b)) == [(0.01, "same")]
    assert rates(compare(a, with_rates(rows, [1011.0] * 5))) == [(0.01, "better")]


def test_with_single_runs_the_threshold_is_stated(fake_rows: Rows) -> None:
    a, b = fake_rows(ONCE, noise=0.0), fake_rows(ONCE, noise=0.0, faster=1.12)
    actual = compare(a, b)
    assert rates(actual) == [(0.12, "same"), (0.12, "same")]
    assert not any(each.noise_known for each in actual.differences)
    assert any("noise unknown" in remark and "15%" in remark for remark in actual.remarks)
    assert rates(compare(a, b, threshold=0.1)) == [(0.12, "better"), (0.12, "better")]


def test_points_match_by_settings_and_not_by_length(fake_rows: Rows) -> None:
    a = fake_rows(Grid(timeouts_s=(None, 0.0), record_sizes=(8,), channels=(1, 4)))
    b = fake_rows(Grid(timeouts_s=(None, 0.1), record_sizes=(8,), channels=(1, 4), seconds=5.0))
    actual = compare(a, b)
    assert {each.settings["buffer_timeout_s"] for each in actual.differences} == {None}
    assert {each.settings["channels"] for each in actual.differences} == {1, 4}
    reported = "\n".join(actual.remarks)
    assert "4 points only in A" in reported
    assert "4 points only in B" in reported
    assert "had different lengths (seconds 0.7 against 5)" in reported


def test_a_setting_that_an_older_file_lacks_is_its_default(fake_rows: Rows) -> None:
    older = [{name: value for name, value in row.items() if name != "settings_checksum"} for row in fake_rows(ONCE)]
    assert len(rates(compare(older, fake_rows(ONCE)))) == 2
    mixed = [{**row, "settings_credit": None, "settings_round_trip_s": None} for row in fake_rows(ONCE)]
    assert len(rates(compare(mixed, fake_rows(ONCE)))) == 2


def test_buffers_and_the_link_are_settings_like_others(fake_rows: Rows) -> None:
    near, far = (
        fake_rows(
            Grid(timeouts_s=(0.1,), record_sizes=(8,), channels=(1,), exclusive_buffers=(0, 4), round_trips_s=(d,))
        )
        for d in (0.0, 0.01)
    )
    assert {each.settings["exclusive_buffers"] for each in compare(near, near).differences} == {0, 4}
    with pytest.raises(ConfigError, match=r"round_trip_s \(0 against 10ms\)"):
        compare(near, far)


def test_failed_runs_are_left_out_and_counted(fake_rows: Rows) -> None:
    b = fake_rows(GRID)
    b[0] = {**b[0], "error": "x"}
    b[1] = {**b[1], "delivered": False}
    assert "2 failed runs of B left out" in compare(fake_rows(GRID), b).remarks


def test_nothing_in_common_says_which_settings_differ(fake_rows: Rows) -> None:
    a, b = (
        fake_rows(ONCE),
        fake_rows(Grid(timeouts_s=(0.0,), record_sizes=(64,), channels=(1,), common={"emit": "batch"})),
    )
    with pytest.raises(ConfigError, match=r"no point in common.*\(8 against 64\).*\(record against batch\)"):
        compare(a, b)
    with pytest.raises(ConfigError, match="B has no successful run"):
        compare(a, [{**row, "error": "x"} for row in b])


def test_the_summary_counts_every_metric(fake_rows: Rows) -> None:
    actual = compare(fake_rows(GRID), fake_rows(GRID, faster=2.0))
    assert (
        actual.summary()[0]
        == "records_per_s: B is 2.00 x A in the median of 2 points; 2 better, 0 worse, 0 within the noise"
    )
    document = json.loads(json.dumps(actual.as_dict()))
    assert document["differences"][0]["verdict"] == "better"
    assert document["differences"][0]["a"]["count"] == 5
