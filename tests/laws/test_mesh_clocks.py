"""Laws of clock offsets: whatever the true clocks do, the estimates stay within what they claim."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from netstack_bench.places.hosts.clocks import (
    HostClock,
    Reading,
    latency_correction_ns,
    latency_uncertainty_ns,
    translate,
)

DURATION_NS = 10_000_000_000
BOOT_NS = st.integers(-(10**15), 10**15)
PPM = st.integers(-100, 100)
WAYS_NS = st.tuples(st.integers(1_000, 500_000), st.integers(1_000, 500_000))


class TrueClock:
    """Runs `ppm` fast, from an offset."""

    def __init__(self, offset_ns: int, ppm: int) -> None:
        self.offset_ns, self.ppm = offset_ns, ppm

    def at(self, here_ns: int) -> int:
        return here_ns + self.offset_ns + here_ns * self.ppm // 1_000_000

    def read(self, at_ns: int, ways_ns: tuple[int, int]) -> Reading:
        """An exchange of timestamps: `ways_ns` there and back."""
        there, back = ways_ns
        seen = self.at(at_ns + there)
        middle = at_ns + (there + back) // 2
        return Reading(middle, seen - middle, there + back)


@st.composite
def clocks(draw: st.DrawFn) -> tuple[TrueClock, HostClock]:
    true = TrueClock(draw(BOOT_NS), draw(PPM))
    return true, HostClock(true.read(0, draw(WAYS_NS)), true.read(DURATION_NS, draw(WAYS_NS)))


@given(clock=clocks(), at_ns=st.integers(1_000_000, DURATION_NS))
def test_an_offset_is_never_further_off_than_it_says(clock: tuple[TrueClock, HostClock], at_ns: int) -> None:
    true, estimate = clock
    assert abs(estimate.offset_ns(at_ns) - (true.at(at_ns) - at_ns)) <= estimate.uncertainty_ns + 200


@given(clock=clocks(), at_ns=st.lists(st.integers(0, 2 * DURATION_NS), max_size=5))
def test_translating_there_and_back_changes_nothing(clock: tuple[TrueClock, HostClock], at_ns: list[int]) -> None:
    _, estimate = clock
    moments = np.array(sorted(at_ns), dtype=np.int64)
    assert np.abs(estimate.here_ns(estimate.there_ns(moments)) - moments).max(initial=0) <= 1


@given(one=clocks(), other=clocks(), at_ns=st.integers(1_000_000, DURATION_NS))
def test_a_translated_moment_is_within_the_uncertainty_of_the_pair(
    one: tuple[TrueClock, HostClock], other: tuple[TrueClock, HostClock], at_ns: int
) -> None:
    moved = translate(np.array([one[0].at(at_ns)]), one[1], other[1])
    assert abs(int(moved[0]) - other[0].at(at_ns)) <= latency_uncertainty_ns(one[1], other[1]) + 400


@given(source=clocks(), sink=clocks(), latency_ns=st.integers(0, 10**9))
def test_a_corrected_latency_is_within_the_uncertainty_of_the_pair(
    source: tuple[TrueClock, HostClock], sink: tuple[TrueClock, HostClock], latency_ns: int
) -> None:
    # Both are told the start by the first measurement; the source waits for it by its own clock, half a run later.
    after_ns = DURATION_NS // 2
    due = after_ns + source[1].before.offset_ns
    believed = after_ns + sink[1].before.offset_ns
    rate = 1 + source[0].ppm / 1e6
    sent_ns = round((due - source[0].offset_ns) / rate)
    measured = sink[0].at(sent_ns + latency_ns) - believed
    corrected = measured + latency_correction_ns(source[1], sink[1], after_ns)
    slack = 1_000 + latency_ns * 200 // 1_000_000
    assert abs(corrected - latency_ns) <= latency_uncertainty_ns(source[1], sink[1]) + slack
