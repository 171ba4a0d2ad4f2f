from __future__ import annotations

import numpy as np

from netstack_bench.places.hosts.clocks import (
    HostClock,
    Reading,
    latency_correction_ns,
    latency_uncertainty_ns,
    translate,
)

US = HostClock(Reading(0, 0, 100))
THEIRS = HostClock(Reading(1_000, 500, 60), Reading(2_000, 600, 40))


def test_an_offset_is_interpolated_and_held_beyond_both_measurements() -> None:
    assert [THEIRS.offset_ns(at) for at in (0, 1_000, 1_500, 2_000, 9_000)] == [500, 500, 550, 600, 600]
    assert HostClock(Reading(1_000, 500, 60)).offset_ns(5_000) == 500


def test_times_translate_both_ways() -> None:
    here = np.array([1_000, 1_500, 2_000])
    assert THEIRS.there_ns(here).tolist() == [1_500, 2_050, 2_600]
    assert translate(np.array([1_500, 2_050, 2_600]), THEIRS, US).tolist() == here.tolist()
    assert translate(np.array([], dtype=np.int64), THEIRS, US).tolist() == []


def test_a_latency_is_corrected_for_what_the_clocks_moved_since_the_start() -> None:
    # The source's clock gains 50 until then: it sends earlier than the sink, who was told the offset before, believes.
    assert latency_correction_ns(THEIRS, US, 1_500) == 50
    assert latency_correction_ns(US, THEIRS, 1_500) == -50
    assert latency_correction_ns(THEIRS, THEIRS, 1_500) == 0


def test_uncertainty_is_half_of_both_round_trips_and_none_on_one_host() -> None:
    assert THEIRS.uncertainty_ns == 30
    assert latency_uncertainty_ns(US, THEIRS) == 80
    assert latency_uncertainty_ns(US, US) == 0
