"""How far another host's clock is from ours: from timestamps exchanged over an idle connection.

Takes: (sent, theirs, received) in ns, several. Gives: the offset, and how wrong it can be.

`offset = theirs - (sent + received) / 2` is wrong by at most half of the round trip, whatever the way there and the way
back take; the sample of the least round trip bounds it best. Under load queueing is one-sided and makes it worse.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import trio

from ..errors import ConnectionLost
from .link import ControlLink

CLOCK_SAMPLES: Final = 20


@dataclass(frozen=True, slots=True)
class ClockSample:
    """A look at another clock.

    Attributes:
        offset_ns: their CLOCK_MONOTONIC minus ours.
        uncertainty_ns: the truth lies within this of `offset_ns`.
        rtt_ns: least round trip seen.
        at_ns: when, by our clock.
    """

    offset_ns: int
    uncertainty_ns: int
    rtt_ns: int
    at_ns: int


def best_sample(exchanges: Iterable[tuple[int, int, int]]) -> ClockSample:
    """The sample of the least round trip.

    Args:
        exchanges: (our time before, theirs, ours after) in ns; at least one.
    """
    sent_ns, theirs_ns, received_ns = min(exchanges, key=lambda each: each[2] - each[0])
    rtt_ns = received_ns - sent_ns
    middle_ns = sent_ns + rtt_ns // 2
    return ClockSample(theirs_ns - middle_ns, (rtt_ns + 1) // 2, rtt_ns, middle_ns)


async def measure_clock(link: ControlLink, samples: int = CLOCK_SAMPLES) -> ClockSample:
    """The clock of a link's other end against ours; best while nothing else is on the wire.

    Args:
        link: somebody receives on it.
        samples: how often it is asked; at least once.

    Raises:
        ConnectionLost: the other end is gone, or does not answer.

    Cancellation: nothing is left behind.
    """
    exchanges = []
    for _ in range(samples):
        with trio.move_on_after(link.heartbeat_timeout_s) as silence:
            exchanges.append(await link.ping())
        if silence.cancelled_caught:
            raise ConnectionLost(f"{link.peer} did not answer within {link.heartbeat_timeout_s:g} s")
    return best_sample(exchanges)
