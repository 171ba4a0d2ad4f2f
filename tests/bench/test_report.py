from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest
from bench.pages import assert_whole
from drawings import by_class, drawings

from netstack_bench.charts.page import LOOKS, distinct, numbered
from netstack_bench.charts.svg import Mark, Plane, Series, by_category, draw_plane, marker, nice_ticks, spread_out
from netstack_bench.grid import Grid
from netstack_bench.labels import Figure, distinct_warnings
from netstack_bench.report import Analysis, build_report, findings
from netstack_bench.report.charts import styles
from netstack_bench.report.points import Line, noise_warnings
from netstack_bench.store import Row

Rows = Callable[..., list[Row]]
SWEEP = {"grid": Grid().as_dict(), "command": "netstack-bench sweep", "started_at": "2026-11-21T09:30:00Z"}


def part(page: str, name: str) -> str:
    """The section of this id."""
    return page.partition(f'<section id="{name}"')[2].partition("</section>")[0]


@pytest.mark.parametrize("axes", [{}, {"exclusive_buffers": (0, 2), "round_trips_s": (0.0, 0.01)}])
def test_the_page_is_whole_and_fetches_nothing(fake_rows: Rows, axes: dict[str, Any]) -> None:
    page = build_report(fake_rows(Grid(**axes)), SWEEP)
    assert_whole(page)


def test_each_curve_has_a_mark_for_every_point(fake_rows: Rows) -> None:
    charts = drawings(part(build_report(fake_rows(), SWEEP), "curves"))
    assert len(charts) == 2 * (2 + 4)  # records/s and MB/s, four percentiles; each wide and narrow
    for chart in charts:
        assert len(by_class(chart, "series")) == 4
        for series in by_class(chart, "series"):
            assert len(by_class(series, "pt")) == 5
        labels = [each.text for each in by_class(chart, "tick")]
        assert labels[-5:] == ["0", "1 ms", "10 ms", "100 ms", "none"]
        assert chart.get("aria-label")


def test_curves_fall_where_the_figures_do(fake_rows: Rows) -> None:
    chart = drawings(build_report(fake_rows(noise=0.0), SWEEP))[0]
    line = by_class(by_class(chart, "series")[0], "line")[0].get("d", "")
    heights = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", line)]
    assert heights[0] > heights[1] > heights[2] >= heights[3]  # throughput rises with the timeout; y grows downwards


def test_repeats_show_their_spread(fake_rows: Rows) -> None:
    rows = fake_rows(Grid(repeats=3))
    chart = drawings(build_report(rows, SWEEP))[0]
    assert len(by_class(chart, "whisker")) == 20
    analysis = Analysis(rows)
    figure = analysis.throughput(Line(8, 1), 0.1)
    assert figure is not None
    assert figure.low < figure.median < figure.high
    assert figure.count == 3
    assert not any("noise" in remark for remark in analysis.remarks())


def test_what_is_kept_is_told_against_100_ms(fake_rows: Rows) -> None:
    analysis = Analysis(fake_rows(noise=0.0))
    assert analysis.reference == 0.1
    assert analysis.kept(Line(8, 1), 0.0) == pytest.approx(0.52)
    assert analysis.kept(Line(1024, 16), 0.001) == pytest.approx(0.96)
    assert analysis.kept(Line(9, 1), 0.0) is None
    assert Analysis(fake_rows(Grid(timeouts_s=(0.01, 0.0)))).reference == 0.01
    assert Analysis(fake_rows(Grid(timeouts_s=(None,)))).reference is None


def test_the_findings_are_three_sentences(fake_rows: Rows) -> None:
    answer, *workloads, throughput, latency = findings(fake_rows(Grid(repeats=3), noise=0.01))
    assert answer.startswith("Buffer timeout: 1 ms keeps 9")
    assert [" 1 ms keeps 9" in each for each in workloads] == [True] * 4
    throughput, latency = findings(fake_rows(noise=0.0))[-2:]
    assert throughput.startswith("Throughput: 4.51 M records/s at best: 8 B records, 1 channel")
    assert re.match(r"Latency: 52 us median at best: .*buffer timeout 0; p99 .*at 1,000 records/s", latency)
    assert findings([]) == []


def test_a_column_that_no_run_has_is_left_out(fake_rows: Rows) -> None:
    rows = fake_rows(Grid(seconds=1.0))
    assert "CPU s/GB producer" in build_report(rows, SWEEP)
    on_spark = [{**row, "cpu_s_per_gb_producer": None, "cpu_s_per_gb_consumer": None} for row in rows]
    page = build_report(on_spark, SWEEP)
    assert "CPU s/GB" not in page
    page = build_report([{**row, "cpu_s_per_gb_total": 3.5} for row in on_spark], SWEEP)
    assert ">CPU s/GB</th>" in page


def test_figures_of_channels_within_a_host_are_told_apart(fake_rows: Rows) -> None:
    rows = fake_rows(Grid(seconds=1.0))
    page = build_report(rows, SWEEP)
    assert "between hosts" not in page
    assert ">local " not in page
    local = {"local_records": 7, "local_records_per_s": 70.0, "local_latency_us_p50": 1.0}
    page = build_report([{**row, **local} for row in rows], SWEEP)
    assert "figures of channels between hosts" in page
    assert ">local records/s</th>" in page
    assert ">local p50</th>" in page


def test_two_samples_are_no_course_of_events(fake_rows: Rows) -> None:
    page = build_report(fake_rows(Grid(seconds=0.25)), SWEEP)
    assert "Too short a run for a line: 2 samples of each task." in page
    assert 'class="bare"' not in page
    assert 'class="bare"' in build_report(fake_rows(Grid(seconds=0.5)), SWEEP)


def test_warnings_that_differ_in_numbers_are_one(fake_rows: Rows) -> None:
    rows = fake_rows(Grid(seconds=1.0, repeats=2))
    for number, row in enumerate(rows):
        row["warnings"] = [
            f"sent {number + 1} records, {number}.5 ms late",
            f"it took {'980 us' if number % 2 else '1.2 ms'}",
        ]
    assert [count for _, count in distinct_warnings(Analysis(rows).good)] == [len(rows), len(rows)]


def test_one_repeat_names_two_candidates(fake_rows: Rows) -> None:
    reported = findings(fake_rows())[0]
    assert re.match(
        r"Buffer timeout: 1 ms or 10 ms, which these runs cannot separate: 1 ms keeps 9\d % of the throughput at"
        r" 100 ms, 10 ms (?:9\d|10\d) %\."
        r" Take 1 ms: it probably reaches 90 % of the throughput, and its p99 is 1\.2\d ms, not 10\.\d ms\.",
        reported,
    )
    assert reported.endswith("How far runs differ by chance is not known yet: that takes a second pass at least")
    assert findings(fake_rows(Grid(timeouts_s=(0.1,))))[0].startswith("Throughput"), "one timeout is no choice"


def test_repeats_that_do_not_decide_name_both_candidates_and_what_it_costs_to_know(fake_rows: Rows) -> None:
    reported = findings(fake_rows(Grid(repeats=3), noise=0.3))
    assert re.search(
        r"Buffer timeout: (\S+ ms|0) or (\S+ ms), which these .* keeps \d+ % \(\d+ to \d+\) of", reported[0]
    )
    assert re.search(r"Take .*\. To know takes about (?:1 more pass|\d+ more passes)$", reported[0])
    assert [line.split(":")[0] for line in reported[1:5]] == [
        f"  {size} \u00b7 {channels} ch" for size in ("8 B", "1 KiB") for channels in (1, 16)
    ]


def test_the_answer_of_several_workloads_has_its_range_and_each_of_them(fake_rows: Rows) -> None:
    reported = findings(fake_rows(Grid(repeats=3)))
    assert re.fullmatch(
        r"Buffer timeout: 1 ms keeps 9\d % \(9\d to 9\d\) of the throughput at 100 ms in every workload measured;"
        r" p99 up to 1\.2\d ms \(.*\) at 1,000 records/s",
        reported[0],
    )
    assert re.fullmatch(r"  8 B \u00b7 1 ch: 1 ms keeps \d+ % \(\d+ to \d+\)", reported[1])


def test_one_workload_that_differs_is_named_with_its_own_timeout(fake_rows: Rows) -> None:
    rows = fake_rows(Grid(repeats=4), noise=0.01)
    for row in rows:
        if row["settings_record_bytes"] == 8 and row["settings_channels"] == 16:
            row["payload_mb_per_s"] *= 0.6 if row["settings_buffer_timeout_s"] == 0.001 else 1.0
    reported = findings(rows)[0]
    assert re.search(
        r"1 ms keeps .* in 3 of 4 workloads; 8 B . 16 ch differs: there it keeps 5\d %.*, set 10 ms;", reported
    )


def test_an_answer_of_one_line_has_its_figures(fake_rows: Rows) -> None:
    reported = findings(fake_rows(Grid(record_sizes=(8,), channels=(1,), repeats=5), noise=0.01))[0]
    assert re.search(r": 1 ms .* 100 ms; .* MB/s .*; p99 1\.2", reported)


def test_where_every_shorter_timeout_costs_too_much_the_longest_is_the_answer(fake_rows: Rows) -> None:
    rows = fake_rows(Grid(record_sizes=(8,), channels=(1,), repeats=5), noise=0.01)
    for row in rows:
        timeout_s = row["settings_buffer_timeout_s"]
        row["payload_mb_per_s"] *= 0.5 if timeout_s is not None and timeout_s < 0.1 else 1.0
    assert findings(rows)[0].split()[2:5] == ["100", "ms:", "every"]


def test_latency_that_the_run_was_too_short_for_is_hollow(fake_rows: Rows) -> None:
    rows = fake_rows()
    analysis = Analysis(rows)
    assert analysis.cut_short(Line(8, 1), None)
    assert not analysis.cut_short(Line(1024, 1), None)  # 1,000 records of 1 KiB fill buffers of 32 KiB
    assert not analysis.cut_short(Line(8, 1), 0.1)
    assert Analysis(fake_rows(Grid(timeouts_s=(1.0,), seconds=0.5))).cut_short(Line(8, 1), 1.0)
    page = build_report(rows, SWEEP)
    assert len(by_class(drawings(page)[4], "hollow")) == 2
    assert any("Hollow" in remark for remark in analysis.remarks())


def test_failed_runs_and_warnings_are_shown_and_not_drawn(fake_rows: Rows) -> None:
    rows = fake_rows()
    lost = next(number for number, row in enumerate(rows) if row["kind"] == "throughput")
    rows[lost] = {**rows[lost], "error": "RunFailed: <consumer> & co", "delivered": False}
    rows[lost + 1]["warnings"] = ["the machine was <busy>"]
    page = build_report(rows, SWEEP)
    assert "1 run of 40 failed" in page
    assert "RunFailed: &lt;consumer&gt; &amp; co" in page
    assert "the machine was &lt;busy&gt; (in 1 of 39 runs)" in page
    assert len(by_class(drawings(page)[0], "pt")) == 19


def test_warnings_that_differ_in_numbers_only_are_one(fake_rows: Rows) -> None:
    rows = fake_rows()
    for number in range(5):
        rows[number]["warnings"] = [f"asked 1000 records/s, sent {900 + number}"]
    rows[5]["warnings"] = ["delivery: a failed run speaks for itself"]
    rows[5]["delivered"] = False
    assert distinct_warnings(Analysis(rows).good) == [("asked 1000 records/s, sent 900", 5)]


def test_a_report_of_failures_only_still_says_why(fake_rows: Rows) -> None:
    page = build_report([{**row, "error": "no luck", "delivered": False} for row in fake_rows()], {})
    assert "No run succeeded" in page
    assert page.count("no luck") == 40


def test_text_from_outside_is_escaped(fake_rows: Rows) -> None:
    evil = '"><script>alert(1)</script>'
    rows = [
        {**row, "host_name": evil, "version": evil, "started_at": evil, "settings_transport": evil, "warnings": [evil]}
        for row in fake_rows()
    ]
    rows[0] = {**rows[0], "error": evil}
    page = build_report(rows, {**SWEEP, "command": evil, "started_at": evil})
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert(1)") > 5


def test_other_settings_that_differ_make_lines_of_their_own(fake_rows: Rows) -> None:
    one = Grid(timeouts_s=(0.1,), record_sizes=(8,), channels=(1,))
    other = Grid(timeouts_s=(0.1,), record_sizes=(8,), channels=(1,), common={"emit": "batch"})
    analysis = Analysis(fake_rows(one) + fake_rows(other))
    assert [line.label for line in analysis.lines] == ["8 B · 1 ch · emit batch", "8 B · 1 ch · emit record"]


def test_rows_from_different_machines_or_lengths_are_pointed_out(fake_rows: Rows) -> None:
    rows = fake_rows() + [{**row, "host_name": "other", "version": "9"} for row in fake_rows(Grid(seconds=2.0))]
    reported = "\n".join(Analysis(rows).remarks())
    assert "different versions" in reported
    assert "different machines" in reported
    assert "different" not in "\n".join(Analysis(fake_rows()).remarks())
    assert "runs differ in seconds" in reported


def test_a_figure_is_the_median_of_what_is_there() -> None:
    assert Figure.of([3.0, None, 1.0, float("nan"), 2.0]) == Figure(2.0, 1.0, 3.0, 3)
    assert Figure.of([None]) is None


@pytest.mark.parametrize(
    ("scale", "low", "high", "ticks"),
    [
        ("linear", 3.0, 4.6, [0, 1, 2, 3, 4, 5]),
        ("linear", 0.0, 0.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        ("log", 52.0, 312e3, [10, 100, 1000, 10_000, 100_000, 1_000_000]),
        ("log", 30.0, 90.0, [20, 50, 100]),
        ("log", 100.0, 100.0, [100, 200]),
    ],
)
def test_ticks_are_round_and_enclose(scale: str, low: float, high: float, ticks: list[float]) -> None:
    assert nice_ticks(scale, low, high) == pytest.approx(ticks)  # type: ignore[arg-type]


def test_labels_move_apart_and_stay_inside() -> None:
    assert spread_out([10, 50], 14, 0, 100) == [10, 50]
    assert spread_out([50, 51, 52], 14, 0, 100) == [50, 64, 78]
    assert spread_out([95, 96, 97], 14, 0, 100) == [72, 86, 100]


def test_a_missing_point_breaks_the_line() -> None:
    marks = (Mark(1, 1, 1, ("a",)), None, Mark(3, 3, 3, ("b",)), Mark(2, 2, 2, ("c",)))
    chart = Plane(
        **by_category(["0", "1", "2", "3"]),
        title="t",
        axis="x",
        series=[Series("<s>", 0, (0, 0, 0), (0.0, 1.0, 2.0, 3.0), marks)],
        scale="linear",
        domain=(0, 3),
        tick=str,
    )
    root = ElementTree.fromstring(draw_plane(chart, width=400, height=300, direct_labels=True))
    path = next(each for each in root.iter() if each.get("class") == "line").get("d", "")
    assert re.sub(r"[\d. ]+", "", path) == "MML"


def test_the_eight_marks_differ() -> None:
    assert len({marker(shape, 10, 10) for shape in range(8)}) == 8


def test_no_two_lines_look_alike(fake_rows: Rows) -> None:
    grid = Grid(timeouts_s=(0.1,), record_sizes=tuple(2**n for n in range(3, 15)), channels=(1, 2, 3, 5, 10, 20))
    analysis = Analysis(fake_rows(grid))
    looks = styles(analysis)
    assert len(looks) == 12 * 6 == len(set(looks.values()))
    sizes = {line.record_bytes: hue for line, (hue, _, _) in looks.items() if line.channels == 1}
    assert len(set(list(sizes.values())[:8])) == 8, "colours say the record size as long as there are any"
    assert len({*distinct((0, 0, 0) for _ in range(LOOKS))}) == LOOKS
    assert len({*numbered(32)}) == 32


def test_repeats_that_disagree_are_told_at_the_top(fake_rows: Rows) -> None:
    rows = fake_rows(Grid(timeouts_s=(0.1, 0.0), record_sizes=(8,), channels=(1, 16), repeats=3))
    assert noise_warnings(Analysis(rows)) == []
    wild = next(row for row in rows if row["kind"] == "throughput" and row["settings_channels"] == 16)
    wild["records_per_s"] *= 3
    (reported,) = noise_warnings(Analysis(rows))
    assert re.match(r"Repeats disagree about throughput at 1 of 4 points: their range is \d{3}%", reported)
    page = build_report(rows, SWEEP)
    assert page.index(reported[:50]) < page.index('id="curves"')


def test_the_axes_say_what_they_count(fake_rows: Rows) -> None:
    page = build_report(fake_rows(Grid()), SWEEP)
    for drawing in drawings(page):
        if by_class(drawing, "pt"):
            names = [each.text for each in by_class(drawing, "axis")]
            assert len(names) == 2, names
    assert "percentile of the records, %" in page


def test_a_long_name_of_an_axis_takes_two_lines_and_stays_inside() -> None:
    chart = Plane(
        **by_category(["a"]),
        title="t",
        axis="backpressure: reduction of the sinks' rate below full speed",
        series=[Series("s", 0, (0, 0, 0), (0.0,), (Mark(1.0, 1, 1, ("a",)),))],
        scale="linear",
        domain=(0.0, 1.0),
        tick=str,
    )
    for width, lines in ((350, 2), (900, 1)):
        root = ElementTree.fromstring(draw_plane(chart, width=width, height=300, direct_labels=False))
        actual = by_class(root, "axis")
        assert len(actual) == lines
        assert max(float(each.get("y", "0")) for each in actual) < 300
