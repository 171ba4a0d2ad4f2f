from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from drawings import by_class, drawings

from netstack_bench.charts.page import NARROW_PX
from netstack_bench.charts.svg import Mark, Plane, Series, Upright, draw_plane
from netstack_bench.grid import Grid
from netstack_bench.report import Analysis, build_report, findings
from netstack_bench.report.buffers import (
    BufferCurve,
    buffer_curves,
    buffer_findings,
    buffers_text,
    bytes_text,
    expectation,
)
from netstack_bench.report.charts import timeout_label
from netstack_bench.store import Row

Rows = Callable[..., list[Row]]
LINK = {"link_bytes_per_s": 100 << 20}


def grid(**settings: Any) -> Grid:
    chosen: dict[str, Any] = {
        "timeouts_s": (0.1,),
        "record_sizes": (1024,),
        "channels": (1,),
        "exclusive_buffers": (0, 2, 8),
        "floating_buffers": (1, 8, 32),
        "round_trips_s": (0.01,),
        "latency_seconds": 0,
        "common": LINK,
        **settings,
    }
    return Grid(**chosen)


def curves(rows: list[Row]) -> list[BufferCurve]:
    return buffer_curves(Analysis(rows))


class TableRows(HTMLParser):
    """Counts the rows of the table of buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "div" and ("class", "card buffers-table") in attrs:
            self.open.append(tag)
        self.rows += bool(self.open) and tag == "tr"

    def handle_endtag(self, tag: str) -> None:
        if tag == "section":
            self.open.clear()


def test_the_product_and_what_to_expect_of_fewer(fake_rows: Rows) -> None:
    (curve,) = curves(fake_rows(grid(), noise=0.0))
    assert curve.product_bytes == 1 << 20
    assert curve.product_buffers == 32
    assert curve.expected_mb_per_s(10) == pytest.approx(10 * 32768 / 0.01 / 1e6)
    assert curve.expected_mb_per_s(1000) == pytest.approx((100 << 20) / 1e6)
    assert curve.totals == [1, 3, 8, 9, 10, 16, 32, 34, 40]
    assert [point.total for point in curve.of_exclusive(8).values()] == [9, 16, 40]
    ten = curve.of_exclusive(2)[10]
    assert curve.reached(ten) == pytest.approx(10 / 32, rel=0.01)


def test_the_buffers_of_all_channels_count(fake_rows: Rows) -> None:
    (curve,) = curves(fake_rows(grid(channels=(4,))))
    assert {(point.exclusive, point.floating): point.total for point in curve.points}[8, 32] == 64


def test_the_finding_tells_what_is_needed_what_few_reached_and_from_where_on_it_is_enough(fake_rows: Rows) -> None:
    reported = findings(fake_rows(grid(), noise=0.0))[-1]
    assert reported == (
        "Buffers at 10 ms round trip: 32 x 32 KiB needed to fill the link (bandwidth-delay product 1 MiB ="
        " 100 MiB/s x 10 ms); with 10 buffers it reached 31%, from 32 on 100%"
    )


def test_where_even_the_most_is_too_few_the_finding_says_so(fake_rows: Rows) -> None:
    reported = findings(fake_rows(grid(floating_buffers=(1, 8)), noise=0.0))[-1]
    assert reported.endswith("with 10 buffers it reached 31%, with 16, the highest number measured, 50%")


def test_where_the_least_is_enough_the_finding_says_so(fake_rows: Rows) -> None:
    reported = findings(fake_rows(grid(round_trips_s=(0.0001,)), noise=0.0))[-1]
    assert "0.32 x 32 KiB needed" in reported
    assert reported.endswith("; from 1 on it reached 100%")


def test_without_a_link_rate_the_best_at_any_round_trip_is_the_rate(fake_rows: Rows) -> None:
    rows = fake_rows(grid(round_trips_s=(0.0, 0.01), common={}), noise=0.0)
    near, far = curves(rows)
    best = max(row["wire_mb_per_s"] for row in rows)
    assert near.rate_bytes_per_s == far.rate_bytes_per_s == pytest.approx(best * 1e6)
    assert far.product_buffers == pytest.approx(best * 1e6 * 0.01 / 32768)
    (near_topic, *_), (far_topic, figure, sentence) = buffer_findings([near, far])
    assert near_topic == "Buffers"
    assert far_topic.startswith("Buffers at 10 ms")
    assert figure == f"{far.product_buffers:.0f} \u00d7 32 KiB"
    assert f"needed to fill {far.rate_text} " in sentence


def test_a_finding_of_a_bare_transport_tells_the_least_that_is_enough(fake_rows: Rows) -> None:
    rows = fake_rows(grid(round_trips_s=(0.0,), common={}), noise=0.0)
    slow = [{**row, "wire_mb_per_s": 1.0} if row["settings_floating_buffers"] == 1 else row for row in rows]
    topic, figure, sentence = buffer_findings(curves(slow))[0]
    assert (topic, figure) == ("Buffers", "8 \u00d7 32 KiB")
    assert re.match(
        r"reached 100% of 1,\d\d\d MB/s without a round trip; 1 reached 0% \(1 KiB records, 1 channel, ", sentence
    )


def test_at_most_three_links_are_told_each_by_its_fastest_records(fake_rows: Rows) -> None:
    many = grid(round_trips_s=(0.0, 0.001, 0.01, 0.1), record_sizes=(8, 1024))
    actual = curves(fake_rows(many))
    assert len(actual) == 8
    topics = [topic for topic, _, _ in buffer_findings(actual)]
    assert topics == ["Buffers at 1 ms round trip", "Buffers at 10 ms round trip", "Buffers at 100 ms round trip"]


def test_a_single_combination_has_no_curve(fake_rows: Rows) -> None:
    assert curves(fake_rows()) == []
    assert curves(fake_rows(grid(exclusive_buffers=(2,), floating_buffers=(8,), round_trips_s=(0.0, 0.01)))) == []
    page = build_report(fake_rows(), {})
    assert 'id="buffers"' not in page
    assert "<h1>Throughput and latency against the buffer timeout</h1>" in page


def test_each_round_trip_has_a_chart_and_each_point_a_row(fake_rows: Rows) -> None:
    page = build_report(fake_rows(grid(round_trips_s=(0.001, 0.01), repeats=3)), {})
    assert "<h1>Throughput against the number of buffers</h1>" in page
    charts = drawings(page.partition('id="frontier"')[0])
    assert len(charts) == 2 * 2, "wide and narrow; one buffer timeout makes no curve"
    for chart in charts:
        assert [len(by_class(each, "pt")) for each in by_class(chart, "series")] == [3, 3, 3]
        assert len(by_class(chart, "upright")) == len(by_class(chart, "expected")) == 1
        assert len(by_class(chart, "whisker")) == 9
    table = TableRows()
    table.feed(page)
    assert table.rows == 1 + 2 * 9
    assert "32 (1 MiB)" in page
    assert "1,000 ms" not in page


def test_a_rate_far_out_of_reach_leaves_the_curves_their_height(fake_rows: Rows) -> None:
    rows = fake_rows(grid(common={"link_bytes_per_s": 10 << 30}))
    (curve,) = curves(rows)
    assert curve.product_buffers == 3276.8
    chart = drawings(build_report(rows, {}))[0]
    highest = min(float(each.get("y", "")) for each in by_class(chart, "tick"))
    marks = [float(each.get("cy", "")) for each in by_class(chart, "hit")]
    lowest = max(marks)
    assert min(marks) < highest + 0.75 * (lowest - highest)
    assert len(by_class(chart, "expected")) == 1


def test_timeouts_and_buffers_are_both_drawn_where_both_differ(fake_rows: Rows) -> None:
    page = build_report(fake_rows(grid(timeouts_s=(0.0, 0.1), exclusive_buffers=(0, 2), floating_buffers=(8,))), {})
    assert "against the buffer timeout and the number of buffers</h1>" in page
    assert len(drawings(page)) > 4
    assert page.index('id="curves"') < page.index('id="percentiles"') < page.index('id="buffers"')
    numbers = {each.get("data-series") for chart in drawings(page) for each in by_class(chart, "series")}
    assert numbers == {f"{kind}{line}" for kind in ("", "100", "200", "300") for line in (0, 1)}, (
        "a legend switches the lines of its own charts"
    )


def test_the_line_of_the_product_stands_where_it_belongs_and_its_label_inside(fake_rows: Rows) -> None:
    for round_trip_s, below, above in ((0.0005, 0, 2), (0.01, 16, 64), (0.05, 128, 256)):
        page = build_report(fake_rows(grid(round_trips_s=(round_trip_s,))), {})
        for chart in drawings(page.partition('id="frontier"')[0]):
            x = float(by_class(chart, "upright")[0].get("x1", ""))
            ticks = {each.text: float(each.get("x", "")) for each in by_class(chart, "tick")}
            places = {count: ticks[f"{count}"] for count in (below, above) if f"{count}" in ticks}
            assert places.get(below, 0) < x < places.get(above, 1e9)
            for label in by_class(chart, "upright-label"):
                half = 6 * len(label.text or "") / 2
                width = float(chart.get("viewBox", "").split()[2])
                assert half <= float(label.get("x", "")) <= width - half
            formula = f"= 100 MiB/s \u00d7 {timeout_label(round_trip_s)} \u00f7 32 KiB"
            assert by_class(chart, "upright-label")[0].text == formula


def test_many_charts_are_folded(fake_rows: Rows) -> None:
    page = build_report(fake_rows(grid(round_trips_s=tuple(step / 1000 for step in range(1, 10)))), {})
    assert "<summary>3 more</summary>" in page


def test_text_from_outside_is_escaped(fake_rows: Rows) -> None:
    evil = '"><script>alert(1)</script>'
    rows = fake_rows(grid()) + [{**row, "settings_emit": evil} for row in fake_rows(grid())]
    page = build_report(rows, {})
    assert len(curves(rows)) == 2
    assert "<script>alert" not in page


def test_older_rows_without_the_wire_or_waits_are_drawn_by_their_payload(fake_rows: Rows) -> None:
    bare = ("wire_mb_per_s", "backpressured_ms_per_s_soft", "settings_round_trip_s", "settings_link_bytes_per_s")
    rows = [{name: value for name, value in row.items() if name not in bare} for row in fake_rows(grid())]
    (curve,) = curves(rows)
    assert curve.product_bytes == 0
    assert "producer back-pressured" not in build_report(rows, {})
    assert "producer back-pressured 20% of the time" in build_report(fake_rows(grid()), {})


def test_a_line_goes_from_mark_to_mark() -> None:
    marks = (Mark(0.0, 0, 0, ("a",)), None, Mark(16.0, 16, 16, ("b",)))
    plane = Plane(
        title="t",
        axis="x",
        span=(0.0, 4.0),
        below=[(0.0, "1"), (4.0, "16")],
        series=[Series("s", 0, (0, 0, 0), (0.0, 2.0, 4.0), marks)],
        scale="linear",
        domain=(0.0, 16.0),
        tick=str,
        upright=Upright(3.0, ("one",)),
        expected=[(0.0, 0.0), (4.0, 16.0)],
    )
    root = ElementTree.fromstring(draw_plane(plane, width=NARROW_PX[0], height=300, direct_labels=True))
    line, expected = (by_class(root, name)[0].get("d", "") for name in ("line", "expected"))
    assert len(re.findall("[ML]", line)) == 2, "what is between marks was not measured"
    assert expected == line


def test_an_expectation_is_straight_in_counts(fake_rows: Rows) -> None:
    (curve,) = curves(fake_rows(grid(round_trips_s=(0.05,))))
    points = expectation(curve, 1e9)
    assert [at for at, _ in points] == sorted(at for at, _ in points)
    for at, value in points:
        assert value == pytest.approx(curve.expected_mb_per_s(2**at))
    cut = expectation(curve, curve.rate_bytes_per_s / 2e6)
    assert cut[-1][1] == pytest.approx(curve.rate_bytes_per_s / 2e6)


def test_numbers_are_short() -> None:
    assert [buffers_text(count) for count in (0.32, 3.2, 9.96, 32.4, 1234.0)] == ["0.32", "3.2", "10", "32", "1,234"]
    assert [bytes_text(size) for size in (10, 1 << 20, 319_488, 5 << 30)] == ["10 B", "1 MiB", "312 KiB", "5 GiB"]
