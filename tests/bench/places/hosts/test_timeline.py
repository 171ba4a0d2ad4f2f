from __future__ import annotations

from netstack_bench.host import QUEUED, STOLEN
from netstack_bench.places.hosts.matrix import Placement
from netstack_bench.places.hosts.result import Timeline

SOURCE, SINK = Placement("source", 0, 0), Placement("sink", 3, 1)


def host_of(host: int) -> str:
    return "ab"[host]


def test_totals_become_rates_over_each_stretch() -> None:
    timeline = Timeline()
    for t_s, records, soft_s, hard_s in ((0.0, 0, 0.0, 0.0), (0.25, 10, 0.05, 0.1), (0.5, 15, 0.05, 0.1)):
        reported = {"t_s": t_s, "records": records, "soft_s": soft_s, "hard_s": hard_s, "pool_usage": 0.5}
        timeline.add(SOURCE, {**reported, QUEUED: t_s / 2, STOLEN: 0.0})
    timeline.add(SINK, {"t_s": 0.1, "records": 0, "idle_s": 0.0, "pool_usage": 0.0})
    timeline.add(SINK, {"t_s": 0.3, "records": 7, "idle_s": 0.05, "pool_usage": 0.25})
    first, second, third = timeline.samples(host_of)
    assert first == {
        "t_s": 0.25,
        "host": "a",
        "task": "source-0",
        "records": 10,
        "backpressured_ms_per_s": 600.0,
        "busy_ms_per_s": None,
        "idle_ms_per_s": None,
        "pool_usage": 0.5,
        QUEUED: 500.0,
        STOLEN: 0.0,
    }
    assert second == {
        "t_s": 0.3,
        "host": "b",
        "task": "sink-3",
        "records": 7,
        "backpressured_ms_per_s": None,
        "busy_ms_per_s": 750.0,
        "idle_ms_per_s": 250.0,
        "pool_usage": 0.25,
        QUEUED: None,
        STOLEN: None,
    }
    assert third["backpressured_ms_per_s"] == 0.0


def test_a_rate_needs_both_ends_of_a_stretch() -> None:
    """The kernel does not say how long tasks were queued in the moment in which a thread ends."""
    timeline = Timeline()
    for t_s, reported in ((0.0, {}), (0.1, {QUEUED: 0.01}), (0.2, {QUEUED: 0.02}), (0.3, {})):
        timeline.add(SINK, {"t_s": t_s, "records": 0, "pool_usage": 0.0, **reported})
    assert [sample[QUEUED] for sample in timeline.samples(host_of)] == [None, 100.0, None]


def test_what_was_before_the_start_is_no_stretch() -> None:
    timeline = Timeline()
    for t_s in (-0.3, -0.1, 0.1):
        timeline.add(SINK, {"t_s": t_s, "records": 0, "idle_s": 0.3 + t_s, "pool_usage": 0.0})
    (only,) = timeline.samples(host_of)
    assert only["t_s"] == 0.1
    assert only["idle_ms_per_s"] == 1000.0


def test_a_long_run_keeps_a_few_hundred_samples_of_all_of_it() -> None:
    timeline = Timeline()
    for number in range(5000):
        timeline.add(SINK, {"t_s": number / 4, "records": number, "idle_s": number / 8, "pool_usage": 0.0})
    samples = timeline.samples(host_of)
    assert 100 < len(samples) <= 240
    assert samples[0]["t_s"] < 20
    assert samples[-1]["t_s"] > 1240
    assert {sample["idle_ms_per_s"] for sample in samples} == {500.0}
