"""Where the time goes: every moment once, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from netstack.base.errors import ConfigError
from netstack.network.connection.pump import Pump
from netstack_bench import run_metrics
from netstack_bench.document import with_calls_per_gb
from netstack_bench.generator import Source
from netstack_bench.grid import Grid
from netstack_bench.places.hosts.spec import MeshSpec
from netstack_bench.places.local.runner import run_once
from netstack_bench.report import build_report
from netstack_bench.run_metrics import ASLEEP, LOOP, OTHER, WORK, Costs, profiled
from netstack_bench.spec import RunSpec
from netstack_bench.store import Row

Rows = Callable[..., list[Row]]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_moment_counts_once_for_the_innermost() -> None:
    clock = Clock()

    async def main() -> Costs:
        actual = Costs("producer", clock)

        def receive() -> None:
            clock.now += 1

        def read() -> None:
            clock.now += 2
            inner()
            clock.now += 4

        inner = actual.wrapped(receive, "receive")
        clock.now += 8  # the task's own
        actual.wrapped(read, "frames in")()
        actual.after_task_step(trio.lowlevel.current_task())
        clock.now += 16
        actual.before_io_wait(1.0)
        clock.now += 32
        actual.after_io_wait(1.0)
        actual.before_task_step(trio.lowlevel.current_root_task())  # type: ignore[arg-type]
        clock.now += 64
        actual.after_task_step(trio.lowlevel.current_root_task())  # type: ignore[arg-type]
        return actual

    actual = trio.run(main)
    assert actual.seconds == {WORK["producer"]: 8, "frames in": 6, "receive": 1, LOOP: 16, ASLEEP: 32, OTHER: 64}
    table = actual.table(buffers=4, records=0)
    assert [row["what"] for row in table] == [OTHER, ASLEEP, LOOP, WORK["producer"], "frames in", "receive"]
    assert sum(row["share"] for row in table) == pytest.approx(1)
    assert table[-1]["us_per_buffer"] == 250_000
    assert table[-1]["ns_per_record"] is None
    calls = {row["what"]: row["calls"] for row in table}
    assert calls == {OTHER: 1, ASLEEP: 1, LOOP: None, WORK["producer"]: None, "frames in": 1, "receive": 1}
    per_gb = {row["what"]: row["calls_per_gb"] for row in with_calls_per_gb(table, 500_000_000)}
    assert per_gb == {what: count and 2 * count for what, count in calls.items()}
    assert {row["calls_per_gb"] for row in with_calls_per_gb(table, 0)} == {None}


async def test_a_section_that_raises_ends() -> None:
    with profiled("consumer", True) as actual:
        assert actual is not None
        with pytest.raises(IndexError):
            actual.wrapped(lambda: [][0], "frames in")()
    assert "frames in" in actual.seconds


def test_nothing_is_left_behind() -> None:
    before = Pump.read_now, Source.array, run_metrics.spin.offer_processor

    async def main() -> None:
        with profiled("producer", False) as nothing:
            assert nothing is None
            assert (Pump.read_now, Source.array, run_metrics.spin.offer_processor) == before
        with profiled("producer", True):
            assert Pump.read_now is not before[0]

    trio.run(main)
    assert (Pump.read_now, Source.array, run_metrics.spin.offer_processor) == before


@pytest.mark.slow
def test_a_profiled_run_says_where_its_time_went() -> None:
    row = run_once(RunSpec(records=200_000, emit="batch", profile=True))
    assert row["delivered"]
    actual = {(cost["side"], cost["what"]): cost for cost in row["costs"]}
    for key in (
        ("producer", "system calls: sendmsg"),
        ("producer", WORK["producer"]),
        ("consumer", "system calls: recvmsg"),
        ("consumer", "decode, give credit"),
        ("consumer", "verify (the benchmark)"),
    ):
        assert actual[key]["seconds"] > 0
        assert actual[key]["us_per_buffer"] > 0
        if key[1].startswith("system calls"):
            assert actual[key]["calls_per_gb"] == pytest.approx(actual[key]["calls"] * 1e9 / row["payload_bytes"])
            assert 0 < actual[key]["calls"] < 2 * row["payload_bytes"] // 4096
    for side in ("producer", "consumer"):
        assert sum(cost["share"] for cost in row["costs"] if cost["side"] == side) == pytest.approx(1)


def test_the_report_has_a_table_for_each_side(fake_rows: Rows) -> None:
    rows = fake_rows(Grid(timeouts_s=(0.1,), record_sizes=(8,), channels=(1,)))
    assert 'id="costs"' not in build_report(rows, {})
    for row in rows:
        row["costs"] = [
            {
                "side": side,
                "what": "<decode>",
                "share": 0.25,
                "us_per_buffer": 1.5,
                "ns_per_record": None,
                "calls_per_gb": 12_000.0,
            }
            for side in ("producer", "consumer")
        ]
    page = build_report(rows, {})
    assert page.count("<td>25%</td><td>1.5</td><td>&ndash;</td><td>12,000</td>") == 2
    assert "&lt;decode&gt;" in page


def test_only_where_it_can_be_measured() -> None:
    with pytest.raises(ConfigError, match="--profile"):
        MeshSpec(hosts=("a:1",), profile=True)
    with pytest.raises(ConfigError, match="--verify"):
        RunSpec(verify="sample", rate_per_s=1000)
