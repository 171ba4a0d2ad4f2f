from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from netstack_bench.emulation import WITHIN, Cell, emulation_cells, emulation_summary, undecided_points
from netstack_bench.engines.flink import FlinkSpec
from netstack_bench.interval import Verdict
from netstack_bench.report.tables import emulation_section
from netstack_bench.spec import RunSpec, constants_of
from netstack_bench.store import Row, flatten

PACED = RunSpec(rate_per_s=1000.0)
FREE = RunSpec()


def as_flink(spec: RunSpec) -> RunSpec:
    return RunSpec(**{**spec.as_dict(), **constants_of("flink"), "acts_as": "flink"})


def row(spec: RunSpec, *, repeat: int = 0, **figures: Any) -> Row:
    """A delivered run with figures by the names of columns."""
    head = {"engine_kind": spec.ENGINE_KIND, "delivered": True, "repeat": repeat, "settings": spec.as_dict()}
    return {**flatten(head), **figures}


def only(rows: list[Row]) -> Cell:
    (cell,) = emulation_cells(rows)
    return cell


def errors(cell: Cell) -> dict[str, float]:
    return {error.name: error.equivalence.error for error in cell.errors}


def repeated(spec: RunSpec, name: str, figures: Sequence[float]) -> list[Row]:
    return [row(spec, repeat=repeat, **{name: figure}) for repeat, figure in enumerate(figures)]


def test_times_are_ratios_and_waits_are_differences() -> None:
    flink = row(FlinkSpec.of(PACED), latency_us_p50=50.0, idle_ms_per_s=900.0)
    cell = only([flink, row(as_flink(PACED), latency_us_p50=100.0, idle_ms_per_s=700.0)])
    assert (cell.acts_as, cell.settings["rate_per_s"]) == ("flink", 1000.0)
    assert errors(cell) == {"p50": 1.0, "idle_ms_per_s": -200.0, "busy_ms_per_s": 200.0}


STEADY = st.lists(st.floats(0.99, 1.01), min_size=3, max_size=4)


@settings(max_examples=20)
@given(st.floats(1e-3, 1e6), st.floats(1 / 3, 3), STEADY, STEADY)
def test_within_is_symmetric_on_the_scale_of_ratios(
    figure: float, factor: float, here: list[float], there: list[float]
) -> None:
    one, other = [figure * each for each in here], [figure * factor * each for each in there]
    verdicts = {
        only([*repeated(FlinkSpec.of(PACED), "latency_us_p99", a), *repeated(PACED, "latency_us_p99", b)]).verdict
        for a, b in ((one, other), (other, one))
    }
    (verdict,) = verdicts
    away = abs(math.log(factor)) - math.log(1 + WITHIN)
    if abs(away) > 0.025:
        assert verdict is not (Verdict.WITHIN if away > 0 else Verdict.OUTSIDE)


def test_ranges_that_overlap_are_not_within_and_single_runs_decide_nothing() -> None:
    flinks = repeated(FlinkSpec.of(PACED), "latency_us_p50", (50.0, 90.0, 60.0))
    ours = repeated(PACED, "latency_us_p50", (80.0, 200.0, 55.0))
    assert only([*flinks, *ours]).verdict is Verdict.UNDECIDED
    same = only([flinks[0], {**ours[0], "latency_us_p50": 50.0}])
    assert (same.verdict, errors(same)) == (Verdict.UNDECIDED, {"p50": 0.0})
    assert emulation_summary([same])[0].endswith("(fewer than 3 repeats decide nothing)")


def test_undecided_points_are_measured_again_with_what_they_are_compared_with() -> None:
    """A throughput is compared as a share of that at the longest timeout in the same pass."""

    def with_timeout(spec: RunSpec, timeout: float) -> RunSpec:
        return type(spec)(**{**spec.as_dict(), "buffer_timeout_s": timeout})

    points = [PACED, with_timeout(PACED, 0.01), *(with_timeout(FREE, each) for each in (0.1, 0.01, 0.001))]
    rows = [
        row(side, repeat=repeat, latency_us_p50=50.0 * noise, records_per_s=1e6 * noise)
        for spec in points
        for side in (FlinkSpec.of(spec), spec)
        for repeat, noise in enumerate((1.0, 1.5, 0.7) if spec.buffer_timeout_s == 0.01 else (1.0, 1.001, 0.999))
    ]
    again = undecided_points(rows, points)
    assert again == [points[1], points[2], points[3]]
    assert undecided_points([], points) == []


def test_only_what_acts_as_flink_is_measured_again_whatever_its_gates() -> None:
    point = replace(PACED, channels=3)
    flink = FlinkSpec.of(point)
    own = replace(point, gates=flink.gates)
    for noisy, expected in ((as_flink(own), [point]), (own, [])):
        rows = [
            row(side, repeat=repeat, latency_us_p50=50.0 * (noise if side == noisy else 1.0))
            for side in (flink, as_flink(own), own)
            for repeat, noise in enumerate((1.0, 1.5, 0.7))
        ]
        assert undecided_points(rows, [point]) == expected


def test_a_run_as_fast_as_it_goes_is_compared_by_what_it_keeps_of_its_own() -> None:
    rows = []
    for spec, rates in ((FlinkSpec.of(FREE), (6e6, 3e6)), (FREE, (1e6, 0.25e6))):
        for timeout, rate in zip((None, 0.0), rates, strict=True):
            each = type(spec)(**{**spec.as_dict(), "buffer_timeout_s": timeout})
            rows.append(row(each, records_per_s=rate, latency_us_p50=rate, average_buffer_fill=0.95))
    cells = {cell.settings["buffer_timeout_s"]: errors(cell) for cell in emulation_cells(rows)}
    assert cells == {None: {}, 0.0: {"kept_throughput": -1.0}}


def test_records_in_a_buffer_count_in_runs_of_full_buffers_only() -> None:
    count = "metrics_consumer_netstack_input_remote_buffers_total"
    for fill, expected in ((0.5, {}), (0.95, {"records_per_buffer": 1.0})):
        flink = row(FlinkSpec.of(FREE), records_per_buffer=10.0, average_buffer_fill=0.95)
        ours = row(FREE, records=200, average_buffer_fill=fill, **{count: 10})
        assert errors(only([flink, ours])) == pytest.approx(expected)


def test_bytes_in_flight_are_those_of_both_queues_and_less_than_a_buffer_is_none() -> None:
    names = "metrics_producer_netstack_output_queue_bytes", "metrics_consumer_netstack_input_queue_bytes"
    for scale, expected in ((1000.0, {"bytes_in_flight": 2.0}), (100.0, {})):
        flink = row(FlinkSpec.of(PACED), **dict(zip(names, (10.0 * scale, 30.0 * scale), strict=True)))
        ours = row(PACED, **dict(zip(names, (100.0 * scale, 60.0 * scale), strict=True)))
        assert errors(only([flink, ours])) == pytest.approx(expected)


def test_every_profile_is_a_cell_of_its_own_and_has_its_sentence() -> None:
    rows = repeated(FlinkSpec.of(PACED), "latency_us_p50", [100.0, 101.0, 99.0])
    rows += repeated(as_flink(PACED), "latency_us_p50", [101.0, 102.0, 100.0])
    rows += repeated(PACED, "latency_us_p50", [10.0, 10.0, 10.0])
    cells = emulation_cells(rows)
    assert emulation_summary(cells) == [
        "--as flink beside Flink: of 1 cell 1 within 15%, 0 outside, 0 undecided; of 1 figure 1 within 15%, 0 outside,"
        " 0 undecided",
        "--as netstack beside Flink: of 1 cell 0 within 15%, 1 outside, 0 undecided; of 1 figure 0 within 15%, 1"
        " outside, 0 undecided",
    ]
    page = emulation_section(rows)
    assert "of 1 cell 1 within 15%" in page
    assert page.count('class="cell less"') == 1
    assert "+0.01" in page
    assert "-3.32" in page
    assert cells[1].as_dict()["errors"]["p50"] == {
        "flink": 100.0,
        "netstack": 10.0,
        "error": pytest.approx(-3.32, abs=0.01),
        "low": pytest.approx(-3.38, abs=0.01),
        "high": pytest.approx(-3.26, abs=0.01),
        "repeats": 3,
        "verdict": "outside",
        "within": False,
    }


def test_without_flink_other_settings_or_delivery_there_is_no_cell() -> None:
    ours = row(PACED, latency_us_p50=1.0)
    assert emulation_cells([ours]) == []
    assert emulation_section([ours]) == ""
    assert emulation_cells([ours, row(FlinkSpec.of(FREE), latency_us_p50=1.0)]) == []
    assert emulation_cells([ours, {**row(FlinkSpec.of(PACED), latency_us_p50=1.0), "delivered": False}]) == []


def test_checkpoints_are_compared_where_one_side_takes_long_or_persists_much() -> None:
    spec = RunSpec(consume_rate_per_s=2000.0, checkpoints="unaligned", memory_bytes=1 << 22)
    names = "checkpoints_duration_ms_p50", "checkpoints_channel_state_bytes_p50"
    flink = row(FlinkSpec.of(spec), **dict(zip(names, (12.0, 500_000.0), strict=True)))
    ours = row(as_flink(spec), **dict(zip(names, (3.0, 1_000_000.0), strict=True)))
    assert errors(only([flink, ours])) == {"channel_state": 1.0}, "few milliseconds are those of an RPC"
    slow = row(as_flink(spec), **dict(zip(names, (48.0, 500_000.0), strict=True)))
    assert errors(only([flink, slow])) == {"checkpoint_ms": 2.0, "channel_state": 0.0}
    page = emulation_section([flink, slow])
    assert "memory 4 MiB · unaligned every 1 s" in page
    assert "<th" in page
    assert "persisted in flight" in page
    assert "throughput kept" not in page, "a column that no cell has"
