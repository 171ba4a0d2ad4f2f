from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from netstack_bench.emulation import WITHIN, Cell, emulation_cells, emulation_summary
from netstack_bench.engines.flink import FlinkSpec
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


def errors(cell: Cell) -> dict[str, float | None]:
    return {error.name: error.error for error in cell.errors}


def test_times_are_ratios_and_waits_are_differences() -> None:
    flink = row(FlinkSpec.of(PACED), latency_us_p50=50.0, idle_ms_per_s=900.0)
    cell = only([flink, row(as_flink(PACED), latency_us_p50=100.0, idle_ms_per_s=700.0)])
    assert (cell.acts_as, cell.settings["rate_per_s"]) == ("flink", 1000.0)
    assert errors(cell) == {"p50": 1.0, "idle_ms_per_s": -200.0, "busy_ms_per_s": 200.0}
    assert [error.is_within for error in cell.errors] == [False, False, False]


@given(st.floats(1e-3, 1e6), st.floats(1 / 3, 3))
def test_within_is_symmetric_on_the_scale_of_ratios(figure: float, factor: float) -> None:
    there, back = (
        only([row(FlinkSpec.of(PACED), latency_us_p99=one), row(PACED, latency_us_p99=other)])
        for one, other in ((figure, figure * factor), (figure * factor, figure))
    )
    assert there.is_within == back.is_within
    if abs(abs(math.log(factor)) - math.log(1 + WITHIN)) > 1e-9:
        assert there.is_within == (abs(math.log(factor)) < math.log(1 + WITHIN))


def test_ranges_that_overlap_leave_it_blank_and_single_runs_have_none() -> None:
    flinks = [row(FlinkSpec.of(PACED), latency_us_p50=each, repeat=n) for n, each in enumerate((50.0, 90.0))]
    ours = [row(PACED, latency_us_p50=each, repeat=n) for n, each in enumerate((80.0, 200.0))]
    assert errors(only([*flinks, *ours])) == {"p50": None}
    assert only([*flinks, *ours]).is_within
    assert not only([flinks[0], *ours]).is_within, "one run has no range to overlap with"
    apart = [row(PACED, latency_us_p50=each, repeat=n) for n, each in enumerate((91.0, 200.0))]
    assert errors(only([*flinks, *apart])) == {"p50": pytest.approx(math.log2(145.5 / 70))}


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
        assert errors(only([flink, ours])) == expected


def test_bytes_in_flight_are_those_of_both_queues_and_less_than_a_record_is_none() -> None:
    names = "metrics_producer_netstack_output_queue_bytes", "metrics_consumer_netstack_input_queue_bytes"
    for scale, expected in ((1.0, {"bytes_in_flight": 2.0}), (0.01, {})):
        flink = row(FlinkSpec.of(PACED), **dict(zip(names, (10.0 * scale, 30.0 * scale), strict=True)))
        ours = row(PACED, **dict(zip(names, (100.0 * scale, 60.0 * scale), strict=True)))
        assert errors(only([flink, ours])) == expected


def test_every_profile_is_a_cell_of_its_own_and_has_its_sentence() -> None:
    flink = row(FlinkSpec.of(PACED), latency_us_p50=100.0)
    rows = [flink, row(as_flink(PACED), latency_us_p50=101.0), row(PACED, latency_us_p50=10.0)]
    cells = emulation_cells(rows)
    assert emulation_summary(cells) == [
        "1 of 1 cells within 15% of Flink with --as flink (1 of 1 figures)",
        "0 of 1 cells within 15% of Flink with --as netstack (0 of 1 figures)",
    ]
    page = emulation_section(rows)
    assert "1 of 1 cells within 15% of Flink with --as flink" in page
    assert page.count('class="cell less"') == 1
    assert "+0.01" in page
    assert "-3.32" in page
    assert cells[1].as_dict()["errors"]["p50"] == {
        "flink": 100.0,
        "netstack": 10.0,
        "error": pytest.approx(-3.32, abs=0.01),
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
