"""`checkpoints`: its settings, its figures and its pictures."""

from __future__ import annotations

import json
import re
from io import StringIO
from typing import Any
from xml.etree import ElementTree

import pytest
from bench.checkpoint_results import CONTRACT, SPEC, points, result, seen, stretches
from bench.pages import assert_whole
from rich.console import Console

from netstack.base.errors import ConfigError
from netstack_bench.checkpoints.figures import point, verdicts
from netstack_bench.checkpoints.page import build_page
from netstack_bench.checkpoints.spec import CheckpointsSpec
from netstack_bench.checkpoints.text import print_result, settings_line, state_size

# ------------------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        ({"seconds": 0.1}, "--seconds 0.1"),
        ({"interval_s": 0.0}, "--interval 0"),
        ({"aligned_timeout_s": 0.0}, "--aligned-timeout 0"),
        ({"modes": ()}, "--modes"),
        ({"modes": ("aligned", "fast")}, "--modes aligned,fast: give some of aligned,unaligned,timed"),
        ({"modes": ("aligned", "aligned")}, "--modes aligned,aligned"),
        ({"pressures": ()}, "--pressure"),
        ({"pressures": (0.5, 0.2)}, "--pressure 0.5,0.2"),
        ({"pressures": (0.5, 1.0)}, "--pressure 0.5,1"),
        ({"pressures": (-0.1,)}, "--pressure -0.1"),
        ({"channels": 0}, "--channels 0"),
        ({"record_bytes": 7}, "--record-bytes 7"),
        ({"keys": 0}, "--keys 0"),
        ({"exclusive_buffers": -1}, "--exclusive-buffers -1"),
        ({"floating_buffers": 0}, "--floating-buffers 0"),
        ({"segment_size_bytes": 16}, "--segment-size 16B"),
    ],
)
def test_what_cannot_work_names_the_flag(settings: dict[str, Any], reported: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reported)):
        CheckpointsSpec(**settings)


def test_settings_travel_whole() -> None:
    spec = CheckpointsSpec(modes=("timed",), pressures=(0.25, 0.5), channels=2)
    assert CheckpointsSpec.from_dict(json.loads(json.dumps(spec.as_dict()))) == spec


# ------------------------------------------------------------------------------------------------------------- figures


def test_a_point_has_medians_and_the_most() -> None:
    reported = point(0.5, [seen(20.0, state=10), seen(100.0, write_ms=70.0, state=30), seen(40.0, state=20)], 2, [])
    assert reported.keys() >= CONTRACT
    assert (reported["pressure"], reported["checkpoints"], reported["aborted"]) == (0.5, 3, 2)
    assert reported["duration_ms"] == pytest.approx({"p50": 40.0, "max": 100.0})
    assert reported["start_delay_ms"] == pytest.approx({"p50": 10.0, "max": 25.0})
    assert reported["alignment_ms"] == pytest.approx({"p50": 20.0, "max": 50.0})
    assert reported["state_write_ms"] == pytest.approx({"p50": 5.0, "max": 70.0})
    assert reported["besides_writing_ms"] == pytest.approx({"p50": 30.0, "max": 35.0}), "of each checkpoint its own"
    assert reported["channel_state_bytes"] == {"p50": 20, "max": 30}


def test_throughput_is_compared_with_that_next_to_it() -> None:
    reported = point(0.0, [], 0, stretches(1000, 980, 1000, 980, 500, 490, 500))
    assert reported["throughput_lost"] == pytest.approx(0.02), "not with that of the machine's better hours"
    assert reported["throughput_lost_error"] > 0
    assert reported["records_per_s"] == 980
    assert reported["duration_ms"] is None
    assert point(0.0, [], 0, [])["throughput_lost"] is None
    assert point(0.0, [], 0, stretches(1000, 990))["throughput_lost_error"] is None
    assert point(0.0, [], 0, stretches(0, 0, 0))["throughput_lost"] is None, "a sink that stood still lost nothing"


def test_verdicts_tell_growth_goal_and_cost() -> None:
    aligned, unaligned, timed, cost = verdicts(SPEC, result()["modes"])
    assert aligned == "aligned: 22 ms at pressure 0, 418 ms at 0.9; besides writing the state, 565 ms at most"
    assert unaligned == (
        "unaligned: 22 ms at pressure 0, 22 ms at 0.9; besides writing the state, 25 ms at most (goal: below 50 ms)"
    )
    assert timed.startswith("timed: ")
    assert cost.startswith("throughput that a barrier every 100 ms costs at pressure 0: aligned 2.0 % ± ")
    assert cost.endswith("(goal: 3.0 % with one every 100 ms)")
    assert verdicts(SPEC, {"aligned": [point(0.0, [], 1, [])]}) == ["aligned: no checkpoint completed"]
    assert len(verdicts(SPEC, {"aligned": points("aligned")[:1]})) == 2


# ------------------------------------------------------------------------------------------------------------ pictures


def test_the_table_on_a_terminal() -> None:
    out = StringIO()
    modes = result()["modes"]
    modes["timed"][1]["aborted"] = 1
    print_result(SPEC, modes, Console(file=out, width=140))
    text = out.getvalue()
    assert settings_line(SPEC) in text.replace("\n", " ")
    assert re.search(r"0 +aligned +3 +22 +30 +5.5 +11 +5 +17 +0 B +980 +2.0 %", text)
    assert re.search(r"0\.9 +aligned +3 +418 ", text)
    assert re.search(r"\n +unaligned +3 +22 .* 900 kB ", text)
    assert re.search(r"\n +timed +3 of 4", text)


def test_settings_in_a_line() -> None:
    assert settings_line(SPEC) == (
        "4 sources to 2 sinks, a barrier every 100 ms, 100 B records of 10,000 keys, 2 + 8 buffers of 32 KiB,"
        " timed: unaligned after 50 ms"
    )
    assert "timed" not in settings_line(CheckpointsSpec(modes=("aligned",)))
    assert [state_size(size) for size in (0, 512, 1_500_000)] == ["0 B", "512 B", "1.5 MB"]


def page_of(**changed: Any) -> str:
    document = result(**changed)
    page = build_page(SPEC, document)
    return page.html("checkpoints", SPEC, document, command="netstack-bench checkpoints '<b>'", made="2026-11-21 19:30")


def test_the_page_is_whole_and_fetches_nothing() -> None:
    page = page_of()
    assert_whole(page)
    assert "lab-&lt;7&gt;" in page
    assert "a &lt;remark&gt;" in page
    assert "<b>" not in page


def charts(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg viewBox=.0 0 \d{3}.*?</svg>", page, re.DOTALL)]


def test_the_picture_has_a_line_a_mode_and_the_goal() -> None:
    drawn = charts(page_of())
    assert len(drawn) == 4, "duration and channel state, wide and narrow"
    for chart in drawn:
        assert sum(each.get("class") == "pt" for each in chart.iter()) == 6
        assert sum("series" in (each.get("class") or "").split() for each in chart.iter()) == 3
    guides = [sum(each.get("class") == "guide" for each in chart.iter()) for chart in drawn]
    assert guides == [2, 2, 0, 0]
    reported = [each.get("data-tooltip") or "" for each in drawn[0].iter()]
    assert "aligned, pressure 0.9 418 ms, at most 570 ms 3 checkpoints" in reported


def test_a_page_of_what_little_there_is() -> None:
    none = point(0.0, [], 3, stretches(1000, 990, 1000))
    page = page_of(modes={"timed": [none]}, warnings=[])
    assert len(charts(page)) == 4
    assert "no checkpoint completed" in page
    assert 'class="callout"' not in page
