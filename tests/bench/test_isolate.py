"""`isolate`: its settings, its workers, what follows from their summaries, and the pictures."""

import json
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from bench.isolate_results import SPEC, Mode, mode, summaries
from bench.pages import assert_whole
from rich.console import Console

from netstack.base.errors import ConfigError
from netstack_bench.isolate.command import document
from netstack_bench.isolate.page import build_page
from netstack_bench.isolate.spec import PHASES, SUBTASKS, TICK_NS, IsolateSpec, Phase
from netstack_bench.isolate.text import plot, print_mode, settings_line, verdict
from netstack_bench.isolate.worker import SKIP_NS, Arrivals, Brake, SlotPacer, consume, produce
from netstack_bench.places.conversation import MeasurementFailed
from netstack_bench.places.local.runner import Summaries

MS = 1_000_000
InOneProcess = Callable[..., tuple[dict[str, Any], dict[str, Any]]]


# ------------------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        ({"seconds": 0.09}, "--seconds 0.09"),
        ({"rate_per_s": 0.0}, "--rate 0"),
        ({"slow_rate_per_s": -1.0}, "--slow-rate -1"),
        ({"slow_rate_per_s": 5000.0}, "--slow-rate 5000 is not below --rate 5000"),
        ({"record_bytes": 7}, "--record-bytes 7"),
        ({"exclusive_buffers": -1}, "--exclusive-buffers -1"),
        ({"floating_buffers": 0}, "--floating-buffers 0"),
        ({"segment_size_bytes": 16}, "--segment-size 16B"),
    ],
)
def test_what_cannot_work_names_the_flag(settings: dict[str, Any], reported: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reported)):
        IsolateSpec(**settings)


def test_settings_travel_whole() -> None:
    spec = IsolateSpec(seconds=0.5, rate_per_s=None, transport="unix")
    assert IsolateSpec.from_dict(json.loads(json.dumps(spec.as_dict()))) == spec


@pytest.mark.parametrize(
    ("seconds", "phase", "window"),
    [(2.0, "before", (20, 180)), (2.0, "during", (220, 380)), (0.3, "after", (63, 87)), (0.15, "before", (2, 13))],
)
def test_the_edges_of_a_phase_do_not_count(seconds: float, phase: Phase, window: tuple[int, int]) -> None:
    assert IsolateSpec(seconds=seconds).window(phase) == window


def test_bins_cover_all_of_the_time_once() -> None:
    spec = IsolateSpec(seconds=0.15)
    assert spec.bins() == [(0, 10), (10, 20), (20, 30), (30, 40), (40, 45)]
    assert spec.edges() == sorted({0, 2, 10, 13, 17, 20, 28, 30, 32, 40, 43, 45})


def test_without_credit_nobody_pings() -> None:
    assert SPEC.network(credit=True).credit_based
    without = SPEC.network(credit=False)
    assert not without.credit_based
    assert without.heartbeat_interval_s is None


# ------------------------------------------------------------------------------------------------------------- workers


def test_a_pacer_hands_out_every_slot_once() -> None:
    pacer = SlotPacer(start_ns=1000 * MS, rate_per_s=1000, most=100)
    assert pacer.take(999 * MS) == 0
    assert pacer.wait_s(999 * MS) == pytest.approx(0.001)
    assert pacer.take(1000 * MS) == 1
    assert pacer.take(1000 * MS) == 0
    assert pacer.take(1005 * MS) == 5
    assert sum(pacer.take(1005 * MS + at * MS) for at in range(1, 101)) == 100


def test_a_pacer_does_not_make_up_for_what_it_missed() -> None:
    pacer = SlotPacer(start_ns=0, rate_per_s=1000, most=1000)
    assert pacer.take(0) == 1
    assert pacer.take(SKIP_NS + 500 * MS) == 1
    assert pacer.take(SKIP_NS + 510 * MS) == 10


def test_a_pacer_catches_up_a_little_at_most_so_much_at_once() -> None:
    pacer = SlotPacer(start_ns=0, rate_per_s=1000, most=8)
    assert [pacer.take(19 * MS) for _ in range(4)] == [8, 8, 4, 0]


def test_arrivals_are_counted_by_tick() -> None:
    arrivals = Arrivals(start_ns=1000, ticks=3)
    for at_ns in (0, 1000, 1000 + TICK_NS - 1, 1000 + TICK_NS, 1000 + 3 * TICK_NS):
        arrivals.add(2, at_ns)
    assert arrivals.records == 10
    assert arrivals.ticks == [4, 2, 0]


def test_a_brake_stalls_until_the_phase_is_over() -> None:
    brake = Brake(SPEC, start_ns=0)
    assert brake.wait_s(999 * MS) == 0
    assert brake.wait_s(1200 * MS) == pytest.approx(0.8)
    assert brake.wait_s(2000 * MS) == 0


def test_a_brake_slows_down_to_a_rate() -> None:
    brake = Brake(IsolateSpec(seconds=1.0, slow_rate_per_s=100.0), start_ns=0)
    now = 1000 * MS
    taken = 0
    while (wait_s := brake.wait_s(now)) or now < 2000 * MS:
        now += int(wait_s * 1e9) + MS // 2  # every sleep is a little late
        taken += 1
    assert 99 <= taken <= 101
    assert now < 2002 * MS


@pytest.mark.slow
@pytest.mark.parametrize("credit", [True, False])
def test_both_sides_in_one_process(credit: bool, in_one_process: InOneProcess, tmp_path: Path) -> None:
    spec = IsolateSpec(seconds=0.1, rate_per_s=2000.0, record_bytes=1000, transport="unix")
    producer, consumer = in_one_process(produce, consume, {"spec": spec.as_dict(), "credit": credit}, tmp_path)
    reported = document(spec, Summaries(producer, consumer, ()))
    assert reported["delivered"], reported["warnings"]
    assert reported["connections"] == 1
    assert reported["records_per_s"]["B.4"]["during"] == 0
    for subtask in SUBTASKS:
        assert producer["expected"][subtask]["records"] == reported["records"][subtask]


# ------------------------------------------------------------------------------------------------------------- results


def test_rates_are_those_of_the_windows() -> None:
    reported = mode(sibling=0.5)
    assert reported["records_per_s"] == {
        "B.3": {"before": 1000.0, "during": 500.0, "after": 1000.0},
        "B.4": {"before": 1000.0, "during": 0.0, "after": 1000.0},
    }, "the burst at the start of the last phase is outside of its window"
    assert reported["sibling_kept"] == 0.5
    assert reported["delivered"] is True
    assert reported["connections"] == 1
    assert reported["windows_s"] == {"before": [0.1, 0.9], "during": [1.1, 1.9], "after": [2.1, 2.9]}
    assert reported["warnings"] == ["producer: a remark"]
    series = reported["series"]
    assert series["bin_s"] == 0.1
    assert series["records_per_s"]["B.4"] == [1000.0] * 10 + [0.0] * 10 + [5000.0] + [1000.0] * 9
    assert all(len(series[name][subtask]) == 30 for name in series if name != "bin_s" for subtask in SUBTASKS)


def test_backpressure_is_that_of_the_windows() -> None:
    reported = mode()
    assert reported["backpressured_s"]["B.3"] == dict.fromkeys(PHASES, 0.0)
    assert reported["backpressured_s"]["B.4"] == pytest.approx({"before": 0.0, "during": 0.4, "after": 0.0})
    assert reported["backpressured_ms_per_s"]["B.4"] == pytest.approx({"before": 0.0, "during": 500.0, "after": 0.0})
    assert reported["series"]["backpressured_ms_per_s"]["B.4"] == pytest.approx([0.0] * 15 + [1000.0] * 5 + [0.0] * 10)


def test_a_subtask_that_got_nothing_kept_nothing_to_speak_of() -> None:
    reported = mode(ticks={subtask: [0] * SPEC.ticks for subtask in SUBTASKS})
    assert reported["sibling_kept"] is None
    assert verdict(SPEC, reported) == "B.3 received nothing even before B.4 stalled"
    assert plot(SPEC, reported)[1].strip() == "B.3"


def test_what_was_not_delivered_is_told() -> None:
    reported = mode(problems={"B.3": [], "B.4": ["5 records were sent, 4 arrived"]})
    assert reported["delivered"] is False
    assert "delivery to B.4: 5 records were sent, 4 arrived" in reported["warnings"]


def test_two_connections_measure_nothing() -> None:
    with pytest.raises(MeasurementFailed, match="share one connection, but there were 2"):
        mode(connections=2)


def test_a_rate_that_was_not_reached_is_a_warning() -> None:
    slow = IsolateSpec(seconds=1.0, rate_per_s=1100.0)
    reported = document(slow, summaries(SPEC))["warnings"]
    assert any("A.1 was to send 1100 records/s, B.3 got 1000 before B.4 was slowed down" in text for text in reported)
    assert sum("was to send" in text for text in reported) == 4
    assert document(IsolateSpec(seconds=1.0, rate_per_s=None), summaries(SPEC))["warnings"] == ["producer: a remark"]


def test_a_process_that_stood_still_is_a_warning() -> None:
    reported = mode(late_ns=300 * MS)["warnings"]
    assert any("the producer process was paused for 0.3 s" in text for text in reported)
    assert not any("consumer process" in text for text in reported)


# ------------------------------------------------------------------------------------------------------------ pictures


def test_the_plot_shows_the_stall() -> None:
    ruler, sibling, stalled = plot(SPEC, mode())
    assert re.fullmatch(r" {5}\|before +\|B\.4 stalls +\|after +", ruler)
    middle = slice(ruler.index("|B.4"), ruler.index("|after"))
    assert set(sibling[middle]) == set(sibling[5:])
    assert set(stalled[middle]) == {" "}
    assert stalled[middle.stop] == "█", "a burst reaches the top, and is cut there"
    assert len(ruler) == len(sibling) == len(stalled)
    assert all(line.isascii() for line in plot(SPEC, mode(), plain=True))


def test_a_long_run_fits_a_line() -> None:
    spec = IsolateSpec(seconds=30.0, rate_per_s=1000.0, slow_rate_per_s=10.0)
    lines = plot(spec, mode(spec))
    assert max(map(len, lines)) < 80
    assert "|B.4 takes 10/s" in lines[0]


def test_a_mode_in_the_terminal() -> None:
    out = StringIO()
    print_mode("credit off", SPEC, mode(sibling=0.25), Console(file=out, width=100))
    text = out.getvalue()
    assert re.search(r"A\.1 > B\.3 +1,000 +2[05]0 +1,000 +0 % +0 % +0 %", text)
    assert re.search(r"A\.2 > B\.4 +1,000 +0 +1,000 +0 % +50 % +0 %", text)
    assert re.search(r"credit off: B\.3 kept 2\d % of its rate while B\.4 stalled", text)
    assert "1,000 records/s, 4 KiB records, 2 + 8 buffers of 32 KiB, tcp, phases of 1 s" in settings_line(SPEC)
    assert "full speed" in settings_line(IsolateSpec(rate_per_s=None))


def page_of(**modes: Mode) -> str:
    host = {"name": "lab-<7>", "cpu": "EPYC", "cores": 2, "kernel": None, "python": "3.11", "load_average": [0.5, 1, 1]}
    result = {**modes, "host": host, "version": "0.1.0"}
    page = build_page(SPEC, result)
    return page.html("isolate", SPEC, result, command="netstack-bench isolate --rate '<b>'", made="2026-11-21 09:30")


def test_the_page_is_whole_and_fetches_nothing() -> None:
    page = page_of(credit_on=mode(), credit_off=mode(sibling=0.1))
    assert_whole(page)
    assert "lab-&lt;7&gt;" in page
    assert "<b>" not in page


def test_both_modes_share_an_axis() -> None:
    page = page_of(credit_on=mode(), credit_off=mode(sibling=0.1))
    texts = re.findall(r"<svg viewBox=.0 0 \d{3}.*?</svg>", page, re.DOTALL)
    charts = [ElementTree.fromstring(text) for text in texts]
    assert len(charts) == 4, "each mode, wide and narrow"
    ticks = [[each.text for each in chart.iter() if each.get("class") == "tick"] for chart in charts]
    assert ticks[0] == ticks[2]
    for chart in charts:
        names = [each.text for each in chart.iter() if each.get("class") == "phase"]
        assert names == ["before", "B.4 stalls", "after"]
        assert sum("series" in (each.get("class") or "").split() for each in chart.iter()) == 4
        assert sum(each.get("class") == "pt" for each in chart.iter()) == 30
        heights = [
            float(y)
            for each in chart.iter()
            if each.get("class") in ("line", "area")
            for y in re.findall(r"[ML][\d.]+ (-?[\d.]+)", each.get("d", ""))
        ]
        assert min(heights) >= 26, "nothing is drawn above the plot, bursts neither"
    assert "at up to 5 k" in page


def test_a_page_of_one_mode_tells_what_is_wrong_with_it() -> None:
    page = page_of(credit_off=mode(problems={"B.3": ["lost <one>"], "B.4": []}))
    assert "Not everything was delivered" in page
    assert "lost &lt;one&gt;" in page
    assert "Credit on" not in page
