"""Clock offsets between hosts and the coordinator, before and after a run, and their uncertainty.

An offset is a host's CLOCK_MONOTONIC minus the coordinator's, measured by exchanging timestamps (minimum round trip).
Between two measurements it is interpolated, because quartz drifts steadily over a few seconds. The error of an offset
is at most half its round trip.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt
import trio

from netstack.base.errors import ConnectionLost
from netstack.cluster.control.link import ControlLink

Int64s = npt.NDArray[np.int64]

CLOCK_SAMPLES: Final = 20


@final
@dataclass(frozen=True, slots=True)
class Reading:
    """One measurement of a host's clock: time in the coordinator's clock, offset, and least round trip."""

    at_ns: int
    offset_ns: int
    rtt_ns: int


@final
@dataclass(frozen=True, slots=True)
class HostClock:
    """A host's clock over a run; `after` is None until it is measured, and the drift then counts as 0."""

    before: Reading
    after: Reading | None = None

    def offset_ns(self, at_ns: int) -> int:
        """The offset at a time of the coordinator's clock; constant outside of the two measurements."""
        return self.before.offset_ns + self.drift_ns(at_ns)

    def drift_ns(self, at_ns: int) -> int:
        """The change of the offset from the first measurement to this time."""
        return int(self._drifts_ns(np.array([at_ns], dtype=np.int64))[0])

    def there_ns(self, at_ns: Int64s) -> Int64s:
        """Times of the coordinator's clock in the host's clock."""
        return at_ns + self.before.offset_ns + self._drifts_ns(at_ns)

    def here_ns(self, there_ns: Int64s) -> Int64s:
        """Times of the host's clock in the coordinator's clock."""
        # Clocks agree within parts in 10,000, so two steps of this iteration equal an exact inversion.
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
        """The maximum error of an offset: half of the longer round trip."""
        return max(each.rtt_ns for each in (self.before, self.after or self.before)) // 2


def translate(there_ns: Int64s, source: HostClock, sink: HostClock) -> Int64s:
    """Times of one host's clock in another host's clock."""
    if source is sink:
        return there_ns
    return sink.there_ns(source.here_ns(there_ns))


def latency_correction_ns(source: HostClock, sink: HostClock, at_ns: int) -> int:
    """The correction of a latency around `at_ns`, with start times from the first measurements.

    The source paces by its own clock from a start that it received, the sink subtracts due times in its own clock: the
    difference contains the drift of both clocks since then.
    """
    return 0 if source is sink else source.drift_ns(at_ns) - sink.drift_ns(at_ns)


def latency_uncertainty_ns(source: HostClock, sink: HostClock) -> int:
    """The maximum error of a one-way latency: the errors of both offsets; 0 within one host."""
    return 0 if source is sink else source.uncertainty_ns + sink.uncertainty_ns


def best_reading(exchanges: Iterable[tuple[int, int, int]]) -> Reading:
    """Returns the reading with the shortest round trip, whose error is at most half of it.

    Under load, queueing delays one direction more and enlarges the error.

    Args:
        exchanges: (our time before, the peer's time, our time after) in ns; at least one.
    """
    sent_ns, theirs_ns, received_ns = min(exchanges, key=lambda each: each[2] - each[0])
    rtt_ns = received_ns - sent_ns
    middle_ns = sent_ns + rtt_ns // 2
    return Reading(middle_ns, theirs_ns - middle_ns, rtt_ns)


async def read_clock(link: ControlLink) -> Reading:
    """Measures the clock of the peer against ours; most precise while the link is otherwise idle.

    Args:
        link: a link on which another task calls `receive`.

    Raises:
        ConnectionLost: the peer closed the connection or does not answer.

    Cancellation: leaves no state behind.
    """
    exchanges = []
    for _ in range(CLOCK_SAMPLES):
        with trio.move_on_after(link.heartbeat_timeout_s) as silence:
            exchanges.append(await link.ping())
        if silence.cancelled_caught:
            raise ConnectionLost(f"{link.peer} did not answer within {link.heartbeat_timeout_s:g} s")
    return best_reading(exchanges)
