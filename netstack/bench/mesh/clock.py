"""Clock offset to another host, measured with timestamps that an idle connection exchanges.

Takes: several triples (sent, theirs, received) in ns. Gives: the offset and its uncertainty.

The error of `offset = theirs - (sent + received) / 2` is at most half of the round trip, however the two directions
share it; so the sample with the shortest round trip has the smallest bound. Under load, queueing delays one direction
more and enlarges the error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import trio

from netstack.control.link import ControlLink
from netstack.errors import ConnectionLost

CLOCK_SAMPLES: Final = 20


@dataclass(frozen=True, slots=True)
class ClockSample:
    """One measurement of another clock.

    Attributes:
        offset_ns: the peer's CLOCK_MONOTONIC minus ours.
        uncertainty_ns: the true offset differs from `offset_ns` by at most this.
        rtt_ns: the shortest round trip.
        at_ns: time of the measurement on our clock.
    """

    offset_ns: int
    uncertainty_ns: int
    rtt_ns: int
    at_ns: int


def best_sample(exchanges: Iterable[tuple[int, int, int]]) -> ClockSample:
    """Returns the sample with the shortest round trip.

    Args:
        exchanges: (our time before, the peer's time, our time after) in ns; at least one.
    """
    sent_ns, theirs_ns, received_ns = min(exchanges, key=lambda each: each[2] - each[0])
    rtt_ns = received_ns - sent_ns
    middle_ns = sent_ns + rtt_ns // 2
    return ClockSample(theirs_ns - middle_ns, (rtt_ns + 1) // 2, rtt_ns, middle_ns)


async def measure_clock(link: ControlLink, samples: int = CLOCK_SAMPLES) -> ClockSample:
    """Measures the clock of the peer against ours; most precise while the link is otherwise idle.

    Args:
        link: a link on which another task calls `receive`.
        samples: number of pings; at least 1.

    Raises:
        ConnectionLost: the peer closed the connection or does not answer.

    Cancellation: leaves no state behind.
    """
    exchanges = []
    for _ in range(samples):
        with trio.move_on_after(link.heartbeat_timeout_s) as silence:
            exchanges.append(await link.ping())
        if silence.cancelled_caught:
            raise ConnectionLost(f"{link.peer} did not answer within {link.heartbeat_timeout_s:g} s")
    return best_sample(exchanges)
