from __future__ import annotations

import itertools
from collections import Counter

import pytest

from netstack.base.errors import ConfigError
from netstack_bench.grid import Grid, expected_seconds, run_kind
from netstack_bench.spec import RunSpec


def test_the_default_takes_about_a_minute() -> None:
    runs = Grid().plan()
    assert len(runs) == 5 * 2 * 2 * 2
    assert 50 < expected_seconds(runs) < 70


def test_every_point_has_a_throughput_and_a_latency_run_in_every_repeat() -> None:
    grid = Grid(timeouts_s=(None, 0.0), record_sizes=(8, 64), channels=(1,), repeats=3, latency_rate_per_s=500.0)
    runs = grid.plan()
    counts = Counter((r.spec.buffer_timeout_s, r.spec.record_bytes, r.spec.rate_per_s, r.repeat) for r in runs)
    assert len(counts) == 2 * 2 * 2 * 3
    assert set(counts.values()) == {1}
    assert {run.kind for run in runs if run.spec.rate_per_s == 500.0} == {"latency"}
    assert {run.kind for run in runs if run.spec.rate_per_s is None} == {"throughput"}
    assert [run.order for run in runs] == list(range(len(runs)))


def test_each_point_has_a_latency_run_at_each_rate() -> None:
    grid = Grid(timeouts_s=(0.1, 0.0), record_sizes=(8,), channels=(1,), latency_rate_per_s=(1e3, 1e4, 1e3))
    rates = Counter((run.spec.buffer_timeout_s, run.spec.rate_per_s) for run in grid.plan())
    assert rates == dict.fromkeys(itertools.product((0.1, 0.0), (None, 1e3, 1e4)), 1)
    assert grid.as_dict()["latency_rate_per_s"] == 1e3
    assert grid.as_dict()["latency_rates_per_s"] == [1e3, 1e4]
    assert Grid(latency_rate_per_s=500.0).as_dict()["latency_rates_per_s"] == [500.0]
    assert "latency at 10 k/s" in {str(run).partition(",")[0] for run in grid.plan()}
    with pytest.raises(ConfigError, match="--latency-rate is empty"):
        Grid(latency_rate_per_s=())


def test_repeats_are_whole_passes_each_in_its_own_order() -> None:
    runs = Grid(repeats=2).plan()
    half = len(runs) // 2
    assert {run.repeat for run in runs[:half]} == {0}
    assert {run.repeat for run in runs[half:]} == {1}
    assert [run.spec for run in runs[:half]] != [run.spec for run in runs[half:]]


def test_the_order_is_shuffled_by_the_seed_alone() -> None:
    assert Grid(seed=3).plan() == Grid(seed=3).plan()
    assert Grid(seed=3).plan() != Grid(seed=4).plan()
    assert {run.key for run in Grid(seed=3).plan()} == {run.key for run in Grid(seed=4).plan()}


def test_values_given_twice_are_measured_once() -> None:
    assert len(Grid(timeouts_s=(0.1, 0.1), record_sizes=(8, 8), channels=(2,)).plan()) == 2


def test_common_settings_and_lengths_reach_every_run() -> None:
    grid = Grid(channels=(4,), seconds=0.5, latency_seconds=2.0, common={"emit": "batch", "segment_size_bytes": 4096})
    for run in grid.plan():
        assert (run.spec.emit, run.spec.segment_size_bytes, run.spec.channels) == ("batch", 4096, 4)
        assert run.spec.seconds == (2.0 if run.kind == "latency" else 0.5)


def test_buffers_and_round_trips_are_axes() -> None:
    grid = Grid(
        timeouts_s=(0.1,),
        record_sizes=(1024,),
        channels=(1,),
        exclusive_buffers=(0, 2),
        floating_buffers=(1, 8, 32),
        round_trips_s=(0.0, 0.01),
        latency_seconds=0,
        common={"link_bytes_per_s": 100 << 20},
    )
    runs = grid.plan()
    assert len({(r.spec.exclusive_buffers, r.spec.floating_buffers, r.spec.round_trip_s) for r in runs}) == 2 * 3 * 2
    assert len(runs) == 12
    assert {run.spec.link_bytes_per_s for run in runs} == {100 << 20}
    assert {run.kind for run in runs} == {"throughput"}, "0 latency seconds leave these runs out"
    far = next(run for run in runs if run.spec.round_trip_s and run.spec.exclusive_buffers == 0)
    assert str(far).endswith(f"0 + {far.spec.floating_buffers} buffers, round trip 10ms, link 100 MiB/s")


def test_a_point_without_checkpoints_is_measured_once_whatever_their_intervals() -> None:
    grid = Grid(
        timeouts_s=(0.1,),
        record_sizes=(8,),
        channels=(1,),
        checkpoints=("none", "aligned"),
        checkpoint_intervals_s=(2.0, 3.0),
        latency_seconds=0,
    )
    actual = sorted((run.spec.checkpoints, run.spec.checkpoint_interval_s) for run in grid.plan())
    assert actual == [("aligned", 2.0), ("aligned", 3.0), ("none", RunSpec().checkpoint_interval_s)]


def test_a_grid_takes_its_own_settings_and_hands_on_the_others() -> None:
    grid = Grid.of({"channels": (3,), "seconds": 0.5, "emit": "batch", "credit": False})
    assert grid == Grid(channels=(3,), seconds=0.5, common={"emit": "batch", "credit": False})
    assert grid.as_dict()["exclusive_buffers"] == [2]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"timeouts_s": ()}, "--timeouts"),
        ({"timeouts_s": []}, "--timeouts"),  # a mapping from a notebook
        ({"record_sizes": ()}, "--record-sizes"),
        ({"channels": ()}, "--channels"),
        ({"exclusive_buffers": ()}, "--exclusive-buffers"),
        ({"floating_buffers": ()}, "--floating-buffers"),
        ({"round_trips_s": ()}, "--round-trip"),
        ({"repeats": 0}, "--repeats"),
        ({"repeats": 100_001}, "--repeats 100001: the maximum is 100000"),
    ],
)
def test_a_grid_that_is_empty_or_endless_is_refused_by_name(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Grid(**settings)  # type: ignore[arg-type]


def test_a_point_that_cannot_work_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(ConfigError, match="--record-bytes 4"):
        Grid(record_sizes=(8, 4)).plan()


def test_a_rate_makes_it_a_latency_run() -> None:
    assert (run_kind(None), run_kind(10.0)) == ("throughput", "latency")


def test_one_value_in_place_of_a_list_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"timeouts_s=0\.1: give a list of values: \[0\.1\]"):
        Grid(timeouts_s=0.1)  # type: ignore[arg-type]
