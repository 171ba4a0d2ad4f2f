"""Clocks of several hosts against the coordinator's: offsets before and after a run, and how sure they are.

Takes: offsets measured by exchanging timestamps (minimum round trip). Gives: times in a host's own clock; what a
measured one-way latency has to be corrected by, and its uncertainty.

An offset is what a host's CLOCK_MONOTONIC shows more than the coordinator's. In between two measurements it is
interpolated, because quartz drifts steadily over a few seconds. The error of an offset is at most half its round trip.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True)
class Reading:
    """One measurement of a host's clock.

    Attributes:
        at_ns: when, in the coordinator's clock.
        offset_ns: the host's clock minus the coordinator's.
        rtt_ns: the least round trip.
    """

    at_ns: int
    offset_ns: int
    rtt_ns: int


@final
@dataclass(frozen=True, slots=True)
class HostClock:
    """A host's clock over a run.

    Attributes:
        before: measured before the start.
        after: measured after the end; None while that is ahead: the clock is then taken to run as ours.
    """

    before: Reading
    after: Reading | None = None

    def offset_ns(self, at_ns: int) -> int:
        """The offset at a moment of the coordinator's clock; beyond both measurements it is that of the nearer one."""
        return self.before.offset_ns + self.drift_ns(at_ns)

    def drift_ns(self, at_ns: int) -> int:
        """How much the offset has changed from the first measurement to this moment."""
        return int(self._drifts_ns(np.array([at_ns], dtype=np.int64))[0])

    def there_ns(self, at_ns: Int64s) -> Int64s:
        """Moments of the coordinator's clock in the host's own."""
        return at_ns + self.before.offset_ns + self._drifts_ns(at_ns)

    def here_ns(self, there_ns: Int64s) -> Int64s:
        """Moments of the host's clock in the coordinator's."""
        # Clocks run alike within parts in 10,000, and so does the drift over as little as an offset of it: two steps
        # settle what an exact inversion would.
        here = there_ns - self.before.offset_ns
        for _ in range(2):
            here = there_ns - self.before.offset_ns - self._drifts_ns(here)
        return here

    def _drifts_ns(self, at_ns: Int64s) -> Int64s:
        first, last = self.before, self.after
        if last is None or last.at_ns <= first.at_ns:
            return np.zeros(len(at_ns), dtype=np.int64)
        part = np.clip((at_ns - first.at_ns) / (last.at_ns - first.at_ns), 0.0, 1.0)
        return np.rint(part * (last.offset_ns - first.offset_ns)).astype(np.int64)

    @property
    def uncertainty_ns(self) -> int:
        """Half of the longer of both round trips: an offset is not further off."""
        return max(each.rtt_ns for each in (self.before, self.after or self.before)) // 2


def translate(there_ns: Int64s, source: HostClock, sink: HostClock) -> Int64s:
    """Moments of one host's clock in another's."""
    if source is sink:
        return there_ns
    return sink.there_ns(source.here_ns(there_ns))


def latency_correction_ns(source: HostClock, sink: HostClock, at_ns: int) -> int:
    """What to add to a latency measured around `at_ns`, with start times told by the first measurements.

    The source paces by its own clock from a start that it got, the sink subtracts due times in its own: both clocks'
    drift since then is in the difference.
    """
    return 0 if source is sink else source.drift_ns(at_ns) - sink.drift_ns(at_ns)


def latency_uncertainty_ns(source: HostClock, sink: HostClock) -> int:
    """How far a one-way latency may be off: by both offsets' errors; not at all within one host."""
    return 0 if source is sink else source.uncertainty_ns + sink.uncertainty_ns
