from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from xml.etree import ElementTree

import pytest
from drawings import by_class, drawings

from netstack.base.units import format_latency
from netstack_bench.charts.svg import Mark, Plane, Series, draw_plane, pareto
from netstack_bench.grid import Grid
from netstack_bench.report import Analysis, build_report
from netstack_bench.report.filters import Filters, choice_text
from netstack_bench.report.frontier import frontier_section
from netstack_bench.report.hosts import hosts_section, slow_host
from netstack_bench.report.load import HighestRate, load_section
from netstack_bench.report.percentiles import nines, percentiles_section
from netstack_bench.report.points import Line
from netstack_bench.report.timeline import timeline_section
from netstack_bench.store import Row

Rows = Callable[..., list[Row]]
OnHosts = Callable[[list[Row], tuple[str, ...]], list[Row]]
HOSTS = ("alpha", "beta", "gamma")
ONE_POINT = {"timeouts_s": (0.1,), "record_sizes": (8,), "channels": (1,)}


def section(build: Callable[[Analysis, Filters], str], rows: list[Row]) -> str:
    analysis = Analysis(rows)
    return build(analysis, Filters(analysis))


# ------------------------------------------------------------------------------------------------------- the choices


def test_each_setting_with_several_values_is_a_choice(fake_rows: Rows) -> None:
    filters = Filters(Analysis(fake_rows()))
    assert [(choice.name, choice.values) for choice in filters.choices] == [
        ("buffer_timeout_s", ("0", "1 ms", "10 ms", "100 ms", "none")),
        ("record_bytes", ("8 B", "1 KiB")),
        ("channels", ("1", "16")),
    ]
    assert filters.point(Line(1024, 16), 0.01) == "0-2 1-1 2-1"
    assert filters.timeout(None) == "0-4"
    assert filters.settings({"record_bytes": 8, "credit": True}) == "1-0"
    assert Filters(Analysis(fake_rows(Grid(**ONE_POINT)))).panel(2) == ""


def test_further_settings_and_lists_are_choices_too(fake_rows: Rows) -> None:
    one, other = fake_rows(Grid(**ONE_POINT)), fake_rows(Grid(**ONE_POINT, common={"emit": "batch"}))
    rows = [{**row, "settings_hosts": ["a:1", "b:1"]} for row in one] + [
        {**row, "settings_hosts": ["a:1"], "engine_kind": "spark"} for row in other
    ]
    filters = Filters(Analysis(rows))
    assert {choice.name: choice.values for choice in filters.choices} == {
        "engine_kind": ("local", "spark"),
        "emit": ("batch", "record"),
        "hosts": ("a:1", "a:1, b:1"),
    }
    assert filters.row(rows[0]) == "0-0 1-1 2-1"
    assert "a:1, b:1" in build_report(rows, {})


def test_every_row_and_every_mark_knows_its_choices(fake_rows: Rows) -> None:
    page = build_report(fake_rows(), {})
    runs = page.partition('id="runs"')[2]
    assert len(re.findall(r'<tr data-f="\d-\d 1-\d 2-\d">', runs)) == 40
    assert 'id="choose" class="card" hidden' in page, "without a script there is nothing to choose with"
    chart = drawings(page.partition('id="curves"')[2])[0]
    assert [each.get("data-f") for each in by_class(chart, "series")] == ["1-0 2-0", "1-0 2-1", "1-1 2-0", "1-1 2-1"]
    assert [each.get("data-f") for each in by_class(by_class(chart, "series")[0], "pt")] == [f"0-{n}" for n in range(5)]


def test_values_are_written_as_everywhere() -> None:
    assert choice_text("buffer_timeout_s", 0.00005) == "50 \u00b5s"
    assert choice_text("record_bytes", 2048) == "2 KiB"
    assert choice_text("channels", 10_000) == "10,000"
    assert choice_text("round_trip_s", 0.01) == "10 ms"


# --------------------------------------------------------------------------------------------------- the percentiles


def test_nines_are_equally_far_apart() -> None:
    assert [nines(fraction) for fraction in (0.9, 0.99, 0.999)] == pytest.approx([1, 2, 3])


def test_each_line_has_a_chart_with_a_curve_for_each_timeout(fake_rows: Rows) -> None:
    actual = section(percentiles_section, fake_rows())
    charts = drawings(actual)
    assert len(charts) == 2 * 4
    for chart in charts:
        assert len(by_class(chart, "series")) == 5
        assert {len(by_class(each, "pt")) for each in by_class(chart, "series")} == {7 + 1}
        below = [each.text for each in by_class(chart, "tick")][-6:]
        assert below == ["50", "90", "99", "99.9", "99.99", "max"]
    ticks = [float(each.get("x", "")) for each in by_class(charts[0], "tick")][-4:]
    assert ticks[1] - ticks[0] == pytest.approx(ticks[2] - ticks[1], abs=0.2)
    assert actual.count("</li>") == 5, "one legend for all"


def test_a_curve_never_falls_and_shares_its_axis(fake_rows: Rows) -> None:
    charts = drawings(section(percentiles_section, fake_rows(noise=0.0)))
    for chart in charts:
        for line in by_class(chart, "line"):
            heights = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", line.get("d", ""))]
            assert heights == sorted(heights, reverse=True)
    labels = [[each.text for each in by_class(chart, "tick")] for chart in charts[::2]]
    assert all(each == labels[0] for each in labels)


def test_a_percentile_without_a_record_above_it_is_hollow(fake_rows: Rows) -> None:
    rows = fake_rows(Grid(**ONE_POINT, seconds=2.0))
    chart = drawings(section(percentiles_section, rows))[0]
    reported = [each.get("data-tooltip", "") for each in by_class(chart, "hollow")]
    assert len(reported) == 1
    assert "p99.99" in reported[0]
    assert "of 2,000 records: less than one lies above" in reported[0]


def test_with_one_timeout_the_curves_are_the_lines(fake_rows: Rows) -> None:
    actual = section(percentiles_section, fake_rows(Grid(timeouts_s=(0.1,))))
    assert "Buffer timeout 100 ms" in actual
    assert len(by_class(drawings(actual)[0], "series")) == 4


def test_without_latency_runs_it_is_that_under_load(fake_rows: Rows) -> None:
    actual = section(percentiles_section, fake_rows(Grid(latency_seconds=0)))
    assert "Sampled under full load" in actual
    bare = [{name: value for name, value in row.items() if "latency" not in name} for row in fake_rows()]
    assert section(percentiles_section, bare) == section(frontier_section, bare) == ""


def test_rows_of_older_versions_have_fewer_percentiles(fake_rows: Rows) -> None:
    newer = ("latency_us_p75", "latency_us_p95", "latency_us_p9999", "latency_samples")
    rows = [{name: value for name, value in row.items() if name not in newer} for row in fake_rows()]
    chart = drawings(section(percentiles_section, rows))[0]
    assert {len(by_class(each, "pt")) for each in by_class(chart, "series")} == {4 + 1}


# ------------------------------------------------------------------------------------------------------ the frontier


def test_only_what_nothing_beats_is_on_the_frontier() -> None:
    points = [(1.0, 5.0), (2.0, 3.0), (3.0, 4.0), (4.0, 9.0), (4.0, 8.0), (2.5, 8.5)]
    assert pareto(points) == ((2.0, 3.0), (3.0, 4.0), (4.0, 8.0))
    assert pareto([(1.0, 1.0)]) == ((1.0, 1.0),)


def test_each_record_size_has_a_frontier(fake_rows: Rows) -> None:
    charts = drawings(section(frontier_section, fake_rows(noise=0.0)))
    assert len(charts) == 2 * 4, "p50 and p99, records and payload, wide and narrow"
    for chart in charts:
        assert len(by_class(chart, "pt")) == 20
        assert [each.get("data-group") for each in by_class(chart, "stairs")] == ["8", "1024"]
        path = by_class(chart, "frontier")[0].get("d", "")
        assert re.fullmatch(r"M[\d.]+ [\d.]+H[\d.]+(V[\d.]+H[\d.]+)*V32\.0", path)
        right = [float(x) for x in re.findall(r"H([\d.]+)", path)]
        assert right == sorted(right)


def test_a_single_point_has_no_frontier(fake_rows: Rows) -> None:
    assert section(frontier_section, fake_rows(Grid(**ONE_POINT))) == ""


# --------------------------------------------------------------------------------------------------------- the hosts


def cells(page: str, map_number: int) -> list[str]:
    """The cells of one map of the first setting."""
    table = re.findall(r'<table class="heat pairs.*?</table>', page, re.DOTALL)[map_number]
    return re.findall(r'<td class="cell[^>]*>(.*?)</td>', table)


def test_pairs_are_maps_of_throughput_and_latency(fake_rows: Rows, on_hosts: OnHosts) -> None:
    rows = on_hosts(fake_rows(Grid(**ONE_POINT, repeats=3)), HOSTS)
    page = section(hosts_section, rows)
    throughput, p50, p99 = (cells(page, number) for number in range(3))
    assert len(throughput) == len(p50) == len(p99) == 9
    assert [each for each in throughput if "local" in each] == [throughput[0], throughput[4], throughput[8]]
    assert p50[1].endswith("<small>&plusmn; 45.0 \u00b5s</small>") or "&plusmn; 45" in p50[1]
    assert "&plusmn;" not in p50[0], "one host, one clock"
    latency = next(row for row in rows if row["kind"] == "latency")
    reported = [format_latency(pair["latency_us"]["p50"]).replace("us", "\u00b5s") for pair in latency["pairs"]]
    assert any(text in p50[1] for text in reported)
    assert page.count("sources</th>") == 1
    assert "\u2212130 \u00b5s &plusmn; 22.5 \u00b5s" in page
    assert ">idle<" not in page, "a column that no host has is left out"


def against_rate(fake_rows: Rows) -> list[Row]:
    """p50 rises tenfold with each rate; at the highest the system carries half of what was asked."""
    rows = fake_rows(Grid(**{**ONE_POINT, "repeats": 2, "latency_rate_per_s": (1e5, 1e3, 1e4)}))
    for row in rows:
        rate = row["settings_rate_per_s"]
        for name in ("p50", "p99"):
            row[f"latency_us_{name}"] = (rate or 1e6) / 10
        if rate == 1e5:
            row["records_per_s"] = rate / 2
    return rows


def test_latency_against_rate_is_a_chart_of_its_own(fake_rows: Rows) -> None:
    rows = against_rate(fake_rows)
    html = section(load_section, rows)
    assert html.count('<circle class="mark') + html.count("hollow") > 0
    assert "10 k records/s" in html
    assert "carried 50 k records/s" in html, "the mark that is a lower bound says why"
    for label in ("1 k", "10 k", "100 k"):
        assert f">{label}</text>" in html
    analysis = Analysis(rows)
    (line,) = analysis.lines
    assert list(analysis.by_rate(line, 0.1)) == [1e3, 1e4, 1e5]
    assert {row["settings_rate_per_s"] for row in analysis.runs("latency", line, 0.1)} == {1e3}, "never pooled"
    assert analysis.latency_rates == [1e3]
    assert any("at the lowest" in text for text in analysis.remarks())
    assert not any("pooled" in text for text in analysis.remarks())
    assert 'href="#load"' in build_report(rows, {})


def test_one_rate_has_no_such_chart(fake_rows: Rows) -> None:
    rows = fake_rows(Grid(**ONE_POINT))
    assert section(load_section, rows) == ""
    assert not any("lowest" in text for text in Analysis(rows).remarks())


@pytest.mark.parametrize(
    ("bound_us", "highest", "beyond"),
    [(50.0, None, 1e3), (100.0, 1e3, 1e4), (5_000.0, 1e4, 1e5), (1e6, 1e4, 1e5)],
)
def test_the_highest_rate_keeps_the_bound_and_itself(
    fake_rows: Rows, bound_us: float, highest: float | None, beyond: float
) -> None:
    analysis = Analysis(against_rate(fake_rows))
    (line,) = analysis.lines
    kept = HighestRate.of(analysis.by_rate(line, 0.1), bound_us)
    assert kept is not None
    assert (kept.rate_per_s, kept.next_per_s) == (highest, beyond)


def test_a_mixture_of_hosts_is_on_the_first_card(fake_rows: Rows, on_hosts: OnHosts) -> None:
    rows = on_hosts(fake_rows(Grid(timeouts_s=(0.0, 0.1), channels=(1,), record_sizes=(8,))), ("a", "b"))
    assert "hosts differ" not in build_report(rows, {})
    for row in rows:
        row["hosts"] = [
            {**host, "netstack_build": "python" if host["host"] == "b" else "compiled"} for host in row["hosts"]
        ]
    page = build_report(rows, {})
    first = page[page.index('<dl class="findings">') :].partition("</div>")[0]
    assert "build compiled on a, python on b" in first
    assert "python</td>" in page, "the table of hosts has a column for the build"


def test_a_latency_within_its_uncertainty_is_set_apart(fake_rows: Rows, on_hosts: OnHosts) -> None:
    rows = on_hosts(fake_rows(Grid(**ONE_POINT)), HOSTS)
    for row in rows:
        for pair in row["pairs"]:
            pair["latency_uncertainty_us"] = 1e9
    page = section(hosts_section, rows)
    assert page.count('class="cell unsure"') == 2 * 6


def test_pairs_that_differ_little_look_alike(fake_rows: Rows, on_hosts: OnHosts) -> None:
    page = section(hosts_section, on_hosts(fake_rows(Grid(**ONE_POINT)), HOSTS))
    shades = [float(part) for part in re.findall(r"--v:([\d.]+)", page)]
    assert len(shades) == 27
    assert max(shades) == 1.0
    rates = [float(part) for part in re.findall(r"--v:[\d.]+\">([\d.]+)", page)[:9]]
    assert shades[:9] == [pytest.approx(rate / max(rates), abs=0.01) for rate in rates], (
        "from nothing, not from the least"
    )


def test_each_point_is_a_view_and_older_rows_have_none(fake_rows: Rows, on_hosts: OnHosts) -> None:
    page = section(hosts_section, on_hosts(fake_rows(), HOSTS))
    assert page.count('<details class="view"') == 20
    assert page.count('<details class="view" open') == 1
    assert 'data-f="0-0 1-0 2-0"' in page
    assert section(hosts_section, fake_rows()) == ""


def test_pairs_may_lack_what_was_not_measured(fake_rows: Rows) -> None:
    pair = {"source_host": "<a>", "sink_host": "b", "latency_us": None, "payload_mb_per_s": 5.0}
    rows = [{**row, "pairs": [pair], "round_trip_latency_us_p50": 140.0} for row in fake_rows(Grid(**ONE_POINT))]
    page = section(hosts_section, rows)
    assert len(cells(page, 0)) == 1
    assert page.count("<table") == 1
    assert "&lt;a&gt;" in page
    assert "Round trips, by one clock: p50 140 \u00b5s." in page


def test_relayed_records_tell_round_trips(fake_rows: Rows, on_hosts: OnHosts) -> None:
    rows = on_hosts(fake_rows(), HOSTS)
    for row in rows:
        for pair in row["pairs"]:
            pair["round_trip_latency_us"], pair["latency_us"] = pair["latency_us"], None
        for name in [name for name in row if name.startswith("latency_us_")]:
            row[f"round_trip_{name}"], row[name] = row[name], None
    page = build_report(rows, {})
    hosts = page.partition('id="hosts"')[2].partition("</section>")[0]
    assert "Round trip, p99" in hosts
    assert "One-way latency, p50" not in hosts
    assert "&plusmn; 45" not in hosts
    assert len(by_class(drawings(page.partition('id="percentiles"')[2])[0], "pt")) == 5 * 8
    assert page.count("Where records are relayed back") == 3
    assert "Latency runs (20)" in page


# ------------------------------------------------------------------------------------------------------ the timeline


def test_a_task_is_a_line_over_time(fake_rows: Rows) -> None:
    page = section(timeline_section, fake_rows(Grid(**ONE_POINT, seconds=2.0)))
    charts = drawings(page)
    assert len(charts) == 2 * 4, "back-pressured, idle, busy, pool usage"
    assert [len(by_class(chart, "series")) for chart in charts[::2]] == [1, 1, 1, 2]
    (line,) = by_class(charts[0], "line")
    assert len(re.findall("[ML]", line.get("d", ""))) == 20
    assert charts[0].get("data-span") == "0 2 0 1"
    assert ">producer</button>" in page
    assert re.search(r"On average: producer \d\d%\.", page)


def test_lines_of_several_hosts_are_named_by_them(fake_rows: Rows, on_hosts: OnHosts) -> None:
    page = section(timeline_section, on_hosts(fake_rows(Grid(**ONE_POINT)), HOSTS))
    assert page.count("</li>") == 6
    assert "gamma / consumer</button>" in page


def test_a_run_too_long_for_a_screen_is_averaged(fake_rows: Rows) -> None:
    rows = fake_rows(Grid(**ONE_POINT))
    many = [
        {"t_s": step / 4, "host": "h", "task": "source", "backpressured_ms_per_s": 1000.0 * (step % 2)}
        for step in range(1, 1001)
    ]
    page = section(timeline_section, [{**row, "timeline": many} for row in rows])
    (line,) = by_class(drawings(page)[0], "line")
    points = re.findall(r"[ML][\d.]+ ([\d.]+)", line.get("d", ""))
    assert 100 < len(points) <= 120
    assert "On average: source 50%." in page


def test_the_first_repeat_is_shown_and_runs_without_one_are_not(fake_rows: Rows) -> None:
    rows = fake_rows(Grid(**ONE_POINT, repeats=2))
    page = section(timeline_section, [row if row["repeat"] else {**row, "timeline": None} for row in rows])
    assert page.count('<details class="view"') == 1
    assert section(timeline_section, [{**row, "timeline": None} for row in rows]) == ""
    paced = section(timeline_section, [row for row in rows if row["kind"] == "latency"])
    assert "at 1,000 records/s" in paced


def test_text_from_outside_is_escaped(fake_rows: Rows) -> None:
    evil = '"><script>alert(1)</script>'

    def spoilt(sample: Mapping[str, Any]) -> dict[str, Any]:
        return {**sample, "host": evil, "task": evil}

    rows = [
        {
            **row,
            "timeline": [spoilt(sample) for sample in row["timeline"]],
            "pairs": [{"source_host": evil, "sink_host": evil, "payload_mb_per_s": 1.0}],
            "hosts": [{"host": evil, "address": evil}],
            "engine_kind": evil if number % 2 else "local",
        }
        for number, row in enumerate(fake_rows(Grid(**ONE_POINT, repeats=2)))
    ]
    page = build_report(rows, {})
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert(1)") > 10


def test_a_plane_leaves_out_what_a_logarithm_cannot_show() -> None:
    marks = (Mark(0.0, 0.0, 0.0, ("a",)), Mark(10.0, 10.0, 10.0, ("b",)), None)
    plane = Plane(
        title="t",
        axis="x",
        span=(0.0, 2.0),
        below=[(0.0, "0"), (2.0, "2")],
        series=[Series("s", 0, (0, 0, 0), (0.0, 1.0, 2.0), marks)],
        scale="log",
        domain=(1.0, 100.0),
        tick=str,
    )
    root = ElementTree.fromstring(draw_plane(plane, width=400, height=300, direct_labels=False))
    assert [each.get("data-tooltip") for each in by_class(root, "pt")] == ["b"]


def test_a_host_whose_pairs_are_slow_is_named_where_there_are_three() -> None:
    def pairs(slow: str, hosts: tuple[str, ...] = HOSTS) -> list[Row]:
        actual = [
            {
                "source_host": a,
                "sink_host": b,
                "latency_us": {"p50": 9e3 if slow in (a, b) else 1e3},
                "is_local": a == b,
            }
            for a in hosts
            for b in hosts
        ]
        return [{"pairs": actual}]

    assert slow_host(pairs("beta")).startswith("Records to and from beta take 9 ms (median")
    assert slow_host(pairs("nobody")) == ""
    assert slow_host(pairs("beta", HOSTS[:2])) == ""
